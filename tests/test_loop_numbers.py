"""What a scan computes of numbers, and no step waits for, is computed for all steps at once, before it or behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

Fn = Callable[..., Any]
X = np.linspace(0.5, 1.5, 40)


def parts(fn: Fn, *args: Any) -> tuple[str, str]:
    """The program of a function: its lines outside of loops, and those in bodies."""
    lines = str(jg.compile(fn).explain(*args).program).splitlines()
    inside = [line for line in lines if line.startswith("   ")]
    return "\n".join(line for line in lines if line not in inside), "\n".join(inside)


def likelihood(p: Any, xs: Any) -> Any:
    """A recurrence of variances, and terms that only a sum wants."""
    step = lambda v, x: (p * v + 0.1 * x * x + 0.05, np.log(v) + x * x / v)  # noqa: E731
    return np.sum(jg.scan(step, 1.0, xs)[1])


def of_items(p: Any, xs: Any) -> Any:
    """An expensive function of the items alone."""
    return jg.scan(lambda c, x: (c * p + np.exp(np.sin(x) * 0.5), None), 0.1, xs)[0]


def waiting(p: Any, xs: Any) -> Any:
    """What the next step needs stays."""
    return jg.scan(lambda c, x: (np.tanh(c * p + x), None), 0.1, xs)[0]


@pytest.mark.parametrize(("fn", "moved", "stays"), [
    (likelihood, ("log(", "divide("), ()), (of_items, ("exp(", "sin("), ()), (waiting, (), ("tanh(",)),
], ids=lambda value: getattr(value, "__name__", None))  # fmt: skip
def test_where_it_is_computed(fn: Fn, moved: tuple[str, ...], stays: tuple[str, ...]) -> None:
    outside, inside = parts(fn, 0.7, X)
    assert all(op in outside and op not in inside for op in moved) and all(op in inside for op in stays)
    for way in (lambda f: f, jg.grad, lambda f: jg.grad(f, 1), lambda f: jg.grad(jg.grad(f)), jg.value_and_grad):
        run = jg.compile(way(fn))
        for got, expected in zip(np.atleast_1d(run(0.7, X)), np.atleast_1d(run.interpret(0.7, X)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_few_steps_and_rows_of_many_numbers_stay() -> None:
    assert "log(" in parts(likelihood, 0.7, X[:8])[1]
    rows = lambda p, xs: np.sum(jg.scan(lambda v, x: (p * v + x, np.log(v)), np.ones(8), xs)[1])  # noqa: E731
    assert "log(" in parts(rows, 0.7, np.ones((40, 8)))[1]


@pytest.mark.parametrize("reverse", [False, True])
def test_backwards_and_nested(reverse: bool) -> None:
    def f(p: Any, xs: Any) -> Any:
        def outer(c: Any, x: Any) -> Any:
            inner = lambda d, y: (d * 0.9 + y * p, (np.exp(-d) / (1 + y), np.log(y + 1)))  # noqa: E731
            d, (ys, zs) = jg.scan(inner, c, xs * x, reverse=reverse)
            return d / 20, (np.sum(ys * zs), np.sqrt(x))

        _, (ys, zs) = jg.scan(outer, 0.3, xs[:20], reverse=not reverse)
        return np.sum(ys * zs)

    for way in (lambda f: f, jg.value_and_grad, lambda f: jg.grad(jg.grad(f))):
        run = jg.compile(way(f))
        np.testing.assert_allclose(run(0.7, X), run.interpret(0.7, X), rtol=1e-11)
