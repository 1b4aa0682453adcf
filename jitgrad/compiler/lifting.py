"""Lifting: arrays of constants inside bodies become constants of the program around, which the loop is given.

A constant that is one number everywhere stays: each kernel can have its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jitgrad.compiler.constants import constant_value, is_splat
from jitgrad.compiler.subprograms import regions_of, with_regions
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple
from jitgrad.spec import TensorSpec


def lift_constants(program: Program) -> Program:
    """The program with no arrays of constants inside bodies; the same object when there are none."""
    lifted: list[Instruction] = []
    specs = list(program.specs)
    instructions = [_without_arrays(ins, lifted, specs) for ins in program.instructions]
    if all(a is b for a, b in zip(instructions, program.instructions, strict=True)):
        return program
    count = len(lifted)
    moved = [replace(ins, after=tuple(n + count for n in ins.after)) if ins.after else ins for ins in instructions]
    return replace(program, instructions=(*lifted, *moved), specs=tuple(specs), _cache={})


class _Found(NamedTuple):
    """An array of constants in a region."""

    region: int
    maker: Instruction
    spec: TensorSpec


def _without_arrays(ins: Instruction, lifted: list[Instruction], specs: list[TensorSpec]) -> Instruction:
    """A control op that is given the arrays of its bodies; the instructions that make them are put in ``lifted``."""
    regions = regions_of(ins)
    subs = tuple(map(lift_constants, regions))
    found = [_Found(k, c, sub.specs[c.outputs[0]]) for k, sub in enumerate(subs) for c in _arrays(sub)]
    if not found:
        return ins if all(a is b for a, b in zip(subs, regions, strict=True)) else with_regions(ins, subs)
    made = range(len(specs), len(specs) + len(found))
    specs += [item.spec for item in found]
    lifted += [replace(item.maker, outputs=(v,)) for v, item in zip(made, found, strict=True)]
    # Behind the constants of a loop, or behind the operands of a branch, whose number comes before them.
    first = ins.params.get("n_consts", len(ins.inputs))
    behind = first - (len(ins.inputs) - len(subs[0].inputs) if "n_consts" not in ins.params else 0)
    subs = tuple(_given(sub, k, behind, found) for k, sub in enumerate(subs))
    changed = with_regions(ins, subs)
    params: dict[str, Any] = dict(changed.params)
    if "n_consts" in params:
        params["n_consts"] += len(made)
    return replace(changed, inputs=(*ins.inputs[:first], *made, *ins.inputs[first:]), params=params)


def _arrays(sub: Program) -> list[Instruction]:
    if any(ins.after for ins in sub.instructions):
        return []
    return [ins for ins in sub.instructions if (value := constant_value(ins)) is not None and not is_splat(value)]


def _given(sub: Program, number: int, first: int, found: list[_Found]) -> Program:
    """A region that takes the arrays as inputs, its own under the values that they have in it."""
    specs = list(sub.specs)
    inputs: list[int] = []
    for item in found:
        if item.region == number:
            inputs.append(item.maker.outputs[0])
        else:
            inputs.append(len(specs))
            specs.append(item.spec)
    own = {item.maker.outputs[0] for item in found if item.region == number}
    kept = tuple(ins for ins in sub.instructions if not own.intersection(ins.outputs))
    taken = (*sub.inputs[:first], *inputs, *sub.inputs[first:])
    return replace(sub, inputs=taken, instructions=kept, specs=tuple(specs), _cache={})
