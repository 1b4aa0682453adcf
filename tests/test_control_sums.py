"""Gradients of what a loop reads at every step: sums of rows stay rows, sums of products are one product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.testing import check_gradients

Fn = Callable[..., Any]


def program_lines(fn: Fn, *args: Any) -> tuple[list[str], list[str]]:
    """The lines of a function's program: those outside of loops, and those in their bodies."""
    lines = str(jg.compile(fn).explain(*args).program).splitlines()
    return [line for line in lines if line.startswith("  %")], [line for line in lines if line.startswith("   ")]


def gathering(table: Any, ids: Any, every: int | None = None) -> Any:
    """A loop that looks up rows at every step."""
    step = lambda c, i: (np.tanh(c + np.sum(jg.gather(table, i) * c)), None)  # noqa: E731
    return jg.scan(step, 0.3, ids, checkpoint_every=every)[0]


@pytest.mark.parametrize("every", [None, 3])
def test_rows_stay_rows(every: int | None) -> None:
    ids = np.array([[1, 3], [3, 3], [0, 2], [5, 1], [1, 1], [4, 0], [2, 5]])
    table = np.random.default_rng(0).normal(size=(60, 2)) / 3
    graph = jg.Graph()
    with graph.as_default():
        x = jg.placeholder(np.float64, table.shape)
        y = gathering(x, ids, every)
        (g,) = jg.gradients(y, x)
        assert isinstance(g, jg.IndexedSlices) and g.values.shape == (14, 2)
        (dense,) = jg.gradients(y + 0.0 * np.sum(x), x)
    got, other = jg.Session(graph).run([g, dense], {x: table})
    np.testing.assert_allclose(np.asarray(got), other, rtol=1e-12)
    check_gradients(lambda t: gathering(t, ids, every), table[:6])


def test_rows_of_nested_loops_stay_rows() -> None:
    def f(table: Any) -> Any:
        inner = lambda c, i: (np.sin(c + np.sum(table[i])), None)  # noqa: E731
        return jg.scan(lambda c, ids: (jg.scan(inner, c, ids)[0], None), 0.5, np.arange(6).reshape(2, 3))[0]

    graph = jg.Graph()
    with graph.as_default():
        x = jg.placeholder(np.float64, (9, 2))
        (g,) = jg.gradients(f(x), x)
        assert isinstance(g, jg.IndexedSlices)
    check_gradients(f, np.random.default_rng(1).normal(size=(9, 2)))


@pytest.mark.parametrize("seen", [lambda t: t.T, lambda t: np.reshape(t, (10, 9)), lambda t: -t[:, 2:9].T])
def test_rows_of_what_the_body_makes_of_a_table(seen: Fn) -> None:
    def f(t: Any) -> Any:
        step = lambda c, k: (np.sin(c + np.sum(seen(t)[k] ** 2)), None)  # noqa: E731
        return jg.scan(step, 0.5, np.array([3, 2, 3]))[0]

    check_gradients(f, np.random.default_rng(4).normal(size=(3, 30)))


DIAGONALS: dict[str, Fn] = {
    "several axes": lambda t, k: t[np.arange(3), (k + np.arange(3)) % 30],
    "several axes, another order": lambda t, k: t[np.arange(3)[::-1], (k + np.arange(3)) % 30],
    "two of each row": lambda t, k: t[np.arange(3)[:, None], k % 15 + np.array([[0, 1], [1, 1], [3, 0]])],
    "a later axis": lambda t, k: t[:, k],
    "axes in the middle": lambda t, k: np.reshape(t, (2, 3, 5, 3))[:, [0, 1], k % 5 - np.array([0, 1])],
    "behind a transpose": lambda t, k: t.T[k % 30, np.array([2, 2])],
}


