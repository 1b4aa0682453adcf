"""Turns: an order in which a program's instructions can run, cut into the pieces that become clusters.

**Method.** A run is played through. What the interpreter runs goes as soon as it is ready. When nothing of
that kind is ready, one scope has its turn, that of the earliest ready candidate in program order: all that
is or becomes ready in it runs, and then the interpreter again. Waiting for the interpreter makes the turns
long and few: with a single scope, no order has fewer. With several scopes the choice may be unlucky, so
each turn is afterwards merged with the one before it of the same scope, unless a path leads from one to the
other through something else.

**No cycle.** Turns are consecutive pieces of one order that can run, so edges between pieces point forward.
Let K come after L, with no path from L to K through other steps. Of the steps between them, those that K
needs (directly or not) do not need L. Moved before L they are still behind what they need, and L and K can
run as one.

**Cost.** Playing is linear in instructions and edges, times a logarithm for the order of what is ready. A
merge looks at no more than `SEARCH_LIMIT` steps, and is given up, with a reason, when more lie between.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from jitgrad.compiler.clustering.dependences import Dependences
from jitgrad.records import dataclass

SEARCH_LIMIT = 1000


@dataclass(slots=True)
class Step:
    """Instructions that run together: one that the interpreter runs (scope None), or some of one scope."""

    number: int
    scope: str | None
    members: list[int]


@dataclass(frozen=True, slots=True)
class Separation:
    """Two instructions of one scope in different steps, and one on a path between them (None: unknown)."""

    first: int
    via: int | None
    second: int


def play(graph: Dependences) -> list[Step]:
    """The turns of one run, in order; members in program order."""
    return _Play(graph).run()


class _Play:
    """What is ready: interpreted instructions, candidates per scope, scopes by their earliest candidate."""

    def __init__(self, graph: Dependences) -> None:
        self.graph = graph
        self.waiting = [len(needs) for needs in graph.needs]
        self.interpreted: list[int] = []
        self.candidates: dict[str, list[int]] = {}
        self.earliest: list[tuple[int, str]] = []
        for number, count in enumerate(self.waiting):
            if not count and number not in graph.literals:
                self._enter(number)

    def run(self) -> list[Step]:
        steps: list[Step] = []
        while self.interpreted or self.earliest:
            if self.interpreted:
                number = heappop(self.interpreted)
                self._done(number)
                steps.append(Step(len(steps), None, [number]))
            else:
                scope = heappop(self.earliest)[1]
                if self.candidates[scope]:
                    steps.append(Step(len(steps), scope, self._turn(scope)))
        return steps

    def _turn(self, scope: str) -> list[int]:
        ready, turn = self.candidates[scope], []
        while ready:
            turn.append(ready.pop())
            self._done(turn[-1])
        return sorted(turn)

    def _done(self, number: int) -> None:
        for user in self.graph.users[number]:
            self.waiting[user] -= 1
            if not self.waiting[user]:
                self._enter(user)

    def _enter(self, number: int) -> None:
        scope = self.graph.scopes[number]
        if scope is None:
            heappush(self.interpreted, number)
        else:
            self.candidates.setdefault(scope, []).append(number)
            heappush(self.earliest, (number, scope))


def merge_turns(graph: Dependences, steps: Sequence[Step]) -> tuple[list[Step], list[Separation]]:
    """Steps of one scope made one where no path leaves and comes back; and why the others are apart."""
    merge = _Merge(graph, steps)
    latest: dict[str, Step] = {}
    separations: list[Separation] = []
    for step in steps:
        if step.scope is None:
            continue
        before = latest.get(step.scope)
        separation = None if before is None else merge.try_merge(before, step)
        if before is None or separation is not None:
            latest[step.scope] = step
        if separation is not None:
            separations.append(separation)
    return merge.in_order(), separations


class _Merge:
    """Steps with their places in an order that can run; a step that was merged into another leaves a hole."""

    def __init__(self, graph: Dependences, steps: Sequence[Step]) -> None:
        self.graph = graph
        self.order: list[Step | None] = list(steps)
        self.place = {step.number: place for place, step in enumerate(steps)}
        self.step_of = {number: step for step in steps for number in step.members}

    def in_order(self) -> list[Step]:
        """The steps that are left."""
        return [step for step in self.order if step is not None]

    def try_merge(self, first: Step, second: Step) -> Separation | None:
        """Put ``second`` into ``first``; or say why not."""
        begin, end = self.place[first.number], self.place[second.number]
        if end - begin > SEARCH_LIMIT:
            return Separation(first.members[-1], None, second.members[0])
        needed, separation = self._between(first, second)
        if separation is not None:
            return separation
        between = [step for step in self.order[begin + 1 : end] if step is not None]
        moved = [step for step in between if step.number in needed]
        kept = [step for step in between if step.number not in needed]
        self._rearrange(begin, end, [*moved, first, *kept])
        first.members = sorted(first.members + second.members)
        self.step_of.update(dict.fromkeys(second.members, first))
        return None

    def _rearrange(self, begin: int, end: int, steps: list[Step]) -> None:
        holes: list[None] = [None] * (end + 1 - begin - len(steps))
        self.order[begin : end + 1] = [*steps, *holes]
        for place, step in enumerate(steps, begin):
            self.place[step.number] = place

    def _between(self, first: Step, second: Step) -> tuple[set[int], Separation | None]:
        """The steps behind ``first`` that ``second`` needs; and a path from ``first``, if they have one."""
        begin = self.place[first.number]
        seen: set[int] = set()
        pending = [second]
        while pending:
            step = pending.pop()
            for user in step.members:
                for number in self.graph.needs[user]:
                    other = self.step_of[number]
                    if other is first and step is not second:
                        return seen, Separation(number, user, self._end(step, second))
                    if other is step or other.number in seen or self.place[other.number] <= begin:
                        continue
                    seen.add(other.number)
                    pending.append(other)
        return seen, None

    def _end(self, step: Step, second: Step) -> int:
        """A member of ``second`` that needs ``step`` directly, else its first member."""
        needs, inside = self.graph.needs, set(step.members)
        return next((n for n in second.members if not inside.isdisjoint(needs[n])), second.members[0])
