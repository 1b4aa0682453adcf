"""complex_as_pairs(): kernels for complex numbers, special values as in NumPy, islands that are not worth it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitgrad as jg
from jitgrad.compiler.complex_pairs import complex_as_pairs
from jitgrad.compiler.driver.pools import SMALL_BYTES
from jitgrad.testing import check_gradients

Array = npt.NDArray[Any]
Fn = Callable[..., Any]

SPECIAL = (0.0, -0.0, 1.0, -2.5, 0.3, 300.0, np.inf, -np.inf, np.nan, 1e-3)


def drawn(*shape: int, dtype: str = "c16") -> Array:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def special(dtype: str) -> Array:
    """All pairs of special numbers, of the largest and of the smallest normal ones."""
    limits = np.finfo(dtype)
    numbers = np.array([*SPECIAL, limits.max, -limits.max / 3, limits.tiny, -np.log(limits.max) * 1.05])
    z = np.empty(len(numbers) ** 2, dtype)
    z.real, z.imag = np.repeat(numbers, len(numbers)), np.tile(numbers, len(numbers))
    return z


def interpreted(f: Any, *args: Any) -> list[str]:
    """The ops that run in NumPy."""
    lines = f.explain(*args).clusters.splitlines()
    return [line.split(" = ")[1].split("(")[0] for line in lines if line.startswith("interpreted")]


# -- values ----------------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize(
    ("fn", "count", "eps"),
    [
        (np.divide, 2, 0),
        (np.conjugate, 1, 0),
        (np.negative, 1, 0),
        (np.exp, 1, 2),
        (np.add, 2, 0),
        (lambda z: np.abs(z) + 0j, 1, 1),
        (lambda a, b: (a == b) + 2 * (a != b) + 0j, 2, 0),
        (lambda z: np.isnan(z) + 2 * np.isinf(z) + 4 * np.isfinite(z) + 0j, 1, 0),
    ],
)
def test_special_values_are_numpys(fn: Fn, count: int, eps: float, dtype: str) -> None:
    """NaN, infinities and zeros with their signs; finite parts to so many units of rounding."""
    z = special(dtype)
    args = (np.repeat(z, len(z)), np.tile(z, len(z)))[:count] if count > 1 else (z,)
    f = jg.compile(lambda *args: (np.real(fn(*args)), np.imag(fn(*args))))
    assert set(interpreted(f, *args)) <= {"pair_of", "constant"}
    with np.errstate(all="ignore"):
        expected = fn(*args)
    for got, want in zip(f(*args), (expected.real, expected.imag), strict=True):
        assert got.dtype == want.dtype
        same = (got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want)
        near = np.isfinite(got) & np.isfinite(want) & (want != 0)
        with np.errstate(all="ignore"):
            near &= np.abs(got - want) <= eps * np.spacing(np.abs(want))
        wrong = np.flatnonzero(~(same | near))
        # exp(+-0 - tiny i) may be -0 where C keeps the sign of what is below the smallest number
        assert len(wrong) <= (1 if fn is np.exp else 0), [(a[wrong[:5]], got[wrong[:5]], want[wrong[:5]]) for a in args]


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["c16", "c8"])
def test_products_are_written_out(dtype: str) -> None:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i, every product rounded, also in squares."""
    z = special(dtype)
    x, y = np.repeat(z, len(z)), np.tile(z, len(z))
    f = jg.compile(lambda x, y: (np.real(x * y), np.imag(x * y), np.real(np.square(x)), np.imag(np.square(x))))
    with np.errstate(all="ignore"):
        expected = (
            x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real,
            x.real * x.real - x.imag * x.imag, x.real * x.imag + x.imag * x.real,
        )  # fmt: skip
        sizes = [np.abs(x) * np.abs(y)] * 2 + [np.abs(x) ** 2] * 2
    eps = np.finfo(dtype).eps
    for got, want, size in zip(f(x, y), expected, sizes, strict=True):
        assert (np.isnan(got) == np.isnan(want)).all()
        finite = np.isfinite(want) & np.isfinite(got)
        assert (got[~finite & ~np.isnan(want)] == want[~finite & ~np.isnan(want)]).all()
        with np.errstate(all="ignore"):
            bound = np.where(np.isfinite(size), size, np.finfo(dtype).max) * eps
            assert (np.abs(got - want)[finite] <= bound[finite] + np.finfo(dtype).tiny).all()


