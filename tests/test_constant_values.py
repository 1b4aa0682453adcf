"""Values that constants alone decide: a function may ask for them while it is traced, as NumPy's code does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.numpy as jnp

Array = np.ndarray[Any, np.dtype[Any]]


def basis(x: Any, count: int, xp: Any) -> Any:
    """Linear B-splines by the recursion of Cox and de Boor, whose knots repeat at the ends."""
    knots = xp.concatenate([xp.zeros(2), xp.linspace(0, 1, count)[1:-1], xp.ones(2)])
    steps = [((knots[i] <= x) & (x < knots[i + 1])) * 1.0 for i in range(len(knots) - 1)]
    rows = []
    for i in range(len(steps) - 1):
        row = 0.0 * x
        if knots[i + 1] > knots[i]:
            row = row + (x - knots[i]) / (knots[i + 1] - knots[i]) * steps[i]
        if knots[i + 2] > knots[i + 1]:
            row = row + (knots[i + 2] - x) / (knots[i + 2] - knots[i + 1]) * steps[i + 1]
        rows.append(row)
    return xp.stack(rows)


def test_conditions_on_knots() -> None:
    def loss(c: Any, x: Any, xp: Any = jnp) -> Any:
        return xp.sum((c @ basis(x, c.shape[0], xp) - x**2) ** 2)

    fitted = jg.compile(jg.value_and_grad(loss))
    for count in (4, 7):  # knots of other extents are other values
        c, x = np.linspace(0, 1, count), np.linspace(0, 0.99, 13)
        value, slope = fitted(c, x)
        np.testing.assert_allclose(value, loss(c, x, np), rtol=1e-13)
        rows = basis(x, count, np)
        np.testing.assert_allclose(slope, 2 * rows @ (c @ rows - x**2), rtol=1e-12, atol=1e-13)


# Each asks for a value in another way, and gives something that is compared with NumPy's.
ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "int": lambda x, xp: x * int(xp.linspace(0.0, 9.0, 4)[2]),
    "float": lambda x, xp: x * float(xp.ones(3).sum()),
    "complex": lambda x, xp: x * complex(xp.full((), 2.0)),
    "item": lambda x, xp: x * xp.arange(5)[3].item(),
    "tolist": lambda x, xp: x * sum(xp.eye(3).tolist()[1]),
    "range": lambda x, xp: sum(x[i] for i in range(xp.arange(5)[3])),
    "shape": lambda x, xp: x[0] + xp.zeros(xp.arange(4)[2]),
    "slice": lambda x, xp: x[: xp.arange(4)[2]],
    "index of a list": lambda x, xp: x * [1.0, 2.0, 3.0][xp.arange(3)[1]],
    "index of NumPy's array": lambda x, xp: x * np.arange(3.0)[xp.arange(3)[1]],
    "a place": lambda x, xp: x[xp.arange(5)[-2]],
    "numpy.array": lambda x, xp: x * np.array(xp.arange(8.0)),
    "assignment to NumPy's array": lambda x, xp: x * _filled(xp),
    "mask": lambda x, xp: xp.cumsum(x.reshape(2, 4)[xp.tri(2, 4) > 0]),
    "nonzero": lambda x, xp: x.reshape(2, 4)[xp.nonzero(xp.tri(2, 4))],
    "flatnonzero": lambda x, xp: x[xp.flatnonzero(xp.arange(8) % 3)],
    "argwhere": lambda x, xp: x[xp.argwhere(xp.arange(8) % 3)[:, 0]],
    "ix_": lambda x, xp: x.reshape(2, 4)[xp.ix_(xp.arange(2)[::-1], xp.array([0, 3, 3]))],
    "ix_ of a mask": lambda x, xp: x.reshape(2, 4)[xp.ix_([1], xp.arange(4) > 1)],
    "ix_ of nothing": lambda x, xp: x.reshape(2, 4)[xp.ix_([], [0, 1])],
    "what was assigned": lambda x, xp: _assigned(x, xp),
}


def _filled(xp: Any) -> Any:
    table = np.zeros(8)
    table[2], table[3:5] = xp.arange(4)[3], xp.ones(2)
    return table


def _assigned(x: Any, xp: Any) -> Any:
    table = xp.zeros(3)
    row = table[1:]
    row[0] = 2.0
    if table[1] > 1:
        table[1] = 5.0
    return x * float(table[1])


@pytest.mark.parametrize("name", ASKED)
def test_values_asked_for(name: str) -> None:
    fn = ASKED[name]
    x = np.linspace(-1.0, 2.0, 8)
    made, wished = jg.compile(lambda x: fn(x, jnp))(x), fn(x, np)
    assert (made.shape, made.dtype) == (wished.shape, wished.dtype)
    np.testing.assert_allclose(made, wished, rtol=1e-14)

    def loss(x: Any) -> Any:
        return (abs(fn(x, jnp)) ** 2).sum()

    slope = jg.compile(jg.grad(loss))(x)
    step = np.linspace(1.0, 3.0, 8) * 1e-6
    wished = (np.sum(abs(fn(x + step, np)) ** 2) - np.sum(abs(fn(x - step, np)) ** 2)) / 2
    np.testing.assert_allclose(slope @ step, wished, rtol=1e-6, atol=1e-15)


def test_bodies_of_loops_ask_for_what_is_around() -> None:
    @jg.compile
    def f(x: Any) -> Any:
        weights = jnp.linspace(0.0, 1.0, 3)
        return jg.fori_loop(0, 3, lambda i, total: total * 2 if weights[2] > 0.5 else total, x)

    assert f(2.0) == 16.0


_variable = jg.Variable(3.0)
UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "an argument": lambda x: x[0],
    "what was assigned": lambda x: _with(jnp.zeros(3), x[0]),
    "a Variable": lambda x: _variable + 0.0,
    "a draw": lambda x: jg.random_normal(()),
    "called Python": lambda x: jg.py_func(lambda: np.float64(2.0), [], [np.float64]),
    "an eager tensor": lambda x: jg.asarray(2.0) * jnp.ones(()),
}


def _with(table: Any, value: Any) -> Any:
    table[1] = value
    return table[1]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_constants_do_not_decide_is_refused(name: str) -> None:
    def f(x: Any) -> Any:
        made = UNKNOWN[name](x)
        made = made[0] if isinstance(made, list | tuple) else made
        return x if made > 0 else -x

    with pytest.raises(jg.TracedValueError, match="a condition"):
        jg.compile(f)(np.ones(3))


def test_a_traced_mask_has_no_places() -> None:
    with pytest.raises(jg.TracedValueError, match="ix_ of a mask"):
        jg.compile(lambda x: x[jnp.ix_(x[0] > 0, [0])])(np.ones((2, 2)))
    with pytest.raises(ValueError, match="1 dimensional"):
        jg.compile(lambda x: x[jnp.ix_(jnp.eye(2, dtype=int), [0])])(np.ones((2, 2)))


def test_positions_of_ix_may_be_arguments() -> None:
    f = jg.compile(lambda x, rows: x[np.ix_(rows, [1, 0])])
    x = np.arange(6.0).reshape(3, 2)
    assert np.array_equal(f(x, np.array([2, 0])), x[np.ix_([2, 0], [1, 0])])


@jg.custom_gradient
def squares(x: Any) -> Any:
    return x * x, lambda dy: dy * 2.0 * x if dy[0] > 0 else dy


def test_the_seed_of_a_jacobian_stands_for_all_and_decides_nothing() -> None:
    with pytest.raises(jg.TracedValueError):
        jg.compile(jg.jacobian(squares))(np.array([1.0, 2.0]))
    hessian = jg.compile(jg.hessian(lambda x: np.sum(squares(x))))(np.array([1.0, 2.0]))
    np.testing.assert_array_equal(hessian, 2 * np.eye(2))  # of ones alone


def test_a_jacobian_by_a_users_rule_is_recorded_with_what_the_rule_has_of_its_function() -> None:
    @jg.custom_gradient
    def doubled(x: Any) -> Any:
        return x * x, lambda dy: dy * 2.0 * x

    x = jg.asarray(np.array([1.0, 2.0]))
    with jg.GradientTape() as outer:
        outer.watch(x)
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = doubled(x)
        s = np.sum(tape.jacobian(y, x) * np.array([3.0, 4.0]))
    np.testing.assert_array_equal(outer.gradient(s, x), [6.0, 8.0])


def test_an_array_of_a_tensor_is_read_only_where_numpys_would_be_the_same_memory() -> None:
    @jg.compile
    def written(x: Any) -> Any:
        ones = jnp.ones(3)
        np.asarray(ones)[0] = 5.0
        return x * ones

    @jg.compile
    def copied(x: Any) -> Any:
        ones = jnp.ones(3)
        own = np.array(ones)
        own[0] = 5.0
        return x * ones * own

    with pytest.raises(jg.ReadOnlyError, match=r"(?s)read-only.*test_constant_values.py.*np\.array\(x\) gives a copy"):
        written(np.ones(3))
    np.testing.assert_array_equal(copied(np.ones(3)), [5.0, 1.0, 1.0])
