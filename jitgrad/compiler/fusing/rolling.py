"""Rolling: a group whose rows another reads at neighbouring ones runs inside it, a few rows at a time; how that looks
as loops is said elsewhere.

The gradient of a stencil reads the residual at the row above, its own and the one below. As two kernels, the residual
goes through memory. Rolled, a row of the reader first makes the rows that it reads and that are not there yet, into a
ring of as many rows as it reads, which stays in cache; a chunk begins with all of them, and so makes a few that
the chunk before it has made too. What is summed or stored of a row is so once, in the chunk that the row belongs to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from jitgrad.compiler.fusing.collapse import collapse_axes
from jitgrad.compiler.fusing.drafts import MOST_WEIGHT, weight_of
from jitgrad.compiler.fusing.groups import Group, Placed, Plan, Refusal, Rolled, Step
from jitgrad.compiler.fusing.looptree import TreeLoop, build_loop_tree
from jitgrad.compiler.fusing.nodes import MAP, PACK
from jitgrad.compiler.loopir.nests import Literal
from jitgrad.compiler.symbols import number as known_number
from jitgrad.opdef import AxisIndex
from jitgrad.records import dataclass

MOST_ROWS = 12  # that are in a ring, and that a chunk makes before its first
MOST_DEPTH = 3
MOST_AXES = 2  # of a nest: rings of planes are in no first cache, and short rows in them are no whole vectors


class _NoWindowError(Exception):
    """Why a group cannot run inside another."""


@dataclass(frozen=True)
class _Pair:
    """Two groups, by their numbers, and what the second reads of the first."""

    maker: int
    reader: int
    values: tuple[int, ...]


def roll_windows(plan: Plan, kept: Collection[int]) -> Plan:
    """The plan with groups rolled into the one group that reads their rows; the plan itself where there are none.

    ``kept`` are values that must be in memory afterwards.
    """
    rolling = _Rolling(plan, kept)
    for number in range(len(plan.steps)):
        rolling.roll_into(number)
    return rolling.plan()


class _Rolling:
    def __init__(self, plan: Plan, kept: Collection[int]) -> None:
        self.before = plan
        self.kept = kept
        self.steps: list[Step | None] = list(plan.steps)
        self.refusals: list[Refusal] = []
        self.home = {v: n for n, step in enumerate(plan.steps) for v in _written(step)}
        self.moved_to: dict[int, int] = {}  # of a step that is part of another now
        self.readers: dict[int, set[int]] = {}  # of a value, also where they read it in another shape
        for number, step in enumerate(plan.steps):
            self._note(number, step)

    def plan(self) -> Plan:
        """The steps that are left, numbered anew."""
        if not self.refusals and all(step is not None for step in self.steps):
            return self.before
        left = [number for number, step in enumerate(self.steps) if step is not None]
        renumbered = {number: position for position, number in enumerate(left)}
        steps = tuple(_numbered(step, k) for k, step in enumerate(s for s in self.steps if s is not None))
        chunked = {v: renumbered[self._place(number)] for v, number in self.before.chunked.items()}
        return replace(
            self.before, steps=steps, chunked=chunked, refusals=(*self.before.refusals, *self.refusals)
        )

    def roll_into(self, number: int) -> None:
        """Let the groups whose rows a group reads run inside it, where they can."""
        tried: set[int] = set()
        while pair := next((p for p in self._pairs(self._place(number)) if p.values[0] not in tried), None):
            tried.add(pair.values[0])
            try:
                self._roll(pair)
            except _NoWindowError as reason:
                reader = next(p for p in self._group(pair.reader).nodes if pair.values[0] in p.node.reads)
                sentence = f"not made row by row where it is read: {reason}"
                self.refusals.append(Refusal(pair.values[0], reader.node.value, sentence))

    def _group(self, number: int) -> Group:
        step = self.steps[number]
        assert isinstance(step, Group)
        return step

    def _pairs(self, number: int) -> Iterator[_Pair]:
        """A group with each that makes values which it reads elsewhere than at their own place, the latest first."""
        reader = self.steps[number]
        if not _has_rows(reader):
            return
        found: dict[int, list[int]] = {}
        for v in dict.fromkeys(v for p in reader.nodes for v in p.node.reads):
            maker = self._maker(v)
            if maker is not None and maker != number and _has_rows(self.steps[maker]):
                found.setdefault(maker, []).append(v)
        moved = frozenset[int | Literal]().union(*(p.node.moved for p in reader.nodes))
        for maker in sorted(found, reverse=True):
            if not moved.isdisjoint(found[maker]):
                yield _Pair(maker, number, tuple(found[maker]))

    # -- whether -----------------------------------------------------------------------------------------------------

    def _roll(self, pair: _Pair) -> None:
        maker, reader = self._group(pair.maker), self._group(pair.reader)
        for group in (maker, reader):
            if any(p.node.form == PACK for p in group.nodes):
                raise _NoWindowError("an array is put together of its places")
            if not _is_one_loop(group):
                raise _NoWindowError("one of both kernels is no nest over rows")
            if len(collapse_axes(replace(group, nodes=group.own), self.before, by_row=True)[1]) > MOST_AXES:
                raise _NoWindowError("its rows are planes, several of which do not stay in cache")
        if sum(weight_of(p.node) for p in (*maker.nodes, *reader.nodes)) > MOST_WEIGHT:
            raise _NoWindowError("the kernel would be too large")
        aliased = {self.before.aliases[v] for v in _reads(reader) if v in self.before.aliases}
        if aliased.intersection(_written(maker)):
            raise _NoWindowError("it is read in another shape, too")
        offsets = [o for v in pair.values for o in self._offsets(v, maker, reader)]
        lo, hi = min(offsets), max(offsets)
        leaving = {v for v in maker.stored if v in self.kept or self._is_read_elsewhere(v, pair)}
        if leaving.intersection(pair.values):
            raise _NoWindowError("it goes through memory anyhow, for others")
        if leaving or maker.partials:  # then all rows are made
            if reader.extents[0] == 0:
                raise _NoWindowError("its reader has no rows, and others read what is made of it")
            lo, hi = min(lo, 0), max(hi, maker.extents[0] - reader.extents[0])
        rolled = Rolled(maker, pair.values, lo, hi)
        merged = replace(
            reader, nodes=(*maker.nodes, *reader.nodes), stored=reader.stored | leaving,
            partials={**maker.partials, **reader.partials}, rolled=(rolled, *reader.rolled),
        )  # fmt: skip
        _check_size(merged)
        self._put(merged, pair)

    def _offsets(self, v: int, maker: Group, reader: Group) -> Iterator[int]:
        """The rows at which the reader reads a value, counted from its own."""
        placed = next((p for p in maker.own if p.node.value == v), None)
        if placed is None or v in self.before.aliases or placed.node.form != MAP or placed.out_axes.count(0) != 1:
            raise _NoWindowError("its rows are not made one by one")
        if len(set(placed.out_axes) - {None}) < 2:
            raise _NoWindowError("its rows are single elements")
        d = placed.out_axes.index(0)
        for p in reader.own:
            if p.node.table == v:
                raise _NoWindowError("it is read at positions that are computed")
            for leaf in (leaf for o in p.node.operands for leaf in o.leaves if leaf.source == v):
                yield _offset(p, leaf.dims, d)
        if any(v in p.node.reads for r in reader.rolled for p in r.group.nodes):
            raise _NoWindowError("another kernel that is rolled into its reader reads it too")

    def _is_read_elsewhere(self, v: int, pair: _Pair) -> bool:
        return any(n not in (pair.maker, pair.reader) for n in self.readers.get(v, ()))

    # -- where -------------------------------------------------------------------------------------------------------

    def _put(self, merged: Group, pair: _Pair) -> None:
        """Put the merged group where its maker stood, or where its reader did, so that others come before and after."""
        maker, reader = self._group(pair.maker), self._group(pair.reader)
        makers = (self._maker(v) for v in self._roots(reader))
        readers = (n for v in _written(maker) for n in self.readers.get(v, ()))
        if not any(n is not None and pair.maker < n < pair.reader for n in makers):
            place, gone = pair.maker, pair.reader
        elif not any(pair.maker < n < pair.reader for n in readers):
            place, gone = pair.reader, pair.maker
        else:
            raise _NoWindowError("what is computed from it is needed first")
        for number, step in ((pair.maker, maker), (pair.reader, reader)):
            for v in self._roots(step):
                self.readers[v].discard(number)
        self._note(place, merged)
        self.steps[place], self.steps[gone] = merged, None
        self.moved_to[gone] = place

    def _note(self, number: int, step: Step) -> None:
        """Remember what a step reads."""
        for v in self._roots(step):
            self.readers.setdefault(v, set()).add(number)

    def _roots(self, step: Step) -> set[int]:
        """What a step reads, each by the name that it was stored under."""
        return {self.before.aliases.get(v, v) for v in _reads(step)}

    def _maker(self, v: int) -> int | None:
        """The step that writes a value now, or none: an input."""
        home = self.home.get(v)
        return None if home is None else self._place(home)

    def _place(self, number: int) -> int:
        """Where a step is now."""
        while (place := self.moved_to.get(number)) is not None:
            self.moved_to[number] = self.moved_to.get(place, place)  # so that no way grows long
            number = place
        return number


def _check_size(merged: Group) -> None:
    """Only what is the same for all extents counts: other extents must not need other kernels."""
    if merged.depth > MOST_DEPTH or merged.halo > MOST_ROWS:
        raise _NoWindowError("too many rows would have to be made before the first one of a chunk")


def _offset(placed: Placed, dims: Sequence[AxisIndex], d: int) -> int:
    index = dims[d]
    if index.axis is None or placed.axes[index.axis] != 0 or (index.scale, index.divisor) != (1, 1):
        raise _NoWindowError("it is not read at rows beside the reader's own")
    if any(i.axis is not None and placed.axes[i.axis] == 0 for k, i in enumerate(dims) if k != d):
        raise _NoWindowError("it is not read row by row")
    if abs(index.offset) > MOST_ROWS:
        raise _NoWindowError(f"it is read {known_number(abs(index.offset))} rows away")
    return index.offset


def _has_rows(step: Step | None) -> TypeGuard[Group]:
    return isinstance(step, Group) and not step.is_serial and step.lead is None and not step.is_alone


def _is_one_loop(group: Group) -> bool:
    """Whether a group is a loop over rows, with loops over the elements of a row inside."""
    items = build_loop_tree(replace(group, nodes=group.own)).root.items
    return (
        len(items) == 1 and isinstance(items[0], TreeLoop) and items[0].axis == 0
        and any(isinstance(item, TreeLoop) for item in items[0].items)
    )  # fmt: skip


def _written(step: Step) -> tuple[int, ...]:
    return (*step.stored, *step.partials.values()) if isinstance(step, Group) else step.values


def _reads(step: Step) -> set[int]:
    if not isinstance(step, Group):
        return set(step.reads)
    return {v for p in step.nodes for v in p.node.reads} - {p.node.value for p in step.nodes}


def _numbered(step: Step, number: int) -> Step:
    return replace(step, number=number) if isinstance(step, Group) else step
