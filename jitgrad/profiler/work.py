"""The work in a run: kernels, calls and bytes, read from the compiled program or from a run of the interpreter; no times.

Bytes moved are counted once per array that a kernel, a BLAS call or a NumPy call reads or writes, at its full size, and the
arrays that NumPy only views are not. Peak memory is what a run needs beyond the caller's arrays. For the interpreter it is
measured (tracemalloc); compiled, it is known from the plan: the arenas, and the arrays that live between and after the calls.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitgrad.compiler import CompiledCluster
from jitgrad.compiler.lower import Lowered
from jitgrad.compiler.nodes import Product
from jitgrad.executable import Executable
from jitgrad.interpreter import interpret, last_uses
from jitgrad.opdef import Fill
from jitgrad.program import Instruction, Program


@dataclass(frozen=True, slots=True)
class Work:
    """What one run does. ``launches`` are the calls made from Python: one per cluster and one per NumPy operation."""

    kernels: int = 0
    products: int = 0
    numpy_calls: int = 0
    launches: int = 0
    bytes_moved: int = 0
    peak_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        """One run after the other."""
        return Work(
            self.kernels + other.kernels,
            self.products + other.products,
            self.numpy_calls + other.numpy_calls,
            self.launches + other.launches,
            self.bytes_moved + other.bytes_moved,
            max(self.peak_bytes, other.peak_bytes),
        )


# -- compiled --------------------------------------------------------------------------------------------------------


def compiled_work(executable: Executable) -> Work:
    """The work in a run of an executable."""
    compiled = executable.compiled
    total = Work(peak_bytes=_planned_peak(executable))
    for step in compiled.steps:
        if isinstance(step, CompiledCluster):
            total += _cluster_work(compiled.program, step)
        elif not _is_constant(ins := compiled.program.instructions[step]):
            moved = sum(compiled.program.specs[v].nbytes for v in {*ins.inputs, *ins.outputs})
            total += Work(numpy_calls=1, launches=1, bytes_moved=moved)
    return total


def _cluster_work(program: Program, step: CompiledCluster) -> Work:
    kernels = sum(isinstance(item, Lowered) for item in step.lowered)
    moved = sum(_bytes_of(step, item) for item in step.lowered)
    moved += sum(2 * program.specs[v].nbytes for v, _ in step.bound.copied)
    return Work(kernels, len(step.lowered) - kernels, 0, 1, moved)


def _bytes_of(step: CompiledCluster, item: Lowered | Product) -> int:
    """Bytes that a kernel or product reads and writes, scratch in cache left out."""
    values = (item.a, item.b, item.value) if isinstance(item, Product) else item.values
    aliases = step.plan.aliases
    return sum(step.plan.specs[v].nbytes for v in {aliases.get(v, v) for v in values if v is not None})


def _planned_peak(executable: Executable) -> int:
    """Arenas, and the arrays that are alive while the step runs that has most of them."""
    program = executable.program
    arenas = sum(s.bound.arena.nbytes for s in executable.compiled.steps if isinstance(s, CompiledCluster))
    last: dict[int, float] = {}
    steps = [_step_values(program, step) for step in executable.compiled.steps]
    for number, (inputs, outputs) in enumerate(steps):
        last |= dict.fromkeys((*inputs, *outputs), number)
    last |= dict.fromkeys(program.outputs, math.inf)
    alive: dict[int, int] = {}
    peak = 0
    for number, (_, outputs) in enumerate(steps):
        alive |= {v: program.specs[v].nbytes for v in outputs}
        peak = max(peak, sum(alive.values()))
        alive = {v: nbytes for v, nbytes in alive.items() if last[v] > number}
    return arenas + peak


def _step_values(program: Program, step: CompiledCluster | int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The values that a step reads and makes."""
    if isinstance(step, CompiledCluster):
        return step.bound.inputs, step.bound.outputs + tuple(v for v, _ in step.bound.copied)
    return program.instructions[step].inputs, program.instructions[step].outputs


# -- interpreted -----------------------------------------------------------------------------------------------------


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
    calls = sum(not _is_constant(ins) for ins in program.instructions)
    return Work(0, 0, calls, calls, sum(moved), peak)


def _recording(ins: Instruction, moved: list[int]) -> Instruction:
    """The instruction with an op that also notes the bytes it moves."""
    if _is_constant(ins):
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


def _is_constant(ins: Instruction) -> bool:
    return isinstance(ins.op.kind, Fill) and ins.op.kind.scalar == "constant" and not ins.inputs
