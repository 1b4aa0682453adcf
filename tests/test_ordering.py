"""Sorts: stable whatever NumPy's own do, and made once where values and order are both asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.rules.orders import COUNTED, MOST_PAIRS
from jitgrad.ops.ordering import order_along, ready_order, sorted_along
from jitgrad.testing import check_gradients

rng = np.random.default_rng(0)
ARRAYS: dict[str, Callable[..., Any]] = {
    "apart": lambda shape: rng.standard_normal(shape) * 100,
    "ties": lambda shape: np.round(rng.standard_normal(shape) * 3),
    "zeros of both signs": lambda shape: np.copysign(rng.integers(0, 2, shape), rng.standard_normal(shape)),
    "NaNs": lambda shape: np.where(rng.random(shape) < 0.3, np.nan, rng.standard_normal(shape)),
}


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "u4", "i2", "?", "c16"])
@pytest.mark.parametrize("shape", [(500,), (200,), (30, 100), (100, 30), (7, 80, 5), (0, 100), (100, 0)])
@pytest.mark.parametrize("name", ARRAYS)
def test_sorts_are_stable(name: str, shape: tuple[int, ...], dtype: str) -> None:
    with np.errstate(invalid="ignore"):
        x = ARRAYS[name](shape).astype(dtype)
    for axis in range(x.ndim):
        order = np.argsort(x, axis, kind="stable")
        np.testing.assert_array_equal(order_along(x, axis), order)
        np.testing.assert_array_equal(ready_order(x.dtype, x.shape, axis)(x), order)
        found, expected = sorted_along(x, axis), np.sort(x, axis, kind="stable")
        np.testing.assert_array_equal(found, expected)
        if x.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sort_with_its_gradient_is_one_argsort(axis: int) -> None:
    weights = rng.standard_normal((70, 80))
    step: Any = jg.compile(jg.value_and_grad(lambda x: np.sum(np.sort(x, axis) * weights)))
    x = np.round(rng.standard_normal((70, 80)) * 5)
    value, slope = step(x)
    order = np.argsort(x, axis, kind="stable")
    expected = np.zeros_like(x)
    np.put_along_axis(expected, order, weights, axis)
    np.testing.assert_array_equal(slope, expected)
    np.testing.assert_allclose(value, np.sum(np.sort(x, axis) * weights))
    text = step.explain(x).program
    assert text.count("argsort(") == 1
    assert " sort(" not in text


def test_a_sort_alone_stays_a_sort() -> None:
    run = jg.compile(lambda x: (np.sort(x, 0), np.argsort(x, 1)))
    text = run.explain(np.ones((40, 50))).program
    assert " sort(" in text
    assert text.count("argsort(") == 1


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "i4", "u4"])
@pytest.mark.parametrize(
    "shape", [(1,), (2,), (9,), (COUNTED,), (5, 7), (2, 20, 3), (4, COUNTED), (65, 2), (0, 5), (5, 0)]
)
@pytest.mark.parametrize("name", ARRAYS)
def test_short_axes_are_sorted_in_kernels(name: str, shape: tuple[int, ...], dtype: str) -> None:
    with np.errstate(invalid="ignore"):
        x = ARRAYS[name](shape)
        x[rng.random(shape) < 0.1] = np.inf
        x = x.astype(dtype)
    for axis in range(x.ndim):
        run: Any = jg.compile(lambda x, axis=axis: (np.sort(x, axis), np.argsort(x, axis)))
        expected = np.sort(x, axis, kind="stable"), np.argsort(x, axis, kind="stable")
        for got, wanted in zip(run(x), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
            if dtype[0] == "f":
                np.testing.assert_array_equal(np.signbit(got)[got == 0], np.signbit(wanted)[wanted == 0])
        n = x.shape[axis]
        is_counted = 0 < n * x.size <= MOST_PAIRS and n <= COUNTED and max(shape) <= 64
        assert ("sort(" in run.explain(x).program) != is_counted


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_short_sorts(threads: int) -> None:
    def loss(x: Any, w: Any) -> Any:
        return np.sum(np.sort(x, -1) ** 2 * w) + np.sum(np.median(x, axis=0) ** 3)

    step: Any = jg.compile(jg.value_and_grad(loss, (0, 1)))
    with jg.config(num_threads=threads):
        for dtype in ("f8", "f4"):
            x = np.round(rng.standard_normal((30, 11)) * 4).astype(dtype)
            w = rng.standard_normal(11).astype(dtype)
            tolerance = 1e-12 if dtype == "f8" else 1e-4
            for got, wanted in zip(step(x, w)[1], step.interpret(x, w)[1], strict=True):
                np.testing.assert_allclose(got, wanted, tolerance, tolerance)
    check_gradients(loss, rng.permutation(np.arange(36.0)).reshape(4, 9), rng.standard_normal(9))


@pytest.mark.parametrize("shape", [(COUNTED + 1,), (40, 11), (65, 3)])
def test_longer_axes_and_many_rows_are_sorted_by_numpy(shape: tuple[int, ...]) -> None:
    text = jg.compile(lambda x: np.sort(x)).explain(np.ones(shape)).program
    assert " sort(" in text
