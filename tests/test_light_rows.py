"""Functions of one number per short row, which are made of many rows at once: where they stand, and that results are
those of the interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg

SENTENCE = "its rows are short"


def sparse_loss(w: Any, b: Any, at: Any, values: Any, y: Any) -> Any:
    z = (values * w[at]).sum(1) + b
    return np.logaddexp(0.0, -y * z).mean() + 0.01 * (w * w).sum()


def sparse_rows(n: int, length: int) -> list[Any]:
    rng = np.random.default_rng(0)
    at, values = rng.integers(0, 100, (n, length)), rng.normal(size=(n, length))
    return [rng.normal(size=100), 0.1, at, values, np.sign(rng.normal(size=n))]


def cross_entropy(x: Any, labels: Any) -> Any:
    shifted = x - x.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return -np.take_along_axis(logs, labels[:, None], 1).mean()


def of_places(kernels: str, op: str) -> list[bool]:
    """For each kernel with an op: whether its loop over vectors of elements is the outermost one."""
    found = [kernel for kernel in kernels.split("def kernel")[1:] if f"{op}(" in kernel]
    return ["in parallel_vector(" in kernel for kernel in found]


@pytest.mark.parametrize("length", [3, 8, 10, 40])
def test_functions_of_short_rows_are_made_in_lanes(length: int) -> None:
    arrays = sparse_rows(200, length)
    explained = jg.compile(jg.value_and_grad(sparse_loss)).explain(*arrays)
    assert of_places(explained.kernels, "sigmoid") == [True]
    assert of_places(explained.kernels, "softplus") == [True]
    assert SENTENCE in explained.fusion or length < 8  # the shortest rows are taken apart before


@pytest.mark.parametrize(("n", "length"), [(200, 70), (4, 10)])
def test_of_long_rows_and_of_few_they_stay(n: int, length: int) -> None:
    """Rows longer than a pattern knows, and rows that fill no lanes."""
    explained = jg.compile(jg.value_and_grad(sparse_loss)).explain(*sparse_rows(n, length))
    assert of_places(explained.kernels, "sigmoid") == [False]
    assert SENTENCE not in explained.fusion


def test_rows_that_are_work_themselves_stay() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(100, 30)), rng.integers(0, 30, 100)]
    explained = jg.compile(jg.value_and_grad(cross_entropy)).explain(*arrays)
    assert SENTENCE not in explained.fusion


@pytest.mark.parametrize("length", [8, 10, 40, 70])
@pytest.mark.parametrize("n", [9, 1000, 30_000])
def test_equal_to_the_interpreter_for_any_number_of_threads(n: int, length: int) -> None:
    f = jg.compile(jg.value_and_grad(sparse_loss, argnums=(0, 1)))
    arrays = sparse_rows(n, length)
    expected = f.interpret(*arrays)
    before, found = jg.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            jg.set_num_threads(threads)
            value, (w, b) = f(*arrays)
            found.append((value.tobytes(), w.tobytes(), b.tobytes()))
    finally:
        jg.set_num_threads(before)
    assert len(set(found)) == 1
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(w, expected[1][0], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(b, expected[1][1], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("classes", [8, 10, 16, 30])
def test_cross_entropy_of_few_classes(classes: int) -> None:
    rng = np.random.default_rng(2)
    x, labels = rng.normal(size=(500, classes)), rng.integers(0, classes, 500)
    f = jg.compile(jg.value_and_grad(cross_entropy))
    value, g = f(x, labels)
    expected_value, expected = f.interpret(x, labels)
    np.testing.assert_allclose(value, expected_value, rtol=1e-13)
    np.testing.assert_allclose(g, expected, rtol=1e-12, atol=1e-17)


def test_another_number_of_rows_compiles_nothing() -> None:
    f = jg.compile(jg.value_and_grad(sparse_loss))
    for n in (100, 150):
        f(*sparse_rows(n, 10))
    before = f.cache_info().compiles
    f(*sparse_rows(777, 10))
    assert f.cache_info().compiles == before
