"""Sweeps: searches in sorted vectors and sums over stretches of a vector, as kernels, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg

SIZES = [(50, 5), (300, 31), (300, 1), (7, 7), (1, 1), (200, 190), (1000, 300), (40, 33)]


def kernels(run: Any, *args: Any) -> str:
    """What a function's kernels look like; nothing of it may run in the interpreter."""
    explanation = run.explain(*args)
    assert "interpreter" not in explanation.clusters
    return str(explanation.kernels)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "?"])
@pytest.mark.parametrize("mode", ["valid", "same", "full"])
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_convolutions_are_numpys(name: str, mode: str, dtype: str) -> None:
    rng, function = np.random.default_rng(0), getattr(np, name)
    run = jg.compile(lambda x, w: function(x, w, mode))
    for n, k in SIZES:
        x, w = (np.abs(rng.standard_normal(size) * 5).astype(dtype) for size in (n, k))
        expected = function(x, w, mode)
        found = run(x, w)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "f4" else 1e-12)


def test_a_convolution_reads_its_stretches_where_they_lie() -> None:
    rng = np.random.default_rng(0)
    step = jg.compile(jg.grad(lambda x, w: np.sum(np.convolve(x, w, "valid") ** 2), argnums=(0, 1)))
    x, w = rng.standard_normal(500), rng.standard_normal(9)
    text = kernels(step, x, w)
    assert "in columns(" in text  # the result, and what goes back to x, by one kernel
    assert "k in vector(" in text  # the few numbers that go back to w, each a long sum
    assert "take" not in step.explain(x, w).program
    out = np.convolve(x, w, "valid")
    np.testing.assert_allclose(step(x, w)[0], np.convolve(2 * out, w[::-1], "full"), rtol=1e-10)
    np.testing.assert_allclose(step(x, w)[1], np.correlate(x, 2 * out, "valid")[::-1], rtol=1e-10)


def test_what_is_not_finite_stays_in_its_windows() -> None:
    x = np.arange(100.0)
    x[50], x[80] = np.inf, np.nan
    found = jg.compile(lambda x: np.convolve(x, np.array([1.0, -2.0, 3.0]), "valid"))(x)
    np.testing.assert_array_equal(np.isnan(found), np.isin(np.arange(98), [78, 79, 80]))
    np.testing.assert_array_equal(np.isinf(found), np.isin(np.arange(98), [48, 49, 50]))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "?"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 64, 1000])
def test_searches_are_numpys(count: int, dtype: str, side: str) -> None:
    rng = np.random.default_rng(count)
    run = jg.compile(lambda a, v: np.searchsorted(a, v, side))
    for shape in [(50,), (3, 7), (1,), (), (0,), (1000,)]:
        table, values = (np.abs(rng.standard_normal(s) * 5) for s in ((count,), shape))
        if dtype[0] == "f":
            table[-2:] = np.nan
            table[: count // 3] = np.where(np.arange(count // 3) % 2, 0.0, -0.0)
            values = np.where(rng.random(shape) < 0.3, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape), values)
        table, values = np.sort(table.astype(dtype)), values.astype(dtype)
        found = run(table, values)
        np.testing.assert_array_equal(found, np.searchsorted(table, values, side))
        assert found.dtype == np.int64
    assert "columns(" in kernels(run, table, values)


@pytest.mark.quick
def test_a_side_that_is_none_is_refused() -> None:
    f = jg.compile(lambda a, v: np.searchsorted(a, v, side="middle"))
    with pytest.raises(ValueError, match=r"'left' or 'right', got 'middle'[^$]*test_sweeps[^$]*hint: 'left' is in"):
        f(np.arange(4.0), np.ones(3))


@pytest.mark.quick
def test_coordinates_of_an_integral_are_as_many_as_heights() -> None:
    f = jg.compile(lambda y, x: np.trapezoid(y, x))
    with pytest.raises(jg.errors.ShapeError, match=r"trapezoid needs 5 coordinates[^$]*test_sweeps[^$]*hint: leave"):
        f(np.ones(5), np.ones(4))
