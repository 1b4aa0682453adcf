"""Freezing what the interpreter runs: the step of one instruction, as plain tuples."""

from __future__ import annotations

from jitgrad.compiler.freezing.freeze_loops import Frozen
from jitgrad.compiler.freezing.stored import UnkeptError, encode_params, op_name
from jitgrad.compiler.freezing.stored_programs import encode_program, origins_of
from jitgrad.program import Program


def freeze_op(source: Program, program: Program, number: int) -> Frozen:
    """The step of an instruction of ``program`` that is interpreted; ``source`` is the program before the stages."""
    ins = program.instructions[number]
    for n, before in enumerate(source.instructions):
        if before.params is ins.params and before.op is ins.op:
            return "interpreted", n, None, None, ins.inputs, ins.outputs
    name = op_name(ins.op)
    try:
        params = encode_params(ins.params, None, lambda value: encode_program(value, origins_of(source)))
    except UnkeptError:
        name = None
    if name is None:
        return "interpreted", None, ins, None, ins.inputs, ins.outputs
    return "interpreted", None, name, params, ins.inputs, ins.outputs
