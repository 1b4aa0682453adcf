"""The work in a run of an executable, read from the compiled program; it loads the compiler."""

from __future__ import annotations

import math
from dataclasses import replace

from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.freezing.plans import BoundOp
from jitgrad.compiler.fusing.nodes import Product
from jitgrad.compiler.lowering.lower import CompiledCluster, Lowered, LoweredStep
from jitgrad.compiler.stages import Compiled
from jitgrad.executable import Executable
from jitgrad.profiler.planned_picture import step_instructions, step_values
from jitgrad.profiler.work import Work, is_constant, residual_values
from jitgrad.program import Program


def compiled_work(executable: Executable) -> Work:
    """The work in a run of an executable."""
    compiled = executable.compiled
    total = Work(peak_bytes=_planned_peak(executable))
    for step, bound in zip(compiled.steps, executable.bound.steps, strict=True):
        if isinstance(step, CompiledCluster):
            assert isinstance(bound, BoundCluster)
            total += _cluster_work(compiled.program, step, bound)
        elif not is_constant(ins := compiled.program.instructions[step]):
            moved = sum(compiled.program.specs[v].nbytes for v in {*ins.inputs, *ins.outputs})
            total += Work(numpy_calls=1, launches=1, bytes_moved=moved)
    return replace(total, residual_bytes=_residual_bytes(compiled))


def _residual_bytes(compiled: Compiled) -> int:
    """Values in memory that gradient ops of another kernel read and forward ops make."""
    program = compiled.program
    residuals = residual_values(program)
    made: set[int] = set()
    read: set[int] = set()
    for step in compiled.steps:
        if isinstance(step, CompiledCluster):
            for item in step.plan.steps:
                reads, makes = step_values(item)
                made.update(makes)
                if any(ins.is_gradient for ins in step_instructions(program, item)):
                    read.update(step.plan.aliases.get(v, v) for v in reads)
        else:
            ins = program.instructions[step]
            made.update(ins.outputs)
            read.update(ins.inputs if ins.is_gradient else ())
    return sum(program.specs[v].nbytes for v in residuals & made & read)


def _cluster_work(program: Program, step: CompiledCluster, bound: BoundCluster) -> Work:
    products = sum(isinstance(item, Product) for item in step.lowered)
    moved = sum(_bytes_of(step, item) for item in step.lowered)
    moved += sum(2 * program.specs[v].nbytes for v, *_ in bound.copied)
    return Work(len(step.lowered) - products, products, 0, 1, moved)


def _bytes_of(step: CompiledCluster, item: LoweredStep) -> int:
    """Bytes that a step reads and writes, scratch in cache and what a loop does inside left out."""
    values = item.values if isinstance(item, Lowered) else (*item.reads, *item.values)
    aliases = step.plan.aliases
    return sum(step.plan.specs[v].nbytes for v in {aliases.get(v, v) for v in values if v is not None})


def _planned_peak(executable: Executable) -> int:
    """Arenas, and the arrays that are alive while the step runs that has most of them."""
    program = executable.program
    arenas = sum(s.arena.nbytes for s in executable.bound.steps if isinstance(s, BoundCluster))
    last: dict[int, float] = {}
    steps = [_step_values(step) for step in executable.bound.steps]
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


def _step_values(step: BoundCluster | BoundOp) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The values that a step reads and makes."""
    if isinstance(step, BoundCluster):
        return step.inputs, step.outputs + tuple(v for v, *_ in step.copied)
    return step.inputs, step.outputs
