"""Updates of loops' state: where a step may write them in the memory of the state, and how all others are written out.

A table that grows by a row per step would be copied at each: the state before it is one array, that after it another.
Where all that reads the state reads it as it was before the step, and nothing but the next step what the step makes of
it, one array is enough. The body then gives the part and its place in place of the whole, and the loop puts it there
when the body has run (driver/regions.py). Loops of 10,000 steps that write rows of five numbers, each made of the row
before or not, take 0.1 us per step in place of 22 and 23 (Ice Lake).

A choice for each element is what an update means anywhere else, and fuses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from jitgrad.compiler.bodies.programs import Values, edited
from jitgrad.compiler.remaking import Remaking
from jitgrad.compiler.subprograms import LOOPS, regions_of, with_regions
from jitgrad.opdef import Control, Pairs, Update, View, find
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple


class Write(NamedTuple):
    """A part of a state, by numbers of a body's outputs: the state's, those of the place and of the part. ``outer``
    stretches of ``inner`` elements are written, so many elements ``apart``.
    """

    state: int
    place: int
    values: int
    outer: int
    apart: int
    inner: int


class Planned(NamedTuple):
    """A body as it is planned: a state that is changed in place comes out as it went in, and behind all else come
    places and parts for ``writes``, which are carried out in this order when the body has run, and what loops in it
    have made of the state. These are ``shared``: numbers of outputs, each with that of the state whose memory it has.
    """

    program: Program
    writes: tuple[Write, ...] = ()
    shared: tuple[tuple[int, int], ...] = ()

    @property
    def in_place(self) -> frozenset[int]:
        """The numbers of the states that are changed in place."""
        return frozenset([*[write.state for write in self.writes], *[state for _, state in self.shared]])


class _State(NamedTuple):
    """What a region of a loop reads of the state, and makes of it; what it was at first, and is in the end, of that
    which a loop gives.
    """

    region: int
    before: Values
    after: Values
    first: Values
    last: Values


class _Change(NamedTuple):
    """How a body changes a state in place: by loops, the values that they give, and then by updates."""

    loops: Values
    updates: tuple[Instruction, ...]


def planned_regions(ins: Instruction) -> tuple[Program, ...]:
    """The programs of a control op as they are planned."""
    return tuple([planned.program for planned in planned_bodies(ins)])


def planned_bodies(ins: Instruction) -> tuple[Planned, ...]:
    """The bodies of a control op as they are planned."""
    bodies = [Planned(sub) for sub in regions_of(ins)]
    for state in _states_of(ins) if any(_has_updates(body.program) for body in bodies) else ():
        sub = bodies[state.region].program
        changes = _changes_in_place(sub, state)
        if changes:
            bodies[state.region] = _planned(sub, state, changes)
    return tuple(bodies)


def _planned(sub: Program, state: _State, changes: dict[int, _Change]) -> Planned:
    outputs, count = list(sub.outputs), len(sub.outputs)
    writes, shared, extra = list[Write](), list[tuple[int, int]](), list[int]()
    for position, change in changes.items():
        outputs[position] = state.before[position]
        for v in change.loops:
            shared.append((count + len(extra), position))
            extra.append(v)
        for update in change.updates:
            _, values, place = update.inputs
            axes, shape = update.params["axes"], sub.specs[update.outputs[0]].known_shape
            inner = math.prod(shape[axes[-1] + 1 :])
            apart, number = inner * math.prod(shape[axes[0] : axes[-1] + 1]), count + len(extra)
            writes.append(Write(position, number, number + 1, math.prod(shape[: axes[0]]), apart, inner))
            extra += [place, values]
    return Planned(edited(sub, sub.inputs, (*outputs, *extra)), tuple(writes), tuple(shared))


def values_in_place(ins: Instruction) -> Values:
    """Those results of a loop that its steps change in place."""
    bodies = planned_bodies(ins)
    states = [state for state in _states_of(ins) if state.last]
    return tuple([state.last[n] for state in states for n in sorted(bodies[state.region].in_place)])


def without_updates(program: Program) -> Program:
    """An equal program whose updates are those that loops write in place; the same object where there are no others."""
    return _with_updates(program, set()) if _has_updates(program) else program


def _has_updates(program: Program) -> bool:
    """Whether a program has updates, those of bodies too."""
    found: bool | None = program._cache.get("has_updates")
    if found is None:
        found = program._cache["has_updates"] = any(
            isinstance(ins.op.kind, Update) or any(map(_has_updates, regions_of(ins))) for ins in program.instructions
        )
    return found


def _with_choices(ins: Instruction) -> Instruction:
    """An instruction in whose bodies only those updates are left that are written in place."""
    regions = regions_of(ins)
    if not any(map(_has_updates, regions)):
        return ins
    states = {state.region: state for state in _states_of(ins)}
    changed = []
    for number, sub in enumerate(regions):
        changes = _changes_in_place(sub, states[number]) if number in states else {}
        kept = {update.outputs[0] for change in changes.values() for update in change.updates}
        changed.append(_with_updates(sub, kept) if _has_updates(sub) else sub)
    is_same = all(a is b for a, b in zip(changed, regions, strict=True))
    return ins if is_same else with_regions(ins, tuple(changed))


def _with_updates(sub: Program, kept: set[int]) -> Program:
    """A program without its own updates but those that make the values ``kept``; itself where there are no others."""
    remaking = Remaking(sub)
    for ins in sub.instructions:
        if isinstance(ins.op.kind, Update) and ins.outputs[0] not in kept:
            _choose(ins, remaking)
        else:
            remaking.instructions.append(_with_choices(ins))
    is_same = remaking.instructions == list(sub.instructions)
    return sub if is_same else remaking.remade(sub.outputs)


def _choose(ins: Instruction, new: Remaking) -> None:
    """An update as a choice between old and new for each element."""
    x, values, place = ins.inputs
    axes, shape, new.origin = ins.params["axes"], new.specs[x].known_shape, ins.origin
    first, last = axes[0], axes[-1] + 1
    merged = (*shape[:first], math.prod(shape[first:last]), *shape[last:])
    ruler = tuple([n if d == first else 1 for d, n in enumerate(merged)])
    places = new.emit("iota", shape=ruler, axis=first, dtype=new.specs[place].dtype)
    here = new.emit("equal", new.emit("broadcast_to", place, shape=ruler), places)
    row = new.emit("expand_dims", values, axes=(first,))
    wide = [new.emit("broadcast_to", v, shape=merged) for v in (here, row)]
    if merged == shape:
        new.put(ins.outputs[0], find("where"), (*wide, x), {})
    else:
        chosen = new.emit("where", *wide, new.emit("reshape", x, shape=merged))
        new.put(ins.outputs[0], find("reshape"), (chosen,), {"shape": shape})


# -- in place ----------------------------------------------------------------------------------------------------------


def _states_of(ins: Instruction) -> Iterator[_State]:
    """The states of a loop that its regions make anew at each step."""
    if not isinstance(ins.op.kind, Control) or ins.op.kind.form not in LOOPS:
        return
    form, params, regions = ins.op.kind.form, ins.params, regions_of(ins)
    first = params["n_consts"]
    last = len(ins.inputs) if form == "while" else first + params["n_carry"]
    number = 0 if form == "scan" else 1
    sub, count = regions[number], last - first
    before, after = sub.inputs[first:last], sub.outputs[:count]
    if form != "while_gradient":
        yield _State(number, before, after, ins.inputs[first:last], ins.outputs[:count])
        return
    back, saved = regions[2], len(sub.outputs) - count
    yield _State(number, before, after, (), ())
    yield _State(2, back.inputs[first + saved :], back.outputs, ins.inputs[last:], ins.outputs)


def _changes_in_place(sub: Program, state: _State) -> dict[int, _Change]:
    """Per position of the state that may be changed in place how that is done. Found once, since each loop around asks
    for each of its states.
    """
    known: dict[tuple[Values, Values], dict[int, _Change]] = sub._cache.setdefault("changes_in_place", {})
    key = state.before, state.after
    if key not in known:
        known[key] = _find_changes(sub, state)
    return known[key]


def _find_changes(sub: Program, state: _State) -> dict[int, _Change]:
    """The same, found anew.

    Updates are carried out when all else has run, so whatever the body reads of the state is as it was before. A loop
    changes it on the way: it must be the only reader.
    """
    makers = {v: ins for ins in sub.instructions for v in ins.outputs}
    uses = Counter([*sub.outputs, *(v for ins in sub.instructions for v in ins.inputs)])
    found: dict[int, _Change] = {}
    for position, (before, v) in enumerate(zip(state.before, state.after, strict=True)):
        updates, loops = list[Instruction](), list[int]()
        while v in makers and isinstance(makers[v].op.kind, Update) and uses[v] == 1:
            updates.append(makers[v])
            v = makers[v].inputs[0]
        while v in makers and (given := _changed_by_loop(makers[v], v)) is not None and uses[given] == 1:
            loops.append(v)
            v = given
        if v == before and (updates or loops):
            found[position] = _Change(tuple(loops[::-1]), tuple(updates[::-1]))
    kept = {v for position, change in found.items() for v in (state.before[position], *change.loops)}
    return {
        position: change for position, change in found.items()
        if not any(_memory(makers, update.inputs[1]) in kept for update in change.updates)
    }  # fmt: skip


def _changed_by_loop(ins: Instruction, v: int) -> int | None:
    """What a loop begins with that gives a value, and changes it in place; None for others."""
    for state in _states_of(ins):
        if v in state.last:
            position = state.last.index(v)
            sub = regions_of(ins)[state.region]
            is_changed = _has_updates(sub) and position in _changes_in_place(sub, state)
            return state.first[position] if is_changed else None
    return None


def _memory(makers: dict[int, Instruction], v: int) -> int:
    """The value in whose memory another lies, as far as that is so for sure or maybe."""
    while v in makers and isinstance(makers[v].op.kind, View | Pairs):
        v = makers[v].inputs[0]
    return v
