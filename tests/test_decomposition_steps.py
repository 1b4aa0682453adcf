"""Eigenvalues, singular values and QR factors of small matrices as steps of a cluster: NumPy's bits and errors, whoever
runs them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import bare
from jitgrad.testing import check_gradients

rng = np.random.default_rng(0)


def symmetric(*shape: int) -> Any:
    a = rng.normal(size=shape)
    return a + np.swapaxes(a, -1, -2)


def is_step(compiled: Any, *arguments: Any) -> bool:
    return "  factor " in compiled.explain(*arguments).fusion


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("stack", [(), (1,), (5,), (2, 3), (200,)])
@pytest.mark.parametrize("n", [1, 2, 3, 9, 32])
def test_bits_are_numpys(n: int, stack: tuple[int, ...], dtype: str, threads: int) -> None:
    a = symmetric(*stack, n, n).astype(dtype)
    before = jg.get_num_threads()
    jg.set_num_threads(threads)
    try:
        for uplo in ("L", "U"):
            compiled: Any = jg.compile(lambda a, uplo=uplo: tuple(np.linalg.eigh(a, uplo)))
            for _ in range(3):
                for got, wanted in zip(compiled(a), np.linalg.eigh(a, uplo), strict=True):
                    assert got.dtype == wanted.dtype
                    np.testing.assert_array_equal(got, wanted)
            assert is_step(compiled, a)
    finally:
        jg.set_num_threads(before)


def test_stacks_of_other_lengths_take_the_same_plan() -> None:
    compiled: Any = jg.compile(lambda a: np.linalg.eigh(a)[0] * 2)
    for count in (70, 71, 300, 3, 1000, 1):
        a = symmetric(count, 5, 5)
        np.testing.assert_array_equal(compiled(a), np.linalg.eigh(a)[0] * 2)


@pytest.mark.parametrize("n", [1, 4, 9])
def test_gradients(n: int) -> None:
    def loss(a: Any) -> Any:
        values, vectors = np.linalg.eigh(a @ np.swapaxes(a, -1, -2) + np.diag(np.arange(n)))
        return np.sum(np.log(values + 1)) + np.sum(vectors[..., 0] ** 4)

    a = rng.normal(size=(3, n, n))
    step: Any = jg.compile(jg.value_and_grad(loss))
    (value, slope), (expected, wanted) = step(a), step.interpret(a)
    np.testing.assert_allclose(value, expected, 1e-12)
    np.testing.assert_allclose(slope, wanted, 1e-8, 1e-8)
    check_gradients(loss, a)


def found(run: Any, a: Any) -> Any:
    """What a function gives, or the first line of its error."""
    try:
        return [np.asarray(x) for x in run(a)]
    except np.linalg.LinAlgError as error:
        return str(error).split("\n")[0]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_numbers_that_are_not_finite_are_numpys(n: int) -> None:
    compiled: Any = jg.compile(lambda a: tuple(np.linalg.eigh(a)))
    errors = 0
    for number in (np.nan, np.inf, -np.inf):
        for i, j in itertools.product(range(n), repeat=2):
            a = np.eye(n) * 2 + 0.1
            a[i, j] = number
            got, wanted = found(compiled, a), found(np.linalg.eigh, a)
            assert type(got) is type(wanted)
            errors += isinstance(wanted, str)
            np.testing.assert_equal(got, wanted)
    assert errors or n < 3, "NumPy has raised no error"


def test_an_error_names_the_line_and_the_next_call_is_sound() -> None:
    compiled: Any = jg.compile(lambda a: np.linalg.eigh(a)[0] * 2)
    for _ in range(5):
        with pytest.raises(np.linalg.LinAlgError, match=r"(?s)^Eigenvalues did not converge\n.*test_decomposition"):
            compiled(np.full((4, 4), np.nan))
        np.testing.assert_array_equal(compiled(np.eye(4)), 2.0)
        with np.errstate(all="ignore"):
            np.log(-np.ones(3))  # an invalid operation before is none of the step's
        np.testing.assert_array_equal(compiled(np.eye(4)), 2.0)


def test_larger_and_empty_matrices_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: Any = jg.compile(lambda a: np.linalg.eigh(a)[0] + 1)
    assert not is_step(compiled, np.eye(33))
    assert compiled(np.zeros((0, 3, 3))).shape == (0, 3)
    forget_loops()
    monkeypatch.setattr(bare, "_LINALG", None)
    try:
        assert not is_step(jg.compile(lambda a: np.linalg.eigh(a)[0] + 2), np.eye(3))
        assert not is_step(jg.compile(lambda a: np.linalg.qr(a)[0] + 2), np.eye(3))
    finally:
        forget_loops()


def forget_loops() -> None:
    bare.matrix_loop.cache_clear()
    bare.qr_loops.cache_clear()


FUNCTIONS: dict[str, Any] = {
    "eigvalsh": np.linalg.eigvalsh,
    "svd": lambda a: tuple(np.linalg.svd(a, full_matrices=False)),
    "only u": lambda a: np.linalg.svd(a, full_matrices=False)[0],
    "svdvals": lambda a: np.linalg.svd(a, compute_uv=False),
    "qr": lambda a: tuple(np.linalg.qr(a)),
    "only r": lambda a: np.linalg.qr(a)[1] * 2,
}
SHAPES = ((1, 1), (3, 3), (5, 2), (2, 5), (33, 6), (64, 32), (1, 3, 3), (7, 40, 20), (100, 8, 4), (2, 20, 1, 2))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_of_all_decompositions_are_numpys(name: str, dtype: str, threads: int) -> None:
    before, f = jg.get_num_threads(), FUNCTIONS[name]
    jg.set_num_threads(threads)
    try:
        for shape in SHAPES:
            *_, m, n = shape
            if name == "eigvalsh" and m != n:
                continue
            a = rng.normal(size=shape).astype(dtype)
            a = np.swapaxes(np.ascontiguousarray(np.swapaxes(a, -1, -2)), -1, -2)
            compiled: Any = jg.compile(lambda a: f(a))
            for _ in range(3):
                for got, wanted in zip(results(compiled(a)), results(f(a)), strict=True):
                    assert got.dtype == wanted.dtype
                    np.testing.assert_array_equal(got, wanted)
            is_wide_qr = m < n and name in ("qr", "only r")
            assert is_step(compiled, a) != is_wide_qr
    finally:
        jg.set_num_threads(before)


def results(made: Any) -> tuple[Any, ...]:
    return tuple(map(np.asarray, made if isinstance(made, tuple) else (made,)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_that_are_not_finite_and_singular_matrices_are_numpys(name: str) -> None:
    f = FUNCTIONS[name]
    compiled: Any = jg.compile(lambda a: f(a))
    infinities = () if name in ("svd", "only u") else (np.inf, -np.inf)  # LAPACK may not return
    for number in (np.nan, *infinities, -0.0, 1.0):
        for i, j in itertools.product(range(3), repeat=2):
            a = np.ones((3, 3))
            a[i, j] = number
            got, wanted = (found(lambda a, run=run: results(run(a)), a) for run in (compiled, f))
            assert type(got) is type(wanted)
            np.testing.assert_equal(got, wanted)


@pytest.mark.parametrize("name", ["svd", "svdvals"])
def test_errors_of_singular_values_name_the_line(name: str) -> None:
    f = FUNCTIONS[name]
    compiled: Any = jg.compile(lambda a: f(a * 2))
    for _ in range(3):
        with pytest.raises(np.linalg.LinAlgError, match=r"(?s)^SVD did not converge\n.*test_decomposition_steps"):
            compiled(np.full((5, 4), np.nan))
        for got, wanted in zip(results(compiled(np.eye(5, 4))), results(f(np.eye(5, 4) * 2)), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", ["svd", "qr", "eigvalsh"])
def test_stacks_and_matrices_of_other_extents(name: str) -> None:
    f = FUNCTIONS[name]
    compiled: Any = jg.compile(lambda a: f(a + 1))
    for count, m, n in ((70, 5, 5), (71, 6, 6), (300, 66, 66), (3, 33, 33), (1, 32, 32), (40, 2, 2), (0, 3, 3)):
        a = symmetric(count, m, n)
        for got, wanted in zip(results(compiled(a)), results(f(a + 1)), strict=True):
            np.testing.assert_allclose(got, wanted, 1e-9, 1e-11)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (2, 5), (6, 4, 3), (40, 20)])
def test_inverses_by_singular_values(shape: tuple[int, ...], dtype: str) -> None:
    a = rng.normal(size=shape).astype(dtype)
    a[..., -1] = a[..., 0]
    compiled: Any = jg.compile(lambda a: np.linalg.pinv(a, rcond=1e-3))
    bound = 1e-4 if dtype == "f4" else 1e-11
    np.testing.assert_allclose(compiled(a), np.linalg.pinv(a, rcond=1e-3), bound, bound)
    assert is_step(compiled, a)
    zero = np.zeros_like(a)
    np.testing.assert_array_equal(compiled(zero), np.linalg.pinv(zero))


def test_least_squares_decompose_once() -> None:
    a, b = rng.normal(size=(8, 3)), rng.normal(size=8)
    compiled: Any = jg.compile(lambda a, b: np.linalg.lstsq(a, b)[0])
    whole: Any = jg.compile(lambda a, b: tuple(np.linalg.lstsq(a, b, rcond=None)))
    np.testing.assert_allclose(compiled(a, b), np.linalg.lstsq(a, b)[0], 1e-12)
    for got, wanted in zip(whole(a, b), np.linalg.lstsq(a, b), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-10)
    assert whole.explain(a, b).fusion.count("  factor ") == 1


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (2, 5, 3)])
def test_gradients_of_all_decompositions(shape: tuple[int, ...]) -> None:
    def loss(a: Any) -> Any:
        u, s, vh = np.linalg.svd(a, full_matrices=False)
        q, r = np.linalg.qr(a)
        squares = np.linalg.eigvalsh(np.swapaxes(a, -1, -2) @ a)
        parts = np.sum((u * s[..., None, :]) @ vh * a) + np.sum(np.linalg.svd(a, compute_uv=False) ** 3)
        return parts + np.sum(np.sin(q) + 0.0) + np.sum(r**3) + np.sum(squares**2) + np.sum(np.linalg.pinv(a) ** 2)

    a = rng.normal(size=shape)
    step: Any = jg.compile(jg.value_and_grad(loss))
    (value, slope), (expected, wanted) = step(a), step.interpret(a)
    np.testing.assert_allclose(value, expected, 1e-12)
    np.testing.assert_allclose(slope, wanted, 1e-7, 1e-7)
    check_gradients(loss, a)