functions: dict[str, tuple[Fn, tuple[Array, ...]]] = {
    "arithmetic": (lambda z, w: (z * w - z / w + 2j) * np.conj(z) + np.exp(z * 0.3), (drawn(5, 7), drawn(5, 7))),
    "broadcasting": (lambda z, w: z[:, None] * w + 1.5 * w, (drawn(5), drawn(5, 7))),
    "moves": (
        lambda z: np.concatenate(
            [np.pad(z, 1, constant_values=2 - 3j)[:, 1:-1].T * z[0, 0], z[::2, ::-1].T * 1j], axis=1
        ),
        (drawn(7, 6),),
    ),
    "sums": (lambda z: np.sum(z * z, axis=0) + np.cumsum(z, axis=1)[:, -1][:6] + np.mean(z), (drawn(6, 6),)),
    "products": (lambda a, b, v: (a @ b) @ v + a.T @ np.conj(v[:5]), (drawn(5, 5), drawn(5, 5), drawn(5))),
    "products of batches": (lambda a, b: np.swapaxes(a, 1, 2) @ b * 2j, (drawn(20, 4, 5), drawn(20, 4, 3))),
    "look-ups": (lambda z: z[np.array([0, 0, 2])] * z[1] + np.take(z, [1, 1, 2]) ** 2, (drawn(4),)),
    "choice": (lambda z: np.where(np.abs(z) > 1, z * z, np.conj(z) + 1), (drawn(40),)),
    "of real numbers": (lambda x: np.exp(1j * x) * x + np.exp(-1j * x), (np.linspace(-3, 3, 33),)),
    "single": (lambda z: np.exp(z) * z - 1j, (drawn(33, dtype="c8"),)),
    "numbers": (lambda z: np.exp(z) * z - 1j / z, (drawn(),)),
    "between transforms": (
        lambda z: np.fft.ifft(np.conj(np.fft.fft(z) * np.exp(1j * z) * z + 1j * z) * 2), (drawn(16),)
    ),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("name", functions)
def test_values_and_gradients_are_those_of_the_interpreter(name: str) -> None:
    fn, args = functions[name]
    single = args[0].dtype.char == "F"
    f = jg.compile(fn)
    expected = f.interpret(*args)
    np.testing.assert_allclose(f(*args), expected, 1e-5 if single else 1e-13, 1e-5 if single else 1e-13)
    assert f(*args).dtype == expected.dtype
    loss = lambda *args: np.sum(np.abs(fn(*args)) ** 2)  # noqa: E731
    g = jg.compile(jg.grad(loss, argnums=tuple(range(len(args)))))
    for got, want in zip(g(*args), g.interpret(*args), strict=True):
        bound = 1e-4 if single else 1e-11
        np.testing.assert_allclose(got, want, bound, bound * float(np.max(np.abs(want))))
    assert not {"multiply", "add", "exp", "divide"} & set(interpreted(g, *args))


@pytest.mark.quick
def test_gradients_through_parts() -> None:
    def fn(x: Any, y: Any) -> Any:
        z = x + 1j * y
        return np.real(np.exp(z) / (z * z + 3)) + np.imag(np.conj(z) * z[::-1]) ** 2

    check_gradients(fn, np.linspace(-1, 1, 6), np.linspace(0.5, 2, 6))


@pytest.mark.quick
def test_later_shapes_compile_nothing() -> None:
    f = jg.compile(jg.value_and_grad(lambda x: np.sum(np.abs(np.exp(1j * x) * x) ** 2)))
    sizes = [100, 130, 200, 77, 1000]
    for count, n in enumerate(sizes):
        x = np.linspace(-1, 1, n)
        for got, want in zip(f(x), f.interpret(x), strict=True):
            np.testing.assert_allclose(got, want, 1e-12, 1e-12)
        kernels = f.cache_info().kernels
        assert count == 0 or kernels == before  # noqa: F821
        before = kernels  # noqa: F841


# -- programs --------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_all_of_an_island_is_in_kernels() -> None:
    f = jg.compile(
        jg.value_and_grad(lambda a, b: np.sum(np.abs(np.exp(a + 1j * b) * (a - 1j * b)) ** 2), argnums=(0, 1))
    )
    x = np.linspace(0.1, 1, 50)
    assert interpreted(f, x, x) == []


@pytest.mark.quick
@pytest.mark.parametrize(
    ("fn", "in_numpy"),
    [
        (lambda z: np.fft.ifft(np.fft.fft(z) * z), []),
        (lambda z: np.sqrt(np.sqrt(z) * z), ["sqrt", "sqrt"]),
        (lambda z: np.sqrt(np.sqrt(z)[::-1]), ["sqrt", "getslice", "sqrt"]),
        (lambda z: z * 2, []),
        (lambda z: np.sqrt(np.log(z)), ["log", "sqrt"]),
    ],
)
def test_one_operation_that_computes_is_worth_a_kernel(fn: Fn, in_numpy: list[str]) -> None:
    z = drawn(30)
    f = jg.compile(fn)
    assert [name for name in interpreted(f, z) if name != "constant"] == in_numpy
    np.testing.assert_allclose(f(z), fn(z), 1e-12, 1e-12)


# -- results that are complex --------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2,), (17,), (5, 1), (3, 4), (0, 2), (9000,), (70, 101)])
def test_complex_results_are_arrays_of_their_own(shape: tuple[int, ...], dtype: str) -> None:
    """Sums and conjugates have NumPy's bits; what is kept is not written by later calls."""
    f = jg.compile(lambda z, w: np.conj(z) + w)
    z, w = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype)[::-1] if shape else drawn(dtype=dtype)
    assert interpreted(f, z, w) == []
    kept = f(z, w)
    other = f(w, z)
    expected = np.conj(z) + w
    assert (kept.dtype, kept.shape) == (expected.dtype, shape)
    assert kept.tobytes() == expected.tobytes() == f.interpret(z, w).tobytes()
    assert other.tobytes() == (np.conj(w) + z).tobytes()
    if shape:
        assert kept.flags.c_contiguous and kept.flags.writeable and kept.flags.aligned
        assert kept.flags.owndata == (kept.nbytes < SMALL_BYTES)
        assert not any(np.shares_memory(kept, array) for array in (z, w, other))


