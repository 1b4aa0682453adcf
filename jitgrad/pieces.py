"""Pieces: what was assigned to numbered parts of an array (``out[i] = x``, ``table[i, j] = x``, ``rows[:, k] = x``) and
is not put together yet.

A loop of Python's that fills an array would else make a new array for each step, of the one before and of the part. The
parts are kept by their numbers in place of that: who reads one gets what was assigned, and the whole is made once, of
all parts side by side, when something needs it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jitgrad.operators import call
from jitgrad.records import NamedTuple
from jitgrad.sources import user_source

if TYPE_CHECKING:
    from jitgrad.graph import Here, Operation, Tensor
    from jitgrad.sources import Source

MOST_READ_ACROSS = 64  # parts that a window is made of, where it is not read from the whole
Value = tuple["Operation", int]  # an output of an operation: the object in its place may be another one later
Bound = tuple[Any, Any, int]


class Part(NamedTuple):
    """Which part: numbers along the axes that it has no more, and along the others bounds: first, last, step. None is
    in the place of a number.
    """

    bounds: tuple[Bound | None, ...]
    numbers: tuple[int, ...]

    @property
    def is_numbered(self) -> bool:
        """Whether it has numbers, along axes that are neighbours."""
        axes = [axis for axis, bound in enumerate(self.bounds) if bound is None]
        return bool(axes) and axes[-1] - axes[0] == len(axes) - 1

    @property
    def entries(self) -> tuple[Any, ...]:
        """As it is written in brackets."""
        return _index(self.bounds, self.numbers)


def part_of(shape: Sequence[int | None] | None, slices: Sequence[slice], drop: Sequence[int]) -> Part | None:
    """The part that slices choose, of which those along ``drop`` choose one element; None for one without elements and
    for one of unknown extents.
    """
    if shape is None or None in shape:
        return None
    chosen = [range(n)[s] for n, s in zip(shape, slices, strict=True) if n is not None]
    if not all(map(len, chosen)):
        return None
    bounds = tuple([None if axis in drop else (r[0], r[-1], r.step) for axis, r in enumerate(chosen)])
    return Part(bounds, tuple([chosen[axis][0] for axis in drop]))


class Pieces:
    """Parts of one kind, by their numbers, of an array that was ``old`` before: no two have an element in common."""

    __slots__ = ("_here", "_old", "_parts", "_source", "bounds")

    def __init__(self, old: Tensor, bounds: tuple[Bound | None, ...]) -> None:
        self._old: Value = (old.op, old.value_index)
        self._here = old.op.graph.here
        self._source: Source | None = None
        self._parts: dict[tuple[int, ...], Value] = {}
        self.bounds = bounds

    @property
    def before(self) -> Tensor:
        """The array without them."""
        return _tensor(self._old)

    @property
    def here(self) -> Here:
        """Where the last of them was assigned, in what scopes."""
        return self._here._replace(source=self._here.source or self._source)

    def takes(self, part: Part) -> bool:
        """Whether the part is one of these, or lies in one, and is assigned in the same scopes."""
        return self._numbers_of(part) is not None and self._old[0].graph.here is self._here

    def put(self, part: Part, value: Tensor) -> None:
        """Let a part that is taken have this value; of one that lies in another, the other is changed."""
        self._source = user_source()
        numbers = part.numbers
        if part.bounds != self.bounds:
            self._widen()
            numbers = self._numbers_of(part) or ()
            value = call("assigned", self._row(numbers), self._rest_of(part), value)
        self._parts[numbers] = (value.op, value.value_index)

    def read(self, part: Part) -> tuple[Tensor, tuple[Any, ...]] | None:
        """The tensor that holds a part, and the index of the part there; None where only the whole does."""
        numbers = self._numbers_of(part)
        if numbers is None:
            return self._read_across(part)
        if part.bounds != self.bounds:
            self._widen()
        if numbers not in self._parts:
            return self.before, part.entries
        return _tensor(self._parts[numbers]), (...,) if part.bounds == self.bounds else self._rest_of(part)

    def _read_across(self, part: Part) -> tuple[Tensor, tuple[Any, ...]] | None:
        """The same for what lies in several, side by side; None where they are all there are, or many."""
        shape, given = self.before.spec.known_shape, iter(part.numbers)
        wanted = [_numbers(bound) if bound is not None else [next(given)] for bound in part.bounds]
        axes = [axis for axis, bound in enumerate(self.bounds) if bound is None]
        count = math.prod([len(wanted[axis]) for axis in axes])
        if count > MOST_READ_ACROSS or count == math.prod([shape[axis] for axis in axes]):
            return None
        places = list(itertools.product(*[wanted[axis] for axis in axes]))
        self._widen()
        if self._parts.keys().isdisjoint(places):
            return self.before, part.entries
        rest = self._rest_of(part)
        rows = [self._row(numbers) for numbers in places]
        first = sum(bound is not None for bound in part.bounds[: axes[0]])
        stacked: Tensor = call("stack", [call("getitem", row, rest) for row in rows] if rest else rows, first)
        extents = [len(wanted[axis]) for axis in axes if part.bounds[axis] is not None]
        kept = stacked.spec.known_shape
        return call("reshape", stacked, (*kept[:first], *extents, *kept[first + 1 :])), (...,)

    def _numbers_of(self, part: Part) -> tuple[int, ...] | None:
        """The number of the one among these, once they are wide, in which a part lies; None where there is no such."""
        numbers = iter(part.numbers)
        mine = list[int]()
        for bound, wanted in zip(self.bounds, part.bounds, strict=True):
            number = next(numbers) if wanted is None else None
            if bound is None:
                if number is None:
                    return None
                mine.append(number)
        return tuple(mine)

    def _rest_of(self, part: Part) -> tuple[Any, ...]:
        """The index of a part in the one in which it lies."""
        return tuple([e for bound, e in zip(self.bounds, part.entries, strict=True) if bound is not None])

    def _widen(self) -> None:
        """Let parts that are windows of rows be the rows, with what else was in them before."""
        shape = self.before.spec.known_shape
        full = tuple([bound and (0, n - 1, 1) for bound, n in zip(self.bounds, shape, strict=True)])
        windows, inside = self._parts, tuple([e for e in _index(self.bounds, self.bounds) if isinstance(e, slice)])
        if full == self.bounds:
            return
        self._parts, self.bounds = {}, full
        for numbers, value in windows.items():
            row = call("assigned", self._row(numbers), inside, _tensor(value))
            self._parts[numbers] = (row.op, row.value_index)

    def _row(self, numbers: tuple[int, ...]) -> Tensor:
        """The present value of a part."""
        found = self._parts.get(numbers)
        row: Tensor = call("getitem", self.before, _index(self.bounds, numbers)) if found is None else _tensor(found)
        return row

    def whole(self) -> Tensor:
        """The array with all of them, made by operations that nobody holds."""
        numbers = sorted(self._parts)
        if len(numbers) == 1:
            return self._assigned(numbers[0], _tensor(self._parts[numbers[0]]))
        first = self.bounds.index(None)
        stacked: Tensor = call("stack", [_tensor(self._parts[places]) for places in numbers], first)
        box = _box(numbers)
        if box is None and all(bound == (0, n - 1, 1) for bound, n in self._others()):
            return call("with_parts", self.before, first, numbers, stacked)  # type: ignore[no-any-return]
        if box is None:
            return self._assigned([list(axis) for axis in zip(*numbers, strict=True)], stacked)
        if len(box) > 1:
            kept = stacked.spec.known_shape
            stacked = call("reshape", stacked, (*kept[:first], *map(len, box), *kept[first + 1 :]))
        extents = [n for n, bound in zip(self.before.spec.known_shape, self.bounds, strict=True) if bound is None]
        return self._assigned(
            [slice(None) if len(r) == n else slice(r.start, r.stop) for r, n in zip(box, extents, strict=True)], stacked
        )

    def _others(self) -> Iterator[tuple[Bound, int]]:
        """The bounds along the axes without numbers, and their extents."""
        extents = self.before.spec.known_shape
        return ((bound, n) for bound, n in zip(self.bounds, extents, strict=True) if bound is not None)

    def _assigned(self, numbers: Sequence[Any], value: Tensor) -> Tensor:
        old = self.before
        new: Tensor = call("assigned", old, _index(self.bounds, numbers), value)
        return call("identity_tensor", new) if new is old else new


def _tensor(value: Value) -> Tensor:
    op, number = value
    return op.outputs[number]


def _index(bounds: Sequence[Bound | None], numbers: Sequence[Any]) -> tuple[Any, ...]:
    """The index with these in the places of the numbers."""
    return tuple(_entries(bounds, iter(numbers)))


def _entries(bounds: Sequence[Bound | None], numbers: Iterator[Any]) -> Iterator[Any]:
    for bound in bounds:
        if bound is None:
            yield next(numbers)
            continue
        numbers_along = _numbers(bound)
        stop = numbers_along.stop
        yield slice(numbers_along.start, None if stop < 0 else stop, numbers_along.step)


def _numbers(bound: Bound) -> range:
    first, last, step = bound
    return range(first, last + (1 if step > 0 else -1), step)


def _box(numbers: Sequence[tuple[int, ...]]) -> list[range] | None:
    """The range along each axis where sorted numbers are all those between; None where one is missing."""
    ranges = [range(min(axis), max(axis) + 1) for axis in zip(*numbers, strict=True)]
    return ranges if math.prod(map(len, ranges)) == len(numbers) else None
