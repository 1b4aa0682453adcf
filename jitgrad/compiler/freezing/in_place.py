"""Results in place: which values lie where an operand was that nobody reads after the step that writes them.

An arena is smaller so, and a thread writes lines that it has just read. That counts more than their number says. A line
that one thread wrote and another read since, the first writes again in 7 ns; one that it read or wrote itself in 0.6,
and one that the other wrote in 1.0 (Zen 4, two cores with one third cache; prefetches and reads before change none of
it). A result in the smallest gap of the arena lay on lines that another step had read on one thread: GMM's exponentials
took two threads as long as one, 16 us; in place 8.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jitgrad.compiler.freezing.regions import Unit
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.lowering.lower import CompiledCluster, Lowered


def find_in_place(compiled: CompiledCluster, units: Sequence[Unit]) -> dict[int, int]:
    """For each value that is written over others the first of these: it has the memory of all."""
    search = _Search(compiled, units)
    found: dict[int, int] = {}
    for unit in units:
        own = search.own_rows(unit)
        for number in unit.members:
            taken = set[int]()
            for a, b in search.pairs(number):
                if a in own and a not in taken and b not in found:
                    taken.add(a)
                    found[b] = found.get(a, a)
    return found


class _Search:
    """Which steps touch a value first and last, as they run."""

    def __init__(self, compiled: CompiledCluster, units: Sequence[Unit]) -> None:
        self.compiled, self.plan = compiled, compiled.plan
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        for number in (number for unit in units for number in unit.members):
            for v in compiled.reads[number] | compiled.writes[number]:
                self.first.setdefault(v, number)
                self.last[v] = number
        cluster = compiled.cluster
        self.outside = {self._root(v) for v in (*cluster.inputs, *cluster.outputs)}

    def own_rows(self, unit: Unit) -> set[int]:
        """The values of which steps that run beside one another read no rows but their own: those that a region makes
        itself, and those that only one of its steps reads.
        """
        reads, writes = self.compiled.reads, self.compiled.writes
        readers = Counter(v for number in unit.members for v in reads[number])
        made = {v for number in unit.members for v in writes[number]}
        return made | {v for v, count in readers.items() if count == 1}

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """An operand and a result of a step that may lie in its memory: the step is the last to touch the one and the
        first to touch the other, which is as large.
        """
        item = self.compiled.lowered[number]
        if not isinstance(item, Lowered) or item.group.rolled or item.group.lead is not None:
            return []
        values = {k: v for k, v in enumerate(item.values) if v is not None and self._root(v) not in self.outside}
        alone = Counter(map(self._root, values.values()))
        ours = {k: v for k, v in values.items() if alone[self._root(v)] == 1}
        dying = {k: v for k, v in ours.items() if self.last.get(self._root(v)) == number}
        born = {k: v for k, v in ours.items() if self.first.get(self._root(v)) == number}
        if not dying or not born:  # so it is with most steps, whose code is not looked at
            return []
        pairs = [(dying[a], born[b]) for a, b in item.overwritable if a in dying and b in born]
        return [(self._root(a), self._root(b)) for a, b in pairs if self._extents(a) == self._extents(b)]

    def _extents(self, v: int) -> list[int]:
        return sorted([c for c in self.plan.classes[v] if c != ONE])

    def _root(self, v: int) -> int:
        return self.plan.aliases.get(v, v)
