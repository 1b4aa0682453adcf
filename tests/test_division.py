"""Quotients that have their divisor in common: which are found, what they become, and the bits of division."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import jitgrad as jg
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.divisors import shared_divisors
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.emission.rows import SECOND
from jitgrad.compiler.loopir.nests import (
    PARALLEL_VECTOR,
    Buffer,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Term,
)
from jitgrad.spec import DType

INDEX = Index((Term("i0"),))
TINY = np.finfo(np.float64).tiny


def _body(dtype: DType, *quotients: tuple[str, str, str]) -> tuple[Statement, ...]:
    loads = [Load(name, dtype, f"in{k}", INDEX) for k, name in enumerate("xyz")]
    made = [Let(name, dtype, "divide", tuple(args)) for name, *args in quotients]
    return (*loads, *made, *(Store(f"out{k}", INDEX, s.name, dtype) for k, s in enumerate(made)))


@pytest.mark.quick
def test_a_divisor_is_shared_where_it_divides_twice_in_one_row() -> None:
    f64 = np.dtype(np.float64)
    twice = _body(f64, ("a", "x", "z"), ("b", "y", "z"), ("c", "x", "y"))
    assert shared_divisors(Loop("i0", "n0", PARALLEL_VECTOR, twice)) == {"z"}
    two_rows = _body(f64, ("a", "x", "z"), ("a" + SECOND, "y", "z"))
    assert not shared_divisors(Loop("i0", "n0", PARALLEL_VECTOR, two_rows))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("dtype", "other", "slowly", "reciprocals"),
    [
        (np.float64, "z", True, True),
        (np.float64, "y", True, False),  # each divisor once
        (np.float64, "z", False, False),
        (np.float32, "z", True, False),
    ],
)
def test_quotients_by_one_divisor_share_its_reciprocal(
    dtype: type, other: str, slowly: bool, reciprocals: bool
) -> None:
    dt = np.dtype(dtype)
    buffers = [*(Buffer(f"in{k}", dt, "in") for k in range(3)), *(Buffer(f"out{k}", dt, "out") for k in range(2))]
    body = _body(dt, ("a", "x", "z"), ("b", "x", other))
    kernel = Kernel(tuple(buffers), ("n0",), (), (Loop("i0", "n0", PARALLEL_VECTOR, body),))
    module = ir.Module("kernel", True, has_avx512=True, divides_slowly=slowly)
    emit_kernel(module, kernel, "kernel", 64)
    text = str(module)
    assert (text.count('call <8 x double> @"llvm.x86.avx512.rcp14') > 0) == reciprocals
    assert ("fdiv" in text) != reciprocals


@jg.compile
def _quotients(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x / z, y / z


def _as_divided(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        expected = x / z, y / z
        for got, exact in zip(_quotients(x, y, z), expected, strict=True):
            is_rounded_once = ~(np.abs(exact) < TINY)
            assert np.array_equal(got[is_rounded_once], exact[is_rounded_once], equal_nan=True)
            assert np.array_equal(np.signbit(got)[~np.isnan(exact)], np.signbit(exact)[~np.isnan(exact)])
            assert np.max(np.abs(got - exact)[~is_rounded_once], initial=0.0) <= 5e-324


def test_special_values_come_out_as_of_a_division() -> None:
    values = [0.0, 1.0, np.inf, np.nan, 5e-324, 1e-310, TINY, 2.0, 3.0, 0.1, 1e300, 1e-300, np.finfo(float).max]
    both = np.array([*values, *(-v for v in values)])
    x, z = (grid.ravel() for grid in np.meshgrid(both, both))
    _as_divided(x, x[::-1].copy(), z)


def test_quotients_have_the_bits_of_division() -> None:
    rng = np.random.default_rng(5)
    x, y, z = rng.integers(0, 2**64, (3, 400_000), dtype=np.uint64).view(np.float64)
    _as_divided(x, y, z)
    significands = rng.uniform(1, 2, (2, 200_000))
    _as_divided(*significands, 2 - 2.0**-52 * rng.integers(2, 2**20, 200_000))
    _as_divided(significands[0] * significands[1], *significands)  # near exact ones


def test_exact_quotients_are_exact() -> None:
    whole, divisor = np.arange(1.0, 5001.0), np.arange(3.0, 5003.0)
    first, second = _quotients(whole * divisor, divisor, divisor)
    assert np.array_equal(first, whole)
    assert np.array_equal(second, np.ones(5000))


@pytest.mark.parametrize("n", [3, 5, 9, 17, 40])
@pytest.mark.parametrize("divisor", [None, 3.0, 7.0])
def test_quotients_that_are_compared_are_made_once(n: int, divisor: float | None) -> None:
    """A mean was divided by one kernel, and multiplied by a reciprocal in another, which found no maximum."""

    def largest(x: NDArray[Any]) -> Any:
        rows = np.mean(x, axis=1) if divisor is None else np.sum(x, axis=1) / divisor
        return np.max(rows) + np.max(np.mean(x, axis=0) / 3.0)

    f = jg.compile(jg.grad(largest))
    for seed in range(8):
        x = np.random.default_rng(seed).standard_normal((n, n))
        np.testing.assert_allclose(f(x), f.interpret(x), rtol=1e-14)


def test_quotients_beside_a_running_sum_are_those_of_other_kernels() -> None:
    """Its loop goes from element to element, and divides; the maximum's has lanes."""
    f = jg.compile(jg.grad(lambda x: np.max(x / 3.0) + np.sum(np.cumsum(x / 3.0) ** 2)))
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal(200)
        np.testing.assert_allclose(f(x), f.interpret(x), rtol=1e-9, atol=1e-12)
