"""Our own factorization of a positive definite matrix, and its gradient, called from Python; the code is made in
products/cholesky_code.py.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any

import numpy as np

from jitgrad.compiler.driver.pools import Arena, arena_for, outputs
from jitgrad.compiler.driver.runtime import pack_steps, runtime
from jitgrad.compiler.machine.cache import compile_cached
from jitgrad.compiler.machine.native import NativeCode
from jitgrad.compiler.products.cholesky_steps import (
    BLOCK,
    COTANGENT,
    MODULE,
    STEPS,
    Layout,
    cholesky_text,
    cut,
    layout_for,
    names,
)
from jitgrad.compiler.triangles import lanes
from jitgrad.config import get_num_threads

Array = np.ndarray[Any, np.dtype[Any]]

_DOUBLE = np.dtype(np.float64)
_Words = ctypes.c_int64 * len(BLOCK)
_kept: list[Arena] = []
"""The memory of the latest call: the next one needs no fresh pages."""


def cholesky(a: Array) -> Array | None:
    """The lower factor of a float64 matrix in C order, of which the lower triangle is read; None: it is not positive
    definite.
    """
    return _run(MODULE, a, a)


def cholesky_cotangent(factor: Array, g: Array) -> Array | None:
    """The cotangent of a symmetric matrix, symmetric, from that of its lower factor, of which the lower triangle is
    read; float64 matrices in C order.
    """
    return _run(COTANGENT, g, factor)


def _run(prefix: str, source: Array, factor: Array) -> Array | None:
    layout = _layout(source.shape[0])
    result = outputs.take(source.shape, _DOUBLE)
    arena = arena_for(layout.nbytes)
    try:
        status = _run_on(arena.address, layout, prefix, (source, factor, result))
    finally:
        arena.give_back()
        _kept[:] = [arena]
    return None if status else result


def _run_on(start: int, layout: Layout, prefix: str, arrays: tuple[Array, Array, Array]) -> int:
    """Run the steps on memory; the status that they leave."""
    source, factor, result = [array.__array_interface__["data"][0] for array in arrays]
    status, threads = start + layout.status, get_num_threads()
    ctypes.memset(start + layout.flags, 0, layout.words - layout.flags)
    _Words.from_address(start + layout.words)[:] = [
        source, factor, start, start + layout.packed, result, layout.n, layout.column, layout.blocks, layout.panels,
        threads, start + layout.diagonals, start + layout.flags, status,
    ]  # fmt: skip
    steps, address = _steps(prefix, layout.n, start)
    runtime().run_steps(0, address, len(steps), 0, threads, 1)
    return ctypes.c_int64.from_address(status).value


@lru_cache(maxsize=64)
def _steps(prefix: str, n: int, start: int) -> tuple[Array, int]:
    """The steps for memory that lies there, and where they lie."""
    layout, code = _layout(n), _code()
    block = start + layout.words
    steps = pack_steps([
        (code[f"{prefix}_{step}"], block, *cut(step, layout)) for step in STEPS[prefix]
    ])  # fmt: skip
    return steps, int(steps.ctypes.data)


@lru_cache(maxsize=64)
def _layout(n: int) -> Layout:
    return layout_for(n, lanes())


@cache
def _code() -> NativeCode:
    return compile_cached(MODULE, cholesky_text, names())
