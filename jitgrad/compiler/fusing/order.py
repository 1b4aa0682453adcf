"""The order in which a plan's steps run, another than fusion's where that needs much less memory; which steps there are
is fusion's decision. It follows from the sizes of values, so it is part of freezing, as the cuts of kernels are.

Fusion gives steps in the order of the program, which is near the best for most: a gradient uses values up in the
reverse order of making them. A program that makes many large values first and sums each up later needs them all at
once; run as soon as they can, the sums free them one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from jitgrad.compiler.fusing.buffers import aligned
from jitgrad.compiler.fusing.groups import Group, Plan, Step
from jitgrad.compiler.fusing.nodes import Factor, Nested
from jitgrad.compiler.symbols import most
from jitgrad.records import NamedTuple, dataclass

# Steps that follow one another in the program often share values in cache, so another order must save a tenth, and
# more than fits in a processor's own caches.
_WORTH = 0.9
_CACHED_BYTES = 1 << 20
_MOST_STEPS = 512


@dataclass(frozen=True, slots=True)
class Need:
    """What a step reads and writes of the cluster's own memory."""

    reads: frozenset[int]
    writes: frozenset[int]
    touched: frozenset[int]


class Needs(NamedTuple):
    """What each step needs, and of each value the first step and the last that need it, as they stand."""

    steps: tuple[Need, ...]
    spans: tuple[tuple[int, int, int], ...]


def needs_of(plan: Plan, outside: Collection[int]) -> Needs | None:
    """What the steps need; None where the order of the steps stays.

    ``outside`` are the cluster's inputs and outputs, whose memory is not the cluster's own. Steps that check positions
    stay in order: the first position out of bounds is the one that is reported. So do loops, which may check some, and
    factors.
    """
    if len(plan.steps) > _MOST_STEPS or any(_checks_positions(step) for step in plan.steps):
        return None
    roots = {plan.aliases.get(v, v) for v in outside}
    steps = tuple([_need(plan, step, roots) for step in plan.steps])
    return Needs(steps, _spans(steps, range(len(steps))))


def order_steps(needs: Needs, nbytes: Callable[[int], int]) -> Sequence[int]:
    """The numbers of the steps in the order that keeps least alive, where that saves enough; else as they stand.

    ``nbytes`` gives the bytes of a value, of a partial result those of one part.
    """
    sizes = {v: aligned(nbytes(v)) for v, _, _ in needs.spans}
    given = range(len(needs.steps))
    before = _most(needs.spans, sizes, len(given))
    if before <= _CACHED_BYTES:
        return given
    order = _schedule(needs.steps, sizes)
    return order if _most(_spans(needs.steps, order), sizes, len(given)) <= _WORTH * before else given


def _checks_positions(step: Step) -> bool:
    if isinstance(step, Group):
        return any(placed.node.table is not None for placed in step.nodes)
    return isinstance(step, Nested | Factor)


def _need(plan: Plan, step: Step, outside: Collection[int]) -> Need:
    if not isinstance(step, Group):
        reads, writes = set(step.reads), set(step.values)
    else:
        writes = set(step.stored) | set(step.partials.values())
        reads = {v for placed in step.nodes for v in placed.node.reads} - {p.node.value for p in step.nodes}
    read = frozenset(plan.aliases.get(v, v) for v in reads).difference(outside)
    written = frozenset(plan.aliases.get(v, v) for v in writes).difference(outside)
    return Need(read, written, read | written)


def _spans(needs: Sequence[Need], order: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """The values that steps need, with the places of the first and the last of these in an order."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, number in enumerate(order):
        for v in needs[number].touched:
            first.setdefault(v, place)
            last[v] = place
    return tuple([(v, place, last[v]) for v, place in first.items()])


def _most(spans: Sequence[tuple[int, int, int]], nbytes: Mapping[int, int], count: int) -> int:
    """The most bytes alive at one of so many steps."""
    changes = [0] * (count + 1)
    for v, first, last in spans:
        changes[first] += nbytes[v]
        changes[last + 1] -= nbytes[v]
    alive: int = most(*itertools.accumulate(changes))
    return alive


def _schedule(needs: Sequence[Need], nbytes: Mapping[int, int]) -> tuple[int, ...]:
    """Of the steps that can run next always the one that makes least and frees most; of equals the earliest."""
    makers = {v: number for number, need in enumerate(needs) for v in need.writes}
    waits = [{makers[v] for v in need.reads if v in makers} for need in needs]
    followers: list[list[int]] = [[] for _ in needs]
    for number, before in enumerate(waits):
        for earlier in before:
            followers[earlier].append(number)
    growth = _Growth(needs, nbytes)
    ready = [number for number, before in enumerate(waits) if not before]
    order: list[int] = []
    while ready:
        number = min(ready, key=growth.key)
        ready.remove(number)
        order.append(number)
        growth.done(number)
        for follower in followers[number]:
            waits[follower].remove(number)
            if not waits[follower]:
                ready.append(follower)
    return tuple(order)


class _Growth:
    """How many more bytes are alive after a step than before, as steps are done."""

    def __init__(self, needs: Sequence[Need], nbytes: Mapping[int, int]) -> None:
        self._needs = needs
        self._nbytes = nbytes
        self._left: dict[int, set[int]] = {}
        for number, need in enumerate(needs):
            for v in need.touched:
                self._left.setdefault(v, set()).add(number)
        self._bytes = [sum([nbytes[v] for v in need.writes]) for need in needs]
        for v, left in self._left.items():
            self._free(v, left)

    def key(self, number: int) -> tuple[int, int]:
        """What steps are compared by."""
        return self._bytes[number], number

    def done(self, number: int) -> None:
        """The step has run: a value that it leaves to one more step is freed by that."""
        for v in self._needs[number].touched:
            left = self._left[v]
            left.remove(number)
            self._free(v, left)

    def _free(self, v: int, left: set[int]) -> None:
        if len(left) == 1:
            [last] = left
            self._bytes[last] -= self._nbytes[v]
