"""Rows of updates sorted by the row of the table that they go to: each is summed in registers and stored once.

A chunk knows the row of each of its updates, in their order. It counts how many each row has, and sorts the updates by
rows; the sort is stable, so that a row adds the same numbers in the same order as one update after the other would. A
row without updates is a sum of none, zero. Where rows are more than twice as many as updates, counting would take
longer than it saves, and in a table out of cache where updates have less than 32 bytes for each of its rows: then the
rows are cleared, and the updates added one by one. Both are in one kernel, since extents are known when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jitgrad.compiler.fusing.groups import Placed
from jitgrad.compiler.fusing.scatters import are_plain_rows, axes_of_rows, axes_of_updates
from jitgrad.compiler.loopir.nests import (
    ACROSS,
    SERIAL,
    VECTOR,
    Accumulator,
    Argument,
    Index,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)
from jitgrad.compiler.lowering.accumulate import INT64
from jitgrad.compiler.lowering.scatter import INT32, ScatterLowering, int64, statements_of
from jitgrad.records import dataclass

BOOL = np.dtype(np.bool_)
NEAR = 1 << 25
"""Bytes of a table that may be in cache still when updates are added to what was cleared."""
WORTH = 32
"""Bytes of updates that counting one row is worth, where each waits for the memory of its row."""
_ROWS, _ENDS, _ORDERED = 0, 1, 2  # keys of lists; those of the numbers of loops are negative


@dataclass(frozen=True, slots=True)
class _Lists:
    """What a chunk knows of its updates: how many there are, the row of each, by axis the numbers of their loops, and
    these in the order of rows; and for each row of the table where its updates end in that order.
    """

    number: str
    rows: str
    kept: Mapping[int, str]
    ordered: Mapping[int, str]
    ends: str


@dataclass(frozen=True, slots=True)
class _Work:
    """So many rounds of blocks, and so many updates: none of either where the work is done in the other way."""

    rounds: str
    updates: str


class SortedScatterLowering(ScatterLowering):
    """Lowers a scatter; one of plain rows that chunks share is sorted."""

    def _shared(self, placed: Placed) -> list[Statement]:
        if not are_plain_rows(placed.node, self.plan.classes[placed.node.value]):
            return super()._shared(placed)
        along = [a for d in axes_of_updates(placed.node) if (a := placed.axes[d]) is not None]
        lists = self._lists(placed, along)
        finding = self._finding(placed, along, lists.kept, lists.number, lists.rows)
        few, many, choosing = self._choice(placed, lists, self._updates(along))
        added = [*self._by_blocks(self._cleared_rows, few.rounds), self._one_by_one(placed, lists, few)]
        summed = [*self._sorted(lists, many), *self._row_by_row(placed, lists, many)]
        root = statements_of(self.bodies[self.tree.root])
        return [*root, Accumulator(lists.number, INT64, "add", int64(0)), finding, *choosing, *added, *summed]

    def _lists(self, placed: Placed, along: Sequence[int]) -> _Lists:
        """The lists of a chunk; the numbers of those loops along which updates differ."""
        count, rows = self._updates(along), self._product(self.sized[:1])
        leaves = placed.node.operands[0].leaves
        read = {i.axis for leaf in leaves for i in leaf.dims} | {g.axis for leaf in leaves for g in leaf.guards}
        differing = [a for d, a in enumerate(placed.axes) if a is not None and a in along and d in read]
        kept = {axis: self._list(~axis, count) for axis in differing}
        ordered = {axis: self._list(_ORDERED + axis, count) for axis in differing}
        return _Lists(f"acc{self.signature.fresh()}", self._list(_ROWS, count), kept, ordered, self._list(_ENDS, rows))

    def _choice(self, placed: Placed, lists: _Lists, count: str) -> tuple[_Work, _Work, list[Statement]]:
        """What is added one by one, and what is sorted: all of it in one way.

        Counting takes 1 ns per row: of 20000 x 64 floats in cache 100 updates take 35 us one by one and 45 sorted, 2048
        take 43 and 49, 8192 take 65 and 64, 32768 take 170 and 135 (two threads, Zen 4). Out of cache, an update that
        is added one by one fetches a row that was cleared before, so that bytes of rows tell: of 40000 x 256 floats
        2560 updates take 630 us one by one and 455 sorted; of 320000 x 32, 122880 take the same either way.
        """
        few, many = (_Work(self.name(), self.name()) for _ in range(2))
        itemsize = placed.node.dtype.itemsize
        rounds, is_far, size, saved, needed, is_few = (self.name() for _ in range(6))
        choosing: list[Statement] = [
            *self._rounds(rounds),
            Let(is_far, BOOL, "less", (int64(NEAR), self._product(self.sized, itemsize))),
            Let(size, INT64, "where", (is_far, self._product(self.sized[1:], itemsize), int64(2 * WORTH))),
            Let(saved, INT64, "multiply", (count, size)),
            Let(needed, INT64, "multiply", (self._product(self.sized[:1]), int64(WORTH))),
            Let(is_few, BOOL, "less", (saved, needed)),
        ]
        for whole, one, other in ((rounds, few.rounds, many.rounds), (lists.number, few.updates, many.updates)):
            choosing.append(Let(one, INT64, "where", (is_few, whole, int64(0))))
            choosing.append(Let(other, INT64, "subtract", (whole, one)))
        return few, many, choosing

    # -- sorting -------------------------------------------------------------------------------------------------------

    def _sorted(self, lists: _Lists, many: _Work) -> list[Statement]:
        """The updates in the order of rows; ``ends`` are how many a row has, then where they begin, then their ends."""
        none, before, number = Literal(np.int32(0), INT32), f"acc{self.signature.fresh()}", self.name()

        def cleared(start: str, count: str) -> list[Statement]:
            here = Index((Term(start), Term("j2")))
            return [Loop("j2", count, VECTOR, (Store(lists.ends, here, none, INT32),))]

        def begun(start: str, count: str) -> list[Statement]:
            here = Index((Term(start), Term("j2")))
            taken = self._taken(number, lists.ends, *here.terms)
            kept = (Store(lists.ends, here, before, INT32), Update(before, INT64, "add", number))
            return [Loop("j2", count, SERIAL, (*taken, *kept))]

        return [
            *self._by_blocks(cleared, many.rounds),
            Loop("k", many.updates, SERIAL, tuple(self._counted(lists, self.name()))),
            Accumulator(before, INT64, "add", int64(0)),
            *self._by_blocks(begun, many.rounds),
            Loop("k", many.updates, SERIAL, tuple(self._put_in_order(lists))),
        ]

    def _counted(self, lists: _Lists, known: str) -> list[Statement]:
        """One more update of its row than the ``known`` number."""
        row, more = self.name(), self.name()
        return [
            *self._taken(row, lists.rows, Term("k")),
            *self._taken(known, lists.ends, Term(row)),
            Let(more, INT64, "add", (known, int64(1))),
            Store(lists.ends, Index((Term(row),)), more, INT32),
        ]

    def _put_in_order(self, lists: _Lists) -> list[Statement]:
        """An update at the next place of its row."""
        place = self.name()
        body = self._counted(lists, place)
        for axis, buffer in lists.kept.items():
            number = self.name()
            body.append(Load(number, INT32, buffer, Index((Term("k"),))))
            body.append(Store(lists.ordered[axis], Index((Term(place),)), number, INT32))
        return body

    # -- adding --------------------------------------------------------------------------------------------------------

    def _row_by_row(self, placed: Placed, lists: _Lists, many: _Work) -> list[Statement]:
        """Each row of the table, from where the updates of the one before end."""
        end = f"acc{self.signature.fresh()}"

        def rows(start: str, count: str) -> list[Statement]:
            row, first, last = (self.name() for _ in range(3))
            body = (
                Let(row, INT64, "add", (start, "j2")),
                Let(first, INT64, "identity", (end,)),
                *self._taken(last, lists.ends, Term(row)),
                self._summed_row(placed, lists, row, (first, last)),
                Update(end, INT64, "replace", last),
            )
            return [Loop("j2", count, SERIAL, body)]

        return [Accumulator(end, INT64, "replace", int64(0)), *self._by_blocks(rows, many.rounds)]

    def _summed_row(self, placed: Placed, lists: _Lists, row: str, span: tuple[str, str]) -> Loop:
        """The columns of a row side by side, each the sum of zero and its updates in their order."""
        dtype, total, (across, at) = placed.node.dtype, f"acc{self.signature.fresh()}", self._place_in(placed, row)
        found, read, update = self._update(placed, lists.ordered, across)
        body = (
            Accumulator(total, dtype, "add", self.zero),
            Loop("k", span[1], SERIAL, (*found, *read, Update(total, dtype, "add", update)), span[0]),
            Store(self.out, at, total, dtype),
        )
        return Loop(self.var(across), self.extent((across,)), ACROSS, body)

    def _one_by_one(self, placed: Placed, lists: _Lists, few: _Work) -> Loop:
        """Each update added to its row in memory."""
        dtype, row, before, after = placed.node.dtype, self.name(), self.name(), self.name()
        across, at = self._place_in(placed, row)
        found, read, update = self._update(placed, lists.kept, across)
        columns = (
            *read,
            Load(before, dtype, self.out, at),
            Let(after, dtype, "add", (before, update)),
            Store(self.out, at, after, dtype),
        )
        adding = Loop(self.var(across), self.extent((across,)), VECTOR, columns)
        return Loop("k", few.updates, SERIAL, (*self._taken(row, lists.rows, Term("k")), *found, adding))

    def _place_in(self, placed: Placed, row: str) -> tuple[int, Index]:
        """The axis of columns, and the place of one of them in a row of the table."""
        (across,) = [a for d in axes_of_rows(placed.node) if (a := placed.axes[d]) is not None]
        return across, Index((Term(row, self._product(self.sized[1:])), Term(self.var(across))))

    def _update(
        self, placed: Placed, numbers: Mapping[int, str], across: int
    ) -> tuple[list[Statement], list[Statement], Argument]:
        """What finds the k-th update of lists of numbers, what reads a column of it, and that."""
        bodies = self._chain([*numbers, across])
        update = self.read(placed.node.operands[0], placed, bodies[-1])
        found = self._found(numbers, "k")
        for body in bodies[1:-1]:
            found += statements_of(body)
        return found, statements_of(bodies[-1]), update
