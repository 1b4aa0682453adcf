"""Packs: arrays with short last axes that are put together place by place, where a copy would run along these axes.

`np.stack([a, b, c], axis=-1)` as a loop over its elements has a choice among three at each, in vectors of three lanes.
As a pack it is a node over the other axes, with one operand for each place along the short ones, and joins the kernel
that makes a, b and c: each goes from its register to its place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from jitgrad.compiler.fusing.accesses import Leaf, Operand, compose
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.nodes import MAP, PACK, PLACE, Node
from jitgrad.compiler.likeness import PLAIN_EXACT
from jitgrad.opdef import AxisIndex, IndexMap
from jitgrad.spec import TensorSpec

MOST_PLACES = 16
"""Places along short axes that one node fills."""


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


def _packed(node: Node, short: list[int]) -> Node:
    """A node over all dimensions but the short ones; its operands are those of one place behind those of another."""
    shape, classes = node.shape, node.classes
    kept = [d for d in range(len(shape)) if d not in short]
    domain = {d: k for k, d in enumerate(kept)}
    inner = tuple([shape[d] for d in kept])
    operands = []
    for places in itertools.product(*(range(shape[d]) for d in short)):
        at = dict(zip(short, places, strict=True))
        dims = tuple([
            AxisIndex(None, 0, at[d]) if d in at else AxisIndex(domain[d] if shape[d] != 1 else None)
            for d in range(len(shape))
        ])  # fmt: skip
        operands += [_read_at(operand, IndexMap(dims), inner) for operand in node.operands]
    out_dims = tuple([domain[d] if d in domain and shape[d] != 1 else None for d in range(len(shape))])
    return replace(
        node, form=PACK, operands=tuple(operands), shape=inner, classes=tuple([classes[d] for d in kept]),
        out_dims=out_dims,
    )  # fmt: skip


def _is_of_pieces(operand: Operand, axis: int) -> bool:
    """Whether an operand is put together along an axis, or one place of it: not where a grid has a border."""
    guards = [guard for leaf in operand.leaves for guard in leaf.guards if guard.axis == axis]
    return len(guards) > 1 or any(guard.hi - guard.lo == 1 for guard in guards)


def packed_dims(operand: Operand, shape: tuple[int, ...], classes: tuple[int, ...]) -> list[int]:
    """The short dimensions whose places are filled one by one: the last ones, and those by which the operand chooses
    what it reads; none where the first one would be among them.
    """
    sized = [d for d, c in enumerate(classes) if c != ONE]
    if len(sized) < 2 or _runs_along(operand, sized[-1]):
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
