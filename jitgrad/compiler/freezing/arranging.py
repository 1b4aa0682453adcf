"""Arranging: the arena plan of one shape as a plan for others. Which temporary lies on which, and which in an output,
is taken over; offsets are then sums of sizes. It plans nothing itself: fusing/buffers.py does, for the numbers at hand.

That no two overlap that live together, that guests fit in their outputs, and that the arena is as near to its bound as
it was, are asked of the sizes, which are symbols: where another shape answers otherwise, its arena is planned anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jitgrad.compiler.fusing.buffers import NEAR, ArenaPlan, Lifetime, aligned, plan_memory
from jitgrad.compiler.likeness import UnlikeError
from jitgrad.compiler.symbols import most, number

_FARTHER = 0.01  # of the bound, by which alignment may take an arena away from it


def arrange(temporaries: Sequence[Lifetime], outputs: Sequence[Lifetime]) -> ArenaPlan:
    """The plan of `plan_memory` for sizes that are symbols: its numbers are symbols, too."""
    plan = plan_memory(list(map(_at_hand, temporaries)), list(map(_at_hand, outputs)))
    _ask_of_guests(temporaries, outputs, plan.lent)
    items = {item.key: item for item in temporaries if item.key not in plan.lent}
    offsets, tops = _offsets(items, plan.offsets)
    ends = {key: offset + aligned(items[key].nbytes) for key, offset in offsets.items()}
    for below, above in _neighbours(items, plan.offsets):
        _require(ends[below] <= offsets[above])
    nbytes, bound = most(0, *[ends[key] for key in tops]), most(0, *_alive(temporaries))
    _require(nbytes <= bound * max(NEAR, plan.ratio + _FARTHER))
    return ArenaPlan({key: offsets[key] for key in plan.offsets}, nbytes, bound, plan.lent)


def _at_hand(item: Lifetime) -> Lifetime:
    return item._replace(nbytes=number(item.nbytes))


def _require(answer: Any) -> None:
    if not answer:
        raise UnlikeError


def _ask_of_guests(
    temporaries: Sequence[Lifetime], outputs: Sequence[Lifetime], lent: Mapping[object, object]
) -> None:
    """Ask whether temporaries fit in outputs that are written later."""
    rooms = {output.key: output for output in outputs}
    for item in temporaries:
        host = lent.get(item.key)
        if host is not None:
            _require(item.nbytes <= rooms[host].nbytes)
            continue
        for output in outputs:
            if item.last < output.first:
                bool(item.nbytes <= output.nbytes)  # asked: with another answer it would be a guest


def _offsets(
    items: Mapping[object, Lifetime], offsets: Mapping[object, int]
) -> tuple[dict[object, Any], list[object]]:
    """Each offset as the end of an item that lies below; and the items on which no other one lies."""
    made: dict[object, Any] = {}
    tops = dict.fromkeys(items)
    for key in sorted(items, key=lambda key: (offsets[key], aligned(number(items[key].nbytes)))):
        if offsets[key] == 0:
            made[key] = 0
            continue
        below = [k for k in made if offsets[k] + aligned(number(items[k].nbytes)) == offsets[key]]
        if not below:
            raise UnlikeError
        support = next((k for k in below if _live_together(items[k], items[key])), below[0])
        made[key] = made[support] + aligned(items[support].nbytes)
        tops.pop(support, None)
    return made, list(tops)


def _live_together(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def _neighbours(items: Mapping[object, Lifetime], offsets: Mapping[object, int]) -> dict[tuple[object, object], None]:
    """Pairs of which one lies above the other at some step, with none between."""
    order = sorted(items.values(), key=lambda item: (offsets[item.key], number(item.nbytes)))
    pairs: dict[tuple[object, object], None] = {}
    for step in {item.first for item in order}:
        alive = [item.key for item in order if item.first <= step <= item.last]
        pairs |= dict.fromkeys(itertools.pairwise(alive))
    return pairs


def _alive(items: Sequence[Lifetime]) -> list[Any]:
    """The bytes that are alive at each step at which some begin and none have to follow before others end."""
    births: dict[int, list[Any]] = {}
    deaths: dict[int, list[Any]] = {}
    for item in items:
        births.setdefault(item.first, []).append(aligned(item.nbytes))
        deaths.setdefault(item.last + 1, []).append(aligned(item.nbytes))
    alive, found = 0, []
    events = sorted({*births, *deaths})
    for step, after in zip(events, [*events, None][1:], strict=True):
        alive = sum(births.get(step, ()), alive)
        for nbytes in deaths.get(step, ()):
            alive = alive - nbytes
        if step in births and (after is None or after in deaths):
            found.append(alive)
    return found
