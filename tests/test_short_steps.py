"""Short steps of loops are few kernels, whose sums are complete within; results are the interpreter's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest
from numpy.typing import NDArray

import jitgrad as jg

Array = NDArray[Any]
Fn = Callable[..., Any]


def forward(p: Any, like: Any) -> Any:
    """The forward algorithm of a hidden Markov model, by probabilities."""

    def step(state: Any, row: Any) -> Any:
        a, total = state
        a = (a @ p) * row
        z = np.sum(a)
        return (a / z, total + np.log(z)), ()

    n = p.shape[0]
    return jg.scan(step, (np.ones(n) / n, 0.0), like)[0][1]


def by_logarithms(t: Any, rows: Any) -> Any:
    def step(a: Any, row: Any) -> Any:
        b = a[:, None] + t
        m = np.max(b, axis=0)
        return np.log(np.sum(np.exp(b - m), axis=0)) + m + row, a

    a, before = jg.scan(step, rows[0], rows[1:])
    return np.mean(a) + np.mean(before[::2] ** 2)


def whitened(t: Any, rows: Any) -> Any:
    """Each step divides by a deviation from a mean: sums of sums, and elements behind them."""

    def step(a: Any, row: Any) -> Any:
        a = a @ t + row
        a = a - np.mean(a)
        return a / np.sqrt(np.mean(a * a) + 0.1), np.max(a)

    return jg.scan(step, rows[0], rows)


def counted(t: Any, rows: Any) -> Any:
    """Counts and places in a table, by positions of the step."""

    def step(i: Any, state: Any) -> Any:
        table, a = state
        k = i % rows.shape[1]
        a = np.tanh(a + table[k] * np.sum(a))
        return table + 0.1 * np.outer(a, a) @ t, a

    return jg.fori_loop(0, rows.shape[0], step, (t, rows[0]))


def while_small(t: Any, rows: Any) -> Any:
    def more(state: Any) -> Any:
        return np.sum(state[0] ** 2) > 1e-2

    def step(state: Any) -> Any:
        a, n = state
        return np.sin(a @ t) * 0.5 + rows[0] * 0.0, n + 1

    return jg.while_loop(more, step, (rows[0], 0))


FUNCTIONS = [forward, by_logarithms, whitened, counted, while_small]


def given(n: int, steps: int = 7) -> tuple[Array, Array]:
    rng = np.random.default_rng(n)
    p = np.exp(rng.standard_normal((n, n)))
    return p / np.sum(p, axis=1, keepdims=True), np.exp(0.3 * rng.standard_normal((steps, n)))


def loss_of(fn: Fn) -> Fn:
    def loss(*args: Any) -> Any:
        return sum(np.mean(np.sin(leaf)) for leaf in optree.tree_leaves(fn(*args)))

    return loss


def check(fn: Fn, *args: Array) -> None:
    compiled = jg.compile(fn)
    for made, expected in zip(
        optree.tree_leaves(compiled(*args)), optree.tree_leaves(compiled.interpret(*args)), strict=True
    ):
        np.testing.assert_allclose(made, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 31, 64, 65])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_and_gradients(fn: Fn, n: int) -> None:
    check(fn, *given(n))
    check(jg.value_and_grad(loss_of(fn), (0, 1)), *given(n))


def bodies(fn: Fn, *args: Array) -> list[str]:
    """What stands in the bodies of the loops, one line each."""
    text = str(jg.compile(fn).explain(*args).fusion)
    return [line.strip() for line in text.splitlines() if line.startswith("      ")]


def test_a_step_is_a_kernel_and_its_product() -> None:
    lines = bodies(forward, *given(9))
    assert [line.split(":")[0] for line in lines] == ["product 0", "kernel 1 (serial, 1 axes)"]


def test_steps_back_are_too() -> None:
    lines = bodies(jg.grad(forward, (0, 1)), *given(9))
    assert sum(line.startswith("kernel") for line in lines) == sum(line.startswith("product") for line in lines) == 2


def test_what_a_step_sums_is_read_in_the_same_kernel() -> None:
    lines = bodies(by_logarithms, *given(9))
    assert len(lines) == 1 and "maximum" in lines[0] and "log" in lines[0]


def test_rows_that_are_apart_stay_so() -> None:
    def recurrent(w: Any, xs: Any) -> Any:
        return jg.scan(lambda h, x: (np.tanh(x + h @ w), ()), np.zeros((32, 32)), xs)[0]

    w = np.random.default_rng(0).standard_normal((32, 32)) / 6
    lines = bodies(recurrent, w, np.ones((3, 32, 32)))
    assert any("kernel 1 (parallel" in line for line in lines)


def test_longer_steps_are_shared_out() -> None:
    assert any("(parallel" in line for line in bodies(whitened, *given(65)))
    assert not any("(parallel" in line for line in bodies(whitened, *given(64)))


def test_tables_of_a_step_are_added_to() -> None:
    """A scatter is no part of another kernel, and looks for its own rows."""
    rows = np.arange(12.0).reshape(4, 3)

    def fn(table: Any, order: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            picked = table[np.arange(3)[:, None], (k + np.array([[0, 1], [1, 1], [3, 0]])) % 4]
            return np.sin(c + np.sum(picked**2)), ()

        return jg.scan(step, 0.5, order, checkpoint_every=2)[0]

    check(jg.grad(fn), rows.T / 9, np.array([3, 0, 1, 1, 2]))


def test_the_state_and_its_rows_are_no_copies_of_one_another() -> None:
    """A product reads the state where it is, though it is stacked and given back in another shape."""

    def fn(w: Any, x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            g = (h[None, :] @ w)[0]
            return g, (h, g[None, :, None], row * g)

        return jg.scan(step, x[0], x)

    w, x = given(6)
    check(fn, w, x)
    check(jg.value_and_grad(loss_of(fn), (0, 1)), w, x)
    last, (before, after, _) = jg.compile(fn)(w, x)
    np.testing.assert_array_equal(before[1:], after[:-1, 0, :, 0])
    before[:] = 0
    np.testing.assert_array_equal(last, after[-1, 0, :, 0])
