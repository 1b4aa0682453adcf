"""The library's solutions of float64 systems on our own threads, called from Python, and its other routines on one
thread: so their bits do not depend on how many threads there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from jitgrad.blas_library import blas_address, set_threads_address
from jitgrad.compiler.driver.pools import outputs
from jitgrad.compiler.driver.runtime import pack_steps, runtime
from jitgrad.compiler.machine.cache import compile_cached
from jitgrad.compiler.products.blas import BlasStep, guard_steps
from jitgrad.compiler.products.library_triangles import BLOCK, STEP, library_triangles_ir
from jitgrad.compiler.triangles import row_order
from jitgrad.config import get_num_threads
from jitgrad.once import Once

Array = np.ndarray[Any, np.dtype[Any]]

_WIDTH = 128
"""Columns of a cell. Milliseconds of an inverse of 1000 rows from its factors, and of 1000 solutions, two Zen 4 cores:
35 and 54 with 32, 30 and 39 with 64, 27 and 35 with 128; by the library, whose bits follow its threads, 23 and 35.
"""
_MOST_CHUNKS = 64

LOWER, TURNED_LOWER, UPPER, TURNED_UPPER = b"LNU", b"LTU", b"UNN", b"UTN"
"""The triangles of factors as the library calls them: which one, whether transposed, whether its diagonal is ones."""


def solve_triangle(a: Array, b: Array, lower: bool, transposed: bool) -> Array:
    """``x`` [n, k] with ``a @ x == b``, or ``a.T @ x == b``, where one triangle of ``a`` [n, n] is read; float64 in C
    order.
    """
    return _solve(a, (_letters(lower, transposed),), np.array(b, order="C"))


def _letters(lower: bool, transposed: bool) -> bytes:
    """How the library calls a triangle of a matrix in C order, whose transpose it sees, from the right."""
    return (b"U" if lower else b"L") + (b"T" if transposed else b"N") + b"N"


def solve_factors(factors: Array, exchanged: Array, b: Array, transposed: bool) -> Array:
    """The same of a matrix of which there are the factors of `lapack.factor`: they are those of ``a.T`` in C order."""
    rows = row_order(exchanged)
    if not transposed:
        return _solve(factors, (TURNED_LOWER, TURNED_UPPER), b[rows])
    solved, result = _solve(factors, (UPPER, LOWER), np.array(b, order="C")), outputs.take(b.shape, b.dtype)
    result[rows] = solved
    return result


def inverse(factors: Array, exchanged: Array) -> Array:
    """The inverse of the matrix: the inverses of both factors are a solution for unit columns, half of which are
    zeros for the first one.
    """
    solved = _solve(factors, (TURNED_LOWER, TURNED_UPPER), np.eye(len(factors)), are_unit_columns=True)
    result = outputs.take(solved.shape, solved.dtype)
    result[:, row_order(exchanged)] = solved
    return result


def _solve(matrix: Array, triangles: Sequence[bytes], x: Array, are_unit_columns: bool = False) -> Array:
    """Right sides become solutions with one triangle of a matrix, and then another."""
    n, columns = x.shape
    first, second = (int.from_bytes(letters, "little") for letters in (triangles[0], triangles[-1]))
    words = {
        "trsm": blas_address("dtrsm"), "matrix": _at(matrix), "n": n, "result": _at(x), "columns": columns,
        "width": _WIDTH, "steps": len(triangles), "are_unit_columns": are_unit_columns, "first": first,
        "second": second,
    }  # fmt: skip
    block, cells = np.array([words[name] for name in BLOCK], np.int64), -(-columns // _WIDTH)
    chunks = min(cells, _MOST_CHUNKS) if set_threads_address() else 1  # else the library's threads have each cell
    _run((_code()[STEP], _at(block), cells, chunks))
    return x


def _run(step: tuple[int, int, int, int]) -> None:
    """The step by our threads, each of whose calls is on one."""
    with one_thread():
        steps = pack_steps([step])
        runtime().run_steps(0, _at(steps), 1, 0, get_num_threads(), 1)


def _at(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


@cache
def _code() -> Any:
    return compile_cached("library_triangles", library_triangles_ir, (STEP,), quickly=True)


# -- the library on one thread -----------------------------------------------------------------------------------------


@contextmanager
def one_thread() -> Iterator[None]:
    """The library on one thread within a block, counted together with the products of clusters (products/blas.py);
    nothing where it cannot be told.
    """
    guards = _guards()
    if guards is None:
        yield
        return
    enter, leave = guards
    enter()
    try:
        yield
    finally:
        leave()


@Once
def _guards() -> Any:
    steps = guard_steps()
    return None if steps is None else tuple(map(_called, steps))


def _called(step: BlasStep) -> Any:
    """A guard as a function without arguments."""
    block = np.array(step.block, np.int64)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)(step.address)
    return lambda: function(None, block.ctypes.data, 0, 1, 0, 0)
