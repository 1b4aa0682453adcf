"""Ops that hold or pass on values as they are: constants, placeholders, identity, stop_gradient."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from jitgrad import operators
from jitgrad.eagerness import number_of, settled
from jitgrad.errors import DTypeError, ShapeError, layout
from jitgrad.graph import Graph, Tensor, apply, default_graph
from jitgrad.opdef import Elementwise, Fill, Interpreted, Params, Specs, define
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, same_spec
from jitgrad.sources import place
from jitgrad.spec import TensorSpec, native, spec_of


def _infer_value(specs: Specs, params: Params) -> Specs:
    return (spec_of(params["value"]),)


constant_op = define(
    "constant",
    infer=_infer_value,
    impl=lambda value: value,
    kind=Fill("constant"),
)


@function("constant")
def constant(value: Any, dtype: Any = None, name: str | None = None, *, graph: Graph | None = None) -> Tensor:
    """A tensor that holds ``value``; Python numbers as np.asarray types them unless ``dtype`` is given.

    The array is copied unless no one can write to its memory, so that changing it later does not change the
    graph. The graph of a trace notes which constants are eager tensors: a tape of later calls may watch these.
    """
    graph = default_graph() if graph is None else graph
    if graph.is_trace and number_of(settled(value)) is not None:
        return _closed_over(settled(value), dtype, name, graph)
    array = native(np.asarray(value, dtype=dtype))
    if array.dtype.kind in "OUSV":
        hint = "constants are numbers and arrays of numbers"
        raise DTypeError(layout(f"a constant cannot hold values of dtype {array.dtype}", needed=place(), hint=hint))
    if not _is_frozen(array):
        array = _frozen_copy(array)
    return graph.add(constant_op, (), {"value": array}, (spec_of(array),), name).outputs[0]


def _closed_over(value: Any, dtype: Any, name: str | None, graph: Graph) -> Tensor:
    """What stands for an eager tensor: a constant of its value behind an identity, since rules and broadcasts may look
    through a constant. It is made in the graph of the trace also where a body inside of it reads it.
    """
    trace = graph
    while trace.outer is not None:
        trace = trace.outer
    array = value._plain
    specs = (spec_of(array),)
    constant = trace.add(constant_op, (), {"value": array}, specs, name).outputs[0]
    held = trace.add(identity_op, (constant,), {}, specs, name).outputs[0]
    trace.closed_over.append((held, value))
    here = graph.captured(held)
    return here if dtype is None or here.dtype == dtype else operators.call("astype", here, dtype)


def _frozen_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that nobody can write to. One number that is broadcast stays that: gradients of positions refer to zeros
    of the shape of what is read, 16 MB for 4096 rows of 1000.
    """
    is_broadcast = array.size > 1 and not any(array.strides)
    own = array[(0,) * array.ndim] if is_broadcast else array
    copy = np.array(own, order="C")
    copy.flags.writeable = False
    return np.broadcast_to(copy, array.shape) if is_broadcast else copy


def _is_frozen(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None


placeholder_op = define(
    "placeholder",
    infer=lambda specs, params: (TensorSpec(params["shape"], params["dtype"]),),
    impl=lambda shape, dtype: _unfed(shape, dtype),
    kind=Interpreted("a placeholder only stands for a fed value"),
)


def _unfed(shape: Any, dtype: Any) -> Any:
    raise ValueError("a placeholder was not fed")


@function("placeholder")
def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor to be fed; ``shape`` None, or None in a dimension, is not known until then."""
    entries = shape if isinstance(shape, list | tuple) else (shape,)
    try:
        fixed = None if shape is None else tuple(None if n is None else operator.index(n) for n in entries)
    except TypeError:
        hint = "a shape is a tuple of integers, with None for an extent that is not known until it is fed"
        raise TypeError(layout(f"placeholder: no shape: {shape!r}", needed=place(), hint=hint)) from None
    if fixed is not None and any(n is not None and n < 0 for n in fixed):
        raise ShapeError(
            layout(f"placeholder: a shape has no negative extent, got {fixed}", needed=place(),
                   hint="None stands for an extent that is not known until it is fed")
        )  # fmt: skip
    return apply(placeholder_op, name=name, shape=fixed, dtype=np.dtype(dtype).newbyteorder("="))  # type: ignore[no-any-return]


identity_op = define(
    "identity",
    infer=same_spec,
    impl=lambda x: x,
    vjp=lambda g, out, x: g,
    kind=Elementwise("identity"),
    infers_partial=True,
)

stop_gradient_op = define(
    "stop_gradient",
    infer=same_spec,
    impl=lambda x: x,
    kind=Elementwise("identity"),
    infers_partial=True,
    differentiable=False,
)


@function("identity_tensor")
def identity(x: Any, name: str | None = None) -> Tensor:
    """A tensor equal to ``x``, made by an operation of its own."""
    return apply(identity_op, as_tensor(x), name=name)  # type: ignore[no-any-return]


@function("stop_gradient")
def stop_gradient(x: Any, name: str | None = None) -> Tensor:
    """``x``, treated as a constant by every gradient."""
    return apply(stop_gradient_op, as_tensor(x), name=name)  # type: ignore[no-any-return]


@function("copy")
def copy(a: Any, order: str = "K", subok: bool = False) -> Tensor:
    """As numpy.copy: equal values in a tensor of its own."""
    return identity(a)
