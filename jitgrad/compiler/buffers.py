"""The buffer plan: where each value of a cluster lives while its steps run; it allocates nothing itself.

Packing intervals of different sizes with the least room is NP-hard. A plan made step by step is at its bound for most
programs and costs next to nothing; where it is not, the largest values are placed first ("greedy by size": Pisarchyk
and Lee, Efficient Memory Management for Deep Neural Net Inference, arXiv:2001.03288), and then, for some rounds, those
that ended up on top are moved to the front of the order.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

ALIGNMENT = 64

# A plan within this of its bound is good enough; a better one is sought for at most so many looks at a placed value.
_NEAR = 1.02
_MOST_LOOKS = 60_000


class Lifetime(NamedTuple):
    """A temporary: its bytes, the first step that writes it and the last that reads it."""

    key: object
    nbytes: int
    first: int
    last: int


class ArenaPlan(NamedTuple):
    """Offsets of the temporaries in one arena, its size, and the most bytes alive at once, which any arena needs.

    ``lent`` are temporaries in the memory of an output that is written later, with the key of that output; they take
    no room in the arena.
    """

    offsets: Mapping[object, int]
    nbytes: int
    bound: int
    lent: Mapping[object, object] = MappingProxyType({})

    @property
    def ratio(self) -> float:
        """The arena's size over the most bytes alive at once; 1 without temporaries."""
        return self.nbytes / self.bound if self.bound else 1.0


def aligned(nbytes: int) -> int:
    """The next multiple of a cache line."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def plan_memory(temporaries: Sequence[Lifetime], outputs: Sequence[Lifetime]) -> ArenaPlan:
    """Lay temporaries in outputs where they fit, the others in an arena.

    An output's memory is there from the start of a call; until its first step writes it, it serves for temporaries.
    """
    lent = lend_outputs(temporaries, outputs)
    plan = plan_arena([item for item in temporaries if item.key not in lent])
    return plan._replace(bound=most_alive(temporaries), lent=lent) if lent else plan


def lend_outputs(temporaries: Sequence[Lifetime], outputs: Sequence[Lifetime]) -> dict[object, object]:
    """Temporaries that fit in an output and end before it is written, by their keys, with the key of the output.

    The largest first, each in the smallest output where no other lies at that time.
    """
    by_size = sorted(outputs, key=lambda output: output.nbytes)
    lent: dict[object, object] = {}
    guests: dict[object, list[Lifetime]] = {output.key: [] for output in outputs}
    for item in sorted(temporaries, key=lambda item: -item.nbytes):
        for output in by_size:
            fits = item.nbytes <= output.nbytes and item.last < output.first
            if fits and not any(_meet(item, guest) for guest in guests[output.key]):
                guests[output.key].append(item)
                lent[item.key] = output.key
                break
    return lent


def _meet(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def plan_arena(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Place temporaries so that those alive together do not overlap, in little more than the bound."""
    bound = most_alive(lifetimes)
    best = _place_by_step(lifetimes, bound)
    if best.ratio <= _NEAR:
        return best
    for order in _ORDERS:
        best = _improved(sorted(lifetimes, key=order), best)
        if best.ratio <= _NEAR:
            break
    return best


def place_in_order(lifetimes: Sequence[Lifetime], bound: int) -> ArenaPlan:
    """Place temporaries in the given order, each in the smallest gap between those that live with it."""
    placed: list[_Placed] = []
    offsets: dict[object, int] = {}
    end = 0
    for item in lifetimes:
        nbytes = aligned(item.nbytes)
        offset = _smallest_gap(placed, item, nbytes)
        bisect.insort(placed, (offset, offset + nbytes, item.first, item.last))
        offsets[item.key] = offset
        end = max(end, offset + nbytes)
    return ArenaPlan(offsets, end, bound)


def _smallest_gap(placed: Sequence[_Placed], item: Lifetime, nbytes: int) -> int:
    """Where the item fits best below the top of what lives with it, else that top; ``placed`` is in order."""
    first, last = item.first, item.last
    best = least = -1
    top = 0
    for start, end, other_first, other_last in placed:
        if other_first <= last and first <= other_last:
            room = start - top
            if room >= nbytes and (best < 0 or room < least):
                best, least = top, room
            if end > top:
                top = end
    return top if best < 0 else best


def _place_by_step(lifetimes: Sequence[Lifetime], bound: int) -> ArenaPlan:
    """Place temporaries as steps begin, the largest of a step first; linear in their number times that of gaps."""
    gaps = _Gaps()
    offsets: dict[object, int] = {}
    ending: list[tuple[int, int, int]] = []
    for item in sorted(lifetimes, key=lambda item: (item.first, -item.nbytes)):
        while ending and ending[0][0] < item.first:
            _, offset, nbytes = heapq.heappop(ending)
            gaps.give_back(offset, nbytes)
        offsets[item.key] = gaps.take(aligned(item.nbytes))
        heapq.heappush(ending, (item.last, offsets[item.key], aligned(item.nbytes)))
    return ArenaPlan(offsets, gaps.end, bound)


def _improved(order: list[Lifetime], best: ArenaPlan) -> ArenaPlan:
    """The best of some plans, each made after moving what was on top of the one before to the front."""
    rounds = max(1, _MOST_LOOKS // max(1, len(order) ** 2))
    for _ in range(rounds):
        plan = place_in_order(order, best.bound)
        if plan.nbytes < best.nbytes:
            best = plan
        if best.ratio <= _NEAR:
            break
        order = sorted(order, key=lambda item: plan.offsets[item.key] + aligned(item.nbytes) != plan.nbytes)
    return best


_Placed = tuple[int, int, int, int]
"""A temporary that has its place: offset, end, first and last step."""

_ORDERS: tuple[Callable[[Lifetime], float], ...] = (
    lambda item: -item.nbytes,
    lambda item: -item.nbytes * (item.last - item.first + 1),
    lambda item: item.first - item.last,
)


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


def most_alive(lifetimes: Iterable[Lifetime]) -> int:
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
