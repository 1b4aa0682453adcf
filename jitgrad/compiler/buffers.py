"""The buffer plan: where each value of a cluster lives while its steps run; it allocates nothing itself."""

from __future__ import annotations

import bisect
import heapq
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
    """Place temporaries step by step, each in the smallest gap that takes it: those alive together do not overlap.

    Of those that begin at the same step the largest is placed first. Linear in their number times that of gaps.
    """
    gaps = _Gaps()
    offsets: dict[object, int] = {}
    ending: list[tuple[int, int, int]] = []
    for item in sorted(lifetimes, key=lambda item: (item.first, -item.nbytes)):
        while ending and ending[0][0] < item.first:
            _, offset, nbytes = heapq.heappop(ending)
            gaps.give_back(offset, nbytes)
        offsets[item.key] = gaps.take(aligned(item.nbytes))
        heapq.heappush(ending, (item.last, offsets[item.key], aligned(item.nbytes)))
    return ArenaPlan(offsets, gaps.end, _most_alive(lifetimes))


class _Gaps:
    """The free parts of an arena below ``end``, in order of their offsets, no two of them adjacent."""

    def __init__(self) -> None:
        self.end = 0
        self._starts: list[int] = []
        self._sizes: list[int] = []

    def take(self, nbytes: int) -> int:
        """An offset with room for ``nbytes``: the start of the smallest gap that has it, else the arena grows."""
        fitting = [(size, k) for k, size in enumerate(self._sizes) if size >= nbytes]
        if fitting:
            size, k = min(fitting)
            offset = self._starts[k]
            self._replace(k, k + 1, offset + nbytes, size - nbytes)
            return offset
        is_open = bool(self._starts) and self._starts[-1] + self._sizes[-1] == self.end
        offset = self._starts[-1] if is_open else self.end
        if is_open:
            self._replace(len(self._starts) - 1, len(self._starts), 0, 0)
        self.end = offset + nbytes
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        """Make a part free again, joined with the gaps that it touches."""
        k = bisect.bisect(self._starts, offset)
        low, high = k, k
        if k > 0 and self._starts[k - 1] + self._sizes[k - 1] == offset:
            low, offset, nbytes = k - 1, self._starts[k - 1], nbytes + self._sizes[k - 1]
        if k < len(self._starts) and self._starts[k] == offset + nbytes:
            high, nbytes = k + 1, nbytes + self._sizes[k]
        self._replace(low, high, offset, nbytes)

    def _replace(self, low: int, high: int, offset: int, nbytes: int) -> None:
        self._starts[low:high] = [offset] if nbytes else []
        self._sizes[low:high] = [nbytes] if nbytes else []


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
