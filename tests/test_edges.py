"""Documented gradients at ties, kinks and edges of domains; smooth points are in test_ops.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.ops
from jitgrad.errors import DTypeError
from jitgrad.gradients import gradients
from jitgrad.graph import Graph
from jitgrad.interpreter import interpret
from jitgrad.operators import call
from jitgrad.program import slice_graph
from jitgrad.spec import spec_of

pytestmark = pytest.mark.quick
inf, nan = np.inf, np.nan


def slopes(fn: Callable[..., Any], *values: Any, order: int = 1) -> list[Any]:
    """Gradients of the sum of ``fn``; those of the gradients' sum for order 2. None becomes zeros."""
    arrays = [np.asarray(value) for value in values]
    with Graph().as_default():
        xs = [call("placeholder", a.dtype, a.shape) for a in arrays]
        ys: Any = [fn(*xs)]
        for _ in range(order):
            ys = [
                g if g is not None else call("zeros_like", x)
                for g, x in zip(gradients(ys, xs), xs, strict=True)
            ]
        program = slice_graph(ys, {x: spec_of(a) for x, a in zip(xs, arrays, strict=True)})
    return [np.asarray(value).tolist() for value in interpret(program, arrays)]


def at(name: str) -> Callable[..., Any]:
    return lambda *xs: call(name, *xs)


def over(name: str, **options: Any) -> Callable[..., Any]:
    return lambda x: call(name, x, **options)


first_order = [
    # ties and kinks
    ("maximum ties", at("maximum"), (1.0, 1.0), [0.5, 0.5]),
    ("minimum ties", at("minimum"), (1.0, 1.0), [0.5, 0.5]),
    ("maximum of x and x", lambda x: call("maximum", x, x), (1.0,), [1.0]),
    ("fmax skips NaN", at("fmax"), (nan, 2.0), [0.0, 1.0]),
    ("fmin ties", at("fmin"), (1.0, 1.0), [0.5, 0.5]),
    ("max ties", over("max"), ([3.0, 1.0, 3.0],), [[0.5, 0.0, 0.5]]),
    ("min ties along an axis", over("min", axis=1), ([[1.0, 1.0], [2.0, 3.0]],), [[[0.5, 0.5], [1.0, 0.0]]]),
    ("max of infinities", over("max"), ([inf, inf],), [[0.5, 0.5]]),
    ("abs", at("absolute"), ([0.0, -0.0, -2.0],), [[0.0, 0.0, -1.0]]),
    ("relu", at("relu"), ([-1.0, 0.0, 1.0],), [[0.0, 0.0, 1.0]]),
    (
        "clip at its bounds",
        lambda x: call("clip", x, 0.0, 1.0),
        ([-1.0, 0.0, 0.5, 1.0, 2.0],),
        [[0.0, 1.0, 1.0, 1.0, 0.0]],
    ),
    ("clip, bounds", at("clip"), (2.0, 0.0, 1.0), [0.0, 0.0, 1.0]),
    ("clip, crossed bounds", at("clip"), (0.5, 1.0, 0.0), [0.0, 0.0, 1.0]),
    ("sign", at("sign"), ([0.0, 2.0],), [[0.0, 0.0]]),
    ("floor", at("floor"), ([0.5],), [[0.0]]),
    # edges of domains
    ("sqrt", at("sqrt"), (0.0,), [inf]),
    ("hypot", at("hypot"), (0.0, 0.0), [0.0, 0.0]),
    ("arctan2", at("arctan2"), (0.0, 0.0), [0.0, 0.0]),
    ("arctan2 of large", at("arctan2"), (1e200, 1e200), [5e-201, -5e-201]),
    ("std", over("std"), ([2.0, 2.0],), [[0.0, 0.0]]),
    ("norm", over("linalg.norm"), ([0.0, 0.0],), [[0.0, 0.0]]),
    ("power 0", at("power"), (0.0, 0.0), [0.0, 0.0]),
    ("power 1", at("power"), (0.0, 1.0), [1.0, 0.0]),
    ("power 2", at("power"), (0.0, 2.0), [0.0, 0.0]),
    ("power of a negative base", at("power"), (-2.0, 3.0), [12.0, nan]),
    ("square by operator", lambda x: x**2, ([-1.5, 0.0],), [[-3.0, 0.0]]),
    ("power of constant exponent", lambda x: x**3, ([-1.0, 0.0, 2.0],), [[3.0, 0.0, 12.0]]),
    ("logaddexp", at("logaddexp"), (inf, inf), [0.5, 0.5]),
    ("logaddexp of nothing", at("logaddexp"), (-inf, -inf), [0.5, 0.5]),
    ("logaddexp, one infinite", at("logaddexp"), (-inf, 1.0), [0.0, 1.0]),
    ("logsumexp with -inf", over("logsumexp"), ([-inf, 0.0, 0.0],), [[0.0, 0.5, 0.5]]),
    ("logsumexp of nothing", over("logsumexp"), ([-inf, -inf],), [[0.0, 0.0]]),
    ("logsumexp of large", over("logsumexp"), ([1000.0, 1000.0],), [[0.5, 0.5]]),
    ("softplus", at("softplus"), ([-1000.0, 0.0, 1000.0],), [[0.0, 0.5, 1.0]]),
    ("log_sigmoid", at("log_sigmoid"), ([-1000.0, 0.0, 1000.0],), [[1.0, 0.5, 0.0]]),
    ("xlogy", at("xlogy"), (0.0, 0.0), [-inf, 0.0]),
    (
        "where is blind to the other side",
        lambda x: call("where", x > 0, x, x + nan),
        ([1.0, 2.0],),
        [[1.0, 1.0]],
    ),
    (
        "where twice",
        lambda x: call("where", x > 0, call("log", call("where", x > 0, x, 1.0)), 0.0),
        ([0.0, 2.0],),
        [[0.0, 0.5]],
    ),
    ("nan_to_num", at("nan_to_num"), ([nan, inf, 1.0],), [[0.0, 0.0, 1.0]]),
    ("nansum", at("nansum"), ([nan, 1.0],), [[0.0, 1.0]]),
    # products with zeros
    ("prod, one zero", over("prod"), ([2.0, 0.0, 3.0],), [[0.0, 6.0, 0.0]]),
    ("prod, two zeros", over("prod"), ([2.0, 0.0, 0.0],), [[0.0, 0.0, 0.0]]),
    ("cumprod, one zero", over("cumprod", axis=0), ([2.0, 0.0, 3.0],), [[1.0, 8.0, 0.0]]),
    # accuracy
    ("expm1 far below 0", at("expm1"), (-40.0,), [float(np.exp(-40.0))]),
    ("mixed dtypes", lambda x, y: x * y, (np.float32(3), np.float64(0.1)), [float(np.float32(0.1)), 3.0]),
    ("by way of integers", lambda x: x + call("astype", x, np.int64), (1.5,), [1.0]),
]

