"""The buffer plan: where each value of a cluster lives while its steps run; it allocates nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A temporary: its bytes, the first step that writes it and the last that reads it."""

    key: object
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class ArenaPlan:
    """Offsets of the temporaries in one arena, its size, and the least any plan could need."""

    offsets: Mapping[object, int]
    nbytes: int
    bound: int


def aligned(nbytes: int) -> int:
    """The next multiple of a cache line."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def plan_arena(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Place temporaries so that those alive at the same step do not overlap: largest first, at the lowest free
    offset.
    """
    placed: list[tuple[Lifetime, int]] = []
    offsets: dict[object, int] = {}
    for item in sorted(lifetimes, key=lambda item: -item.nbytes):
        offset = 0
        for other, start in sorted(
            ((o, s) for o, s in placed if o.first <= item.last and item.first <= o.last), key=lambda pair: pair[1]
        ):
            if offset + item.nbytes <= start:
                break
            offset = max(offset, start + aligned(other.nbytes))
        offsets[item.key] = offset
        placed.append((item, offset))
    total = max((start + aligned(item.nbytes) for item, start in placed), default=0)
    return ArenaPlan(offsets, total, _most_alive(lifetimes))


def _most_alive(lifetimes: Iterable[Lifetime]) -> int:
    """The largest number of bytes alive at one step: no plan can do with less."""
    events: dict[int, int] = {}
    for item in lifetimes:
        events[item.first] = events.get(item.first, 0) + aligned(item.nbytes)
        events[item.last + 1] = events.get(item.last + 1, 0) - aligned(item.nbytes)
    alive = most = 0
    for _, change in sorted(events.items()):
        alive += change
        most = max(most, alive)
    return most
