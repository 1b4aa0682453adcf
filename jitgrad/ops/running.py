"""Running extremes and logarithms of running sums: NumPy's ``ufunc.accumulate``; running sums are in reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import OpDef, Params, Scan, Specs, Vjp, define
from jitgrad.operators import call, function
from jitgrad.ops.axes import axis_of
from jitgrad.ops.common import as_tensor
from jitgrad.ops.gathering import scatter_take_along_op, zeros_like_shape
from jitgrad.ops.products import recurrence_back, shifted
from jitgrad.ops.ufunc import resolve
from jitgrad.spec import DType


def _define(name: str, ufunc: np.ufunc, vjp: Vjp) -> OpDef:
    """The op that combines all elements up to each one along ``axis``, in their dtype."""

    def infer(specs: Specs, params: Params) -> Specs:
        return specs

    return define(
        name,
        infer=infer,
        impl=lambda x, axis: ufunc.accumulate(x, axis),
        vjp=vjp,
        kind=Scan(ufunc.__name__),
        infers_partial=True,
    )


# -- extremes --------------------------------------------------------------------------------------------------------


def _extreme_vjp(beats: Callable[[Any, Any], Any]) -> Vjp:
    """All goes to the element that is the extreme so far: of equal ones, the first."""

    def vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int) -> Any:
        place = call("cumsum", call("ones_like", x, np.int64), axis) - 1
        is_new = beats(x, shifted(out, axis, 0)) & (place > 0)
        at = apply_one(cummax_op, call("where", is_new, place, 0), axis=axis)
        return apply_one(scatter_take_along_op, zeros_like_shape(x), g, at, axis=axis)

    return vjp


cummax_op = _define("cummax", np.maximum, _extreme_vjp(lambda x, best: x > best))
cummin_op = _define("cummin", np.minimum, _extreme_vjp(lambda x, best: x < best))


def _running(op: OpDef, array: Any, axis: int, dtype: Any) -> Tensor:
    x = as_tensor(array) if dtype is None else call("astype", as_tensor(array), dtype)
    return apply_one(op, x, axis=axis_of(x, axis))


@function("cummax")
def cummax(array: Any, axis: int = 0, dtype: Any = None) -> Tensor:
    """As numpy.maximum.accumulate."""
    return _running(cummax_op, array, axis, dtype)


@function("cummin")
def cummin(array: Any, axis: int = 0, dtype: Any = None) -> Tensor:
    """As numpy.minimum.accumulate."""
    return _running(cummin_op, array, axis, dtype)


# -- logaddexp -------------------------------------------------------------------------------------------------------


def _logcumsumexp_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int) -> Any:
    """``exp(x[i] - out[i])`` times the sum over ``k >= i`` of ``g[k] exp(out[i] - out[k])``, whose factors are at most
    1. Where ``out`` is -inf, so is ``x``, and nothing depends on it.
    """
    finite = call("where", out > -np.inf, out, 0)
    factor = call("exp", shifted(out, axis, -np.inf) - finite)
    return recurrence_back(g, factor, axis) * call("exp", x - finite)


logcumsumexp_op = _define("logcumsumexp", np.logaddexp, _logcumsumexp_vjp)


@function("logcumsumexp")
def logcumsumexp(array: Any, axis: int = 0, dtype: Any = None) -> Tensor:
    """As numpy.logaddexp.accumulate: logarithms of running sums of exponentials."""
    x = as_tensor(array)
    return _running(logcumsumexp_op, x, axis, _logarithm_dtype(x, dtype))


@function("logaddexp.reduce")
def logaddexp_reduce(
    array: Any, axis: Any = 0, dtype: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """As numpy.logaddexp.reduce: the logarithm of a sum of exponentials and of that of ``initial``, where a mask
    says.
    """
    x = as_tensor(array)
    x = as_tensor(x, _logarithm_dtype(x, dtype))
    chosen = x if where is True else call("where", where, x, -np.inf)
    result = call("logsumexp", chosen, axis, keepdims=keepdims)
    return result if initial is None else call("logaddexp", result, initial)


def _logarithm_dtype(x: Tensor, dtype: Any) -> DType:
    return resolve(np.logaddexp, (x.dtype if dtype is None else np.dtype(dtype),) * 2)[-1]
