"""Programs of several steps as one function: the same results and errors as step by step, by machine code or not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import bare, executable, recording, step_lines

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "LISTED_FROM", 2)


def _definite(n: int, *stack: int, dtype: Any = np.float64) -> Array:
    x = np.random.default_rng(n).normal(size=(*stack, n, n))
    return np.asarray(x @ np.swapaxes(x, -1, -2) + n * np.eye(n), dtype)


def _spectrum(x: Any) -> Any:
    z = np.fft.rfft(x, axis=0)
    return np.sum(np.abs(z) ** 2), np.fft.irfft(z * 0.5, x.shape[0], axis=0), x


FUNCTIONS: list[tuple[Callable[..., Any], Array]] = [
    (_spectrum, np.random.default_rng(0).normal(size=(24, 2))),
    (_spectrum, np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)),
    (lambda x: np.fft.ifft(np.fft.fft(x, axis=0) ** 2, axis=0), np.random.default_rng(0).normal(size=(5, 4))),
    (lambda x: (np.sort(x), np.sort(x).T, x + 1), np.random.default_rng(0).normal(size=(3, 40))),
    (lambda x: x[np.argsort(x * 2)] + 1, np.random.default_rng(0).normal(size=40)),
    *[
        (lambda a: (np.linalg.solve(a, a[..., :1] + 1), np.linalg.slogdet(a * 2)[1], np.linalg.inv(a + 1)), matrices)
        for matrices in (_definite(36, 4), _definite(36, 2), _definite(36, 3, dtype=np.float32), _definite(70, 2))
    ],
    (lambda a: (np.linalg.eigh(a)[0] + 1, np.linalg.cholesky(a), np.linalg.det(a / 40)), _definite(40)),
    (lambda a: (np.linalg.eigh(a * 2)[0] + 1, np.linalg.svd(a, full_matrices=False)[1]), _definite(40)),
    (lambda a: (np.linalg.qr(a)[1] + 1, np.linalg.qr(a[:3])[0] * 2), _definite(9)),
    (lambda a: (np.linalg.eigh(a * 2, "U")[1] + 1, np.linalg.svd(a)[0] * 2), _definite(40, 2, dtype=np.float32)),
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
@pytest.mark.parametrize("by_machine_code", [True, False])
def test_results_are_those_of_the_first_call(
    number: int, by_machine_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, x = FUNCTIONS[number]
    if not by_machine_code:
        monkeypatch.setattr(step_lines, "is_available", lambda: False)
    compiled = jg.compile(fn)
    first, kept = compiled(x), x.copy()
    for _ in range(8):
        results = compiled(x)
        gc.collect()
        for a, b in zip(_tuple(first), _tuple(results), strict=True):
            assert type(a) is type(b) and a.dtype == b.dtype and a.flags.c_contiguous == b.flags.c_contiguous
            np.testing.assert_array_equal(a, b)
            if isinstance(b, np.ndarray):
                b[...] = 0  # what the caller gets is the caller's
    np.testing.assert_array_equal(x, kept)
    assert _written(), "no program has become a function"


def _tuple(results: Any) -> Any:
    return results if isinstance(results, tuple) else (results,)


def _written() -> list[executable.Executable]:
    """Those that have become functions. What is a dead proxy raises where `isinstance` is asked of it."""
    objects = (x for x in gc.get_objects() if type(x) is executable.Executable)
    return [x for x in objects if x._lines is not None]


def test_an_error_names_the_step_and_the_next_call_is_sound() -> None:
    compiled = jg.compile(lambda a: (np.linalg.inv(np.linalg.cholesky(a) * 2.0), np.fft.rfft(a[0])))
    good, bad = _definite(36, 2), -_definite(36, 2)
    first = compiled(good)
    for _ in range(6):
        compiled(good)
    singular = jg.compile(lambda a, b: np.linalg.solve(a * 2.0, b))
    for _ in range(6):
        singular(good, good)
    for _ in range(2):
        with pytest.raises(np.linalg.LinAlgError, match=r"(?s)^Matrix is not positive definite\n.*test_step_lines"):
            compiled(bad)
        with pytest.raises(np.linalg.LinAlgError, match=r"(?s)^Singular matrix\n.*test_step_lines"):
            singular(np.zeros((2, 36, 36)), good)
        np.testing.assert_array_equal(compiled(good)[0], first[0])


@pytest.mark.filterwarnings("error")
def test_warnings_are_off_within_and_as_before_behind() -> None:
    compiled = jg.compile(lambda a: np.log(np.linalg.inv(np.log(a * 0 + 1) + a)))
    with np.errstate(all="raise"):
        before = np.geterr()
        for _ in range(6):
            compiled(_definite(36, 2))
        assert np.geterr() == before


def test_a_profile_hears_of_every_step() -> None:
    heard: list[Any] = []
    compiled, x = jg.compile(_spectrum), np.ones((16, 2))
    for _ in range(6):
        compiled(x)
    recording.add_sink(heard.append)
    try:
        compiled(x)
    finally:
        recording.remove_sink(heard.append)
    assert [name for kind, name, *_ in heard if kind == "numpy"] == ["rfft", "irfft"]


def test_threads_share_a_function() -> None:
    compiled, found = jg.compile(jg.value_and_grad(lambda a: np.sum(np.linalg.inv(a * 2) ** 2))), []
    inputs = [_definite(36, 2) * k for k in range(1, 5)]
    wanted = [compiled(a) for a in inputs]

    def run(k: int) -> None:
        for _ in range(100):
            value, slope = compiled(inputs[k])
            found.append(value == wanted[k][0] and np.array_equal(slope, wanted[k][1]))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 400 and all(found)


# -- NumPy's compiled functions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("char", "fdFD")
@pytest.mark.parametrize("name", ["solve", "inv", "cholesky", "slogdet", "det", "eigh", "eigvalsh"])
def test_linear_algebra_is_numpys_to_the_bit(name: str, char: str) -> None:
    for a in (_definite(5, dtype=char), _definite(5, 3, dtype=char), np.zeros((0, 5, 5), char)):
        for wide in (a, a[..., :3], a[..., :3, :]):
            for x, y in zip(bare.qr(wide), np.linalg.qr(wide), strict=True):
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)
                np.testing.assert_array_equal(np.signbit(x.real), np.signbit(y.real))
        for x, y in zip(bare.svd(a[..., :3]), np.linalg.svd(a[..., :3], full_matrices=False), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(bare.svdvals(a[..., :3]), np.linalg.svdvals(a[..., :3]), strict=True)
        given = (a, a[..., :2]) if name == "solve" else (a,)
        ours, numpys = getattr(bare, name)(*given), getattr(np.linalg, name)(*given)
        for x, y in zip(_tuple(ours), _tuple(tuple(numpys) if name in ("slogdet", "eigh") else numpys), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(bare.eigh(a, "U")[0], np.linalg.eigh(a, "U")[0])
    np.testing.assert_array_equal(bare.eigvalsh(a, "U"), np.linalg.eigvalsh(a, "U"))


@pytest.mark.parametrize("name", ["solve", "inv", "cholesky"])
def test_what_has_no_result_raises_as_numpy_does(name: str) -> None:
    given = (np.zeros((2, 3, 3)),) * (2 if name == "solve" else 1)
    with pytest.raises(np.linalg.LinAlgError) as numpys:
        getattr(np.linalg, name)(*given)
    before = np.geterr()
    with pytest.raises(np.linalg.LinAlgError, match=f"^{numpys.value}$"):
        getattr(bare, name)(*given)
    assert np.geterr() == before
    with pytest.raises(TypeError, match="float16"):
        getattr(bare, name)(*(x.astype(np.float16) for x in given))


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("char", "fd")
def test_transforms_are_numpys(is_known: bool, char: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_known:
        monkeypatch.setattr(bare, "_FOURIER", None)
    x = np.random.default_rng(0).normal(size=(4, 9)).astype(char)
    for axis in (-1, -2):
        n = x.shape[axis]
        z, half = x + 1j * x[::-1], np.fft.rfft(x, axis=axis)
        for made, numpys in (
            (bare.fft(z, axis), np.fft.fft(z, axis=axis)),
            (bare.fft(z, axis, inverse=True), np.fft.ifft(z, axis=axis)),
            (bare.rfft(x, axis), np.fft.rfft(x, axis=axis)),
            (bare.rfft(x, axis, divided=True), np.fft.rfft(x, axis=axis, norm="forward")),
            (bare.irfft(half, n, axis), np.fft.irfft(half, n, axis=axis, norm="forward")),
            (bare.irfft(half, n, axis, divided=True), np.fft.irfft(half, n, axis=axis)),
        ):
            assert made.dtype == numpys.dtype
            np.testing.assert_array_equal(made, numpys)
