"""Order and search: sort, argsort, searchsorted, digitize, interp, and choice among arrays by number."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Interpreted, Params, Specs, Sweep, define
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, as_tensors, build, common_dtype, joint_dtype, type_key, unsupported
from jitgrad.ops.gathering import INDEX, scatter_take_along_op, zeros_like_shape
from jitgrad.ops.ordering import order_along, ready_order, sorted_along
from jitgrad.spec import TensorSpec, normalize_axis

_NO_KERNEL = "there is no kernel that sorts"


def _sort_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int) -> Tensor:
    return apply_one(
        scatter_take_along_op, zeros_like_shape(x), g, apply_one(argsort_op, x, axis=axis), axis=axis
    )


sort_op = define(
    "sort",
    infer=lambda specs, params: specs,
    impl=sorted_along,
    vjp=_sort_vjp,
    kind=Interpreted(_NO_KERNEL),
    infers_partial=True,
)

argsort_op = define(
    "argsort",
    infer=lambda specs, params: (TensorSpec(specs[0].shape, INDEX),),
    impl=order_along,
    bound=lambda params, specs: ready_order(specs[0].dtype, specs[0].known_shape, **params),
    differentiable=False,
    kind=Interpreted(_NO_KERNEL),
    infers_partial=True,
)


def _along(a: Any, axis: Any, order: Any, name: str) -> tuple[Tensor, int]:
    if order is not None:
        raise unsupported(name, " with order=")
    x = as_tensor(a)
    if axis is None:
        return build("ravel", x), 0
    return x, normalize_axis(axis, x.ndim)


@function("sort")
def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor:
    """Sorted along ``axis`` (None: flattened), stably; gradients go to where each element came from."""
    x, axis = _along(a, axis, order, "sort")
    return apply_one(sort_op, x, axis=axis)


@function("argsort")
def argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor:
    """The positions that sort along ``axis``, always stably."""
    x, axis = _along(a, axis, order, "argsort")
    return apply_one(argsort_op, x, axis=axis)


def _refuse_places(a: Any, kth: Any, axis: Any) -> None:
    """ValueError where a place of a partition is none of the axis', as from NumPy, which takes any where there are no
    elements; ShapeError where that is known only when the graph runs.
    """
    x = as_tensor(a)
    if 0 in x.shape:
        return
    extent = x.spec.size if axis is None else x.shape[normalize_axis(axis, x.ndim)]
    if extent is None:
        raise ShapeError(f"how many elements there are along axis {axis} of {x.spec} is not known here")
    for k in map(operator.index, kth if np.ndim(kth) else (kth,)):
        if not -extent <= k < extent:
            raise ValueError(f"kth={k} is out of bounds for {extent} elements")


@function("partition")
def partition(a: Any, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None) -> Tensor:
    """Sorted fully, which is a partition around every ``kth``."""
    _refuse_places(a, kth, axis)
    return sort(a, axis, order=order)


@function("argpartition")
def argpartition(a: Any, kth: Any, axis: Any = -1, kind: str = "introselect", order: Any = None) -> Tensor:
    """The positions of a full sort, which is a partition around every ``kth``."""
    _refuse_places(a, kth, axis)
    return argsort(a, axis, order=order)


# -- searching -----------------------------------------------------------------------------------------------


def _infer_searchsorted(specs: Specs, params: Params) -> Specs:
    if specs[0].rank not in (1, None):
        raise ShapeError(f"searchsorted needs a one-dimensional sorted array, got {specs[0]}")
    return (TensorSpec(specs[1].shape, INDEX),)


searchsorted_op = define(
    "searchsorted",
    infer=_infer_searchsorted,
    impl=lambda a, v, side: np.asarray(np.searchsorted(a, v, side)),
    differentiable=False,
    kind=Sweep("search"),
    infers_partial=True,
)


@function("searchsorted")
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Tensor:
    """Where elements of ``v`` would be inserted into the sorted vector ``a`` to keep its order.

    ValueError unless ``side`` is 'left' or 'right'.
    """
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', got {side!r}")
    xs, values = as_tensors(a, v)
    xs = xs if sorter is None else build("take", xs, sorter, 0)
    dtype = common_dtype(a, v)
    return apply_one(searchsorted_op, as_tensor(xs, dtype), as_tensor(values, dtype), side=side)


@function("digitize")
def digitize(x: Any, bins: Any, right: bool = False) -> Tensor:
    """The number of the bin of each element; ``bins`` rise or, when they are concrete, may also fall."""
    side = "left" if right else "right"
    if not isinstance(bins, Tensor):
        edges = np.asarray(bins)
        steps = np.diff(edges)
        if (steps < 0).any():
            if (steps > 0).any():
                raise ValueError("bins must be monotonically increasing or decreasing")
            return build("subtract", len(edges), searchsorted(edges[::-1], x, side))
    return searchsorted(bins, x, side)


@function("interp")
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Tensor:
    """Linear between the points ``(xp, fp)``, ``left`` and ``right`` (the end values) outside; xp rises, unless there
    is a ``period``.
    """
    if period is not None:
        return interp(build("remainder", x, abs(period)), *_one_period(xp, fp, abs(period)))
    dtype = np.result_type(common_dtype(x, xp, fp), np.float64)
    points, grid, values = (as_tensor(t, dtype) for t in as_tensors(x, xp, fp))
    if grid.ndim != 1:
        raise ShapeError(f"xp must have one dimension, got {grid.spec}")
    last = grid.spec.known_shape[0] - 1
    if values.shape != grid.shape:
        raise ShapeError(f"fp and xp are not of the same length: {values.spec} and {grid.spec}")
    inside = _between(points, grid, values, last) if last else build("broadcast_to", values, points.shape)
    low, high = values[0] if left is None else left, values[-1] if right is None else right
    bounded = build("where", build("less", points, grid[0]), low, inside)
    return build("where", build("greater", points, grid[-1]), high, bounded)


def _one_period(xp: Any, fp: Any, period: Any) -> tuple[Tensor, Tensor]:
    """The points in order within one period, between the last one of the period before and the first of the next."""
    if period == 0:
        raise ValueError("period must be a non-zero value")
    places, values = build("remainder", xp, period), as_tensors(fp, xp)[0]
    order = argsort(places)
    places, values = build("take", places, order), build("take", values, order)
    return (
        build("concatenate", [places[-1:] - period, places, places[:1] + period]),
        build("concatenate", [values[-1:], values, values[:1]]),
    )


def _between(x: Tensor, grid: Tensor, values: Tensor, last: int) -> Any:
    above = build("clip", searchsorted(grid, x, "right"), 1, last)
    below = above - 1
    x0, x1, f0, f1 = (build("take", t, index, 0) for t in (grid, values) for index in (below, above))
    return (f1 - f0) / (x1 - x0) * (x - x0) + f0


# -- choosing ------------------------------------------------------------------------------------------------


@function("choose")
def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Tensor:
    """``choices[a[i]][i]``: an element of the array whose number ``a`` gives, all broadcast."""
    if out is not None:
        raise unsupported("choose", " with out=")
    dtype = joint_dtype(*map(type_key, choices))
    number, *options = call("broadcast_arrays", a, *(as_tensor(x, dtype) for x in choices))
    if mode != "raise":
        count = len(options)
        number = build("remainder", number, count) if mode == "wrap" else build("clip", number, 0, count - 1)
    picked = build("take_along_axis", build("stack", options), build("expand_dims", number, 0), 0)
    return build("squeeze", picked, 0)


@function("piecewise")
def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Tensor:
    """The function (or number) of the last condition that holds; one function more is the default, else 0.

    Each function sees all of ``x``: what it gives elsewhere is left out, as with np.where.
    """
    t = as_tensor(x)
    conditions = list(condlist) if isinstance(condlist, list | tuple) else [condlist]
    functions = list(funclist)
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise ValueError(
            f"with {len(conditions)} conditions, {len(conditions)} or one more functions are expected"
        )
    has_default = len(functions) > len(conditions)
    result = _value_of(functions.pop(), t, args, kw) if has_default else build("zeros_like", t)
    for condition, fn in zip(conditions, functions, strict=True):
        result = build("where", condition, _value_of(fn, t, args, kw), result)
    return result


def _value_of(fn: Any, x: Tensor, args: Any, kw: Any) -> Any:
    value = fn(x, *args, **kw) if callable(fn) else fn
    return build("astype", call("broadcast_arrays", value, x)[0], x.dtype)


def _refuse(name: str) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(name, ", whose result has a shape that depends on values,")

    function(name)(refuse)


for _name in ("unique", "unique_values", "union1d", "intersect1d", "setdiff1d", "trim_zeros"):
    _refuse(_name)
