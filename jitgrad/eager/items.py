"""``x[index]`` on eager tensors, and its gradient: a rule that reads nothing but the index, derived from no trace.

Where no element is taken twice (integers, slices, masks), the gradient is an assignment to zeros. Where positions are
arrays, a call is recorded as others are, with lists and integers as arrays: one rule serves all positions of a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.advice import named
from jitgrad.compiler.eager_code.layout import BASIC_TYPES
from jitgrad.eager.recorder import Entry
from jitgrad.eager.refusals import REFUSALS, refuse
from jitgrad.eager.tensor import EagerTensor, is_told, own_ways, plain, run, wrap
from jitgrad.eagerness import is_listener, local, number_of, settled
from jitgrad.gradients import gradients
from jitgrad.graph import Tensor
from jitgrad.operators import call

_BASIC = frozenset(BASIC_TYPES)


def item(x: EagerTensor, index: Any) -> Any:
    """``x[index]``."""
    kind = type(index)
    is_basic = kind in _BASIC or (kind is tuple and _BASIC.issuperset(map(type, index)))
    try:
        if not is_basic or local.collector is not None:
            return _other_item(x, index)
        out = wrap(x._plain[index])
    except REFUSALS as error:
        refuse(error, item, x, index)
        raise
    if local.tapes:
        record_item(x, index, out)
    return out


def record_item(x: EagerTensor, index: Any, out: EagerTensor) -> None:
    """Tell the tapes that watch ``x`` of an item of it."""
    number = x.number
    for tape in local.tapes:
        if number in tape.watched and x.key[0].kind in "fc":
            tape.entries.append((ITEM, 1, 1, number, out.number, index, x.key))
            tape.watched.add(out.number)


def _other_item(x: EagerTensor, index: Any) -> Any:
    """An item by arrays, lists or masks; or one that a scope collects. It needs no look for NaN."""
    if is_listener(local.collector):
        return local.collector.pass_by("getitem", item, x, index)
    items = [_as_array(i) for i in (index if isinstance(index, tuple) else (index,))]
    arrays = [i for i in items if isinstance(i, np.ndarray | np.generic)]
    if local.collector is None and all(i.dtype == bool for i in arrays):
        items = [plain(i).copy() if isinstance(i, np.ndarray) else i for i in items]
        chosen = tuple(items)
        out = wrap(x._plain[chosen])
        record_item(x, chosen, out)
        return out
    if any(i.dtype == bool for i in arrays):
        items = [j for i in items for j in _positions(i)]
    if arrays:
        items = [np.asarray(i) if type(i) is int else i for i in items]
    return run(item_of, (x, tuple(items) if isinstance(index, tuple) or len(items) != 1 else items[0]), {})


def _as_array(i: Any) -> Any:
    i = settled(i)
    return np.asarray(i) if isinstance(i, list) and i else i


def _positions(i: Any) -> Sequence[Any]:
    """What an index of a mask means: the positions where it holds, along as many axes as it has."""
    if isinstance(i, np.ndarray) and i.dtype == bool and i.ndim:
        return plain(i).nonzero()  # type: ignore[no-any-return]
    return (i,)


def item_of(x: Any, index: Any) -> Any:
    """``x[index]``, of arrays and traced values alike."""
    return x[index]


def extract(condition: Any, arr: Any) -> Any:
    """``np.extract``: the elements where the condition holds, an item by a mask."""
    return compress(np.ravel(plain(settled(condition))), arr)


def compress(condition: Any, a: Any, axis: int | None = None, out: None = None) -> Any:
    """``np.compress``: slices along an axis (None: flattened) where the condition holds."""
    x = run(np.ravel, (a,), {}) if axis is None else settled(a)
    axis = 0 if axis is None else axis % x.ndim
    mask = np.asarray(plain(settled(condition)), bool)
    places = mask if len(mask) == x.shape[axis] else np.flatnonzero(mask)
    return x[(*(slice(None),) * axis, places)]


own_ways[np.extract], own_ways[np.compress] = extract, compress


class _ItemRule:
    """The gradient of an item: zeros in which its cotangent is put. Kept: the index, and the key of the tensor."""

    def places(self, leaves: int) -> Sequence[int]:
        """Nothing: what is kept is no argument."""
        return ()

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """The cotangent of the tensor."""
        index, key = kept
        return (placed(cotangents[0], index, key),)


class _PlacedRule:
    """The gradient of that gradient: the item. Kept: the index."""

    def places(self, leaves: int) -> Sequence[int]:
        """Nothing: what is kept is no argument."""
        return ()

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """The cotangent of what was put in."""
        return (settled(cotangents[0])[kept[0]],)


ITEM, PLACED = _ItemRule(), _PlacedRule()
named[item] = named[item_of] = "item"


def placed(g: Any, index: Any, key: Any) -> Any:
    """Zeros of the key's dtype and shape with ``g`` at ``index``; tapes that watch ``g`` are told."""
    g = settled(g)
    if isinstance(g, Tensor):
        return _placed_in_graph(g, index, key)
    if is_listener(local.collector):
        return local.collector.pass_by("put_item", placed, g, index, key)
    if local.collector is not None:
        return local.collector.add(_placed_in_graph, (g, index, key), {})
    dtype, shape = key
    value = np.zeros(shape, dtype)
    value[index] = plain(g)
    if not is_told():
        return value
    out = wrap(value)
    number = number_of(g)
    entry: Entry = (PLACED, 1, 1, number, out.number, index)
    for tape in local.tapes:
        if number in tape.watched:
            tape.entries.append(entry)
            tape.watched.add(out.number)
    return out


def _placed_in_graph(g: Tensor, index: Any, key: Any) -> Tensor:
    dtype, shape = key
    with g.graph.as_default():
        zeros = call("constant", np.broadcast_to(np.zeros((), dtype), shape))
        (found,) = gradients([zeros[index]], [zeros], [g])
    assert found is not None
    return found
