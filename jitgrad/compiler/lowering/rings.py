"""Lowering of groups with others rolled into them: rings of rows, and the loops that fill them just in time.

acc0 = f32(0.0)
acc1 = i64(0)                                    the first row that no ring has had yet
for i0 in parallel(n2):
    v0 = i64(add(i0, o0))                        the first row that this one reads; o0 is -2, say
    v1 = i64(maximum(v0, acc1))
    v2 = i64(minimum(v3, n3))                    behind the last one, of n3 that there are
    ...
    for w0 in serial(v1, v2):
        v6 = i64(remainder(w0, o2))              its place in the ring
        for i1 in vector(n1):
            ...
            scratch0[v6*n1 + i1] = v9
            if v5 <= w0: acc0 = add(acc0, v10)   v5: the first row that belongs to row i0, and so to its chunk
    acc1 = maximum(acc1, v2)
    for i1 in vector(n1):
        ...                                      what reads scratch0 at the rows i0 - 2 to i0
partial0[0] = acc0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jitgrad.compiler.fusing.accesses import Leaf
from jitgrad.compiler.fusing.collapse import collapse_axes
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Group, Placed, Plan, Rolled
from jitgrad.compiler.loopir.nests import (
    SERIAL,
    Accumulator,
    Argument,
    Bound,
    Index,
    Let,
    Literal,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)
from jitgrad.compiler.loopir.quantities import product
from jitgrad.compiler.lowering.accumulate import INT64
from jitgrad.compiler.lowering.body import Lowering
from jitgrad.compiler.lowering.choices import Choice
from jitgrad.compiler.lowering.reading import Body
from jitgrad.compiler.lowering.signature import Signature
from jitgrad.opdef import AxisIndex
from jitgrad.records import dataclass

_LETTERS = "iwxyz"  # of the loops over rows, from the outermost in


@dataclass(frozen=True)
class _Ring:
    """The rows of a value that are kept: the buffer, how many rows, elements of each, and the dimension of rows."""

    buffer: str
    rows: str
    width: str
    dim: int


class RollingLowering(Lowering):
    """Writes the statements of a group and of those rolled into it.

    ``leaving`` are the values that go to memory. Of a group that is rolled into another, ``rings`` keep the rows that
    the other reads, ``slot`` is the place of the row at hand in them, and from the row ``owned`` on, rows are the
    chunk's own.
    """

    def __init__(
        self, group: Group, plan: Plan, axis_classes: tuple[tuple[int, ...], ...], signature: Signature | None = None,
        level: int = 0, leaving: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(group, plan, axis_classes, signature)
        self.level = level
        self.leaving = group.stored if leaving is None else leaving
        self.rings: dict[int, _Ring] = {}
        self.slot, self.owned = (self.name(), self.name()) if level else ("", "")
        self.inner = [(rolled, self._child(rolled)) for rolled in group.rolled]
        self.near = {v: ring for _, child in self.inner for v, ring in child.rings.items()}

    def var(self, axis: int | None) -> str:
        """The variable of the loop over an axis; rows of groups inside one another have different letters."""
        return f"{_LETTERS[0 if axis else self.level]}{axis}"

    # -- rings -------------------------------------------------------------------------------------------------------

    def _child(self, rolled: Rolled) -> RollingLowering:
        group, axis_classes = collapse_axes(replace(rolled.group, nodes=rolled.group.own), self.plan, by_row=True)
        child = RollingLowering(group, self.plan, axis_classes, self.signature, self.level + 1, self.leaving)
        child.rings = {v: child.ring(v, rolled) for v in rolled.values}
        return child

    def ring(self, v: int, rolled: Rolled) -> _Ring:
        """The ring of a value that another group reads."""
        dim = self.makers[v].out_axes.index(0)
        inner = tuple(c for d, c in enumerate(self.plan.classes[v]) if d != dim and c != ONE)
        extent = self.signature.product(product(inner, rolled.rows))
        buffer = self.signature.buffer("ring", v, self.plan.specs[v].dtype, extent)
        rows = self.signature.number(("rows", rolled.values), rolled.rows)
        return _Ring(buffer, rows, self.signature.product(product(inner)), dim)

    def _store(self, placed: Placed, body: Body) -> None:
        v = placed.node.value
        if v in self.rings:
            ring = self.rings[v]
            inner = self._row_index([a for a in placed.out_axes if a])
            index = Index((Term(self.slot, ring.width), *inner.terms))
            body.rest.append(Store(ring.buffer, index, self._read_made(v, body), placed.node.dtype))
        if v in self.leaving:
            super()._store(placed, body)

    def _can_choose(self, choice: Choice, placed: Placed, body: Body) -> bool:
        return choice.leaves[0].source not in self.near and super()._can_choose(choice, placed, body)

    def _read_leaf(self, leaf: Leaf, fill: Literal | None, placed: Placed, body: Body) -> Argument:
        v = leaf.source
        if not isinstance(v, int) or v not in self.near:
            return super()._read_leaf(leaf, fill, placed, body)
        ring, dims, dtype = self.near[v], self._loop_dims(leaf, placed), self.plan.specs[v].dtype
        slot = self._slot(ring, dims[ring.dim].offset, body)
        inside = [AxisIndex(None) if d == ring.dim else index for d, index in enumerate(dims)]
        place, depth = self._index(v, inside)
        bounds = self._bounds(leaf, placed)
        depth = max([0, depth, *(int(b.var[1:]) for b in bounds)])
        outside = (fill or Literal(dtype.type(0), dtype)) if bounds else None
        index = Index((Term(slot, ring.width), *place.terms), place.offset)
        return self._load(ring.buffer, dtype, index, bounds, outside, depth, body)

    def _slot(self, ring: _Ring, offset: int, body: Body) -> str:
        """The place in a ring of the row that lies ``offset`` behind the one at hand."""
        rows = next(self.bodies[tree] for tree in body.tree.path if tree.axis == 0)
        key = ("slot", ring.rows, offset)
        if key not in rows.known:
            at = self.var(0)
            if offset:
                distance = self.signature.number(key, offset)
                rows.loads.append(Let(at := self.name(), INT64, "add", (self.var(0), distance)))
            rows.known[key] = self.name()
            rows.loads.append(Let(rows.known[key], INT64, "remainder", (at, ring.rows)))
        return rows.known[key]

    # -- loops -------------------------------------------------------------------------------------------------------

    def body(self) -> list[Statement]:
        """The statements of the kernel."""
        before, rows, behind = self._parts()
        return [*before, rows, *behind]

    def _parts(self) -> tuple[list[Statement], Loop, list[Statement]]:
        """What stands before the loop over rows, the loop, and what stands behind it."""
        inner = [(rolled, child, child._parts()) for rolled, child in self.inner]
        own = super().body()
        at = next(k for k, s in enumerate(own) if isinstance(s, Loop) and s.var == self.var(0))
        rows = own[at]
        assert isinstance(rows, Loop)
        body = self._owned(rows.body, own[:at]) if self.level else list(rows.body)
        before, behind, fills = own[:at], own[at + 1 :], list[Statement]()
        for rolled, child, (child_before, child_rows, child_behind) in inner:
            following = f"acc{self.signature.fresh()}"
            before += [*child_before, Accumulator(following, INT64, "maximum", _ZERO)]
            fills += self._fill_rings(rolled, child, child_rows, following)
            behind += child_behind
        slot = []
        if self.level:
            first = next(iter(self.rings.values()))
            slot = [Let(self.slot, INT64, "remainder", (self.var(0), first.rows))]
        return before, replace(rows, body=(*slot, *fills, *body)), behind

    def _fill_rings(self, rolled: Rolled, child: RollingLowering, rows: Loop, following: str) -> list[Statement]:
        """The rows that the row at hand reads and that are not there yet; ``following`` is the first of these."""
        key, at, count = ("rolled", rolled.values), self.var(0), child.extent((0,))
        lo, hi, end = (self.signature.number((*key, n), m) for n, m in enumerate((rolled.lo, rolled.hi, rolled.hi + 1)))
        first, start, behind, stop, newest, is_first = (self.name() for _ in range(6))
        found: list[Statement] = [
            Let(first, INT64, "add", (at, lo)),
            Let(start, INT64, "maximum", (first, following)),
            Let(behind, INT64, "add", (at, end)),
            Let(stop, INT64, "minimum", (behind, count)),
            Let(newest, INT64, "add", (at, hi)),
            Let(is_first, _BOOL, "less", (at, _ONE)),
        ]
        if self.level:
            own, is_own = self.name(), self.name()
            found.append(Let(own, INT64, "where", (is_first, _ZERO, newest)))
            found.append(Let(is_own, _BOOL, "greater_equal", (at, self.owned)))
            found.append(Let(child.owned, INT64, "where", (is_own, own, count)))
        else:
            found.append(Let(child.owned, INT64, "where", (is_first, _ZERO, newest)))
        found.append(replace(rows, kind=SERIAL, start=start, extent=stop))
        found.append(Update(following, INT64, "maximum", stop))
        return found

    def _owned(self, body: Sequence[Statement], before: Sequence[Statement]) -> list[Statement]:
        """The body of a row, in which rows of the chunk before are neither summed nor stored."""
        sums = {s.name for s in before if isinstance(s, Accumulator)}
        bound = Bound(self.var(0), self.owned, None)
        return [_bounded(s, bound, sums) for s in body]


def _bounded(s: Statement, bound: Bound, sums: set[str]) -> Statement:
    match s:
        case Loop(body=body):
            return replace(s, body=tuple(_bounded(inner, bound, sums) for inner in body))
        case Update(acc=acc) if acc in sums:
            return replace(s, bounds=(*s.bounds, bound))
        case Store(buffer=buffer) if buffer.startswith(("out", "partial")):
            return replace(s, bounds=(*s.bounds, bound))
    return s


_BOOL = np.dtype(np.bool_)
_ZERO, _ONE = (Literal(np.int64(n), INT64) for n in (0, 1))
