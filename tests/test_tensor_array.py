"""TensorArray: written and read by number in loops, branches, graphs, eagerly and compiled, with its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

Fn = Callable[..., Any]
WAYS = [pytest.param(lambda f: f, id="values"), pytest.param(jg.compile, id="compiled"),
        pytest.param(lambda f: jg.compile(f).interpret, id="interpreted")]  # fmt: skip


def squares(x: Any) -> Any:
    """Filled by a loop that it enters empty."""
    array = jg.TensorArray(np.float64, 4)
    array = jg.fori_loop(0, 4, lambda i, a: a.write(i, x * i), array)
    return np.sum(array.stack() ** 2) + array.read(1) * array.read(1)


def neighbours(x: Any) -> Any:
    """Each element read twice, in a loop."""
    array = jg.TensorArray(np.float64, 4).unstack(x)

    def step(state: Any) -> Any:
        i, total, array = state
        return i + 1, total + array.read(i) * array.read(i - 1), array

    return jg.while_loop(lambda s: s[0] < 4, step, (1, 0.0, array))[1]


@pytest.mark.parametrize("way", WAYS)
def test_an_array_enters_a_loop_empty(way: Any) -> None:
    assert way(squares)(2.0) == pytest.approx(15 * 4.0)
    assert way(jg.grad(squares))(2.0) == pytest.approx(30 * 2.0)
    assert way(jg.grad(jg.grad(squares)))(2.0) == pytest.approx(30.0)


@pytest.mark.parametrize("way", WAYS)
def test_reading_twice_adds_gradients(way: Any) -> None:
    x = np.arange(1.0, 5.0)
    assert way(neighbours)(x) == 20.0
    np.testing.assert_allclose(way(jg.grad(neighbours))(x), [2, 4, 6, 3])
    np.testing.assert_allclose(way(jg.hessian(neighbours))(x), np.eye(4, k=1) + np.eye(4, k=-1))


@pytest.mark.parametrize("way", WAYS)
def test_what_was_overwritten_gets_no_gradient(way: Any) -> None:
    def f(x: Any) -> Any:
        array = jg.TensorArray(np.float64, 2).unstack(x).write(0, 3 * x[1])
        return np.sum(array.gather([0, 0, 1]) * np.array([1.0, 2.0, 5.0]))

    np.testing.assert_allclose(way(jg.grad(f))(np.array([1.0, 2.0])), [0.0, 14.0])


@pytest.mark.parametrize("way", WAYS)
def test_unwritten_elements_are_named(way: Any) -> None:
    def late(x: Any) -> Any:
        array = jg.TensorArray(np.float64, 4).write(0, x)
        return jg.fori_loop(0, 3, lambda i, s: s + array.read(i), x)

    with pytest.raises(jg.UnwrittenError, match=r"an? ?element.*has not been written|element 1 of"):
        way(late)(2.0)
    with pytest.raises(jg.UnwrittenError, match="element 2 of a TensorArray is read"):
        way(lambda x: jg.TensorArray(np.float64, 4).read(2) + x)(2.0)
    with pytest.raises(IndexError, match="element 4 of a TensorArray of 4 elements"):
        way(lambda x: jg.TensorArray(np.float64, 4).write(4, x).stack())(2.0)
    with pytest.raises(IndexError):
        way(lambda x: jg.fori_loop(0, 5, lambda i, a: a.write(i, x), jg.TensorArray(np.float64, 4)).stack())(2.0)


def test_the_interpreter_names_the_element() -> None:
    array = lambda x: jg.TensorArray(np.float64, 4).write(0, x)  # noqa: E731
    for read, number in ((lambda a: a.stack(), 1), (lambda a: a.gather([0, 3]), 3)):
        with pytest.raises(jg.UnwrittenError, match=f"element {number} of a TensorArray is read"):
            jg.compile(lambda x, read=read: read(array(x))).interpret(1.0)


@pytest.mark.parametrize("way", WAYS)
def test_branches_may_leave_it_empty(way: Any) -> None:
    def f(x: Any) -> Any:
        array = jg.TensorArray(np.float64, 2)
        return jg.cond(x > 0, lambda: array.write(0, x).write(1, -x), lambda: array).stack()

    np.testing.assert_array_equal(way(f)(2.0), [2.0, -2.0])
    with pytest.raises(jg.UnwrittenError):
        way(f)(-2.0)


def test_graphs_with_unknown_lengths() -> None:
    graph = jg.Graph()
    with graph.as_default():
        rows, i = jg.placeholder(np.float64, (None, 2)), jg.placeholder(np.int64, ())
        array = jg.TensorArray(np.float64).unstack(rows)
        read, joined = array.read(i), array.concat()
        (g,) = jg.gradients(np.sum(read * read) + np.sum(joined), rows)
        pieces = jg.TensorArray(np.float64).split(np.arange(6.0), [2, 2, 2])
        spread = jg.TensorArray(np.float64, 3).scatter([2, 0, 1], np.arange(3.0))
        fetches = [read, joined, g, pieces.read(1), spread.stack(), spread.read(i)]
    got = jg.Session(graph).run(fetches, {rows: np.arange(6.0).reshape(3, 2), i: 1})
    expected = [[2, 3], range(6), [[1, 1], [5, 7], [1, 1]], [2, 3], [1, 2, 0], 2]
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_tapes_see_through_it() -> None:
    v = jg.Variable([1.0, 2.0, 3.0])
    with jg.GradientTape() as tape:
        array = jg.TensorArray(np.float64, 3).unstack(v)
        array = array.write(1, array.read(0) * array.read(2))
        y = np.sum(array.stack() * array.gather([1, 1, 2]))
    assert y == 21.0
    np.testing.assert_allclose(tape.gradient(y, v), [24.0, 0.0, 13.0])


def test_matrices_as_elements_and_other_dtypes() -> None:
    def f(x: Any) -> Any:
        array = jg.TensorArray(np.float32, 3)
        array, _ = jg.scan(lambda a, i: (a.write(i, x * i.astype(np.float32)), None), array, np.arange(3))
        return array.concat()

    x = np.ones((2, 2), np.float32)
    got = jg.compile(f)(x)
    assert got.dtype == np.float32 and got.shape == (6, 2)
    np.testing.assert_array_equal(got, np.repeat([0, 1, 2], 2)[:, None] * np.ones((1, 2)))


def test_what_does_not_fit_is_refused() -> None:
    array = jg.TensorArray(np.float64, 3).write(0, np.zeros(2))
    for act, error, text in (
        (lambda: array.write(1, np.zeros(3)), ValueError, "of one shape"),
        (lambda: array.write(1, np.zeros(2, np.float32)), TypeError, "float64 got float32"),
        (lambda: array.write(1.5, np.zeros(2)), IndexError, "by integers"),
        (lambda: array.unstack(np.zeros((4, 2))), ValueError, "as many elements"),
        (lambda: array.split(np.zeros(4), [1, 3]), NotImplementedError, "one shape"),
        (lambda: jg.TensorArray(np.float64).write(0, 1.0), ValueError, "no size yet"),
        (lambda: jg.TensorArray(np.float64, 2).unstack(np.zeros(2)).concat(), ValueError, "have an axis"),
    ):
        with pytest.raises(error, match=text):
            act()
    assert repr(array) == "<TensorArray of 3 elements float64[2]>" and len(array) == array.size() == 3


@pytest.mark.parametrize("way", WAYS)
def test_maps_and_folds(way: Any) -> None:
    x = np.arange(1.0, 5.0)
    np.testing.assert_array_equal(way(lambda x: jg.map(lambda t: t[0] * t[1], (x, x)))(x), x * x)
    assert way(lambda x: jg.foldl(lambda a, t: a * t, x))(x) == 24.0
    assert way(lambda x: jg.foldr(lambda a, t: a - t, x))(x) == 4 - 3 - 2 - 1
    assert way(lambda x: jg.foldr(lambda a, t: t - a, x, 0.5))(x) == 1 - (2 - (3 - (4 - 0.5)))
    np.testing.assert_allclose(way(jg.grad(lambda x: jg.foldl(lambda a, t: a * t, x)))(x), 24 / x)
