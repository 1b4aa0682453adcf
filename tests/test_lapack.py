"""Routines on larger matrices against NumPy's, and programs in which all questions about a matrix share its factors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import jitgrad as jg
from jitgrad import lapack
from jitgrad.compiler import library_triangles
from tests.processors import needs_registers

Array = npt.NDArray[Any]


SHAPES = [(40, 40), (3, 50, 50), (2, 2, 33, 33), (150, 150), (3, 0, 0), (0, 40, 40)]
DTYPES = ["f4", "f8", "c8", "c16"]


def matrices(shape: tuple[int, ...], dtype: str) -> Array:
    """Matrices that are well conditioned, and whose factorization exchanges rows."""
    rng = np.random.default_rng(sum(shape))
    a = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    return (a + 3 * shape[-1] ** 0.5 * np.eye(shape[-1])[::-1]).astype(dtype)


def close(got: Array, expected: Array) -> None:
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    rtol = 1e-5 if got.dtype.char in "fF" else 1e-11
    size = np.max(np.abs(expected), initial=0)
    np.testing.assert_allclose(got, expected, rtol, rtol * size if np.isfinite(size) else 0)


@pytest.mark.quick
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_factors_answer_is_what_numpy_says(shape: tuple[int, ...], dtype: str) -> None:
    a = matrices(shape, dtype)
    b = matrices(shape, dtype)[..., : shape[-1] // 2]
    factors = lapack.factor(a)
    close(lapack.solve_factored(*factors, b, False), np.linalg.solve(a, b))
    close(lapack.solve_factored(*factors, b, True), np.linalg.solve(np.swapaxes(a, -1, -2), b))
    close(lapack.inverse_of_factors(*factors, a.dtype), np.linalg.inv(a))
    assert lapack.solve_factored(*factors, b[..., :0], False).shape == (*shape[:-1], 0)
    for got, expected in zip(lapack.slogdet_of_factors(*factors, a.dtype), np.linalg.slogdet(a), strict=True):
        close(got, np.asarray(expected))
    small = a[..., :8, :8]
    close(lapack.det_of_factors(*lapack.factor(small), a.dtype), np.asarray(np.linalg.det(small)))


@pytest.mark.quick
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("columns", [0, 1, 3])
def test_triangular_systems_read_one_triangle(shape: tuple[int, ...], dtype: str, lower: bool, columns: int) -> None:
    a, b = matrices(shape, dtype), matrices(shape, dtype)[..., :columns]
    a = a + (4 * shape[-1] * np.eye(shape[-1])).astype(dtype)
    triangle = np.tril(a) if lower else np.triu(a)
    other = np.where(triangle == 0, np.nan, a).astype(dtype)
    close(lapack.solve_triangular(other, b, lower), np.linalg.solve(triangle, b))
    close(lapack.solve_triangular(other, b, lower, transposed=True), np.linalg.solve(np.swapaxes(triangle, -1, -2), b))


@pytest.mark.quick
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_nan_and_infinities_reach_what_is_solved_after_them(lower: bool, transposed: bool) -> None:
    a = matrices((45, 45), "f8") + 100 * np.eye(45)
    b = a[:, :1].copy()
    for value in (np.nan, np.inf):
        b[20] = value
        x = lapack.solve_triangular(a, b, lower, transposed)[:, 0]
        touched = ~np.isfinite(x)
        assert touched.tolist() == [k >= 20 if lower != transposed else k <= 20 for k in range(45)]


@pytest.mark.quick
@pytest.mark.parametrize("n", [1, 3, 16, 33, 46])
@pytest.mark.parametrize("more", [0, 13, 65])
@pytest.mark.parametrize("transposed", [False, True])
def test_many_columns_are_solved_for_as_well_as_by_lapack(n: int, more: int, transposed: bool) -> None:
    """The remainder is as small as that of NumPy's solution, in extended precision, with rows that are exchanged."""
    rng, columns = np.random.default_rng(n), -(-4096 // n) + more
    assert lapack.is_wide(n, columns)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, columns))
    turned = a.T if transposed else a
    exact = turned.astype(np.longdouble)
    errors = [
        np.linalg.norm((exact @ x - b).astype(np.float64))
        for x in (lapack.solve_factored(*lapack.factor(a), b, transposed), np.linalg.solve(turned, b))
    ]
    assert errors[0] <= 4 * errors[1] + 1e-14


