"""Gradients of the side that a where() does not take: 0, never NaN, however the code is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import jitgrad as jg

pytestmark = pytest.mark.quick

Fn = Callable[[Any], Any]
log = jg.function(lambda u: np.log(u), func_name="log_of")
double = jg.function(lambda u: 2.0 * u, func_name="double_of")
inner = jg.function(lambda u: np.where(u < 5, np.log(u), 0.0), func_name="inner")


def pair(x: Any) -> Any:
    return np.stack([x, x])


def two_uses(x: Any) -> Any:
    slow = np.log(x)
    return np.where(x > 0, slow, 0.0) + np.where(x > 1, slow, 0.0)


@pytest.mark.parametrize("fn", [scipy.special.ndtri, scipy.special.logit, scipy.special.xlogy, scipy.special.entr])
def test_a_side_that_scipy_computes_has_no_nan(fn: Any) -> None:
    x, more = np.array([-0.5, 0.3]), (0.5,) * (fn.nin - 1)
    slope = jg.compile(jg.grad(lambda x: np.sum(np.where(x > 0, fn(*more, x), 0.0))))(x)
    assert slope[0] == 0 and np.isclose(slope[1], jg.grad(lambda x: fn(*more, x))(0.3))


# name → (function, its slope at 2, where all of it is taken)
CUTS: dict[str, tuple[Fn, float]] = {
    "nested": (lambda x: np.where(x > 0, np.where(x < 5, np.log(x), 0.0), 0.0), 0.5),
    "nested on the other side": (lambda x: np.where(x <= 0, 0.0, np.where(x > 5, 0.0, np.log(x))), 0.5),
    "select": (lambda x: np.select([x <= 0, x < 5], [0 * x, np.log(x)], 0.0), 0.5),
    "two uses": (two_uses, 1.0),
    "reshape": (lambda x: np.where(np.reshape(x, (1,)) > 0, np.reshape(np.log(x), (1,)), 0.0)[0], 0.5),
    "transpose": (lambda x: np.sum(np.where(x > 0, np.log(pair(pair(x))).T, 0.0)), 2.0),
    "item": (lambda x: np.where(x > 0, np.log(pair(x))[1], 0.0), 0.5),
    "look-up": (lambda x: np.sum(np.where(x > 0, np.take(np.log(pair(x)), [0, 1, 1]), 0.0)), 1.5),
    "stack": (lambda x: np.sum(np.where(x > 0, pair(np.log(x)), 0.0)), 1.0),
    "broadcast": (lambda x: np.sum(np.where(x > 0, np.broadcast_to(np.log(x), (3,)), 0.0)), 1.5),
    "sum": (lambda x: np.where(x > 0, np.sum(np.log(pair(x))), 0.0), 1.0),
    "function": (lambda x: np.where(x > 0, log(x), 0.0), 0.5),
    "behind a function": (lambda x: np.where(x > 0, double(np.log(x)), 0.0), 1.0),
    "function behind a function": (lambda x: np.where(x > 0, double(log(x)), 0.0), 1.0),
    "where in a function": (lambda x: np.where(x > 0, inner(x), 0.0), 0.5),
    "all in a function": (jg.function(lambda x: np.where(x > 0, inner(x), 0.0)), 0.5),
}


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("name", CUTS)
def test_a_side_not_taken_has_no_nan_however_the_code_is_cut(name: str, gate: bool) -> None:
    fn, slope = CUTS[name]
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, ())
        (g,) = jg.gradients(fn(x), x, gate_gradients=gate)
        (again,) = jg.gradients(g, x)
        with jg.jit_scope():
            (compiled,) = jg.gradients(fn(x), x)
        session = jg.Session()
        assert session.run([g, compiled, again], {x: 0.0}) == [0, 0, 0]
        np.testing.assert_allclose(session.run([g, compiled, again], {x: 2.0}), [slope, slope, -slope / 2], rtol=1e-15)


def test_a_mask_hides_nothing_that_another_path_tells() -> None:
    """An addend without a mask is what it is, and of two masks that differ the sum keeps both."""

    def bare(x: Any) -> Any:
        slow = np.log(x)
        return np.where(x > 0, slow, 0.0) + slow

    def sides(x: Any) -> Any:
        square = x * x
        return np.where(x > 0, square, 0.0) + np.where(x < 0, 3.0 * square, 0.0)

    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, (3,))
        first, second = (jg.gradients(fn(x), x)[0] for fn in (bare, sides))
        found = jg.Session().run([first, second], {x: [-1.0, 0.0, 2.0]})
    np.testing.assert_array_equal(found[0], [-1.0, np.inf, 1.0])
    np.testing.assert_array_equal(found[1], [-6.0, 0.0, 4.0])


def test_one_function_with_and_without_a_mask() -> None:
    """The gradient that was derived for the one call is not that of the other."""
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, ())
        y = np.where(x > 0, log(x), 0.0)
        masked, plain = jg.gradients(y, x)[0], jg.gradients(log(x), x)[0]
        assert jg.Session().run([masked, plain], {x: 0.0}) == [0, np.inf]


def test_an_argument_that_a_function_does_not_read_is_no_way_of_a_gradient() -> None:
    second = jg.function(lambda a, b: b * 3.0)
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, ())
        (g,) = jg.gradients(second(np.log(x), x), x)
        assert jg.Session().run(g, {x: 0.0}) == 3


def test_without_a_where_nothing_is_made() -> None:
    def made(fn: Fn) -> list[str]:
        with jg.Graph().as_default() as graph:
            x = jg.placeholder(np.float64, (3,))
            jg.gradients(np.sum(log(np.reshape(fn(x), (3, 1)))), x)
            return [op.type for op in graph.operations]

    assert not {"where", "not_equal", "logical_not", "logical_and"} & set(made(np.exp))
    assert "not_equal" not in made(lambda x: np.where(x > 0, x, 0.5))  # whose mask no operation needs


def test_a_thousand_nested_choices() -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, ())
        y = np.log(x)
        for _ in range(1500):
            y = np.where(x > 0, y, 0.0)
        (g,) = jg.gradients(y, x)
        assert g is not None and g.op.type == "where"
