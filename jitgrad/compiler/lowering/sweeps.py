"""Sweeps: for each element of the result a loop over a vector in memory, on as many elements at once as lanes allow."""

from __future__ import annotations

import numpy as np

from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.nodes import DOTS, SLIDE, Node
from jitgrad.compiler.loopir.nests import (
    COLUMNS,
    PARALLEL,
    SERIAL,
    VECTOR,
    Accumulator,
    Bound,
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
from jitgrad.compiler.loopir.quantities import Quantity, product
from jitgrad.compiler.lowering.accumulate import INT64
from jitgrad.compiler.lowering.body import Lowering
from jitgrad.spec import DType

BOOL = np.dtype(np.bool_)
_WORD = 63  # bits of an extent


class SweepLowering(Lowering):
    """Lowers a group that is one sweep; ``i0`` counts elements of the result, whatever its axes."""

    def body(self) -> list[Statement]:
        """The loop over the elements of the result, and what comes before it."""
        node = self.group.nodes[0].node
        return self._slide(node) if node.op in (SLIDE, DOTS) else self._search(node)

    @property
    def parallel_extent(self) -> Quantity:
        """All elements of the result."""
        return product(self._sized(self.group.nodes[0].node.value))

    def _sized(self, v: int) -> tuple[int, ...]:
        return tuple(c for c in self.plan.classes[v] if c != ONE)

    def _count(self, v: int) -> str:
        return self.signature.product(product(self._sized(v)))

    def _buffer(self, v: int) -> str:
        return self.signature.buffer("in", self.plan.aliases.get(v, v), self.plan.specs[v].dtype)

    def _inputs(self, node: Node) -> tuple[int, int]:
        first, second = (operand.values[0] for operand in node.operands)
        return first, second

    # -- products ----------------------------------------------------------------------------------------------------

    def _slide(self, node: Node) -> list[Statement]:
        """``out[i] = sum_k x[i + k] w[k]``: with a lane per i; where w is long and few are made, with lanes along k."""
        x, w = self._inputs(node)
        is_long = node.op == DOTS
        total, seen, weight, term = f"acc{self.signature.fresh()}", self.name(), self.name(), self.name()
        inner = (
            Load(seen, node.dtype, self._buffer(x), Index((Term("i0"), Term("k")))),
            Load(weight, node.dtype, self._buffer(w), Index((Term("k"),))),
            Let(term, node.dtype, "multiply", (seen, weight)),
            Update(total, node.dtype, "add", term),
        )
        out = self.signature.buffer("out", node.value, node.dtype)
        body: tuple[Statement, ...] = (
            Accumulator(total, node.dtype, "add", Literal(node.dtype.type(0), node.dtype)),
            Loop("k", self._count(w), VECTOR if is_long else SERIAL, inner),
            Store(out, Index((Term("i0"),)), total, node.dtype),
        )
        return [Loop("i0", self._count(node.value), PARALLEL if is_long else COLUMNS, body)]

    # -- search ------------------------------------------------------------------------------------------------------

    def _search(self, node: Node) -> list[Statement]:
        """How many elements of a sorted vector stand before each value: a power of two is added where one more does.

        All values take the same steps, from the highest power that is not above the extent, so that nothing branches.
        """
        table, values = self._inputs(node)
        dtype = self.plan.specs[table].dtype
        extent = self._count(table)
        powers, found = (f"acc{self.signature.fresh()}" for _ in range(2))
        value, limit, last = (self.name() for _ in range(3))
        out = self.signature.buffer("out", node.value, INT64)
        body = (
            Load(value, dtype, self._buffer(values), Index((Term("i0"),))),
            Accumulator(found, INT64, "replace", _int64(0)),
            Loop("s", powers, SERIAL, tuple(self._step(node, table, value, found, last, limit))),
            Store(out, Index((Term("i0"),)), found, INT64),
        )
        return [
            *self._powers(extent, powers),
            Let(last, INT64, "subtract", (powers, _int64(1))),
            Let(limit, INT64, "add", (extent, _int64(1))),
            Loop("i0", self._count(node.value), COLUMNS, body),
        ]

    def _powers(self, extent: str, powers: str) -> list[Statement]:
        """``powers`` becomes the number of powers of two up to an extent."""
        left, is_left, one = (self.name() for _ in range(3))
        inner = (
            Let(left, INT64, "right_shift", (extent, "s")),
            Let(is_left, BOOL, "greater", (left, _int64(0))),
            Let(one, INT64, "cast", (is_left,)),
            Update(powers, INT64, "add", one),
        )
        bits = self.signature.number("bits", _WORD)
        return [Accumulator(powers, INT64, "add", _int64(0)), Loop("s", bits, SERIAL, inner)]

    def _step(self, node: Node, table: int, value: str, found: str, last: str, limit: str) -> list[Statement]:
        """One power of two: whether the element before the place that it leads to stands before the value."""
        dtype = self.plan.specs[table].dtype
        left, power, place, before, element = (self.name() for _ in range(5))
        inside, goes, chosen = (self.name() for _ in range(3))
        stands, comparison = self._stands_before(node, dtype, element, value)
        zero = Literal(dtype.type(0), dtype)
        return [
            Let(left, INT64, "subtract", (last, "s")),
            Let(power, INT64, "left_shift", (_int64(1), left)),
            Let(place, INT64, "add", (found, power)),
            Let(before, INT64, "subtract", (place, _int64(1))),
            Load(element, dtype, self._buffer(table), Index((Term(before),)), (Bound(place, None, limit),), zero),
            Let(inside, BOOL, "less", (place, limit)),
            *comparison,
            Let(goes, BOOL, "logical_and", (inside, stands)),
            Let(chosen, INT64, "where", (goes, place, found)),
            Update(found, INT64, "replace", chosen),
        ]

    def _stands_before(self, node: Node, dtype: DType, element: str, value: str) -> tuple[str, list[Statement]]:
        """``element < value``, or for the right side ``not value < element``; NaN stands behind all."""
        is_left = node.op == "left"
        low, high = (element, value) if is_left else (value, element)
        less = self.name()
        lets: list[Statement] = [Let(less, BOOL, "less", (low, high))]
        if dtype.kind == "f":
            no_low, no_high, some_low, by_nan, either = (self.name() for _ in range(5))
            lets += [
                Let(no_low, BOOL, "isnan", (low,)),
                Let(no_high, BOOL, "isnan", (high,)),
                Let(some_low, BOOL, "logical_not", (no_low,)),
                Let(by_nan, BOOL, "logical_and", (some_low, no_high)),
                Let(either, BOOL, "logical_or", (less, by_nan)),
            ]
            less = either
        if is_left:
            return less, lets
        stands = self.name()
        return stands, [*lets, Let(stands, BOOL, "logical_not", (less,))]


def _int64(number: int) -> Literal:
    return Literal(np.int64(number), INT64)