@pytest.mark.quick
@pytest.mark.parametrize("n", [5, 37])
@pytest.mark.parametrize("columns", [849, 1000])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_many_columns_of_triangles(n: int, columns: int, lower: bool, dtype: str) -> None:
    """Of stacks, too, and of right sides that are not in C order; one triangle is read."""
    a = matrices((3, n, n), dtype) + (100 * np.eye(n)).astype(dtype)
    b = np.random.default_rng(0).standard_normal((3, columns, n)).astype(dtype).mT
    triangle = np.tril(a) if lower else np.triu(a)
    other = np.where(triangle == 0, np.nan, a).astype(dtype)
    close(lapack.solve_triangular(other, b, lower), np.linalg.solve(triangle, b))
    close(lapack.solve_triangular(other, b, lower, transposed=True), np.linalg.solve(triangle.mT, b))


@pytest.mark.quick
def test_many_columns_have_the_same_bits_for_any_number_of_threads() -> None:
    a, b = matrices((50, 50), "f8"), np.random.default_rng(0).standard_normal((50, 1000))
    factors, made = lapack.factor(a), []
    for threads in (1, 2, 5):
        with jg.config(num_threads=threads):
            made += [lapack.solve_factored(*factors, b, turned).tobytes() for turned in (False, True)]
    assert made[:2] * 3 == made


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(40, 40), (2, 130, 130), (1, 0, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_cholesky_reads_the_lower_triangle(shape: tuple[int, ...], dtype: str) -> None:
    a = matrices(shape, dtype)
    a = a @ np.swapaxes(a, -1, -2)
    upper = np.triu(np.full(shape, np.nan), 1).astype(dtype)
    got = lapack.cholesky(np.tril(a) + upper)
    close(got, np.linalg.cholesky(a))
    assert not np.any(np.triu(got, 1))


@pytest.mark.quick
def test_singular_matrices() -> None:
    a = np.ones((2, 70, 70)) + np.eye(70) * [[[1.0]], [[0.0]]]
    factors = lapack.factor(a)
    sign, logarithm = lapack.slogdet_of_factors(*factors, a.dtype)
    assert (sign.tolist(), logarithm[1]) == ([1.0, 0.0], -np.inf)
    assert lapack.det_of_factors(*factors, a.dtype)[1] == 0
    for ask in (
        lambda: lapack.solve_factored(*factors, a[..., :1], False),
        lambda: lapack.inverse_of_factors(*factors, a.dtype),
        lambda: lapack.solve_triangular(np.tril(a) - np.eye(70) * [[[0.0]], [[1.0]]], a, True),
    ):
        with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
            ask()
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        lapack.cholesky(-np.eye(130))


def test_arrays_of_integers_of_32_bits() -> None:
    """SciPy's library has them: the same answers by its routines, rows exchanged and all."""
    script = """
import numpy as np
from jitgrad import blas_library, lapack
blas_library._in_numpy = lambda: None
assert lapack._integer() == np.dtype("i4")
a = np.random.default_rng(0).standard_normal((3, 70, 70))
factors = lapack.factor(a)
assert factors[1].dtype == np.int64
np.testing.assert_allclose(lapack.solve_factored(*factors, a[..., :5], True),
                           np.linalg.solve(np.swapaxes(a, -1, -2), a[..., :5]), rtol=1e-8, atol=1e-10)
np.testing.assert_allclose(lapack.slogdet_of_factors(*factors, a.dtype), np.linalg.slogdet(a), rtol=1e-12)
np.testing.assert_allclose(lapack.inverse_of_factors(*factors, a.dtype), np.linalg.inv(a), rtol=1e-8, atol=1e-10)
t = np.tril(a) + 100 * np.eye(70)
np.testing.assert_allclose(lapack.solve_triangular(t, a[..., :2], True), np.linalg.solve(t, a[..., :2]), rtol=1e-10)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# -- programs ------------------------------------------------------------------------------------------------


def likelihood(covariance: Any, x: Any) -> Any:
    """Of normal vectors, and the size of the precision."""
    solved = np.linalg.solve(covariance, x)
    return np.sum(x * solved) + np.linalg.slogdet(covariance)[1] + np.sum(np.linalg.inv(covariance.T) ** 2)


def called(f: Any, *args: Any) -> Counter[str]:
    """How often routines of linear algebra stand in what is run."""
    return Counter(re.findall(r" = (lu\w*|solve|inv|det|slogdet)\(", f.explain(*args).clusters))


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_matrix_is_factored_once(dtype: str) -> None:
    a = matrices((80, 80), dtype)
    args = (a @ a.T + np.eye(80, dtype=dtype), a[:, :3])
    f = jg.compile(jg.value_and_grad(likelihood, argnums=(0, 1)))
    assert called(f, *args) == {"lu": 1, "lu_solve": 2, "lu_inv": 1}
    (value, slopes), (expected, wanted) = f(*args), f.interpret(*args)
    rtol = 2e-4 if dtype == "f4" else 1e-9
    np.testing.assert_allclose(value, expected, rtol)
    for got, want in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol, rtol * np.max(np.abs(want)))


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(20, 20), (300, 20, 20), (0, 80, 80)], ids=str)
def test_small_matrices_are_not_factored_apart(shape: tuple[int, ...]) -> None:
    a = matrices(shape, "f8")
    f = jg.compile(jg.grad(lambda a: np.sum(np.linalg.solve(a, a[..., :1])) + np.sum(np.linalg.slogdet(a)[1])))
    assert not any(name.startswith("lu") for name in called(f, a))


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("n, columns", [(4, 9000), (9, 500), (40, 200)])
def test_many_columns_are_solved_for_by_factors(n: int, columns: int) -> None:
    """The gradient solves with the same ones; few columns of a small matrix are left to NumPy."""
    a, b = matrices((n, n), "f8"), np.random.default_rng(0).standard_normal((n, columns))
    f = jg.compile(jg.value_and_grad(lambda a, b: np.sum(np.sin(np.linalg.solve(a, b))), argnums=(0, 1)))
    assert called(f, a, b) == {"lu": 1, "lu_solve": 2}
    assert called(f, a, b[:, :63])["lu"] == (n > 32)
    (value, slopes), (expected, wanted) = f(a, b), f.interpret(a, b)
    np.testing.assert_allclose(value, expected, 1e-11)
    for got, want in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-9, 1e-9 * np.max(np.abs(want)))


@pytest.mark.quick
def test_complex_matrices_and_stacks() -> None:
    for a in (matrices((70, 70), "c16"), matrices((3, 70, 70), "f8")):
        f = jg.compile(lambda a: (np.linalg.solve(a.mT, a[..., :2]), np.linalg.inv(a.mT), np.linalg.det(a / 30)))
        assert called(f, a) == {"lu": 2, "lu_solve": 1, "lu_inv": 1, "lu_det": 1}
        for got, want in zip(f(a), f.interpret(a), strict=True):
            np.testing.assert_allclose(got, want, 1e-9, 1e-9 * np.max(np.abs(want)))


@pytest.mark.quick
def test_a_singular_matrix_tells_the_line() -> None:
    with pytest.raises(np.linalg.LinAlgError, match=r"Singular matrix\n  call: solve,[^$]*lu_solve[^$]*test_lapack"):
        jg.compile(lambda a, b: np.linalg.solve(a, b))(np.ones((90, 90)), np.ones(90))


@pytest.mark.quick
@pytest.mark.parametrize("columns", [1, 5])
def test_a_transposed_triangle_is_not_copied(columns: int) -> None:
    from jitgrad.scipy.linalg import cho_solve

    a = matrices((70, 70), "f8")
    args = (np.linalg.cholesky(a @ a.T + 70 * np.eye(70)), a[:, :columns])
    f = jg.compile(jg.value_and_grad(lambda c, b: np.sum(np.sin(cho_solve((c, True), b))), argnums=(0, 1)))
    text = f.explain(*args).clusters
    assert (text.count(" = solve_triangular("), text.count(" = solve_turned(")) == (2, 2)
    (value, slopes), (expected, wanted) = f(*args), f.interpret(*args)
    np.testing.assert_allclose(value, expected, 1e-12)
    for got, want in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-9, 1e-12)


# -- the same bits for any number of threads ---------------------------------------------------------------------------


THREADED: dict[str, Callable[[Array, Array], Any]] = {
    "slogdet": lambda a, b: np.linalg.slogdet(a)[1],
    "det": lambda a, b: np.linalg.det(a / 15),
    "inv": lambda a, b: np.sum(np.linalg.inv(a) ** 2),
    "solve": lambda a, b: np.sum(np.linalg.solve(a, b) ** 2),
    "solve for one": lambda a, b: np.sum(np.linalg.solve(a, b[:, 0]) ** 2),
    "cholesky": lambda a, b: np.sum(np.sin(np.linalg.cholesky(a @ a.T))),
    "eigh": lambda a, b: np.sum(np.sin(np.linalg.eigh(a + a.T)[1])),
    "qr": lambda a, b: np.sum(np.sin(np.linalg.qr(a)[0])),
    "svd": lambda a, b: np.sum(np.linalg.svd(a, compute_uv=False) ** 1.5),
    "pinv": lambda a, b: np.sum(np.sin(np.linalg.pinv(a))),
}


@pytest.mark.parametrize("name", THREADED)
@pytest.mark.parametrize("rows", [300, 600])
def test_bits_do_not_depend_on_threads(name: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((2, rows, rows))
    found = jg.compile(jg.value_and_grad(THREADED[name], argnums=(0, 1)))
    results = []
    for threads in (1, 2, 3):
        with jg.config(num_threads=threads), threadpool_limits(threads, user_api="blas"):
            value, gradients = found(a, b)
            results.append([np.array(x).tobytes() for x in (value, *gradients)])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("factor", [np.linalg.cholesky, lapack._library_cholesky])
def test_bits_of_large_cholesky_factors_do_not_depend_on_threads(factor: Callable[[Array], Array]) -> None:
    a = np.random.default_rng(0).standard_normal((1100, 1100))
    a = a @ a.T + 1100 * np.eye(1100)
    compiled, results = jg.compile(np.linalg.cholesky), []
    for threads in (1, 2, 3):
        with jg.config(num_threads=threads), threadpool_limits(threads, user_api="blas"):
            found = compiled(a) if factor is np.linalg.cholesky else factor(a.copy())
            results.append(found.tobytes())
    assert results[0] == results[1] == results[2]


def test_bits_of_its_gradient_do_not_depend_on_threads_where_the_library_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on processors for which there is no code of our own: without multiply-adds, or with registers of 16 bytes."""
    monkeypatch.setattr(lapack, "_own_triangles", lambda: None)
    a, g = np.random.default_rng(0).standard_normal((2, 600, 600))
    factor, results = np.linalg.cholesky(a @ a.T + 600 * np.eye(600)), set()
    for threads in (1, 2, 3):
        with jg.config(num_threads=threads), threadpool_limits(threads, user_api="blas"):
            results.add(lapack.cholesky_cotangent(factor, g).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [64, 700])
def test_large_systems_are_solved_by_columns_on_our_threads(columns: int, transposed: bool) -> None:
    a, b = matrices((1, 700, 700), "f8")[0], np.random.default_rng(1).standard_normal((700, columns))
    factors = lapack.factor(a)
    close(lapack.solve_factored(*factors, b, transposed), np.linalg.solve(a.T if transposed else a, b))
    close(lapack.inverse_of_factors(*factors, a.dtype), np.linalg.inv(a))
    whole = library_triangles.solve_triangle(a + 700 * np.eye(700), b, True, transposed)
    triangle = np.tril(a) + 700 * np.eye(700)
    close(whole, np.linalg.solve(triangle.T if transposed else triangle, b))


def test_the_library_has_its_threads_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(np.linalg.LinAlgError):
            lapack.inv(np.zeros((40, 40)))
        with library_triangles.one_thread():
            assert {pool["num_threads"] for pool in _numpys_pools()} == {1}
        assert {pool["num_threads"] for pool in _numpys_pools()} == {2}


def _numpys_pools() -> list[dict[str, Any]]:
    return [pool for pool in threadpool_info() if pool["user_api"] == "blas" and "numpy" in pool["filepath"]]
