"""Rules for loops that run a known, small number of times: no step, or one."""

from __future__ import annotations

import numpy as np

from jitgrad.compiler.bodies.forms import can_edit, loop_of
from jitgrad.compiler.constants import constant_value
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction, Program

Values = tuple[int, ...]


def short_scan(rw: Rewriter, ins: Instruction) -> Values | None:
    """A scan of no step is its initial state, one of one step its body"""
    length = ins.params["length"]
    if length > 1 or not can_edit(ins):
        return None
    loop = loop_of(ins)
    stacks = ins.outputs[len(loop.init) :]
    if not length:
        return (*loop.init, *[_empty(rw, ins, v) for v in stacks])
    items = [rw.emit(ins.origin, "reshape", v, shape=rw.shape(v)[1:]) for v in loop.xs]
    made = rw.inline(loop.body, (*loop.consts, *loop.init, *items))
    rest = made[len(loop.init) :]
    return (
        *made[: len(loop.init)],
        *[rw.emit(ins.origin, "reshape", v, shape=rw.shape(out)) for v, out in zip(rest, stacks, strict=True)],
    )


def _empty(rw: Rewriter, ins: Instruction, v: int) -> int:
    return rw.emit(ins.origin, "constant", value=np.zeros(rw.shape(v), rw.dtype(v)))


def while_false(rw: Rewriter, ins: Instruction) -> Values | None:
    """A while loop whose condition is false is its initial state, and its gradient the sums it is given"""
    if not can_edit(ins) or not _is_false(ins.params["cond"]):
        return None
    loop = loop_of(ins)
    return loop.sums or loop.init


def _is_false(cond: Program) -> bool:
    for ins in cond.instructions:
        if ins.outputs == cond.outputs:
            value = constant_value(ins)
            return value is not None and value.size == 1 and not value.item()
    return False
