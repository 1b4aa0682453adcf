"""interpret(): the meaning of a program, op by op in NumPy; the oracle that all compiled code is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import IndexingError, layout
from jitgrad.opdef import Gather, Library, Scatter
from jitgrad.program import Instruction, Program, instruction_text


def interpret(program: Program, feeds: Sequence[Any]) -> list[Any]:
    """Values of the program's outputs for arrays of its inputs, each value dropped after its last use."""
    values: list[Any] = [None] * len(program.specs)
    for v, array in zip(program.inputs, feeds, strict=True):
        values[v] = array
    dead = last_uses(program)
    with np.errstate(all="ignore"):
        for number, ins in enumerate(program.instructions):
            try:
                result = ins.op.impl(*[values[v] for v in ins.inputs], **ins.params)
            except IndexError as error:
                if isinstance(ins.op.kind, Gather | Scatter):
                    raise position_error(program, ins) from error
                raise
            if len(ins.outputs) == 1:
                values[ins.outputs[0]] = result
            else:
                for v, array in zip(ins.outputs, result, strict=True):
                    values[v] = array
            for v in dead.get(number, ()):
                values[v] = None
    return [values[v] for v in program.outputs]


def run_error(program: Program, ins: Instruction) -> Exception:
    """The error for an instruction that found its arguments wanting while it ran."""
    match ins.op.kind:
        case Library("cholesky"):
            return np.linalg.LinAlgError("Matrix is not positive definite")
        case Library():
            return np.linalg.LinAlgError("Singular matrix")
    return position_error(program, ins)


def position_error(program: Program, ins: Instruction) -> IndexingError:
    """The error for a gather or a scatter that was given a position out of bounds."""
    return IndexingError(
        layout(
            f"op {ins.op.name!r}: a position is out of bounds",
            op=instruction_text(program, ins),
            hint="positions count from 0, or from the end when negative; clip them, or use np.where",
        )
    )


def last_uses(program: Program) -> dict[int, list[int]]:
    """Instruction number → the values that nothing reads after it."""
    found: dict[str, Any] = program._cache
    if "last_uses" not in found:
        last: dict[int, int] = {}
        for number, ins in enumerate(program.instructions):
            last.update(dict.fromkeys(ins.outputs, number))
            last.update(dict.fromkeys(ins.inputs, number))
        for v in program.outputs:
            last.pop(v, None)
        table: dict[int, list[int]] = {}
        for v, number in last.items():
            table.setdefault(number, []).append(v)
        found["last_uses"] = table
    return found["last_uses"]  # type: ignore[no-any-return]
