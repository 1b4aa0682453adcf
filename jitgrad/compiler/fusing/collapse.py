"""Collapsing: neighbouring axes that every access of a group runs through as one become one loop.

The outer of two such axes is dropped: in a contiguous array the index (i*n + j)*s has the one term k*s.
"""

from __future__ import annotations

from dataclasses import replace

from jitgrad.compiler.fusing.accesses import Leaf
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Group, Placed, Plan
from jitgrad.compiler.fusing.nodes import PACK, PLACE, SCAN, Node
from jitgrad.opdef import AxisIndex


def collapse_axes(group: Group, plan: Plan, by_row: bool = False) -> tuple[Group, tuple[tuple[int, ...], ...]]:
    """The group over fewer axes, and the extent classes whose product each remaining axis runs over.

    All of its nodes are its own. ``by_row``: the first axis stays, since rows are made or read one by one.
    """
    blocks: list[list[int]] = []
    may_merge = not group.is_alone or (group.is_scatter and group.is_serial)
    for axis in range(len(group.axes)):
        is_first = by_row and axis == 1
        if blocks and may_merge and not is_first and all(_merges(p, axis - 1, axis, plan) for p in group.nodes):
            blocks[-1].append(axis)
        else:
            blocks.append([axis])
    if len(blocks) == len(group.axes):
        return group, tuple((c,) for c in group.axes)
    renamed: dict[int | None, int | None] = {None: None}
    for number, block in enumerate(blocks):
        renamed.update(dict.fromkeys(block))
        renamed[block[-1]] = number
    nodes = tuple(Placed(p.node, tuple(renamed[a] for a in p.axes)) for p in group.nodes)
    return replace(group, nodes=nodes), tuple(tuple(group.axes[a] for a in block) for block in blocks)


def _merges(placed: Placed, a: int, b: int, plan: Plan) -> bool:
    """Whether a node runs through axes ``a`` and ``b`` = a + 1 as through one contiguous axis."""
    node = placed.node
    if (a in placed.axes) != (b in placed.axes):
        return False
    if a not in placed.axes:
        return True
    da, db = placed.axes.index(a), placed.axes.index(b)
    if (
        (da in node.along) != (db in node.along)
        or ((node.form == SCAN or node.combine.startswith("arg"))
        and da in node.along)
    ):
        return False
    if node.op.startswith(("iota", PLACE)) or (node.form == PACK and not _is_stored_as_one(node, da, db, plan)):
        return False
    if node.table is not None and not _dims_merge(node.table_dims, da, db, plan.classes[node.table], node.classes[db]):
        return False
    return all(_leaf_merges(leaf, da, db, plan, node.classes[db]) for o in node.operands for leaf in o.leaves)


def _is_stored_as_one(node: Node, da: int, db: int, plan: Plan) -> bool:
    """Whether a pack has no places between two neighbouring dimensions of its domain."""
    between = range(node.out_dims.index(da) + 1, node.out_dims.index(db))
    return all(plan.classes[node.value][d] == ONE for d in between)


def _leaf_merges(leaf: Leaf, da: int, db: int, plan: Plan, inner: int) -> bool:
    if any(guard.axis in (da, db) for guard in leaf.guards):
        return False
    if not isinstance(leaf.source, int):
        return True
    return _dims_merge(leaf.dims, da, db, plan.classes[leaf.source], inner)


def _dims_merge(dims: tuple[AxisIndex | int, ...], da: int, db: int, classes: tuple[int, ...], inner: int) -> bool:
    """Whether an access uses neither domain dimension, or both as neighbours, the inner one over its whole extent."""
    uses = {d.axis: position for position, d in enumerate(dims) if isinstance(d, AxisIndex) and d.axis in (da, db)}
    if not uses:
        return True
    if len(uses) != 2 or sum(1 for d in dims if isinstance(d, AxisIndex) and d.axis in (da, db)) != 2:
        return False
    p, q = uses[da], uses[db]
    outer, last = dims[p], dims[q]
    assert isinstance(outer, AxisIndex)
    assert isinstance(last, AxisIndex)
    return (
        p < q and all(classes[d] == ONE for d in range(p + 1, q)) and (outer.scale, outer.divisor) == (1, 1)
        and (last.scale, last.offset, last.divisor) == (1, 0, 1) and classes[q] == inner
    )  # fmt: skip
