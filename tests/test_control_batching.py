"""Batching of loops and branches: Jacobians through them stay loops, and equal difference quotients at every order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.batching import batch
from jitgrad.gradients import gradients

Fn = Callable[..., Any]


def scanned(x: Any) -> Any:
    c, ys = jg.scan(lambda c, a: (np.tanh(c * a + x), c * x[0]), x, np.linspace(0, 1, 5))
    return c + np.sum(ys, axis=0)


def counted(x: Any) -> Any:
    step = lambda s: (s[0] + 1, np.sin(s[1]) * x + s[1][::-1])  # noqa: E731
    return jg.while_loop(lambda s: s[0] < 4, step, (0, x))[1]


def until_large(x: Any) -> Any:
    return jg.while_loop(lambda s: np.sum(s) < 10, lambda s: s * 1.5 + x * s[::-1], x)


def branched(x: Any) -> Any:
    return jg.cond(x[0] > 0, lambda: jg.fori_loop(0, 3, lambda i, s: s * x + np.cos(s), x), lambda: x)


def remade(x: Any) -> Any:
    return jg.checkpoint(lambda y: np.sin(y) * x)(x) + jg.scan(scanned_step, x, x, checkpoint_every=2)[0]


def scanned_step(c: Any, a: Any) -> Any:
    return np.sin(c) * a, None


def difference(fn: Fn, x: Any, h: float = 1e-6) -> Any:
    return np.stack([(fn(x + d) - fn(x - d)) / (2 * h) for d in h * np.eye(len(x))], axis=-1)


@pytest.mark.parametrize("fn", [scanned, counted, until_large, branched, remade], ids=lambda f: f.__name__)
def test_jacobians_through_loops(fn: Fn) -> None:
    x = np.array([0.3, 0.5, 0.2])
    jacobian = difference(fn, x)
    total = lambda x: np.sum(fn(x) ** 2)  # noqa: E731
    hessian = difference(jg.grad(total), x)
    third = np.reshape(difference(lambda x: np.ravel(jg.jacobian(fn)(x)), x), (3, 3, 3))
    for way in (lambda f: f, jg.compile):
        for found, expected in (
            (jg.jacrev(fn), jacobian), (jg.jacfwd(fn), jacobian), (jg.hessian(total), hessian),
            (jg.jacfwd(jg.grad(total)), hessian), (jg.jacrev(jg.jacrev(fn)), third), (jg.jacfwd(jg.jacrev(fn)), third),
            (jg.jacrev(jg.jacfwd(fn)), third),
        ):  # fmt: skip
            np.testing.assert_allclose(way(found)(x), expected, rtol=1e-6, atol=1e-7)
    text = str(jg.compile(jg.hessian(total)).explain(x).program)
    assert not any(f"batched_{op}" in text for op in ("scan", "while", "cond", "call"))


def test_conditions_that_differ_run_example_by_example() -> None:
    """Different numbers of steps, different branches: the values and gradients of each on its own."""
    graph = jg.Graph()
    with graph.as_default():
        x, wide = jg.placeholder(np.float64, ()), jg.placeholder(np.float64, (3,))
        y = jg.while_loop(lambda s: s < 100, lambda s: s * s, x) + jg.cond(x > 4, lambda: x * x, lambda: -x)
        (many,) = batch([y], {x: wide}, 3)
        (g,) = gradients([many], [wide])
    values = np.array([2.0, 3.0, 5.0])
    got = jg.Session(graph).run([many, g], {wide: values})
    alone = lambda v: jg.while_loop(lambda s: s < 100, lambda s: s * s, v) + (v * v if v > 4 else -v)  # noqa: E731
    np.testing.assert_array_equal(got[0], [alone(v) for v in values])
    np.testing.assert_allclose(got[1], [8 * 2.0**7 - 1, 8 * 3.0**7 - 1, 4 * 5.0**3 + 10])
