"""Gradients of an array that is read item by item: put side by side in place of added up as arrays.

A loop of Python's over ``x[t]`` gives the gradient of x one addend for each item, an array that is 0 everywhere else:
to add n of them up is work for n times n items. What the items get is stacked instead, and takes its place as a whole.
How all other addends are summed is told in aggregation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jitgrad.aggregation import AggregationMethod, sum_of
from jitgrad.graph import Tensor
from jitgrad.operators import call
from jitgrad.ops.slicing import unslice

Place = tuple[int, ...]

MOST_ADDED = 8  # items: so many windows a loop over the array tells apart by its segments
_MOST_GAPS = 4  # times as many places as items
_LARGE_ITEM = 1024  # elements, of items whose gaps would be stored for nothing


def side_by_side(addends: Sequence[Tensor]) -> list[Tensor]:
    """Addends with the same sum, which has their shape: those of single items, many of one kind, are one."""
    kinds = dict[Place, dict[Place, list[Tensor]]]()
    kept = list[Tensor]()
    for g in addends:
        axes = _axes_of_item(g)
        if axes:
            place = tuple([g.op.params["start"][k] for k in axes])
            kinds.setdefault(axes, {}).setdefault(place, []).append(g)
        else:
            kept.append(g)
    for axes, parts in kinds.items():
        if len(parts) > MOST_ADDED and math.prod(map(len, _box(parts))) <= _most_places(parts):
            kept.append(_assembled(addends[0], axes, parts))
        else:
            kept += itertools.chain.from_iterable(parts.values())
    return kept


def _most_places(parts: Mapping[Place, Sequence[Tensor]]) -> int:
    """How many places, gaps included, may have room for some items."""
    item = next(iter(parts.values()))[0].op.inputs[0].spec
    return len(parts) * (_MOST_GAPS if math.prod(item.known_shape) < _LARGE_ITEM else 1)


def _axes_of_item(g: Tensor) -> Place:
    """The axes on which a part is one item, all of it along the others; none where it is another kind of part."""
    if g.op.type != "unslice" or not g.spec.is_known:
        return ()
    p = g.op.params
    whole = [(0, n, 1) for n in g.spec.known_shape]
    drop = tuple(sorted(p["drop"]))
    bounds = zip(p["start"], p["stop"], p["step"], strict=True)
    return drop if all(k in drop or bound == whole[k] for k, bound in enumerate(bounds)) else ()


def _box(places: Mapping[Place, object]) -> list[range]:
    """The items from the first to the last one, along each axis."""
    return [range(min(along), max(along) + 1) for along in zip(*places, strict=True)]


def _assembled(like: Tensor, axes: Place, parts: Mapping[Place, Sequence[Tensor]]) -> Tensor:
    """All parts as one, of the shape of ``like``."""
    box, rank = _box(parts), like.ndim
    given = {place: [g.op.inputs[0] for g in found] for place, found in parts.items()}
    some = next(iter(given.values()))[0].spec
    zeros = call("constant", np.broadcast_to(np.zeros((), some.dtype), some.known_shape), graph=like.graph)
    items = [_total(given[place]) if place in given else zeros for place in itertools.product(*box)]
    stack = call("stack", items)
    rest = [k for k in range(rank) if k not in axes]
    wide = call("reshape", stack, (*map(len, box), *some.known_shape)) if len(axes) > 1 else stack
    order = (*axes, *rest)
    placed = wide if order == tuple(range(rank)) else call("transpose", wide, tuple(np.argsort(order).tolist()))
    if placed.shape == like.shape:
        return placed  # type: ignore[no-any-return]
    window = [slice(None)] * rank
    for k, along in zip(axes, box, strict=True):
        window[k] = slice(along.start, along.stop)
    return unslice(placed, like, window)


def _total(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else sum_of(values, AggregationMethod.ADD_N)
