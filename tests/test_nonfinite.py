"""debug_nans: the op that made the first NaN or infinity is named, with its pass, its line and its inputs' ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg


@pytest.fixture(autouse=True)
def debugging() -> Iterator[None]:
    with jg.config(debug_nans=True):
        yield


def test_the_first_op_is_named() -> None:
    f = jg.compile(lambda x: np.sum(np.sqrt(np.log(x) - 1.0) * 2.0))
    with pytest.raises(jg.NonFiniteError) as error:
        f(np.array([1.0, 20.0]))
    text = str(error.value)
    assert "op 'sqrt' made NaN in 1 of 2 values, in the forward pass" in text
    assert "test_nonfinite.py:" in text and "input 0: float64[2] from -1 to 1.99573" in text
    assert isinstance(error.value, FloatingPointError)


def test_a_gradient_that_breaks() -> None:
    f = jg.compile(jg.value_and_grad(lambda x: np.sum(np.sqrt(x) * x)))
    f(np.array([1.0, 4.0]))
    with pytest.raises(jg.NonFiniteError, match=r"in the gradient pass"):
        f(np.array([0.0, 4.0]))


def test_infinity() -> None:
    f = jg.compile(lambda x: np.exp(x) * 2.0)
    with pytest.raises(jg.NonFiniteError, match=r"op 'exp' made infinity in 1 of 3 values"):
        f(np.array([1.0, 2.0, 800.0]))


def test_a_bad_argument_is_named() -> None:
    f = jg.compile(lambda x, y: x + y)
    with pytest.raises(jg.NonFiniteError, match=r"argument 1 of .* holds NaN"):
        f(np.ones(2), np.array([1.0, np.nan]))


def test_what_no_result_shows_is_no_fault() -> None:
    f = jg.compile(lambda x: np.where(x > 0, np.log(x), 0.0))
    np.testing.assert_array_equal(f(np.array([-1.0, 1.0])), [0.0, 0.0])


def test_what_the_user_wrote_is_no_fault() -> None:
    """An infinity in a constant that no result shows passes, and an op that makes a NaN of it is named."""
    f = jg.compile(lambda x: np.max(np.where(x > 0, x, -np.inf)))
    assert f(np.array([-1.0, 2.0])) == 2.0
    g = jg.compile(lambda x: np.where(x > 0, x, -np.inf) * 0.0)
    with pytest.raises(jg.NonFiniteError, match=r"op 'multiply' made NaN in 1 of 2"):
        g(np.array([-1.0, 2.0]))


def test_interpreted_functions_and_sessions_too() -> None:
    def f(x: Any) -> Any:
        return np.sum(np.log(x))

    with pytest.raises(jg.NonFiniteError, match=r"op 'divide'|op 'reciprocal'|op 'log'"):
        jg.grad(f)(np.array([0.0, 1.0]))
    graph = jg.Graph()
    with graph.as_default():
        x = jg.placeholder(np.float64, [None], name="x")
        y = np.log(x)
    with pytest.raises(jg.NonFiniteError, match="op 'log'"):
        jg.Session(graph).run(y, {x: [-1.0]})


def test_the_search_leaves_variables_as_the_run_made_them() -> None:
    graph = jg.Graph()
    with graph.as_default():
        count = jg.Variable(np.array([1.0, 2.0]), name="count")
        result = np.log(count - 2.0)
        with graph.control_dependencies([result]):
            update = count.assign_add([1.0, 1.0])
    for run in (0, 1):
        with pytest.raises(jg.NonFiniteError, match="op 'log'") as error:
            jg.Session(graph).run([result, update])
        assert f"from {run - 1} to {run}" in str(error.value)  # what it read, not what it left
        np.testing.assert_array_equal(count.numpy(), [2.0 + run, 3.0 + run])


def test_off_means_off() -> None:
    with jg.config(debug_nans=False), np.errstate(all="ignore"):
        assert np.isnan(jg.compile(lambda x: np.log(x))(np.array([-1.0])))[0]
