"""Of zeros of both signs the compiled functions take the one that NumPy takes, where NumPy always takes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

Fn = Callable[..., Any]
DTYPES = (np.float32, np.float64)
POOLS = ([0.0, -0.0], [0.0, -0.0, -1.0, -2.0], [0.0, -0.0, 1.0, 2.0], [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0])

of_elements: dict[str, Fn] = {
    "maximum": np.maximum,
    "minimum": np.minimum,
    "maximum with 0": lambda x, y: np.maximum(x, 0),
    "maximum of 0": lambda x, y: np.maximum(0, x),
    "maximum with -0.0": lambda x, y: np.maximum(x, -0.0),
    "minimum with 0": lambda x, y: np.minimum(x, 0.0),
    "maximum with a number": lambda x, y: np.maximum(x, 1.0),
    "maximum with NaN": lambda x, y: np.maximum(x, np.nan),
    "relu": lambda x, y: jg.nn.relu(x),
    "relu of a product": lambda x, y: np.maximum(x * y, 0),
    "clip at 0": lambda x, y: np.clip(x, 0, 1),
    "clip at -0.0": lambda x, y: np.clip(x, -1, -0.0),
    "clip at NaN": lambda x, y: np.clip(x, np.nan, 1),
}


def _drawn(pool: list[float], shape: tuple[int, ...], dtype: type, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array(pool, dtype), shape)


def _assert_same(ours: Any, expected: Any) -> None:
    np.testing.assert_array_equal(ours, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(ours)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("name", of_elements)
def test_extremes_of_elements_have_numpys_zeros(name: str) -> None:
    f = of_elements[name]
    compiled = jg.compile(f)
    for dtype in DTYPES:
        for shape in ((), (1,), (7,), (67,), (3, 5), (40, 33), (0,)):
            for seed, pool in enumerate(POOLS):
                x, y = (_drawn(pool, shape, dtype, seed + k) for k in (0, 9))
                with np.errstate(invalid="ignore"):
                    _assert_same(compiled(x, y), f(x, y))


@pytest.mark.parametrize("f", [np.max, np.min])
def test_extremes_of_columns_have_the_last_zero(f: Fn) -> None:
    compiled = jg.compile(lambda x: f(x, axis=0))
    of_stack = jg.compile(lambda x: f(np.stack([x, -x, x]), axis=0))
    for dtype in DTYPES:
        for shape in ((2, 3), (9, 5), (33, 8), (200, 3), (7, 1000), (40_000, 6)):
            for seed, pool in enumerate(POOLS):
                x = _drawn(pool, shape, dtype, seed)
                _assert_same(compiled(x), f(x, axis=0))
                _assert_same(of_stack(x), f(np.stack([x, -x, x]), axis=0))


@pytest.mark.parametrize("f", [np.max, np.min])
def test_extremes_of_rows_are_equal_whichever_zero_they_are(f: Fn) -> None:
    for axis in (1, None):
        compiled = jg.compile(lambda x, axis=axis: f(x, axis=axis))
        for shape in ((5, 3), (5, 33), (70, 64), (3, 1000)):
            for seed, pool in enumerate(POOLS):
                x = _drawn(pool, shape, np.float32, seed)
                np.testing.assert_array_equal(compiled(x), f(x, axis=axis))
