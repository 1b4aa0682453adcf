"""Pieces: what was assigned to numbered parts of an array (``out[i] = x``, ``table[i, j] = x``, ``rows[:, k] = x``) and is
not put together yet.

A loop of Python's that fills an array would else make a new array for each step, of the one before and of the part. The
parts are kept by their numbers in place of that: who reads one gets what was assigned, and the whole is made once, of
all parts side by side, when something needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jitgrad.operators import call
from jitgrad.records import NamedTuple
from jitgrad.sources import user_source

if TYPE_CHECKING:
    from jitgrad.graph import Operation, Tensor

Value = tuple["Operation", int]  # an output of an operation: the object in its place may be another one later
Bound = tuple[Any, Any, int]


class Part(NamedTuple):
    """Which part: numbers along the axes that it has no more, bounds along the others (None in the place of a number)."""

    bounds: tuple[Bound | None, ...]
    numbers: tuple[int, ...]

    @property
    def index(self) -> tuple[Any, ...]:
        """As it is written in brackets."""
        return _index(self.bounds, self.numbers)


def part_of(shape: Sequence[int | None] | None, slices: Sequence[slice], drop: Sequence[int]) -> Part | None:
    """The part that slices choose, of which those along ``drop`` choose one element; None for one without numbers, with
    numbers of axes that are not neighbours, or of unknown extents.
    """
    if not drop or shape is None or None in shape or tuple(drop) != tuple(range(drop[0], drop[0] + len(drop))):
        return None
    chosen = [range(n)[s] for n, s in zip(shape, slices, strict=True) if n is not None]
    if not all(map(len, chosen)):
        return None
    bounds = tuple([None if axis in drop else (r[0], r[-1], r.step) for axis, r in enumerate(chosen)])
    return Part(bounds, tuple([chosen[axis][0] for axis in drop]))


class Pieces:
    """Parts of one kind, by their numbers, of an array that was ``old`` before: no two have an element in common."""

    __slots__ = ("bounds", "here", "old", "parts", "shape")

    def __init__(self, old: Tensor, bounds: tuple[Bound | None, ...], here: Any) -> None:
        self.old: Value = (old.op, old.value_index)
        self.shape: tuple[int, ...] = old.spec.known_shape
        self.bounds = bounds
        self.here = here
        self.parts: dict[tuple[int, ...], Value] = {}

    def put(self, numbers: tuple[int, ...], part: Tensor) -> None:
        """Let the part of these numbers be ``part``."""
        self.here = self.here._replace(source=user_source())
        self.parts[numbers] = (part.op, part.value_index)

    def read(self, part: Part) -> tuple[Tensor, tuple[Any, ...]] | None:
        """What holds a part, and its index there; None where the whole does."""
        found = self.parts.get(part.numbers)
        if part.bounds == self.bounds:
            return (_tensor(self.old), part.index) if found is None else (_tensor(found), (...,))
        return None

    def whole(self) -> Tensor:
        """The array with all its parts."""
        old = _tensor(self.old)
        numbers = sorted(self.parts)
        if len(numbers) == 1:
            new = call("assigned", old, _index(self.bounds, numbers[0]), _tensor(self.parts[numbers[0]]))
            return _fresh(new, old)
        first = self.bounds.index(None)
        stacked = call("stack", [_tensor(self.parts[place]) for place in numbers], first)
        box = _box(numbers)
        if box is None:
            return _fresh(call("assigned", old, _index(self.bounds, [list(axis) for axis in zip(*numbers, strict=True)]), stacked), old)
        extents = [b - a for a, b in box]
        kept = stacked.spec.known_shape
        if len(extents) > 1:
            stacked = call("reshape", stacked, (*kept[:first], *extents, *kept[first + 1 :]))
        return _fresh(call("assigned", old, _index(self.bounds, [slice(a, b) for a, b in box]), stacked), old)


def _tensor(value: Value) -> Tensor:
    op, number = value
    return op.outputs[number]


def _fresh(new: Tensor, old: Tensor) -> Tensor:
    """What nobody holds: not the array of before, where nothing was assigned."""
    made: Tensor = call("identity_tensor", new) if new is old else new
    return made


def _index(bounds: Sequence[Bound | None], numbers: Sequence[Any]) -> tuple[Any, ...]:
    """The index with these in the places of the numbers."""
    return tuple(_entries(bounds, iter(numbers)))


def _entries(bounds: Sequence[Bound | None], numbers: Iterator[Any]) -> Iterator[Any]:
    for bound in bounds:
        if bound is None:
            yield next(numbers)
            continue
        first, last, step = bound
        stop = last + (1 if step > 0 else -1)
        yield slice(first, None if stop < 0 else stop, step)


def _box(numbers: Sequence[tuple[int, ...]]) -> list[tuple[int, int]] | None:
    """First and end along each axis where sorted numbers are all those between; None where one is missing."""
    ends = [(min(axis), max(axis) + 1) for axis in zip(*numbers, strict=True)]
    return ends if math.prod(b - a for a, b in ends) == len(numbers) else None
