"""Reads of one array at places that differ by an offset, one for each index along an axis: a stack of its slices.

Such a read is one load whose offset is chosen by the index, in place of a load per slice of which all but one are
thrown away. It is found here; lowering writes it.
"""

from __future__ import annotations

from dataclasses import replace

from jitgrad.compiler.fusing.accesses import Leaf, Operand
from jitgrad.opdef import AxisIndex, Guard
from jitgrad.records import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """``leaves`` are in the order of the index along ``axis``; leaf k is read below ``ends[k]``, where its other guards
    hold.
    """

    axis: int
    leaves: tuple[Leaf, ...]
    ends: tuple[int, ...]

    def __hash__(self) -> int:
        return hash((self.axis, self.leaves))  # its ends may be symbols


def find_choice(operand: Operand, shape: tuple[int, ...]) -> Choice | None:
    """The choice that an operand of this shape is; None for any other operand."""
    first, *rest = operand.leaves
    if not rest or not isinstance(first.source, int):
        return None
    if any(leaf.source != first.source or _directions(leaf) != _directions(first) for leaf in rest):
        return None
    for guard in first.guards:
        found = _along(operand, guard.axis, shape[guard.axis])
        if found is not None:
            return found
    return None


def _directions(leaf: Leaf) -> tuple[AxisIndex, ...]:
    return tuple(replace(index, offset=0) if index.divisor == 1 else index for index in leaf.dims)


def _along(operand: Operand, axis: int, extent: int) -> Choice | None:
    """The choice by one axis, whose indices the leaves' guards share out among them; None where they do not."""
    guards = [next((g for g in leaf.guards if g.axis == axis), None) for leaf in operand.leaves]
    pairs = [(max(g.lo, 0), min(g.hi, extent), leaf) for g, leaf in zip(guards, operand.leaves, strict=True) if g]
    pairs.sort(key=lambda pair: pair[:2])
    ends = [0, *(hi for _, hi, _ in pairs)]
    if len(pairs) < len(guards) or [lo for lo, _, _ in pairs] != ends[:-1] or ends[-1] != extent:
        return None
    return Choice(axis, tuple(_without(leaf, axis) for _, _, leaf in pairs), tuple(ends[1:]))


def _without(leaf: Leaf, axis: int) -> Leaf:
    return replace(leaf, guards=tuple(g for g in leaf.guards if g.axis != axis))


def bounds_along(choice: Choice, shape: tuple[int, ...]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Per axis on which some leaf has a guard, where each leaf is read."""
    axes = sorted({g.axis for leaf in choice.leaves for g in leaf.guards})
    return {axis: tuple(_bound(leaf.guards, axis, shape[axis]) for leaf in choice.leaves) for axis in axes}


def _bound(guards: tuple[Guard, ...], axis: int, extent: int) -> tuple[int, int]:
    return next(((max(g.lo, 0), min(g.hi, extent)) for g in guards if g.axis == axis), (0, extent))
