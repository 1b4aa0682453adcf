"""Rules for reading at positions: what is computed element by element is computed for the elements that are read."""

from __future__ import annotations

from jitgrad.compiler.rewriter import Rewriter
from jitgrad.opdef import Elementwise, Reindex
from jitgrad.program import Instruction
from jitgrad.spec import TensorSpec, normalize_axis

_MOST_OPS = 12  # computed anew at each position; a rule calls itself once per op
_MOST_TABLES = 2


def gather_before_computing(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """take_along_axis(f(x, y), index) = f(take_along_axis(x, index), take_along_axis(y, index)), one index per row.

    A table must be in memory: log_softmax(z)[label] would store a whole array to read one element of each row. Only
    where what is read instead is in memory anyway, and where some of it is, since reading checks the positions.
    """
    table, index = ins.inputs
    axis = normalize_axis(ins.params["axis"], len(rw.shape(table)))
    made = rw.maker(table)
    if rw.shape(index)[axis] != 1 or made is None or not _is_computed(made):
        return None
    tables = _tables(rw, table, axis)
    if tables is None or not 1 <= len(tables) <= _MOST_TABLES:
        return None
    inputs = tuple(_taken(rw, ins, v, axis) for v in made.inputs)
    return Instruction(made.op, inputs, ins.outputs, made.params, ins.origin)


def _is_computed(ins: Instruction) -> bool:
    return isinstance(ins.op.kind, Elementwise) and len(ins.outputs) == 1 and not ins.after


def _tables(rw: Rewriter, table: int, axis: int) -> set[int] | None:
    """What is read at the positions once nothing in between is computed; None when that is no good."""
    found: set[int] = set()
    seen: set[int] = set()
    pending, ops = [table], 0
    while pending:
        v = pending.pop()
        made = rw.maker(v)
        if v in seen or v in rw.numbers or _of_row(rw, v, axis) is not None:
            continue
        seen.add(v)
        if made is not None and _is_computed(made):
            ops += 1
            pending += made.inputs
        elif made is not None and isinstance(made.op.kind, Reindex):
            return None
        else:
            found.add(v)
        if ops > _MOST_OPS:
            return None
    return found


def _of_row(rw: Rewriter, v: int, axis: int) -> int | None:
    """What ``v`` repeats along the axis, with an extent of 1 there; None when it is not such a broadcast."""
    made = rw.producer(v, "broadcast_to")
    if made is None:
        return None
    x = made.inputs[0]
    d = axis - (len(rw.shape(v)) - len(rw.shape(x)))
    return x if d < 0 or rw.shape(x)[d] == 1 else None


def _taken(rw: Rewriter, ins: Instruction, v: int, axis: int) -> int:
    """The elements of ``v`` at the positions."""
    shape = rw.shape(ins.outputs[0])
    if v in rw.numbers:
        return rw.emit_splat(ins.origin, rw.numbers[v], TensorSpec(shape, rw.dtype(v)))
    of_row = _of_row(rw, v, axis)
    if of_row is not None:
        return rw.emit(ins.origin, "broadcast_to", of_row, shape=shape)
    return rw.emit(ins.origin, ins.op.name, v, ins.inputs[1], **ins.params)
