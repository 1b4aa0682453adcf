"""Dicts and names in other orders: a function may go through them, so a trace of one order is not run for another."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import pytree
from tests.watched_calls import Watched, same

X = np.arange(1.0, 4.0)
FORTH, BACK = {"b": X, "a": 2 * X}, {"a": 2 * X, "b": X}


class Pair(NamedTuple):
    first: Any
    second: Any


def stacked(d: dict[Any, Any]) -> Any:
    return np.stack(list(d.values()))


def stacked_names(**d: Any) -> Any:
    return stacked(d)


def test_dicts_in_both_orders() -> None:
    f = Watched(stacked)
    for d in (FORTH, BACK) * 4:
        same(f(d), stacked(d))
    for d in (FORTH, BACK):
        same(f.third(d), stacked(d))
        same(f.f.interpret(d), stacked(d))


def test_integer_keys_and_equal_texts_that_are_other_objects() -> None:
    f = Watched(stacked)
    for name in ("first key", "second key", "first key", "second key"):
        d = {" ".join(name.split()): X, 10**9 + len(name): 2 * X, "third": 3 * X}
        same(f.taken(d), stacked(d))
    turned = {10**9 + 9: 2 * X, "first key": X, "third": 3 * X}
    same(f(turned), stacked(turned))


@pytest.mark.parametrize("wrap", [lambda d: [d], lambda d: (1.0, (d,)), lambda d: {"in": d}, lambda d: Pair(X, d)])
def test_dicts_in_containers(wrap: Any) -> None:
    def fn(tree: Any) -> Any:
        return np.stack(pytree.flatten([list(d.values()) for d in dicts(tree)])[0])

    def dicts(tree: Any) -> list[Any]:
        if isinstance(tree, dict) and "a" in tree:
            return [tree]
        parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else []
        return [d for part in parts for d in dicts(part)]

    f = jg.compile(fn)
    for d in (FORTH, BACK) * 4:
        same(f(wrap(d)), stacked(d))


def test_names_that_a_function_collects() -> None:
    f = Watched(stacked_names)
    for d in (FORTH, BACK) * 4:
        same(f(**d), stacked(d))
    for d in (FORTH, BACK):
        same(f.third(**d), stacked(d))


def test_names_of_parameters_count_in_no_order() -> None:
    f = jg.compile(jg.value_and_grad(lambda x, y, z: np.sum(x * y - z)))
    f(X, y=X, z=X)
    f(X, z=X, y=X)
    assert f.cache_info().traces == 1


def test_gradients_and_results_have_the_order_of_the_argument() -> None:
    f = jg.compile(jg.grad(lambda d: np.sum(stacked(d) * np.arange(2.0)[:, None])))
    for d in (FORTH, BACK) * 4:
        found = f(d)
        assert list(found) == list(d)
        assert [g[0] for g in found.values()] == [0.0, 1.0]


def test_new_shapes() -> None:
    f = jg.compile(stacked)
    for n in range(3, 12):
        for d in (FORTH, BACK):
            longer = {key: np.resize(x, n) for key, x in d.items()}
            same(f(longer), stacked(longer))


def test_functions_of_graphs() -> None:
    @jg.function
    def fn(d: Any, **named: Any) -> Any:
        return np.concatenate([stacked(d), stacked(named)])

    with jg.Graph().as_default():
        for d in (FORTH, BACK):
            for named in (FORTH, BACK):
                tensors = {key: jg.constant(x) for key, x in d.items()}
                found = jg.Session().run(fn(tensors, **named))
                same(found, np.concatenate([stacked(d), stacked(named)]))


def test_fetches() -> None:
    with jg.Graph().as_default():
        a, b, session = jg.constant(1.0), jg.constant(2.0), jg.Session()
        assert list(session.run({"a": a, "b": b})) == ["a", "b"]
        assert list(session.run({"b": b, "a": a})) == ["b", "a"]


def test_why_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    f = jg.compile(stacked)
    with jg.config(log="recompile"):
        f(FORTH)
        f(BACK)
    assert "the order of keys, or of names, changed" in "".join(capsys.readouterr())
