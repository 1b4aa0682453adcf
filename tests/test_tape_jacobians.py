"""Jacobians from tapes behind what passes no gradient, of empty targets, and through rules that look at values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

X = np.array([1.0, 2.0, 3.0])
Fn = Callable[..., Any]


def tape_jacobian(fn: Fn, value: Any = X) -> Any:
    x = jg.asarray(value)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    return tape.jacobian(y, x)


def test_what_passes_no_gradient_adds_nothing() -> None:
    found = tape_jacobian(lambda x: np.floor(x[:2]) + x[1:])
    np.testing.assert_array_equal(found, [[0, 1, 0], [0, 0, 1]])


@jg.custom_gradient
def without_gradient(x: Any) -> Any:
    return x * 2.0, lambda dy: None


@pytest.mark.parametrize(
    "fn",
    [
        np.floor, np.sign, np.round, np.trunc, np.zeros_like, without_gradient, lambda x: x // 1,
        lambda x: np.floor(x * 2), lambda x: np.heaviside(x, 0.5), lambda x: np.nextafter(x, 0.0),
        jg.compile(lambda x: jg.stop_gradient(x) * 2),
    ],
)  # fmt: skip
def test_jacobians_are_none_where_gradients_are(fn: Fn) -> None:
    assert tape_jacobian(fn) is None
    x = jg.asarray(X)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = fn(x)
    assert tape.gradient(y, x) is None and tape.batch_jacobian(y, x) is None


def test_one_of_two_sources_gets_none() -> None:
    a, b = jg.asarray(X), jg.asarray(X)
    with jg.GradientTape() as tape:
        tape.watch([a, b])
        y = np.floor(a) + b
    first, second = tape.jacobian(y, [a, b])
    assert first is None
    np.testing.assert_array_equal(second, np.eye(3))


def test_targets_without_elements() -> None:
    assert tape_jacobian(lambda x: x[:0]).shape == (0, 3)
    assert tape_jacobian(lambda x: np.floor(x[:0])) is None
    traced = jg.compile(lambda x: tape_jacobian_of_nothing(x))(X)
    assert traced.shape == (0, 3)


def tape_jacobian_of_nothing(x: Any) -> Any:
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = x[:0] * 2.0
    return tape.jacobian(y, x)


@jg.custom_gradient
def clipped_from_above(x: Any) -> Any:
    return x * x, lambda dy: dy * 2.0 * x if np.sum(dy) > 0 else dy


def test_rules_that_look_at_values() -> None:
    np.testing.assert_array_equal(tape_jacobian(clipped_from_above), np.diag(2 * X))
    x = jg.asarray(X)
    with jg.GradientTape() as outer:
        outer.watch(x)
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = clipped_from_above(x)
        s = np.sum(tape.jacobian(y, x) * X)
    np.testing.assert_array_equal(outer.gradient(s, x), 2 * X)
