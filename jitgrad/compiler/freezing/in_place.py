"""Results in place: which values lie where an operand was that nobody reads after the step that writes them.

An arena is smaller so, and a thread writes lines that it has just read. That counts more than their number says. A line
that one thread wrote and another read since, the first writes again in 7 ns; one that it read or wrote itself in 0.6,
and one that the other wrote in 1.0 (Zen 4, two cores with one third cache; prefetches and reads before change none of
it). A result in the smallest gap of the arena lay on lines that another step had read on one thread: GMM's exponentials
took two threads as long as one, 16 us; in place 8.5.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jitgrad.compiler.freezing.regions import Unit
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.lowering.lower import CompiledCluster, Lowered


def find_in_place(compiled: CompiledCluster, units: Sequence[Unit]) -> dict[int, int]:
    """For each value that is written over others the first of these: it has the memory of all."""
    search = _Search(compiled, units)
    found: dict[int, int] = {}
    for unit in units:
        for number in unit.members:
            taken = set[int]()
            for a, b in search.pairs(number, unit.members):
                if a not in taken and b not in found:
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

    def pairs(self, number: int, together: Collection[int]) -> list[tuple[int, int]]:
        """An operand and a result of a step that may lie in its memory; ``together`` are the steps of its region."""
        item = self.compiled.lowered[number]
        if not isinstance(item, Lowered) or item.group.rolled or item.group.lead is not None:
            return []
        values = [(item.values[a], item.values[b]) for a, b in item.overwritable]
        return [
            (self._root(a), self._root(b))
            for a, b in values
            if a is not None and b is not None and self._is_free(a, b, number, item, together)
        ]

    def _is_free(self, a: int, b: int, number: int, item: Lowered, together: Collection[int]) -> bool:
        """Whether a step is the last to touch ``a`` and the first to touch ``b``, which is as large, and none that runs
        beside it reads more of ``a`` than its own rows.
        """
        under, over = self._root(a), self._root(b)
        roots = [self._root(v) for v in item.values if v is not None]
        is_only = roots.count(under) == roots.count(over) == 1 and self.outside.isdisjoint((under, over))
        is_last = self.last.get(under) == number and self.first.get(over) == number
        return is_only and is_last and self._extents(a) == self._extents(b) and self._is_own(under, number, together)

    def _is_own(self, v: int, number: int, together: Collection[int]) -> bool:
        """Whether a region makes a value itself, so that its steps read their own rows, or no other step touches it."""
        reads, writes = self.compiled.reads, self.compiled.writes
        is_made = any(v in writes[k] for k in together)
        return is_made or not any(v in reads[k] for k in together if k != number)

    def _extents(self, v: int) -> list[int]:
        return sorted([c for c in self.plan.classes[v] if c != ONE])

    def _root(self, v: int) -> int:
        return self.plan.aliases.get(v, v)
