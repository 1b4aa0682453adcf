"""Triangular systems with many right sides, solved by our own code, called from Python; it is made in
products/columns_code.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from jitgrad.compiler.driver.pools import arena_for, outputs
from jitgrad.compiler.driver.runtime import pack_steps, runtime
from jitgrad.compiler.products.columns_steps import BLOCK, CODE, STEP, TRIANGLE, WIDTH
from jitgrad.compiler.triangles import row_order
from jitgrad.config import get_num_threads
from jitgrad.records import NamedTuple

Array = np.ndarray[Any, np.dtype[Any]]

_DOUBLE = np.dtype(np.float64)
_MOST_CHUNKS = 64


class Triangle(NamedTuple):
    """One triangle of a float64 matrix in C order, or of its transpose; ``is_unit``: with ones on its diagonal."""

    matrix: Array
    lower: bool
    transposed: bool
    is_unit: bool = False

    @property
    def is_rising(self) -> bool:
        """Whether it is solved from the first row on."""
        return self.lower is not self.transposed


def solve_triangle(a: Array, b: Array, lower: bool, transposed: bool) -> Array:
    """``x`` [n, k] with ``a @ x == b``, or ``a.T @ x == b``, where one triangle of ``a`` [n, n] is read; float64 in C
    order.
    """
    as_they_are = np.arange(len(a))
    return _solve((Triangle(a, lower, transposed),), b, as_they_are, as_they_are)


def solve_factors(factors: Array, exchanged: Array, b: Array, transposed: bool) -> Array:
    """The same of a matrix of which there are the factors of `lapack.factor`: they are those of ``a.T`` in C order."""
    as_they_are, rows = np.arange(len(factors)), row_order(exchanged)
    unit, other = (Triangle(factors, lower, not transposed, not lower) for lower in (False, True))
    if transposed:
        return _solve((other, unit), b, as_they_are, rows)
    return _solve((unit, other), b, rows, as_they_are)


def _solve(triangles: Sequence[Triangle], b: Array, rows_in: Array, rows_out: Array) -> Array:
    """``x`` with ``x[rows_out] == inv(T2) inv(T1) b[rows_in]`` for one triangle or two."""
    (n, columns), threads = b.shape, get_num_threads()
    result, arena = outputs.take(b.shape, _DOUBLE), arena_for(8 * n * width() * threads)
    inverses = [_inverses(triangle) for triangle in triangles]  # read until all is solved
    described = np.array([_described(*pair) for pair in zip(triangles, inverses, strict=True)], np.int64)
    block = _in_order(
        BLOCK, source=_at(b), result=_at(result), work=arena.address, n=n, columns=columns, rows_in=_at(rows_in),
        rows_out=_at(rows_out), triangles=_at(described), count=len(triangles),
    )  # fmt: skip
    try:
        _run(np.array(block, np.int64), -(-columns // width()), threads)
    finally:
        arena.give_back()
    return result


def _run(block: Array, blocks: int, threads: int) -> None:
    """The step over so many blocks of columns."""
    steps = pack_steps([(CODE.code()[STEP], _at(block), blocks, min(blocks, _MOST_CHUNKS))])
    runtime().run_steps(0, _at(steps), 1, 0, threads, 1)


def _in_order(names: Sequence[str], **words: int) -> list[int]:
    """Words in the order of their names."""
    return [words[name] for name in names]


def _inverses(triangle: Triangle) -> Array:
    """One over each element of the diagonal, in the order of solving."""
    if triangle.is_unit:
        return np.ones(len(triangle.matrix))
    diagonal = triangle.matrix.diagonal()
    return 1.0 / (diagonal if triangle.is_rising else diagonal[::-1])


def _described(triangle: Triangle, inverses: Array) -> list[int]:
    """The words of a triangle in the order of solving: the one that falls goes from its last element back."""
    n, first = len(inverses), _at(triangle.matrix)
    down, across = (1, n) if triangle.transposed else (n, 1)
    start, step = (0, 1) if triangle.is_rising else (n - 1, -1)
    a = first if triangle.is_rising else first + 8 * (n * n - 1)
    words = {"a": a, "down": step * down, "across": step * across, "start": start, "step": step}
    return _in_order(TRIANGLE, **words, inverses=_at(inverses))


def _at(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


@cache
def width() -> int:
    """How many columns are solved for together; 0 where there is no code for the machine."""
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(CODE.code()[WIDTH])())
