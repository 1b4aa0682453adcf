"""Likeness of parts: relations between the extents of two graphs or programs, and between the params of two operations.
What is made of them is not said here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jitgrad.compiler.constants import Array, is_splat
from jitgrad.keys import frozen
from jitgrad.opdef import Contract, Elementwise, Fill, OpDef, Pairs, Reduce, View
from jitgrad.program import Program
from jitgrad.records import NamedTuple

EXACT, PLAIN_EXACT = 64, 8
"""Extents up to this are part of a pattern: some products of small matrices are loops, windows are where they are;
where all ops are plain, up to the second only, above which no rule and no stage knows an extent.
"""
# Ops that move elements without looking at extents: an equal shape before and after each is equal under any renaming.
MOVES = frozenset(("broadcast_to", "transpose", "expand_dims", "squeeze", "flip"))
_PLAIN = (MOVES - {"flip"}) | {"placeholder"}
SHAPES = ("shape", "start", "stop")
_NAMED = frozenset((0, 1, 2, 3, 4))

Shape = tuple[int, ...]
"""Of slices that go backwards, None stands where they stop."""


class UnlikeError(Exception):
    """Two programs, or two graphs, are not alike."""


def is_plain(op: OpDef, rank: int) -> bool:
    """Whether rules and stages ask for no more than which extents of an op are equal, and which are small, as
    `PLAIN_EXACT` has it; ``rank`` is that of what it makes. Not so products of many matrices, which may be tiny,
    factorizations, and what moves elements by a number of places, or to places that are computed.
    """
    if isinstance(op.kind, Contract):
        return rank <= 2
    return isinstance(op.kind, Elementwise | Reduce | View | Pairs | Fill) or op.name in _PLAIN


def exact_among(ops: Iterable[tuple[OpDef, int]]) -> int:
    """Up to where extents are part of the pattern of some ops, each with the rank of what it makes."""
    return PLAIN_EXACT if all(is_plain(op, rank) for op, rank in ops) else EXACT


def exact_in(program: Program) -> int:
    """The same for those of a program, found once."""
    specs, found = program.specs, program._cache.get("exact")
    if found is None:
        made = [ins for ins in program.instructions if ins.outputs]
        found = program._cache["exact"] = exact_among((ins.op, len(specs[ins.outputs[0]].known_shape)) for ins in made)
    return int(found)


class Extents:
    """The relation between the extents of two programs: one to one, and equal up to ``exact``."""

    def __init__(self, exact: int) -> None:
        self.exact = exact
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
            if m is None or n is None or m <= self.exact or n <= self.exact:
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
                found = self._shapes[a] = tuple([n if n is None or n <= self.exact else there[n] for n in a])
            except KeyError:
                raise UnlikeError from None
        return found

    def then(self, further: Extents) -> Extents:
        """This relation and a further one, from the second program to a third; UnlikeError where they contradict."""
        if any(m <= self.exact and m != n for m, n in further.large.items()):
            raise UnlikeError
        if self.is_identity and self.exact == further.exact:
            return further
        made = Extents(self.exact)
        for m, n in self._there.items():
            made.enter((m,), further.shape((n,)))
        return made

    @property
    def large(self) -> Mapping[int, int]:
        """The extents that are no part of the pattern and were entered, with those that they stand for."""
        return self._there

    @property
    def is_identity(self) -> bool:
        """Whether each extent stands for itself."""
        return all(m == n for m, n in self._there.items())


def large(shape: Shape, exact: int) -> set[int]:
    """The extents of a shape that are no part of a pattern."""
    return {n for n in shape if n is not None and n > exact}


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


def holds_large(value: Any, exact: int) -> bool:
    """Whether a param has a number in it that may be an extent that is no part of a pattern, or is of a kind that is
    not looked into.
    """
    if isinstance(value, tuple | list):
        return any(holds_large(item, exact) for item in value)
    if isinstance(value, int):
        return abs(value) > exact
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
        """Whether like operations have the very same params, whatever is part of the pattern."""
        return self.array is None and not any(large(shape, PLAIN_EXACT) for _, shape in self.shapes)

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
