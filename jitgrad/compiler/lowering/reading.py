"""How the body of a kernel reads: operands at the place where a node stands, from memory, registers or rows; what it
computes and stores is in body.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from jitgrad.compiler.fusing.accesses import Leaf, Operand
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Group, Placed, Plan
from jitgrad.compiler.fusing.looptree import LoopTree, TreeLoop, build_loop_tree
from jitgrad.compiler.fusing.nodes import REDUCE
from jitgrad.compiler.loopir.nests import (
    Argument,
    Bound,
    Check,
    Index,
    Let,
    Literal,
    Load,
    Statement,
    Store,
    Term,
)  # fmt: skip
from jitgrad.compiler.loopir.quantities import product
from jitgrad.compiler.lowering.accumulate import (
    INT64,
    inner_kept,
)
from jitgrad.compiler.lowering.choices import Choice, bounds_along, find_choice
from jitgrad.compiler.lowering.places import index_of
from jitgrad.compiler.lowering.signature import Signature
from jitgrad.compiler.lowering.spills import find_spilled, ready_in
from jitgrad.opdef import AxisIndex
from jitgrad.records import dataclass
from jitgrad.spec import DType


@dataclass(eq=False)
class Body:
    """Statements of one loop body while they are collected: loads come first, in the order in which they are needed."""

    tree: TreeLoop
    loads: list[Statement] = field(default_factory=list)
    rest: list[Statement] = field(default_factory=list)
    known: dict[object, str] = field(default_factory=dict)


class Reading:
    """Writes what the statements of one group read; ``signature`` collects what they refer to."""

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
        self.packs: dict[int, tuple[Argument, ...]] = {}
        self.bodies: dict[TreeLoop, Body] = {}
        self.spilled = find_spilled(self.tree, self.makers)

    # -- names ---------------------------------------------------------------------------------------------------------

    def name(self) -> str:
        """A new name for a value."""
        return f"v{self.signature.fresh()}"

    def var(self, axis: int | None) -> str:
        """The variable of the loop over an axis."""
        return f"i{axis}"

    def extent(self, axes: Sequence[int]) -> str:
        """The int that holds the product of the extents of some axes."""
        return self.signature.product(product(tuple(c for a in axes for c in self.axis_classes[a])))

    # -- reading -------------------------------------------------------------------------------------------------------

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

    def _read_made(self, v: int, body: Body) -> Argument:
        placed = self.makers[v]
        home = ready_in(self.tree, v)
        if placed.node.form == REDUCE and inner_kept(placed):
            return self._reload(self._row_buffer(placed), placed, self._row_axes(placed), body)
        if v in self.spilled and home not in body.tree.path:
            return self._reload(self._spill_buffer(v), placed, self.spilled[v], body)
        return self.registers[v]

    # -- rows of memory that the kernel has for itself -----------------------------------------------------------------

    def _is_partial(self, placed: Placed) -> bool:
        return placed.node.value in self.group.partials

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

    # -- indexed access ------------------------------------------------------------------------------------------------

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
        fixed = [e if isinstance(e, AxisIndex) and e.axis is None else AxisIndex(None) for e in placed.node.table_dims]
        return Index(tuple(terms), self._index(table, fixed)[0].offset), tuple(bounds)

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
