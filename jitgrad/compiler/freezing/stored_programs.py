"""Programs of bodies as plain tuples, for control ops that the interpreter runs; params and bytes are in stored.py.

    program     ::= ("program", inputs, outputs, specs, name, instruction*)
    instruction ::= (op, inputs, outputs, params, number of its origin, after)

Names and source lines are not written: an origin is told by where it is in the program whose plan it is, which has the
same instructions in each process, made in other lines of code perhaps. One that a stage has made is -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.freezing.stored import UnkeptError, decode, encode_params, op_name
from jitgrad.opdef import find
from jitgrad.program import Instruction, Origin, Program, sub_programs
from jitgrad.spec import TensorSpec

_NOWHERE = Origin("", None, None)


def origins_of(program: Program) -> list[Origin]:
    """The origins of a program's instructions and, behind each, of those in its bodies."""
    return list(_origins(program))


def _origins(program: Program) -> Iterator[Origin]:
    for ins in program.instructions:
        yield ins.origin
        for body in sub_programs(ins):
            yield from _origins(body)


def encode_program(program: Any, origins: Sequence[Origin]) -> Any:
    """A program as plain tuples. UnkeptError for anything else, and where a part of it cannot be written."""
    if not isinstance(program, Program):
        raise UnkeptError(f"a {type(program).__name__}")
    specs = tuple([(spec.known_shape, spec.dtype.str) for spec in program.specs])
    numbers = {id(origin): number for number, origin in reversed(list(enumerate(origins)))}
    instructions = tuple([_instruction(ins, origins, numbers) for ins in program.instructions])
    return "program", program.inputs, program.outputs, specs, program.name, *instructions


def _instruction(ins: Instruction, origins: Sequence[Origin], numbers: dict[int, int]) -> Any:
    name = op_name(ins.op)
    if name is None:
        raise UnkeptError(f"op {ins.op.name}")
    params = encode_params(ins.params, None, lambda value: encode_program(value, origins))
    return name, ins.inputs, ins.outputs, params, numbers.get(id(ins.origin), -1), ins.after


def decode_params(code: Any, origins: Sequence[Origin]) -> dict[str, Any]:
    """The params of a control op that were written, its bodies among them."""
    return {name: _param(value, origins) for name, value in code}


def _param(code: Any, origins: Sequence[Origin]) -> Any:
    if type(code) is not tuple:
        return code
    if code[0] == "tuple":
        return tuple([_param(item, origins) for item in code[1:]])
    return _program(code, origins) if code[0] == "program" else decode(code)


def _program(code: Any, origins: Sequence[Origin]) -> Program:
    _, inputs, outputs, specs, name, *instructions = code
    made = tuple([TensorSpec(shape, np.dtype(dtype)) for shape, dtype in specs])
    return Program(inputs, outputs, tuple([_read(ins, origins) for ins in instructions]), made, name)


def _read(code: Any, origins: Sequence[Origin]) -> Instruction:
    name, inputs, outputs, params, origin, after = code
    where = origins[origin] if origin >= 0 else _NOWHERE
    return Instruction(find(name), inputs, outputs, decode_params(params, origins), where, after)
