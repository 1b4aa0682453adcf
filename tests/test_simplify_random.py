"""simplify() on random programs: on special values, and with sums and products of small integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphs import Builder
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_simplify import full, multiply_const, simplified

from jitgrad.compiler.simplify import simplify
from jitgrad.interpreter import interpret
from jitgrad.program import Program, verify

pytestmark = pytest.mark.quick

UNARY = ["negative", "absolute", "square", "sign", "identity"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum"]
NUMBERS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, np.inf, np.nan]
SHAPES = [(2, 3), (1, 3), (2, 1), (3,), ()]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Elementwise ops, broadcasts, transposes, reshapes, extremes over a few shapes; no sums, which round."""
    b = Builder()
    values = [b.input(*shape) for shape in SHAPES] + [b.input(2, 3)]
    for _ in range(draw(st.integers(1, 20))):
        x = draw(st.sampled_from(values))
        step = draw(st.sampled_from(sorted(STEPS)))
        values.append(STEPS[step](draw, b, x, values))
    return b.program(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))


def same_shaped(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    """Another value of the shape of ``x``, or a constant."""
    others = [v for v in values if b.specs[v] == b.specs[x]]
    y = draw(st.sampled_from([*others, -1]))
    return full(b, draw(st.sampled_from(NUMBERS)), x) if y < 0 else y


def step_unary(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    return b.op(draw(st.sampled_from(UNARY)), x)


def step_binary(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    pair = [x, same_shaped(draw, b, x, values)]
    return b.op(draw(st.sampled_from(BINARY)), *(pair[::-1] if draw(st.booleans()) else pair))


def step_where(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    y, z = same_shaped(draw, b, x, values), same_shaped(draw, b, x, values)
    condition = b.op(draw(st.sampled_from(["less", "equal", "greater_equal"])), x, y)
    if draw(st.booleans()):
        condition = b.op("logical_not", condition)
    return b.op("where", condition, y, z)


def step_broadcast(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    inner = tuple(draw(st.sampled_from([2, 3])) if n == 1 else n for n in b.specs[x].known_shape)
    return b.op("broadcast_to", x, shape=draw(st.sampled_from([inner, (2, *inner), b.specs[x].known_shape])))


def step_reshape(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    shape = b.specs[x].known_shape
    return b.op("reshape", x, shape=draw(st.sampled_from([(-1,), (1, *shape), shape])))


def step_transpose(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    axes = tuple(draw(st.permutations(range(len(b.specs[x].known_shape)))))
    return b.op("transpose", x, axes=axes)


def step_extreme(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    rank = len(b.specs[x].known_shape)
    axes = tuple(axis for axis in range(rank) if draw(st.booleans()))
    return b.op("max", x, axis=axes, keepdims=draw(st.booleans()))


STEPS: dict[str, Callable[[st.DrawFn, Builder, int, list[int]], int]] = {
    "unary": step_unary, "binary": step_binary, "where": step_where, "broadcast": step_broadcast,
    "reshape": step_reshape, "transpose": step_transpose, "extreme": step_extreme,
}  # fmt: skip


def _fits(program: Program) -> bool:
    return all(len(spec.known_shape) < 6 for spec in program.specs)


@settings(max_examples=300, deadline=None)
@given(programs().filter(_fits))
def test_random_programs(program: Program) -> None:
    simplified(program)


def step_scale(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    return multiply_const(b, x, draw(st.sampled_from([1, -1, 2, 3])))


def step_sum(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    axes = tuple(axis for axis in range(len(b.specs[x].known_shape)) if draw(st.booleans()))
    return b.op("sum", x, axis=axes, keepdims=draw(st.booleans()))


def step_sum_like(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    shape = b.specs[x].known_shape
    like = b.constant(np.zeros([n if draw(st.booleans()) else 1 for n in shape]))
    return b.op("sum_to_like", x, like)


def step_product(draw: st.DrawFn, b: Builder, x: int, values: list[int]) -> int:
    matrices = [v for v in values if len(b.specs[v].known_shape) == 2]
    x, y = draw(st.sampled_from(matrices)), draw(st.sampled_from(matrices))
    flags = [(ta, tb) for ta in (False, True) for tb in (False, True) if _match(b, x, y, ta, tb)]
    if not flags:
        return b.op("transpose", x, axes=(1, 0))
    ta, tb = draw(st.sampled_from(flags))
    return b.op("matmul", x, y, transpose_a=ta, transpose_b=tb)


def _match(b: Builder, x: int, y: int, ta: bool, tb: bool) -> bool:
    return b.specs[x].known_shape[0 if ta else 1] == b.specs[y].known_shape[1 if tb else 0]


EXACT_STEPS = [
    step_scale,
    step_sum,
    step_sum_like,
    step_product,
    step_broadcast,
    step_reshape,
    step_transpose,
]


@st.composite
def integer_programs(draw: st.DrawFn) -> Program:
    """Linear ops and matrix products, which are exact for small integers in any order of summation."""
    b = Builder()
    values = [b.input(*shape) for shape in (*SHAPES, (2, 3))]
    for _ in range(draw(st.integers(1, 15))):
        x = draw(st.sampled_from(values))
        if draw(st.booleans()):
            y = draw(st.sampled_from([v for v in values if b.specs[v] == b.specs[x]]))
            values.append(b.op(draw(st.sampled_from(["add", "subtract"])), x, y))
        else:
            values.append(draw(st.sampled_from(EXACT_STEPS))(draw, b, x, values))
    return b.program(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))


@settings(max_examples=200, deadline=None)
@given(integer_programs().filter(_fits))
def test_random_programs_with_sums(program: Program) -> None:
    result = verify(simplify(program), "simplify")
    assert simplify(result) is result
    shapes = [program.specs[v].known_shape for v in program.inputs]
    arrays = [np.resize(np.arange(-2.0, 4.0), shape) for shape in shapes]
    expected = interpret(program, arrays)
    assume(all(np.all(np.abs(out) < 2.0**50) for out in expected))
    for got, wanted in zip(interpret(result, arrays), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
