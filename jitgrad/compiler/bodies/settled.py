"""Rules for what a loop is given: numbers, what is given twice, state that stays or repeats, results known without it.

Each gives the values that stand for the outputs of the instruction. Tokens of inputs are pairs: ("const", value) and
("item", value) for what is given, ("state", k) for state k and all that equal it, ("saved", number) for what a while
gradient keeps of a step; what is a number is one by its `number_key`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.compiler.bodies.forms import Loop, can_edit, loop_of
from jitgrad.compiler.bodies.numbering import compare_states, number_key
from jitgrad.compiler.bodies.programs import Number, Token, Values, edited, rebound
from jitgrad.compiler.constants import constant_value, splat
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec


def simplified_bodies(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """The programs that an instruction runs, simplified"""
    changed: dict[str, Any] = {}
    for name, value in ins.params.items():
        if isinstance(value, Program):
            changed[name] = rw.simplified(value)
        elif name == "branches":
            branches = tuple(map(rw.simplified, value))
            changed[name] = branches if any(a is not b for a, b in zip(branches, value, strict=True)) else value
    if all(value is ins.params[name] for name, value in changed.items()):
        return None
    return replace(ins, params={**ins.params, **changed})


def settled_loop(rw: Rewriter, ins: Instruction) -> Values | None:
    """Numbers are part of bodies; what is given twice is given once; state that stays is a constant; known results"""
    if not can_edit(ins):
        return None
    settling = _Settling(rw, ins, loop_of(ins))
    return settling.gradient_values() if settling.loop.back is not None else settling.values()


def input_key(rw: Rewriter, v: int) -> Any:
    """What a body is given, by what it is outside: a number, or a value."""
    return number_key(rw.constants[v]) if v in rw.numbers else ("const", v)


def _item_key(rw: Rewriter, v: int) -> Any:
    item = splat(rw.numbers[v], rw.shape(v)[1:], rw.dtype(v)) if v in rw.numbers else None
    return ("item", v) if item is None else number_key(item) or ("item", v)


def number_of(key: Any) -> Any:
    """The number of a `number_key`."""
    _, dtype, _, data = key
    return np.frombuffer(data, dtype)[0]


def as_tokens(keys: Sequence[Any]) -> list[Token | Number]:
    """Keys as tokens of inputs."""
    return [Number(number_of(key)) if key[0] == "number" else key for key in keys]


class _Settling:
    """One loop, with the keys of what its body reads over all steps.

    ``meaning``: what a number of the body's values is known to be, a key; ``order``: what the body is given in the end.
    """

    def __init__(self, rw: Rewriter, ins: Instruction, loop: Loop) -> None:
        self.rw, self.ins, self.loop = rw, ins, loop
        n, m = len(loop.consts), len(loop.init)
        given = [input_key(rw, v) for v in (*loop.consts, *loop.init)]
        self.keys, self.found = compare_states(loop.body, [*given, *[_item_key(rw, v) for v in loop.xs]], n, m)
        self.consts, self.states = self.keys[:n], self.keys[n : n + m]
        self.meaning = {self.found[v]: key for key, v in zip(self.keys, loop.body.inputs, strict=True)}
        for made in loop.body.instructions:
            value = constant_value(made)
            if value is not None and value.dtype.kind in "biuf" and number_key(value) is not None:
                self.meaning[self.found[made.outputs[0]]] = number_key(value)
        kinds = dict.fromkeys(key for key in self.keys if key[0] != "number")
        self.order = [key for kind in ("const", "state", "item") for key in kinds if key[0] == kind]
        self.is_settled = self.order == self.keys

    # -- scans and while loops -----------------------------------------------------------------------------------------

    def values(self) -> Values | None:
        """What stands for the outputs; None where there is nothing to do."""
        loop = self.loop
        if loop.form == "while" and not any(key[0] == "state" for key in self.order):
            return loop.init if loop.others["maximum_iterations"] is None else None
        stacks = [self.found[v] for v in loop.rest]
        known = {number: self._known(number, k) for k, number in enumerate(stacks)}
        kept = [k for k, number in enumerate(stacks) if known[number] is None and stacks.index(number) == k]
        if self.is_settled and len(kept) == len(stacks):
            return None
        made = iter(self._emitted(self._with_inputs(self.order, kept)))
        finals = {key: next(made) for key in self.order if key[0] == "state"}
        for k in kept:
            known[stacks[k]] = next(made)
        rest = [known[number] for number in stacks]
        return (*self._in_place(self.states, loop.init, finals), *[v for v in rest if v is not None])

    def _known(self, number: int, k: int) -> int | None:
        """Stack k, where it is known without the loop."""
        key = self.meaning.get(number, ("unknown",))
        spec = self.rw.specs[self.ins.outputs[len(self.loop.init) + k]]
        match key[0]:
            case "number":
                return self.rw.emit_splat(self.ins.origin, number_of(key), spec)
            case "const":
                return self.rw.emit(self.ins.origin, "broadcast_to", key[1], shape=spec.known_shape)
            case "item":
                return int(key[1])
        return None

    @staticmethod
    def _in_place(keys: Sequence[Any], init: Values, finals: dict[Any, int]) -> list[int]:
        """The last states: what has stayed is what it was."""
        return [finals.get(key, v) for key, v in zip(keys, init, strict=True)]

    def _emitted(self, loop: Loop) -> Values:
        if not (loop.sums if loop.back is not None else loop.body.outputs):
            return ()
        return self.rw.emit_all(self.ins.origin, self.ins.op, loop.inputs, loop.params)

    def _rebound(self, program: Program, keys: Sequence[Any], order: Sequence[Any]) -> Program:
        return rebound(program, as_tokens(keys), order, self._spec, self.ins.origin)

    def _spec(self, token: Token) -> TensorSpec:
        """What a program is given that it does not read yet: a constant, or a state."""
        assert isinstance(token, tuple)
        kind, v = token
        return self.rw.specs[self.loop.init[v] if kind == "state" else v]

    def _with_inputs(self, order: Sequence[Any], rest: Sequence[int]) -> Loop:
        """The loop with these inputs, making only the chosen ones of the rest."""
        loop, m = self.loop, len(self.loop.init)
        named = {kind: [t[1] for t in order if t[0] == kind] for kind in ("const", "state", "item")}
        body = self._rebound(loop.body, self.keys, order)
        body = edited(body, body.inputs, [body.outputs[k] for k in (*named["state"], *(m + k for k in rest))])
        cond = loop.cond and self._rebound(loop.cond, [*self.consts, *self.states], order)
        return replace(
            loop, consts=tuple(named["const"]), init=tuple(loop.init[k] for k in named["state"]),
            xs=tuple(named["item"]), body=body, cond=cond,
        )  # fmt: skip

    # -- the gradient of a while loop ----------------------------------------------------------------------------------

    def gradient_values(self) -> Values | None:
        """As for other loops; what is saved at each step goes to the steps back, whose state are the sums."""
        loop, back = self.loop, self.loop.back
        assert back is not None
        saved = [self._saved_key(v) for v in loop.rest]
        first = len(loop.consts) + len(saved)
        keys, _ = compare_states(
            back, [*self.consts, *saved, *[input_key(self.rw, v) for v in loop.sums]], first, len(loop.sums)
        )
        kinds = dict.fromkeys(key for key in (*self.order, *keys[:first], *keys[first:]) if key[0] != "number")
        consts = [key for key in kinds if key[0] == "const"]
        kept = [key for key in dict.fromkeys(saved) if key[0] == "saved"]
        sums = [key for key in dict.fromkeys(keys[first:]) if key[0] == "state"]
        if self.is_settled and kept == saved and [*self.consts, *kept, *sums] == keys:
            return None
        order = [*consts, *(key for key in self.order if key[0] == "state")]
        changed = self._with_inputs(order, [saved.index(key) for key in kept])
        behind = self._rebound(back, keys, [*consts, *kept, *sums])
        behind = edited(behind, behind.inputs, [back.outputs[k] for _, k in sums])
        changed = replace(changed, sums=tuple(loop.sums[k] for _, k in sums), back=behind)
        made = dict(zip(sums, self._emitted(changed), strict=True))
        return tuple(self._in_place(keys[first:], loop.sums, made))

    def _saved_key(self, v: int) -> Any:
        """What is saved: a number, a constant, or a value of the body by its number."""
        key = self.meaning.get(self.found[v], ("unknown",))
        return key if key[0] in ("number", "const") else ("saved", self.found[v])
