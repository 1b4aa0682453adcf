"""debug_nans: the op that made the first NaN or infinity is named, with its pass, its line and its inputs' ranges."""

from __future__ import annotations

import os
import subprocess
import sys
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


# -- the way back ----------------------------------------------------------------------------------------------------


def refused(f: Any, *args: Any) -> str:
    """What is said of a call."""
    with pytest.raises(jg.NonFiniteError) as error:
        f(*args)
    return str(error.value)


def test_a_masked_nan_that_comes_earlier_is_not_named() -> None:
    """The logarithm's NaN is hidden by where; the square root's reaches the result."""
    f = jg.compile(lambda x, y: np.where(x > 0, np.log(x), 0.0) + np.sqrt(y))
    text = refused(f, np.array([-1.0, 1.0]), np.array([1.0, -4.0]))
    assert "op 'sqrt' made NaN in 1 of 2 values" in text and "from -4 to 1" in text


def test_only_the_side_that_was_taken_counts() -> None:
    """Both sides of a where hold NaN: at the element that is bad, the second one was taken."""
    f = jg.compile(lambda x, y: np.where(x > 0, np.log(x), np.arcsin(y)))
    assert "op 'arcsin'" in refused(f, np.array([-1.0, 1.0]), np.array([2.0, 0.5]))


def test_rows_that_a_slice_leaves_out_do_not_count() -> None:
    f = jg.compile(lambda x, y: (np.log(x)[1:] + np.sqrt(y)[:-1]) * 2.0)
    assert "op 'sqrt'" in refused(f, np.array([-1.0, 1.0, 2.0]), np.array([-1.0, 1.0, -1.0]))


def test_sums_and_products_are_passed_through() -> None:
    """One bad element among many, found through a sum over rows and a matrix product."""
    f = jg.compile(lambda w, x: np.sum(np.log(x) @ w, axis=0))
    x = np.ones((200, 30))
    x[171, 7] = -1.0
    text = refused(f, np.ones((30, 4)), x)
    assert "op 'log' made NaN in 1 of 6000 values, in the forward pass" in text
    assert "through: matmul (test_nonfinite.py:" in text and "sum (test_nonfinite.py:" in text


def test_a_nan_of_infinities_is_traced_to_what_overflowed() -> None:
    f = jg.compile(lambda x: np.exp(x) / np.sum(np.exp(x)))
    text = refused(f, np.array([1.0, 1000.0]))
    assert "op 'exp' made infinity in 1 of 2 values" in text and "from 1 to 1000" in text and "divide" in text
    g = jg.compile(lambda x: np.exp(x) - np.exp(2 * x))
    assert "op 'exp' made infinity" in refused(g, np.array([800.0]))


def test_the_gradient_op_is_named_where_the_forward_values_are_sound() -> None:
    """x / norm(x) at 0 is NaN already in the forward pass; sqrt(x) is so only on the way back."""
    text = refused(jg.compile(jg.grad(lambda x: np.sum(np.sqrt(np.sum(x * x, axis=1))))), np.zeros((2, 3)))
    assert "in the gradient pass" in text and "test_nonfinite.py:" in text
    text = refused(jg.compile(jg.grad(lambda x: np.sum(x / np.sqrt(np.sum(x * x))))), np.zeros(3))
    assert "op 'divide' made NaN in 3 of 3 values, in the forward pass" in text


def test_an_argument_is_named_only_if_its_nan_arrives() -> None:
    f = jg.compile(lambda x, y: np.where(x == x, x, 0.0) + np.log(y))
    assert "op 'log' made NaN" in refused(f, np.array([np.nan, 1.0]), np.array([1.0, -1.0]))


def test_constants_and_variables_are_named_as_what_they_are() -> None:
    f = jg.compile(lambda x: x + np.array([1.0, np.nan]))
    assert "constant 'constant' of lambda holds NaN" in refused(f, np.ones(2))
    w = jg.Variable(np.array([np.nan]), name="w")
    assert "holds NaN" in refused(jg.compile(lambda x: x * w.read()), np.ones(1))


