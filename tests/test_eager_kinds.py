"""Gradient rules that hold for every integer: a new one costs what any call does, and its gradient is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.eager import calls

X = np.linspace(0.3, 2.0, 12).reshape(3, 4)

FUNCTIONS: dict[str, Callable[[Any, int], Any]] = {
    "roll": lambda x, k: np.roll(x, k),
    "roll along an axis": lambda x, k: np.roll(x, k, axis=1),
    "roll along two axes": lambda x, k: np.roll(x, (k, 1 - k), (0, 1)),
    "tril": lambda x, k: np.tril(x, k - 2),
    "triu": lambda x, k: np.triu(x, k=k - 2),
    "flip": lambda x, k: np.flip(x, k % 2),
    "item": lambda x, k: x[k % 3, 1:],
    "a sum": lambda x, k: x + k,
    "a product": lambda x, k: k * x,
    "maximum": lambda x, k: np.maximum(x, k - 2),
    "where": lambda x, k: np.where(x > 1.0, x, k),
    "where, first": lambda x, k: np.where(x > 1.0, k, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_new_integer_is_derived_no_more(name: str, monkeypatch: Any) -> None:
    fn, x = FUNCTIONS[name], jg.asarray(X)
    made: list[Any] = []
    monkeypatch.setattr(calls, "_traced_rule", lambda *args, before=calls._traced_rule: made.append(1) or before(*args))
    for k in range(8):
        with jg.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with jg.GradientTape() as tape:
                tape.watch(x)
                y = fn(x, k) * X.flat[0]
                loss = np.sum(y * y)
            g = tape.gradient(loss, x)
            second = np.sum(g * g)
        assert k < 2 or not made
        made.clear()
        expected = jg.grad(lambda v, k=k: np.sum((fn(v, k) * X.flat[0]) ** 2))
        np.testing.assert_allclose(g, expected(X), rtol=1e-14)
        again = jg.grad(lambda v, e=expected: np.sum(e(v) ** 2))(X)
        np.testing.assert_allclose(outer.gradient(second, x), again, rtol=1e-14)


def test_integers_that_change_the_dtype() -> None:
    for dtype in (np.float32, np.float64):
        x = jg.asarray(X.astype(dtype))
        for k in (1, 2, 1 << 40):
            with jg.GradientTape() as tape:
                tape.watch(x)
                y = np.where(x > 1.0, x, k) + np.roll(x, k % 7)
            g = tape.gradient(y, x)
            assert g.dtype == y.dtype == dtype
            np.testing.assert_array_equal(g, 1.0 + (X.astype(dtype) > 1.0))
