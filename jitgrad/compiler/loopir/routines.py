"""Routines: what a kernel calls to work on whole tiles, and its meaning in Python; emission is in emit_routines.

    pack(tile, source, i, n)      the n elements of matrix i into a tile
    unpack(out, tile, i, n)       and back
    spread(tile, source, n)       n elements that are the same for all matrices
    fill(sums, value, n)          one value in all places
    fold_<combine>(partial, sums, n)    what was combined per lane, combined

    product(out, a, b, m, n, k, start and strides of rows and columns of a, and of b)
    lu(a, pivots, n)                            a becomes its factors, L below the diagonal
    lu_solve(lu, pivots, x, n, m)               m right sides become solutions
    lu_solve_transposed(lu, pivots, x, n, m)    the same for the transposed matrix
    lu_sign, lu_det(out, lu, pivots, n)         sign and value of the determinant
    lu_log(out, lu, n)                          the logarithm of its magnitude
    find_zero(a, flags, n)                      whether the diagonal has a zero
    solve_lower, solve_upper(a, x, n, m)        with one triangle of a
    cholesky(a, flags, n)                       a becomes its lower factor; whether it is not positive definite
    identity_matrix(a, n)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

COMBINES = ("add", "multiply", "maximum", "minimum", "logical_or", "logical_and")


def _pack(tile: Any, source: Any, i: int, n: int) -> None:
    tile[:n] = source[i * n : (i + 1) * n]


def _unpack(out: Any, tile: Any, i: int, n: int) -> None:
    out[i * n : (i + 1) * n] = tile[:n]


def _fill(sums: Any, value: Any, n: int) -> None:
    sums[:n] = value


def _fold(partial: Any, sums: Any, n: int) -> None:
    partial[:n] = sums[:n]


def _spread(tile: Any, source: Any, n: int) -> None:
    tile[:n] = source[:n]


def _product(out: Any, a: Any, b: Any, m: int, n: int, k: int, *places: int) -> None:
    def matrix(x: Any, rows: int, columns: int, start: int, row: int, column: int) -> Any:
        return x[start + row * np.arange(rows)[:, None] + column * np.arange(columns)]

    out[: m * n] = (matrix(a, m, k, *places[:3]) @ matrix(b, k, n, *places[3:])).ravel()


def _lu(a: Any, pivots: Any, n: int) -> None:
    m = a[: n * n].reshape(n, n)
    for k in range(n):
        sizes = np.abs(m[k:, k])
        p = pivots[k] = k if np.isnan(sizes[0]) else k + np.nanargmax(sizes)
        m[[k, p]] = m[[p, k]]
        if np.isinf(m[k, k]):
            m[k + 1 :, k] = 0
        elif m[k, k] != 0 and not np.isnan(m[k, k]):
            m[k + 1 :, k] /= m[k, k]
        m[k + 1 :, k + 1 :] -= np.outer(m[k + 1 :, k], m[k, k + 1 :])


def _exchange(x: Any, pivots: Any, order: Any) -> None:
    for k in order:
        x[[k, pivots[k]]] = x[[pivots[k], k]]


def _lu_solve(lu: Any, pivots: Any, x: Any, n: int, m: int) -> None:
    a, y = lu[: n * n].reshape(n, n), x[: n * m].reshape(n, m)
    _exchange(y, pivots, range(n))
    _substitute(np.tril(a, -1) + np.eye(n, dtype=a.dtype), y, range(n))
    _substitute(a, y, range(n)[::-1])


def _lu_solve_transposed(lu: Any, pivots: Any, x: Any, n: int, m: int) -> None:
    a, y = lu[: n * n].reshape(n, n), x[: n * m].reshape(n, m)
    _substitute(a.T, y, range(n))
    _substitute(np.triu(a.T, 1) + np.eye(n, dtype=a.dtype), y, range(n)[::-1])
    _exchange(y, pivots, range(n)[::-1])


def _substitute(a: Any, x: Any, order: Any) -> None:
    """Solve with the triangle of ``a`` that the order of its rows implies."""
    rows = list(order)
    for k, i in enumerate(rows):
        x[i] /= a[i, i]
        for j in rows[k + 1 :]:
            x[j] -= a[j, i] * x[i]


def _lu_sign(out: Any, lu: Any, pivots: Any, n: int) -> None:
    diagonal = lu[: n * n].reshape(n, n).diagonal()
    turns = np.sum(diagonal < 0) + np.sum(pivots[:n] != np.arange(n))
    out[0] = 0 if (diagonal == 0).any() else (-1) ** int(turns)


def _lu_log(out: Any, lu: Any, n: int) -> None:
    diagonal = lu[: n * n].reshape(n, n).diagonal()
    out[0] = -np.inf if (diagonal == 0).any() else np.sum(np.log(np.abs(diagonal)))


def _lu_det(out: Any, lu: Any, pivots: Any, n: int) -> None:
    sign = np.empty(1, lu.dtype)
    _lu_sign(sign, lu, pivots, n)
    _lu_log(out, lu, n)
    out[0] = sign[0] * np.exp(out[0])


def _find_zero(a: Any, flags: Any, n: int) -> None:
    flags[0] = (a[: n * n].reshape(n, n).diagonal() == 0).any()


def _solve_lower(a: Any, x: Any, n: int, m: int) -> None:
    _substitute(a[: n * n].reshape(n, n), x[: n * m].reshape(n, m), range(n))


def _solve_upper(a: Any, x: Any, n: int, m: int) -> None:
    _substitute(a[: n * n].reshape(n, n), x[: n * m].reshape(n, m), range(n)[::-1])


def _cholesky(a: Any, flags: Any, n: int) -> None:
    m = a[: n * n].reshape(n, n)
    flags[0] = 0
    for i in range(n):
        for j in range(i):
            m[i, j] = (m[i, j] - m[i, :j] @ m[j, :j]) / m[j, j]
        square = m[i, i] - m[i, :i] @ m[i, :i]
        flags[0] |= square <= 0
        m[i, i] = np.sqrt(square)
        m[i, i + 1 :] = 0


def _identity_matrix(a: Any, n: int) -> None:
    a[: n * n] = np.eye(n, dtype=a.dtype).ravel()


def python_routines() -> dict[str, Callable[..., None]]:
    """Name of a routine → its meaning on flat arrays, where a tile holds the elements of one matrix."""
    table: dict[str, Callable[..., None]] = {f"fold_{combine}": _fold for combine in COMBINES}
    return table | {
        "pack": _pack, "unpack": _unpack, "spread": _spread, "fill": _fill, "product": _product, "lu": _lu,
        "lu_solve": _lu_solve,
        "lu_solve_transposed": _lu_solve_transposed, "lu_sign": _lu_sign, "lu_log": _lu_log, "lu_det": _lu_det,
        "find_zero": _find_zero, "solve_lower": _solve_lower, "solve_upper": _solve_upper, "cholesky": _cholesky,
        "identity_matrix": _identity_matrix,
    }  # fmt: skip
