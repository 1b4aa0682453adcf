"""The body of a kernel: statements for the nodes of a group, loop by loop, as the loop tree places them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from jitgrad.compiler.fusing.accesses import Leaf, Operand
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Group, Placed, Plan
from jitgrad.compiler.fusing.looptree import Entry, LoopTree, TreeLoop, build_loop_tree, outermost_reduced
from jitgrad.compiler.fusing.nodes import GATHER, MAP, PLACE, REDUCE, SCAN, Node
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    PARALLEL_VECTOR,
    SERIAL,
    VECTOR,
    Accumulator,
    Argument,
    Bound,
    Check,
    Index,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)  # fmt: skip
from jitgrad.compiler.loopir.quantities import Quantity, product
from jitgrad.compiler.lowering.accumulate import (
    RECURRENCE,
    accumulating,
    initial_value,
    inner_kept,
    recurrence,
    register_axis,
)
from jitgrad.compiler.lowering.choices import Choice, bounds_along, find_choice
from jitgrad.compiler.lowering.places import index_of
from jitgrad.compiler.lowering.signature import Signature
from jitgrad.compiler.lowering.spills import find_spilled, ready_in
from jitgrad.opdef import AxisIndex
from jitgrad.records import dataclass
from jitgrad.spec import DType

INT64 = np.dtype(np.int64)


@dataclass(eq=False)
class Body:
    """Statements of one loop body while they are collected: loads come first, in the order in which they are needed."""

    tree: TreeLoop
    loads: list[Statement] = field(default_factory=list)
    rest: list[Statement] = field(default_factory=list)
    known: dict[object, str] = field(default_factory=dict)


class Lowering:
    """Writes the statements of one group; ``signature`` collects what they refer to."""

    def __init__(
        self, group: Group, plan: Plan, axis_classes: tuple[tuple[int, ...], ...], signature: Signature | None = None
    ) -> None:
        self.group = group
        self.plan = plan
        self.axis_classes = axis_classes
        self.tree: LoopTree = build_loop_tree(group)
        self.makers = {p.node.value: p for p in group.nodes}
        self.signature = signature or Signature()
        self.registers: dict[int, str] = {}
        self.bodies: dict[TreeLoop, Body] = {}
        self.spilled = find_spilled(self.tree, self.makers)

    # -- the whole -------------------------------------------------------------------------------------------------

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

    # -- names -----------------------------------------------------------------------------------------------------

    def name(self) -> str:
        """A new name for a value."""
        return f"v{self.signature.fresh()}"

    def var(self, axis: int | None) -> str:
        """The variable of the loop over an axis."""
        return f"i{axis}"

    def extent(self, axes: Sequence[int]) -> str:
        """The int that holds the product of the extents of some axes."""
        return self.signature.product(product(tuple(c for a in axes for c in self.axis_classes[a])))

    # -- accumulators ----------------------------------------------------------------------------------------------

    def _is_partial(self, placed: Placed) -> bool:
        return placed.node.value in self.group.partials

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

    def _row_axes(self, placed: Placed) -> tuple[int, ...]:
        """The axes of the memory in which a reduction accumulates: those kept inside and of loops it must outlive."""
        outlived = self.spilled.get(placed.node.value, ()) if placed.node.form == REDUCE else ()
        return tuple(sorted({*inner_kept(placed), *outlived}))

    def _row_buffer(self, placed: Placed) -> str:
        node = placed.node
        extent = self.extent(self._row_axes(placed))
        if self._is_partial(placed):
            return self.signature.buffer("partial", self.group.partials[node.value], node.dtype, extent)
        return self.signature.buffer("scratch", node.value, node.dtype, extent)

    def _row_index(self, axes: Sequence[int]) -> Index:
        terms = []
        for position, axis in enumerate(axes):
            inner = tuple(axes[position + 1 :])
            terms.append(Term(self.var(axis), self.extent(inner) if inner else 1))
        return Index(tuple(terms))

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

    # -- computing -------------------------------------------------------------------------------------------------

    def _operand_dtype(self, node: Node) -> DType:
        leaf = node.operands[0].leaves[0]
        return leaf.source.dtype if isinstance(leaf.source, Literal) else self.plan.specs[leaf.source].dtype

    def _compute(self, placed: Placed, body: Body) -> None:
        node = placed.node
        args = tuple(self.read(operand, placed, body) for operand in node.operands)
        if node.form == GATHER:
            self.registers[node.value] = self._gather(placed, args, body)
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

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, operand: Operand, placed: Placed, body: Body) -> Argument:
        """The value of an operand where a node stands."""
        if len(operand.leaves) == 1:
            return self._read_leaf(operand.leaves[0], operand.fill, placed, body)
        choice = find_choice(operand, placed.node.shape)
        if choice is not None and self._can_choose(choice, placed, body):
            return self._read_chosen(choice, operand.fill, placed, body)
        pieces = [self._read_leaf(leaf, operand.fill, placed, body) for leaf in operand.leaves]
        result = pieces[-1]
        for leaf, piece in zip(operand.leaves[-2::-1], pieces[-2::-1], strict=True):
            result = self._select(leaf, piece, result, placed, body)
        return result

    def _can_choose(self, choice: Choice, placed: Placed, body: Body) -> bool:
        """Whether the value is in memory, and the choice is made outside of the innermost loop."""
        outer = {tree.axis for tree in body.tree.path[:-1]}
        return choice.leaves[0].source not in self.makers and placed.axes[choice.axis] in outer

    def _read_chosen(self, choice: Choice, fill: Literal | None, placed: Placed, body: Body) -> str:
        """One load, whose offset and bounds are those of the leaf that is chosen by the index along an axis."""
        v, key = choice.leaves[0].source, ("chosen", choice, fill, tuple(placed.axes))
        assert isinstance(v, int)
        if key in body.known:
            return body.known[key]
        var = self.var(placed.axes[choice.axis])
        places = [self._index(v, self._loop_dims(leaf, placed))[0] for leaf in choice.leaves]
        offset = self._chosen(var, choice, [place.offset or Literal(np.int64(0), INT64) for place in places], body)
        bounds = []
        for axis, ranges in bounds_along(choice, placed.node.shape).items():
            if placed.axes[axis] is None:
                continue
            ends: list[str] = []
            for side in (0, 1):
                numbers = [
                    self.signature.number((leaf, axis, side), pair[side])
                    for leaf, pair in zip(choice.leaves, ranges, strict=True)
                ]
                ends.append(self._chosen(var, choice, numbers, body))
            bounds.append(Bound(self.var(placed.axes[axis]), *ends))
        dtype = self.plan.specs[v].dtype
        name = body.known[key] = self.name()
        buffer = self.signature.buffer("in", self.plan.aliases.get(v, v), dtype)
        outside = (fill or Literal(dtype.type(0), dtype)) if bounds else None
        index = Index((*places[0].terms, Term(offset)))
        body.rest.append(Load(name, dtype, buffer, index, tuple(bounds), outside))
        return name

    def _chosen(self, var: str, choice: Choice, numbers: Sequence[Argument], body: Body) -> str:
        """The number of the leaf that is chosen: a register."""
        found = numbers[-1]
        for k in range(len(numbers) - 2, -1, -1):
            test, name = self.name(), self.name()
            limit, number = self.signature.number((choice, k), choice.ends[k]), numbers[k]
            body.rest.append(Let(test, np.dtype(np.bool_), "less", (var, limit)))
            body.rest.append(Let(name, INT64, "where", (test, number, found)))
            found = name
        assert isinstance(found, str)
        return found

    def _loop_dims(self, leaf: Leaf, placed: Placed) -> tuple[AxisIndex, ...]:
        return tuple(replace(i, axis=None if i.axis is None else placed.axes[i.axis]) for i in leaf.dims)

    def _select(self, leaf: Leaf, piece: Argument, other: Argument, placed: Placed, body: Body) -> str:
        """``piece`` where the guards of its leaf hold, else ``other``."""
        condition: Argument | None = None
        boolean = np.dtype(np.bool_)
        for bound in self._bounds(leaf, placed):
            for op, limit in (("greater_equal", bound.lo), ("less", bound.hi)):
                if limit is None:
                    continue
                test = self.name()
                body.rest.append(Let(test, boolean, op, (bound.var, limit)))
                if condition is not None:
                    both = self.name()
                    body.rest.append(Let(both, boolean, "logical_and", (condition, test)))
                    test = both
                condition = test
        assert condition is not None
        name = self.name()
        dtype = self._dtype_of(leaf)
        body.rest.append(Let(name, dtype, "where", (condition, piece, other)))
        return name

    def _dtype_of(self, leaf: Leaf) -> DType:
        return leaf.source.dtype if isinstance(leaf.source, Literal) else self.plan.specs[leaf.source].dtype

    def _read_leaf(self, leaf: Leaf, fill: Literal | None, placed: Placed, body: Body) -> Argument:
        v = leaf.source
        if isinstance(v, Literal):
            number = self.signature.constant(v)
            return number if not leaf.guards or fill is None else self._select(leaf, number, fill, placed, body)
        if v in self.makers:
            made = self._read_made(v, body)
            return made if not leaf.guards or fill is None else self._select(leaf, made, fill, placed, body)
        dims = self._loop_dims(leaf, placed)
        bounds = self._bounds(leaf, placed)
        index, depth = self._index(v, dims)
        depth = max([depth, *(int(b.var[1:]) for b in bounds)])
        buffer = self.signature.buffer("in", self.plan.aliases.get(v, v), self.plan.specs[v].dtype)
        dtype = self.plan.specs[v].dtype
        outside = (fill or Literal(dtype.type(0), dtype)) if bounds else None
        return self._load(buffer, dtype, index, bounds, outside, depth, body)

    def _load(
        self, buffer: str, dtype: DType, index: Index, bounds: tuple[Bound, ...], fill: Literal | None, depth: int,
        body: Body
    ) -> str:  # fmt: skip
        """Load once per body, in the outermost body in which all variables of the index are known."""
        home = next((self.bodies[t] for t in body.tree.path if t.axis == depth), body)
        key = (buffer, index, bounds, fill)
        if key not in home.known:
            name = home.known[key] = self.name()
            home.loads.append(Load(name, dtype, buffer, index, bounds, fill))
        return home.known[key]

    def _bounds(self, leaf: Leaf, placed: Placed) -> tuple[Bound, ...]:
        bounds = []
        for guard in leaf.guards:
            axis = placed.axes[guard.axis]
            if axis is None:
                continue
            n = placed.node.shape[guard.axis]
            lo = self.signature.number((leaf, guard.axis, "lo"), guard.lo) if guard.lo > 0 else None
            hi = self.signature.number((leaf, guard.axis, "hi"), guard.hi) if guard.hi < n else None
            bounds.append(Bound(self.var(axis), lo, hi))
        return tuple(bounds)

    def _index(self, v: int, dims: Sequence[AxisIndex]) -> tuple[Index, int]:
        """The place of ``v[dims]`` in its flat buffer, and the innermost axis that it depends on (-1: none)."""
        return index_of(v, dims, self.plan, self.signature, self.var)

    # -- values made in this kernel --------------------------------------------------------------------------------

    def _read_made(self, v: int, body: Body) -> Argument:
        placed = self.makers[v]
        home = ready_in(self.tree, v)
        if placed.node.form == REDUCE and inner_kept(placed):
            return self._reload(self._row_buffer(placed), placed, self._row_axes(placed), body)
        if v in self.spilled and home not in body.tree.path:
            return self._reload(self._spill_buffer(v), placed, self.spilled[v], body)
        return self.registers[v]

    def _reload(self, buffer: str, placed: Placed, axes: Sequence[int], body: Body) -> str:
        key = ("reload", buffer)
        if key not in body.known:
            name = body.known[key] = self.name()
            body.rest.append(Load(name, self.plan.specs[placed.node.value].dtype, buffer, self._row_index(axes)))
        return body.known[key]

    def _spill_buffer(self, v: int) -> str:
        extent = self.extent(self.spilled[v])
        return self.signature.buffer("scratch", ~v, self.plan.specs[v].dtype, extent)  # ~v: v itself has a row

    def _spill(self, placed: Placed, body: Body) -> None:
        v = placed.node.value
        register = self.registers[v]
        index = self._row_index(self.spilled[v])
        body.rest.append(Store(self._spill_buffer(v), index, register, placed.node.dtype))

    def _store(self, placed: Placed, body: Body) -> None:
        v = placed.node.value
        value = self._read_made(v, body)
        axes = placed.out_axes
        index, _ = self._index(v, tuple(AxisIndex(a) for a in axes))
        body.rest.append(Store(self.signature.buffer("out", v, placed.node.dtype), index, value, placed.node.dtype))

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

    # -- indexed access --------------------------------------------------------------------------------------------

    def _gather(self, placed: Placed, args: tuple[Argument, ...], body: Body) -> str:
        node = placed.node
        assert node.table is not None
        index, bounds = self.table_index(placed, node.table, args, body)
        self.check(bounds, node.value, body)
        name = self.name()
        buffer = self.signature.buffer("in", self.plan.aliases.get(node.table, node.table), node.dtype)
        body.rest.append(Load(name, node.dtype, buffer, index, bounds, Literal(node.dtype.type(0), node.dtype)))
        return name

    def table_index(
        self, placed: Placed, table: int, args: Sequence[Argument], body: Body
    ) -> tuple[Index, tuple[Bound, ...]]:
        """The place in a table that a gather or a scatter addresses, and where it lies inside.

        ``args`` are the values of the index operands.
        """
        terms: list[Term] = []
        bounds: list[Bound] = []
        classes = self.plan.classes[table]
        for d, entry in enumerate(placed.node.table_dims):
            inner = tuple(c for c in classes[d + 1 :] if c != ONE)
            stride: str | int = self.signature.product(product(inner)) if inner else 1
            if isinstance(entry, int):
                bounds.append(self._wrapped(args[entry], classes[d], body))
                terms.append(Term(bounds[-1].var, stride))
            elif entry.axis is not None and placed.axes[entry.axis] is not None:
                terms.append(Term(self.var(placed.axes[entry.axis]), stride))
        return Index(tuple(terms)), tuple(bounds)

    def _wrapped(self, position: Argument, extent_class: int, body: Body) -> Bound:
        """A position along an axis, counted from its end when it is negative; the bound says where it is inside."""
        extent = self.signature.product(product(() if extent_class == ONE else (extent_class,)))
        wrapped = self.name()
        body.rest.append(Let(wrapped, INT64, "wrap_index", (position, extent)))
        return Bound(wrapped, self.signature.number("zero", 0), extent)

    def check(self, bounds: tuple[Bound, ...], v: int, body: Body) -> None:
        """Let the status tell when a position that makes ``v`` is out of bounds."""
        status = self.signature.buffer("status", 0, INT64)
        body.rest.append(Check(status, bounds, self.signature.number(("code", v), v + 1)))

    def _loop_number(self, placed: Placed, d: int) -> Argument:
        """The number of the loop over a dimension of the node."""
        axis = placed.axes[d]
        return Literal(np.int64(0), INT64) if axis is None else self.var(axis)
