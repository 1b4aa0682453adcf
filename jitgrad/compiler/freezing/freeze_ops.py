"""Freezing what the interpreter runs: the step of one instruction, as plain tuples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitgrad.compiler.freezing.freeze_loops import Frozen
from jitgrad.compiler.freezing.stored import UnkeptError, encode_params, op_name, runs_of
from jitgrad.compiler.freezing.stored_programs import encode_program, origins_of
from jitgrad.program import Instruction, Program


def freeze_op(source: Program, program: Program, number: int) -> Frozen:
    """The step of an instruction of ``program`` that is interpreted; ``source`` is the program before the stages."""
    ins = program.instructions[number]
    first = _first_with(source).get((id(ins.params), id(ins.op)))
    if first is not None:
        return "interpreted", first, None, None, ins.inputs, ins.outputs
    written = _written(ins, source)
    if written is None:
        return "interpreted", None, ins, None, ins.inputs, ins.outputs
    return "interpreted", None, *written, ins.inputs, ins.outputs


def _first_with(program: Program) -> Mapping[tuple[int, int], int]:
    """The first instruction of a program with the same params and op, by their identities; found once."""
    found: dict[tuple[int, int], int] | None = program._cache.get("first_with")
    if found is None:
        found = program._cache["first_with"] = {}
        for number, ins in enumerate(program.instructions):
            found.setdefault((id(ins.params), id(ins.op)), number)
    return found


def without_source(frozen: Frozen, source: Program) -> Frozen:
    """A frozen program whose interpreted steps say all themselves, where they can: binding it needs no program."""
    return *frozen[:2], *[_step_without_source(step, source) for step in frozen[2:]]


def _step_without_source(step: Sequence[Any], source: Program) -> Any:
    if step[0] != "interpreted" or step[1] is None:
        return step
    written = _written(source.instructions[step[1]], source)
    return step if written is None else (step[0], None, *written, *step[4:])


def _written(ins: Instruction, source: Program) -> tuple[str, Any] | None:
    """The name of an instruction's op, and its params as plain tuples; None where they cannot be written."""
    name = op_name(ins.op)
    try:
        params = encode_params(ins.params, runs_of, lambda value: encode_program(value, origins_of(source)))
    except UnkeptError:
        return None
    return None if name is None else (name, params)