# -- in loops and branches -------------------------------------------------------------------------------------------


def test_the_op_within_a_loop_is_named_with_its_run() -> None:
    """The logarithm of what falls by 1 per step is NaN in the fourth one."""

    def step(x: Any, _: Any) -> Any:
        return x - 1.0, np.log(x)

    text = refused(jg.compile(lambda x: np.sum(jg.scan(step, x, np.zeros(6))[1])), np.array([2.5, 9.0]))
    assert "op 'log' made NaN in 1 of 2 values" in text and "from -0.5 to 6" in text
    assert "inside: run 4 of body of" in text and "scan(" in text and "through: sum (test_nonfinite.py:" in text


def test_loops_and_branches_that_hide_a_nan_are_no_fault() -> None:
    f = jg.compile(lambda x: jg.cond(x > 0, lambda: np.log(x), lambda: np.sqrt(-x)))
    assert f(np.float64(4.0)) == np.log(4.0) and f(np.float64(-4.0)) == 2.0
    g = jg.compile(lambda x, y: jg.cond(x > 0, lambda: np.sqrt(y), lambda: np.log(y)))
    text = refused(g, np.float64(-1.0), np.array([-2.0, 3.0]))
    assert "op 'log' made NaN" in text and "inside: run 1 of branches[" in text


def test_the_gradient_of_a_loop() -> None:
    def loss(x: Any) -> Any:
        return jg.fori_loop(0, 3, lambda _, s: np.sqrt(s), x)

    text = refused(jg.compile(jg.grad(loss)), np.float64(0.0))
    assert "in the gradient pass" in text or "inside: run" in text


# -- eager ops -------------------------------------------------------------------------------------------------------


def test_an_eager_op_is_named_as_it_runs() -> None:
    x = jg.asarray([1.0, -1.0])
    for run, name in ((lambda: np.log(x), "log"), (lambda: x / (x + 1.0), "divide"), (lambda: np.sqrt(x), "sqrt")):
        text = refused(run)
        assert f"op '{name}' made" in text and "run at test_nonfinite.py:" in text and "input 0: float64[" in text
    assert (x * 2.0).tolist() == [2.0, -2.0]


def test_a_nan_that_was_given_is_no_eager_ops_fault() -> None:
    x = jg.asarray([1.0, np.nan])
    assert np.isnan((x * 2.0).numpy()[1])


def test_the_gradient_on_a_tape_is_looked_at() -> None:
    x = jg.asarray([0.0, 4.0])
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.sum(np.sqrt(x))
    text = refused(lambda: tape.gradient(y, x))
    assert "made infinity" in text and "op '" in text


def test_eager_ops_are_looked_at_only_while_it_is_on() -> None:
    x = jg.asarray([-1.0])
    with jg.config(debug_nans=False), np.errstate(all="ignore"):
        assert np.isnan(np.log(x).numpy()[0])
    with pytest.raises(jg.NonFiniteError):
        np.log(x)


def test_a_scope_of_eager_ops_is_looked_at_as_a_whole() -> None:
    """What its results do not show is no fault there; an op that made what they show is named."""
    x = jg.asarray([1.0, -1.0])
    with jg.jit_scope():
        hidden = np.where(x > 0, np.log(x), 0.0)
    assert hidden.tolist() == [0.0, 0.0]
    with jg.jit_scope():
        shown = np.sqrt(x) * 2.0
    assert "op 'sqrt' made NaN in 1 of 2 values" in refused(lambda: shown.numpy())


def test_eager_ops_of_a_process_that_was_told_by_its_environment() -> None:
    code = """
import numpy as np, jitgrad as jg
try:
    np.log(jg.asarray([-1.0]))
except jg.NonFiniteError:
    print("named")
"""
    for value, said in (("1", "named\n"), ("0", "")):
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env={**os.environ, "JITGRAD_DEBUG_NANS": value},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert run.stdout == said
