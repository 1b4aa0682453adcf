"""Gradients of arrays that loops of Python's read item by item: put side by side, with the numbers that sums have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import gradient_walk
from jitgrad.testing import check_gradients

pytestmark = pytest.mark.quick

Fn = Callable[[Any], Any]

X = np.random.default_rng(2).normal(size=(12, 5))
V = X.reshape(-1)


def over(items: Any, weight: Any = 0.9) -> Any:
    """A recurrence over items: each matters to all that come behind it."""
    total: Any = 0.3
    for item in items:
        total = np.sin(total * weight + np.sum(item * item))
    return total


# name → (function, argument, whether items are put side by side)
READS: dict[str, tuple[Fn, Any, bool]] = {
    "all items": (lambda v: over(v[k] for k in range(60)), V, True),
    "by iteration": (over, X, True),
    "from the end": (lambda v: over(v[-k] for k in range(1, 61)), V, True),
    "some twice": (lambda v: over(v[k // 2] for k in range(40)), V, True),
    "with gaps": (lambda v: over(v[2 * k + 5] for k in range(20)), V, True),
    "neighbours": (lambda v: over(v[k] * v[k + 1] for k in range(59)), V, True),
    "rows": (lambda x: over(x[k] for k in range(3, 12)), X, True),
    "columns": (lambda x: over(x.T), X.T.copy(), True),
    "columns of a matrix": (lambda x: over(x[:, k] for k in range(12)), X.T.copy(), True),
    "elements": (lambda x: over(x[i, j] for i in range(2, 12) for j in range(1, 5)), X, True),
    "elements of rows": (lambda x: over(x[i][j] for i in range(2, 12) for j in range(1, 5)), X, True),
    "the axis in the middle": (lambda x: over(x[:, k] for k in range(10)), X.reshape(3, 10, 2), True),
    "the first and the last axis": (
        lambda x: over(x[i, :, j] for i in range(3) for j in range(4)), X.reshape(3, 5, 4), True
    ),
    "a value in between": (lambda v: over(2 * v) + over((v * v)[:30]), V, True),
    "beside the whole": (lambda v: over(v[k] for k in range(60)) * np.sum(v), V, True),
    "where": (lambda v: over(np.where(v[k] > 0, np.log(np.abs(v[k])), 0.0) for k in range(30)), V, True),
    "large rows": (lambda x: over(x[k] for k in range(3, 12)), np.tile(X[:, :1], 1024) / 30, True),
    "large rows with gaps": (lambda x: over(x[2 * k] for k in range(6, 16)), np.tile(V[:32, None], 1024) / 30, False),
    "few": (lambda v: over(v[k] for k in range(8)), V, False),
    "far apart": (lambda v: over(v[6 * k] for k in range(10)), V, False),
    "a diagonal": (lambda x: over(x[k, k] for k in range(12)), X[:, :1] * X[:, 0], False),
    "windows": (lambda v: over(v[5 * k : 5 * k + 5] for k in range(12)), V, False),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_items_are_put_side_by_side(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, x, is_assembled = READS[name]
    step = jg.compile(jg.value_and_grad(f))
    value, slope = step(x)
    text = step.explain(x).text.split("\ncluster")[0]
    assert ("stack(" in text) == is_assembled
    check_gradients(f, x)
    monkeypatch.setattr(gradient_walk, "side_by_side", list)
    expected = jg.value_and_grad(lambda x: f(x))(x)
    assert np.isclose(value, expected[0], rtol=1e-13) and slope.dtype == x.dtype
    np.testing.assert_allclose(slope, expected[1], rtol=1e-12)


def test_second_derivatives() -> None:
    def f(v: Any) -> Any:
        return over(v[k] for k in range(12)) + v[0] * v[11]

    def g(v: Any) -> Any:
        total = np.float64(0.3)
        for k in range(12):
            total = np.sin(total * 0.9 + v[k] * v[k])
        return total + v[0] * v[11]

    v = V[:12]
    found = jg.compile(jg.hessian(f))(v)
    eps = 1e-5
    slope = jg.compile(jg.grad(g))
    numeric = np.array([(slope(v + eps * e) - slope(v - eps * e)) / (2 * eps) for e in np.eye(12)])
    np.testing.assert_allclose(found, numeric, atol=1e-8)
    np.testing.assert_allclose(found, found.T, rtol=1e-12, atol=1e-14)


def test_items_that_stand_elsewhere_in_other_shapes() -> None:
    """The gradient for one shape is not copied for the next."""

    def f(x: Any) -> Any:
        return over([*(x[k] for k in range(9)), x[-1]])

    with jg.config(verify=False, cache=False):
        step = jg.compile(jg.grad(f))
        for n in (10, 30, 12, 300, 9):
            x = np.random.default_rng(n).normal(size=(n, 3))
            np.testing.assert_allclose(step(x), jg.grad(f)(x), rtol=1e-12, atol=1e-15)


def test_a_graph_keeps_its_sums() -> None:
    graph = jg.Graph()
    with graph.as_default():
        v = jg.placeholder(np.float64, (20,))
        (slope,) = jg.gradients(over(v[k] for k in range(20)), v)
    assert slope.op.type == "add_n"
    with jg.Session(graph=graph) as session:
        compiled = jg.compile(jg.grad(lambda v: over(v[k] for k in range(20))))(V[:20])
        np.testing.assert_allclose(session.run(slope, {v: V[:20]}), compiled, rtol=1e-13)
