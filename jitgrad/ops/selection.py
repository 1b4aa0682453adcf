"""Elementwise ops that choose between values: where, clip, and what follows from them; also the n-ary sum."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import DTypeError
from jitgrad.graph import Tensor, apply
from jitgrad.opdef import Elementwise, Params, Specs, define, find
from jitgrad.operators import call, function
from jitgrad.ops.common import (
    as_tensor,
    as_tensors,
    build,
    dtype_refusal,
    elementwise,
    joint_dtype,
    refuse_options,
    same_shape,
    same_spec,
    type_key,
)
from jitgrad.spec import DType, TensorSpec, is_compatible, promote

# -- where ---------------------------------------------------------------------------------------------------


def _infer_where(specs: Specs, params: Params) -> Specs:
    if specs[0].dtype != np.dtype(bool):
        raise DTypeError(f"the condition must be bool, got {specs[0].dtype.name}")
    return (TensorSpec(same_shape(specs), promote(specs[1].dtype, specs[2].dtype)),)


where_op = define(
    "where",
    infer=_infer_where,
    impl=np.where,
    vjp=lambda g, out, c, x, y: (None, call("where", c, g, 0), call("where", c, 0, g)),
    kind=Elementwise("where"),
    infers_partial=True,
)


@function("where")
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """As numpy.where with three arguments. The side not taken gets the gradient 0, never NaN.

    A NaN that the gradient of the other side's own formula makes (0 times an infinite slope) is out of reach
    here: mask the argument too, ``where(x > 0, log(where(x > 0, x, 1)), 0)``. With one argument it is
    ``nonzero``; ValueError with two.
    """
    if x is None and y is None:
        return build("nonzero", condition)
    if x is None or y is None:
        raise ValueError("either both or neither of x and y should be given")
    dtype = joint_dtype(type_key(x), type_key(y))
    return elementwise(where_op, condition, x, y, dtypes=(np.dtype(bool), dtype, dtype))


# -- clip ----------------------------------------------------------------------------------------------------


def _clip_vjp(g: Tensor, out: Tensor, x: Tensor, lo: Tensor, hi: Tensor) -> tuple[Any, ...]:
    is_inside, is_ordered = (lo <= x) & (x <= hi), lo <= hi
    return where(is_inside, g, 0), where((x < lo) & is_ordered, g, 0), where(is_ordered & (x <= hi), 0, g)


clip_op = define(
    "clip",
    infer=lambda specs, params: (TensorSpec(same_shape(specs), promote(*(spec.dtype for spec in specs))),),
    impl=np.clip,
    vjp=_clip_vjp,
    kind=Elementwise("clip"),
    infers_partial=True,
)


@function("clip")
def clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,
    max: Any = None,
    dtype: Any = None,
) -> Any:
    """As numpy.clip. The gradient passes inside the bounds and on them; outside, the bound takes it."""
    refuse_options("clip", out=out, dtype=dtype)
    lo, hi = _within(a, min if a_min is None else a_min, max if a_max is None else a_max)
    joint = joint_dtype(*(type_key(value) for value in (a, lo, hi) if value is not None))
    lowest, highest = _extremes(joint)
    bounds = (lowest if lo is None else lo, highest if hi is None else hi)
    return elementwise(clip_op, a, *bounds, dtypes=(joint, joint, joint))


def _within(a: Any, lo: Any, hi: Any) -> tuple[Any, Any]:
    """The bounds, without a Python integer that the integers of ``a`` cannot pass: NumPy does not ask it to be one of
    them, so ``np.clip(pixels, -1, 300)`` of uint8 leaves all as they are.
    """
    dtype = joint_dtype(type_key(a))
    if dtype.kind not in "iu":
        return lo, hi
    lowest, highest = _extremes(dtype)
    return (None if type(lo) is int and lo <= lowest else lo), (None if type(hi) is int and hi >= highest else hi)


def _extremes(dtype: DType) -> tuple[Any, Any]:
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return (False, True) if dtype.kind == "b" else (-np.inf, np.inf)


# -- functions made of them ----------------------------------------------------------------------------------


@function("nan_to_num")
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """As numpy.nan_to_num; what is replaced gets the gradient 0. Without a copy the user's object is changed."""
    t = as_tensor(x)
    finite = _finite(t, nan, posinf, neginf)
    if copy or t is not x:
        return finite
    call("setitem", t, ..., finite)
    return t


def _finite(t: Tensor, nan: Any, posinf: Any, neginf: Any) -> Any:
    if t.dtype.kind not in "fc":
        return call("copy", t)
    if t.dtype.kind == "c":
        real, imag = (_finite(call(part, t), nan, posinf, neginf) for part in ("real", "imag"))
        return call("complex_of_parts", real, imag)
    largest = float(np.finfo(t.dtype).max)
    finite = where(t == np.inf, largest if posinf is None else posinf, t)
    finite = where(t == -np.inf, -largest if neginf is None else neginf, finite)
    return where(t != t, nan, finite)


