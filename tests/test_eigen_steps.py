"""Eigenvalues of small matrices as steps of a cluster: NumPy's bits and errors, whoever runs them."""

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
    return "(eigh_joined)" in compiled.explain(*arguments).fusion


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
        with pytest.raises(np.linalg.LinAlgError, match=r"(?s)^Eigenvalues did not converge\n.*test_eigen_steps"):
            compiled(np.full((4, 4), np.nan))
        np.testing.assert_array_equal(compiled(np.eye(4)), 2.0)
        with np.errstate(all="ignore"):
            np.log(-np.ones(3))  # an invalid operation before is none of the step's
        np.testing.assert_array_equal(compiled(np.eye(4)), 2.0)


def test_larger_and_empty_matrices_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: Any = jg.compile(lambda a: np.linalg.eigh(a)[0] + 1)
    assert not is_step(compiled, np.eye(33))
    assert compiled(np.zeros((0, 3, 3))).shape == (0, 3)
    bare.eigen_loop.cache_clear()
    monkeypatch.setattr(bare, "_LINALG", None)
    try:
        assert not is_step(jg.compile(lambda a: np.linalg.eigh(a)[0] + 2), np.eye(3))
    finally:
        bare.eigen_loop.cache_clear()
