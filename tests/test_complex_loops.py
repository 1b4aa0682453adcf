"""Loops, branches and calls over complex numbers have kernels: their states are pairs of real arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import optree
import pytest

import jitgrad as jg
from jitgrad.testing import check_gradients

Array = npt.NDArray[Any]
Fn = Callable[..., Any]


def drawn(*shape: int, dtype: Any = np.complex128) -> Array:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def rotating(z: Any, xs: Any) -> Any:
    """State, items, constants and stacks are complex, others are not."""

    def step(state: Any, x: Any) -> Any:
        s, n = state
        s = s * np.exp(0.1j * x.real) / (1 + np.abs(x)) + np.conj(x)
        return (s, n + 1), (s, np.abs(s), n, z * s)

    return jg.scan(step, (z, 0), xs)


def backwards(z: Any, xs: Any) -> Any:
    return jg.scan(lambda s, x: (s @ (x[:, None] * s[None, :]) + z, s[::-1]), z, xs, reverse=True)


def counted(z: Any, xs: Any) -> Any:
    def step(i: Any, state: Any) -> Any:
        return np.where(i % 2 == 0, state * 1j, state + xs[i]) * 0.9

    return jg.fori_loop(0, xs.shape[0], step, z)


def until_small(z: Any, xs: Any) -> Any:
    def step(state: Any) -> Any:
        s, n = state
        return s * (0.6 + 0.3j) + 0.001 * xs[0] * s, n + 1

    return jg.while_loop(lambda state: np.sum(np.abs(state[0])) > 0.5, step, (z, 0))


def nested(z: Any, xs: Any) -> Any:
    def outer(s: Any, x: Any) -> Any:
        s = jg.fori_loop(0, 3, lambda i, u: u * 0.5j + x, s)
        return s, np.real(s)

    return jg.scan(outer, z, xs)


def branching(z: Any, xs: Any) -> Any:
    def step(s: Any, x: Any) -> Any:
        return jg.cond(np.sum(np.real(x)) > 0, lambda: s * x, lambda: s - 1j * x), ()

    return jg.scan(step, z, xs)[0]


def inside_alone(z: Any, xs: Any) -> Any:
    """No complex number crosses the border of the loop."""

    def step(s: Any, x: Any) -> Any:
        w = np.exp(1j * s) * x
        return np.abs(w) + np.imag(w * w), ()

    return jg.scan(step, np.real(z), np.abs(xs))[0]


def given_back(z: Any, xs: Any) -> Any:
    """A state that a step leaves, one that it exchanges, and an item that it hands on."""
    return jg.scan(lambda s, x: ((s[1], s[0], x), s[0] + x), (z, z * 1j, z), xs)


FUNCTIONS = [rotating, backwards, counted, until_small, nested, branching, inside_alone, given_back]


def loss_of(fn: Fn) -> Fn:
    def loss(z: Any, xs: Any) -> Any:
        leaves = optree.tree_leaves(fn(z, xs))
        return sum(np.sum(np.sin(np.abs(leaf - (0.3 + 0.1j)))) for leaf in leaves)

    return loss


def interpreted(f: Any, *args: Any) -> list[str]:
    """The ops that run in NumPy."""
    lines = f.explain(*args).clusters.splitlines()
    found = [line.split(" = ")[1].split("(")[0] for line in lines if line.startswith("interpreted")]
    return [name for name in found if name != "constant"]


@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values(fn: Fn, dtype: Any) -> None:
    args = drawn(3, dtype=dtype), drawn(5, 3, dtype=dtype)
    f = jg.compile(fn)
    tolerance = 1e-5 if dtype == np.complex64 else 1e-13
    for made, wanted in zip(optree.tree_leaves(f(*args)), optree.tree_leaves(f.interpret(*args)), strict=True):
        assert made.dtype == wanted.dtype
        np.testing.assert_allclose(made, wanted, rtol=tolerance, atol=tolerance)
    assert not interpreted(f, *args)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients(fn: Fn) -> None:
    args = drawn(3) * 0.5, drawn(5, 3) * 0.5
    loss = loss_of(fn)
    f = jg.compile(jg.value_and_grad(loss, (0, 1)))
    for made, wanted in zip(optree.tree_leaves(f(*args)), optree.tree_leaves(f.interpret(*args)), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-11, atol=1e-12)
    assert not interpreted(f, *args)


def test_gradients_are_those_of_differences() -> None:
    def of_parts(re: Any, im: Any, xs: Any) -> Any:
        return loss_of(rotating)(re + 1j * im, xs * (1 - 0.5j))

    z = drawn(3)
    check_gradients(of_parts, z.real, z.imag, np.linspace(-1, 1, 12).reshape(4, 3))


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_any_number_of_steps(steps: int) -> None:
    f = jg.compile(rotating)
    z, xs = drawn(3), drawn(steps, 3)
    for made, wanted in zip(optree.tree_leaves(f(z, xs)), optree.tree_leaves(f.interpret(z, xs)), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-13)


def test_a_body_with_what_has_no_rule_is_right_too() -> None:
    def fn(z: Any, xs: Any) -> Any:
        return jg.scan(lambda s, x: (np.sqrt(s) + x, np.log(s + 2)), z, xs)

    f = jg.compile(fn)
    z, xs = drawn(3), drawn(5, 3)
    for made, wanted in zip(optree.tree_leaves(f(z, xs)), optree.tree_leaves(f.interpret(z, xs)), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-13)


def test_special_values() -> None:
    numbers = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan])
    z = np.empty(36, complex)
    z.real, z.imag = np.repeat(numbers, 6), np.tile(numbers, 6)
    f = jg.compile(lambda z: jg.scan(lambda s, x: (s * x, np.conj(s) + x), z, np.stack([z, z[::-1], z])))
    for made, wanted in zip(f(z), f.interpret(z), strict=True):
        np.testing.assert_array_equal(made, wanted)
