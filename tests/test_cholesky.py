"""Our own factorization of positive definite matrices and its gradient: exact to rounding, the same bits for any number
of threads, NaN and refusals as LAPACK's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import lapack
from jitgrad.testing import check_gradients

Array = np.ndarray[Any, np.dtype[Any]]
SIZES = (33, 40, 80, 103, 128, 130, 150, 301)


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def positive(n: int, condition: float = 1e3) -> Array:
    """A symmetric matrix with eigenvalues between 1 and one over its condition."""
    q = np.linalg.qr(generator().standard_normal((n, n)))[0]
    a = (q * np.geomspace(1 / condition, 1, n)) @ q.T
    return (a + a.T) / 2


def by_formula(factor: Array, g: Array) -> Array:
    """The cotangent in extended precision, by substitution."""
    lower, n = factor.astype(np.longdouble), len(factor)
    half = np.tril(lower.T @ np.tril(g).astype(np.longdouble))
    half[np.diag_indices(n)] /= 2
    for _ in range(2):  # inv(L)' half, and of its transpose the same
        for r in range(n)[::-1]:
            half[r] = (half[r] - lower[r + 1 :, r] @ half[r + 1 :]) / lower[r, r]
        half = half.T
    return (half + half.T) / 2


def size_of(error: Any) -> float:
    """The Frobenius norm: the largest of all errors is a matter of luck, on each kind of processor another."""
    return float(np.sqrt(np.sum(np.asarray(error, np.longdouble) ** 2)))


@pytest.mark.quick
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("condition", [1e2, 1e10])
def test_a_factor_is_as_near_as_lapacks(n: int, condition: float) -> None:
    """The factor's product is the matrix to as many bits as LAPACK's, in extended precision."""
    a = positive(n, condition)
    errors = []
    for factor in (lapack.cholesky(a), np.linalg.cholesky(a)):
        exact = factor.astype(np.longdouble)
        errors.append(size_of(exact @ exact.T - a))
        assert not np.any(np.triu(factor, 1))
    assert errors[0] <= 2 * errors[1]


@pytest.mark.quick
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("condition", [1e2, 1e8])
def test_a_cotangent_is_as_near_as_by_solutions(n: int, condition: float) -> None:
    factor, g = np.linalg.cholesky(positive(n, condition)), generator().standard_normal((n, n))
    exact = by_formula(factor, g)
    inner = np.tril(factor.T @ np.tril(g))
    inner[np.diag_indices(n)] /= 2
    left = lapack.solve_triangular(factor.T, inner, False)
    whole = lapack.solve_triangular(factor.T, left.T, False)
    errors = [size_of(got - exact) for got in (lapack.cholesky_cotangent(factor, g), (whole + whole.T) / 2)]
    assert errors[0] <= 4 * errors[1]


@pytest.mark.quick
@pytest.mark.parametrize("n", SIZES)
def test_upper_triangles_are_not_read(n: int) -> None:
    a, g = positive(n), generator().standard_normal((n, n))
    nowhere = np.triu(np.full((n, n), np.nan), 1)
    factor = lapack.cholesky(a)
    np.testing.assert_array_equal(lapack.cholesky(np.tril(a) + nowhere), factor)
    got = lapack.cholesky_cotangent(factor + nowhere, np.tril(g) + nowhere)
    np.testing.assert_array_equal(got, lapack.cholesky_cotangent(factor, g))
    np.testing.assert_array_equal(got, got.T)


def test_bits_do_not_depend_on_threads() -> None:
    for n in (131, 300):
        a, g = positive(n), generator().standard_normal((n, n))
        made = []
        for threads in (1, 2, 3, 7):
            with jg.config(num_threads=threads):
                for _ in range(20):
                    factor = lapack.cholesky(a)
                    made.append((factor.tobytes(), lapack.cholesky_cotangent(factor, g).tobytes()))
        assert len(set(made)) == 1


def test_several_threads_call_at_once() -> None:
    a, g = positive(200), generator().standard_normal((200, 200))
    factor = lapack.cholesky(a)
    slope = lapack.cholesky_cotangent(factor, g)

    def call(_: int) -> bool:
        same = [lapack.cholesky(a), lapack.cholesky_cotangent(factor, g)]
        return np.array_equal(same[0], factor) and np.array_equal(same[1], slope)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(200)))


def test_limits_of_other_threads_do_not_part_who_owns_what() -> None:
    """Whoever begins a run says how many threads it may have, for all that ask later: those at work must not ask."""
    a, x = positive(300), np.ones(5)
    small = jg.compile(lambda x: np.sum(np.tanh(x) * x))
    step = jg.compile(jg.value_and_grad(lambda a: np.sum(np.linalg.cholesky(a) * 0.1)))
    with jg.config(num_threads=2):
        for _ in range(3):
            small(x)
            value, slope = step(a)
        ends = time.perf_counter() + 1

        def other() -> None:
            with jg.config(num_threads=1):
                while time.perf_counter() < ends:
                    small(x)
                    time.sleep(1e-5)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(other)
            while time.perf_counter() < ends:
                found = step(a)
                assert found[0] == value
                assert np.array_equal(found[1], slope)
            done.result()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("value", "place"),
    [(np.nan, (5, 5)), (np.nan, (170, 3)), (np.nan, (140, 137)), (np.inf, (5, 5)), (np.inf, (199, 199))],
)
def test_nan_and_infinities_spread_as_in_lapack(value: float, place: tuple[int, int]) -> None:
    a = positive(200)
    a[place] = value
    got, expected = lapack.cholesky(a), np.linalg.cholesky(a)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))


@pytest.mark.quick
@pytest.mark.parametrize("change", [lambda a: -a, lambda a: a - 0.1 * np.eye(len(a)), np.zeros_like, np.ones_like])
def test_what_is_not_positive_definite_is_refused(change: Callable[[Array], Array]) -> None:
    a = change(positive(200))
    for ask in (np.linalg.cholesky, lapack.cholesky, lambda a: lapack.cholesky(np.stack([positive(200), a]))):
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            ask(a)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_stacks_and_dtypes(dtype: str) -> None:
    a = np.stack([positive(140), 2 * positive(140)]).astype(dtype)
    g = generator().standard_normal(a.shape).astype(dtype)
    factor = lapack.cholesky(a)
    slope = lapack.cholesky_cotangent(factor, g)
    assert factor.dtype == slope.dtype == a.dtype
    rtol = 1e-9 if dtype == "f8" else 2e-3
    np.testing.assert_allclose(factor, np.linalg.cholesky(a), rtol, rtol)
    for k in range(2):
        np.testing.assert_array_equal(slope[k], lapack.cholesky_cotangent(factor[k], g[k]))
    assert lapack.cholesky_cotangent(factor[:0], g[:0]).shape == (0, 140, 140)


@pytest.mark.quick
def test_a_machine_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    a, g = positive(130), generator().standard_normal((130, 130))
    factor = lapack.cholesky(a)
    slope = lapack.cholesky_cotangent(factor, g)
    monkeypatch.setattr(lapack, "_own_cholesky", lambda: None)
    np.testing.assert_allclose(lapack.cholesky(a), factor, 1e-9, 1e-9)
    got = lapack.cholesky_cotangent(factor, g)
    np.testing.assert_allclose(got, slope, 1e-9, 1e-9 * np.max(np.abs(slope)))


@pytest.mark.quick
@pytest.mark.parametrize("n", [6, 40])
def test_gradients_of_a_factor_to_second_order(n: int) -> None:
    """Below and above the size from which the gradient is one operation: the same, to the second order."""
    base, directions = positive(n, 10.0), generator().standard_normal((3, n, n))

    def loss(t: Any) -> Any:
        a = base + 0.05 * np.sum(t[:, None, None] * (directions + np.swapaxes(directions, 1, 2)), axis=0)
        return np.sum(np.tanh(np.linalg.cholesky(a) + 0.1) * directions[0])

    check_gradients(loss, np.array([0.01, -0.02, 0.03]), rtol=1e-5)
    np.testing.assert_allclose(jg.compile(jg.grad(loss))(np.zeros(3)), jg.grad(loss)(np.zeros(3)), 1e-9, 1e-9)


@pytest.mark.quick
def test_the_gradient_is_one_operation() -> None:
    f = jg.compile(jg.grad(lambda a: np.sum(np.linalg.cholesky(a))))
    text = f.explain(positive(150)).clusters
    assert text.count("cholesky_cotangent(") == 1 and "solve_triangular" not in text


@pytest.mark.parametrize("nbytes", [32, 16])
def test_other_registers(nbytes: int) -> None:
    """Blocks of four rows on 16 registers, which every processor here has; and none: LAPACK's routines."""
    script = f"""
from jitgrad.compiler.machine import compilation
compilation.vector_bytes = lambda: {nbytes}
import numpy as np
from jitgrad import lapack
from jitgrad.compiler import triangles
assert (triangles.lanes() > 0) == ({nbytes} == 32 and compilation.has_fma())
for n in (35, 128, 133, 150):
    x = np.random.default_rng(0).standard_normal((2, n, n))
    factor = lapack.cholesky(x[0] @ x[0].T + np.eye(n))
    np.testing.assert_allclose(factor, np.linalg.cholesky(x[0] @ x[0].T + np.eye(n)), 1e-9, 1e-9)
    inner = np.tril(factor.T @ np.tril(x[1]))
    inner[np.diag_indices(n)] /= 2
    whole = np.linalg.solve(factor.T, np.linalg.solve(factor.T, inner).T)
    np.testing.assert_allclose(lapack.cholesky_cotangent(factor, x[1]), (whole + whole.T) / 2, 1e-7, 1e-7)
import jitgrad as jg
from benchmarks.workloads.gaussian_process import loss
f = jg.compile(jg.grad(loss))
args = np.array([0.1, 0.2, -1.0]), x[0, :, :3], x[0, 3]
np.testing.assert_allclose(f(*args), f.interpret(*args), 1e-9)
assert ("4 factors" in f.explain(*args).fusion) == (triangles.lanes() > 0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "JITGRAD_CACHE": "0"})