@pytest.mark.parametrize("name", DIAGONALS)
@pytest.mark.parametrize("every", [None, 3])
def test_elements_are_added_after_the_loop(name: str, every: int | None) -> None:
    """A step that reads a few elements does not add a whole table to what it carries."""
    table = np.random.default_rng(3).normal(size=(3, 30)) / 3

    def f(t: Any) -> Any:
        step = lambda c, k: (np.sin(c + np.sum(DIAGONALS[name](t, k) ** 2)), None)  # noqa: E731
        return jg.scan(step, 0.5, np.array([3, 29, 3, -1, 0, 7, 7]), checkpoint_every=every)[0]

    outside, inside = program_lines(jg.grad(f), table)
    if every is None:
        assert any("scatter_" in line for line in outside) and not any("scatter_" in line for line in inside)
    np.testing.assert_allclose(jg.compile(jg.grad(f))(table), jg.grad(f)(table), rtol=1e-12)
    check_gradients(f, table)


@pytest.mark.parametrize("shape", [(0, 30), (0, 3, 30)])
def test_tables_without_rows(shape: tuple[int, ...]) -> None:
    own = np.indices(shape[:-1], sparse=True)

    def f(t: Any) -> Any:
        step = lambda c, k: (c + np.sum(t[(*own, k + np.zeros(shape[:-1], int))] ** 2), None)  # noqa: E731
        return jg.scan(step, 0.5, np.array([3, 29]))[0]

    assert jg.compile(jg.grad(f))(np.zeros(shape)).shape == shape


def recurrent(w: Any, u: Any, b: Any, xs: Any, h: Any) -> Any:
    """A recurrent layer and the sum of the squares of its states."""
    h, hs = jg.scan(lambda h, x: (np.tanh(x @ w + h @ u + b),) * 2, h, xs)
    return np.sum(hs**2) + np.sum(h)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_products_are_one_product(batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    w, u, b = rng.normal(size=(4, 5)) / 2, rng.normal(size=(5, 5)) / 2, rng.normal(size=5)
    xs, h = rng.normal(size=(6, *batch, 4)), np.zeros((*batch, 5))
    outside, inside = program_lines(jg.grad(recurrent, (0, 1, 2)), w, u, b, xs, h)
    assert sum("transpose_a=True" in line for line in outside) == 2
    assert not any("transpose_a=True" in line or "sum(" in line for line in inside)
    check_gradients(lambda *weights: recurrent(*weights, xs, h), w, u, b)
    check_gradients(lambda w: np.sum(jg.grad(recurrent)(w, u, b, xs, h) ** 2), w)


@pytest.mark.parametrize(("argnums", "saved"), [(0, 1), ((0, 1), 2)])
def test_nothing_is_saved_that_is_there(argnums: Any, saved: int) -> None:
    """States that come out of the loop anyway are read from there; the weights of the state before want that, too."""
    arrays = [np.ones(shape) for shape in ((4, 5), (5, 5), (5,), (6, 3, 4), (3, 5))]
    text = str(jg.compile(jg.grad(recurrent, argnums)).explain(*arrays).program)
    forward = next(line for line in text.splitlines() if "= scan(" in line)
    assert forward.count("f64[6,3,5]") == saved


@pytest.mark.parametrize(
    "share",
    [
        lambda a, s: a @ s, lambda a, s: a.T @ s, lambda a, s: s @ a, lambda a, s: a[0] * s, lambda a, s: (a @ a) @ s,
        lambda a, s: np.sum(a, axis=1) * s,
        lambda a, s: a[1:, ::2].T @ (a[1:, ::2] @ s[:2]),
        lambda a, s: -(a[:, 1:] @ s[1:]), lambda a, s: a.reshape(2, 8) @ np.concatenate([s, s]),
    ],
)  # fmt: skip
def test_shares_of_many_forms(share: Fn) -> None:
    def f(a: Any, x: Any) -> Any:
        step = lambda i, s: np.tanh(np.sum(share(a, s)) * np.arange(4.0) + s) + 0.1 * s  # noqa: E731
        return np.sum(jg.fori_loop(0, 3, step, x) ** 2)

    rng = np.random.default_rng(3)
    check_gradients(f, rng.normal(size=(4, 4)) / 2, rng.normal(size=4))


def test_a_constant_that_does_not_matter_has_zeros() -> None:
    f = lambda a, x: jg.fori_loop(0, 3, lambda i, s: s + 0 * jg.stop_gradient(a), x)  # noqa: E731
    assert jg.grad(f)(2.0, 1.0) == 0.0 and jg.compile(jg.grad(f))(2.0, 1.0) == 0.0
