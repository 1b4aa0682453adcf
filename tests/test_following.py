"""Traces that follow an earlier one for other shapes: their graphs and programs are those of a trace by itself, and a
function that does something else for other shapes is not followed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import following
from jitgrad.compiler.freezing import keeping
from jitgrad.errors import CompileError
from tests.test_alike import WHOLE
from tests.test_other_extents import functions

Fn = Callable[..., Any]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations were copied, each time."""
    counts: list[int] = []
    promise = following.Follower._promise

    def noted(self: Any, part: Any, walk: Any) -> None:
        counts.append(len(part.rows))
        promise(self, part, walk)

    monkeypatch.setattr(following.Follower, "_promise", noted)
    return counts


def _texts(f: Any, args: list[Any]) -> list[str]:
    """Graph and program of a call, with names, params, shapes, lines and scopes."""
    [(stage, _arrays)] = f.stages(*args)
    graph = next(t.graph for t in stage.fetches)
    operations = [
        (op.name, op.type, [x.name for x in op.inputs], [str(t.spec) for t in op.outputs], str(op.params), op.source,
         op.attrs, op.original_op and op.original_op.name, [c.name for t in op.outputs for c in t.consumers()])
        for op in graph.operations
    ]  # fmt: skip
    return [*map(str, operations), str(sorted(graph._names.items())), stage.program([t.spec for t in stage.feeds]).text]


def _gradient(fn: Fn) -> Fn:
    def loss(*args: Any) -> Any:
        return np.sum(np.sin(fn(*args)))

    return jg.value_and_grad(loss)


@pytest.mark.parametrize("name", WHOLE)
def test_a_followed_trace_is_what_a_trace_by_itself_is(name: str) -> None:
    fn, make, sizes = WHOLE[name]
    with jg.config(verify=False, cache=False):
        f = jg.compile(fn)
        for size in sizes:
            args = make(*size)
            assert _texts(f, args) == _texts(jg.compile(fn), args)


@pytest.mark.parametrize("name", [name for name in functions if name not in ("one-hot", "embedding")])
def test_gradients_of_other_functions(name: str) -> None:
    fn, make = functions[name]
    with jg.config(verify=False, cache=False):
        f = jg.compile(_gradient(fn))
        for n in (100, 200, 1000):
            assert _texts(f, make(n)) == _texts(jg.compile(_gradient(fn)), make(n))


@pytest.mark.parametrize("name", ["classifier", "training step", "second order", "layer norm"])
def test_gradients_are_copied(name: str, copied: list[int]) -> None:
    fn, make, sizes = WHOLE[name]
    with jg.config(verify=False, cache=False):
        f = jg.compile(fn)
        for size in sizes:
            f(*make(*size))
    assert len(copied) >= len(sizes) - 1 and all(copied)


def test_functions_that_look_at_shapes_are_traced_as_they_are(copied: list[int]) -> None:
    def loss(x: Any) -> Any:
        y = np.tanh(x) if x.shape[0] % 200 else np.exp(-x)
        return np.sum(y * y) / x.shape[0] * (3.5 if len(x) > 250 else 1.0)

    f = jg.compile(jg.value_and_grad(loss))
    with jg.config(verify=False, cache=False):
        for n in (100, 200, 300, 500, 400, 128, 700):
            x = np.linspace(0.1, 1.0, n)
            for a, b in zip(f(x), f.interpret(x), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10)
            np.testing.assert_allclose(f(x)[0], loss(x), rtol=1e-10)
    assert copied


def test_rules_of_the_users_are_asked_in_each_trace(copied: list[int]) -> None:
    asked: list[Any] = []

    @jg.custom_gradient
    def scaled(x: Any) -> Any:
        def rule(g: Any) -> Any:
            asked.append(x.shape)
            return g * float(x.shape[0])

        return np.sin(x), rule

    f = jg.compile(jg.grad(lambda x: np.sum(scaled(x * 2.5))))
    with jg.config(verify=False, cache=False):
        for n in (100, 200, 300):
            np.testing.assert_allclose(f(np.ones(n)), 2.5 * n)
    assert [shape for (shape,) in asked] == [100, 200, 300] and not copied


def test_assignments_are_not_followed(copied: list[int]) -> None:
    def loss(x: Any) -> Any:
        y = x * 2.0
        row = y[0]
        y[0] = row * 3.0
        return np.sum(y * row)

    f = jg.compile(jg.value_and_grad(loss))
    with jg.config(verify=False, cache=False):
        for n in (100, 200):
            x = np.linspace(0.1, 1.0, 3 * n).reshape(3, n)
            value, gradient = f(x)
            np.testing.assert_allclose(value, loss(x.copy()))
            np.testing.assert_allclose(gradient, f.interpret(x)[1])
    assert not copied


def test_numbers_that_may_come_from_extents_are_not_copied(copied: list[int]) -> None:
    f = jg.compile(jg.grad(lambda x: np.sum(np.deg2rad(x))))  # whose rule has 0.0174...
    with jg.config(verify=False, cache=False):
        for n in (100, 200):
            np.testing.assert_allclose(f(np.ones(n)), np.full(n, np.pi / 180))
    assert not copied


def test_verification_finds_a_wrong_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "copied_params", lambda row, *_: {**row.params, "shape": (7,)})
    f = jg.compile(jg.grad(lambda x: np.sum(np.mean(x, axis=0) ** 2)))
    with jg.config(verify=True):
        f(np.ones((100, 3)))
        with pytest.raises(CompileError, match="copied gradient"):
            f(np.ones((200, 3)))


def test_results_that_are_no_tensors_are_those_of_the_call() -> None:
    f = jg.compile(lambda x: (np.sum(x), x.shape[0], {"n": len(x)}))
    with jg.config(verify=False, cache=False):
        for n in (100, 200):
            total, count, named = f(np.ones(n))
            assert (total, count, named) == (n, n, {"n": n})
    keeping.keep_now()
