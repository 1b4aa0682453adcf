"""Fusion: which nodes share a loop nest, what is stored between nests, and what is computed again instead.

A group is a set of nodes over common axes, run by one kernel. Its first axis is cut in chunks that run in parallel, so
a reduction over that axis gives one partial result per chunk, combined by a serial group afterwards; a reduction over
inner axes is complete inside the nest, and later nodes of the group may use it while the row is still in cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from jitgrad.compiler.accesses import Leaf, Operand
from jitgrad.compiler.extents import ONE, ExtentClasses
from jitgrad.compiler.nodes import MAP, REDUCE, SCAN, SCATTER, ClusterNodes, Node, Product
from jitgrad.opdef import AxisIndex
from jitgrad.spec import TensorSpec

MOST_NODES = 160  # per group: beyond that, registers spill and compile time grows faster than the code

# What it costs to compute an op again, against storing its result and loading it back (about 4 on this scale).
CHEAP = {
    "add": 1, "subtract": 1, "multiply": 1, "negative": 1, "square": 1, "identity": 1, "cast": 1, "where": 1,
    "relu": 1, "maximum": 1, "minimum": 1, "absolute": 1, "sign": 1, "clip": 1, "equal": 1, "not_equal": 1, "less": 1,
    "less_equal": 1, "greater": 1, "greater_equal": 1, "logical_and": 1, "logical_or": 1, "logical_not": 1, "divide": 3,
    "sqrt": 3, "reciprocal": 3,
}  # fmt: skip
RECOMPUTE_LIMIT = 8


@dataclass(frozen=True, slots=True)
class Placed:
    """A node in a group; ``axes`` gives the group axis of each domain dimension (None for an extent of 1)."""

    node: Node
    axes: tuple[int | None, ...]

    @property
    def out_axes(self) -> tuple[int | None, ...]:
        """The group axis of each output dimension."""
        return tuple(None if d is None else self.axes[d] for d in self.node.out_dims)


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes over common axes; ``stored`` are the values that leave it through memory; ``partials`` node value → partial."""

    number: int
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    nodes: tuple[Placed, ...]
    is_serial: bool
    stored: frozenset[int]
    partials: dict[int, int]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a value goes through memory: who makes it, who reads it, and a sentence."""

    producer: int
    consumer: int
    reason: str

    def __str__(self) -> str:
        return f"%{self.producer} → %{self.consumer}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """Groups and products in running order. ``specs`` holds partial results too, whose first extent is the number of chunks.

    ``chunked`` maps a partial value to the group that fills it.
    """

    steps: tuple[Group | Product, ...]
    specs: dict[int, TensorSpec]
    classes: dict[int, tuple[int, ...]]
    chunked: dict[int, int]
    refusals: tuple[Refusal, ...]
    aliases: dict[int, int]


@dataclass(eq=False)
class _Draft:
    """A group while it grows."""

    axes: list[int]
    extents: list[int]
    nodes: list[Placed] = field(default_factory=list)
    is_serial: bool = False
    incomplete: set[int] = field(default_factory=set)  # reduced over the parallel axis: not usable inside
    partials: dict[int, int] = field(default_factory=dict)
    out_axes: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    copies: dict[tuple[int, tuple[int | None, ...]], int] = field(default_factory=dict)  # floating values made here


def is_sequential(node: Node) -> bool:
    """Whether a node runs along its axes in order, so that these cannot be cut in chunks."""
    return node.form == SCAN or node.combine.startswith("arg")


def plan_fusion(
    cluster: ClusterNodes, specs: Sequence[TensorSpec], classes: ExtentClasses
) -> Plan:
    """Groups and products of a cluster, in an order in which they can run."""
    planner = _Planner(cluster, list(specs), classes)
    for item in cluster.items:
        planner.place(item)
    planner.recompute_cheap_values()
    return planner.plan()


class _Planner:
    def __init__(self, cluster: ClusterNodes, specs: list[TensorSpec], classes: ExtentClasses) -> None:
        self.cluster = cluster
        self.specs = specs
        self.classes = classes
        self.steps: list[_Draft | Product] = []
        self.home: dict[int, int] = {}  # value → number of the step that makes it
        self.final: dict[int, int] = {}  # value of an outer reduction → step that combines its partials
        self.readers: dict[int, list[int]] = {}  # value from memory → steps that read it
        self.class_of: dict[int, tuple[int, ...]] = {}
        self.chunk_class: dict[int, int] = {}
        self.chunked: dict[int, int] = {}
        self.refusals: list[Refusal] = []
        self.floating: dict[int, Node] = {}  # cheap nodes of arrays from outside: made wherever they are read

    # -- placing ---------------------------------------------------------------------------------------------------

    def place(self, item: Node | Product) -> None:
        if isinstance(item, Product):
            self.home[item.value] = len(self.steps)
            self.steps.append(item)
            return
        if self._floats(item):
            self.floating[item.value] = item
            return
        self._settle(item)
        axes: tuple[int | None, ...] | None
        for number in self._candidates(item):
            draft = self.steps[number]
            assert isinstance(draft, _Draft)
            axes = self._fit(draft, item)
            if axes is not None:
                self._enter(number, item, axes)
                return
        self._open(item)

    def _floats(self, node: Node) -> bool:
        """Whether a node is cheap and reads arrays from outside only, so that each reader can make it for itself."""
        if node.form != MAP or node.op not in CHEAP or node.value in self.cluster.kept:
            return False
        if not all(len(o.leaves) == 1 and o.leaves[0].is_selection for o in node.operands):
            return False
        if any(v not in self.floating and self._step_of(v) >= 0 for v in node.reads):
            return False
        closure = [self.floating[v] for v in self._closure(node)]
        outside = {v for n in (*closure, node) for v in n.reads if v not in self.floating}
        return CHEAP[node.op] + sum(CHEAP[n.op] for n in closure) <= RECOMPUTE_LIMIT and len(outside) <= 2

    def _closure(self, node: Node) -> list[int]:
        """The floating values that a node needs, directly or through others, inputs first."""
        found: dict[int, None] = {}
        pending = [v for v in node.reads if v in self.floating]
        while pending:
            v = pending.pop()
            found.pop(v, None)
            found[v] = None
            pending += [u for u in self.floating[v].reads if u in self.floating]
        return list(found)[::-1]

    def _settle(self, node: Node) -> None:
        """Give a home to floating values that the node reads by address or at another index."""
        for v in node.reads:
            moved = any(leaf.source == v and not leaf.is_selection for o in node.operands for leaf in o.leaves)
            if v in self.floating and (moved or node.table == v):
                self._open(self.floating.pop(v))

    def _real_reads(self, node: Node) -> list[int]:
        """What a node reads once floating values are made on the spot."""
        closure = self._closure(node)
        reads = [v for n in (node, *(self.floating[v] for v in closure)) for v in n.reads]
        return [v for v in dict.fromkeys(reads) if v not in self.floating]

    def _step_of(self, v: int) -> int:
        v = self.cluster.aliases.get(v, v)
        return self.final.get(v, self.home.get(v, -1))

    def _earliest(self, node: Node) -> int:
        """The first step in which all that the node reads is there, in a register or in memory."""
        earliest = 0
        for v in self._real_reads(node):
            step = self._step_of(v)
            if step >= 0:
                earliest = max(earliest, step if self._may_share(step, v, node) else step + 1)
        return earliest

    def _may_share(self, step: int, v: int, node: Node) -> bool:
        draft = self.steps[step]
        if not isinstance(draft, _Draft) or v in draft.incomplete or v in self.cluster.aliases:
            return False
        if node.table == v:
            return False
        return all(leaf.is_selection for operand in node.operands for leaf in operand.leaves if leaf.source == v)

    def _candidates(self, node: Node) -> Iterator[int]:
        """Groups that the node may join, those of its producers first, then those that read the same arrays."""
        if node.form == SCATTER:
            return
        earliest = self._earliest(node)
        reads = self._real_reads(node)
        makers = {self._step_of(v) for v in reads}
        siblings = {step for v in reads for step in self.readers.get(v, ())[-8:]}
        for number in [*sorted(makers, reverse=True), *sorted(siblings - makers)]:
            if number >= earliest and isinstance(self.steps[number], _Draft):
                yield number

    def _fit(self, draft: _Draft, node: Node) -> tuple[int | None, ...] | None:
        """The group axis of each domain dimension, or None when the node cannot join; new inner axes may be appended."""
        if len(draft.nodes) >= MOST_NODES:
            return self._refuse(draft, node, f"the group already has {MOST_NODES} nodes")
        if draft.nodes and draft.nodes[0].node.form == SCATTER:
            return self._refuse(draft, node, "a scatter has a kernel of its own")
        fixed: dict[int, int] = {}
        for operand in node.operands:
            for leaf in operand.leaves:
                if isinstance(leaf.source, int) and leaf.source in draft.out_axes:
                    for index, axis in zip(leaf.dims, draft.out_axes[leaf.source], strict=True):
                        if index.axis is None or axis is None:
                            continue
                        if fixed.setdefault(index.axis, axis) != axis:
                            return self._refuse(draft, node, "its inputs run along different axes of the nest")
        axes = self._assign(draft, node, fixed)
        if axes is None:
            return self._refuse(draft, node, "it runs over other axes")
        used = [a for a in axes if a is not None]
        if draft.is_serial and not node.is_serial and any(a >= len(draft.axes) for a in used):
            return self._refuse(draft, node, "the maker is a serial kernel of fewer axes")
        if not draft.is_serial and 0 not in used and (draft.axes or used):
            return self._refuse(draft, node, "it does not run along the parallel axis")
        if is_sequential(node) and not draft.is_serial and any(axes[d] == 0 for d in node.along):
            return self._refuse(draft, node, "a running sum or an index of an extreme cannot be cut in chunks")
        return axes

    def _assign(self, draft: _Draft, node: Node, fixed: dict[int, int]) -> tuple[int | None, ...] | None:
        axes: list[int | None] = []
        last = -1
        extra = len(draft.axes)
        for d, c in enumerate(node.classes):
            if c == ONE:
                axes.append(None)
                continue
            axis = fixed.get(d)
            if axis is None:
                taken = set(fixed.values())
                axis = next((a for a in range(last + 1, len(draft.axes)) if draft.axes[a] == c and a not in taken), extra)
            if axis <= last or (axis < len(draft.axes) and draft.axes[axis] != c):
                return None
            extra = max(extra, axis + 1)
            axes.append(axis)
            last = axis
        return tuple(axes)

    def _refuse(self, draft: _Draft, node: Node, reason: str) -> None:
        shared = [v for v in node.reads if v in draft.out_axes]
        if shared:
            self.refusals.append(Refusal(shared[0], node.value, reason))

    def _open(self, node: Node) -> None:
        is_serial = node.is_serial or not any(c != ONE for c in node.classes)
        if is_sequential(node):
            is_serial = is_serial or not any(c != ONE for c in node.classes[: node.along[0]])
        number = len(self.steps)
        self.steps.append(_Draft([], [], is_serial=is_serial))
        draft = self.steps[number]
        assert isinstance(draft, _Draft)
        axes = self._assign(draft, node, {})
        assert axes is not None
        self._enter(number, node, axes)

    def _enter(self, number: int, node: Node, axes: tuple[int | None, ...]) -> None:
        draft = self.steps[number]
        assert isinstance(draft, _Draft)
        for d, axis in enumerate(axes):
            if axis is not None and axis >= len(draft.axes):
                draft.axes.append(node.classes[d])
                draft.extents.append(node.shape[d])
        placed = Placed(self._with_floating(draft, node, axes), axes)
        node = placed.node
        draft.nodes.append(placed)
        draft.out_axes[node.value] = placed.out_axes
        self.home[node.value] = number
        for v in node.reads:
            if v not in draft.out_axes:
                self.readers.setdefault(v, []).append(number)
        if node.form == REDUCE and not draft.is_serial and any(axes[d] == 0 for d in node.along):
            draft.incomplete.add(node.value)
            self._combine_partials(number, draft, placed)

    def _with_floating(self, draft: _Draft, node: Node, axes: tuple[int | None, ...]) -> Node:
        """The node with its floating operands made in this group, over the axes at which it reads them."""
        if not any(v in self.floating for v in node.reads):
            return node
        operands = tuple(
            replace(o, leaves=tuple(self._made_here(draft, leaf, axes) for leaf in o.leaves)) for o in node.operands
        )
        return replace(node, operands=operands)

    def _made_here(self, draft: _Draft, leaf: Leaf, axes: tuple[int | None, ...]) -> Leaf:
        v = leaf.source
        if not isinstance(v, int) or v not in self.floating:
            return leaf
        out_axes = tuple(None if i.axis is None else axes[i.axis] for i in leaf.dims)
        key = (v, out_axes)
        if key not in draft.copies:
            original = self.floating[v]
            made = replace(self._with_floating(draft, original, out_axes), value=self._new_value(v, original.classes))
            draft.nodes.append(Placed(made, out_axes))
            draft.out_axes[made.value] = out_axes
            self.home[made.value] = self.steps.index(draft)
            for u in made.reads:
                if u not in draft.out_axes:
                    self.readers.setdefault(u, []).append(self.home[made.value])
            draft.copies[key] = made.value
        return replace(leaf, source=draft.copies[key])

    def _new_value(self, like: int, classes: tuple[int, ...]) -> int:
        self.specs.append(self.specs[like])
        self.class_of[len(self.specs) - 1] = classes
        return len(self.specs) - 1

    def _combine_partials(self, number: int, draft: _Draft, placed: Placed) -> None:
        """A reduction over the parallel axis ends in a serial group that combines one partial result per chunk."""
        node = placed.node
        partial = len(self.specs)
        kept = [d for d in node.out_dims if d is not None]
        chunk_class = self.chunk_class.setdefault(number, self.classes.fresh())
        shape = (1, *(node.shape[d] for d in kept))
        self.specs.append(TensorSpec(shape, node.dtype))
        draft.partials[node.value] = partial
        self.chunked[partial] = number
        domain_classes = (chunk_class, *(node.classes[d] for d in kept))
        self.class_of[partial] = domain_classes
        out_dims = iter(range(1, len(kept) + 1))
        operands = [Operand((Leaf(partial, tuple(AxisIndex(d) for d in range(len(shape)))),))]
        combine = Node(
            node.value, REDUCE, "identity", tuple(operands), shape, domain_classes,
            tuple(None if d is None else next(out_dims) for d in node.out_dims), node.dtype, (0,), node.combine,
            is_serial=True,
        )  # fmt: skip
        self.home[partial] = number
        for step in range(number + 1, len(self.steps)):
            later = self.steps[step]
            if isinstance(later, _Draft) and later.is_serial and later.axes[:1] == [chunk_class]:
                axes = self._fit(later, combine)
                if axes is not None:
                    self._enter(step, combine, axes)
                    self.final[node.value] = step
                    return
        self._open(combine)
        self.final[node.value] = self.home[node.value]

    # -- recomputing -----------------------------------------------------------------------------------------------

    def recompute_cheap_values(self) -> None:
        """Compute again, in the group that reads it, a cheap value whose own inputs are in memory anyway.

        A derivative factor such as 1 - h*h depends on forward values only, so it lands in the forward group; read by
        the backward group it would be one more array to write and read.
        """
        stored = self._stored()
        for number, draft in enumerate(self.steps):
            if isinstance(draft, _Draft) and not (draft.nodes and draft.nodes[0].node.form == SCATTER):
                self._recompute_in(number, draft, stored)

    def _recompute_in(self, number: int, draft: _Draft, stored: set[int]) -> None:
        rewritten: dict[int, int] = {}
        loaded = {v for p in draft.nodes for v in p.node.reads if v not in draft.out_axes}
        result: list[Placed] = []
        for placed in draft.nodes:
            operands = []
            for operand in placed.node.operands:
                leaf = operand.leaves[0]
                v = leaf.source
                if (
                    isinstance(v, int) and len(operand.leaves) == 1 and leaf.is_selection and v not in draft.out_axes
                    and v not in self.cluster.kept
                ):
                    if v not in rewritten:
                        axes = tuple(None if i.axis is None else placed.axes[i.axis] for i in leaf.dims)
                        self._clone(v, axes, number, stored, loaded, rewritten, result)
                    operand = Operand((replace(leaf, source=rewritten.get(v, v)),))
                operands.append(operand)
            result.append(replace(placed, node=replace(placed.node, operands=tuple(operands))))
        draft.nodes = result
        draft.out_axes = {p.node.value: p.out_axes for p in result}

    def _clone(
        self, v: int, axes: tuple[int | None, ...], number: int, stored: set[int], loaded: set[int],
        rewritten: dict[int, int], result: list[Placed],
    ) -> None:  # fmt: skip
        recipe = self._recipe(v, stored)
        if recipe is None:
            return
        inside = {node.value for node in recipe}
        leaves = {u for node in recipe for u in node.reads} - inside
        if len(leaves - loaded) > 1 or any(node.classes != recipe[-1].classes for node in recipe):
            return
        names: dict[int, int] = {}
        for node in recipe:
            names[node.value] = self._new_value(node.value, node.classes)
            operands = tuple(
                Operand(tuple(replace(f, source=names.get(f.source, f.source)) if isinstance(f.source, int) else f
                              for f in operand.leaves), operand.fill)
                for operand in node.operands
            )  # fmt: skip
            clone = replace(node, value=names[node.value], operands=operands)
            result.append(Placed(clone, axes))
        loaded |= leaves
        rewritten[v] = names[v]

    def _recipe(self, v: int, stored: set[int]) -> list[Node] | None:
        """The cheap nodes that make ``v`` from values that are in memory anyway; None when there is no such recipe."""
        step = self.home.get(v, -1)
        draft = self.steps[step] if step >= 0 else None
        if not isinstance(draft, _Draft) or v in self.final:
            return None
        makers = {p.node.value: p.node for p in draft.nodes}
        recipe: list[Node] = []
        pending, seen, cost = [v], set(), 0
        while pending:
            u = pending.pop()
            if u in seen:
                continue
            seen.add(u)
            node = makers.get(u)
            if u != v and (node is None or u in self.cluster.kept):
                continue
            if node is None or node.form != MAP or node.op not in CHEAP:
                if u != v and u in stored:
                    continue
                return None
            if any(len(o.leaves) != 1 or not o.leaves[0].is_selection for o in node.operands):
                return None
            cost += CHEAP[node.op]
            if cost > RECOMPUTE_LIMIT:
                return None
            recipe.append(node)
            pending += node.reads
        order = {p.node.value: i for i, p in enumerate(draft.nodes)}
        return sorted(recipe, key=lambda node: order[node.value])

    # -- the result ------------------------------------------------------------------------------------------------

    def _stored(self) -> set[int]:
        """Values that are read in another step than the one that makes them, or kept."""
        stored = set(self.cluster.kept)
        for number, step in enumerate(self.steps):
            reads = step.reads if isinstance(step, Product) else [v for p in step.nodes for v in p.node.reads]
            for v in reads:
                v = self.cluster.aliases.get(v, v)
                if self._step_of(v) not in (number, -1):
                    stored.add(v)
        return stored

    def plan(self) -> Plan:
        self._drop_dead_nodes()
        stored = self._stored()
        steps: list[Group | Product] = []
        renumbered: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            if isinstance(step, _Draft) and not step.nodes:
                continue
            renumbered[number] = len(steps)
            if isinstance(step, Product):
                steps.append(step)
                continue
            made = {p.node.value for p in step.nodes}
            leaving = frozenset(v for v in made & stored if v not in step.incomplete)
            steps.append(Group(
                len(steps), tuple(step.axes), tuple(step.extents), tuple(step.nodes), step.is_serial, leaving, step.partials
            ))  # fmt: skip
        classes = {v: self.class_of[v] if v in self.class_of else self.classes.of(v) for v in self._all_values(steps)}
        return Plan(
            tuple(steps), {v: self.specs[v] for v in classes}, classes,
            {p: renumbered[n] for p, n in self.chunked.items() if n in renumbered}, tuple(self.refusals), self.cluster.aliases,
        )  # fmt: skip

    def _drop_dead_nodes(self) -> None:
        needed = set(self.cluster.kept)
        for step in reversed(self.steps):
            if isinstance(step, Product):
                needed.update(self.cluster.aliases.get(v, v) for v in step.reads)
                continue
            kept = []
            for placed in reversed(step.nodes):
                node = placed.node
                if node.value in needed:
                    kept.append(placed)
                    needed.update(self.cluster.aliases.get(v, v) for v in node.reads)
            step.nodes = kept[::-1]
            alive = {p.node.value for p in kept}
            step.partials = {v: p for v, p in step.partials.items() if v in alive}

    def _all_values(self, steps: Sequence[Group | Product]) -> Iterator[int]:
        seen = dict.fromkeys(v for step in steps for v in (
            (step.value, *step.reads) if isinstance(step, Product)
            else [u for p in step.nodes for u in (p.node.value, *p.node.reads)] + list(step.partials.values())
        ))  # fmt: skip
        return iter([*seen, *(r for v in list(seen) if (r := self.cluster.aliases.get(v)) is not None and r not in seen)])
