"""Triangular systems with one right side, solved by machine code on one thread: a library's threads share them out, and
then wait for more work where ours should run. The code is made in products/triangle_code.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from jitgrad.compiler.products.triangle_steps import CODE, FUNCTIONS, LANES, LOWER, UNIT

Array = np.ndarray[Any, np.dtype[Any]]


def solve_triangle(a: Array, b: Array, lower: bool, transposed: bool) -> Array:
    """``x`` [n, 1] with ``a @ x == b``, or ``a.T @ x == b``, where one triangle of ``a`` [n, n] is read; float64 in C
    order.
    """
    x = np.array(b, order="C")
    _solve(a, x, LOWER if lower else 0, transposed)
    return x


def solve_factors(factors: Array, exchanged: Array, b: Array, transposed: bool) -> Array:
    """The same of a matrix of which there are the factors of `lapack.factor`: they are those of ``a.T`` in C order."""
    x = np.array(b, order="C")
    rows = row_order(exchanged)
    if transposed:
        _solve(factors, x, LOWER, False)
        _solve(factors, x, UNIT, False)
        result = np.empty_like(x)
        result[rows] = x
        return result
    x = x[rows]
    _solve(factors, x, UNIT, True)
    _solve(factors, x, LOWER, True)
    return x


def row_order(exchanged: Array) -> Array:
    """Which row of a matrix became the i-th one, from the rows exchanged, counted from 1."""
    rows = list(range(len(exchanged)))
    for i, j in enumerate(exchanged.tolist()):
        rows[i], rows[j - 1] = rows[j - 1], rows[i]
    return np.array(rows, np.int64)


def _solve(a: Array, x: Array, form: int, transposed: bool) -> None:
    """A right side becomes the solution."""
    places = [array.__array_interface__["data"][0] for array in (a, x)]
    _function(FUNCTIONS[transposed])(places[0], len(a), places[1], form)


@cache
def lanes() -> int:
    """How many float64 numbers are in a register; 0 where there is no code for the machine."""
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(CODE.code()[LANES])())


@cache
def _function(name: str) -> Callable[..., None]:
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(None, pointer, number, pointer, number)(CODE.code()[name])

