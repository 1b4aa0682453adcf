"""Ops that combine elements along axes: sum, max, any, argmax, cumsum; not what is composed of them.

The gradient of max and min is shared equally among ties.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import OpDef
from jitgrad.operators import call, function
from jitgrad.ops.accumulation import cumulative, define_cumulative, from_neutral
from jitgrad.ops.axes import (
    Axes,
    axis_of,
    begun,
    define_reduction,
    is_of_number,
    is_void,
    masked,
    narrowed,
    reduced_axes,
    spread,
    sum_dtype,
    widened,
)
from jitgrad.ops.common import as_tensor, filled_like, refuse_options, where
from jitgrad.spec import DType, Shape, normalize_axes

# -- sums ----------------------------------------------------------------------------------------------------

sum_op = define_reduction(
    "sum", np.sum, "add", sum_dtype, lambda g, out, x, *, axis, keepdims: spread(g, x, axis, keepdims)
)


@function("sum")
def sum_(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """As numpy.sum: integers and bools add up in int64."""
    refuse_options("sum", out=out)
    x = masked(widened(a, dtype), where, 0)
    total = narrowed(apply_one(sum_op, x, axis=reduced_axes(x, axis), keepdims=bool(keepdims)), dtype)
    return total if initial is None else total + begun(initial, total.dtype)


def _cumsum_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int) -> Any:
    return call("flip", cumsum(call("flip", g, axis), axis), axis)


cumsum_op = define_cumulative("cumsum", np.cumsum, "add", _cumsum_vjp)


@function("cumsum")
def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Tensor:
    """As numpy.cumsum: the flattened array for axis None."""
    return cumulative(cumsum_op, a, axis, dtype, out)


@function("cumulative_sum")
def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, out: Any = None, include_initial: bool = False
) -> Tensor:
    """As numpy.cumulative_sum."""
    refuse_options("cumulative_sum", out=out)
    return from_neutral(cumsum_op, x, axis, dtype, 0 if include_initial else None)


# -- extremes ------------------------------------------------------------------------------------------------


def _same(dtype: DType) -> DType:
    return dtype


def _extreme_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: Axes, keepdims: bool) -> Any:
    is_extreme = x == spread(out, x, axis, keepdims)
    count = sum_(is_extreme, axis, x.dtype, keepdims=keepdims)
    return where(is_extreme, spread(g / count, x, axis, keepdims), 0)


max_op = define_reduction("max", np.max, "maximum", _same, _extreme_vjp, has_identity=False)
min_op = define_reduction("min", np.min, "minimum", _same, _extreme_vjp, has_identity=False)


def _with_known(x: Tensor, axes: Axes) -> Shape:
    """The shape where the extents of these axes are known, or all have to be."""
    shape = x.spec.shape
    told = shape is not None and None not in [shape[k] for k in normalize_axes(axes, len(shape))]
    return shape if told and shape is not None else x.spec.known_shape


def _extreme(op: OpDef, bound: str, a: Any, axis: Any, keepdims: bool, initial: Any, mask: Any) -> Any:
    x = as_tensor(a)
    if mask is not True and initial is None:
        raise ValueError(f"{op.name} with where= needs initial=, the value where nothing is chosen")
    initial = None if initial is None else begun(initial, x.dtype)
    x = masked(x, mask, initial)
    axes = reduced_axes(x, axis)
    if initial is not None and is_void(_with_known(x, axes), axes):
        return filled_like(apply_one(sum_op, x, axis=axes, keepdims=bool(keepdims)), initial, x.dtype)
    found = apply_one(op, x, axis=axes, keepdims=bool(keepdims))
    return found if initial is None else call(bound, found, initial)


@function("max", "amax")
def max_(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """As numpy.max: NaN if there is one. Ties share the gradient equally."""
    refuse_options("max", out=out)
    return _extreme(max_op, "maximum", a, axis, keepdims, initial, where)


@function("min", "amin")
def min_(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """As numpy.min: NaN if there is one. Ties share the gradient equally."""
    refuse_options("min", out=out)
    return _extreme(min_op, "minimum", a, axis, keepdims, initial, where)


# -- logic and indices ---------------------------------------------------------------------------------------


def _bool(dtype: DType) -> DType:
    return np.dtype(bool)


def _index(dtype: DType) -> DType:
    return np.dtype(np.intp)


any_op = define_reduction("any", np.any, "logical_or", _bool)
all_op = define_reduction("all", np.all, "logical_and", _bool)
argmax_op = define_reduction("argmax", np.argmax, "argmax", _index, has_identity=False)
argmin_op = define_reduction("argmin", np.argmin, "argmin", _index, has_identity=False)


def _logical(op: OpDef, a: Any, axis: Any, keepdims: bool, mask: Any, neutral: bool) -> Tensor:
    x = masked(call("astype", a, bool), mask, neutral)
    return apply_one(op, x, axis=reduced_axes(x, axis), keepdims=bool(keepdims))


@function("any")
def any_(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Tensor:
    """As numpy.any."""
    refuse_options("any", out=out)
    return _logical(any_op, a, axis, keepdims, where, False)


@function("all")
def all_(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True) -> Tensor:
    """As numpy.all."""
    refuse_options("all", out=out)
    return _logical(all_op, a, axis, keepdims, where, True)


def _axis_or_all(x: Tensor, axis: Any) -> int | None:
    return None if axis is None or is_of_number(x, axis) else axis_of(x, axis)


@function("argmax")
def argmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Tensor:
    """As numpy.argmax: the first index of the largest element (in the flattened array for axis None); a NaN
    wins.
    """
    refuse_options("argmax", out=out)
    x = as_tensor(a)
    return apply_one(argmax_op, x, axis=_axis_or_all(x, axis), keepdims=bool(keepdims))


@function("argmin")
def argmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Tensor:
    """As numpy.argmin: the first index of the smallest element (in the flattened array for axis None); a NaN
    wins.
    """
    refuse_options("argmin", out=out)
    x = as_tensor(a)
    return apply_one(argmin_op, x, axis=_axis_or_all(x, axis), keepdims=bool(keepdims))
