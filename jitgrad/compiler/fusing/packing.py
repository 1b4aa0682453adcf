"""Packs: arrays with short last axes that are put together place by place, where a copy would run along these axes.

`np.stack([a, b, c], axis=-1)` as a loop over its elements has a choice among three at each, in vectors of three lanes.
As a pack it is a node over the other axes, with one operand for each place along the short ones, and joins the kernel
that makes a, b and c: each goes from its register to its place. A scatter of short rows reads its updates so, too: it
adds three numbers to three places, where a vector of three lanes waits for what it has stored of the row before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from jitgrad.compiler.fusing.accesses import Leaf, Operand, compose, substitute
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.nodes import MAP, PACK, PLACE, Node
from jitgrad.compiler.fusing.scatters import axes_of_rows, axes_of_updates, read_by_positions
from jitgrad.compiler.likeness import PLAIN_EXACT
from jitgrad.opdef import AxisIndex, IndexMap
from jitgrad.spec import TensorSpec

MOST_PLACES = 16
"""Places along short axes that one node fills."""
MOST_COLUMNS = 7
"""Those of a row that a scatter adds place by place. Value and gradient of a table of 5000 rows that are read 200000
times take 0.28 of the time for 2 in float64, 0.44 for 4 in float32; for 8, which fill a register, 1.46 (Zen 4).
"""


def pack(v: int, operand: Operand, spec: TensorSpec, classes: tuple[int, ...]) -> Node | None:
    """The node that makes ``v`` place by place of what the operand reads; None where a copy does as well, because it
    runs along whole arrays, or there are too many places.
    """
    short = packed_dims(operand, spec.known_shape, classes)
    if not short:
        return None
    axes = tuple([d if c != ONE else None for d, c in enumerate(classes)])
    return _packed(Node(v, MAP, "identity", (operand,), spec.known_shape, classes, axes, spec.dtype), short)


def pack_end(node: Node) -> Node:
    """A node whose value nothing but memory takes, place by place where it reads pieces along a short last axis: the
    sum of gradients of columns. The node itself where it does not.
    """
    last = len(node.shape) - 1
    if node.form != MAP or node.batch is not None or node.op.startswith(("iota", PLACE)):
        return node
    if last < 1 or not 1 < node.shape[last] <= PLAIN_EXACT or set(node.classes[:last]) <= {ONE}:
        return node
    return _packed(node, [last]) if any(_is_of_pieces(operand, last) for operand in node.operands) else node


def pack_scatter(node: Node) -> Node:
    """A scatter of whole short rows, over the rows: its operands are the updates at each place of one, then the
    positions. The node itself where rows are long, or positions differ along them.
    """
    along = axes_of_updates(node)
    short = [d for d in axes_of_rows(node) if along and d > max(along)]
    extents = [node.shape[d] for d in short]
    if not short or 0 in extents or max(extents) > PLAIN_EXACT or not read_by_positions(node).isdisjoint(short):
        return node
    if extents[-1] > MOST_COLUMNS or math.prod(extents) > MOST_PLACES:
        return node
    updates, *positions = node.operands
    maps = list(_maps(node.shape, short))
    inner = tuple([n for d, n in enumerate(node.shape) if d not in short])
    operands = [_read_at(updates, index_map, inner) for index_map in maps]
    operands += [_read_at(position, maps[0], inner) for position in positions]
    table = [entry if isinstance(entry, int) else substitute(entry, maps[0].dims) for entry in node.table_dims]
    classes = tuple([c for d, c in enumerate(node.classes) if d not in short])
    return replace(node, operands=tuple(operands), shape=inner, classes=classes, table_dims=tuple(table))


def turn_scatter(node: Node) -> Node:
    """A scatter of numbers, or of short rows, that are put together along a short last axis, over the other axes, with
    an update for each place along it. The node itself where there is no such axis.
    """
    last = len(node.shape) - 1
    count = sum(isinstance(entry, int) for entry in node.table_dims)
    updates, positions = node.operands[:-count], node.operands[-count:]
    if last < 1 or not 1 < node.shape[last] <= MOST_COLUMNS or set(node.classes[:last]) <= {ONE}:
        return node
    if axes_of_rows(node) or not all(_is_of_pieces(update, last) for update in updates):
        return node
    maps, inner = list(_maps(node.shape, [last])), node.shape[:last]
    operands = [_read_at(update, index_map, inner) for index_map in maps for update in updates]
    operands += [_read_at(position, index_map, inner) for index_map in maps for position in positions]
    return replace(node, operands=tuple(operands), shape=inner, classes=node.classes[:last], turns=len(maps))


def _packed(node: Node, short: list[int]) -> Node:
    """A node over all dimensions but the short ones; its operands are those of one place behind those of another."""
    kept = [d for d in range(len(node.shape)) if d not in short]
    inner, classes = tuple([node.shape[d] for d in kept]), tuple([node.classes[d] for d in kept])
    maps = list(_maps(node.shape, short))
    operands = tuple([_read_at(operand, index_map, inner) for index_map in maps for operand in node.operands])
    out_dims = tuple([index.axis for index in maps[0].dims])
    return replace(node, form=PACK, operands=operands, shape=inner, classes=classes, out_dims=out_dims)


def _maps(shape: tuple[int, ...], short: list[int]) -> Iterator[IndexMap]:
    """Where each place along some dimensions lies, as indices by the domain of the others."""
    domain = {d: k for k, d in enumerate(d for d in range(len(shape)) if d not in short)}
    for places in itertools.product(*(range(shape[d]) for d in short)):
        at = dict(zip(short, places, strict=True))
        yield IndexMap(
            tuple([
                AxisIndex(None, 0, at[d]) if d in at else AxisIndex(domain[d] if shape[d] != 1 else None)
                for d in range(len(shape))
            ])
        )


def _is_of_pieces(operand: Operand, axis: int) -> bool:
    """Whether an operand is put together along an axis, or one place of it: not where a grid has a border."""
    guards = [guard for leaf in operand.leaves for guard in leaf.guards if guard.axis == axis]
    return len(guards) > 1 or any(guard.hi - guard.lo == 1 for guard in guards)


def packed_dims(operand: Operand, shape: tuple[int, ...], classes: tuple[int, ...]) -> list[int]:
    """The short dimensions whose places are filled one by one: the last ones, and those by which the operand chooses
    what it reads; none where the first one would be among them, or there are no elements.
    """
    sized = [d for d, c in enumerate(classes) if c != ONE]
    if len(sized) < 2 or 0 in shape or _runs_along(operand, sized[-1]):
        return []
    short = {guard.axis for leaf in operand.leaves for guard in leaf.guards} | {sized[-1]}
    most = PLAIN_EXACT if len(operand.leaves) == 1 and not operand.leaves[0].guards else MOST_PLACES
    if any(shape[d] > most for d in short) or math.prod(shape[d] for d in short) > MOST_PLACES:
        return []
    for d in reversed(sized[1:]):
        if shape[d] > PLAIN_EXACT or math.prod(shape[e] for e in {*short, d}) > MOST_PLACES:
            break
        short.add(d)
    return sorted(short) if sized[0] not in short else []


def places_of_rows(node: Node, shape: tuple[int, ...]) -> list[int]:
    """How far from the first place each update of a scatter lies in a table of this shape."""
    offsets = [0]
    for d, entry in enumerate(node.table_dims):
        if isinstance(entry, AxisIndex) and entry.scale == 0:
            stride = math.prod(shape[d + 1 :])
            offsets = [offset + k * stride for offset in offsets for k in range(shape[d])]
    return offsets


def places_of(node: Node, shape: tuple[int, ...]) -> Iterator[tuple[AxisIndex, ...]]:
    """Where each operand of a pack lies, as indices of the dimensions of its value by those of the domain."""
    short = [d for d, n in enumerate(shape) if node.out_dims[d] is None and n != 1]
    for places in itertools.product(*(range(shape[d]) for d in short)):
        at = dict(zip(short, places, strict=True))
        yield tuple([AxisIndex(None, 0, at[d]) if d in at else AxisIndex(a) for d, a in enumerate(node.out_dims)])


def _runs_along(operand: Operand, last: int) -> bool:
    """Whether all is read from one array, along the last dimension too."""
    leaf, *others = operand.leaves
    return not others and not leaf.guards and any(index.axis == last for index in leaf.dims)


def _read_at(operand: Operand, index_map: IndexMap, shape: tuple[int, ...]) -> Operand:
    """An operand read through an index map: the first leaf whose guards can hold, where they do so everywhere."""
    leaves: list[Leaf] = []
    for leaf in operand.leaves:
        found = compose(leaf, index_map, shape)
        if found is not None:
            leaves.append(found)
            if not found.guards:
                break
    if not leaves:
        assert operand.fill is not None
        return Operand((Leaf(operand.fill),))
    return Operand((leaves[-1],)) if not leaves[-1].guards else Operand(tuple(leaves), operand.fill)
