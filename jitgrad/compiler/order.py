"""The order of a plan's steps, changed where that needs much less memory; which steps there are is fusion's decision.

Fusion gives steps in the order of the program, which is near the best for most: a gradient uses values up in the
reverse order of making them. A program that makes many large values first and sums each up later needs them all at
once; run as soon as they can, the sums free them one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from jitgrad.compiler.buffers import Lifetime, aligned, most_alive
from jitgrad.compiler.groups import Group, Plan, Step
from jitgrad.compiler.nodes import Nested

# Steps that follow one another in the program often share values in cache, so another order must save a tenth, and
# more than fits in a processor's own caches.
_WORTH = 0.9
_CACHED_BYTES = 1 << 20
_MOST_STEPS = 512


@dataclass(frozen=True, slots=True)
class _Need:
    """What a step reads and writes of the cluster's own memory."""

    reads: frozenset[int]
    writes: frozenset[int]
    touched: frozenset[int]


def order_steps(plan: Plan, outside: Collection[int]) -> Plan:
    """The plan with its steps in the order that keeps least alive, where that saves enough; else the plan itself.

    ``outside`` are the cluster's inputs and outputs, whose memory is not the cluster's own. Steps that check positions
    stay in order: the first position out of bounds is the one that is reported. So do loops, which may check some.
    """
    if len(plan.steps) > _MOST_STEPS or any(_checks_positions(step) for step in plan.steps):
        return plan
    roots = {plan.aliases.get(v, v) for v in outside}
    needs = [_need(plan, step, roots) for step in plan.steps]
    nbytes = {v: aligned(plan.specs[v].nbytes) for need in needs for v in need.touched}
    given = tuple(range(len(needs)))
    before = _most(needs, given, nbytes)
    if before <= _CACHED_BYTES:
        return plan
    order = _schedule(needs, nbytes)
    return _reordered(plan, order) if _most(needs, order, nbytes) <= _WORTH * before else plan


def _checks_positions(step: Step) -> bool:
    if isinstance(step, Group):
        return any(placed.node.table is not None for placed in step.nodes)
    return isinstance(step, Nested)


def _need(plan: Plan, step: Step, outside: Collection[int]) -> _Need:
    if not isinstance(step, Group):
        reads, writes = set(step.reads), set(step.values)
    else:
        writes = set(step.stored) | set(step.partials.values())
        reads = {v for placed in step.nodes for v in placed.node.reads} - {p.node.value for p in step.nodes}
    read = frozenset(plan.aliases.get(v, v) for v in reads).difference(outside)
    written = frozenset(plan.aliases.get(v, v) for v in writes).difference(outside)
    return _Need(read, written, read | written)


def _most(needs: Sequence[_Need], order: Sequence[int], nbytes: dict[int, int]) -> int:
    """The most bytes alive at a step, in an order."""
    spans: dict[int, tuple[int, int]] = {}
    for place, number in enumerate(order):
        for v in needs[number].touched:
            spans[v] = (spans.get(v, (place, place))[0], place)
    return most_alive([Lifetime(v, nbytes[v], first, last) for v, (first, last) in spans.items()])


def _schedule(needs: Sequence[_Need], nbytes: dict[int, int]) -> tuple[int, ...]:
    """Of the steps that can run next always the one that makes least and frees most; of equals the earliest."""
    makers = {v: number for number, need in enumerate(needs) for v in need.writes}
    waits = [{makers[v] for v in need.reads if v in makers} for need in needs]
    followers: list[list[int]] = [[] for _ in needs]
    for number, before in enumerate(waits):
        for earlier in before:
            followers[earlier].append(number)
    left = Counter(v for need in needs for v in need.touched)
    ready = [number for number, before in enumerate(waits) if not before]
    order: list[int] = []
    while ready:
        number = min(ready, key=lambda k: (_growth(needs[k], left, nbytes), k))
        ready.remove(number)
        order.append(number)
        left.subtract(needs[number].touched)
        for follower in followers[number]:
            waits[follower].remove(number)
            if not waits[follower]:
                ready.append(follower)
    return tuple(order)


def _growth(need: _Need, left: Counter[int], nbytes: dict[int, int]) -> int:
    """How many more bytes are alive after a step than before."""
    made = sum(nbytes[v] for v in need.writes)
    return made - sum(nbytes[v] for v in need.touched if left[v] == 1)


def _reordered(plan: Plan, order: Sequence[int]) -> Plan:
    place = {number: position for position, number in enumerate(order)}
    steps = tuple(_numbered(plan.steps[number], position) for position, number in enumerate(order))
    return replace(plan, steps=steps, chunked={v: place[number] for v, number in plan.chunked.items()})


def _numbered(step: Step, number: int) -> Step:
    return replace(step, number=number) if isinstance(step, Group) else step
