"""The body of a kernel: statements for the nodes of a group, loop by loop, as the loop tree places them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jitgrad.compiler.fusing.groups import Placed
from jitgrad.compiler.fusing.looptree import Entry, TreeLoop, outermost_reduced
from jitgrad.compiler.fusing.nodes import GATHER, MAP, PACK, PLACE, SCAN, Node
from jitgrad.compiler.fusing.packing import places_of
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    PARALLEL_VECTOR,
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
    Update,
)  # fmt: skip
from jitgrad.compiler.loopir.quantities import Quantity, product
from jitgrad.compiler.lowering.accumulate import (
    INT64,
    RECURRENCE,
    accumulating,
    initial_value,
    inner_kept,
    recurrence,
    register_axis,
)
from jitgrad.compiler.lowering.reading import Body, Reading
from jitgrad.opdef import AxisIndex
from jitgrad.spec import DType


class Lowering(Reading):
    """Writes the statements of one group."""

    # -- the whole -----------------------------------------------------------------------------------------------------

    def body(self) -> list[Statement]:
        """The statements of the kernel."""
        return self._lower_body(self.tree.root)

    def _lower_body(self, tree: TreeLoop) -> list[Statement]:
        body = self.bodies[tree] = Body(tree)
        for item in tree.items:
            if isinstance(item, TreeLoop):
                self._open_accumulators(item, body)
                inner = self._lower_body(item)
                extent = self.extent((item.axis,))
                body.rest.append(Loop(self.var(item.axis), extent, self._kind(item), tuple(inner)))
                self._close_accumulators(item, body)
            elif item.stores:
                self._store(item.placed, body)
            else:
                self._compute(item.placed, body)
        return body.loads + body.rest

    def _kind(self, loop: TreeLoop) -> str:
        innermost = not any(isinstance(item, TreeLoop) for item in loop.items)
        is_parallel = loop.axis == 0 and not self.group.is_serial
        sequential = any(
            isinstance(item, Entry) and item.placed.node.form == SCAN
            and loop.axis in {item.placed.axes[d] for d in item.placed.node.along}
            for item in loop.items
        )  # fmt: skip
        if innermost and not sequential:
            return PARALLEL_VECTOR if is_parallel else VECTOR
        return PARALLEL if is_parallel else SERIAL

    @property
    def parallel_extent(self) -> Quantity:
        """What chunks divide: the extent of the outermost loop."""
        return product(self.axis_classes[0] if self.axis_classes else ())

    # -- accumulators --------------------------------------------------------------------------------------------------

    def _open_accumulators(self, loop: TreeLoop, body: Body) -> None:
        for placed in accumulating(self.group, self.tree, loop):
            node = placed.node
            init = initial_value(node, self._operand_dtype(node))
            if loop.axis == outermost_reduced(placed) and inner_kept(placed):
                self._fill(placed, init, body)
            if loop.axis == register_axis(placed):
                name = f"acc{self.signature.fresh()}"
                self.registers[node.value] = name
                combine = "replace" if node.combine == RECURRENCE else node.combine
                body.rest.append(Accumulator(name, init.dtype, combine, init))

    def _fill(self, placed: Placed, init: Literal, body: Body) -> None:
        index = self._row_index(self._row_axes(placed))
        statement: Statement = Store(self._row_buffer(placed), index, init, init.dtype)
        for position, axis in enumerate(reversed(inner_kept(placed))):
            extent = self.extent((axis,))
            statement = Loop(self.var(axis), extent, SERIAL if position else VECTOR, (statement,))
        body.rest.append(statement)

    def _close_accumulators(self, loop: TreeLoop, body: Body) -> None:
        for placed in accumulating(self.group, self.tree, loop):
            node = placed.node
            if node.form == SCAN or loop.axis != register_axis(placed):
                continue
            name = self.registers[node.value]
            result = f"{name}_at" if node.combine.startswith("arg") else name
            self.registers[node.value] = result
            if inner_kept(placed):
                self._combine_row(placed, result, body)
            elif node.value in self.spilled:
                self._spill(placed, body)
            elif self._is_partial(placed):
                body.rest.append(Store(self._row_buffer(placed), Index(()), result, node.dtype))

    def _combine_row(self, placed: Placed, value: Argument, body: Body) -> str:
        """``row[kept] = combine(row[kept], value)``; gives the new element."""
        node = placed.node
        buffer, index = self._row_buffer(placed), self._row_index(self._row_axes(placed))
        before, after = self.name(), self.name()
        body.rest.append(Load(before, node.dtype, buffer, index))
        body.rest.append(Let(after, node.dtype, node.combine, (before, value)))
        body.rest.append(Store(buffer, index, after, node.dtype))
        return after

    # -- computing and storing -----------------------------------------------------------------------------------------

    def _operand_dtype(self, node: Node) -> DType:
        leaf = node.operands[0].leaves[0]
        return leaf.source.dtype if isinstance(leaf.source, Literal) else self.plan.specs[leaf.source].dtype

    def _compute(self, placed: Placed, body: Body) -> None:
        node = placed.node
        args = tuple(self.read(operand, placed, body) for operand in node.operands)
        if node.form == GATHER:
            self.registers[node.value] = self._gather(placed, args, body)
        elif node.form == PACK:
            self.packs[node.value] = self._at_places(placed, args, body)
        elif node.form == MAP:
            self.registers[node.value] = self._apply(node, node.dtype, args, placed, body)
        else:
            self._accumulate(placed, args, body)
        if node.value in self.spilled and node.value not in self.tree.completes:
            self._spill(placed, body)

    def _apply(self, node: Node, dtype: DType, args: tuple[Argument, ...], placed: Placed, body: Body) -> str:
        op = node.op
        if op.startswith(PLACE):
            return self._place(placed, args, body)
        if op.startswith("iota"):
            args, op = (self._loop_number(placed, int(op[4:])),), "cast"
        if op == "identity" and isinstance(args[0], str):
            return args[0]
        name = self.name()
        body.rest.append(Let(name, dtype, op, args))
        return name

    def _at_places(self, placed: Placed, args: tuple[Argument, ...], body: Body) -> tuple[Argument, ...]:
        """What a pack makes at each of its places."""
        node = placed.node
        if node.op == "identity":
            return args
        count = len(args) // len(list(places_of(node, self.plan.specs[node.value].known_shape)))
        groups = [args[first : first + count] for first in range(0, len(args), count)]
        return tuple([self._apply(node, node.dtype, group, placed, body) for group in groups])

    def _accumulate(self, placed: Placed, args: tuple[Argument, ...], body: Body) -> None:
        node = placed.node
        value: Argument = args[0]
        is_arg = node.combine.startswith("arg")
        if node.op != "identity":
            value = self._apply(node, node.dtype, args, placed, body)
        elif not is_arg and self._operand_dtype(node) != node.dtype:
            name = self.name()
            body.rest.append(Let(name, node.dtype, "cast", (value,)))
            value = name
        if outermost_reduced(placed) is None:
            self.registers[node.value] = self._alone(node, value, body)
            return
        if node.combine == RECURRENCE:
            self.registers[node.value] = self._recur(placed, args, body)
            return
        if register_axis(placed) is None:
            element = self._combine_row(placed, value, body)
            if node.form == SCAN:
                self.registers[node.value] = element
            return
        acc = self.registers[node.value]
        at = self._position(placed, body) if is_arg else None
        dtype = self._operand_dtype(node) if is_arg else node.dtype
        body.rest.append(Update(acc, dtype, node.combine, value, at))
        if node.form == SCAN:
            name = self.name()
            body.rest.append(Let(name, node.dtype, "identity", (acc,)))
            self.registers[node.value] = name

    def _recur(self, placed: Placed, args: tuple[Argument, ...], body: Body) -> str:
        """A step of a recurrence, kept in its accumulator or in its row; gives the new element."""
        node, (step,) = placed.node, placed.node.along
        kept = self.registers.get(node.value)
        index = self._row_index(self._row_axes(placed))
        if kept is None:
            before = self.name()
            body.rest.append(Load(before, node.dtype, self._row_buffer(placed), index))
        else:
            before = kept
        names = (self.name(), self.name(), self.name(), self.name())
        body.rest += recurrence(self._loop_number(placed, step), args, before, names, node.dtype)
        if kept is None:
            body.rest.append(Store(self._row_buffer(placed), index, names[-1], node.dtype))
        else:
            body.rest.append(Update(kept, node.dtype, "replace", names[-1]))
        return names[-1]

    def _alone(self, node: Node, value: Argument, body: Body) -> str:
        """A reduction over extents of 1 only: the value itself, or position 0."""
        name = self.name()
        if node.combine.startswith("arg"):
            body.rest.append(Let(name, node.dtype, "cast", (Literal(np.int64(0), INT64),)))
        else:
            body.rest.append(Let(name, node.dtype, "cast", (value,)))
        return name

    def _position(self, placed: Placed, body: Body) -> str:
        """The place along the combined axes, counted in row-major order."""
        axes = [a for d in placed.node.along if (a := placed.axes[d]) is not None]
        position = self.var(axes[0])
        for axis in axes[1:]:
            extent = self.extent((axis,))
            for op, other in (("multiply", extent), ("add", self.var(axis))):
                name = self.name()
                body.rest.append(Let(name, INT64, op, (position, other)))
                position = name
        return position

    def _place(self, placed: Placed, args: tuple[Argument, ...], body: Body) -> str:
        """The update, added to zero as a scatter does, at its position along an axis, and zero elsewhere."""
        node, (update, position) = placed.node, args
        d = int(node.op.removeprefix(PLACE))
        bound = self._wrapped(position, node.classes[d], body)
        self.check((bound,), node.value, body)
        zero = Literal(node.dtype.type(0), node.dtype)
        hit, added, name = self.name(), self.name(), self.name()
        body.rest.append(Let(hit, np.dtype(np.bool_), "equal", (self._loop_number(placed, d), bound.var)))
        body.rest.append(Let(added, node.dtype, "add", (update, zero)))
        body.rest.append(Let(name, node.dtype, "where", (hit, added, zero)))
        return name

    def _gather(self, placed: Placed, args: tuple[Argument, ...], body: Body) -> str:
        node = placed.node
        assert node.table is not None
        index, bounds = self.table_index(placed, node.table, args, body)
        self.check(bounds, node.value, body)
        name = self.name()
        buffer = self.signature.buffer("in", self.plan.aliases.get(node.table, node.table), node.dtype)
        body.rest.append(Load(name, node.dtype, buffer, index, bounds, Literal(node.dtype.type(0), node.dtype)))
        return name

    def _store(self, placed: Placed, body: Body) -> None:
        node = placed.node
        if node.form != PACK:
            self._store_at(node, tuple(AxisIndex(a) for a in placed.out_axes), self._read_made(node.value, body), body)
            return
        places = places_of(node, self.plan.specs[node.value].known_shape)
        for value, dims in zip(self.packs[node.value], places, strict=True):
            axes = [None if index.axis is None else placed.axes[index.axis] for index in dims]
            at = tuple(replace(index, axis=axis) for index, axis in zip(dims, axes, strict=True))
            self._store_at(node, at, value, body)

    def _store_at(self, node: Node, dims: tuple[AxisIndex, ...], value: Argument, body: Body) -> None:
        index, _ = self._index(node.value, dims)
        body.rest.append(Store(self.signature.buffer("out", node.value, node.dtype), index, value, node.dtype))