@pytest.mark.quick
def test_numbers_and_their_pairs_as_results_share_no_memory() -> None:
    def fn(z: Any) -> Any:
        w = np.conj(z)
        return w, np.stack([np.real(w), np.imag(w)], -1), np.stack([np.real(z), np.imag(z)], -1), z

    f = jg.compile(fn)
    for z in (drawn(4, 6), drawn(8, 6)[::2, ::-1], drawn()):
        found = f(z)
        for got, want in zip(found, fn(z), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
        arrays = [z, *found]
        assert not any(np.shares_memory(a, b) for k, a in enumerate(arrays) for b in arrays[:k])


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["c16", "c8"])
def test_gradients_with_respect_to_complex_numbers_are_stored_by_kernels(dtype: str) -> None:
    f = jg.compile(jg.value_and_grad(lambda z: np.sum(np.abs(np.exp(z) / (3 + z)) ** 2)))
    z = drawn(65, dtype=dtype)
    assert interpreted(f, z) == []
    for got, want in zip(f(z), f.interpret(z), strict=True):
        assert got.dtype == want.dtype
        bound = 2e-5 if dtype == "c8" else 1e-12
        np.testing.assert_allclose(got, want, bound, bound)


@pytest.mark.quick
def test_what_is_in_no_scope_stays() -> None:
    from jitgrad.graph import Graph
    from jitgrad.operators import call
    from jitgrad.program import slice_graph

    with Graph().as_default():
        z = call("placeholder", np.dtype("c16"), (4,))
        program = slice_graph([call("absolute", z * z * z * z)], {z: z.spec})
    assert complex_as_pairs(program) is program
