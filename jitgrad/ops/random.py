"""Random numbers: one stateful op per draw, which a program makes of a position, counters, bits and numbers.

All but the first of these are functions of their inputs and become part of kernels like any other; the first asks
streams.py for a position, which is how two runs differ. Nothing is folded or merged, for the position is known only
when it runs. Uniform numbers are 53 (float32: 24) random bits over 2**53; normal ones are ``sqrt(2) erfinv(y)`` with y
from 52 (23) bits and a half, symmetric and never at the ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.graph import Graph, Tensor, apply
from jitgrad.opdef import Elementwise, Emit, Fill, Interpreted, OpDef, Params, Specs, define, find
from jitgrad.ops.common import filled, same_shape
from jitgrad.spec import DType, TensorSpec
from jitgrad.streams import current, stream_key
from jitgrad.threefry import threefry2x32

_UINT64, _INT64 = np.dtype(np.uint64), np.dtype(np.int64)


def _infer_draw(specs: Specs, params: Params) -> Specs:
    return (TensorSpec(params["shape"], params["dtype"]),)


# -- what a draw is made of ------------------------------------------------------------------------------------------

position_op = define(
    "random_position",
    infer=lambda specs, params: (TensorSpec((), _UINT64),),
    impl=lambda key, number, count: np.asarray(current().take(key, number, count), _UINT64),
    kind=Interpreted("the position in a stream of random numbers is kept outside the program"),
    stateful=True,
    differentiable=False,
)


def _iota(shape: tuple[int, ...], axis: int, dtype: DType) -> Any:
    column = [1] * len(shape)
    column[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis], dtype=dtype).reshape(column), shape)


iota_op = define("iota", infer=_infer_draw, impl=_iota, kind=Fill("iota"), differentiable=False)

bits_op = define(
    "random_bits",
    infer=lambda specs, params: (TensorSpec(same_shape(specs), _UINT64),),
    impl=threefry2x32,
    kind=Elementwise("threefry2x32"),
    differentiable=False,
    infers_partial=True,
)


class _Build:
    """Instructions of one shape, written as functions."""

    def __init__(self, emit: Emit, shape: tuple[int, ...]) -> None:
        self.emit = emit
        self.shape = shape

    def splat(self, number: Any, dtype: DType) -> int:
        return self.emit("constant", value=filled(self.shape, number, dtype))

    def cast(self, v: int, dtype: DType) -> int:
        return self.emit("astype", v, dtype=dtype)

    def with_number(self, name: str, v: int, number: Any, dtype: DType) -> int:
        return self.emit(name, v, self.splat(number, dtype))

    def bits(self, key: int, number: int) -> int:
        """Random bits for each element, whose counter is its position in the stream."""
        shape = self.shape
        counter = self.emit("random_position", key=key, number=number, count=math.prod(shape))
        if shape:
            counter = self.emit("broadcast_to", counter, shape=shape)
        for axis, n in enumerate(shape):
            if n > 1:
                index = self.emit("iota", shape=shape, axis=axis, dtype=_UINT64)
                stride = math.prod(shape[axis + 1 :])
                step = index if stride == 1 else self.with_number("multiply", index, stride, _UINT64)
                counter = self.emit("add", counter, step)
        return self.emit("random_bits", counter, self.splat(key, _UINT64))


def _uniform(emit: Emit, params: Params) -> int:
    """``low + (high - low) k / 2**53``, with k from the upper bits."""
    build, dtype = _Build(emit, params["shape"]), params["dtype"]
    digits = np.finfo(dtype).nmant + 1
    bits = build.with_number("right_shift", build.bits(params["key"], params["number"]), 64 - digits, _UINT64)
    low, high = params["low"], params["high"]
    out = build.with_number("multiply", build.cast(bits, dtype), (high - low) * 2.0**-digits, dtype)
    return out if low == 0 else build.with_number("add", out, low, dtype)


def _normal(emit: Emit, params: Params) -> int:
    """``mean + stddev sqrt(2) erfinv((k + 1/2) / 2**51)``, with k from the upper bits, signed."""
    build, dtype = _Build(emit, params["shape"]), params["dtype"]
    digits = np.finfo(dtype).nmant
    bits = build.cast(build.bits(params["key"], params["number"]), _INT64)
    whole = build.cast(build.with_number("right_shift", bits, 64 - digits, _INT64), dtype)
    half = build.with_number("add", whole, 0.5, dtype)
    erfinv = emit("erfinv", build.with_number("multiply", half, 2.0 ** (1 - digits), dtype))
    out = build.with_number("multiply", erfinv, math.sqrt(2.0) * params["stddev"], dtype)
    return out if params["mean"] == 0 else build.with_number("add", out, params["mean"], dtype)


# -- draws -----------------------------------------------------------------------------------------------------------


def _interpreted(expand: Callable[[Emit, Params], int]) -> Callable[..., Any]:
    """The meaning of a draw: its instructions, one after the other."""

    def impl(**params: Any) -> Any:
        values: list[Any] = []

        def emit(name: str, *inputs: int, **own: Any) -> int:
            values.append(find(name).impl(*[values[v] for v in inputs], **own))
            return len(values) - 1

        return values[expand(emit, params)]

    return impl


def _define_draw(name: str, expand: Callable[[Emit, Params], int]) -> OpDef:
    return define(
        name,
        infer=_infer_draw,
        impl=_interpreted(expand),
        kind=Interpreted("a draw is made of other instructions"),
        stateful=True,
        differentiable=False,
        expand=expand,
    )


uniform_op = _define_draw("random_uniform", _uniform)
normal_op = _define_draw("random_normal", _normal)


def draw(
    op: OpDef, graph: Graph, shape: tuple[int, ...], dtype: DType, seed: int | None, name: str | None, **params: float
) -> Tensor:
    """An operation that draws, in ``graph``: a stream of its own, with the key of the seeds."""
    number = next(graph.draws)
    key = stream_key(graph.seed, seed, number)
    with graph.as_default():
        out: Tensor = apply(op, name=name, shape=shape, dtype=dtype, key=key, number=number, **params)
    return out
