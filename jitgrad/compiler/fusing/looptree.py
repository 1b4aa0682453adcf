"""The loop tree: where in a group's nest each statement stands, so that a value is used while it is in a
register or in cache.

Roots (reductions, scans, values to store) are placed in order, each with the element-wise nodes that only it needs so
far, in the latest loop that all their inputs allow; a reduction is complete after the loop over its outermost reduced
axis.
"""

from __future__ import annotations

from dataclasses import field

from jitgrad.compiler.fusing.groups import Group, Placed
from jitgrad.compiler.fusing.nodes import GATHER, MAP, REDUCE
from jitgrad.records import dataclass


@dataclass(eq=False)
class TreeLoop:
    """A loop over a group axis, or (axis -1) the body of the kernel."""

    axis: int
    parent: TreeLoop | None
    items: list[TreeLoop | Entry] = field(default_factory=list)
    values: set[int] = field(default_factory=set)  # made somewhere inside
    is_innermost: bool = True

    @property
    def path(self) -> tuple[TreeLoop, ...]:
        """From the kernel body down to this loop."""
        return (self,) if self.parent is None else (*self.parent.path, self)


@dataclass(frozen=True, eq=False)
class Entry:
    """A node in its place, or (``stores``) the store of a value."""

    placed: Placed
    stores: bool = False


@dataclass(eq=False)
class LoopTree:
    """The tree, where each value is made, and the loop after which each reduction is complete."""

    root: TreeLoop
    home: dict[int, TreeLoop]
    completes: dict[int, TreeLoop]


def build_loop_tree(group: Group) -> LoopTree:
    """Place all nodes of a group, and the stores of the values that leave it."""
    builder = _TreeBuilder(group)
    for placed in group.nodes:
        if placed.node.form not in (MAP, GATHER):
            builder.place_root(placed)
            if placed.node.value in group.stored:
                builder.place_store(placed)
        elif placed.node.value in group.stored:
            builder.place_root(placed)
            builder.place_store(placed)
    return LoopTree(builder.root, builder.home, builder.completes)


class _TreeBuilder:
    def __init__(self, group: Group) -> None:
        self.makers = {p.node.value: p for p in group.nodes}
        self.order = {v: i for i, v in enumerate(self.makers)}
        self.root = TreeLoop(-1, None)
        self.home: dict[int, TreeLoop] = {}
        self.completes: dict[int, TreeLoop] = {}

    def place_root(self, placed: Placed) -> None:
        if placed.node.value in self.home:
            return
        axes = domain_axes(placed)
        near, far = self._unplaced_ancestors(placed, axes)
        for ancestor in far:
            if ancestor.node.value not in self.home:
                self.place_root(ancestor)
        body = self._loop_for(axes, {v for p in (*near, placed) for v in p.node.reads if v in self.home})
        for p in (*near, placed):
            self._put(p, body)

    def _unplaced_ancestors(self, placed: Placed, axes: tuple[int, ...]) -> tuple[list[Placed], list[Placed]]:
        """Nodes needed and not yet placed: those over the same axes, and those over others, each in order."""
        near: list[Placed] = []
        far: list[Placed] = []
        pending, seen = [placed], {placed.node.value}
        while pending:
            for v in pending.pop().node.reads:
                maker = self.makers.get(v)
                if maker is None or v in self.home or v in seen:
                    continue
                seen.add(v)
                if domain_axes(maker) == axes:
                    near.append(maker)
                    pending.append(maker)
                else:
                    far.append(maker)
        near.sort(key=lambda p: self.order[p.node.value])
        far.sort(key=lambda p: self.order[p.node.value])
        return near, far

    def _put(self, placed: Placed, body: TreeLoop) -> None:
        node = placed.node
        entry = Entry(placed)
        reads = {v for v in node.reads if v in self.home}
        body.items.insert(len(body.items) if body.is_innermost else self._after(body, reads), entry)
        self.home[node.value] = body
        for loop in body.path:
            loop.values.add(node.value)
        if node.form == REDUCE and (first := outermost_reduced(placed)) is not None:
            self.completes[node.value] = next(loop for loop in body.path if loop.axis == first)

    def place_store(self, placed: Placed) -> None:
        """Store a value where it is complete: after the reducing loop, or right behind the node."""
        v = placed.node.value
        done = self.completes.get(v)
        axes = tuple(sorted({a for a in placed.out_axes if a is not None}))
        if done is None:
            body = self.home[v]
        else:
            body = self._loop_for(axes, {v})
        entry = Entry(placed, stores=True)
        if body.is_innermost:
            body.items.append(entry)
        else:
            body.items.insert(self._after(body, {v}), entry)

    def _loop_for(self, axes: tuple[int, ...], reads: set[int]) -> TreeLoop:
        """The loop over ``axes`` in which all of ``reads`` are ready: an existing one if possible, as late as
        possible.
        """
        body = self.root
        for axis in axes:
            body = self._descend(body, axis, reads)
        return body

    def _descend(self, body: TreeLoop, axis: int, reads: set[int]) -> TreeLoop:
        """The loop over ``axis`` in ``body`` that makes one of ``reads``, else the latest one behind all of
        them, else a new one.
        """
        latest: TreeLoop | None = None
        for item in reversed(body.items):
            made = item.values if isinstance(item, TreeLoop) else {item.placed.node.value}
            if (
                isinstance(item, TreeLoop)
                and item.axis == axis
                and not any(self.completes.get(v) is item for v in reads)
            ):
                if made & reads:
                    return item
                latest = latest or item
            elif made & reads:
                break
        if latest is None:
            latest = TreeLoop(axis, body)
            # What is the same for all rows comes before them: behind some, it would keep others out of their loop.
            is_same_for_rows = body is self.root and axis > 0 and not reads
            body.items.insert(0 if is_same_for_rows else len(body.items), latest)
            body.is_innermost = False
        return latest

    def _after(self, body: TreeLoop, reads: set[int]) -> int:
        """The first position in ``body`` behind everything that makes one of ``reads``."""
        for position in range(len(body.items), 0, -1):
            item = body.items[position - 1]
            made = item.values if isinstance(item, TreeLoop) else {item.placed.node.value}
            if made & reads:
                return position
        return 0


def outermost_reduced(placed: Placed) -> int | None:
    """The outermost group axis that a reduction combines; None when all of its axes have an extent of 1."""
    return min((a for d in placed.node.along if (a := placed.axes[d]) is not None), default=None)


def domain_axes(placed: Placed) -> tuple[int, ...]:
    """The group axes that a node runs over, outermost first; two of its dimensions may run along one, on a diagonal."""
    return tuple(sorted({a for a in placed.axes if a is not None}))
