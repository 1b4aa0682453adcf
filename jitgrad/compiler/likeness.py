"""Likeness of parts: relations between the extents of two graphs or programs, and between the params of two operations.
What is made of them is not said here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jitgrad.compiler.constants import Array, is_splat
from jitgrad.keys import frozen
from jitgrad.opdef import Contract, Elementwise, OpDef, Reduce
from jitgrad.records import NamedTuple

EXACT = 64
"""Extents up to this are part of a pattern: some products of small matrices are loops, some sums are unrolled."""
# Ops that move elements without looking at extents: an equal shape before and after each is equal under any renaming.
MOVES = frozenset(("broadcast_to", "transpose", "expand_dims", "squeeze", "flip"))
SHAPES = ("shape", "start", "stop")
_NAMED = frozenset((0, 1, 2, 3, 4))

Shape = tuple[int, ...]
"""Of slices that go backwards, None stands where they stop."""


class UnlikeError(Exception):
    """Two programs, or two graphs, are not alike."""


class Extents:
    """The relation between the extents of two programs: one to one, and equal up to `EXACT`."""

    def __init__(self) -> None:
        self._there: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._shapes: dict[Shape, Shape] = {}

    def enter(self, a: Shape, b: Any) -> None:
        """Two shapes that stand at the same place; UnlikeError where that contradicts what was entered, and for a shape
        that is not known.
        """
        known = self._shapes.get(a)
        if known is None:
            known = self._shapes[a] = self._entered(a, b)
        if known != b:
            raise UnlikeError

    def _entered(self, a: Shape, b: Any) -> Shape:
        if type(b) is not tuple or len(a) != len(b):
            raise UnlikeError
        for m, n in zip(a, b, strict=True):
            if m is None or n is None or m <= EXACT or n <= EXACT:
                if m != n:
                    raise UnlikeError
            elif self._there.setdefault(m, n) != n or self._back.setdefault(n, m) != m:
                raise UnlikeError
        entered: Shape = b
        return entered

    def shape(self, a: Shape) -> Shape:
        """The shape that stands for one of the first program; UnlikeError for an extent that was not entered."""
        found = self._shapes.get(a)
        if found is None:
            there = self._there
            try:
                found = self._shapes[a] = tuple([n if n is None or n <= EXACT else there[n] for n in a])
            except KeyError:
                raise UnlikeError from None
        return found

    def then(self, further: Extents) -> Extents:
        """This relation and a further one, from the second program to a third."""
        if self.is_identity:
            return further
        made = Extents()
        for m, n in self._there.items():
            made.enter((m,), further.shape((n,)))
        return made

    @property
    def large(self) -> Mapping[int, int]:
        """The extents above `EXACT` that were entered, with those that they stand for."""
        return self._there

    @property
    def is_identity(self) -> bool:
        """Whether each extent stands for itself."""
        return all(m == n for m, n in self._there.items())


def large(shape: Shape) -> set[int]:
    """The extents of a shape above `EXACT`."""
    return {n for n in shape if n is not None and n > EXACT}


def is_uniform(op: OpDef) -> bool:
    """Whether an op infers the same for all extents: which of them are equal is all that it asks."""
    return isinstance(op.kind, Elementwise | Reduce | Contract) or op.name in MOVES


def is_named(number: Any) -> bool:
    """Whether a rule, or a kernel, may know a number: a small integer, or what is not finite."""
    value = abs(number)
    return value in _NAMED or not math.isfinite(value)


def shapes_in(params: Mapping[str, Any]) -> list[tuple[str, Shape]]:
    """The params that are shapes, or where slices start and stop, by name."""
    given = [(name, params[name]) for name in SHAPES if name in params]
    return [(name, shape) for name, shape in given if type(shape) is tuple and all(map(_is_shape, shape))]


def _is_shape(n: Any) -> bool:
    return type(n) is int or n is None


def holds_large(value: Any) -> bool:
    """Whether a param has a number in it that may be an extent, or is of a kind that is not looked into."""
    if isinstance(value, tuple | list):
        return any(map(holds_large, value))
    if isinstance(value, int):
        return abs(value) > EXACT
    if isinstance(value, float):
        return not is_named(value)
    return not (value is None or isinstance(value, str | np.dtype))


class Params(NamedTuple):
    """What the params of an operation are compared by: shapes, an array of constants, stand-ins for all others."""

    shapes: tuple[tuple[str, Shape], ...]
    array: Array | None
    others: tuple[tuple[str, Any, Any], ...]

    @property
    def is_fixed(self) -> bool:
        """Whether like operations have the very same params."""
        return self.array is None and not any(large(shape) for _, shape in self.shapes)

    def compare(self, other: Mapping[str, Any], extents: Extents) -> None:
        """UnlikeError unless the other params are like these; elements of arrays, and numbers, are not compared."""
        if len(self.shapes) + len(self.others) + (self.array is not None) != len(other):
            raise UnlikeError
        for name, value, stand_in in self.others:
            if name not in other or ((given := other[name]) is not value and frozen(given) != stand_in):
                raise UnlikeError
        for name, shape in self.shapes:
            extents.enter(shape, other.get(name))
        if self.array is not None:
            _compare_kinds(self.array, other.get("value"))


def params_of(params: Mapping[str, Any]) -> Params | None:
    """What params are compared by; None where there are none."""
    if not params:
        return None
    shapes = shapes_in(params)
    value = params.get("value")
    array = value if isinstance(value, np.ndarray) else None
    taken = {name for name, _ in shapes} | ({"value"} if array is not None else set())
    others = [(name, value, frozen(value)) for name, value in params.items() if name not in taken]
    return Params(tuple(shapes), array, tuple(others))


def _compare_kinds(a: Array, b: Any) -> None:
    """UnlikeError unless both are numbers, or both arrays, of one dtype; numbers that are not real must be equal."""
    if not isinstance(b, np.ndarray) or b.dtype != a.dtype or is_splat(a) != is_splat(b):
        raise UnlikeError
    if a.dtype.kind not in "biuf" and (a.shape != b.shape or a.tobytes() != b.tobytes()):
        raise UnlikeError
