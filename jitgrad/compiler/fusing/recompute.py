"""Recomputing: which cheap values are made again by the kernel that reads them, instead of going through memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace

from jitgrad.compiler.fusing.accesses import Leaf, Operand, substitute
from jitgrad.compiler.fusing.drafts import CHEAP, Draft
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Axes, Placed
from jitgrad.compiler.fusing.nodes import MAP, SCATTER, Node
from jitgrad.opdef import AxisIndex
from jitgrad.records import dataclass

RECOMPUTE_LIMIT = 8


def is_cheap(node: Node) -> bool:
    """Whether a node computes each element by one cheap op of inputs read at the same place."""
    if node.form != MAP or node.op not in CHEAP or node.moved:
        return False
    return all(len(o.leaves) == 1 for o in node.operands)


def divides_rows(node: Node) -> bool:
    """Whether a division is by what is the same along an axis of the dividend: kernels multiply by its reciprocal in a
    loop over that axis, and divide elsewhere.
    """
    if node.op != "divide" or node.dtype.kind != "f":
        return False
    x, divisor = ({i.axis for i in o.leaves[0].dims} - {None} for o in node.operands)
    return not x <= divisor


def with_sources(node: Node, names: Mapping[int, int]) -> Node:
    """The node reading other values in place of those in ``names``."""

    def renamed(leaf: Leaf) -> Leaf:
        return replace(leaf, source=names.get(leaf.source, leaf.source)) if isinstance(leaf.source, int) else leaf

    operands = tuple(replace(o, leaves=tuple(map(renamed, o.leaves))) for o in node.operands)
    return replace(node, operands=operands)


def _over(draft: Draft, classes: Sequence[int], axes: Axes) -> tuple[int, ...]:
    """The extent classes of what is made over these axes of a draft."""
    return tuple([c if a is None else draft.axes[a] for c, a in zip(classes, axes, strict=True)])


@dataclass(eq=False)
class Floating:
    """Cheap nodes that read arrays from outside only: they have no home, each group that reads one makes it for
    itself.
    """

    nodes: dict[int, Node] = field(default_factory=dict)

    def accepts(self, node: Node, is_outside: Callable[[int], bool]) -> bool:
        """Whether a node floats: it and what it needs are cheap together, and read at most two arrays."""
        if not is_cheap(node) or not all(v in self.nodes or is_outside(v) for v in node.reads):
            return False
        cost = CHEAP[node.op] + sum(CHEAP[self.nodes[v].op] for v in self._closure(node))
        return cost <= RECOMPUTE_LIMIT and len(self.real_reads(node)) <= 2

    def _closure(self, node: Node) -> list[int]:
        """The floating values that a node needs, directly or through others."""
        found: dict[int, None] = {}
        pending = list(node.reads)
        while pending:
            v = pending.pop()
            if v in self.nodes and v not in found:
                found[v] = None
                pending += self.nodes[v].reads
        return list(found)

    def real_reads(self, node: Node) -> list[int]:
        """What a node reads once its floating inputs are made on the spot."""
        if self.nodes.keys().isdisjoint(node.reads):
            return list(node.reads)
        makers = (node, *(self.nodes[v] for v in self._closure(node)))
        return [v for v in dict.fromkeys(v for n in makers for v in n.reads) if v not in self.nodes]

    def taken_by(self, node: Node) -> list[int]:
        """Floating values that a node reads by address, at another place or in a scatter: these need a home."""
        if not self.nodes:
            return []
        taken = [v for v in node.reads if v in node.moved or v == node.table or node.form == SCATTER]
        return [v for v in taken if v in self.nodes]

    def settle_in(self, draft: Draft, node: Node, axes: Axes, new_value: Callable[[Node], int]) -> Node:
        """The node with its floating inputs made in ``draft``, over the axes at which it reads them, whose extents they
        take: their own may be those of nothing that is stored.
        """

        def settled(leaf: Leaf) -> Leaf:
            v = leaf.source
            if not isinstance(v, int) or v not in self.nodes:
                return leaf
            out_axes = tuple(None if i.axis is None else axes[i.axis] for i in leaf.dims)
            if (v, out_axes) not in draft.copies:
                original = self.settle_in(draft, self.nodes[v], out_axes, new_value)
                made = replace(original, classes=_over(draft, original.classes, out_axes))
                made = replace(made, value=new_value(made))
                draft.append(Placed(made, out_axes))
                draft.copies[v, out_axes] = made.value
            return replace(leaf, source=draft.copies[v, out_axes])

        if not any(v in self.nodes for v in node.reads):
            return node
        return replace(node, operands=tuple(replace(o, leaves=tuple(map(settled, o.leaves))) for o in node.operands))


@dataclass(frozen=True)
class Recomputing:
    """Makes again, in a group that reads it, a cheap value of an earlier group whose own inputs are in memory anyway.

    A derivative factor such as 1 - h*h depends on forward values only, so it lands in the forward group; read by the
    backward group it would be one more array to write and read.
    """

    makers: Mapping[int, Node]  # values that another group makes, element by element
    kept: Collection[int]  # values that must be in memory
    stored: Collection[int]  # values that go through memory
    new_value: Callable[[Node], int]
    new_element: Callable[[Node], int]  # a value of the shape of a node's domain

    @functools.cached_property
    def order(self) -> dict[int, int]:
        """The place of each maker among them."""
        return {v: position for position, v in enumerate(self.makers)}

    def rewrite(self, draft: Draft) -> None:
        """Give a group its own copies of the cheap values that it reads."""
        loaded = {v for p in draft.nodes for v in p.node.reads if v not in draft.out_axes}
        copies: dict[tuple[int, Axes], int] = {}
        result: list[Placed] = []
        for placed in draft.nodes:
            before = placed.node.operands
            operands = tuple([self._copied(o, placed, draft, loaded, copies, result) for o in before])
            if any(map(operator.is_not, operands, before)):
                placed = replace(placed, node=replace(placed.node, operands=operands))
            result.append(placed)
        if result != draft.nodes:
            draft.replace_nodes(result)

    def _copied(
        self,
        operand: Operand,
        placed: Placed,
        draft: Draft,
        loaded: set[int],
        copies: dict[tuple[int, Axes], int],
        result: list[Placed],
    ) -> Operand:
        """The operand, reading a copy made in this group if its value is cheap to make."""
        leaf = operand.leaves[0]
        v = leaf.source
        if not isinstance(v, int) or len(operand.leaves) > 1 or v in draft.out_axes or v in self.kept:
            return operand
        if not leaf.is_selection:
            return self._copied_elsewhere(operand, placed, loaded, result)
        axes = tuple(None if i.axis is None else placed.axes[i.axis] for i in leaf.dims)
        if (v, axes) not in copies:
            copies[v, axes] = self._copy(v, axes, draft, loaded, result)
        if copies[v, axes] == v:
            return operand
        return Operand((replace(leaf, source=copies[v, axes]),), operand.fill)

    def _copy(self, v: int, axes: Axes, draft: Draft, loaded: set[int], result: list[Placed]) -> int:
        """A copy of a value over the given axes, whose extents it takes, or the value itself when it is not cheap."""
        recipe = self._recipe(v)
        inside = {node.value for node in recipe}
        leaves = {u for node in recipe for u in node.reads} - inside
        if not recipe or any(node.classes != recipe[-1].classes for node in recipe):
            return v
        further = leaves - loaded
        if len(further) > 1 and (recipe[-1].dtype.kind == "b" or len(further & _read_over_all_axes(recipe)) > 1):
            return v
        names: dict[int, int] = {}
        classes = _over(draft, recipe[-1].classes, axes)
        for node in recipe:
            made = replace(with_sources(node, names), classes=classes)
            names[node.value] = self.new_value(made)
            result.append(Placed(replace(made, value=names[node.value]), axes))
        loaded |= leaves
        return names[v]

    def _copied_elsewhere(self, operand: Operand, placed: Placed, loaded: set[int], result: list[Placed]) -> Operand:
        """As `_copied`, for a value read at another place than its reader's, or not everywhere.

        Only where all that it is made of is read here anyhow: -4*r beside four neighbours r of a grid.
        """
        leaf, reader = operand.leaves[0], placed.node
        assert isinstance(leaf.source, int)
        recipe = self._recipe(leaf.source, loaded - {leaf.source})
        inside = {node.value for node in recipe}
        leaves = {u for node in recipe for u in node.reads} - inside
        if not recipe or not leaves or leaves - loaded or any(n.classes != recipe[-1].classes for n in recipe):
            return operand
        if any(inner.guards for node in recipe for o in node.operands for inner in o.leaves):
            return operand
        here = tuple(AxisIndex(d if c != ONE else None) for d, c in enumerate(reader.classes))
        names: dict[int, int] = {}

        def moved(inner: Leaf) -> Leaf:
            if not isinstance(inner.source, int):
                return inner
            if inner.source in names:
                return Leaf(names[inner.source], here)
            return Leaf(inner.source, tuple(substitute(index, leaf.dims) for index in inner.dims), leaf.guards)

        for node in recipe:
            operands = tuple(replace(o, leaves=tuple(map(moved, o.leaves))) for o in node.operands)
            made = replace(
                node, operands=operands, shape=reader.shape, classes=reader.classes,
                out_dims=tuple(i.axis for i in here),
            )  # fmt: skip
            names[node.value] = self.new_element(made)
            result.append(Placed(replace(made, value=names[node.value]), placed.axes))
        return Operand((Leaf(names[leaf.source], here, leaf.guards),), operand.fill)

    def _recipe(self, v: int, at_hand: Collection[int] = ()) -> list[Node]:
        """The cheap nodes that make ``v`` from values in memory or of fewer axes, in order; none when it is not cheap.

        They begin with values ``at_hand``, however cheap these are.
        """
        recipe: dict[int, Node] = {}
        pending, cost = [(v, True, False)], 0
        while pending:
            u, in_place, is_smaller = pending.pop()
            node = self.makers.get(u)
            if (u in recipe and in_place) or (u != v and (node is None or u in self.kept or u in at_hand)):
                continue
            if node is None or not in_place or not is_cheap(node):
                if u != v and (u in self.stored or is_smaller) and u not in recipe:
                    continue
                return []
            cost += CHEAP[node.op]
            if cost > RECOMPUTE_LIMIT:
                return []
            recipe[u] = node
            pending += [
                (leaf.source, reads_in_place(leaf, node), not _reads_all_axes(leaf, node))
                for o in node.operands for leaf in o.leaves if isinstance(leaf.source, int)
            ]  # fmt: skip
        if any(
            leaf.source in recipe and not reads_in_place(leaf, node)
            for node in recipe.values() for operand in node.operands for leaf in operand.leaves
        ):  # fmt: skip
            return []  # a copy is made at one place: not y - y.T
        return sorted(recipe.values(), key=lambda node: self.order[node.value])


def _read_over_all_axes(recipe: Collection[Node]) -> set[int]:
    """The arrays that some nodes read along each of their axes: others are smaller, and stay in cache."""
    leaves = ((leaf, node) for node in recipe for operand in node.operands for leaf in operand.leaves)
    return {leaf.source for leaf, node in leaves if isinstance(leaf.source, int) and _reads_all_axes(leaf, node)}


def _reads_all_axes(leaf: Leaf, node: Node) -> bool:
    return sum(i.axis is not None for i in leaf.dims) == sum(c != ONE for c in node.classes)


def reads_in_place(leaf: Leaf, node: Node) -> bool:
    """Whether a node reads each element of a value of its own shape at the element's own place."""
    return tuple(i.axis for i in leaf.dims) == tuple(None if c == ONE else d for d, c in enumerate(node.classes))
