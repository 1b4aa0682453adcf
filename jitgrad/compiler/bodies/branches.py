"""Rules for branches and calls: what they are given, results that are known, and branches that are chosen or equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.compiler.bodies.forms import can_edit
from jitgrad.compiler.bodies.numbering import Numbering, number_key
from jitgrad.compiler.bodies.programs import edited, rebound
from jitgrad.compiler.bodies.settled import as_tokens, input_key
from jitgrad.compiler.constants import constant_value
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction, Program

Values = tuple[int, ...]


def chosen_branch(rw: Rewriter, ins: Instruction) -> Values | None:
    """cond(c, ...) = branch c"""
    index, *operands = ins.inputs
    branches = ins.params["branches"]
    if not can_edit(ins) or (index not in rw.numbers and len(branches) > 1):
        return None
    number = min(max(int(rw.numbers.get(index, 0)), 0), len(branches) - 1)
    return rw.inline(branches[number], operands)


def settled_cond(rw: Rewriter, ins: Instruction) -> Values | None:
    """Numbers are part of branches; what is given twice is given once; what all branches give alike is known"""
    if not can_edit(ins):
        return None
    index, *operands = ins.inputs
    return _settled(rw, ins, (index,), operands, ins.params["branches"])


def settled_call(rw: Rewriter, ins: Instruction) -> Values | None:
    """Numbers are part of the body; what is given twice is given once; results that are what is given are known"""
    return _settled(rw, ins, (), ins.inputs, (ins.params["body"],)) if can_edit(ins) else None


def _settled(
    rw: Rewriter, ins: Instruction, index: Values, operands: Sequence[int], programs: Sequence[Program]
) -> Values | None:
    keys = [input_key(rw, v) for v in operands]
    numbering = Numbering()
    numbers = [numbering.values(program, keys) for program in programs]
    columns = [tuple(found[program.outputs[k]] for found, program in zip(numbers, programs, strict=True))
               for k in range(len(ins.outputs))]  # fmt: skip
    if index and all(len(set(column)) == 1 for column in columns):
        return rw.inline(programs[0], operands)
    given = {numbering.of(key): key for key in keys}
    known = {column: given[column[0]] for column in columns if len(set(column)) == 1 and column[0] in given}
    literals = _literals(programs, columns)
    kept = [k for k, column in enumerate(columns) if column not in known and column not in literals
            and columns.index(column) == k]  # fmt: skip
    order = list(dict.fromkeys(key for key in keys if key[0] == "const"))
    if len(kept) == len(columns) and len(order) == len(keys):
        return None
    values: dict[Any, int] = {}
    if kept:
        tokens = as_tokens(keys)
        changed = []
        for program in programs:
            bound = rebound(program, tokens, order, lambda token: rw.specs[token[1]], ins.origin)  # type: ignore[index]
            changed.append(edited(bound, bound.inputs, [program.outputs[k] for k in kept]))
        params = {"branches": tuple(changed)} if index else {"body": changed[0]}
        made = rw.emit_all(ins.origin, ins.op, (*index, *(v for _, v in order)), params)
        values = {columns[k]: v for k, v in zip(kept, made, strict=True)}
    results = []
    for column, v in zip(columns, ins.outputs, strict=True):
        if column in literals:
            values[column] = rw.emit_splat(ins.origin, literals[column], rw.specs[v])
        elif column in known:
            values[column] = operands[keys.index(known[column])]
        results.append(values[column])
    return tuple(results)


def _literals(programs: Sequence[Program], columns: Sequence[Values]) -> dict[Values, Any]:
    """The outputs that are one number in each program."""
    arrays = {ins.outputs[0]: constant_value(ins) for ins in programs[0].instructions if not ins.inputs}
    found = {}
    for v, column in zip(programs[0].outputs, columns, strict=True):
        array = arrays.get(v)
        if len(set(column)) == 1 and array is not None and number_key(array) is not None and array.dtype.kind in "biuf":
            found[column] = array[(0,) * array.ndim]
    return found
