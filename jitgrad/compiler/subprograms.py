"""Subprograms: the programs inside control ops: which there are, and how failures in them are told of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jitgrad.opdef import Control
from jitgrad.program import Instruction, Program

LOOPS = frozenset(("scan", "while", "while_gradient"))
"""The forms of control ops whose programs run again and again."""

_PARAMS: Mapping[str, tuple[str, ...]] = {
    "scan": ("body",),
    "while": ("cond", "body"),
    "while_gradient": ("cond", "body", "back"),
    "call": ("body",),
}


def regions_of(ins: Instruction) -> tuple[Program, ...]:
    """The programs of a control op, each under its number; none for any other op."""
    kind = ins.op.kind
    if not isinstance(kind, Control):
        return ()
    if kind.form == "cond":
        return tuple(ins.params["branches"])
    return tuple(ins.params[name] for name in _PARAMS[kind.form])


def with_regions(ins: Instruction, regions: tuple[Program, ...]) -> Instruction:
    """The same control op with other programs."""
    assert isinstance(ins.op.kind, Control)
    form = ins.op.kind.form
    changed: dict[str, Any] = (
        {"branches": regions} if form == "cond" else dict(zip(_PARAMS[form], regions, strict=True))
    )
    return replace(ins, params={**ins.params, **changed})


def with_bodies(program: Program, write: Callable[[Program], Program]) -> Program:
    """A program with others inside its control ops; the same object where all are the same."""

    def within(ins: Instruction) -> Instruction:
        before = regions_of(ins)
        after = tuple(map(write, before))
        return ins if all(a is b for a, b in zip(before, after, strict=True)) else with_regions(ins, after)

    instructions = tuple(map(within, program.instructions))
    is_same = all(a is b for a, b in zip(instructions, program.instructions, strict=True))
    return program if is_same else replace(program, instructions=instructions, _cache={})


def everywhere(written_anew: Callable[[Program], Program]) -> Callable[[Program], Program]:
    """A pass over a program and the programs inside its control ops."""

    def write(program: Program) -> Program:
        return written_anew(with_bodies(program, write))

    return write


# -- statuses ----------------------------------------------------------------------------------------------------------

def status_count(program: Program) -> int:
    """How many numbers a status needs to tell all values of a program, those inside bodies too; 0 is not one."""
    found: int | None = program._cache.get("status_count")
    if found is None:
        inner = [status_count(sub) for ins in program.instructions for sub in regions_of(ins)]
        found = program._cache["status_count"] = len(program.specs) + sum(inner)
    return found


def status_offsets(program: Program) -> Mapping[int, tuple[int, ...]]:
    """Per control op, by the number of its instruction, what is added to a status that a region of it reports. Found
    once for each program, like the count.

    Value v of a program has the status v + 1; behind these come those of its bodies, in order.
    """
    found: dict[int, tuple[int, ...]] | None = program._cache.get("status_offsets")
    if found is None:
        found, offset = {}, len(program.specs)
        for number, ins in enumerate(program.instructions):
            for sub in regions_of(ins):
                found[number] = (*found.get(number, ()), offset)
                offset += status_count(sub)
        program._cache["status_offsets"] = found
    return found


def locate_status(program: Program, status: int) -> tuple[Program, Instruction]:
    """The instruction that a status tells of, with the program that it is in."""
    if status <= len(program.specs):
        return program, program.instructions[program.producers()[status - 1]]
    for number, offsets in status_offsets(program).items():
        for sub, offset in zip(regions_of(program.instructions[number]), offsets, strict=True):
            if offset < status <= offset + status_count(sub):
                return locate_status(sub, status - offset)
    raise LookupError(f"no value has the status {status}")
