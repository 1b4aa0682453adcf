"""A rule for sums whose addends lie in windows of zeros: a window is summed in the loop, and placed behind it.

The gradient of p[0], p[1] and p[2], read at each step, is three numbers that grow, rather than an array of three that
is filled and added three times at each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jitgrad.compiler.bodies.forms import can_edit, loop_of
from jitgrad.compiler.bodies.programs import Values, edited
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.keys import frozen
from jitgrad.opdef import find
from jitgrad.program import Instruction, Program
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec

_ADDS = ("add", "add_n")


@dataclass(frozen=True)
class _Sum:
    """A state that is only added to: its place, the addends that stay, and those of each window."""

    place: int
    staying: tuple[int, ...]
    windows: tuple[tuple[Instruction, ...], ...]


def windows_behind(rw: Rewriter, ins: Instruction) -> Values | None:
    """What is added to windows of a state is summed by itself"""
    if not can_edit(ins):
        return None
    loop = loop_of(ins)
    program = loop.back or loop.body
    init = loop.sums if loop.back is not None else loop.init
    first = len(loop.consts) + (len(loop.rest) if loop.back is not None else 0)
    sums = [found for k in range(len(init)) if (found := _sum_at(program, first, k)) is not None]
    if not sums:
        return None
    changed, specs = _with_sums(program, first, len(init), sums, ins)
    zeros = tuple(rw.emit_splat(ins.origin, 0, spec) for spec in specs)
    if loop.back is not None:
        loop = replace(loop, back=changed, sums=(*init, *zeros))
    else:
        loop = replace(loop, body=changed, init=(*init, *zeros))
    made = rw.emit_all(ins.origin, ins.op, loop.inputs, loop.params)
    finals, windows = list(made[: len(init)]), iter(made[len(init) : len(init) + len(zeros)])
    for found in sums:
        placed = [rw.emit_op(w.origin, w.op, (next(windows),), w.params) for w, *_ in found.windows]
        finals[found.place] = rw.emit(ins.origin, "add_n", finals[found.place], *placed)
    return (*finals, *made[len(init) + len(zeros) :])


def _sum_at(program: Program, first: int, k: int) -> _Sum | None:
    """State k, if windows are added to it and nothing else is done with it."""
    before, after = program.inputs[first + k], program.outputs[k]
    reads = Counter(v for ins in program.instructions for v in ins.inputs)
    reads.update(program.outputs)
    producers, spec = program.producers(), program.specs[after]
    pending, staying, windows = [after], list[int](), dict[Any, list[Instruction]]()
    while pending:
        v = pending.pop()
        maker = program.instructions[producers[v]] if v in producers else None
        if maker is not None and reads[v] == 1 and maker.op.name in _ADDS:
            pending += maker.inputs[::-1]
        elif maker is not None and maker.op.name == "unslice" and program.specs[maker.inputs[0]].size < spec.size:
            windows.setdefault(frozen(dict(maker.params)), []).append(maker)
        else:
            staying.append(v)
    if not windows or staying.count(before) != 1 or reads[before] != 1 or spec.dtype.kind != "f":
        return None
    staying.remove(before)
    return _Sum(k, tuple(staying), tuple(map(tuple, windows.values())))


def _with_sums(
    program: Program, first: int, count: int, sums: Sequence[_Sum], ins: Instruction
) -> tuple[Program, list[TensorSpec]]:
    """The program with a state per window behind the others, and the specs of these."""
    specs, added, instructions = list(program.specs), list[TensorSpec](), list(program.instructions)
    before, after, outputs = list[int](), list[int](), list(program.outputs)

    def add(values: Sequence[int], spec: TensorSpec) -> int:
        if len(values) == 1:
            return values[0]
        specs.append(spec)
        instructions.append(Instruction(find("add_n"), tuple(values), (len(specs) - 1,), {}, ins.origin))
        return len(specs) - 1

    for found in sums:
        state = program.inputs[first + found.place]
        outputs[found.place] = add((state, *found.staying), program.specs[state])
        for window in found.windows:
            added.append(program.specs[window[0].inputs[0]])
            specs.append(added[-1])
            before.append(len(specs) - 1)
            after.append(add((before[-1], *(one.inputs[0] for one in window)), added[-1]))
    ends = first + count
    whole = replace(program, instructions=tuple(instructions), specs=tuple(specs), _cache={})
    inputs = (*program.inputs[:ends], *before, *program.inputs[ends:])
    return edited(whole, inputs, (*outputs[:count], *after, *outputs[count:])), added
