"""Slices with static bounds, their transpose (a window in zeros), padding; nothing here depends on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from types import NoneType
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import AxisIndex, Guard, IndexMap, Interpreted, Params, Reindex, Specs, define
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, build, unsupported
from jitgrad.records import NamedTuple
from jitgrad.spec import TensorSpec, shape_text

Maps = tuple[tuple[IndexMap | None, ...], ...]
Bounds = Sequence[slice]


class Selected(NamedTuple):
    """The positions that a slice selects, as a range: extents may be symbols, which no range has."""

    start: int
    step: int
    extent: int


def selected(extent: int, start: int | None, stop: int | None = None, step: int | None = None) -> Selected:
    """What a slice selects of an axis."""
    if type(extent) is int and type(stop) in (int, NoneType):
        chosen = range(extent)[slice(start, stop, step)]
        return Selected(chosen.start, chosen.step, len(chosen))
    step = 1 if step is None else step
    first, last = (0, extent) if step > 0 else (-1, extent - 1)
    lo = (first if step > 0 else last) if start is None else _inside(start, extent, first, last)
    hi = (last if step > 0 else first) if stop is None else _inside(stop, extent, first, last)
    distance = hi - lo if step > 0 else lo - hi
    return Selected(lo, step, -(-distance // abs(step)) if distance > 0 else 0)


def _inside(bound: int, extent: int, first: int, last: int) -> int:
    """A bound of a slice, counted from the end where it is negative, and no farther than an axis reaches."""
    bound = bound + extent if bound < 0 else bound
    if bound < first:
        return first
    return last if bound > last else bound


def _ranges(shape: tuple[int, ...], params: Params) -> list[Selected]:
    """The positions that the slices select, per axis of an array of that shape."""
    bounds = zip(params["start"], params["stop"], params["step"], strict=True)
    if len(params["start"]) != len(shape):
        raise ShapeError(f"{len(params['start'])} slices for an array of dimension {len(shape)}")
    return [selected(n, *bound) for n, bound in zip(shape, bounds, strict=True)]


def _sliced_shape(shape: tuple[int, ...], params: Params) -> tuple[int, ...]:
    chosen = _ranges(shape, params)
    for axis in params["drop"]:
        if chosen[axis].extent != 1:
            raise ShapeError(
                f"index {params['start'][axis]} is out of bounds for axis {axis} with size {shape[axis]}"
            )
    return tuple(r.extent for axis, r in enumerate(chosen) if axis not in params["drop"])


def _slices(params: Params) -> tuple[Any, ...]:
    bounds = zip(params["start"], params["stop"], params["step"], strict=True)
    return tuple(bound[0] if axis in params["drop"] else slice(*bound) for axis, bound in enumerate(bounds))


def _getslice_maps(specs: Specs, params: Params) -> Maps:
    kept = iter(range(len(specs[0].known_shape)))
    dims = [
        AxisIndex(None, 1, r.start) if axis in params["drop"] else AxisIndex(next(kept), r.step, r.start)
        for axis, r in enumerate(_ranges(specs[0].known_shape, params))
    ]
    return ((IndexMap(tuple(dims)),),)


getslice_op = define(
    "getslice",
    infer=lambda specs, params: (TensorSpec(_sliced_shape(specs[0].known_shape, params), specs[0].dtype),),
    impl=lambda x, **params: np.asarray(x)[_slices(params)],
    bound=lambda params, specs: itemgetter(_slices(params)),
    vjp=lambda g, out, x, **params: _unslice(g, x, params),
    kind=Reindex(_getslice_maps),
)


def getslice(x: Tensor, slices: Bounds, drop: Sequence[int] = ()) -> Tensor:
    """``x`` sliced along each axis; axes in ``drop``, whose slices select one element, are left out."""
    extents = x.spec.shape or (None,) * len(slices)
    bounds = [_canonical(s, n) for s, n in zip(slices, extents, strict=True)]
    start, stop, step = zip(*bounds, strict=True) if bounds else ((), (), ())
    return apply_one(getslice_op, x, start=start, stop=stop, step=step, drop=tuple(drop))


def _canonical(bound: slice, extent: int | None) -> tuple[int | None, int | None, int]:
    """Non-negative bounds where the extent is known, so that equal slices have equal params."""
    if extent is None:
        return bound.start, bound.stop, 1 if bound.step is None else bound.step
    chosen = range(extent)[bound]
    if not chosen:
        return 0, 0, 1
    stop = chosen[-1] + (1 if chosen.step > 0 else -1)
    return chosen.start, None if stop < 0 else stop, chosen.step


def slice_axis(
    x: Tensor, axis: int, start: int | None, stop: int | None = None, step: int | None = None
) -> Tensor:
    """``x[start:stop:step]`` along one axis."""
    slices = [slice(None)] * x.ndim
    slices[axis] = slice(start, stop, step)
    return getslice(x, slices)


# -- the transpose of a slice --------------------------------------------------------------------------------


def _target_shape(specs: Specs, params: Params) -> tuple[int, ...]:
    return specs[1].known_shape if params["shape"] is None else params["shape"]


def _infer_unslice(specs: Specs, params: Params) -> Specs:
    if not all(spec.is_known for spec in specs):
        return (TensorSpec(specs[1].shape if params["shape"] is None else params["shape"], specs[0].dtype),)
    shape = _target_shape(specs, params)
    if _sliced_shape(shape, params) != specs[0].shape:
        raise ShapeError(f"{specs[0]} does not fill the window {_slices(params)} of {shape_text(shape)}")
    return (TensorSpec(shape, specs[0].dtype),)


def _unslice_impl(v: Any, *like: Any, shape: Any, **params: Any) -> Any:
    out = np.zeros(like[0].shape if like else shape, dtype=v.dtype)
    out[_slices(params)] = v
    return out


def _ready_unslice(params: Params, specs: Specs) -> Callable[..., Any]:
    zeros, shape, window = np.zeros, _target_shape(specs, params), _slices(params)

    def unslice(v: Any, *like: Any) -> Any:
        out = zeros(shape, v.dtype)
        out[window] = v
        return out

    return unslice


def _unslice_maps(specs: Specs, params: Params) -> Maps:
    dims, guards = [], []
    for axis, r in enumerate(_ranges(_target_shape(specs, params), params)):
        if axis not in params["drop"]:
            dims.append(AxisIndex(axis, r.step, -r.step * r.start))
        low, high = (r.start, r.start + r.extent) if r.step > 0 else (r.start - r.extent + 1, r.start + 1)
        guards.append(Guard(axis, low, high))
    return ((IndexMap(tuple(dims), tuple(guards)), *[None] * (len(specs) - 1)),)


def _unslice_vjp(g: Tensor, out: Tensor, v: Tensor, *like: Tensor, shape: Any, **params: Any) -> Any:
    return (apply_one(getslice_op, g, **params), *[None] * len(like))


unslice_op = define(
    "unslice",
    infer=_infer_unslice,
    impl=_unslice_impl,
    bound=_ready_unslice,
    vjp=_unslice_vjp,
    kind=Reindex(_unslice_maps),
    infers_partial=True,
)

unslice_strided_op = define(
    "unslice_strided",
    infer=_infer_unslice,
    impl=_unslice_impl,
    vjp=_unslice_vjp,
    kind=Interpreted("a window with strides along an axis whose extent the graph does not know"),
    infers_partial=True,
)


def unslice(v: Tensor, like: Tensor, slices: Bounds, drop: Sequence[int] = ()) -> Tensor:
    """Zeros of the shape of ``like``, with ``v`` where the slices are: the transpose of ``getslice``."""
    extents = like.spec.shape or (None,) * len(slices)
    bounds = [_canonical(s, n) for s, n in zip(slices, extents, strict=True)]
    start, stop, step = zip(*bounds, strict=True) if bounds else ((), (), ())
    return _unslice(v, like, {"start": start, "stop": stop, "step": step, "drop": tuple(drop)})


def _unslice(v: Tensor, like: Tensor, params: Params) -> Tensor:
    extents = like.spec.shape
    strided = [
        axis for axis, step in enumerate(params["step"]) if abs(step) > 1 and axis not in params["drop"]
    ]
    if strided and (extents is None or any(extents[axis] is None for axis in strided)):
        return apply_one(unslice_strided_op, v, like, shape=None, **params)
    start, stop, step = list(params["start"]), list(params["stop"]), list(params["step"])
    for axis in strided:
        extent = extents[axis] if extents is not None else None
        assert extent is not None
        chosen = range(extent)[slice(start[axis], stop[axis], step[axis])]
        place = axis - sum(d < axis for d in params["drop"])
        if _runs_through(chosen, extent):
            v = _spread(v, place, chosen.step, chosen.start, extent)
            start[axis], stop[axis], step[axis] = 0, extent, 1
            continue
        sign = 1 if chosen.step > 0 else -1
        v = _spread(v, place, abs(chosen.step), 0, (len(chosen) - 1) * abs(chosen.step) + 1)
        last = chosen[-1] + sign
        stop[axis], step[axis] = None if last < 0 else last, sign
    is_turned = any(s < 0 for s in step)
    if strided and not is_turned and not params["drop"] and v.spec.is_known and v.spec.shape == extents:
        return v
    unit = {"start": tuple(start), "stop": tuple(stop), "step": tuple(step), "drop": params["drop"]}
    if like.spec.is_known:
        return apply_one(unslice_op, v, shape=like.spec.known_shape, **unit)
    return apply_one(unslice_op, v, like, shape=None, **unit)


def _runs_through(chosen: range, extent: int) -> bool:
    """Whether a slice with a step takes one of each so many elements, up to the end of the axis."""
    return 0 <= chosen.start < chosen.step and extent <= len(chosen) * chosen.step


def _spread(v: Tensor, axis: int, step: int, first: int, extent: int) -> Tensor:
    """``v`` with zeros between elements, from the place ``first`` on: a new axis, padded, merged and cut at the end."""
    apart: Tensor = build("expand_dims", v, axis + 1)
    widths = [(0, 0)] * (v.ndim + 1)
    widths[axis + 1] = (first, step - 1 - first)
    merged: Tensor = build("merge_axes", pad_constant(apart, widths), axis)
    return merged if merged.shape[axis] == extent else slice_axis(merged, axis, 0, extent)


# -- padding -------------------------------------------------------------------------------------------------


def _infer_pad(specs: Specs, params: Params) -> Specs:
    shape, widths = specs[0].known_shape, params["pad_width"]
    return (
        TensorSpec(
            tuple(n + low + high for n, (low, high) in zip(shape, widths, strict=True)), specs[0].dtype
        ),
    )


def _pad_maps(specs: Specs, params: Params) -> Maps:
    dims, guards = [], []
    for axis, (n, (low, high)) in enumerate(zip(specs[0].known_shape, params["pad_width"], strict=True)):
        dims.append(AxisIndex(axis, 1, -low))
        guards += [Guard(axis, low, low + n)] if low or high else []
    return ((IndexMap(tuple(dims), tuple(guards)),),)


pad_op = define(
    "pad",
    infer=_infer_pad,
    impl=lambda x, pad_width, fill: np.pad(x, pad_width, constant_values=fill),
    vjp=lambda g, out, x, *, pad_width, fill: getslice(
        g, [slice(low, -high or None) for low, high in pad_width]
    ),
    kind=Reindex(_pad_maps),
)


def pad_constant(x: Tensor, widths: Sequence[tuple[int, int]], fill: Any = 0) -> Tensor:
    """``x`` with ``widths[axis] = (before, after)`` elements of value ``fill`` around it."""
    value = np.asarray(fill).astype(x.dtype).item()
    return apply_one(pad_op, x, pad_width=tuple((int(low), int(high)) for low, high in widths), fill=value)


@function("pad")
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Tensor:
    """As numpy.pad; zeros for the mode empty."""
    x = as_tensor(array)
    widths = pairs(pad_width, x.ndim)
    if any(low < 0 or high < 0 for low, high in widths):
        raise ShapeError(f"pad widths must not be negative, got {widths}")
    if mode in ("constant", "empty"):
        return _pad_with_constants(x, widths, pairs(kwargs.pop("constant_values", 0), x.ndim, as_value=True))
    if mode not in ("edge", "reflect", "symmetric", "wrap") or kwargs.get("reflect_type", "even") != "even":
        return build("pad_by_values", x, widths, mode, kwargs)
    for axis, width in enumerate(widths):
        if any(width):
            x = select_runs(x, axis, np.pad(np.arange(x.spec.known_shape[axis]), width, mode))
    return x


def _pad_with_constants(x: Tensor, widths: list[tuple[int, int]], values: list[tuple[Any, Any]]) -> Tensor:
    if len({value for pair in values for value in pair}) <= 1:
        return pad_constant(x, widths, values[0][0] if values else 0)
    for axis, ((low, high), (before, after)) in enumerate(zip(widths, values, strict=True)):
        for pair, value in (((low, 0), before), ((0, high), after)):
            x = pad_constant(x, [pair if k == axis else (0, 0) for k in range(x.ndim)], value)
    return x


def pairs(value: Any, rank: int, *, as_value: bool = False) -> list[tuple[Any, Any]]:
    """What is given for both ends of each axis: one, a pair, a pair per axis, or pairs by the numbers of axes."""
    if isinstance(value, dict):
        found = [(0, 0)] * rank
        for axis, width in value.items():
            found[axis] = tuple(np.broadcast_to(np.asarray(width), 2).tolist())
        return found
    if isinstance(value, Tensor):
        raise unsupported("pad", " with traced widths or values")
    array = np.asarray(value)
    if not as_value and array.dtype.kind not in "iu":
        raise TypeError("`pad_width` must be of integral type.")
    return [tuple(pair) for pair in np.broadcast_to(array, (rank, 2)).tolist()]


def select_runs(x: Tensor, axis: int, index: Any) -> Tensor:
    """``x`` at concrete positions along ``axis``: slices, forwards, backwards or of one element, joined."""
    pieces = [
        _run(x, axis, int(run[0]), int(run[1] - run[0]) if len(run) > 1 else 1, len(run))
        for run in _runs(index)
    ]
    return build("concatenate", pieces, axis=axis) if len(pieces) > 1 else pieces[0]


def _runs(index: Any) -> list[Any]:
    """``index`` cut into pieces that rise by 1, fall by 1 or stand still."""
    runs: list[list[int]] = [[]]
    for position in index:
        run = runs[-1]
        step = position - run[-1] if run else 0
        if run and (abs(step) > 1 or (len(run) > 1 and step != run[1] - run[0])):
            runs.append([position])
        else:
            run.append(position)
    return runs


def _run(x: Tensor, axis: int, start: int, step: int, count: int) -> Tensor:
    if step == 0:
        one = slice_axis(x, axis, start, start + 1)
        return build("broadcast_to", one, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    stop = start + step * count
    return slice_axis(x, axis, start, None if stop < 0 else stop, step)
