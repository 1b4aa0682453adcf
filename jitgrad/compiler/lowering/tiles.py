"""The body of a kernel with a matrix per lane: each node is a nest of its own over the inner axes, from tiles to tiles.

    for lane in lanes(n0):                 as many matrices at once as a vector has lanes
        pack(tile0, in0, lane, n1)         what is read from memory, all elements of a matrix
        for ...: tile1[...] = ...          one nest per node
        unpack(out0, tile1, lane, n1)      what leaves the kernel

A tile holds one value for the matrices of the lanes, element by element, in the first cache. Products and routines are
calls, see routine_lowering. What is combined over the matrices is kept per lane, and folded behind the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jitgrad.compiler.fusing.accesses import Leaf
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Group, Placed, Plan
from jitgrad.compiler.fusing.looptree import TreeLoop
from jitgrad.compiler.fusing.matrices import lead_dims
from jitgrad.compiler.fusing.nodes import REDUCE, Node
from jitgrad.compiler.fusing.small import depends_on, sized
from jitgrad.compiler.loopir.nests import (
    ALONE,
    LANES,
    SERIAL,
    Accumulator,
    Argument,
    Call,
    Index,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Update,
)  # fmt: skip
from jitgrad.compiler.loopir.quantities import product
from jitgrad.compiler.lowering.accumulate import initial_value
from jitgrad.compiler.lowering.body import Lowering
from jitgrad.compiler.lowering.reading import Body
from jitgrad.compiler.lowering.signature import Signature
from jitgrad.opdef import AxisIndex


class TileLowering(Lowering):
    """Lowers a group with a matrix per lane."""

    def __init__(self, group: Group, plan: Plan, axis_classes: tuple[tuple[int, ...], ...]) -> None:
        self.group = group
        self.plan = plan
        self.axis_classes = axis_classes
        self.makers = {p.node.value: p for p in group.nodes}
        self.signature = Signature()
        self.lead = group.axes[: group.lead or 0]
        self.packed: set[int] = set()
        self.factors: dict[object, tuple[str, str]] = {}
        self.statements: list[Statement] = []
        self.before: list[Statement] = []
        self.after: list[Statement] = []

    def body(self) -> list[Statement]:
        """The statements of the kernel."""
        extent = self.signature.product(product(self.lead))
        for placed in self.group.nodes:
            self._lower_node(placed)
            if placed.node.value in self.group.stored:
                self._unpack(placed)
        return [*self.before, Loop("lane", extent, LANES if self.lead else ALONE, tuple(self.statements)), *self.after]

    # -- tiles -----------------------------------------------------------------------------------------------------

    def _inner_dims(self, v: int) -> list[int]:
        """The sized dimensions of a value that do not count matrices; all of one that is the same for all."""
        dims, classes = sized(self.plan.classes[v]), self.plan.classes[v]
        first = dims[: len(self.lead)]
        return dims[len(self.lead) :] if tuple(classes[d] for d in first) == self.lead else dims

    def _tile(self, v: int) -> str:
        """The tile of a value."""
        return self.signature.buffer("tile", v, self.plan.specs[v].dtype, self._count(v))

    def _count(self, v: int) -> str:
        """The int that holds the number of elements of one matrix."""
        return self.signature.product(product(tuple(self.plan.classes[v][d] for d in self._inner_dims(v))))

    def _packed(self, v: int) -> str:
        """The tile of a value, filled from memory if it is not made here."""
        if v not in self.makers and v not in self.packed:
            self.packed.add(v)
            source = self.signature.buffer("in", self.plan.aliases.get(v, v), self.plan.specs[v].dtype)
            self.statements.append(Call("pack", (self._tile(v), source), ("lane", self._count(v))))
        return self._tile(v)

    def _unpack(self, placed: Placed) -> None:
        v = placed.node.value
        out = self.signature.buffer("out", v, placed.node.dtype)
        self.statements.append(Call("unpack", (out, self._tile(v)), ("lane", self._count(v))))

    # -- nests -----------------------------------------------------------------------------------------------------

    def _lower_node(self, placed: Placed) -> None:
        """The statements that fill the tile of a node's value, or add to its sums."""
        node = placed.node
        lead = lead_dims(node, self.lead) or []
        inner = [d for d in sized(node.classes) if d not in lead]
        if node.form != REDUCE:
            self._nest(placed, inner, lambda body: self._store_tile(placed, self._value(placed, body), body))
            return
        kept = [d for d in inner if d not in node.along]
        summed = [d for d in inner if d in node.along]
        across = any(d in node.along for d in lead)
        if across:
            self._open_sums(placed)

        def reduced(body: Body) -> None:
            value = self._sum(placed, summed, body)
            (self._add_to_sums if across else self._store_tile)(placed, value, body)

        self._nest(placed, kept, reduced)

    def _nest(self, placed: Placed, dims: Sequence[int], write: Callable[[Body], None]) -> None:
        self.statements += self._loops(placed, dims, write)

    def _loops(self, placed: Placed, dims: Sequence[int], write: Callable[[Body], None]) -> list[Statement]:
        """Loops over some dimensions of a node around the statements that ``write`` makes."""
        statements = self._collected(write)
        for d in reversed(dims):
            statements = [Loop(f"i{placed.axes[d]}", self._extent_of(placed.node, d), SERIAL, tuple(statements))]
        return statements

    def _collected(self, write: Callable[[Body], None]) -> list[Statement]:
        body = Body(TreeLoop(-1, None))
        write(body)
        return body.loads + body.rest

    def _extent_of(self, node: Node, d: int) -> str:
        return self.signature.product(product((node.classes[d],)))

    # -- computing -------------------------------------------------------------------------------------------------

    def _value(self, placed: Placed, body: Body) -> Argument:
        """What a node computes at one place of its domain."""
        node = placed.node
        args = tuple(self.read(operand, placed, body) for operand in node.operands)
        if node.op == "identity" and node.form == REDUCE and self._operand_dtype(node) != node.dtype:
            name = self.name()
            body.rest.append(Let(name, node.dtype, "cast", args))
            return name
        if node.op == "identity":
            return args[0]
        return self._apply(node, node.dtype, args, placed, body)

    def _sum(self, placed: Placed, summed: Sequence[int], body: Body) -> Argument:
        """What a reduction combines along its inner axes, at one place of the others."""
        node = placed.node
        if not summed:
            return self._value(placed, body)
        acc = f"acc{self.signature.fresh()}"

        def combine(inside: Body) -> None:
            inside.rest.append(Update(acc, node.dtype, node.combine, self._value(placed, inside)))

        body.rest.append(Accumulator(acc, node.dtype, node.combine, initial_value(node, node.dtype)))
        body.rest += self._loops(placed, summed, combine)
        return acc

    # -- writing ---------------------------------------------------------------------------------------------------

    def _store_tile(self, placed: Placed, value: Argument, body: Body) -> None:
        v = placed.node.value
        dims = self._inner_dims(v)
        index = self._tile_index(v, dims, [AxisIndex(placed.out_axes[d]) for d in dims])
        body.rest.append(Store(self._tile(v), index, value, placed.node.dtype))

    def _tile_index(self, v: int, dims: Sequence[int], places: Sequence[AxisIndex]) -> Index:
        """The place in a tile of an element with the indices ``places`` along the dimensions ``dims``."""
        classes = self.plan.classes[v]
        full = [AxisIndex(None)] * len(classes)
        for d, place in zip(dims, places, strict=True):
            full[d] = place
        return self._index(v, full)[0]

    def _open_sums(self, placed: Placed) -> None:
        node = placed.node
        count = self._partial_count(placed)
        init = initial_value(node, node.dtype)
        sums = self.signature.buffer("sums", node.value, node.dtype, count)
        partial = self.signature.buffer("partial", self.group.partials[node.value], node.dtype, count)
        self.before.append(Call("fill", (sums,), (init, count)))
        self.after.append(Call(f"fold_{node.combine}", (partial, sums), (count,)))

    def _partial_count(self, placed: Placed) -> str:
        kept = [
            c
            for d, c in zip(placed.node.out_dims, self.plan.classes[placed.node.value], strict=True)
            if d is not None and c != ONE
        ]
        return self.signature.product(product(tuple(kept)))

    def _add_to_sums(self, placed: Placed, value: Argument, body: Body) -> None:
        node = placed.node
        sums = self.signature.buffer("sums", node.value, node.dtype, self._partial_count(placed))
        dims = [d for d, a in enumerate(placed.out_axes) if a is not None]
        index = self._tile_index(node.value, dims, [AxisIndex(placed.out_axes[d]) for d in dims])
        before, after = self.name(), self.name()
        body.rest.append(Load(before, node.dtype, sums, index))
        body.rest.append(Let(after, node.dtype, node.combine, (before, value)))
        body.rest.append(Store(sums, index, after, node.dtype))

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_leaf(self, leaf: Leaf, fill: Literal | None, placed: Placed, body: Body) -> Argument:
        v = leaf.source
        if isinstance(v, Literal):
            return super()._read_leaf(leaf, fill, placed, body)
        lead = lead_dims(placed.node, self.lead) or []
        dtype = self.plan.specs[v].dtype
        bounds = self._bounds(leaf, placed)
        places = [replace(i, axis=None if i.axis is None else placed.axes[i.axis]) for i in leaf.dims]
        if v in self.makers or depends_on(leaf, lead):
            buffer = self._packed(v)
            dims = self._inner_dims(v)
            index = self._tile_index(v, dims, [places[d] for d in dims])
        else:
            buffer = self.signature.buffer("in", self.plan.aliases.get(v, v), dtype)
            index = self._index(v, places)[0]
        outside = (fill or Literal(dtype.type(0), dtype)) if bounds else None
        key = (buffer, index, bounds, outside)
        if key not in body.known:
            name = body.known[key] = self.name()
            body.rest.append(Load(name, dtype, buffer, index, bounds, outside))
        return body.known[key]
