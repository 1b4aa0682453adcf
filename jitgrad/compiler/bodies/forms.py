"""Loops with their inputs in groups, as passes see them: scans, while loops and the gradients of while loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitgrad.compiler.bodies.programs import Values, is_free
from jitgrad.compiler.subprograms import LOOPS
from jitgrad.opdef import Control
from jitgrad.program import Instruction, Program, sub_programs
from jitgrad.records import dataclass


def form_of(ins: Instruction) -> str | None:
    """The form of a control op; None for any other."""
    return ins.op.kind.form if isinstance(ins.op.kind, Control) else None


def can_edit(ins: Instruction) -> bool:
    """Whether an instruction runs programs, none of which keeps state or an order."""
    bodies = sub_programs(ins)
    return bool(bodies) and all(map(is_free, bodies))


@dataclass(frozen=True)
class Loop:
    """A loop: ``xs`` are taken apart by a scan, ``sums`` go back through a while gradient with ``back``.

    The body gives the next state and then the rest: what a scan stacks, or what a while gradient saves.
    """

    form: str
    consts: Values
    init: Values
    xs: Values
    sums: Values
    body: Program
    cond: Program | None
    back: Program | None
    others: Mapping[str, Any]

    @property
    def inputs(self) -> Values:
        """The inputs of its instruction."""
        return (*self.consts, *self.init, *self.xs, *self.sums)

    @property
    def params(self) -> dict[str, Any]:
        """The params of its instruction."""
        params = {**self.others, "body": self.body, "n_consts": len(self.consts)}
        if self.form != "while":
            params["n_carry"] = len(self.init)
        if self.cond is not None:
            params |= {"cond": self.cond, "shapes": None}
        if self.back is not None:
            params |= {"back": self.back, "totals": ()}
        return params

    @property
    def state(self) -> Values:
        """What the body reads of the state."""
        return self.body.inputs[len(self.consts) : len(self.consts) + len(self.init)]

    @property
    def items(self) -> Values:
        """What the body of a scan reads of an item."""
        return self.body.inputs[len(self.consts) + len(self.init) :]

    @property
    def next_state(self) -> Values:
        """What the body makes of the state."""
        return self.body.outputs[: len(self.init)]

    @property
    def rest(self) -> Values:
        """What else the body makes."""
        return self.body.outputs[len(self.init) :]


def loop_of(ins: Instruction) -> Loop:
    """The loop that an instruction is."""
    form, params = form_of(ins), ins.params
    assert form in LOOPS
    n = params["n_consts"]
    m = n + params.get("n_carry", len(ins.inputs) - n)
    rest = ins.inputs[m:]
    xs, sums = ((), rest) if form == "while_gradient" else (rest, ())
    return Loop(
        form, ins.inputs[:n], ins.inputs[n:m], xs, sums, params["body"], params.get("cond"), params.get("back"), params
    )
