"""scipy.linalg: factorizations, solutions and functions of matrices of traced values, in SciPy's arguments.

``overwrite_a``, ``overwrite_b`` and ``check_finite`` change nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.dispatch import unsupported
from jitgrad.operators import call
from jitgrad.scipy.lifting import like_scipy, rest_of

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "det", "eigh", "eigvalsh", "expm", "inv", "norm", "pinv", "qr",
    "solve", "solve_triangular", "svd", "svdvals", "toeplitz",
]  # fmt: skip


@like_scipy("linalg")
def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The determinant."""
    return np.linalg.det(a)


@like_scipy("linalg")
def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The inverse; LinAlgError when a matrix is singular."""
    return np.linalg.inv(a)


@like_scipy("linalg")
def pinv(a: Any) -> Any:
    """The pseudo-inverse of a matrix of full rank."""
    return np.linalg.pinv(a)


@like_scipy("linalg")
def norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Any:
    """The norm of a vector or a matrix."""
    return np.linalg.norm(a, ord, axis, keepdims)


@like_scipy("linalg")
def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: str | None = None, transposed: bool = False,
) -> Any:  # fmt: skip
    """``x`` with ``a @ x == b``; of a matrix that is symmetric or positive definite one triangle is read."""
    if assume_a in (None, "gen", "general"):
        return np.linalg.solve(_turned(a) if transposed else a, b)
    if assume_a in ("pos", "positive definite"):
        return cho_solve(cho_factor(a, lower), b)
    if assume_a in ("sym", "symmetric"):
        return np.linalg.solve(_mirrored(a, lower), b)
    if assume_a in ("upper triangular", "lower triangular"):
        return solve_triangular(a, b, int(transposed), assume_a == "lower triangular")
    raise unsupported(f"scipy.linalg.solve with assume_a={assume_a!r}")


def _turned(a: Any) -> Any:
    return call("matrix_transpose", a)


def _mirrored(a: Any, lower: bool) -> Any:
    """The symmetric matrix of one triangle."""
    half = np.tril(a) if lower else np.triu(a)
    return half + _turned(half) - half * np.eye(half.shape[-1], dtype=half.dtype)


@like_scipy("linalg")
def solve_triangular(
    a: Any, b: Any, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False, overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """``x`` with ``a @ x == b``, or with the transpose of ``a`` for ``trans`` 1 or "T"; the other triangle is not read.
    """
    if trans not in (0, 1, "N", "T"):
        raise unsupported(f"scipy.linalg.solve_triangular with trans={trans!r}")
    if unit_diagonal:
        eye = np.eye(np.shape(a)[-1], dtype=a.dtype)
        a = a * (1 - eye) + eye
    if trans in (1, "T"):
        a, lower = _turned(a), not lower
    return call("linalg.solve_triangular", a, b, lower=lower)


@like_scipy("linalg")
def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The upper triangular factor R with ``R.T @ R == a``, or the lower one; LinAlgError unless positive definite."""
    return np.linalg.cholesky(a, upper=not lower)


@like_scipy("linalg")
def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
    """A factor for ``cho_solve``; zeros in the triangle that SciPy leaves undefined."""
    return np.linalg.cholesky(a, upper=not lower), lower


