"""Eager tensors that compiled functions and transforms close over: tapes get their gradients, at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

X = np.array([1.0, 2.0, 3.0])
Fn = Callable[..., Any]


def gradient(fn: Fn, x: Any) -> Any:
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.sum(fn(x))
    return tape.gradient(y, x)


def test_a_tensor_closed_over_gets_its_gradient_at_every_call() -> None:
    w, rows = jg.asarray(np.ones(3)), np.arange(6.0).reshape(2, 3)
    f = jg.compile(lambda q: q @ w)
    assert isinstance(f(rows), np.ndarray)
    for given in (rows, jg.asarray(rows), rows):
        np.testing.assert_array_equal(gradient(lambda _, given=given: f(given), w), rows.sum(0))
    assert type(f(rows)) is np.ndarray


def test_an_argument_that_is_closed_over_too() -> None:
    x = jg.asarray(X)
    np.testing.assert_array_equal(gradient(lambda x: jg.compile(lambda q: np.sum(x * q))(x), x), 2 * X)


TRANSFORMS: dict[str, tuple[Fn, Any]] = {
    "grad": (lambda x: jg.grad(lambda q: np.sum(x * q * q))(x), 4 * X),
    "compiled grad": (lambda x: jg.compile(jg.grad(lambda q: np.sum(x * q * q)))(x), 4 * X),
    "value_and_grad": (lambda x: sum(map(np.sum, jg.value_and_grad(lambda q: np.sum(x * q))(x))), 2 * X + 1),
    "vjp": (lambda x: jg.vjp(lambda q: x * q, x)[1](np.ones(3))[0], np.ones(3)),
    "jvp": (lambda x: jg.jvp(lambda q: x * q, (x,), (np.ones(3),))[1], np.ones(3)),
    "jacobian": (lambda x: jg.jacobian(lambda q: x * q)(x), np.ones(3)),
    "hessian": (lambda x: jg.hessian(lambda q: np.sum(x * q**3))(x), 12 * X),
    "hvp": (lambda x: jg.hvp(lambda q: np.sum(x * q**3), (x,), (np.ones(3),)), 12 * X),
    "in a loop": (lambda x: jg.compile(lambda q: jg.fori_loop(0, 3, lambda i, c: c * x, q))(X), 3 * X**3),
    "in a branch": (lambda x: jg.compile(lambda q: jg.cond(q[0] > 0, lambda: q * x, lambda: q))(X), X),
    "in a function": (lambda x: jg.compile(lambda q: jg.function(lambda r: r * x)(q))(X), X),
    "returned": (lambda x: jg.compile(lambda q: x)(X), np.ones(3)),
    "returned with others": (lambda x: jg.compile(lambda q: (q, x))(X)[1], np.ones(3)),
    "converted": (lambda x: jg.compile(lambda q: jg.numpy.array([x, q]))(X), np.ones(3)),
    "as an exponent": (lambda x: jg.compile(lambda q: q**x)(X), X**X * np.log(X)),
    "of a custom gradient": (lambda x: jg.compile(lambda q: q * tripled(x))(X), 7 * X),
    "made while tracing": (lambda x: jg.compile(lambda q: q * np.sum(x * x))(X), 2 * X * X.sum()),
    "collected": (lambda x: jg.compile(lambda q: q * collected(x))(X), 2 * X),
}


def collected(x: Any) -> Any:
    with jg.jit_scope():
        return x * 2.0


@jg.custom_gradient
def tripled(x: Any) -> Any:
    return x * 3.0, lambda dy: dy * 7.0


@pytest.mark.parametrize("name", TRANSFORMS)
def test_all_that_traces(name: str) -> None:
    fn, expected = TRANSFORMS[name]
    np.testing.assert_allclose(gradient(fn, jg.asarray(X)), expected)


def test_what_is_made_of_them_while_a_function_is_traced() -> None:
    w, u = jg.asarray(X), jg.asarray(2.0)

    @jg.compile
    def f(q: Any) -> Any:
        scale = np.sum(w * w) * u
        return q * scale

    assert np.all(f(np.ones(3)) == 28.0)
    for _ in range(3):
        np.testing.assert_array_equal(gradient(lambda _: f(np.ones(3)), w), 12 * X)
        np.testing.assert_array_equal(gradient(lambda _: f(np.ones(3)), u), 42.0)


def test_second_order() -> None:
    w = jg.asarray(X)
    f = jg.compile(lambda q: np.sum(q * w**3))
    for _ in range(2):
        with jg.GradientTape() as outer:
            outer.watch(w)
            with jg.GradientTape() as tape:
                tape.watch(w)
                y = f(X)
            s = np.sum(tape.gradient(y, w))
        np.testing.assert_allclose(outer.gradient(s, w), 6 * X * X)


def test_jacobians_of_what_is_closed_over() -> None:
    w = jg.asarray(X)
    f = jg.compile(lambda q: np.sin(w) * q)
    with jg.GradientTape() as tape:
        tape.watch(w)
        y = f(X)
    np.testing.assert_allclose(tape.jacobian(y, w), np.diag(np.cos(X) * X))


def test_nobody_pays_where_no_tape_listens() -> None:
    w = jg.asarray(X)
    f = jg.compile(lambda q: q * w)
    for _ in range(4):
        f(X)
    assert f.cache_info().traces == 1 and type(f(X)) is np.ndarray
