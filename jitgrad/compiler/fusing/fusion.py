"""Fusion: which nodes share a loop nest, what goes through memory between nests, and what is computed again instead.

A group is a set of nodes over common axes, run by one kernel. Its first axis is cut in chunks that run in parallel, so
a reduction over that axis gives one partial result per chunk, combined by a serial group afterwards; a reduction over
inner axes is complete inside the nest, and later nodes of the group may use it while the row is still in cache.

Nodes are placed in order, each in the first group that takes it: a group that makes one of its inputs, else one that
reads the same arrays, else the latest one, for a number also the latest group of numbers, else a new one. A group is
never earlier than the groups that make its inputs, so the order of groups is an order in which they can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jitgrad.compiler.fusing.accesses import Leaf, Operand
from jitgrad.compiler.fusing.drafts import MOST_WEIGHT, Draft, assign_axes, fit, runs_serially
from jitgrad.compiler.fusing.extents import ExtentClasses
from jitgrad.compiler.fusing.groups import Axes, Group, Placed, Plan, Refusal, Step
from jitgrad.compiler.fusing.matrices import fit_matrices, lead_dims, matrix_axes
from jitgrad.compiler.fusing.nodes import (
    MAP,
    PACK,
    REDUCE,
    SCATTER,
    SWEEP,
    ClusterNodes,
    Convolution,
    Factor,
    Item,
    Nested,
    Node,
    Product,
    Transform,
)  # fmt: skip
from jitgrad.compiler.fusing.recompute import Floating, Recomputing, divides_rows
from jitgrad.compiler.fusing.rolling import roll_windows
from jitgrad.compiler.fusing.scatters import has_small_table, is_shared_out
from jitgrad.compiler.fusing.short_steps import copies_last
from jitgrad.compiler.fusing.small import depends_on, reads_by_matrix, sized
from jitgrad.opdef import AxisIndex
from jitgrad.spec import TensorSpec

NOTHING = -1  # in place of a value: a number
_SIBLINGS = 8  # how many of the groups that read an array are tried, the latest ones


def plan_fusion(
    cluster: ClusterNodes, specs: Sequence[TensorSpec], classes: ExtentClasses, most: int = MOST_WEIGHT,
    is_short: bool = False,
) -> Plan:  # fmt: skip
    """Groups and products of a cluster, in an order in which they can run; ops of a kernel weigh ``most`` together.
    Kernels of what ``is_short`` are serial.
    """
    planner = _Planner(cluster, list(specs), classes, most, is_short)
    for item in copies_last(cluster) if is_short else cluster.items:
        planner.place(item)
    planner.recompute_cheap_values()
    planner.drop_dead_nodes()
    planner.divide_alike()
    return roll_windows(planner.plan(), cluster.kept)


class _Planner:
    def __init__(
        self, cluster: ClusterNodes, specs: list[TensorSpec], classes: ExtentClasses, most: int, is_short: bool
    ) -> None:
        self.cluster = cluster
        self.is_short = is_short
        self.most = most
        self.specs = specs
        self.classes = classes
        self.steps: list[Draft | Product | Convolution | Factor | Transform | Nested] = []
        self.home: dict[int, int] = {}  # value → number of the step after which it is complete
        self.readers: dict[int, list[int]] = {}  # value from memory → steps that read it
        self.copy_of: dict[int, int] = {}  # what is made again → what it was made like
        self.class_of: dict[int, tuple[int, ...]] = {}  # of values that are not the program's
        self.chunk_class: dict[int, int] = {}
        self.chunked: dict[int, int] = {}
        self.packed: set[int] = set()  # values that no register holds
        self.refusals: list[Refusal] = []
        self.floating = Floating()

    # -- placing ---------------------------------------------------------------------------------------------------

    def place(self, item: Item) -> None:
        """Put a node in the first group that takes it, or in a new one."""
        if not isinstance(item, Node):
            self.home |= dict.fromkeys(item.values, len(self.steps))
            self.steps.append(item)
        elif item.value not in self.cluster.kept and self.floating.accepts(item, self._is_outside):
            self.floating.nodes[item.value] = item
        else:
            for v in dict.fromkeys((*self.floating.taken_by(item), *self._hindering(item))):
                maker = self.floating.nodes.pop(v)
                self._join(maker, self._candidates(maker))
            self._join(item, self._candidates(item))

    def _hindering(self, node: Node) -> set[int]:
        """Floating values that a small product cannot make for itself: these need a home."""
        if node.batch is None:
            return set()
        lead = tuple(node.classes[d] for d in sized(node.classes[: node.batch]))
        return self._misread(node, lead) & self.floating.nodes.keys()

    def _join(self, node: Node, candidates: Iterator[int]) -> None:
        for number in candidates:
            draft = self.steps[number]
            assert isinstance(draft, Draft)
            misread = set() if draft.lead is None else self._misread(node, draft.lead)
            if draft.lead is None:
                axes = fit(draft, node, self.floating.nodes, self.classes.exact)
            else:
                axes = fit_matrices(draft, node, misread)
            if not isinstance(axes, str):
                self._enter(number, node, axes)
                return
            shared = next((v for v in node.reads if v in draft.out_axes), None)
            if shared is not None:
                self.refusals.append(Refusal(shared, node.value, axes))
        self._open(node)

    def _misread(self, node: Node, lead: tuple[int, ...]) -> set[int]:
        """The values that a node reads otherwise than matrix by matrix, or that float and do so themselves."""
        dims = lead_dims(node, lead)
        if dims is None:
            return set(node.reads)
        found = set()
        for leaf in (leaf for operand in node.operands for leaf in operand.leaves):
            v = leaf.source if isinstance(leaf.source, int) else NOTHING
            maker = self.floating.nodes.get(v)
            if maker is None:
                is_misread = False
            elif depends_on(leaf, dims):
                is_misread = bool(self._misread(maker, lead))
            else:
                is_misread = self._is_of_matrices(maker, lead)
            if is_misread or not reads_by_matrix(leaf, dims, node.classes, () if v == NOTHING else self._classes(v)):
                found.add(v)
        return found

    def _is_of_matrices(self, node: Node, lead: tuple[int, ...]) -> bool:
        """Whether a floating value, one for all matrices, is made of what kernels make matrix by matrix."""
        return any(
            tuple(self._classes(v)[d] for d in sized(self._classes(v))[: len(lead)]) == lead
            or (v in self.floating.nodes and self._is_of_matrices(self.floating.nodes[v], lead))
            for v in node.reads
        )

    def _classes(self, v: int) -> tuple[int, ...]:
        return self.class_of[v] if v in self.class_of else self.classes.of(v)

    def _is_outside(self, v: int) -> bool:
        return self._step_of(v) < 0

    def _step_of(self, v: int) -> int:
        """The step that makes a value or the memory that it shares; -1 when it comes from outside."""
        return self.home.get(self.cluster.aliases.get(v, v), -1)

    def _candidates(self, node: Node) -> Iterator[int]:
        """Groups that the node may join: those of its producers, those that read the same arrays, the latest one."""
        if node.form in (SCATTER, SWEEP):
            return
        reads = self.floating.real_reads(node)
        makers = {self._step_of(v) for v in reads}
        earliest = max((self._ready(v, node) for v in reads), default=0)
        siblings = {step for v in reads for step in self.readers.get(v, ())[-_SIBLINGS:]}
        latest = {len(self.steps) - 1, *self._serial_group(node)} - makers - siblings
        for number in [*sorted(makers, reverse=True), *sorted(siblings - makers), *latest]:
            if number >= earliest and isinstance(self.steps[number], Draft):
                yield number

    def _serial_group(self, node: Node) -> list[int]:
        """The latest group of numbers, for a number: in a group of its own it would keep apart what is before it and
        what reads it. In Student-t regression that was a residual and its logarithm, 0.9 of the time without.
        """
        if node.shape or node.form != MAP:
            return []
        for number in range(len(self.steps) - 1, -1, -1):
            step = self.steps[number]
            if isinstance(step, Draft) and not step.axes:
                return [number]
        return []

    def _ready(self, v: int, node: Node) -> int:
        """The first step in which a node can read ``v``: in the step that makes it, from a register, or after it."""
        step = self._step_of(v)
        draft = self.steps[step] if step >= 0 else None
        if not isinstance(draft, Draft) or v in draft.incomplete or v in self.cluster.aliases or node.table == v:
            return step + 1
        if v in self.packed:
            return step + 1
        if draft.lead is not None:
            return step + 1 if v in self._misread(node, draft.lead) else step
        return step + 1 if v in node.moved else step

    def _open(self, node: Node) -> None:
        if node.batch is None:
            is_serial = runs_serially(node) or (node.form == SCATTER and not self._is_shared_out(node))
            is_short = self.is_short and node.form not in (SCATTER, SWEEP)  # these have chunks of their own kind
            draft = Draft(is_serial or is_short, most=self.most, is_short=is_short)
            axes = assign_axes(draft, node, {})
        else:
            lead = sized(node.classes[: node.batch])
            draft = Draft(runs_serially(node) or not lead, lead=tuple(node.classes[d] for d in lead))
            axes = matrix_axes(draft, node, lead)
        self.steps.append(draft)
        assert axes is not None
        self._enter(len(self.steps) - 1, node, axes)

    def _is_shared_out(self, node: Node) -> bool:
        return is_shared_out(node, self.classes.of(node.value), self.specs[node.value].known_shape)

    def _enter(self, number: int, node: Node, axes: Axes) -> None:
        draft = self.steps[number]
        assert isinstance(draft, Draft)
        first = len(draft.nodes)
        for d, axis in enumerate(axes):  # before floating inputs are made over these axes
            if axis is not None and axis >= len(draft.axes):
                draft.axes.append(node.classes[d])
                draft.extents.append(node.shape[d])
        placed = Placed(self.floating.settle_in(draft, node, axes, self._new_value), axes)
        draft.append(placed)
        for made in draft.nodes[first:]:
            self.home[made.node.value] = number
            for v in made.node.reads:
                if v not in draft.out_axes:
                    self.readers.setdefault(v, []).append(number)
        if node.form == PACK:
            self.packed.add(node.value)
        if node.form == REDUCE and not draft.is_serial and any(axes[d] == 0 for d in node.along):
            kept = [d for d in node.out_dims if d is not None]
            self._combine_partials(number, draft, node, [node.shape[d] for d in kept], [node.classes[d] for d in kept])
        if node.form == SCATTER and has_small_table(node, self.specs[node.value].known_shape):
            classes = self.classes.of(node.value)
            summed = replace(node, out_dims=tuple(range(len(classes))), combine="add")
            self._combine_partials(number, draft, summed, self.specs[node.value].known_shape, classes)

    def _new_value(self, like: Node) -> int:
        self.specs.append(self.specs[like.value])
        self.copy_of[len(self.specs) - 1] = like.value
        self.class_of[len(self.specs) - 1] = like.classes
        return len(self.specs) - 1

    def _new_element(self, node: Node) -> int:
        self.specs.append(TensorSpec(node.shape, node.dtype))
        self.copy_of[len(self.specs) - 1] = node.value
        self.class_of[len(self.specs) - 1] = node.classes
        return len(self.specs) - 1

    def _combine_partials(
        self, number: int, draft: Draft, node: Node, shape: Sequence[int], classes: Sequence[int]
    ) -> None:
        """A reduction over the parallel axis, or a scatter along it, ends in a serial group that combines one partial
        result of that shape per chunk.
        """
        chunk_class = self.chunk_class.setdefault(number, self.classes.fresh())
        partial = len(self.specs)
        self.specs.append(TensorSpec((1, *shape), node.dtype))
        self.class_of[partial] = (chunk_class, *classes)
        self.home[partial] = self.chunked[partial] = number
        draft.partials[node.value] = partial
        draft.incomplete.add(node.value)
        combine = combining_node(node, partial, self.specs[partial], self.class_of[partial])
        later = (
            step for step in range(number + 1, len(self.steps))
            if isinstance(other := self.steps[step], Draft) and other.is_serial and other.axes[:1] == [chunk_class]
        )  # fmt: skip
        self._join(combine, later)

    # -- afterwards ------------------------------------------------------------------------------------------------

    def recompute_cheap_values(self) -> None:
        """Let groups make cheap values of earlier groups for themselves."""
        makers = {
            p.node.value: p.node for step in self.steps if isinstance(step, Draft) for p in step.nodes
            if p.node.form == MAP
        }  # fmt: skip
        recomputing = Recomputing(makers, self.cluster.kept, self._stored(), self._new_value, self._new_element)
        for step in self.steps:
            if isinstance(step, Draft) and not step.is_alone and step.lead is None:
                recomputing.rewrite(step)

    def _stored(self) -> set[int]:
        """Values that are read in another step than the one that completes them, or kept."""
        stored = set(self.cluster.kept)
        for number, step in enumerate(self.steps):
            reads = [v for p in step.nodes for v in p.node.reads] if isinstance(step, Draft) else step.reads
            roots = {self.cluster.aliases.get(v, v) for v in reads}
            stored |= {v for v in roots if self._step_of(v) not in (number, -1)}
        return stored

    def drop_dead_nodes(self) -> None:
        """Drop nodes whose values nothing reads any more."""
        needed = set(self.cluster.kept)
        for step in reversed(self.steps):
            if not isinstance(step, Draft):
                needed.update(self.cluster.aliases.get(v, v) for v in step.reads)
                continue
            kept = []
            for placed in reversed(step.nodes):
                if placed.node.value in needed:
                    kept.append(placed)
                    needed.update(self.cluster.aliases.get(v, v) for v in placed.node.reads)
            if len(kept) < len(step.nodes):
                step.replace_nodes(kept[::-1])
            step.partials = {v: p for v, p in step.partials.items() if v in step.out_axes}

    def divide_alike(self) -> None:
        """Quotients that several kernels make, and not all in loops of lanes, are divided in each: multiplied by a
        reciprocal in some, they would differ in a bit, and a gradient asks which elements equal their maximum.
        """
        alike: dict[int, list[bool]] = {}
        drafts = [step for step in self.steps if isinstance(step, Draft)]
        for step in drafts:
            for p in step.nodes:
                if divides_rows(p.node):
                    alike.setdefault(self._original(p.node.value), []).append(step.is_of_lanes(p))
        apart = {v for v, places in alike.items() if len(places) > 1 and not all(places)}
        for step in drafts if apart else ():
            step.replace_nodes([
                replace(p, node=replace(p.node, op="quotient"))
                if divides_rows(p.node) and self._original(p.node.value) in apart else p
                for p in step.nodes
            ])  # fmt: skip

    def _original(self, v: int) -> int:
        while v in self.copy_of:
            v = self.copy_of[v]
        return v

    def plan(self) -> Plan:
        """The result: drafts become groups, numbered without the empty ones."""
        stored = self._stored()
        steps: list[Step] = []
        renumbered: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            if not isinstance(step, Draft) or step.nodes:
                renumbered[number] = len(steps)
                steps.append(_group(len(steps), step, stored) if isinstance(step, Draft) else step)
        values = list(dict.fromkeys(self._values(steps)))
        described = set(values)
        return Plan(
            tuple(steps),
            {v: self.specs[v] for v in values},
            {v: self._classes(v) for v in values},
            {partial: renumbered[number] for partial, number in self.chunked.items() if partial in described},
            tuple(self.refusals),
            self.cluster.aliases,
        )

    def _values(self, steps: Sequence[Step]) -> Iterator[int]:
        for step in steps:
            if not isinstance(step, Group):
                made = [*step.values, *step.reads]
            else:
                made = [v for p in step.nodes for v in (p.node.value, *p.node.reads)] + list(step.partials.values())
            for v in made:
                yield v
                if v in self.cluster.aliases:
                    yield self.cluster.aliases[v]


def combining_node(node: Node, partial: int, spec: TensorSpec, classes: tuple[int, ...]) -> Node:
    """The reduction of a partial result over its chunks, which completes the value of ``node``."""
    dims = tuple(AxisIndex(d) for d in range(len(classes)))
    place = iter(range(1, len(classes)))
    return Node(
        node.value, REDUCE, "identity", (Operand((Leaf(partial, dims),)),), spec.known_shape, classes, tuple(None if d
        is None else next(place) for d in node.out_dims), node.dtype, (0,), node.combine, is_serial=True,
    )  # fmt: skip


def _group(number: int, draft: Draft, stored: set[int]) -> Group:
    leaving = frozenset(v for v in draft.out_axes if v in stored and v not in draft.incomplete)
    return Group(
        number,
        tuple(draft.axes),
        tuple(draft.extents),
        tuple(draft.nodes),
        draft.is_serial,
        leaving,
        dict(draft.partials),
        None if draft.lead is None else len(draft.lead),
    )
