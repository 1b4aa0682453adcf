"""join_instructions(): loops over the same steps, and branches on the same index, become one instruction.

The gradient of a scan is made with a forward scan of its own, which computes the plain one on its way; a loop with
tangents contains the plain loop. Which states are one is not looked for here: the joined body holds both, and is then
simplified as any other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from jitgrad.compiler.bodies.forms import Loop, can_edit, form_of, loop_of
from jitgrad.compiler.bodies.numbering import Numbering, compare_states
from jitgrad.compiler.bodies.programs import edited, has_state, joined, rebound
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec

_MOST = 64
"""With how many others an instruction that runs programs is compared, of those that share a value with it."""


def join_instructions(program: Program, fired: Counter[str], chained: bool = False) -> Program:
    """The program with instructions joined that run over the same steps; itself when there are none.

    With ``chained``, also a scan with the one that makes its items, step by step: they are then never stored.
    """
    joining = _Joining(program, chained)
    for numbers in _groups(program):
        joining.join_all(numbers)
    if not joining.count:
        return program
    fired["chained" if chained else "join"] += joining.count
    return joining.result()


def _groups(program: Program) -> Iterable[list[int]]:
    """The numbers of the instructions that may become one with others of their group, in order."""
    groups: dict[Any, list[int]] = {}
    named = {n for ins in program.instructions for n in ins.after}
    for number, ins in enumerate(program.instructions):
        if form_of(ins) not in (None, "call") and can_edit(ins) and not ins.after and number not in named:
            groups.setdefault(_group(ins), []).append(number)
    return groups.values()


def _group(ins: Instruction) -> Any:
    """What must agree."""
    kind, params = form_of(ins), ins.params
    if kind == "cond":
        return kind, ins.origin.scope, ins.inputs[0]
    return kind, ins.origin.scope, params.get("length"), params.get("reverse"), params.get("maximum_iterations")


def _shared(ins: Instruction, chained: bool) -> tuple[Sequence[int], Sequence[int]]:
    """The values by which an instruction finds others, and those by which it is found: what loops begin with, what one
    makes and the next takes, or the index of branches.
    """
    if chained:
        return ins.inputs, ins.outputs
    values = ins.inputs[:1] if form_of(ins) == "cond" else loop_of(ins).init
    return values, values


class _Joining:
    """A program while instructions of it become one: in the place of the first of two, with what only the second needs
    in front of it. An instruction keeps its number; where it stands is said by a key to sort by.
    """

    def __init__(self, program: Program, chained: bool) -> None:
        self.count = 0
        self._program = program
        self._is_chaining = chained
        self._make_one = _chained if chained else _join
        self._instructions: dict[int, Instruction] = dict(enumerate(program.instructions))
        self._makers = dict(program.producers())
        self._places: dict[int, tuple[float, ...]] = {}  # of those that were moved
        self._moves = 0
        self._members = Counter[int]()  # how many have become one with an instruction
        self._numbering = Numbering()
        self._first_steps: dict[int, frozenset[Any]] = {}

    def join_all(self, numbers: Sequence[int]) -> None:
        """Join instructions of one group, each with the nearest in front of it that it can be one with."""
        having: dict[int, dict[int, None]] = {}
        for second in numbers:
            needed, offered = _shared(self._instructions[second], self._is_chaining)
            found = {first for v in needed for first in islice(reversed(having.get(v, {})), _MOST)}
            one = self._joined_with(second, sorted(found, key=self._place)[-_MOST:])
            for v in offered:
                having.setdefault(v, {})[one] = None

    def result(self) -> Program:
        """The program as it is now."""
        order = sorted(self._instructions, key=self._place)
        place = {number: k for k, number in enumerate(order)}
        return self._program.with_instructions([_moved(self._instructions[number], place) for number in order])

    def _place(self, number: int) -> tuple[float, ...]:
        return self._places.get(number, (number,))

    def _joined_with(self, second: int, numbers: Iterable[int]) -> int:
        """What an instruction is part of now: the nearest of some in front of it, in order, that it can be one with, or
        itself.
        """
        ins = self._instructions[second]
        firsts = [n for n in numbers if self._members[n] < _MOST and self._may_be_one(n, second)]
        free, needed = self._independent(second, firsts)
        ordered = [n for n in needed if self._instructions[n].after or has_state(self._instructions[n])]
        last = max(map(self._place, ordered), default=())
        for first in reversed(free):
            if self._place(first) < last:
                break  # what has its place in the order to keep would move, and in front of those further away, too
            made = self._make_one(self._program, self._instructions[first], ins)
            if made is not None:
                self._move([n for n in needed if self._place(n) > self._place(first)], first)
                self._makers.update(dict.fromkeys(self._instructions.pop(second).outputs, first))
                self._instructions[first] = made
                self._first_steps.pop(first, None)
                self._members[first] += 1 + self._members[second]
                self.count += 1
                return first
        return second

    def _may_be_one(self, first: int, second: int) -> bool:
        """What is soon seen of two that become one: their branches are as many; of two loops that do not read each
        other one does in its first step all that the other does, with the same values; or the second is a scan that
        reads of the first, but what it stacks, nothing.
        """
        a, b = self._instructions[first], self._instructions[second]
        if self._is_chaining:
            return _may_be_chained(a, b)
        if form_of(a) == "cond":
            return len(a.params["branches"]) == len(b.params["branches"])
        one, other = set(loop_of(a).init), set(loop_of(b).init)
        if not (one <= other or other <= one) or not set(a.outputs).isdisjoint(b.inputs):
            return False
        ours, theirs = self._first_step(first), self._first_step(second)
        return ours <= theirs or theirs <= ours

    def _first_step(self, number: int) -> frozenset[Any]:
        """The states that a loop begins with, each with a number for what the first step makes of it: loops that share
        states all over share these.
        """
        if number not in self._first_steps:
            loop = loop_of(self._instructions[number])
            keys = [*(("const", v) for v in (*loop.consts, *loop.init)), *(("item", v) for v in loop.xs)]
            values = self._numbering.values(loop.body, keys)
            made = [values[v] for v in loop.next_state]
            self._first_steps[number] = frozenset(zip(loop.init, made, strict=True))
        return self._first_steps[number]

    def _independent(self, second: int, firsts: Sequence[int]) -> tuple[list[int], list[int]]:
        """Those of some instructions that another needs nothing of by way of others, and what it needs that is not in
        front of all those. The nearest by way are looked at first: most are found to be needed soon.
        """
        free = [n for n in firsts if self._place(n) < self._place(second)]
        owners = {v: n for n in free for v in self._instructions[n].outputs}
        needed, seen = list[int](), set[int]()
        readers = [second]
        for reader in readers:
            for v in self._instructions[reader].inputs:
                number = self._makers.get(v, second)
                if number in seen or not free or not self._place(free[0]) < self._place(number) < self._place(second):
                    continue
                seen.add(number)
                needed.append(number)
                readers.append(number)
                taken = {owners[v] for v in self._instructions[number].inputs if v in owners}
                if taken:
                    free = [n for n in free if n not in taken]
        return free, needed

    def _move(self, numbers: Iterable[int], before: int) -> None:
        """Put instructions in front of another, in their order, behind all that stands there already."""
        *start, last = self._place(before)
        for number in sorted(numbers, key=self._place):
            self._moves += 1
            self._places[number] = (*start, last - 1, math.inf, self._moves)


def _moved(ins: Instruction, place: Mapping[int, int]) -> Instruction:
    return replace(ins, after=tuple([place[n] for n in ins.after])) if ins.after else ins


# -- loops -------------------------------------------------------------------------------------------------------------


def _join(program: Program, a: Instruction, b: Instruction) -> Instruction | None:
    """One instruction for two; loops only where they share state all over."""
    if form_of(a) == "cond":
        return _join_branches(program, a, b)
    first, second = loop_of(a), loop_of(b)
    loop = _both(first, second, _specs_of(program), a, {})
    return _as_one(loop, a, b) if _is_shared(first, second, loop) else None


def _may_be_chained(a: Instruction, b: Instruction) -> bool:
    """Whether the second of two is a scan that reads of the first, but what it stacks, nothing."""
    if form_of(a) != "scan":
        return False
    second, given = loop_of(b), set(a.outputs).intersection(b.inputs)
    return bool(given) and given.isdisjoint((*a.outputs[: len(loop_of(a).init)], *second.consts, *second.init))


def _chained(program: Program, a: Instruction, b: Instruction) -> Instruction:
    """One scan for two, of which the second takes apart what the first stacks."""
    first, second = loop_of(a), loop_of(b)
    stacks = dict(zip(a.outputs[len(first.init) :], first.rest, strict=True))
    linked = {x: stacks[v] for x, v in zip(second.items, second.xs, strict=True) if v in stacks}
    return _as_one(_both(first, second, _specs_of(program), a, linked), a, b)


def _as_one(loop: Loop, a: Instruction, b: Instruction) -> Instruction:
    """The instruction for two that are one loop now, with the outputs of both."""
    if loop.sums:
        outputs = (*a.outputs, *b.outputs)
    else:
        n, m = len(loop_of(a).init), len(loop_of(b).init)
        outputs = (*a.outputs[:n], *b.outputs[:m], *a.outputs[n:], *b.outputs[m:])
    return Instruction(b.op, loop.inputs, outputs, loop.params, b.origin)


def _specs_of(program: Program) -> Callable[[Any], TensorSpec]:
    return lambda token: program.specs[token[1]]


def _both(
    first: Loop, second: Loop, spec_of: Callable[[Any], TensorSpec], ins: Instruction, linked: Mapping[int, int]
) -> Loop:
    """The states of both loops in one, side by side; ``linked`` items of the second are values of the first."""
    n, m = len(first.init), len(second.init)
    own_items = [v for x, v in zip(second.items, second.xs, strict=True) if x not in linked]
    consts = [("const", v) for v in dict.fromkeys((*first.consts, *second.consts))]
    items = [("item", v) for v in dict.fromkeys((*first.xs, *own_items))]
    states = [("state", k) for k in range(n + m)]

    def tokens(loop: Loop, offset: int, rest: Sequence[Any]) -> list[Any]:
        own = [("state", offset + k) for k in range(len(loop.init))]
        return [*(("const", v) for v in loop.consts), *own, *rest]

    def bound(one: Program, other: Program, columns: Sequence[Any], order: Sequence[Any]) -> Program:
        return rebound(joined(one, other, linked), columns, order, spec_of, ins.origin)

    columns = [*tokens(first, 0, [("item", v) for v in first.xs]), *tokens(second, n, [("item", v) for v in own_items])]
    body = bound(first.body, second.body, columns, [*consts, *states, *items])
    ends = len(first.body.outputs)
    places = [*range(n), *range(ends, ends + m), *range(n, ends), *range(ends + m, len(body.outputs))]
    body = edited(body, body.inputs, [body.outputs[k] for k in places])
    cond, back = first.cond, None
    if cond is not None:
        cond = rebound(
            cond, tokens(first, 0, ()), [*consts, *states], lambda t: _state_spec(body, consts, t), ins.origin
        )
    if first.back is not None and second.back is not None:
        back = _both_backs(first, second, consts, bound)
    return replace(
        first, consts=tuple(v for _, v in consts), init=(*first.init, *second.init), xs=tuple(v for _, v in items),
        sums=(*first.sums, *second.sums), body=body, cond=cond, back=back,
    )  # fmt: skip


def _state_spec(body: Program, consts: Sequence[Any], token: Any) -> TensorSpec:
    place = consts.index(token) if token[0] == "const" else len(consts) + token[1]
    return body.specs[body.inputs[place]]


def _both_backs(first: Loop, second: Loop, consts: Sequence[Any], bound: Callable[..., Program]) -> Program:
    assert first.back is not None and second.back is not None
    saved, sums = [], []
    columns: list[Any] = []
    for name, loop in (("first", first), ("second", second)):
        own_saved = [(f"saved {name}", k) for k in range(len(loop.rest))]
        own_sums = [(f"sum {name}", k) for k in range(len(loop.sums))]
        columns += [*(("const", v) for v in loop.consts), *own_saved, *own_sums]
        saved += own_saved
        sums += own_sums
    return bound(first.back, second.back, columns, [*consts, *saved, *sums])


def _is_shared(first: Loop, second: Loop, loop: Loop) -> bool:
    """Whether both take the same steps, with the state of one among that of the other."""
    n, m, c = len(first.init), len(second.init), len(loop.consts)
    keys = [*(("const", v) for v in (*loop.consts, *loop.init)), *(("item", v) for v in loop.xs)]
    keys, _ = compare_states(loop.body, keys, c, n + m)
    one, other = keys[c : c + n], keys[c + n : c + n + m]
    if first.cond is None or second.cond is None:
        return set(one) <= set(other) or set(other) <= set(one)
    numbering = Numbering()
    tests = [
        numbering.values(cond, [*(("const", v) for v in own.consts), *states])[cond.outputs[0]]
        for own, cond, states in ((first, first.cond, one), (second, second.cond, other))
    ]
    return tests[0] == tests[1]


# -- branches ----------------------------------------------------------------------------------------------------------


def _join_branches(program: Program, a: Instruction, b: Instruction) -> Instruction:
    """One choice for two; what the second reads of the first it reads inside."""
    branches = []
    for one, other in zip(a.params["branches"], b.params["branches"], strict=True):
        made = dict(zip(a.outputs, one.outputs, strict=True))
        linked = {x: made[v] for x, v in zip(other.inputs, b.inputs[1:], strict=True) if v in made}
        branches.append(joined(one, other, linked))
    given = [v for v in b.inputs[1:] if v not in set(a.outputs)]
    tokens = [("value", v) for v in (*a.inputs[1:], *given)]
    order = list(dict.fromkeys(tokens))
    both = tuple(rebound(branch, tokens, order, _specs_of(program), b.origin) for branch in branches)
    inputs = (a.inputs[0], *(v for _, v in order))
    return Instruction(b.op, inputs, (*a.outputs, *b.outputs), {"branches": both}, b.origin)
