"""save_less(): a step back computes cheap values again rather than read what the forward scan has saved of them.

A scan that runs the other way knows, beside what both are given, what is saved still, and the state after each step: it
is the state before the step that it did just before, if that is saved, and the last state at first. So of
c = tanh(c * a + x) one array is saved, where the rules ask for c and 1 - tanh².
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from jitgrad.compiler.bodies.forms import Loop, can_edit, form_of, loop_of
from jitgrad.compiler.bodies.programs import Values, edited, joined, rebound
from jitgrad.compiler.fusing.drafts import CHEAP
from jitgrad.opdef import Elementwise, Fill, View
from jitgrad.program import Instruction, Program
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec

_MOST_WEIGHT = 6  # of what is computed again for one value, as in CHEAP: to store and to load one weighs 4
_MOVES = frozenset(("broadcast_to", "transpose"))


def save_less(program: Program, fired: Counter[str]) -> Program:
    """The program whose loops save no more than steps back cannot make again; itself when none does."""
    for number, ins in enumerate(program.instructions):
        if not can_edit(ins):
            continue
        if form_of(ins) == "scan":
            changed = _Saved(program, number).changed()
        elif form_of(ins) == "while_gradient":
            changed = _without_cheap_values(program, number)
        else:
            continue
        if changed is not None:
            fired["save_less"] += 1
            program = changed
    return program


# -- what can be made again --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Recipe:
    """The instructions that make some values of a body again, in order, and the values that these start from."""

    steps: tuple[Instruction, ...]
    leaves: tuple[int, ...]


def _recipe(body: Program, wanted: Iterable[int], known: Set[int], most: int | None = None) -> _Recipe | None:
    """How to make values of a body from known ones; None if that cannot be, or weighs more than ``most``."""
    producers = body.producers()
    pending, numbers, leaves, weight = list(wanted), set[int](), set[int](), 0
    while pending:
        v = pending.pop()
        if v in known:
            leaves.add(v)
        elif v not in producers:
            return None
        elif producers[v] not in numbers:
            numbers.add(producers[v])
            weight += _weight(body.instructions[producers[v]])
            pending += body.instructions[producers[v]].inputs
        if most is not None and weight > most:
            return None
    return _Recipe(tuple(body.instructions[n] for n in sorted(numbers)), tuple(sorted(leaves)))


def _weight(ins: Instruction) -> int:
    kind = ins.op.kind
    if isinstance(kind, Elementwise):
        return len(ins.inputs) if kind.scalar == "add_n" else CHEAP.get(kind.scalar, _MOST_WEIGHT + 1)
    return 0 if isinstance(kind, Fill | View) or ins.op.name in _MOVES else _MOST_WEIGHT + 1


def _dropped(body: Program, saved: Sequence[int], known: Set[int]) -> set[int]:
    """Which of the saved values follow from the others and known ones, the last that is made first."""
    producers = body.producers()
    kept = set(saved)
    for v in sorted(set(saved) & producers.keys(), key=lambda v: producers[v], reverse=True):
        if v in known or _recipe(body, [v], known | (kept - {v}), _MOST_WEIGHT) is not None:
            kept.remove(v)
    return set(saved) - kept


# -- scans -------------------------------------------------------------------------------------------------------------


class _Saved:
    """What a scan stacks for other scans to take apart."""

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.ins = program.instructions[number]
        self.loop = loop_of(self.ins)
        self.stacks = dict(zip(self.ins.outputs[len(self.loop.init) :], self.loop.rest, strict=True))
        self.readers = sorted({n for v in self.stacks for n in program.uses().get(v, ())})

    def changed(self) -> Program | None:
        """The program that saves less; None if there is nothing to spare."""
        pinned = self._pinned()
        saved = {body: stack for stack, body in self.stacks.items() if stack not in pinned}
        if not saved:
            return None
        free = set(self.loop.body.inputs) - set(self.loop.state)
        stacked = set(self.stacks.values())
        # Those who go back know a state after the step if they are given that before it; not if it is stacked anyway.
        after = {
            v: k for k, v in enumerate(self.loop.next_state)
            if self.loop.state[k] in stacked and v not in stacked - set(saved)
        }  # fmt: skip
        if not all(self._goes_back(n) for n in self.readers if self._takes_apart(n, saved.values())):
            after = {}
        known = free | set(after) | (stacked - set(saved))
        gone = _dropped(self.loop.body, list(saved), known)
        if not gone:
            return None
        left = (known | stacked) - gone | set(after)
        changes: dict[int, Instruction] = {}
        specs = list(self.program.specs)
        for n in self.readers:
            taken = [v for v in gone if self._takes_apart(n, [saved[v]])]
            if not taken:
                continue
            recipe = _recipe(self.loop.body, taken, left)
            assert recipe is not None
            changes[n] = self._made_again(self.program.instructions[n], taken, recipe, after, specs)
        instructions = [changes.get(n, ins) for n, ins in enumerate(self.program.instructions)]
        return replace(self.program, instructions=tuple(instructions), specs=tuple(specs), _cache={})

    def _pinned(self) -> set[int]:
        """Stacks that are read by others than scans that take them apart."""
        pinned = set(self.program.outputs)
        for n in self.readers:
            ins = self.program.instructions[n]
            if not self._is_reader(ins):
                pinned.update(ins.inputs)
            else:
                other = loop_of(ins)
                pinned.update((*other.consts, *other.init))
        return pinned

    def _is_reader(self, ins: Instruction) -> bool:
        return (
            form_of(ins) == "scan" and can_edit(ins) and not ins.after and ins.params["length"] == self._param("length")
        )

    def _param(self, name: str) -> Any:
        return self.ins.params[name]

    def _goes_back(self, n: int) -> bool:
        return bool(self.program.instructions[n].params["reverse"] != self._param("reverse"))

    def _takes_apart(self, n: int, stacks: Iterable[int]) -> bool:
        ins = self.program.instructions[n]
        return self._is_reader(ins) and not set(loop_of(ins).xs).isdisjoint(stacks)

    def _token(self, v: int, after: Mapping[int, int]) -> Any:
        """What a value of the body is to a reader."""
        loop, n = self.loop, len(self.loop.consts)
        if v in loop.body.inputs[:n]:
            return "const", loop.consts[loop.body.inputs.index(v)]
        if v in loop.items:
            return "item", loop.xs[loop.items.index(v)]
        stack = next((stack for stack, body in self.stacks.items() if body == v), None)
        if stack is not None and v not in after:
            return "item", stack
        return "after", after[v]

    def _made_again(
        self, ins: Instruction, taken: Sequence[int], recipe: _Recipe, after: Mapping[int, int], specs: list[TensorSpec]
    ) -> Instruction:
        """A reader that makes these values of the body itself."""
        reader = loop_of(ins)
        leaves = {v: self._token(v, after) for v in recipe.leaves}
        carried = sorted({k for kind, k in leaves.values() if kind == "after"})
        before = [self.loop.state[k] for k in carried]
        for v in before:  # the state before a step is what the next step back carries
            leaves[v] = self._token(v, {})
        inside = Program(tuple(leaves), (*taken, *before), recipe.steps, self.loop.body.specs, reader.body.name)
        items = dict(zip(reader.xs, reader.items, strict=True))
        stack_of = {body: stack for stack, body in self.stacks.items()}
        both = joined(inside, reader.body, {items[stack_of[v]]: v for v in taken})
        own = [("state", k) for k in range(len(reader.init))]
        kept = [v for v in reader.xs if v not in {stack_of[t] for t in taken}]
        tokens = [
            *leaves.values(), *(("const", v) for v in reader.consts), *own, *(("item", v) for v in kept)
        ]  # fmt: skip
        groups = {kind: [t for t in dict.fromkeys(tokens) if t[0] == kind] for kind in ("const", "after", "item")}
        order = [*groups["const"], *own, *(("after", k) for k in carried), *groups["item"]]
        body = rebound(both, tokens, order, lambda token: specs[0], ins.origin)
        made, m = body.outputs, len(inside.outputs)
        nexts = [*made[m : m + len(own)], *made[len(taken) : m]]
        body = edited(body, body.inputs, [*nexts, *made[m + len(own) :]])
        new = range(len(specs), len(specs) + len(carried))
        specs += [self.program.specs[self.ins.outputs[k]] for k in carried]
        changed = replace(
            reader, body=body, consts=tuple(v for _, v in groups["const"]),
            init=(*reader.init, *(self.ins.outputs[k] for k in carried)), xs=tuple(v for _, v in groups["item"]),
        )  # fmt: skip
        outputs = (*ins.outputs[: len(own)], *new, *ins.outputs[len(own) :])
        return replace(ins, inputs=changed.inputs, outputs=outputs, params=changed.params)


# -- gradients of while loops ------------------------------------------------------------------------------------------


def _without_cheap_values(program: Program, number: int) -> Program | None:
    """What the steps back make again is not saved."""
    ins = program.instructions[number]
    loop: Loop = loop_of(ins)
    assert loop.back is not None
    n, saved = len(loop.consts), loop.rest
    consts = loop.body.inputs[:n]
    gone = _dropped(loop.body, saved, set(consts))
    if not gone:
        return None
    kept = [k for k, v in enumerate(saved) if v not in gone]
    recipe = _recipe(loop.body, sorted(gone), set(consts) | {saved[k] for k in kept})
    assert recipe is not None
    inside = Program(recipe.leaves, tuple(sorted(gone)), recipe.steps, loop.body.specs, loop.back.name)
    slots: Values = loop.back.inputs[n : n + len(saved)]
    both = joined(inside, loop.back, {slot: v for slot, v in zip(slots, saved, strict=True) if v in gone})
    names = {v: ("saved", saved.index(v)) for v in saved} | {v: ("const", v) for v in consts}
    sums = [("sum", k) for k in range(len(loop.sums))]
    order = [*(("const", v) for v in consts), *(("saved", k) for k in kept), *sums]
    tokens = [*(names[v] for v in recipe.leaves), *order]
    back = rebound(both, tokens, order, lambda token: program.specs[0], ins.origin)
    back = edited(back, back.inputs, back.outputs[len(gone) :])
    body = edited(loop.body, loop.body.inputs, (*loop.next_state, *(saved[k] for k in kept)))
    changed = replace(loop, body=body, back=back)
    instructions = list(program.instructions)
    instructions[number] = replace(ins, inputs=changed.inputs, params=changed.params)
    return program.with_instructions(instructions)
