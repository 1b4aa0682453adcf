"""The work in a run: kernels, calls and bytes, and how much of it the interpreter does; no times.

Bytes moved are counted once per array that a kernel, a BLAS call or a NumPy call reads or writes, at its full
size, and the arrays that NumPy only views are not. Peak memory is what a run needs beyond the caller's
arrays. For the interpreter it is measured (tracemalloc); compiled, it is known from the plan: the arenas, and
the arrays that live between and after the calls.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.interpreter import interpret, last_uses
from jitgrad.opdef import Fill
from jitgrad.program import Instruction, Program
from jitgrad.records import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """What one run does. ``launches``: calls from Python, one per cluster and one per NumPy operation.

    ``residual_bytes``: values that forward ops leave in memory for gradient ops.
    """

    kernels: int = 0
    products: int = 0
    numpy_calls: int = 0
    launches: int = 0
    bytes_moved: int = 0
    peak_bytes: int = 0
    residual_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        """One run after the other."""
        return Work(
            self.kernels + other.kernels,
            self.products + other.products,
            self.numpy_calls + other.numpy_calls,
            self.launches + other.launches,
            self.bytes_moved + other.bytes_moved,
            max(self.peak_bytes, other.peak_bytes),
            self.residual_bytes + other.residual_bytes,
        )


def interpreted_work(program: Program, arrays: Sequence[Any]) -> Work:
    """The work of interpreting a program on these arrays, found by doing so twice."""
    moved: list[int] = []
    recorded = program.with_instructions(_recording(ins, moved) for ins in program.instructions)
    interpret(recorded, arrays)
    last_uses(program)  # made once and kept: not memory of a run
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = interpret(program, arrays)
        peak = tracemalloc.get_traced_memory()[1] - before
        del kept
    finally:
        tracemalloc.stop()
    calls = sum(not is_constant(ins) for ins in program.instructions)
    residuals = sum(program.specs[v].nbytes for v in residual_values(program))
    return Work(0, 0, calls, calls, sum(moved), peak, residuals)


def residual_values(program: Program) -> set[int]:
    """The values that forward ops make and gradient ops read, constants left out."""
    made = {v for ins in program.instructions if not (ins.is_gradient or is_constant(ins)) for v in ins.outputs}
    return {v for ins in program.instructions if ins.is_gradient for v in ins.inputs if v in made}


def _recording(ins: Instruction, moved: list[int]) -> Instruction:
    """The instruction with an op that also notes the bytes it moves."""
    if is_constant(ins):
        return ins
    impl: Callable[..., Any] = ins.op.impl

    def recorded(*arrays: Any, **params: Any) -> Any:
        result = impl(*arrays, **params)
        results = list(result) if len(ins.outputs) > 1 else [result]
        made = [r for r in results if not any(np.may_share_memory(r, x) for x in arrays)]
        if made:
            moved.append(_distinct_bytes(arrays) + _distinct_bytes(made))
        return result

    return replace(ins, op=replace(ins.op, impl=recorded))


def _distinct_bytes(arrays: Iterable[Any]) -> int:
    """Bytes in memory behind the arrays: an axis along which an array repeats itself counts once."""
    return sum(
        a.itemsize * math.prod(n for n, stride in zip(a.shape, a.strides, strict=True) if stride)
        for a in map(np.asarray, arrays)
    )


def is_constant(ins: Instruction) -> bool:
    """Whether an instruction only hands out a value that is known."""
    return isinstance(ins.op.kind, Fill) and ins.op.kind.scalar == "constant" and not ins.inputs
