"""Extremes that are subtracted and cancel: no gradient goes through them, and the gradients are what they were."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import jitgrad as jg
from jitgrad import gradient_walk
from jitgrad.shifts import Cancelling

pytestmark = pytest.mark.quick

Fn = Callable[..., Any]

rng = np.random.default_rng(5)
Z, V = rng.normal(size=(5, 4)), rng.normal(size=(4, 3))
LABELS = np.array([0, 3, 1, 1, 2])


def shifted(z: Any, axis: Any = -1) -> Any:
    return z - np.max(z, axis=axis, keepdims=True)


def softmax(z: Any) -> Any:
    e = np.exp(shifted(z))
    return e / np.sum(e, axis=-1, keepdims=True)


def total(z: Any) -> Any:
    return np.sum(np.exp(shifted(z)), axis=-1)


CANCELS: dict[str, Fn] = {
    "cross-entropy": lambda z: np.mean(np.log(total(z)) - shifted(z)[np.arange(5), LABELS]),
    "the same with one-hot labels": lambda z: -np.sum(
        np.eye(4)[LABELS] * (shifted(z) - np.log(total(z))[:, None])
    ),
    "the same as two sums": lambda z: np.sum(np.log(total(z))) - np.sum(shifted(z)[np.arange(5), LABELS]),
    "the same as two means": lambda z: np.log(total(z)).mean() - np.mean(
        np.take_along_axis(shifted(z), LABELS[:, None], 1)
    ),
    "logsumexp": lambda z: np.sum((np.max(z, axis=1) + np.log(total(z))) ** 2),
    "logsumexp of a column": lambda z: np.sum((z.max(0) + np.log(np.exp(z - z.max(0)).sum(0))) ** 2),
    "of all": lambda z: (np.max(z) + np.log(np.sum(np.exp(z - np.max(z))))) ** 2,
    "softmax": lambda z: np.sum(softmax(z) ** 2),
    "the least element": lambda z: np.sum((np.exp(z - z.min()) / np.sum(np.exp(z - z.min()))) ** 2),
    "attention": lambda z: np.sum((softmax(z) @ V) ** 2),
    "attention, divided at last": lambda z: np.sum((np.exp(shifted(z)) @ V / total(z)[:, None]) ** 2),
    "attention, turned round": lambda z: np.sum((V.T @ np.exp(shifted(z)).T / total(z)) ** 2),
    "with a temperature": lambda z: np.sum(np.log(np.exp(shifted(z) / 0.7).sum(1)) - shifted(z)[:, 2] / 0.7),
    "transposed": lambda z: np.sum(((z.T - z.max(1)) - np.log(np.exp(z.T - z.max(1)).sum(0))) ** 2),
    "roots and squares": lambda z: np.sum(
        np.sqrt(np.square(np.exp(shifted(z)[:, :2]))) ** 1.5 / total(z)[:, None] ** 1.5
    ),
    "where of two that follow": lambda z: np.sum(
        np.where(z > 0, shifted(z), shifted(z) - 1.0) - np.log(total(z))[:, None]
    ),
    "a ratio": lambda z: np.sum(np.exp(shifted(z))[:, 0] * np.reciprocal(np.exp(shifted(z))[:, 1])),
}  # fmt: skip

STAYS: dict[str, Fn] = {
    "squares": lambda z: np.sum(shifted(z) ** 2),
    "exponentials alone": lambda z: np.sum(np.exp(shifted(z)) * np.arange(4.0)),
    "a divisor that is a constant": lambda z: np.sum(
        (np.exp(shifted(z)) / jg.stop_gradient(total(z))[:, None]) ** 2
    ),
    "the shift is a result, too": lambda z: np.sum(np.log(total(z))) + np.sum(np.max(z, axis=1) ** 2),
    "powers that differ": lambda z: np.sum(np.exp(2 * shifted(z)) / total(z)[:, None]),
    "shifts of other rows": lambda z: np.sum(
        np.log(total(z)) * np.arange(5.0) - shifted(z)[np.arange(5)[::-1], LABELS]
    ),
    "rows against all rows": lambda z: np.sum((np.log(total(z))[:, None] - np.log(total(z))) ** 2),
    "sums over the rows": lambda z: np.sum(np.exp(shifted(z)) / np.exp(shifted(z)).sum(0), axis=0)[1],
    "one side alone": lambda z: np.sum(np.where(z > 0, shifted(z), z) - np.log(total(z))[:, None]),
    "a bound": lambda z: np.sum(np.maximum(shifted(z), -1.0)[:, 0] - np.log(total(z))),
    "some rows": lambda z: np.sum(np.log(total(z))) - np.sum(shifted(z)[:3, 1]),
    "weights": lambda z: np.sum(np.arange(5) * np.log(total(z))) - np.sum(shifted(z)[np.arange(5), LABELS]),
}  # fmt: skip


def goes_through(fn: Fn, *args: Any) -> bool:
    """Whether the gradient asks which elements are extremes."""
    return "equal(" in jg.compile(jg.grad(fn)).explain(*args).text.split("\ncluster")[0]


def compiled_gradient(fn: Fn) -> Fn:
    return jg.compile(jg.grad(fn))


def as_written(fn: Fn, monkeypatch: pytest.MonkeyPatch, gradient: Callable[[Fn], Fn] = compiled_gradient) -> Any:
    """The gradient with every path taken."""
    with monkeypatch.context() as m:
        m.setattr(gradient_walk, "cancelling_shifts", lambda between, ends: Cancelling(set(), False))
        return gradient(lambda z: fn(z))(Z)


@pytest.mark.parametrize("name", CANCELS)
def test_a_shift_that_cancels_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = CANCELS[name]
    assert not goes_through(fn, Z)
    slope = jg.compile(jg.grad(fn))(Z)
    assert np.allclose(slope, as_written(fn, monkeypatch), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", STAYS)
def test_others_are_differentiated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = STAYS[name]
    assert goes_through(fn, Z)
    assert np.array_equal(jg.compile(jg.grad(fn))(Z), as_written(fn, monkeypatch))


@pytest.mark.parametrize("name", CANCELS)
def test_second_derivatives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = CANCELS[name]
    found = jg.compile(jg.hessian(fn))(Z[:, :4])
    with monkeypatch.context() as m:
        m.setattr(gradient_walk, "cancelling_shifts", lambda between, ends: Cancelling(set(), False))
        written = jg.compile(jg.hessian(lambda z: fn(z)))(Z)
    assert np.allclose(found, written, rtol=1e-10, atol=1e-11)


def test_the_gradient_of_cross_entropy_is_that_of_scipy() -> None:
    slope = jg.compile(jg.grad(CANCELS["cross-entropy"]))(Z)
    assert np.allclose(slope, (scipy.special.softmax(Z, axis=1) - np.eye(4)[LABELS]) / 5, rtol=1e-14, atol=1e-16)


def test_infinite_and_missing_elements() -> None:
    z = Z.copy()
    z[0, 1], z[1, 2], z[2] = -np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        slope = jg.compile(jg.grad(lambda z: np.sum(softmax(z)[:, 0])))(z)
    assert slope[0, 1] == 0 and np.isfinite(slope[[0, 3, 4]]).all() and np.isnan(slope[1:3]).all()


def test_what_follows_only_through_the_shift_has_the_gradient_zero() -> None:
    def loss(z: Any, a: Any) -> Any:
        s = z - np.max(a, axis=1, keepdims=True)
        return np.sum(np.log(np.exp(s).sum(1)) - s[:, 0])

    assert not jg.compile(jg.grad(loss, 1))(Z, Z + 1).any()

    def both(z: Any, a: Any) -> Any:
        slopes = jg.gradients(loss(z, a), [z, 2 * a, a])
        return slopes[1] is None, slopes[0] + slopes[2]

    is_apart, total = jg.compile(both)(Z, Z + 1)
    assert is_apart and np.allclose(total, jg.grad(loss)(Z, Z + 1), rtol=1e-12, atol=1e-15)
    graph = jg.Graph()
    with graph.as_default(), jg.Session(graph=graph) as session:
        called = jg.function(lambda z, a: both(z, a)[1])(jg.constant(Z), jg.constant(Z + 1))
        assert np.allclose(session.run(called), total, rtol=1e-12, atol=1e-15)


def test_an_extreme_of_what_follows_has_its_own_gradient() -> None:
    def loss(z: Any) -> Any:
        return np.sum(np.exp(shifted(z)).min(1) / total(z))

    text = jg.compile(jg.grad(loss)).explain(Z).text.split("\ncluster")[0]
    least = Z.argmin(1)
    p = scipy.special.softmax(Z, axis=1)
    expected = p[np.arange(5), least][:, None] * (np.eye(4)[least] - p)
    assert text.count(" equal(") == 1 and np.allclose(jg.grad(loss)(Z), expected, rtol=1e-13)


def test_in_a_graph_a_tensor_may_be_fed_and_all_paths_stay() -> None:
    graph = jg.Graph()
    with graph.as_default():
        z = jg.placeholder(np.float64, (5, 4))
        e = np.exp(z - np.max(z, axis=1, keepdims=True))
        (slope,) = jg.gradients(np.sum(e / np.sum(e, axis=1, keepdims=True) * np.arange(4.0)), z)
    with jg.Session(graph=graph) as session:
        fed = session.run(slope, {z: Z, e: np.ones((5, 4))})
    assert fed.any(axis=1).all()


def test_in_a_loop_and_with_a_custom_gradient() -> None:
    weights = rng.normal(size=(4, 4))

    def attending(z: Any) -> Any:
        return np.sum(jg.scan(lambda h, _: (softmax(h @ weights), None), z, None, length=3)[0] ** 2)

    def unrolled(z: Any) -> Any:
        for _ in range(3):
            z = jg.scipy.special.softmax(z @ weights, axis=-1)
        return np.sum(z**2)

    assert np.allclose(jg.compile(jg.grad(attending))(Z), jg.compile(jg.grad(unrolled))(Z), rtol=1e-12, atol=1e-15)

    @jg.custom_gradient
    def doubled(x: Any) -> Any:
        return x, lambda g: 2 * g

    assert goes_through(lambda z: np.sum(np.log(total(z)) - doubled(shifted(z))[:, 0]), Z)


def weighted(z: Any) -> Any:
    weight = 0.7 if len(z) < 250 else 0.3
    return np.sum(np.log(np.sum(np.exp(0.7 * shifted(z)), axis=1)) - weight * shifted(z)[:, 0])


OTHERS: dict[str, Fn] = {
    "another number": weighted,
    "as many terms": lambda z: np.sum(np.sum(shifted(z), axis=1) - 150 * shifted(z)[:, 0]),
    "powers": lambda z: np.sum(np.exp(np.sum(shifted(z) / 150, axis=1)) / np.exp(shifted(z))[:, 0]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_shift_that_cancels_for_one_shape_alone(name: str) -> None:
    """Gradients are not copied from a trace in which the shift cancelled."""
    with jg.config(verify=False, cache=False):
        f = jg.compile(jg.value_and_grad(OTHERS[name]))
        for shape in ((200, 150), (300, 640), (200, 150), (300, 150), (640, 300)):
            z = np.random.default_rng(0).normal(size=shape) / 10
            np.testing.assert_allclose(f(z)[1], jg.grad(OTHERS[name])(z), rtol=1e-9, atol=1e-9)


# -- random functions of a shift -----------------------------------------------------------------------------


def random_step(choose: random.Random, z: Any, a: Any, b: Any) -> Any:
    rows: dict[str, Any] = {"axis": 1, "keepdims": True}
    steps: list[Callable[[], Any]] = [
        lambda: a - b, lambda: a + b, lambda: -a, lambda: a * 0.5, lambda: a / 2.0, lambda: a.T.T * 1.0, lambda: a * b,
        lambda: np.exp(a / 4), lambda: np.log(np.exp(a / 2)), lambda: np.log(np.square(a) + 0.1),
        lambda: a / np.sum(np.exp(shifted(z)), **rows), lambda: np.log(np.sum(np.exp(a), **rows)),
        lambda: np.sum(a, **rows), lambda: np.mean(a, **rows), lambda: np.max(a, **rows), lambda: a[:, :1],
        lambda: np.where(z[:, :1] > 0, a, b), lambda: np.sum(a, axis=0, keepdims=True) + 0 * z[:, :1],
    ]  # fmt: skip
    return choose.choice(steps)()


def random_end(choose: random.Random, last: Any) -> Any:
    e = np.exp(last / 4)
    ends: list[Callable[[], Any]] = [
        lambda: np.tanh(last), lambda: last, lambda: e / np.sum(e, axis=1, keepdims=True),
        lambda: np.log(np.sum(e, axis=1, keepdims=True)) - last[:, :1] / 4,
        lambda: np.log(np.mean(e, axis=1)).sum() - np.mean(last / 4, axis=1).sum(),
    ]  # fmt: skip
    return choose.choice(ends)()


def random_function(seed: int) -> Fn:
    """Steps chosen by a seed, after which the shift cancels in every fourth function."""

    def fn(z: Any) -> Any:
        choose = random.Random(seed)
        pool = [shifted(z), np.exp(shifted(z)), np.max(z, axis=1, keepdims=True)]
        for _ in range(choose.randint(1, 4)):
            pool.append(random_step(choose, z, choose.choice(pool), choose.choice(pool)))
        return np.mean(random_end(choose, pool[-1]) ** 2)

    return fn


@pytest.mark.parametrize("seed", range(120))
def test_random_functions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = random_function(seed)
    with np.errstate(all="ignore"):
        slope, written = jg.grad(fn)(Z), as_written(fn, monkeypatch, jg.grad)
    assert np.allclose(slope, written, rtol=1e-9, atol=1e-11, equal_nan=True)
