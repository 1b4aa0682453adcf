"""What reductions share: axes, dtypes of sums, the way back of a gradient; it defines no op of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import OpDef, Params, Reduce, Specs, Vjp, define, find
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor, shaped_like, unwrap, where
from jitgrad.spec import DType, Shape, TensorSpec, normalize_axes, normalize_axis

Axes = tuple[int, ...] | None


def axes_of(x: Tensor, axis: Any) -> Axes:
    """Axes counted from the front; None stands for all axes of an unknown rank."""
    if x.spec.rank is not None:
        return normalize_axes(axis, x.spec.rank)
    return None if axis is None else tuple([axis_of(x, a) for a in (axis if np.ndim(axis) else (axis,))])


def reduced_axes(x: Tensor, axis: Any) -> Axes:
    """The `axes_of` a reduction by a ufunc, which takes a number for an array of one axis."""
    return () if is_of_number(x, axis) else axes_of(x, axis)


def is_of_number(x: Tensor, axis: Any) -> bool:
    """Whether this is an array without axes, and the axis that some of NumPy's functions take for it all the same."""
    return x.spec.rank == 0 and np.ndim(axis) == 0 and axis in (0, -1)


def axis_of(x: Tensor, axis: int) -> int:
    """One axis counted from the front; ShapeError where it counts from the end of an unknown rank."""
    if x.spec.rank is not None:
        return normalize_axis(axis, x.spec.rank)
    if axis < 0:
        raise ShapeError(f"axis {axis} of an array of unknown rank")
    return operator.index(axis)


def sum_dtype(dtype: DType) -> DType:
    """What NumPy adds up in: integers and bools in at least 64 bits."""
    if dtype.kind in "bi":
        return np.promote_types(dtype, np.int64)
    return np.promote_types(dtype, np.uint64) if dtype.kind == "u" else dtype


def _reduced(shape: Shape | None, axis: Any, keepdims: bool) -> Shape | None:
    """The shape without the axes (None: all), or with extent 1 in their place."""
    if shape is None:
        return () if axis is None and not keepdims else None
    axes = normalize_axes(axis, len(shape))
    kept = (1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes)
    return tuple(kept)


def spread(g: Tensor, x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """``g`` repeated along the axes that a reduction of ``x`` took away."""
    if not keepdims and axis is not None and g.spec.rank != 0:
        g = call("expand_dims", g, axis)
    if x.spec.is_known:
        return call("broadcast_to", g, x.shape)  # type: ignore[no-any-return]
    return shaped_like(apply_one(find("broadcast_like"), g, x), x)


_UFUNCS = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "logical_or": np.logical_or, "logical_and": np.logical_and,
}  # fmt: skip


def define_reduction(
    name: str,
    impl: Callable[..., Any],
    combine: str,
    out_dtype: Callable[[DType], DType],
    vjp: Vjp | None = None,
    *,
    has_identity: bool = True,
) -> OpDef:
    """Define a reduction over params axis (a tuple; an int for argmax; None: all axes) and keepdims."""

    def infer(specs: Specs, params: Params) -> Specs:
        (x,) = specs
        shape = _reduced(x.shape, params["axis"], params["keepdims"])
        if not has_identity and x.shape is not None and is_void(x.shape, params["axis"]):
            raise ShapeError(f"{name} of no elements has no value: {x} along axis {params['axis']}")
        return (TensorSpec(shape, out_dtype(x.dtype)),)

    return define(
        name,
        infer=infer,
        impl=impl,
        bound=None if combine not in _UFUNCS else lambda params, specs: partial(_UFUNCS[combine].reduce, **params),
        vjp=vjp,
        kind=Reduce(combine),
        differentiable=vjp is not None,
        infers_partial=True,
    )


def is_void(shape: Shape, axis: Any) -> bool:
    """Whether results would be made of no elements at all; NumPy asks for no more, not even whether there are any."""
    return 0 in [shape[i] for i in normalize_axes(axis, len(shape))]


def masked(x: Tensor, mask: Any, neutral: Any) -> Tensor:
    """``x`` with ``neutral`` where the argument where= of a reduction does not hold."""
    return x if mask is True else where(mask, x, neutral)


def begun(initial: Any, dtype: DType) -> Any:
    """The argument initial= of a reduction in the dtype of its result, as NumPy takes it: 0.5 is 0 for integers, and
    300 an OverflowError for uint8.
    """
    initial = unwrap(initial)
    if isinstance(initial, Tensor):
        return as_tensor(initial, dtype)
    if type(initial) is int and dtype.kind in "iu":
        return dtype.type(initial)
    is_weak = type(initial) in (int, float) and dtype.kind in "fc"
    return initial if is_weak else np.asarray(initial).astype(dtype)[()]


def narrowed(x: Tensor, dtype: Any) -> Tensor:
    """A result in the dtype asked for, to which integers that were added up in a wider one wrap."""
    return x if dtype is None else call("astype", x, dtype)


def widened(a: Any, dtype: Any) -> Tensor:
    """``a`` in the dtype given, else in the one that NumPy adds up in."""
    x = as_tensor(a)
    return call("astype", x, sum_dtype(x.dtype) if dtype is None else dtype)  # type: ignore[no-any-return]
