"""Products along axes, prod and cumprod; their gradients never divide, so they are right at zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Scan, define
from jitgrad.operators import call, function
from jitgrad.ops.accumulation import cumulative, define_cumulative, from_neutral
from jitgrad.ops.axes import (
    Axes,
    axis_of,
    begun,
    define_reduction,
    masked,
    narrowed,
    reduced_axes,
    spread,
    sum_dtype,
    widened,
)
from jitgrad.ops.common import filled_like, refuse_options, same_shape
from jitgrad.spec import TensorSpec

# -- prod ----------------------------------------------------------------------------------------------------


def _prod_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: Axes, keepdims: bool) -> Any:
    axes = tuple(range(x.ndim)) if axis is None else axis
    return spread(g, x, axis, keepdims) * _product_of_others(x, axes)


def _product_of_others(x: Tensor, axes: tuple[int, ...]) -> Any:
    """For each element the product of all others along ``axes``."""
    if not axes:
        return call("ones_like", x)
    first, *rest = axes
    others = _product_before(x, first) * call("flip", _product_before(call("flip", x, first), first), first)
    if not rest:
        return others
    lines = apply_one(prod_op, x, axis=(first,), keepdims=True)
    return others * spread(_product_of_others(lines, tuple(rest)), x, (first,), True)


def _product_before(x: Tensor, axis: int) -> Any:
    """For each element the product of those before it along ``axis``."""
    return call("cumprod", shifted(x, axis, 1), axis)


def shifted(x: Tensor, axis: int, first: Any) -> Any:
    """``x`` moved one place up along ``axis``, behind ``first``."""
    place = (slice(None),) * axis
    head = filled_like(x[(*place, slice(0, 1))], first, x.dtype)
    return call("concatenate", [head, x[(*place, slice(0, -1))]], axis)


prod_op = define_reduction("prod", np.prod, "multiply", sum_dtype, _prod_vjp)


@function("prod")
def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """As numpy.prod: integers and bools multiply in int64."""
    refuse_options("prod", out=out)
    x = masked(widened(a, dtype), where, 1)
    product = narrowed(apply_one(prod_op, x, axis=reduced_axes(x, axis), keepdims=bool(keepdims)), dtype)
    return product if initial is None else product * begun(initial, product.dtype)


# -- cumprod -------------------------------------------------------------------------------------------------


def _recur(x: Any, factor: Any, axis: int) -> Any:
    terms, factors = np.moveaxis(x, axis, 0), np.moveaxis(factor, axis, 0)
    out = terms.copy()
    for i in range(1, len(out)):
        out[i] = terms[i] + factors[i] * out[i - 1]
    return np.moveaxis(out, 0, axis)


def _recurrence_vjp(g: Tensor, out: Tensor, x: Tensor, factor: Tensor, *, axis: int) -> tuple[Any, Any]:
    adjoint = recurrence_back(g, factor, axis)
    return adjoint, adjoint * shifted(out, axis, 0)


def recurrence_back(g: Tensor, factor: Tensor, axis: int) -> Any:
    """``r[i] = g[i] + factor[i+1] r[i+1]``: the same recurrence, from the end."""
    backwards = apply_one(
        recurrence_op, call("flip", g, axis), shifted(call("flip", factor, axis), axis, 0), axis=axis
    )
    return call("flip", backwards, axis)


recurrence_op = define(
    "linear_recurrence",
    infer=lambda specs, params: (TensorSpec(same_shape(specs), specs[0].dtype),),
    impl=_recur,
    vjp=_recurrence_vjp,
    kind=Scan("recurrence"),
    infers_partial=True,
)


@function("linear_recurrence")
def linear_recurrence(x: Tensor, factor: Tensor, axis: int) -> Tensor:
    """``out[i] = x[i] + factor[i] out[i-1]`` along ``axis``, from ``out[0] = x[0]``; both of one shape and
    dtype.
    """
    return apply_one(recurrence_op, x, factor, axis=axis_of(x, axis))


def _cumprod_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int) -> Any:
    """Sum over ``k >= i`` of ``g[k]`` times the product up to k without ``x[i]``: those before i, those
    between.
    """
    return shifted(out, axis, 1) * recurrence_back(g, x, axis)


cumprod_op = define_cumulative("cumprod", np.cumprod, "multiply", _cumprod_vjp)


@function("cumprod")
def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Tensor:
    """As numpy.cumprod: the flattened array for axis None."""
    return cumulative(cumprod_op, a, axis, dtype, out)


@function("cumulative_prod")
def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, out: Any = None, include_initial: bool = False
) -> Tensor:
    """As numpy.cumulative_prod."""
    refuse_options("cumulative_prod", out=out)
    return from_neutral(cumprod_op, x, axis, dtype, 1 if include_initial else None)