second_order = [
    ("logaddexp ties", at("logaddexp"), (1.0, 1.0), [0.0, 0.0]),
    ("softplus", at("softplus"), (0.0,), [0.25]),
    ("power 2", at("power"), (0.0, 2.0), None),
    ("cube", lambda x: x**3, (0.0,), [0.0]),
    ("square", lambda x: x * x, (0.0,), [2.0]),
    ("prod, one zero", over("prod"), ([2.0, 0.0, 3.0],), [[3.0, 5.0, 2.0]]),
    ("prod, two zeros", over("prod"), ([2.0, 0.0, 0.0],), [[0.0, 2.0, 2.0]]),
    ("max", over("max"), ([3.0, 1.0],), [[0.0, 0.0]]),
    ("std", over("std"), ([2.0, 2.0],), [[0.0, 0.0]]),
]


@pytest.mark.parametrize(
    ("fn", "values", "expected"), [c[1:] for c in first_order], ids=[c[0] for c in first_order]
)
def test_first_order(fn: Any, values: Any, expected: Any) -> None:
    for ours, right in zip(slopes(fn, *values), expected, strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-12)


@pytest.mark.parametrize(
    ("fn", "values", "expected"), [c[1:] for c in second_order], ids=[c[0] for c in second_order]
)
def test_second_order(fn: Any, values: Any, expected: Any) -> None:
    found = slopes(fn, *values, order=2)
    if expected is None:
        assert found[0] == 2.0
        return
    for ours, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-12)


def test_float32_stays_float32() -> None:
    with Graph().as_default():
        x = call("placeholder", np.float32, (3,))
        rate = call("placeholder", np.float64, ())
        rate.is_weak = True
        y = call("tanh", x * rate * 2 + 1.0) ** 2 / (1 + abs(rate))
        assert y.dtype == np.float32
        assert (rate * 2 + 1).is_weak and not y.is_weak
        assert [g.dtype for g in gradients(call("sum", y), [x, rate]) if g is not None] == [
            np.float32,
            np.float64,
        ]


def test_what_numpy_refuses_is_refused() -> None:
    with Graph().as_default():
        x, flags = call("placeholder", np.float64, (3,)), call("placeholder", np.bool_, (3,))
        with pytest.raises(DTypeError, match="bitwise_and does not take float64"):
            call("bitwise_and", x, x)
        with pytest.raises(DTypeError, match="subtract does not take bool"):
            call("subtract", flags, flags)
        with pytest.raises(TypeError, match="takes 2 arrays, got 1"):
            call("add", x)


def test_complex_gradients_follow_jax() -> None:
    z = np.array([1.0 + 2.0j, 0.5 - 1.0j])
    with Graph().as_default():
        x = call("placeholder", z.dtype, z.shape)
        energy = call("sum", call("real", x * call("conj", x)))
        length = call("sum", call("abs", x))
        grads = [g for y in (energy, length) for g in gradients(y, x) if g is not None]
        of_energy, of_length = interpret(slice_graph(grads, {x: spec_of(z)}), [z])
        np.testing.assert_allclose(of_energy, 2 * z.conj())
        np.testing.assert_allclose(of_length, z.conj() / abs(z))
        (of_sign,) = gradients(call("sum", call("real", call("sign", x))), x)
        assert of_sign is not None
        (found,) = interpret(slice_graph([of_sign], {x: spec_of(z)}), [z])
        np.testing.assert_allclose(found, z.imag * (z.imag + 1j * z.real) / abs(z) ** 3)  # d Re(z/|z|)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_running_extremes_and_logarithms_at_their_edges(is_compiled: bool) -> None:
    """Gradients of ties go to the first; what is -inf so far depends on nothing, and large numbers do not overflow."""
    way = jg.compile if is_compiled else lambda f: f
    tied, weights = np.array([1.0, 3.0, 3.0, 2.0, 4.0]), np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    most = way(jg.grad(lambda x: np.sum(np.maximum.accumulate(x) * weights)))
    least = way(jg.grad(lambda x: np.sum(np.minimum.accumulate(x) * weights)))
    assert most(tied).tolist() == [1.0, 14.0, 0.0, 0.0, 16.0]
    assert least(-tied).tolist() == [1.0, 14.0, 0.0, 0.0, 16.0]
    x = np.array([-np.inf, -np.inf, 800.0, 800.0, -900.0])
    value, g = way(jg.value_and_grad(lambda x: np.logaddexp.accumulate(x)[-1]))(x)
    np.testing.assert_allclose((value, *g), (800.0 + np.log(2.0), 0.0, 0.0, 0.5, 0.5, 0.0))
