"""The public checks of jitgrad.testing: they pass what is right, and fail what is wrong with a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.testing import assert_close, assert_same_results, check_gradients

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.8 * (x + 0.04 * x**3)))


@jg.custom_gradient
def square_with_wrong_slope(x: Any) -> Any:
    return x * x, lambda g: g * x


@jg.custom_gradient
def square_with_wrong_curvature(x: Any) -> Any:
    return x * x, lambda g: 2 * g * jg.stop_gradient(x)


@pytest.mark.quick
def test_right_gradients_pass() -> None:
    check_gradients(
        lambda p: {"loss": np.sum(gelu(p["w"]) ** 2), "mean": p["w"].mean(0)}, {"w": X, "n": np.int64(2)}
    )
    check_gradients(lambda x: gelu(x).sum(), X, order=3)


@pytest.mark.quick
@pytest.mark.parametrize(("fn", "order"), [(square_with_wrong_slope, 1), (square_with_wrong_curvature, 2)])
def test_wrong_gradients_fail(fn: Any, order: int) -> None:
    with pytest.raises(AssertionError, match=f"the gradient is wrong at order {order}: ours"):
        check_gradients(fn, X)


@jg.custom_gradient
def constant_with_rounded_slope(x: Any) -> Any:
    return 0 * x + 1, lambda g: 1e-17 * g


@pytest.mark.quick
def test_numerical_slopes_are_known_to_a_unit_in_the_last_place() -> None:
    """The values at all points are the same here, so that the numerical slope is zero, and its estimated error."""
    check_gradients(constant_with_rounded_slope, X, order=1)


@pytest.mark.quick
def test_kinks_are_too_rough() -> None:
    with pytest.raises(AssertionError, match=r"too rough|wrong at order"):
        check_gradients(np.abs, np.array([1e-3, 1.0]))


def test_same_results() -> None:
    assert_same_results(
        lambda p, power: {"a": gelu(p["x"]) ** power, "b": (p["x"] > 0).sum()}, {"x": X}, power=2
    )
    assert_same_results(jg.value_and_grad(lambda x: np.sum(gelu(x) ** 2)), X)


@pytest.mark.quick
def test_close() -> None:
    assert_close(np.array([1.0, np.nan]), np.array([1.0 + 1e-15, np.nan]))
    with pytest.raises(AssertionError, match=r"result 1: f32\[2\], expected f64\[2\]"):
        assert_close(np.ones(2, np.float32), np.ones(2), what="result 1")
    with pytest.raises(AssertionError, match="result 0"):
        assert_close(np.ones(2), np.array([1.0, 1.0001]), what="result 0")
