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

from jitgrad.records import NamedTuple

ALIGNMENT = 64

# A plan within this of its bound is good enough; a better one is sought for at most so many looks at a placed value, of
# some 60 ns each, for each order that it begins with. Where one order takes more, what it could save decides: looking
# for 64 bytes in 4,800 values took 1.6 s.
NEAR = 1.02
_MOST_LOOKS = 60_000
_LOOKS_PER_BYTE = 256


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
    by_size = sorted([(output.nbytes, number) for number, output in enumerate(outputs)])
    taken = [-1 << output.first for output in outputs]  # as bits: its own steps, all after them, and those of guests
    lent: dict[object, object] = {}
    for key, nbytes, first, last in sorted(temporaries, key=_largest_first) if outputs else ():
        steps = (2 << last) - (1 << first)
        for room, number in by_size:
            if nbytes <= room and not steps & taken[number]:
                taken[number] |= steps
                lent[key] = outputs[number].key
                break
    return lent


def _largest_first(item: Lifetime) -> int:
    return -item.nbytes


def plan_arena(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Place temporaries so that those alive together do not overlap, in little more than the bound.

    Several orders take turns, each with what was on top moved to its front: where one of them fits at once, it is not
    found after all rounds of the others.
    """
    best = _place_by_step(lifetimes)
    orders = [sorted(lifetimes, key=key) for key in _ORDERS] if best.ratio > NEAR else []
    count, spare = len(lifetimes), best.nbytes - best.bound
    looks = len(_ORDERS) * max(_MOST_LOOKS, count**2)
    if count**2 > max(_MOST_LOOKS, _LOOKS_PER_BYTE * spare):
        return best
    seen = {tuple(order) for order in orders}
    while orders and looks > 0:
        order = orders.pop(0)
        plan = place_in_order(order, best.bound)
        best = min(best, plan, key=_arena_bytes)
        if best.ratio <= NEAR:
            break
        moved = _with_top_first(order, plan)
        if (key := tuple(moved)) not in seen:  # from here on it would come round again
            seen.add(key)
            orders.append(moved)
        looks -= len(order) ** 2
    return best


def _arena_bytes(plan: ArenaPlan) -> int:
    return plan.nbytes


def _with_top_first(order: Sequence[Lifetime], plan: ArenaPlan) -> list[Lifetime]:
    """The order with what ends at the end of the arena moved to the front."""
    return sorted(order, key=lambda item: plan.offsets[item.key] + aligned(item.nbytes) != plan.nbytes)


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


def _place_by_step(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Place temporaries as steps begin, the largest of a step first; linear in their number times that of gaps."""
    gaps = _Gaps()
    offsets: dict[object, int] = {}
    ending: list[tuple[int, int, int]] = []
    alive = bound = 0
    for key, size, first, last in sorted(lifetimes, key=lambda item: (item.first, -item.nbytes)):
        while ending and ending[0][0] < first:
            _, offset, nbytes = heapq.heappop(ending)
            gaps.give_back(offset, nbytes)
            alive -= nbytes
        nbytes = aligned(size)
        alive += nbytes
        bound = max(bound, alive)
        offset = offsets[key] = gaps.take(nbytes)
        heapq.heappush(ending, (last, offset, nbytes))
    return ArenaPlan(offsets, gaps.end, bound)


_Placed = tuple[int, int, int, int]
"""A temporary that has its place: offset, end, first and last step."""

_ORDERS: tuple[Callable[[Lifetime], float], ...] = (
    lambda item: -item.nbytes,
    lambda item: -item.nbytes * (item.last - item.first + 1),
    lambda item: item.first - item.last,
)


class _Gaps:
    """The free parts of an arena below ``end``, no two adjacent: ends by their starts, and starts by their ends."""

    def __init__(self) -> None:
        self.end = 0
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        """An offset with room for ``nbytes``: the start of the smallest gap that has it, else the arena grows."""
        fitting = [(end - start, start) for start, end in self._ends.items() if end - start >= nbytes]
        if fitting:
            offset = min(fitting)[1]
            end = self._ends.pop(offset)
            if end > offset + nbytes:
                self._ends[offset + nbytes], self._starts[end] = end, offset + nbytes
            else:
                del self._starts[end]
            return offset
        offset = self._starts.pop(self.end, self.end)
        self._ends.pop(offset, None)
        self.end = offset + nbytes
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        """Make a part free again, joined with the gaps that it touches."""
        if not nbytes:
            return
        start = self._starts.pop(offset, offset)
        end = self._ends.pop(offset + nbytes, offset + nbytes)
        self._ends[start], self._starts[end] = end, start


def most_alive(lifetimes: Iterable[Lifetime]) -> int:
    """The largest number of bytes alive at one step: no plan can do with less."""
    events: dict[int, int] = {}
    for _, size, first, last in lifetimes:
        nbytes = aligned(size)
        events[first] = events.get(first, 0) + nbytes
        events[last + 1] = events.get(last + 1, 0) - nbytes
    alive = most = 0
    for _, change in sorted(events.items()):
        alive += change
        most = max(most, alive)
    return most
