"""Lowering: a fusion group becomes a kernel of the loop IR, and the list of what its buffers and ints stand for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from jitgrad.compiler.accesses import Leaf, Operand
from jitgrad.compiler.collapse import collapse_axes
from jitgrad.compiler.extents import ONE
from jitgrad.compiler.groups import Group, Placed, Plan
from jitgrad.compiler.loopir import (
    PARALLEL, PARALLEL_VECTOR, SERIAL, VECTOR, Accumulator, Argument, Bound, Buffer, Constant, Index, Kernel, Let, Literal, Load,
    Loop, Statement, Store, Term, Update,
)  # fmt: skip
from jitgrad.compiler.looptree import Entry, LoopTree, TreeLoop, build_loop_tree, outermost_reduced
from jitgrad.compiler.nodes import GATHER, MAP, REDUCE, SCAN, SCATTER, Node
from jitgrad.compiler.quantities import Quantity, product
from jitgrad.opdef import AxisIndex
from jitgrad.spec import DType

INT64 = np.dtype(np.int64)

# Numbers that stand in the code. All others are given at run time, each at its own place: where a number comes from
# an extent (the n of a mean, 1/n of its gradient), another extent must not make another kernel.
BAKED = frozenset((0.0, 1.0, -1.0))


@dataclass(frozen=True)
class Lowered:
    """A kernel, the value behind each of its buffers (None for scratch), and the quantity behind each int.

    ``constants`` are the numbers behind the kernel's constants; ``extent`` is what the parallel loop runs over.
    """

    kernel: Kernel
    values: tuple[int | None, ...]
    ints: tuple[Quantity, ...]
    constants: tuple[Literal, ...]
    extent: Quantity
    is_serial: bool
    group: Group


def lower_group(group: Group, plan: Plan) -> Lowered:
    """The kernel of a group."""
    group, axis_classes = collapse_axes(group, plan)
    return _Lowering(group, plan, axis_classes).lower()


@dataclass(eq=False)
class _Body:
    """Statements of one loop body while they are collected: loads come first, in the order in which they are needed."""

    tree: TreeLoop
    loads: list[Statement] = field(default_factory=list)
    rest: list[Statement] = field(default_factory=list)
    known: dict[object, str] = field(default_factory=dict)


class _Lowering:
    def __init__(self, group: Group, plan: Plan, axis_classes: tuple[tuple[int, ...], ...]) -> None:
        self.group = group
        self.plan = plan
        self.axis_classes = axis_classes
        self.tree: LoopTree = build_loop_tree(group)
        self.makers = {p.node.value: p for p in group.nodes}
        self.buffers: list[Buffer] = []
        self.values: list[int | None] = []
        self.buffer_names: dict[tuple[str, int], str] = {}
        self.ints: dict[Quantity, str] = {}
        self.offsets: list[tuple[str, Quantity]] = []
        self.constants: list[Literal] = []
        self.registers: dict[int, str] = {}
        self.bodies: dict[TreeLoop, _Body] = {}
        self.counter = 0
        self.numbers: dict[object, str] = {}
        self.spilled = self._find_spilled()

    # -- the whole -------------------------------------------------------------------------------------------------

    def lower(self) -> Lowered:
        if self.group.nodes[0].node.form == SCATTER:
            body = self._scatter_kernel(self.group.nodes[0])
        else:
            body = self._lower_body(self.tree.root)
        ints = {**{name: q for q, name in self.ints.items()}, **dict(self.offsets)}
        constants = tuple(Constant(f"c{k}", literal.dtype) for k, literal in enumerate(self.constants))
        kernel = Kernel(tuple(self.buffers), tuple(ints), constants, tuple(body))
        first = self.axis_classes[0] if self.axis_classes else ()
        extent = product(first) if not self.group.is_serial else Quantity()
        numbers = tuple(self.constants)
        return Lowered(
            kernel, tuple(self.values), tuple(ints.values()), numbers, extent, self.group.is_serial, self.group
        )

    def _lower_body(self, tree: TreeLoop) -> list[Statement]:
        body = self.bodies[tree] = _Body(tree)
        for item in tree.items:
            if isinstance(item, TreeLoop):
                self._open_accumulators(item, body)
                inner = self._lower_body(item)
                extent = self._int(product(self.axis_classes[item.axis]))
                body.rest.append(Loop(f"i{item.axis}", extent, self._kind(item), tuple(inner)))
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

    # -- names -----------------------------------------------------------------------------------------------------

    def _name(self) -> str:
        self.counter += 1
        return f"v{self.counter - 1}"

    def _int(self, quantity: Quantity) -> str:
        return self.ints.setdefault(quantity, f"n{len(self.ints)}")

    def _offset(self, number: int) -> str:
        """An int of its own: numbers that happen to be equal today are not one."""
        name = f"o{len(self.offsets)}"
        self.offsets.append((name, Quantity((), number)))
        return name

    def _number(self, literal: Literal) -> Argument:
        """A number as it stands in the code, or as a run-time constant of its own."""
        if literal.dtype.kind == "b" or not np.isfinite(literal.value) or float(literal.value) in BAKED:
            return literal
        self.constants.append(literal)
        return f"c{len(self.constants) - 1}"

    def _buffer(self, role: str, value: int, dtype: DType, extent: str | None = None) -> str:
        key = (role, value)
        if key not in self.buffer_names:
            name = f"{role}{sum(1 for r, _ in self.buffer_names if r == role)}"
            self.buffer_names[key] = name
            self.buffers.append(Buffer(name, dtype, role, extent))
            self.values.append(None if role == "scratch" else value)
        return self.buffer_names[key]

    # -- accumulators ----------------------------------------------------------------------------------------------

    def _is_partial(self, placed: Placed) -> bool:
        return placed.node.value in self.group.partials

    def _inner_kept(self, placed: Placed) -> tuple[int, ...]:
        """Kept axes inside the outermost combined one: over these the accumulator is a row in memory."""
        first = outermost_reduced(placed)
        reduced = {placed.axes[d] for d in placed.node.along}
        return tuple(sorted(a for a in placed.axes if a is not None and a not in reduced and first is not None and a > first))

    def _register_axis(self, placed: Placed) -> int | None:
        """The axis whose loop, with all loops inside it, combines into a register; None when rows are combined directly."""
        last_kept = max(self._inner_kept(placed), default=-1)
        reduced = (a for d in placed.node.along if (a := placed.axes[d]) is not None)
        return min((a for a in reduced if a > last_kept), default=None)

    def _accumulating(self, loop: TreeLoop) -> list[Placed]:
        """The reductions and scans that run inside a loop, over its axis too."""
        return [
            p for p in self.group.nodes
            if p.node.form in (REDUCE, SCAN) and loop.axis in {p.axes[d] for d in p.node.along}
            and loop in self.tree.home[p.node.value].path
        ]  # fmt: skip

    def _open_accumulators(self, loop: TreeLoop, body: _Body) -> None:
        for placed in self._accumulating(loop):
            node = placed.node
            init = identity_of(node.combine, node.dtype if not node.combine.startswith("arg") else self._operand_dtype(node))
            if loop.axis == outermost_reduced(placed) and self._inner_kept(placed):
                self._fill(placed, init, body)
            if loop.axis == self._register_axis(placed):
                name = f"acc{self.counter}"
                self.counter += 1
                self.registers[node.value] = name
                body.rest.append(Accumulator(name, init.dtype, node.combine, init))

    def _row_axes(self, placed: Placed) -> tuple[int, ...]:
        """The axes of the memory in which a reduction accumulates: those kept inside, and those of loops it must outlive."""
        return tuple(sorted({*self._inner_kept(placed), *self.spilled.get(placed.node.value, ())}))

    def _row_buffer(self, placed: Placed) -> str:
        node = placed.node
        extent = self._int(self._extent_of(self._row_axes(placed)))
        if self._is_partial(placed):
            return self._buffer("partial", self.group.partials[node.value], node.dtype, extent)
        return self._buffer("scratch", node.value, node.dtype, extent)

    def _extent_of(self, axes: Sequence[int]) -> Quantity:
        return product(tuple(c for a in axes for c in self.axis_classes[a]))

    def _row_index(self, axes: Sequence[int]) -> Index:
        terms = []
        for position, axis in enumerate(axes):
            inner = tuple(axes[position + 1 :])
            terms.append(Term(f"i{axis}", self._int(self._extent_of(inner)) if inner else 1))
        return Index(tuple(terms))

    def _fill(self, placed: Placed, init: Literal, body: _Body) -> None:
        index = self._row_index(self._row_axes(placed))
        statement: Statement = Store(self._row_buffer(placed), index, init, init.dtype)
        for position, axis in enumerate(reversed(self._inner_kept(placed))):
            extent = self._int(product(self.axis_classes[axis]))
            statement = Loop(f"i{axis}", extent, SERIAL if position else VECTOR, (statement,))
        body.rest.append(statement)

    def _close_accumulators(self, loop: TreeLoop, body: _Body) -> None:
        for placed in self._accumulating(loop):
            node = placed.node
            if node.form == SCAN or loop.axis != self._register_axis(placed):
                continue
            name = self.registers[node.value]
            result = f"{name}_at" if node.combine.startswith("arg") else name
            self.registers[node.value] = result
            if self._inner_kept(placed):
                self._combine_row(placed, result, body)
            elif node.value in self.spilled:
                self._spill(placed, body)
            elif self._is_partial(placed):
                body.rest.append(Store(self._row_buffer(placed), Index(()), result, node.dtype))

    def _combine_row(self, placed: Placed, value: Argument, body: _Body) -> str:
        """``row[kept] = combine(row[kept], value)``; gives the new element."""
        node = placed.node
        buffer, index = self._row_buffer(placed), self._row_index(self._row_axes(placed))
        before, after = self._name(), self._name()
        body.rest.append(Load(before, node.dtype, buffer, index))
        body.rest.append(Let(after, node.dtype, node.combine, (before, value)))
        body.rest.append(Store(buffer, index, after, node.dtype))
        return after

    # -- computing -------------------------------------------------------------------------------------------------

    def _operand_dtype(self, node: Node) -> DType:
        leaf = node.operands[0].leaves[0]
        return leaf.source.dtype if isinstance(leaf.source, Literal) else self.plan.specs[leaf.source].dtype

    def _compute(self, placed: Placed, body: _Body) -> None:
        node = placed.node
        args = tuple(self._read(operand, placed, body) for operand in node.operands)
        if node.form == GATHER:
            self.registers[node.value] = self._gather(placed, args, body)
        elif node.form == MAP:
            self.registers[node.value] = self._apply(node, node.dtype, args, placed, body)
        else:
            self._accumulate(placed, args, body)
        if node.value in self.spilled and node.value not in self.tree.completes:
            self._spill(placed, body)

    def _apply(self, node: Node, dtype: DType, args: tuple[Argument, ...], placed: Placed, body: _Body) -> str:
        if node.op.startswith("iota"):
            axis = placed.axes[int(node.op[4:])]
            args, op = ((f"i{axis}" if axis is not None else Literal(np.int64(0), INT64)),), "cast"
        else:
            op = node.op
        if op == "identity" and isinstance(args[0], str):
            return args[0]
        name = self._name()
        body.rest.append(Let(name, dtype, op, args))
        return name

    def _accumulate(self, placed: Placed, args: tuple[Argument, ...], body: _Body) -> None:
        node = placed.node
        value: Argument = args[0]
        is_arg = node.combine.startswith("arg")
        if node.op != "identity":
            value = self._apply(node, node.dtype, args, placed, body)
        elif not is_arg and self._operand_dtype(node) != node.dtype:
            name = self._name()
            body.rest.append(Let(name, node.dtype, "cast", (value,)))
            value = name
        if outermost_reduced(placed) is None:
            self.registers[node.value] = self._alone(node, value, body)
            return
        if self._register_axis(placed) is None:
            element = self._combine_row(placed, value, body)
            if node.form == SCAN:
                self.registers[node.value] = element
            return
        acc = self.registers[node.value]
        at = self._position(placed, body) if is_arg else None
        dtype = self._operand_dtype(node) if is_arg else node.dtype
        body.rest.append(Update(acc, dtype, node.combine, value, at))
        if node.form == SCAN:
            name = self._name()
            body.rest.append(Let(name, node.dtype, "identity", (acc,)))
            self.registers[node.value] = name

    def _alone(self, node: Node, value: Argument, body: _Body) -> str:
        """A reduction over extents of 1 only: the value itself, or position 0."""
        name = self._name()
        if node.combine.startswith("arg"):
            body.rest.append(Let(name, node.dtype, "cast", (Literal(np.int64(0), INT64),)))
        else:
            body.rest.append(Let(name, node.dtype, "cast", (value,)))
        return name

    def _position(self, placed: Placed, body: _Body) -> str:
        """The place along the combined axes, counted in row-major order."""
        axes = [a for d in placed.node.along if (a := placed.axes[d]) is not None]
        position = f"i{axes[0]}"
        for axis in axes[1:]:
            extent = self._int(product(self.axis_classes[axis]))
            for op, other in (("multiply", extent), ("add", f"i{axis}")):
                name = self._name()
                body.rest.append(Let(name, INT64, op, (position, other)))
                position = name
        return position

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, operand: Operand, placed: Placed, body: _Body) -> Argument:
        pieces = [self._read_leaf(leaf, operand.fill, placed, body) for leaf in operand.leaves]
        result = pieces[-1]
        for leaf, piece in zip(operand.leaves[-2::-1], pieces[-2::-1], strict=True):
            result = self._select(leaf, piece, result, placed, body)
        return result

    def _select(self, leaf: Leaf, piece: Argument, other: Argument, placed: Placed, body: _Body) -> str:
        """``piece`` where the guards of its leaf hold, else ``other``."""
        condition: Argument | None = None
        boolean = np.dtype(np.bool_)
        for bound in self._bounds(leaf, placed):
            for op, limit in (("greater_equal", bound.lo), ("less", bound.hi)):
                if limit is None:
                    continue
                test = self._name()
                body.rest.append(Let(test, boolean, op, (bound.var, limit)))
                if condition is not None:
                    both = self._name()
                    body.rest.append(Let(both, boolean, "logical_and", (condition, test)))
                    test = both
                condition = test
        assert condition is not None
        name = self._name()
        dtype = self._dtype_of(leaf)
        body.rest.append(Let(name, dtype, "where", (condition, piece, other)))
        return name

    def _dtype_of(self, leaf: Leaf) -> DType:
        return leaf.source.dtype if isinstance(leaf.source, Literal) else self.plan.specs[leaf.source].dtype

    def _read_leaf(self, leaf: Leaf, fill: Literal | None, placed: Placed, body: _Body) -> Argument:
        v = leaf.source
        if isinstance(v, Literal):
            number = self._number(v)
            return number if not leaf.guards or fill is None else self._select(leaf, number, fill, placed, body)
        if v in self.makers:
            return self._read_made(v, body)
        dims = tuple(
            AxisIndex(None if i.axis is None else placed.axes[i.axis], i.scale, i.offset) for i in leaf.dims
        )
        bounds = self._bounds(leaf, placed)
        index, depth = self._index(v, dims)
        depth = max([depth, *(int(b.var[1:]) for b in bounds)])
        buffer = self._buffer("in", self.plan.aliases.get(v, v), self.plan.specs[v].dtype)
        dtype = self.plan.specs[v].dtype
        outside = (fill or Literal(dtype.type(0), dtype)) if bounds else None
        return self._load(buffer, dtype, index, bounds, outside, depth, body)

    def _load(
        self, buffer: str, dtype: DType, index: Index, bounds: tuple[Bound, ...], fill: Literal | None, depth: int, body: _Body
    ) -> str:  # fmt: skip
        """Load once per body, in the outermost body in which all variables of the index are known."""
        home = next((self.bodies[t] for t in body.tree.path if t.axis == depth), body)
        key = (buffer, index, bounds, fill)
        if key not in home.known:
            name = home.known[key] = self._name()
            home.loads.append(Load(name, dtype, buffer, index, bounds, fill))
        return home.known[key]

    def _bounds(self, leaf: Leaf, placed: Placed) -> tuple[Bound, ...]:
        bounds = []
        for guard in leaf.guards:
            axis = placed.axes[guard.axis]
            if axis is None:
                continue
            n = placed.node.shape[guard.axis]
            lo = self._guard_int(leaf, guard.axis, guard.lo, "lo") if guard.lo > 0 else None
            hi = self._guard_int(leaf, guard.axis, guard.hi, "hi") if guard.hi < n else None
            bounds.append(Bound(f"i{axis}", lo, hi))
        return tuple(bounds)

    def _guard_int(self, leaf: Leaf, axis: int, number: int, side: str) -> str:
        key = (leaf, axis, side)
        if key not in self.numbers:
            self.numbers[key] = self._offset(number)
        return self.numbers[key]

    def _index(self, v: int, dims: Sequence[AxisIndex]) -> tuple[Index, int]:
        """The place of ``v[dims]`` in its flat buffer, and the innermost axis that it depends on (-1: none)."""
        terms: list[Term] = []
        offset, depth = 0, -1
        shape, classes = self.plan.specs[v].known_shape, self.plan.classes[v]
        for d, index in enumerate(dims):
            inner = tuple(c for c in classes[d + 1 :] if c != ONE)
            offset += index.offset * math.prod(shape[d + 1 :])
            if index.axis is None:
                continue
            depth = max(depth, index.axis)
            stride: str | int
            if index.scale in (1, -1) and not inner:
                stride = index.scale
            elif index.scale in (1, -1):
                stride = self._int(product(inner, index.scale))
            else:
                stride = self._stride_int(v, d, index.scale, inner)
            terms.append(Term(f"i{index.axis}", stride))
        terms.sort(key=lambda term: int(term.var[1:]))
        return Index(tuple(terms), self._offset_int(v, tuple(dims), offset) if offset else None), depth

    def _stride_int(self, v: int, d: int, scale: int, inner: tuple[int, ...]) -> str:
        return self._int(product(inner, scale))

    def _offset_int(self, v: int, dims: tuple[AxisIndex, ...], offset: int) -> str:
        key = (v, dims)
        if key not in self.numbers:
            self.numbers[key] = self._offset(offset)
        return self.numbers[key]

    # -- values made in this kernel --------------------------------------------------------------------------------

    def _read_made(self, v: int, body: _Body) -> Argument:
        placed = self.makers[v]
        home = self._ready_in(v)
        if placed.node.form == REDUCE and self._inner_kept(placed):
            return self._reload(self._row_buffer(placed), placed, self._row_axes(placed), body)
        if v in self.spilled and home not in body.tree.path:
            return self._reload(self._spill_buffer(v), placed, self.spilled[v], body)
        return self.registers[v]

    def _reload(self, buffer: str, placed: Placed, axes: Sequence[int], body: _Body) -> str:
        key = ("reload", buffer)
        if key not in body.known:
            name = body.known[key] = self._name()
            body.rest.append(Load(name, self.plan.specs[placed.node.value].dtype, buffer, self._row_index(axes)))
        return body.known[key]

    def _ready_in(self, v: int) -> TreeLoop:
        """The body in which a value made here is in a register: where it is computed, or where its reduction is complete."""
        done = self.tree.completes.get(v)
        if done is None:
            return self.tree.home[v]
        assert done.parent is not None
        return done.parent

    def _find_spilled(self) -> dict[int, tuple[int, ...]]:
        """Values used in another loop than the one that makes them → the axes of the row that keeps them."""
        spilled: dict[int, tuple[int, ...]] = {}
        for user, reads in self._uses(self.tree.root):
            for v in reads:
                home = self._ready_in(v)
                if home not in user.path:
                    shared = [t for t in home.path if t in user.path][-1]
                    axes = tuple(t.axis for t in home.path if t not in shared.path)
                    spilled[v] = max(axes, spilled.get(v, ()), key=len)
        return spilled

    def _uses(self, tree: TreeLoop) -> Iterator[tuple[TreeLoop, list[int]]]:
        """Each body with the values made in this kernel that an entry of it reads."""
        for item in tree.items:
            if isinstance(item, TreeLoop):
                yield from self._uses(item)
            else:
                reads = (item.placed.node.value,) if item.stores else item.placed.node.reads
                yield tree, [v for v in reads if v in self.makers]

    def _spill_buffer(self, v: int) -> str:
        extent = self._int(self._extent_of(self.spilled[v]))
        return self._buffer("scratch", v, self.plan.specs[v].dtype, extent)

    def _spill(self, placed: Placed, body: _Body) -> None:
        v = placed.node.value
        register = self.registers[v]
        index = self._row_index(self.spilled[v])
        body.rest.append(Store(self._spill_buffer(v), index, register, placed.node.dtype))

    def _store(self, placed: Placed, body: _Body) -> None:
        v = placed.node.value
        value = self._read_made(v, body)
        axes = placed.out_axes
        index, _ = self._index(v, tuple(AxisIndex(a) for a in axes))
        body.rest.append(Store(self._buffer("out", v, placed.node.dtype), index, value, placed.node.dtype))

    # -- indexed access --------------------------------------------------------------------------------------------

    def _gather(self, placed: Placed, args: tuple[Argument, ...], body: _Body) -> str:
        node = placed.node
        assert node.table is not None
        index = self._table_index(placed, node.table, args, body)
        name = self._name()
        buffer = self._buffer("in", self.plan.aliases.get(node.table, node.table), node.dtype)
        body.rest.append(Load(name, node.dtype, buffer, index))
        return name

    def _table_index(self, placed: Placed, table: int, args: tuple[Argument, ...], body: _Body) -> Index:
        terms: list[Term] = []
        classes = self.plan.classes[table]
        for d, entry in enumerate(placed.node.table_dims):
            inner = tuple(c for c in classes[d + 1 :] if c != ONE)
            stride: str | int = self._int(product(inner)) if inner else 1
            if isinstance(entry, int):
                extent = self._int(product(() if classes[d] == ONE else (classes[d],)))
                wrapped = self._name()
                body.rest.append(Let(wrapped, INT64, "wrap_index", (args[entry], extent)))
                terms.append(Term(wrapped, stride))
            elif entry.axis is not None and placed.axes[entry.axis] is not None:
                terms.append(Term(f"i{placed.axes[entry.axis]}", stride))
        return Index(tuple(terms))

    def _scatter_kernel(self, placed: Placed) -> list[Statement]:
        """Zeros, then one addition per update, in order: duplicates add up in a fixed order."""
        node = placed.node
        out = self._buffer("out", node.value, node.dtype)
        total = self._int(product(tuple(c for c in self.plan.classes[node.value] if c != ONE)))
        zero = Literal(node.dtype.type(0), node.dtype)
        clear = Loop("j", total, VECTOR, (Store(out, Index((Term("j"),)), zero, node.dtype),))
        trees = [self.tree.root]
        axes = [a for a in placed.axes if a is not None]
        for axis in axes:
            trees.append(TreeLoop(axis, trees[-1]))
        bodies = [self.bodies.setdefault(tree, _Body(tree)) for tree in trees]
        body = bodies[-1]
        args = tuple(self._read(operand, placed, body) for operand in node.operands)
        index = self._table_index(placed, node.value, args[1:], body)
        before, after = self._name(), self._name()
        body.rest.append(Load(before, node.dtype, out, index))
        body.rest.append(Let(after, node.dtype, "add", (before, args[0])))
        body.rest.append(Store(out, index, after, node.dtype))
        free = {placed.axes[e.axis] for e in node.table_dims if isinstance(e, AxisIndex) and e.axis is not None}
        statements: list[Statement] = body.loads + body.rest
        for position, axis in enumerate(reversed(axes)):
            kind = VECTOR if position == 0 and axis in free else SERIAL
            statements = [Loop(f"i{axis}", self._int(product(self.axis_classes[axis])), kind, tuple(statements))]
            outer = bodies[len(axes) - 1 - position]
            statements = outer.loads + outer.rest + statements
        return [clear, *statements]


def identity_of(combine: str, dtype: DType) -> Literal:
    """The value that a combination starts from."""
    if combine in ("add", "logical_or"):
        value = dtype.type(0)
    elif combine in ("multiply", "logical_and"):
        value = dtype.type(1)
    else:
        lowest = combine in ("maximum", "argmax")
        if dtype.kind == "f":
            value = dtype.type(-np.inf if lowest else np.inf)
        elif dtype.kind == "b":
            value = dtype.type(not lowest)
        else:
            info = np.iinfo(dtype)
            value = dtype.type(info.min if lowest else info.max)
    return Literal(value, dtype)