@like_scipy("linalg")
def cho_solve(
    c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    """``x`` with ``a @ x == b``, for the factor of ``a`` by ``cho_factor``."""
    c, lower = c_and_lower
    first, last = (c, _turned(c)) if lower else (_turned(c), c)
    half = call("linalg.solve_triangular", first, b, lower=True)
    return call("linalg.solve_triangular", last, half, lower=False)


@like_scipy("linalg")
def eigh(
    a: Any, b: Any = None, *, lower: bool = True, eigvals_only: bool = False, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True,
) -> Any:  # fmt: skip
    """Eigenvalues, rising, and eigenvectors of a symmetric matrix; with ``b``, of ``a v = w b v``, where ``b`` is
    positive definite.
    """
    factor = None if b is None else np.linalg.cholesky(_mirrored(b, lower))
    whole = a if factor is None else _between(factor, _mirrored(a, lower))
    values, vectors = np.linalg.eigh(whole, "L" if lower or factor is not None else "U")
    if eigvals_only:
        return values
    if factor is not None:
        vectors = call("linalg.solve_triangular", _turned(factor), vectors, lower=False)
    return values, vectors


def _between(factor: Any, a: Any) -> Any:
    """``inv(L) a inv(L).T``."""
    half = call("linalg.solve_triangular", factor, a, lower=True)
    return call("linalg.solve_triangular", factor, _turned(half), lower=True)


@like_scipy("linalg")
def eigvalsh(a: Any, b: Any = None, *, lower: bool = True) -> Any:
    """Eigenvalues, rising, of a symmetric matrix, as ``eigh``."""
    return eigh(a, b, lower=lower, eigvals_only=True)


@like_scipy("linalg")
def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, overwrite_a: bool = False, check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:  # fmt: skip
    """Singular vectors and values, not full unless square."""
    return tuple(np.linalg.svd(a, full_matrices)) if compute_uv else np.linalg.svd(a, compute_uv=False)


@like_scipy("linalg")
def svdvals(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Singular values in falling order."""
    return np.linalg.svd(a, compute_uv=False)


@like_scipy("linalg")
def qr(
    a: Any, overwrite_a: bool = False, lwork: int | None = None, mode: str = "full", pivoting: bool = False,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """Q and R, or R alone; ``mode="full"`` of a matrix with no more columns than rows takes a square one."""
    m, n = np.shape(a)[-2:]
    if pivoting or mode not in ("full", "economic", "r") or (m > n and mode != "economic"):
        raise unsupported(f"scipy.linalg.qr of shape {np.shape(a)} with {mode=}, {pivoting=}", 'say mode="economic"')
    q, r = np.linalg.qr(a)
    return (r,) if mode == "r" else (q, r)


# -- functions of matrices, matrices of blocks -----------------------------------------------------------------------

# Coefficients of the Padé approximant of order 13 to exp, and the norm up to which it is exact in float64: N. Higham,
# "The scaling and squaring method for the matrix exponential revisited", SIAM J. Matrix Anal. Appl. 26, 2005.
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_LARGEST = 5.371920351148152


@like_scipy("linalg")
def expm(A: Any) -> Any:
    """The exponential of a square matrix (or several): a rational function of it, halved until its norm is small, and
    squared as often.
    """
    from jitgrad.control.functions import fori_loop  # six modules, which whoever only factors and solves does without

    size = np.max(np.sum(np.abs(call("stop_gradient", A)), axis=-2))
    halvings = np.ceil(np.log2(np.maximum(size / _LARGEST, 1.0)))
    a = A * np.exp2(-halvings).astype(A.dtype)
    eye = np.eye(np.shape(A)[-1], dtype=A.dtype)
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    b = _PADE
    odd = a6 @ (b[13] * a6 + b[11] * a4 + b[9] * a2) + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * eye
    even = a6 @ (b[12] * a6 + b[10] * a4 + b[8] * a2) + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * eye
    u = a @ odd
    return fori_loop(0, halvings.astype(np.int64), lambda _, x: x @ x, np.linalg.solve(even - u, even + u))


@like_scipy("linalg")
def block_diag(*arrs: Any) -> Any:
    """Matrices along the diagonal of one, zeros around them."""
    blocks = [call("atleast_2d", a) for a in arrs]
    width, before, rows = sum(a.shape[1] for a in blocks), 0, []
    for a in blocks:
        rows.append(np.pad(a, ((0, 0), (before, width - before - a.shape[1]))))
        before += a.shape[1]
    return np.concatenate(rows)


@like_scipy("linalg")
def toeplitz(c: Any, r: Any = None) -> Any:
    """The matrix with the first column ``c`` and the first row ``r`` (the conjugate of c without it), equal along
    diagonals.
    """
    c = np.ravel(c)
    r = np.conjugate(c) if r is None else np.ravel(r)
    values = np.concatenate([np.flip(r)[:-1], c])
    places = np.arange(c.shape[0])[:, None] - np.arange(r.shape[0]) + r.shape[0] - 1
    return np.take(values, places)


__getattr__, __dir__ = rest_of("linalg", globals())
