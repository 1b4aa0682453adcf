"""What windows that slide over elements have for each of these, and pooling's gradients, which are made of it.

An element lies in several windows where they overlap; per axis they are counted back from the last one that begins at
or before it. So a gradient is gathered: each element looks at its windows, and none is written to twice. What windows
see, and what pooling makes of it, is elsewhere (windows.py, pooling.py).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import AxisIndex, Guard, IndexMap, Params, Reindex, Specs, define
from jitgrad.operators import call
from jitgrad.ops.common import where
from jitgrad.spec import TensorSpec


def _axes(params: Params) -> Iterator[tuple[int, int, int, int, int]]:
    """Per axis that windows slide along: its number, extent, stride, padding in front, and windows counted back."""
    rank = len(params["extents"])
    axes = range(params["first"], params["first"] + rank)
    return zip(axes, params["extents"], params["stride"], params["before"], params["back"], strict=True)


def _infer(specs: Specs, params: Params) -> Specs:
    shape = list(specs[0].known_shape)
    for axis, extent, *_ in _axes(params):
        shape[axis] = extent
    return (TensorSpec(tuple(shape), specs[0].dtype),)


def _impl(v: Any, **params: Any) -> Any:
    out = v
    for axis, extent, step, before, back in _axes(params):
        window = (np.arange(extent) + before) // step - back
        inside = (window >= 0) & (window < v.shape[axis])
        seen = np.take(out, np.where(inside, window, 0), axis) if v.shape[axis] else np.zeros_like(out)
        shape = [-1 if k == axis else 1 for k in range(v.ndim)]
        out = seen if inside.all() else np.where(inside.reshape(shape), seen, np.zeros((), v.dtype))
    return out


def _maps(specs: Specs, params: Params) -> tuple[tuple[IndexMap | None, ...], ...]:
    counts = specs[0].known_shape
    dims, guards = [AxisIndex(axis) for axis in range(len(counts))], []
    for axis, extent, step, before, back in _axes(params):
        dims[axis] = AxisIndex(axis, 1, before - back * step, step)
        low = min(max(back * step - before, 0), extent)
        guards.append(Guard(axis, low, max(low, min((back + counts[axis]) * step - before, extent))))
    return ((IndexMap(tuple(dims), tuple(guards)),),)


def _vjp(g: Tensor, out: Tensor, v: Tensor, **params: Any) -> Tensor:
    """Per window, the sum over the elements for which it is the one: some slices of these, added up."""
    widths = [(0, 0)] * g.ndim
    starts = [slice(None)] * g.ndim
    for axis, extent, step, before, back in _axes(params):
        count = v.shape[axis]
        widths[axis] = (before, max(0, (count + back) * step - before - extent))
        starts[axis] = slice(back * step, (back + count) * step)
    parts = [call("pad", g, widths)[tuple(starts)]]
    for axis, _, step, *_ in _axes(params):
        parts = [p[(*[slice(None)] * axis, slice(k, None, step))] for p in parts for k in range(step)]
    return call("add_n", parts) if len(parts) > 1 else parts[0]  # type: ignore[no-any-return]


held_op = define("held", infer=_infer, impl=_impl, vjp=_vjp, kind=Reindex(_maps))


def repeated(x: Tensor, count: int, axis: int) -> Tensor:
    """Each element ``count`` times along an axis of known extent: the one window that each place lies in. Its gradient
    is the sum of ``count`` slices.
    """
    extents = (x.spec.known_shape[axis] * count,)
    return apply_one(held_op, x, first=axis, extents=extents, stride=(count,), before=(0,), back=(0,))



# -- pooling ---------------------------------------------------------------------------------------------------------


def _backs(params: Params) -> Iterator[tuple[int, ...]]:
    """The windows that may hold an element, counted back along each axis."""
    counts = (-(-k // step) for k, step in zip(params["kernel"], params["stride"], strict=True))
    return itertools.product(*map(range, counts))


def _held(v: Tensor, back: tuple[int, ...], params: Params) -> Tensor:
    geometry = {name: params[name] for name in ("first", "extents", "stride", "before")}
    return apply_one(held_op, v, back=back, **geometry)


def _reached(rank: int, back: tuple[int, ...], params: Params) -> Any:
    """Which elements the windows counted back reach, as an array to be broadcast; None where they reach all."""
    masks = []
    for axis, extent, step, before, last in _axes({**params, "back": back}):
        inside = (np.arange(extent) + before) % step + last * step < params["kernel"][axis - params["first"]]
        masks.append(inside.reshape([-1 if k == axis else 1 for k in range(rank)]))
    found = functools.reduce(operator.and_, masks)
    return None if found.all() else found


def _gathered(x: Tensor, share: Any, params: Params) -> Tensor:
    """The sum over the windows of each element of what ``share(back)`` says."""
    parts = []
    for back in _backs(params):
        reached = _reached(x.ndim, back, params)
        parts.append(share(back) if reached is None else where(reached, share(back), 0))
    return call("add_n", parts) if len(parts) > 1 else parts[0]


def _largest_vjp(g: Tensor, out: Tensor, found: Tensor, x: Tensor, *seen: Tensor, **params: Any) -> Any:
    """To where the largest element is; to equal ones in equal parts."""
    ties = [call("astype", one == out, x.dtype) for one in seen]
    each = g / functools.reduce(operator.add, ties)

    def share(back: tuple[int, ...]) -> Tensor:
        return where(x == _held(out, back, params), _held(each, back, params), 0)

    return None, _gathered(x, share, params), *[None] * len(seen)


def _total_vjp(g: Tensor, out: Tensor, found: Tensor, x: Tensor, **params: Any) -> Any:
    return None, _gathered(x, lambda back: _held(g, back, params), params)


def _first_input(specs: Specs, params: Params) -> tuple[tuple[IndexMap | None, ...], ...]:
    whole = IndexMap(tuple(AxisIndex(axis) for axis in range(len(specs[0].known_shape))))
    return ((whole, *[None] * (len(specs) - 1)),)


def _first_spec(specs: Specs, params: Params) -> Specs:
    return specs[:1]


# Inputs: what was found, the elements, and (of the largest) what windows see at each of their places. Only the elements
# have a gradient: the operations that found the result are not differentiated.
largest_op = define(
    "largest_of_windows", infer=_first_spec, impl=lambda found, x, *seen, **params: found, vjp=_largest_vjp,
    kind=Reindex(_first_input),
)  # fmt: skip
total_op = define(
    "total_of_windows", infer=_first_spec, impl=lambda found, x, **params: found, vjp=_total_vjp,
    kind=Reindex(_first_input),
)  # fmt: skip
