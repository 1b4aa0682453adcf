"""Reads of one array at offsets chosen by an index: one load in place of one per slice, with the same elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

rng = np.random.default_rng(0)


def taps(x: Any, pad: int = 0, axis: int = 0) -> Any:
    """3 by 3 windows of the last two axes, stacked."""
    wide = np.pad(x, ((0, 0),) * (x.ndim - 2) + ((pad, pad),) * 2) if pad else x
    h, w = wide.shape[-2] - 2, wide.shape[-1] - 2
    return np.stack([wide[..., i : i + h, j : j + w] for i in range(3) for j in range(3)], axis)


stacks: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], int]] = {
    "windows": (taps, (4, 7, 21), 1),
    "windows with padding": (lambda x: taps(x, 1), (4, 7, 21), 1),
    "windows further in": (lambda x: taps(x, 1, 1), (4, 7, 21), 1),
    "with strides": (lambda x: np.stack([x[:, ::2], x[:, 1::2]]), (3, 8), 1),
    "backwards": (lambda x: np.stack([x[:, ::-1][:, :6], x[:, ::-1][:, 2:]]), (3, 8), 1),
    "rows rolled": (lambda x: np.roll(x, 2, axis=0) * 2.0, (5, 6), 1),
    "unequal parts": (lambda x: np.concatenate([x[3:5], x[:1], x[1:4]]), (5, 6), 1),
    "the innermost axis": (lambda x: np.stack([x[:, 1:], x[:, :-1]], -1), (3, 20), 2),
    "two arrays": (lambda x: np.stack([x, np.abs(x)]), (3, 8), 3),
    "different directions": (lambda x: np.stack([x, x.T]), (4, 4), 2),
    "gaps": (lambda x: np.pad(np.stack([x[1:], x[:-1]]), ((1, 1), (0, 0), (0, 0))), (4, 5), 2),
}


@pytest.mark.parametrize("name", stacks)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, bool])
def test_same_elements(name: str, dtype: Any) -> None:
    f, shape, _ = stacks[name]
    x = rng.normal(size=shape)
    x.flat[:4] = [np.nan, -0.0, np.inf, 5e-324]
    x = (x > 0) if dtype is bool else x.astype(dtype)
    compiled = jg.compile(f)
    np.testing.assert_array_equal(compiled(x), f(x))
    np.testing.assert_array_equal(np.signbit(compiled(x)), np.signbit(f(x)))


@pytest.mark.parametrize("name", stacks)
def test_loads(name: str) -> None:
    """One load, unless the index that chooses is that of the innermost loop, or chooses among different things."""
    f, shape, loads = stacks[name]
    kernels = jg.compile(f).explain(np.zeros(shape)).kernels
    assert sum(line.count("= in") for line in kernels.splitlines()) == loads


@pytest.mark.parametrize("name", stacks)
def test_gradients(name: str) -> None:
    f, shape, _ = stacks[name]
    x = rng.normal(size=shape)
    compiled = jg.compile(lambda x: np.sum(np.sin(f(x)) ** 2))
    np.testing.assert_allclose(jg.grad(compiled)(x), jg.grad(compiled).interpret(x), rtol=1e-12, atol=1e-12)


def test_a_chosen_element_is_read_once() -> None:
    def f(x: Any) -> Any:
        seen = taps(x)
        return np.sin(seen), seen * 2.0

    compiled, x = jg.compile(f), rng.normal(size=(4, 7, 21))
    for ours, theirs in zip(compiled(x), f(x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)
    assert compiled.explain(x).kernels.count("= in0[") == 1
