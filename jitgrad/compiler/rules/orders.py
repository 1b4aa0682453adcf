"""Rules for sorts: what is sorted and has its order made as well is sorted once."""

from __future__ import annotations

from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction


def sorted_by_order(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """sort(x) = take_along_axis(x, argsort(x)) where the program has that argsort, as with the gradient of sort."""
    (x,), axis = ins.inputs, ins.params["axis"]
    orders = rw.instructions_of("argsort")
    if not any(rw.new_inputs(other) == (x,) and other.params["axis"] == axis for other in orders):
        return None
    order = rw.emit(ins.origin, "argsort", x, axis=axis)
    return rw.replace(ins, "take_along_axis", x, order, axis=axis)
