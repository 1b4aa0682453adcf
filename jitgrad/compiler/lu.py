"""Our own LU factors, called from Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from jitgrad.compiler.driver.pools import arena_for, outputs
from jitgrad.compiler.products.lu_steps import CODE, FUNCTION, memory_bytes

Array = np.ndarray[Any, np.dtype[Any]]


def factor(a: Array) -> tuple[Array, Array]:
    """Both factors of a float64 matrix in C order in one matrix, transposed, and the row, counted from 1, that was
    exchanged with each, int64 [n].
    """
    n = a.shape[0]
    factors, rows, arena = outputs.take(a.shape, a.dtype), np.empty(n, np.int64), arena_for(memory_bytes(n))
    try:
        places = [array.__array_interface__["data"][0] for array in (a, factors, rows)]
        _function()(*places, arena.address, n)
    finally:
        arena.give_back()
    return factors, rows


@cache
def _function() -> Callable[..., None]:
    pointer = ctypes.c_void_p
    return ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer, ctypes.c_int64)(CODE.code()[FUNCTION])
