"""Regions of small kernels over the same rows: which kernels they take, and that nothing but the time changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import stages
from jitgrad.compiler.freezing import regions
from jitgrad.compiler.freezing.bind import BoundCluster

Loss = Callable[..., Any]


@pytest.fixture(autouse=True)
def _small_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of what repeats itself would hold all of these chains, and be no small ones."""
    monkeypatch.setattr(stages, "repeats_itself", lambda program, numbers: False)


def chain(x: Any) -> Any:
    for _ in range(120):
        x = np.sin(x) * 1.01 + 0.1
    return np.sum(x)


def by_row(x: Any) -> Any:
    """Rows of four columns."""
    for _ in range(120):
        x = np.sin(x) * 1.01 + 0.1
    return np.sum(x * x[:, ::-1])


def neighbours(x: Any) -> Any:
    """Half way, each element reads the one before it."""
    for _ in range(50):
        x = np.sin(x) * 1.01 + 0.1
    x = x + np.roll(x, 1)
    for _ in range(50):
        x = np.sin(x) * 1.01 + 0.1
    return np.sum(x)


def square(x: Any) -> Any:
    """As many columns as rows, read the other way round."""
    for _ in range(50):
        x = np.sin(x) * 1.01 + 0.1
    x = x * x.T
    for _ in range(50):
        x = np.sin(x) * 1.01 + 0.1
    return np.sum(x)


def _given(loss: Loss) -> Any:
    shape = {chain: (2000,), by_row: (700, 4), neighbours: (2000,), square: (60, 60)}[loss]
    return np.random.default_rng(0).standard_normal(shape)


def _names(loss: Loss) -> list[str]:
    x = _given(loss)
    (stage, args), *_ = jg.compile(jg.value_and_grad(loss)).stages(x)
    clusters = [step for step in stage.executable(args).bound.steps if isinstance(step, BoundCluster)]
    return [name for cluster in clusters for name in cluster.names]


@pytest.mark.parametrize("loss", [chain, by_row, neighbours, square])
def test_values_and_gradients(loss: Loss) -> None:
    x = _given(loss)
    fn = jg.compile(jg.value_and_grad(loss))
    value, grad = fn(x)
    expected, wanted = fn.interpret(x)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(grad, wanted, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize("loss", [chain, by_row])
def test_kernels_in_a_row_are_regions(loss: Loss) -> None:
    names = _names(loss)
    assert sum(name.startswith("region") for name in names) == 2
    assert sum(name.startswith("kernel") for name in names) <= 3


@pytest.mark.parametrize("loss", [neighbours, square])
def test_what_needs_other_rows_begins_another(loss: Loss) -> None:
    taken = [name.split("_")[1:] for name in _names(loss) if name.startswith("region")]
    assert len(taken) > 2
    assert all(len(numbers) < 4 for numbers in taken)


def test_large_kernels_and_lost_memory_end_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as small, jg.config(cache=False):
        small.setattr(regions, "SMALL_CHUNKS", 1)
        assert not any(name.startswith("region") for name in _names(chain))
    monkeypatch.setattr(regions, "MOST_LOST", 20_000)
    with jg.config(cache=False):
        assert sum(name.startswith("region") for name in _names(chain)) > 2


def test_bits_do_not_depend_on_threads() -> None:
    x = _given(chain)
    before = jg.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            jg.set_num_threads(threads)
            results.append(jg.compile(jg.value_and_grad(chain))(x))
    finally:
        jg.set_num_threads(before)
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


def one_row(x: Any) -> Any:
    """Half way, each row reads the third."""
    for _ in range(50):
        x = np.sin(x) * 1.01 + 0.1
    x = x + x[2]
    for _ in range(50):
        x = np.sin(x) * 1.01 + 0.1
    return np.sum(x)


@pytest.mark.parametrize("columns", [60, 16])
def test_one_row_that_all_read(columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((60, columns))
    fn = jg.compile(jg.value_and_grad(one_row))
    for _ in range(20):
        np.testing.assert_allclose(fn(x)[1], fn.interpret(x)[1], rtol=1e-11)


@pytest.mark.parametrize("n", [40, 100, 1000, 1025, 3000])
def test_chunks_that_begin_with_whole_lines(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few elements some chunks have none."""
    x = np.random.default_rng(0).standard_normal(n)
    monkeypatch.setattr("jitgrad.compiler.freezing.chunks.CHUNK_NANOSECONDS", 500)
    made = []
    for elements in (1, 10**9):
        monkeypatch.setattr("jitgrad.compiler.freezing.freeze.LONG_CHUNK", elements)
        with jg.config(cache=False):
            made.append(jg.compile(jg.value_and_grad(lambda x: chain(x)))(x))
    (value, gradient), (expected, wanted) = made
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    np.testing.assert_array_equal(gradient, wanted)


def test_a_kernel_too_small_for_chunks_joins_those_before_it() -> None:
    """The last of the gradient has the rest of the chain."""

    def loss(x: Any) -> Any:
        for _ in range(41):
            x = np.sin(x) * 1.01 + 0.1
        return np.sum(x)

    (stage, args), *_ = jg.compile(jg.value_and_grad(loss)).stages(np.ones(1000))
    (cluster,) = (step for step in stage.executable(args).bound.steps if isinstance(step, BoundCluster))
    alone = [k for name, k in zip(cluster.names, cluster.steps, strict=True) if name.startswith("kernel")]
    assert all(words[3] == 1 for words in alone) and not cluster.names[-1].startswith("kernel")
