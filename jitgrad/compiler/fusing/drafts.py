"""Drafts: a fusion group while it grows, and whether a node fits into it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field

from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Axes, Placed
from jitgrad.compiler.fusing.nodes import DOTS, MAP, PACK, PLACE, SCAN, SCATTER, SLIDE, SWEEP, Node
from jitgrad.compiler.fusing.scatters import axes_of_rows
from jitgrad.records import dataclass

# What it costs to compute an op again, against storing its result and loading it back (about 4 on this scale).
CHEAP = {
    "add": 1, "subtract": 1, "multiply": 1, "negative": 1, "square": 1, "identity": 1, "cast": 1, "where": 1,
    "relu": 1, "maximum": 1, "minimum": 1, "absolute": 1, "sign": 1, "clip": 1, "equal": 1, "not_equal": 1, "less": 1,
    "less_equal": 1, "greater": 1, "greater_equal": 1, "logical_and": 1, "logical_or": 1, "logical_not": 1, "divide": 3,
    "quotient": 3, "sqrt": 3, "reciprocal": 3,
}  # fmt: skip

# A kernel's ops weigh as in CHEAP, analytic functions 8. Beyond this weight registers spill, compile time grows
# faster than the code, and long repetitive programs have fewer kernels that are equal.
ANALYTIC_WEIGHT = 8
MOST_WEIGHT = 200
MOST_WEIGHT_OF_PLACES = 600
"""Where values are taken apart along short axes, many are needed far behind the place where they are made: cut at 200,
100000 points of bundle adjustment go through memory 44 times (value and gradient take 6.2 ms; 2.9 at 400, 2.7 at 1000).
"""
MOST_WEIGHT_OF_REPEATS = 1000
"""Where a program does the same again and again, which kernels write once: what 45 turns of a sine keep for the
gradient, 256 bytes each, stays in the first cache, where arrays would go through memory.
"""
UPDATE_WEIGHT = 4  # of each number that is read for an update of single places of a table: they take 0.7 ns
LIGHT_ROW, _LEAST_ROWS = 200, 8
"""What the elements of a row weigh together where a function of analysis of one number for each row is better made for
many rows at once: alone it takes 15 ns, and 1 to 2 in lanes, where a row of 40 that are looked up, multiplied and
summed takes 25. There must be rows enough to fill lanes.
"""
_NO_LOOP = 1 << 10
SEARCH_WEIGHT = 32  # of a search in a sorted vector: some ten steps


@dataclass(eq=False)
class Draft:
    """A growing group.

    ``incomplete`` are values reduced over the parallel axis, not usable inside; ``copies`` are cheap values made here
    once more, by the original and the axes. ``lead`` are the extent classes that count matrices, in a group with a
    matrix per lane, and () for a single one; None in others. What ``is_short`` is serial whatever joins it.
    """

    is_serial: bool
    axes: list[int] = field(default_factory=list)
    extents: list[int] = field(default_factory=list)
    nodes: list[Placed] = field(default_factory=list)
    incomplete: set[int] = field(default_factory=set)
    partials: dict[int, int] = field(default_factory=dict)
    out_axes: dict[int, Axes] = field(default_factory=dict)
    copies: dict[tuple[int, Axes], int] = field(default_factory=dict)
    weight: int = 0
    lead: tuple[int, ...] | None = None
    most: int = MOST_WEIGHT
    is_short: bool = False
    analytic: int = _NO_LOOP  # the outermost loop in which a function of analysis is made
    weights: dict[int, int] = field(default_factory=dict)  # of what each loop makes

    def append(self, placed: Placed) -> None:
        """Add a node, and the axes that only it has."""
        for d, axis in enumerate(placed.axes):
            if axis is not None and axis >= len(self.axes):
                self.axes.append(placed.node.classes[d])
                self.extents.append(placed.node.shape[d])
        self.nodes.append(placed)
        weight, last = weight_of(placed.node), innermost(placed.axes)
        self.weight += weight
        self.weights[last] = self.weights.get(last, 0) + weight
        if is_analytic(placed.node):
            self.analytic = min(self.analytic, last)
        if self.most < MOST_WEIGHT_OF_PLACES and _reads_places(placed.node):
            self.most = MOST_WEIGHT_OF_PLACES
        self.out_axes[placed.node.value] = placed.out_axes

    def replace_nodes(self, nodes: list[Placed]) -> None:
        """Other nodes over the same axes."""
        self.nodes = nodes
        self.out_axes = {p.node.value: p.out_axes for p in nodes}

    def is_of_lanes(self, placed: Placed) -> bool:
        """Whether a node is certain to be made in an innermost loop of vectors: no other loop is in it, its turns need
        not follow one another, and lanes are no matrices.
        """
        is_innermost = self.lead is None and innermost(placed.axes) == len(self.axes) - 1
        return is_innermost and not any(is_sequential(p.node) for p in self.nodes)

    @property
    def is_alone(self) -> bool:
        """Whether this is the kernel of a node that no other joins."""
        return bool(self.nodes) and self.nodes[0].node.form in (SCATTER, SWEEP)


def innermost(axes: Axes) -> int:
    """The innermost of some axes; -1 where there is none."""
    return max((axis for axis in axes if axis is not None), default=-1)


def is_analytic(node: Node) -> bool:
    """Whether a node is a function of analysis."""
    return node.form == MAP and weight_of(node) == ANALYTIC_WEIGHT


def weight_of(node: Node) -> int:
    """What an op adds to the size of a kernel."""
    if node.form == SWEEP:
        return 1 if node.op in (SLIDE, DOTS) else SEARCH_WEIGHT
    if node.form == SCATTER:
        return 1 if axes_of_rows(node) else UPDATE_WEIGHT * len(node.operands)
    if node.form == PACK:
        return len(node.operands) * (1 if node.op == "add_n" else CHEAP.get(node.op, ANALYTIC_WEIGHT))
    if node.form != MAP or node.op.startswith(PLACE):
        return 1
    return len(node.operands) if node.op == "add_n" else CHEAP.get(node.op, ANALYTIC_WEIGHT)


def _reads_places(node: Node) -> bool:
    """Whether a node over a vector reads places along a short axis."""
    if node.form != MAP or len(node.shape) - node.classes.count(ONE) != 1:
        return False
    leaves = (leaf for operand in node.operands for leaf in operand.leaves if len(leaf.dims) > 1)
    return any(index.axis is None and not index.scale for leaf in leaves for index in leaf.dims)


def is_sequential(node: Node) -> bool:
    """Whether a node runs along its axes in order, so that these cannot be cut in chunks."""
    return node.form == SCAN or node.combine.startswith("arg")


def runs_serially(node: Node) -> bool:
    """Whether a group that begins with this node cannot be cut in chunks along its first axis."""
    sized = [d for d, c in enumerate(node.classes) if c != ONE]
    return node.is_serial or not sized or (is_sequential(node) and sized[0] in node.along)


def fit(draft: Draft, node: Node, floating: Mapping[int, Node], exact: int) -> Axes | str:
    """The group axis of each domain dimension, new inner axes included; or the reason why the node cannot join.
    Inputs that are ``floating`` would be made here too, of what the group makes. Extents up to ``exact`` may be asked
    for.
    """
    if draft.weight + weight_of(node) > draft.most:
        return f"the kernel is full: its ops weigh {draft.weight} of {draft.most}"
    if draft.is_alone:
        return f"a {draft.nodes[0].node.form} has a kernel of its own"
    if node.batch is not None:
        return "small matrices have kernels of their own"
    fixed: dict[int, int] = {}
    for d, axis in _axes_of_inputs(draft, node, floating):
        if d is None or node.classes[d] == ONE:
            return "it reads one place of an axis of the nest"
        if fixed.setdefault(d, axis) != axis:
            return "its inputs run along different axes of the nest"
    axes = assign_axes(draft, node, fixed)
    if axes is None:
        return "it runs over other axes"
    if _is_of_one_lane(draft, node, axes, exact):
        return "its rows are short: functions of one number for each are made of many at once, in a kernel of their own"
    return _objection(draft, node, axes) or axes


def _is_of_one_lane(draft: Draft, node: Node, axes: Axes, exact: int) -> bool:
    """Whether a function of analysis would be made once per row, for one lane, of rows that take no longer."""
    last = innermost(axes)
    outer = min(draft.analytic, last if is_analytic(node) else _NO_LOOP)
    added = [n for n, a in zip(node.shape, axes, strict=True) if a is not None and a >= len(draft.axes)]
    extents = [*draft.extents, *added]
    if not 0 <= outer < len(extents) - 1:
        return False
    inner = extents[outer + 1 :]
    if max(inner) > exact or max(extents[: outer + 1]) < _LEAST_ROWS:
        return False
    weights = {**draft.weights, last: draft.weights.get(last, 0) + weight_of(node)}
    return math.prod(inner) * sum(w for a, w in weights.items() if a > outer) <= LIGHT_ROW


def _axes_of_inputs(draft: Draft, node: Node, floating: Mapping[int, Node]) -> Iterator[tuple[int | None, int]]:
    """Domain dimensions whose axis is given by an input that the group makes, or that a floating input reads."""
    for leaf in (leaf for operand in node.operands for leaf in operand.leaves):
        v = leaf.source
        if isinstance(v, int) and v in draft.out_axes:
            given: Iterator[tuple[int | None, int | None]] = enumerate(draft.out_axes[v])
        elif isinstance(v, int) and v in floating:
            given = _axes_of_inputs(draft, floating[v], floating)
        else:
            continue
        for d, axis in given:
            outer = None if d is None else leaf.dims[d].axis
            if axis is not None:
                yield outer, axis


def assign_axes(draft: Draft, node: Node, fixed: dict[int, int]) -> Axes | None:
    """Axes in increasing order for the domain dimensions: the fixed ones, others of the same extent class, new
    inner ones.
    """
    axes: list[int | None] = []
    last, extra = -1, len(draft.axes)
    taken = set(fixed.values())
    for d, c in enumerate(node.classes):
        if c == ONE:
            axes.append(None)
            continue
        free = (a for a in range(last + 1, len(draft.axes)) if draft.axes[a] == c and a not in taken)
        axis = fixed[d] if d in fixed else next(free, extra)
        if axis <= last or (axis < len(draft.axes) and draft.axes[axis] != c):
            return None
        extra = max(extra, axis + 1)
        axes.append(axis)
        last = axis
    return tuple(axes)


def _objection(draft: Draft, node: Node, axes: Axes) -> str | None:
    used = [a for a in axes if a is not None]
    if draft.is_serial:
        is_longer = not draft.is_short and not node.is_serial and any(a >= len(draft.axes) for a in used)
        return "the kernel before it is a serial one of fewer axes" if is_longer else None
    if 0 not in used and (draft.axes or used):
        return "it does not run along the parallel axis"
    if is_sequential(node) and any(axes[d] == 0 for d in node.along):
        return "a running sum or the index of an extreme cannot be cut in chunks"
    return None
