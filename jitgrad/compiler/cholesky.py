"""Our own factorization of a positive definite matrix, and its gradient, called from Python: of stacks and of float32,
and by the interpreter. In clusters they are steps (products/factor_steps.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jitgrad.compiler.driver.pools import Arena, arena_for, outputs
from jitgrad.compiler.driver.runtime import pack_steps, runtime
from jitgrad.compiler.products.cholesky_steps import layout_for
from jitgrad.compiler.products.factor_steps import Request, factor_steps
from jitgrad.compiler.triangles import lanes
from jitgrad.config import get_num_threads
from jitgrad.records import NamedTuple

Array = np.ndarray[Any, np.dtype[Any]]

_DOUBLE = np.dtype(np.float64)


class _Call(NamedTuple):
    """Steps, the blocks that they read, how many bytes of memory they need, and where in it its parts begin."""

    steps: Array
    blocks: list[Array]
    nbytes: int
    parts: Sequence[int]


_kept: list[Arena] = []
"""The memory of the latest call: the next one needs no fresh pages."""


def cholesky(a: Array) -> Array | None:
    """The lower factor of a float64 matrix in C order, of which the lower triangle is read; None: it is not positive
    definite.
    """
    return _run("cholesky", a)


def cholesky_cotangent(factor: Array, g: Array) -> Array | None:
    """The cotangent of a symmetric matrix, symmetric, from that of its lower factor, of which the lower triangle is
    read; float64 matrices in C order.
    """
    return _run("cholesky_cotangent", factor, g)


def _run(routine: str, *operands: Array) -> Array | None:
    shape = operands[0].shape
    call = _call(routine, shape[0], len(operands))
    result = outputs.take(shape, _DOUBLE)
    arena = arena_for(call.nbytes)
    try:
        status = _run_on(arena.address, call, (*operands, result))
    finally:
        arena.give_back()
        _kept[:] = [arena]
    return None if status else result


def _run_on(memory: int, call: _Call, arrays: Sequence[Array]) -> int:
    """Run the steps on memory; the status that they leave."""
    places = [array.__array_interface__["data"][0] for array in arrays]
    places += [memory + offset for offset in call.parts]
    table = np.array([*places, 0, 0])  # the slots, and the status behind them
    steps = call.steps
    start = table.__array_interface__["data"][0]
    table[-2] = start + table.itemsize * (len(table) - 1)
    runtime().run_steps(start, steps.__array_interface__["data"][0], len(steps), 0, get_num_threads(), 1)
    return int(table[-1])


@lru_cache(maxsize=64)
def _call(routine: str, n: int, operands: int) -> _Call:
    """What a call for matrices of n rows takes."""
    layout = layout_for(n, lanes())
    parts = (0, 0 if routine == "cholesky" else layout.nbytes)  # its own, and that in which the factor is left
    slots = range(operands + 1 + len(parts))
    steps = [step for _, step in factor_steps(Request(routine, True, False, layout, slots, len(slots), 1))]
    blocks = [np.array(step.block) for step in steps]
    places = [block.__array_interface__["data"][0] for block in blocks]
    records = [(step.address, place, step.extent, step.nchunks) for step, place in zip(steps, places, strict=True)]
    return _Call(pack_steps(records), blocks, parts[-1] + layout.nbytes, parts)
