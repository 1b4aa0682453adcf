"""Random numbers: one stateful op per draw, which a program makes of a position, counters, bits and numbers.

All but the first of these are functions of their inputs and become part of kernels like any other; the first asks
streams.py for a position, which is how two runs differ. Nothing is folded or merged, for the position is known only
when it runs. Uniform numbers are 53 (float32: 24) random bits over 2**53; normal ones are ``sqrt(2) erfinv(y)`` with y
from 52 (23) bits and a half, symmetric and never at the ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.graph import Graph, Tensor, apply_one
from jitgrad.opdef import Elementwise, Emit, Expand, Fill, Interpreted, OpDef, Params, Specs, define, find
from jitgrad.operators import call
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

    def along(self, v: int) -> int:
        """A number as an array of the shape."""
        return self.emit("broadcast_to", v, shape=self.shape) if self.shape else v

    def bits(self, start: int, key: int) -> int:
        """Random bits for each element, whose counter is its position behind ``start``; all of one key."""
        shape, counter = self.shape, self.along(start)
        for axis, n in enumerate(shape):
            if n > 1:
                index = self.emit("iota", shape=shape, axis=axis, dtype=_UINT64)
                stride = math.prod(shape[axis + 1 :])
                step = index if stride == 1 else self.with_number("multiply", index, stride, _UINT64)
                counter = self.emit("add", counter, step)
        return self.emit("random_bits", counter, key)


def _uniform(build: _Build, bits: int, params: Params) -> int:
    """``low + (high - low) k / 2**53``, with k from the upper bits."""
    dtype = params["dtype"]
    digits = np.finfo(dtype).nmant + 1
    bits = build.with_number("right_shift", bits, 64 - digits, _UINT64)
    low, high = params["low"], params["high"]
    out = build.with_number("multiply", build.cast(bits, dtype), (high - low) * 2.0**-digits, dtype)
    return out if low == 0 else build.with_number("add", out, low, dtype)


def _normal(build: _Build, bits: int, params: Params) -> int:
    """``mean + stddev sqrt(2) erfinv((k + 1/2) / 2**51)``, with k from the upper bits, signed."""
    dtype = params["dtype"]
    digits = np.finfo(dtype).nmant
    signed = build.cast(bits, _INT64)
    whole = build.cast(build.with_number("right_shift", signed, 64 - digits, _INT64), dtype)
    half = build.with_number("add", whole, 0.5, dtype)
    erfinv = build.emit("erfinv", build.with_number("multiply", half, 2.0 ** (1 - digits), dtype))
    out = build.with_number("multiply", erfinv, math.sqrt(2.0) * params["stddev"], dtype)
    return out if params["mean"] == 0 else build.with_number("add", out, params["mean"], dtype)


# -- draws -----------------------------------------------------------------------------------------------------------

Numbers = Callable[[_Build, int, Params], int]


def _from_stream(numbers: Numbers) -> Expand:
    """A draw from the next positions of a stream."""

    def expand(emit: Emit, inputs: Sequence[int], params: Params) -> int:
        build = _Build(emit, params["shape"])
        count, number = math.prod(build.shape), params["number"]
        start = emit("random_position", key=params["key"], number=number, count=count)
        return numbers(build, build.bits(start, build.splat(params["key"], _UINT64)), params)

    return expand


def _from_key(numbers: Numbers) -> Expand:
    """A draw by a key that is given, of the step of that number: a function of both."""

    def expand(emit: Emit, inputs: Sequence[int], params: Params) -> int:
        build, (key, step) = _Build(emit, params["shape"]), inputs
        count = emit("constant", value=filled((), math.prod(build.shape), _UINT64))
        return numbers(build, build.bits(emit("multiply", step, count), build.along(key)), params)

    return expand


def _interpreted(expand: Expand) -> Callable[..., Any]:
    """The meaning of a draw: its instructions, one after the other."""

    def impl(*arrays: Any, **params: Any) -> Any:
        values: list[Any] = list(arrays)

        def emit(name: str, *inputs: int, **own: Any) -> int:
            values.append(find(name).impl(*[values[v] for v in inputs], **own))
            return len(values) - 1

        return values[expand(emit, range(len(arrays)), params)]

    return impl


def _define_draw(name: str, expand: Expand, is_stateful: bool) -> OpDef:
    return define(
        name,
        infer=_infer_draw,
        impl=_interpreted(expand),
        kind=Interpreted("a draw is made of other instructions"),
        stateful=is_stateful,
        differentiable=False,
        expand=expand,
    )


uniform_op = _define_draw("random_uniform", _from_stream(_uniform), True)
normal_op = _define_draw("random_normal", _from_stream(_normal), True)
_BY_KEY = {
    uniform_op: _define_draw("random_uniform_of_step", _from_key(_uniform), False),
    normal_op: _define_draw("random_normal_of_step", _from_key(_normal), False),
}


def draw(
    op: OpDef, graph: Graph, shape: tuple[int, ...], dtype: DType, seed: int | None, name: str | None, **params: float
) -> Tensor:
    """An operation that draws, in ``graph``: a stream of its own, with the key of the seeds.

    In the body of a loop or a branch, which may run again for a gradient, the numbers are a function of a key from
    outside, another for each run of the loop, and of the step.
    """
    number = next(graph.draws)
    key = stream_key(graph.seed, seed, number)
    with graph.as_default():
        if graph.is_repeated:
            given = _key_in_body(graph, key, number)
            return apply_one(_BY_KEY[op], *given, name=name or op.name, shape=shape, dtype=dtype, **params)
        return apply_one(op, name=name, shape=shape, dtype=dtype, key=key, number=number, **params)


_BODIES = 0xD1B54A32D192ED03


def _key_in_body(graph: Graph, key: int, number: int) -> tuple[Tensor, Tensor]:
    """The key of a draw in a body, and the number of the step.

    Each time that the op of the body runs, it is made of the next position of the draw's own stream; in a body within
    a body of the key and the step out there.
    """
    outer = graph.outer
    assert outer is not None
    with outer.as_default(), outer.name_scope("random_key/"):
        if outer.is_repeated:
            around, position = _key_in_body(outer, key, number)
        else:
            position = apply_one(position_op, key=key, number=number, count=1)
            around = call("constant", np.asarray(key ^ _BODIES, _UINT64), graph=outer)
        made = apply_one(bits_op, position, around)
    return graph.captured(made), graph.step()
