"""One graph, the same numbers: fed at the ends or in the middle, shapes known or not, compiled wholly, partly, not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.gradients import gradients
from jitgrad.graph import Graph, apply
from jitgrad.interpreter import interpret
from jitgrad.opdef import Library, find
from jitgrad.operators import call
from jitgrad.program import slice_graph
from jitgrad.spec import is_inexact, spec_of
from tests.cases import OpCase
from tests.test_ops import rows

# Ops whose rules ask for extents while the graph is built; they refuse unknown ones with a ShapeError.
REFUSES = ("diagonal", "svd", "qr", "solve_triangular", "convolve_windows", "convolve_filters")

smooth = [
    row for row in rows
    if row.order and row.specs and any(is_inexact(spec.dtype) for spec in row.specs)
    and row.op not in REFUSES and not isinstance(find(row.op).kind, Library)
]  # fmt: skip


def derivatives(row: OpCase, is_known: bool) -> list[Any]:
    """Outputs, gradients and gradients of gradients of an op, by the interpreter."""
    arrays = row.sample(row.specs)
    with Graph().as_default():
        inputs = [call("placeholder", a.dtype, a.shape if is_known else (None,) * a.ndim) for a in arrays]
        made = apply(find(row.op), *inputs, **row.params)
        fetches = [y for y in (made if isinstance(made, tuple) else (made,)) if is_inexact(y.dtype)]
        level = fetches
        for _ in range(2):
            losses = [call("sum", call("real", call("sin", y))) for y in level]
            level = [g for g in gradients(losses, inputs) if g is not None] if losses else []
            fetches = [*fetches, *level]
        program = slice_graph(fetches, {x: spec_of(a) for x, a in zip(inputs, arrays, strict=True)})
    return interpret(program, arrays)


@pytest.mark.quick
@pytest.mark.parametrize("row", smooth, ids=str)
def test_extents_that_are_not_known_change_no_bit(row: OpCase) -> None:
    for ours, expected in zip(derivatives(row, False), derivatives(row, True), strict=True):
        np.testing.assert_array_equal(ours, expected)


# graphs with all sorts of parts


def mlp(x: Any, w: Any) -> Any:
    h = np.tanh(x @ w)
    return np.sum(np.log1p(np.exp(h * 2.0 - 1.0)), axis=-1) / (1.0 + np.sum(h * h))


def normalized(x: Any, w: Any) -> Any:
    y = x @ w
    y = (y - np.mean(y, axis=-1, keepdims=True)) / np.sqrt(np.var(y, axis=-1, keepdims=True) + 0.1)
    return jg.nn.log_softmax(y * np.maximum(y, 0.2))[:, 1:]


def looked_up(x: Any, w: Any) -> Any:
    positions = np.argmax(x, axis=-1) % 3
    rows = jg.gather(w, positions)
    return np.concatenate([rows * 2.0, np.exp(-rows)], axis=-1) * np.where(x[:, :1] > 0, x[:, 1:2], 0.5)


FUNCTIONS = [mlp, normalized, looked_up]
X = np.random.default_rng(3).uniform(-1, 1, (4, 5))
W = np.random.default_rng(4).uniform(-1, 1, (5, 3))
SHAPES = {"known": ((4, 5), (5, 3)), "rows unknown": ((None, 5), (5, 3)), "unknown": ((None, None), (None, None))}
SCOPES: dict[str, Callable[[], Any]] = {
    "none": lambda: jg.jit_scope(False),
    "merged": jg.jit_scope,
    "separate": lambda: jg.jit_scope(separate_compiled_gradients=True),
    "partly": lambda: jg.jit_scope(lambda op: op.type in ("exp", "multiply", "sum", "take"), True),
}


def run(fn: Any, shapes: str, scope: str, feed: str) -> list[Any]:
    """Value and gradients to order 2, ``x`` fed itself or as the value of an operation in the middle."""
    with jg.Graph().as_default():
        x, w = (jg.placeholder(np.float64, shape) for shape in SHAPES[shapes])
        with SCOPES[scope]():
            middle = np.sin(x) * 1.0
            y = fn(middle, w)
        first = jg.gradients(y, [middle, w])
        second = jg.gradients([np.sum(np.sin(1.0 * g)) for g in first], [middle, w])
        fetches = [y, *(g * 1.0 for g in (*first, *second) if g is not None)]
        feeds = {x: X} if feed == "end" else {middle: np.sin(X) * 1.0}
        return [np.asarray(value) for value in jg.Session().run(fetches, {**feeds, w: W})]


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("feed", ["end", "middle"])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("scope", SCOPES)
def test_graphs_give_the_same_however_they_run(fn: Any, feed: str, shapes: str, scope: str) -> None:
    expected = run(fn, "known", "none", "end")
    found = run(fn, shapes, scope, feed)
    assert len(found) == len(expected) == 5
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
