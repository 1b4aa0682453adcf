"""Fourier transforms as steps of a cluster: NumPy's bits, whoever runs them, and where they are not steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import bare
from jitgrad.compiler.products.transform_steps import transform_chunks
from jitgrad.testing import check_gradients

rng = np.random.default_rng(0)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "fft": np.fft.fft,
    "ifft": np.fft.ifft,
    "rfft": lambda z: np.fft.rfft(z.real),
    "rfft forward": lambda z: np.fft.rfft(z.real, norm="forward"),
    "irfft": lambda z: np.fft.irfft(z, 2 * z.shape[-1] - 1),
    "irfft forward": lambda z: np.fft.irfft(z, norm="forward", n=2 * max(1, z.shape[-1] - 1)),
    "there and back": lambda z: np.fft.ifft(np.fft.fft(z)),
    "two axes": np.fft.fft2,
    "shifted": lambda z: np.fft.fftshift(np.fft.fft(z + 1) * 2),
    "kept": lambda z: (lambda f: (f, np.fft.ifft(f[..., ::-1]), f + 1))(np.fft.fft(z)),
}


def complex_numbers(*shape: int) -> Any:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def steps(compiled: Any, *arguments: Any) -> int:
    """How many transforms are steps."""
    return str(compiled.explain(*arguments).fusion).count("  transform ")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (1, 7), (5, 64), (3, 101), (40, 300), (2, 3, 9)])
@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_are_numpys(name: str, dtype: str, shape: tuple[int, ...], threads: int) -> None:
    z, run = complex_numbers(*shape).astype(dtype), FUNCTIONS[name]
    compiled: Any = jg.compile(run)
    before = jg.get_num_threads()
    jg.set_num_threads(threads)
    try:
        for _ in range(3):
            for got, wanted in zip(as_tuple(compiled(z)), as_tuple(compiled.interpret(z)), strict=True):
                assert got.dtype == wanted.dtype
                np.testing.assert_array_equal(got, wanted)
    finally:
        jg.set_num_threads(before)
    assert steps(compiled, z) >= 1


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("n", [1, 4, 5, 100])
def test_a_convolution_with_its_gradients_is_one_cluster(n: int) -> None:
    def loss(x: Any, w: Any) -> Any:
        return np.sum(np.fft.irfft(np.fft.rfft(x) * np.fft.rfft(w), n) ** 3)

    step: Any = jg.compile(jg.value_and_grad(loss, (0, 1)))
    x, w = rng.normal(size=n), rng.normal(size=n)
    value, slopes = step(x, w)
    expected, wanted = step.interpret(x, w)
    np.testing.assert_allclose(value, expected, 1e-12)
    np.testing.assert_allclose(slopes, wanted, 1e-10, 1e-10)
    assert steps(step, x, w) == 6
    between = [line for line in step.explain(x, w).clusters.split("\n") if line.lstrip().startswith("interpreted")]
    assert all("= constant(" in line for line in between)
    check_gradients(loss, x, w)


def test_numbers_that_are_not_finite_come_out_as_in_numpy() -> None:
    for number in (np.nan, np.inf, -np.inf, -0.0):
        x = rng.normal(size=(2, 12))
        x[0, 3] = number
        compiled: Any = jg.compile(lambda x: np.fft.rfft(x + 0.0))
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(compiled(x), np.fft.rfft(x))


def test_strided_and_changed_shapes() -> None:
    compiled: Any = jg.compile(lambda x: np.fft.irfft(np.fft.rfft(x) * 0.5, x.shape[-1]) + 1)
    for n in (8, 9, 128, 129, 130, 1000, 1001):
        x = rng.normal(size=(n, 6)).T
        for array in (x, x[::2], x[:, ::-1]):
            np.testing.assert_allclose(compiled(array), array * 0.5 + 1, 1e-12, 1e-12)


def test_what_has_other_axes_or_no_elements_is_numpys() -> None:
    z = complex_numbers(6, 4)
    assert steps(jg.compile(lambda z: np.fft.fft(z, axis=0)), z) == 0
    empty: Any = jg.compile(lambda z: np.fft.fft(z + 1))
    assert empty(complex_numbers(0, 4)).shape == (0, 4)


def test_without_numpys_loops_nothing_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bare.transform_loops.cache_clear()
    monkeypatch.setattr(bare, "_FOURIER", None)
    try:
        assert bare.transform_loops("fft") == ()
        assert steps(jg.compile(lambda z: np.fft.fft(z - 3)), complex_numbers(3)) == 0
    finally:
        bare.transform_loops.cache_clear()


def test_rows_are_cut_by_their_work() -> None:
    assert transform_chunks(1, 10**6) == 1
    assert transform_chunks(1000, 4) == 1
    assert 1 < transform_chunks(100, 256) <= 64
    assert transform_chunks(10**6, 256) == 64


def test_a_profile_names_them() -> None:
    compiled: Any = jg.compile(lambda x: np.abs(np.fft.rfft(x)))
    x = rng.normal(size=50)
    compiled(x)
    with jg.profile() as found:
        compiled(x)
    assert "pairs_rfft" in str(found.table())
