"""What eager tensors and Variables do with arguments beside them: numbers, lists, arrays of the user's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

X = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, q: np.quantile(x, q),
        lambda x, q: np.percentile(x, 100.0 * q),
        lambda x, q: np.linalg.norm(x, np.inf if q < 0.5 else -np.inf),
        lambda x, q: np.linalg.norm(x, 3.0 + q, axis=0),
        lambda x, q: np.pad(x * x, 1, constant_values=q),
        lambda x, q: np.average(x, weights=[1.0, 2.0, q]),
        lambda x, q: np.append(x * x, [q, 2.0]),
        lambda x, q: np.extract(x > 1.0 + q, x * x),
        lambda x, q: x * [[1.0], [q]],
        lambda x, q: np.clip(x * x, q, 3.0 + q),
    ],
)
def test_numbers_beside_tensors(fn: Callable[[Any, float], Any]) -> None:
    """Their gradients are those of central differences, for each value anew."""
    for q in (0.3, 0.7, 0.3):
        x = jg.asarray(X)
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = np.sum(fn(x, q))
        steps = 1e-6 * np.eye(3)
        expected = [(np.sum(fn(X + h, q)) - np.sum(fn(X - h, q))) / 2e-6 for h in steps]
        np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-6, atol=1e-8)
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = np.sum(x * (2.0 + q))
        np.testing.assert_allclose(tape.gradient(y, x), np.full(3, 2.0 + q))


LEVELS: list[Callable[[Any], Any]] = [
    lambda x: np.quantile(x, [0.2, 0.5, 1.0]),
    lambda x: np.percentile(x, [20.0, 65.0], axis=1),
    lambda x: np.percentile(x, np.array([[20.0], [65.0]]), axis=0, keepdims=True),
    lambda x: np.quantile(x, (0.1, 0.9)),
    lambda x: np.quantile(x, 0.3, axis=1),
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("number", range(len(LEVELS)))
def test_quantiles_at_several_levels(number: int, dtype: Any) -> None:
    fn, value = LEVELS[number], np.array([[0.3, 2.0, -1.0, 0.7], [1.5, 0.1, 4.0, -2.0]], dtype)
    x = jg.asarray(value)
    with jg.GradientTape() as outer:
        outer.watch(x)
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
            loss = np.sum(y**3)
        g = tape.gradient(loss, x)
        total = np.sum(g * g)
    second = outer.gradient(total, x)
    assert y.dtype == fn(value).dtype and g.dtype == second.dtype == dtype
    np.testing.assert_array_equal(y, fn(value))

    def difference(f: Callable[[Any], Any]) -> Any:
        exact = value.astype(np.float64)
        steps = 1e-5 * np.eye(value.size).reshape(value.size, *value.shape)
        return np.reshape([(f(exact + h) - f(exact - h)) / 2e-5 for h in steps], value.shape)

    rtol = 1e-6 if dtype is np.float64 else 2e-5
    np.testing.assert_allclose(g, difference(lambda v: np.sum(fn(v) ** 3)), rtol=rtol, atol=1e-6)
    of_first = jg.grad(lambda v: np.sum(fn(v) ** 3))
    np.testing.assert_allclose(second, difference(lambda v: np.sum(of_first(v) ** 2)), rtol=10 * rtol, atol=1e-4)


def test_quantiles_at_levels_that_are_traced() -> None:
    value, levels = np.array([0.3, 2.0, -1.0, 0.7, 1.1]), np.array([0.0, 0.3, 0.55, 1.0])
    found = jg.compile(lambda x, q: np.quantile(x, q))(value, levels)
    np.testing.assert_allclose(found, np.quantile(value, levels), rtol=1e-15)
    wrong = jg.compile(lambda x, q: np.percentile(x, q))(value, np.array([-1.0, 50.0, 101.0, np.nan]))
    np.testing.assert_array_equal(np.isnan(wrong), [True, False, True, True])
    g = jg.grad(lambda q: np.sum(np.quantile(value, q) ** 2))(np.array([0.3, 0.55]))
    np.testing.assert_allclose(g, [2 * np.quantile(value, 0.3) * 4 * 0.4, 2 * np.quantile(value, 0.55) * 4 * 0.4])


def test_arrays_of_the_user_stay_theirs() -> None:
    x, u = jg.asarray(X), np.arange(3.0)
    made = [
        np.atleast_1d(x, u)[1], np.atleast_2d(x, u)[1], np.broadcast_arrays(x, u)[1],
        np.meshgrid(x, u, copy=False)[1].T[0],
    ]  # fmt: skip
    assert u.flags.writeable
    u[:] = -1.0
    for y in made:
        assert isinstance(y, jg.EagerTensor) and np.ravel(y).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("name", "value"), [("shape", (3, 1)), ("dtype", np.int64), ("strides", (8,))])
def test_attributes_that_are_not_set(name: str, value: Any) -> None:
    x = jg.asarray(X)
    with pytest.raises(jg.TracedValueError, match=f"assignment to {name} is refused"):
        setattr(x, name, value)
    assert x.shape == (3,) and x.dtype == np.float64 and x.strides == (8,)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_copies_of_variables(how: Callable[[Any], Any]) -> None:
    v = jg.Variable([1.0, 2.0], trainable=False)
    w = how(v)
    assert type(w) is jg.Variable and not w.trainable
    w.assign([3.0, 4.0])
    assert v.numpy().tolist() == [1.0, 2.0] and w.numpy().tolist() == [3.0, 4.0]


def test_what_a_variable_does_not_take() -> None:
    v = jg.Variable([1.0, 2.0])
    with pytest.raises(jg.TracedValueError, match=r"(?s)cannot be assigned to.*use assign"):
        v[0] = 3.0
    with pytest.raises(jg.DTypeError):
        v.assign([1j, 2.0])
    assert v.numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", [jg.optimize.Adam, jg.optimize.AdamW])
def test_steps_are_counted_for_each_variable(kind: Any) -> None:
    first, late = jg.Variable([1.0]), jg.Variable([1.0])
    optimizer, other = kind(learning_rate=0.1), kind(learning_rate=0.1)
    for _ in range(20):
        optimizer.apply_gradients([(np.ones(1), first), (None, late)])
    optimizer.apply_gradients([(np.ones(1), first), (np.ones(1), late)])
    alone = jg.Variable([1.0])
    other.apply_gradients([(np.ones(1), alone)])
    np.testing.assert_array_equal(late.numpy(), alone.numpy())


@pytest.mark.parametrize("order", [2, -2, 1, -1, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (3, 3), (2, 2)])
def test_an_extreme_is_sought_among_what_the_gradient_computes(order: Any, shape: tuple[int, int]) -> None:
    """NumPy's singular values without vectors differ in their last bits from those with them: no element was equal."""
    a = np.random.default_rng(0).normal(size=shape)
    x = jg.asarray(a)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.linalg.norm(x, order)
    np.testing.assert_allclose(tape.gradient(y, x), jg.grad(lambda a: np.linalg.norm(a, order))(a), rtol=1e-9)