@function("round", "around")
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """As numpy.round: half to even after scaling by a power of ten, of integers in float64. It passes no gradient.
    DTypeError for booleans unless ``decimals`` is 0.
    """
    refuse_options("round", out=out)
    x, decimals = as_tensor(a), operator.index(decimals)
    if x.dtype.kind in "iu" and decimals >= 0:
        return call("copy", x)
    if decimals == 0:
        return call("rint", x)
    if x.dtype.kind == "b":
        raise dtype_refusal(f"round with decimals={decimals} does not take bool", (x,))
    scale = 10.0 ** abs(decimals)
    if x.dtype.kind in "iu":
        return call("astype", call("rint", call("astype", x, np.float64) / scale) * scale, x.dtype)
    return call("rint", x * scale) / scale if decimals > 0 else call("rint", x / scale) * scale


@function("fix")
def fix(x: Any, out: Any = None) -> Any:
    """As numpy.fix: towards zero."""
    refuse_options("fix", out=out)
    return call("trunc", x)


@function("isclose")
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """As numpy.isclose: differences of integers are taken in float64, and do not wrap."""
    x, y = as_tensors(a, b)
    y = y if y.dtype.kind in "fc" else call("astype", y, np.float64)
    near = (abs(x - y) <= atol + rtol * abs(y)) & call("isfinite", y) | (x == y)
    return near | ((x != x) & (y != y)) if equal_nan else near


@function("allclose")
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """As numpy.allclose, as a bool tensor."""
    return call("all", isclose(a, b, rtol, atol, equal_nan))


@function("array_equal")
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """As numpy.array_equal for arrays of one shape, as a bool tensor."""
    x, y = as_tensors(a1, a2)
    if not is_compatible(x.shape, y.shape):
        return call("constant", False, graph=x.graph)
    same = x == y
    return call("all", same | ((x != x) & (y != y)) if equal_nan else same)


@function("isposinf")
def isposinf(x: Any, out: Any = None) -> Any:
    """As numpy.isposinf."""
    refuse_options("isposinf", out=out)
    return call("equal", x, np.inf)


@function("isneginf")
def isneginf(x: Any, out: Any = None) -> Any:
    """As numpy.isneginf."""
    refuse_options("isneginf", out=out)
    return call("equal", x, -np.inf)


@function("select")
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """As numpy.select: the choice of the first condition that holds. DTypeError for conditions that are not bool."""
    if len(condlist) != len(choicelist):
        raise ValueError("select needs as many conditions as choices")
    for k, condition in enumerate(condlist):
        dtype = getattr(condition, "dtype", None) or np.asarray(condition).dtype
        if dtype != np.dtype(bool):
            raise dtype_refusal(f"invalid entry {k} in condlist: should be boolean, is {dtype}", (condition,))
    pairs = list(zip(condlist, choicelist, strict=True))
    return functools.reduce(lambda rest, pair: where(pair[0], pair[1], rest), reversed(pairs), default)


# -- n-ary sum -----------------------------------------------------------------------------------------------



def _sum_of(*xs: Any) -> Any:
    add, total = np.add, xs[0]
    for x in xs[1:]:
        total = add(total, x)
    return total


add_n_op = define(
    "add_n",
    infer=same_spec,
    impl=lambda *xs: functools.reduce(np.add, xs),
    bound=lambda params, specs: np.add if len(specs) == 2 else _sum_of,
    vjp=lambda g, out, *xs: (g,) * len(xs),
    kind=Elementwise("add_n"),
    infers_partial=True,
)


@function("add_n")
def add_n(xs: Sequence[Any], name: str | None = None) -> Tensor:
    """The sum of tensors of one shape, from the first to the last. ValueError when there is none."""
    if not xs:
        raise ValueError("add_n needs at least one tensor")
    tensors = as_tensors(*xs)
    dtype = joint_dtype(*(x.dtype for x in tensors))
    return apply(add_n_op, *(as_tensor(x, dtype) for x in tensors), name=name)  # type: ignore[no-any-return]


@function("accumulate_n")
def accumulate_n(xs: Sequence[Any], name: str | None = None) -> Tensor:
    """The sum of tensors of one shape by one running total: each may be freed once it is added.

    ValueError when there is none, ShapeError when their shapes differ.
    """
    if not xs:
        raise ValueError("accumulate_n needs at least one tensor")
    tensors = as_tensors(*xs)
    same_shape(tuple(x.spec for x in tensors))
    dtype = joint_dtype(*(x.dtype for x in tensors))
    first, *rest = (as_tensor(x, dtype) for x in tensors)
    if not rest:
        return apply(find("identity"), first, name=name)  # type: ignore[no-any-return]
    *middle, last = rest
    total = functools.reduce(functools.partial(apply, find("add")), middle, first)
    return apply(find("add"), total, last, name=name)  # type: ignore[no-any-return]
