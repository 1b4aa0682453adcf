"""Triangular systems with one right side, solved by machine code on one thread: a library's threads share them out, and
then wait for more work where ours should run. The code is made in products/triangle_code.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from jitgrad.compiler.products.cholesky_steps import LANES, TRIANGLES
from jitgrad.compiler.products.factor_steps import triangle_code

Array = np.ndarray[Any, np.dtype[Any]]


def solve_triangle(a: Array, b: Array, lower: bool, transposed: bool) -> Array:
    """``x`` [n, 1] with ``a @ x == b``, or ``a.T @ x == b``, where one triangle of ``a`` [n, n] is read; float64 in C
    order.
    """
    n = a.shape[0]
    x = np.array(b, order="C")
    places = [array.__array_interface__["data"][0] for array in (a, x)]
    _function(TRIANGLES[transposed])(places[0], n, places[1], int(lower))
    return x


@cache
def lanes() -> int:
    """How many float64 numbers are in a register; 0 where there is no code for the machine."""
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(triangle_code()[LANES])())


@cache
def _function(name: str) -> Callable[..., None]:
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(None, pointer, number, pointer, number)(triangle_code()[name])

