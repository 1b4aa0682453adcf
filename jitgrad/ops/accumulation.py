"""What running sums and running products share: their definition, and NumPy's two functions of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import OpDef, Params, Scan, Specs, Vjp, define
from jitgrad.operators import call
from jitgrad.ops.axes import axis_of, is_of_number, narrowed, sum_dtype, widened
from jitgrad.ops.common import as_tensor, filled_like, refuse_options
from jitgrad.spec import TensorSpec


def define_cumulative(name: str, impl: Callable[..., Any], combine: str, vjp: Vjp) -> OpDef:
    """The op that combines all elements up to each one along ``axis``, in the dtype of sums."""
    return define(
        name,
        infer=_infer,
        impl=lambda x, axis: impl(x, axis),
        vjp=vjp,
        kind=Scan(combine),
        infers_partial=True,
    )


def _infer(specs: Specs, params: Params) -> Specs:
    return (TensorSpec(specs[0].shape, sum_dtype(specs[0].dtype)),)


def cumulative(op: OpDef, a: Any, axis: int | None, dtype: Any, out: Any) -> Tensor:
    """As NumPy's function of the op's name: of the flattened array for axis None."""
    refuse_options(op.name, out=out)
    x = widened(a, dtype)
    if axis is None or is_of_number(x, axis):
        x, axis = call("ravel", x), 0
    return narrowed(apply_one(op, x, axis=axis_of(x, axis)), dtype)


def from_neutral(op: OpDef, a: Any, axis: int | None, dtype: Any, first: int | None) -> Tensor:
    """As the array API's function: one axis may be left out, more may not; ``first`` stands before all, if given."""
    x = as_tensor(a)
    if axis is None and x.ndim != 1:
        raise ShapeError(f"an array of {x.ndim} dimensions needs axis=")
    total = cumulative(op, x, 0 if axis is None else axis, dtype, None)
    if first is None:
        return total
    along = axis_of(x, 0 if axis is None else axis)
    head = filled_like(call("sum", total, along, keepdims=True), first, total.dtype)
    return call("concatenate", [head, total], along)  # type: ignore[no-any-return]
