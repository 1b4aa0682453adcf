"""Functions composed of reductions: mean, var, logsumexp, softmax, norms; only a count is an op here."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Shaped, define
from jitgrad.operators import call, function
from jitgrad.ops.axes import Axes, axes_of, is_void, reduced_axes
from jitgrad.ops.common import as_tensor, as_tensors, at_least_zero, dtype_refusal, refuse_options, unsupported, where
from jitgrad.ops.slicing import slice_axis
from jitgrad.spec import DType, TensorSpec, normalize_axis

# -- counting ------------------------------------------------------------------------------------------------


def _count(x: Any, axis: Axes, dtype: DType) -> Any:
    extents = x.shape if axis is None else [x.shape[i] for i in axis]
    return np.asarray(math.prod(extents), dtype)


size_op = define(
    "size_along",
    infer=lambda specs, params: (TensorSpec((), params["dtype"]),),
    impl=_count,
    kind=Shaped("size"),
    differentiable=False,
    infers_partial=True,
)


def size_along(x: Tensor, axis: Axes, dtype: DType) -> Any:
    """How many elements of ``x`` are combined along ``axis``: a number where the extents are known, else a
    tensor.
    """
    extents = x.spec.shape if axis is None or x.spec.shape is None else tuple(x.spec.shape[i] for i in axis)
    if extents is None or None in extents:
        return apply_one(size_op, x, axis=axis, dtype=dtype)
    return math.prod(n for n in extents if n is not None)


def _chosen(x: Tensor, axis: Axes, mask: Any, keepdims: bool) -> Any:
    """How many elements the argument where= leaves, along ``axis``."""
    if mask is True:
        return size_along(x, axis, _real(x.dtype))
    return call("sum", call("broadcast_arrays", mask, x)[0], axis, _real(x.dtype), keepdims=keepdims)


def _real(dtype: DType) -> DType:
    return np.empty(0, dtype).real.dtype


def _inexact(a: Any, dtype: Any = None) -> Tensor:
    """``a`` in the dtype given; integers and bools in float64."""
    x = as_tensor(a)
    wanted = dtype if dtype is not None else x.dtype if x.dtype.kind in "fc" else np.float64
    return call("astype", x, wanted)  # type: ignore[no-any-return]


@function("count_nonzero")
def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """As numpy.count_nonzero."""
    return call("sum", call("not_equal", a, 0), axis, np.intp, keepdims=keepdims)


# -- moments -------------------------------------------------------------------------------------------------


@function("mean")
def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True
) -> Any:
    """As numpy.mean: the sum divided by the count; integers in float64, float16 summed in float32."""
    refuse_options("mean", out=out)
    x = _inexact(a, dtype)
    if x.dtype == np.float16 and dtype is None:
        return call("astype", mean(x, axis, np.float32, keepdims=keepdims, where=where), np.float16)
    axes = axes_of(x, axis)
    total = call("sum", x, axes, None if dtype is None else x.dtype, keepdims=keepdims, where=where)
    found = total / _chosen(x, axes, where, keepdims)
    return found if dtype is None else call("astype", found, dtype)


@function("var")
def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """As numpy.var: the mean square of the deviations from the mean, in two passes. DTypeError for a ``dtype`` of
    integers or booleans, in which deviations are cut off.
    """
    refuse_options("var", out=out)
    x = _inexact(a, dtype)
    if x.dtype.kind not in "fc":
        raise dtype_refusal(f"variances are no {x.dtype.name}", (a,))
    axes = axes_of(x, axis)
    centre = call("mean", x, axes, keepdims=True, where=where) if mean is None else mean
    squares = _square_magnitude(x - centre)
    spare = ddof if correction is None else correction
    degrees = at_least_zero(_chosen(x, axes, where, keepdims) - spare)
    found = call("sum", squares, axes, keepdims=keepdims, where=where) / degrees
    return found if dtype is None else call("astype", found, dtype)


def _square_magnitude(x: Any) -> Any:
    """``x**2``, for complex x that of its absolute value."""
    return call("real", x * call("conjugate", x)) if x.dtype.kind == "c" else call("square", x)


@function("std")
def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """As numpy.std: the root of var; its gradient is 0 where the deviation is 0."""
    return _root(var(a, axis, dtype, out, ddof, keepdims, where=where, mean=mean, correction=correction))


def _root(x: Any) -> Any:
    """The square root, with gradient 0 at 0."""
    return where(x == 0, 0, call("sqrt", where(x == 0, 1, x)))


@function("average")
def average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False
) -> Any:
    """As numpy.average."""
    x = as_tensor(a)
    if weights is None:
        value = mean(x, axis, keepdims=keepdims)
        total = call("full_like", value, size_along(x, axes_of(x, axis), value.dtype))
        return (value, total) if returned else value
    w = _aligned(as_tensors(x, weights)[1], x, axis)
    product = x * w
    product = product if product.dtype.kind in "fc" else call("astype", product, np.float64)
    total = call("sum", call("astype", call("broadcast_arrays", w, x)[0], product.dtype), axis, keepdims=keepdims)
    value = call("sum", product, axis, keepdims=keepdims) / total
    return (value, total) if returned else value


def _aligned(weights: Tensor, x: Tensor, axis: Any) -> Tensor:
    """Weights of one axis, with axes of extent 1 for the others."""
    if weights.ndim == x.ndim:
        return weights
    if weights.ndim != 1 or axis is None:
        raise unsupported("average", " with weights of another shape than the array's")
    (along,) = axes_of(x, operator.index(axis)) or (0,)
    shape = tuple(-1 if i == along else 1 for i in range(x.ndim))
    return call("reshape", weights, shape)  # type: ignore[no-any-return]


@function("ptp")
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """As numpy.ptp: the largest minus the smallest element."""
    refuse_options("ptp", out=out)
    return call("max", a, axis, keepdims=keepdims) - call("min", a, axis, keepdims=keepdims)


@function("median")
def median(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    """As numpy.median: the middle of the sorted elements; NaN if there is one, and of no elements."""
    refuse_options("median", out=out)
    x = _inexact(a)
    if 0 in (x.spec.shape or ()):
        return mean(x, axis, keepdims=keepdims)
    line = call("ravel", x) if axis is None else _as_last_axis(x, axis)
    ordered = call("sort", line, -1)
    count = size_along(line, (-1,), np.dtype(np.int64))
    lower, upper, last = (call("take", ordered, place, -1) for place in ((count - 1) // 2, count // 2, -1))
    found = where(last != last, last, 0.5 * lower + 0.5 * upper)
    if not keepdims:
        return found
    return call("expand_dims", found, tuple(range(x.ndim)) if axis is None else axis)


def _as_last_axis(x: Tensor, axis: Any) -> Any:
    """One axis as the last one, or several as one."""
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    moved = call("moveaxis", x, axes, tuple(range(-len(axes), 0)))
    return moved if len(axes) == 1 else call("reshape", moved, (*moved.shape[: moved.ndim - len(axes)], -1))


@function("trapezoid")
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """As numpy.trapezoid: the integral of a piecewise linear function.

    ShapeError unless a vector ``x`` has as many coordinates as ``y`` has heights along the axis.
    """
    heights = as_tensor(y)
    along = normalize_axis(axis, heights.ndim)
    widths = dx if x is None else _widths(as_tensors(heights, x)[1], axis, heights, along)
    pairs = slice_axis(heights, along, 1) + slice_axis(heights, along, None, -1)
    return call("sum", widths * pairs / 2.0, along)


def _widths(x: Tensor, axis: int, heights: Tensor, along: int) -> Any:
    """Distances of coordinates along an axis, which of ``heights`` is ``along``, from all of them or from a vector."""
    if x.ndim > 1:
        return call("diff", x, axis=axis)
    count, given = heights.shape[along], x.shape[0] if x.ndim else None
    if None not in (count, given) and count != given:
        raise ShapeError(f"trapezoid needs {count} coordinates, one for each height along axis {axis}, got {given}")
    return call("reshape", call("diff", x), (-1, *[1] * (heights.ndim - along - 1)))


# -- sums of exponentials ------------------------------------------------------------------------------------


def _shift(x: Tensor, axis: Axes) -> Any:
    """The largest element along ``axis``, 0 where that is infinite; a constant for gradients, since any shift
    will do.
    """
    is_empty = x.spec.shape is not None and is_void(x.spec.shape, axis)
    largest = call("max", x, axis, keepdims=True, initial=-np.inf if is_empty else None)
    return call("stop_gradient", where(call("isfinite", largest), largest, 0))


@function("logsumexp")
def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """As scipy.special.logsumexp, without return_sign. Where all elements are -inf, so is the result, with
    gradient 0.
    """
    refuse_options("logsumexp", return_sign=return_sign or None)
    x = _inexact(a)
    axes = reduced_axes(x, axis)
    shift = _shift(x, axes)
    terms = call("exp", x - shift) if b is None else b * call("exp", x - shift)
    total = call("sum", terms, axes, keepdims=True)
    is_empty = total == 0
    value = where(is_empty, -np.inf, call("log", where(is_empty, 1, total)) + shift)
    return value if keepdims else _dropped(value, x, axes)


def _dropped(value: Tensor, x: Tensor, axes: Axes) -> Any:
    return (
        call("reshape", value, ())
        if axes is None or len(axes) == x.spec.rank
        else call("squeeze", value, axes)
    )


@function("softmax")
def softmax(x: Any, axis: Any = None) -> Any:
    """As scipy.special.softmax."""
    t = _inexact(x)
    axes = axes_of(t, axis)
    powers = call("exp", t - _shift(t, axes))
    return powers / call("sum", powers, axes, keepdims=True)


@function("log_softmax")
def log_softmax(x: Any, axis: Any = None) -> Any:
    """As scipy.special.log_softmax."""
    t = _inexact(x)
    axes = axes_of(t, axis)
    shifted = t - _shift(t, axes)
    return shifted - call("log", call("sum", call("exp", shifted), axes, keepdims=True))


# -- leaving NaN out -----------------------------------------------------------------------------------------


def _nan_as(a: Any, neutral: Any) -> Tensor:
    x = as_tensor(a)
    return where(x != x, neutral, x) if x.dtype.kind in "fc" else x


@function("nansum")
def nansum(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **options: Any
) -> Any:
    """As numpy.nansum."""
    return call("sum", _nan_as(a, 0), axis, dtype, out, keepdims, **options)


@function("nanprod")
def nanprod(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **options: Any
) -> Any:
    """As numpy.nanprod."""
    return call("prod", _nan_as(a, 1), axis, dtype, out, keepdims, **options)


@function("nancumsum")
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """As numpy.nancumsum."""
    return call("cumsum", _nan_as(a, 0), axis, dtype, out)


@function("nancumprod")
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """As numpy.nancumprod."""
    return call("cumprod", _nan_as(a, 1), axis, dtype, out)


@function("nanmean")
def nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = True
) -> Any:
    """As numpy.nanmean; NaN, without a warning, where there is nothing else."""
    x = _inexact(a)
    return mean(_nan_as(x, 0), axis, dtype, out, keepdims, where=_with_values(x, where))


@function("nanvar")
def nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    **options: Any,
) -> Any:
    """As numpy.nanvar: NaN where no more values are there than are taken from their number."""
    x, taken = _inexact(a), options.get("correction", ddof)
    values = _with_values(x, options.pop("where", True))
    found = var(_nan_as(x, 0), axis, dtype, out, ddof, keepdims, where=values, **options)
    return where(call("count_nonzero", values, axis, keepdims=keepdims) > taken, found, np.nan) if taken else found


@function("nanstd")
def nanstd(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    **options: Any,
) -> Any:
    """As numpy.nanstd."""
    return _root(nanvar(a, axis, dtype, out, ddof, keepdims, **options))


def _with_values(x: Tensor, mask: Any) -> Any:
    return x == x if mask is True else (x == x) & mask


@function("nanmax")
def nanmax(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, **options: Any) -> Any:
    """As numpy.nanmax; NaN, without a warning, where there is nothing else."""
    return _nan_extreme("max", -np.inf, a, axis, out, keepdims, options)


@function("nanmin")
def nanmin(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, **options: Any) -> Any:
    """As numpy.nanmin; NaN, without a warning, where there is nothing else."""
    return _nan_extreme("min", np.inf, a, axis, out, keepdims, options)


def _nan_extreme(name: str, neutral: float, a: Any, axis: Any, out: Any, keepdims: bool, options: Any) -> Any:
    x = as_tensor(a)
    limit = neutral if x.dtype.kind != "c" else complex(neutral, neutral)
    found = call(name, _nan_as(x, limit), axis, out, keepdims, **options)
    if x.dtype.kind not in "fc" or options:
        return found
    return where(call("all", x != x, axis, keepdims=keepdims), np.nan, found)


# -- norms ---------------------------------------------------------------------------------------------------


@function("linalg.norm")
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """As numpy.linalg.norm. The gradient of a 2-norm is 0 at 0."""
    t = _inexact(x)
    if ord is None and axis is None:
        return _root(call("sum", _square_magnitude(t), None, keepdims=keepdims))
    axes = tuple(range(t.ndim)) if axis is None else tuple(np.atleast_1d(np.asarray(axis, np.int64)).tolist())
    if len(axes) == 1:
        return vector_norm(t, axis=axes, ord=2 if ord is None else ord, keepdims=keepdims)
    if len(axes) == 2:
        return _matrix_norm(t, ord, axes, keepdims)
    raise ValueError("norm takes one axis (vectors) or two (matrices)")


@function("linalg.vector_norm")
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """As numpy.linalg.vector_norm. The gradient of a p-norm is 0 at 0."""
    t = _inexact(x)
    if ord == 2:
        return _root(call("sum", _square_magnitude(t), axis, keepdims=keepdims))
    size = call("absolute", t)
    if ord in (math.inf, -math.inf):
        return call("max" if ord > 0 else "min", size, axis, keepdims=keepdims)
    if ord == 0:
        return call("sum", t != 0, axis, size.dtype, keepdims=keepdims)
    if ord == 1:
        return call("sum", size, axis, keepdims=keepdims)
    total = call("sum", call("power", size, ord), axis, keepdims=keepdims)
    if ord < 0:
        return call("power", total, 1 / ord)
    is_zero = total == 0  # where the root has no slope
    return call("where", is_zero, 0.0, call("power", call("where", is_zero, 1.0, total), 1 / ord))


@function("linalg.matrix_norm")
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """As numpy.linalg.matrix_norm."""
    return _matrix_norm(_inexact(x), ord, (-2, -1), keepdims)


def _matrix_norm(x: Tensor, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if ord in (None, "fro"):
        return _root(call("sum", _square_magnitude(x), axes, keepdims=keepdims))
    row, column = (i % x.ndim for i in axes)
    if ord in (2, -2, "nuc"):
        values = call("linalg.svdvals", call("moveaxis", x, (row, column), (-2, -1)))
        found = call({2: "max", -2: "min", "nuc": "sum"}[ord], values, -1)
        return call("expand_dims", found, tuple(sorted((row, column)))) if keepdims else found
    if ord not in (1, -1, math.inf, -math.inf):
        raise ValueError(f"invalid norm order {ord!r} for matrices")
    summed, compared = (row, column) if abs(ord) == 1 else (column, row)
    sums = call("sum", call("absolute", x), summed, keepdims=True)
    found = call("max" if ord > 0 else "min", sums, compared, keepdims=True)
    return found if keepdims else call("squeeze", found, (row, column))
