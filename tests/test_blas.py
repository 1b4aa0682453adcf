"""Products as BLAS steps against NumPy's matmul: layouts, batches, vectors, tiles, empty and odd cases,
threads of BLAS.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from step_kernels import Call
from threadpoolctl import threadpool_limits

from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.products import blas
from jitgrad.compiler.products.blas import BlasStep, Operand, matmul_step

SIZES = ((3, 4, 5), (1, 7, 9), (7, 1, 9), (1, 1, 8), (1, 1, 1), (33, 130, 70), (60, 150, 120), (40, 60, 500))
TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


def operand(slot: int, array: NDArray[Any], transposed: bool = False) -> Operand:
    *batch, row, _ = (stride // array.itemsize for stride in array.strides)
    return Operand(slot, row, tuple(batch), transposed)


def run(step: BlasStep | None, buffers: Sequence[NDArray[Any]], threads: int = 2) -> None:
    if step is not None:
        call = Call(buffers, [(step.address, step.block, step.extent, step.nchunks)])
        runtime().run_steps(*call.arguments, 0, threads, 0)


def stored(
    rng: np.random.Generator, dtype: str, batch: tuple[int, ...], rows: int, columns: int
) -> NDArray[Any]:
    return rng.standard_normal((*batch, rows, columns)).astype(dtype)


def logical(array: NDArray[Any], transposed: bool) -> NDArray[Any]:
    return np.swapaxes(array, -1, -2) if transposed else array


@pytest.fixture(autouse=True)
def one_blas_thread() -> Iterator[None]:
    """The references are small products; NumPy's threads would only stand in each other's way."""
    with threadpool_limits(1, user_api="blas"):
        yield


def close(result: NDArray[Any], a: NDArray[Any], b: NDArray[Any], before: float = 0.0) -> bool:
    """Within the rounding of the dtype, measured against the sum of absolute products."""
    scale = np.abs(a).astype(float) @ np.abs(b).astype(float) + abs(before)
    error = np.abs(result - (a.astype(float) @ b.astype(float) + before))
    return bool((error <= TOLERANCE[result.dtype.name] * np.maximum(scale, 1e-30)).all())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_all_layouts(dtype: str, accumulate: bool, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    for ta, tb, batch in itertools.product((False, True), (False, True), ((), (3,), (2, 3))):
        a = stored(rng, dtype, batch, *((k, m) if ta else (m, k)))
        b = stored(rng, dtype, batch, *((n, k) if tb else (k, n)))
        c = np.full((*batch, m, n), 1.0 if accumulate else np.nan, dtype)
        step = matmul_step(
            np.dtype(dtype), (m, n, k), operand(0, a, ta), operand(1, b, tb), operand(2, c), batch, accumulate
        )
        run(step, (a, b, c))
        assert close(c, logical(a, ta), logical(b, tb), float(accumulate)), (ta, tb, batch)


def test_parts_of_larger_arrays_and_broadcasting() -> None:
    rng = np.random.default_rng(1)
    whole_a, b, whole_c = rng.standard_normal((4, 10, 20)), rng.standard_normal((6, 5)), np.zeros((4, 7, 9))
    a, c = whole_a[:, 2:9, 3:9], whole_c[:, :, 1:6]
    step = matmul_step(
        np.dtype("f8"),
        (7, 5, 6),
        Operand(0, 20, (200,), offset=2 * 20 + 3),
        Operand(1, 5, (0,)),
        Operand(2, 9, (63,), offset=1),
        (4,),
    )
    run(step, (whole_a, b, whole_c))
    assert close(c, a, b)
    assert not whole_c[:, :, [0, 6, 7, 8]].any()


def test_vector_with_strides() -> None:
    """A column of a matrix as the right operand, and as the result."""
    rng = np.random.default_rng(2)
    a, columns, results = rng.standard_normal((8, 6)), rng.standard_normal((6, 4)), np.full((8, 3), np.nan)
    b, c = Operand(1, 4, offset=2), Operand(2, 3, offset=1)
    step = matmul_step(np.dtype("f8"), (8, 1, 6), operand(0, a), b, c)
    run(step, (a, columns, results))
    assert close(results[:, 1:2], a, columns[:, 2:3])
    assert np.isnan(results[:, [0, 2]]).all()


@pytest.mark.parametrize(("m", "n"), [(3, 4), (1, 4), (3, 1)])
def test_empty_sums_are_zero(m: int, n: int) -> None:
    empty, c = np.zeros((8,)), np.full((m, n), np.nan)
    operands = Operand(0, 0), Operand(1, n), operand(2, c)
    run(matmul_step(np.dtype("f8"), (m, n, 0), *operands), (empty, empty, c))
    assert (c == 0).all()
    assert matmul_step(np.dtype("f8"), (m, n, 0), *operands, accumulate=True) is None


@pytest.mark.parametrize(
    ("sizes", "batch"), [((0, 4, 2), ()), ((4, 0, 2), ()), ((2, 2, 2), (0,)), ((2, 2, 2), (3, 0))]
)
def test_empty_results_are_no_steps(sizes: tuple[int, int, int], batch: tuple[int, ...]) -> None:
    strides = (4,) * len(batch)
    operands = (Operand(slot, 2, strides) for slot in range(3))
    assert matmul_step(np.dtype("f4"), sizes, *operands, batch) is None


def test_nan_and_infinity_pass_through() -> None:
    a = np.array([[np.inf, 1.0], [np.nan, 0.0]])
    b = np.array([[0.0, 1.0], [1.0, 2.0]])
    c = np.empty((2, 2))
    run(matmul_step(np.dtype("f8"), (2, 2, 2), operand(0, a), operand(1, b), operand(2, c)), (a, b, c))
    np.testing.assert_array_equal(c, np.array([[np.nan, np.inf], [np.nan, np.nan]]))


@pytest.mark.skipif(not blas.set_threads_address(), reason="BLAS keeps its own threads")
@pytest.mark.parametrize(
    ("sizes", "chunks"),
    [((256, 10, 512), 4), ((10, 256, 512), 4), ((512, 10, 256), 4), ((300, 3, 2000), 5), ((32, 5, 32), 1)],
)
def test_thin_products_are_shared(sizes: tuple[int, int, int], chunks: int) -> None:
    """Few columns take as long as some more, so that the work is worth another thread."""
    _, n, k = sizes
    step = matmul_step(np.dtype("float32"), sizes, Operand(0, k), Operand(1, n), Operand(2, n))
    assert step is not None
    assert step.nchunks == chunks


@pytest.mark.parametrize("sizes", [(300, 300, 300), (1100, 600, 40), (1, 3000, 700), (3000, 1, 700)])
def test_bits_do_not_depend_on_threads(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(3)
    a, b = stored(rng, "float32", (), m, k), stored(rng, "float32", (), k, n)
    results = []
    for threads in (1, 2, 3):
        c = np.empty((m, n), np.float32)
        step = matmul_step(np.dtype("f4"), sizes, operand(0, a), operand(1, b), operand(2, c))
        assert step is not None
        assert step.nchunks > 1 or not blas.set_threads_address()
        run(step, (a, b, c), threads)
        results.append(c)
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


@pytest.mark.parametrize(
    ("dtype", "sizes", "message"),
    [
        ("i8", (2, 2, 2), "float32 or float64"),
        ("f4", (2**31, 2, 2), "below 2"),
        ("f4", (2, 2, 2), "untransposed"),
    ],
)
def test_what_blas_cannot_do(dtype: str, sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        c = Operand(2, 2, transposed=sizes[0] == 2)
        matmul_step(np.dtype(dtype), sizes, Operand(0, 2), Operand(1, 2), c)


def test_guards_set_one_thread_and_restore() -> None:
    guards = blas.guard_steps()
    if guards is None:
        pytest.skip("this BLAS keeps its own threads")
    import ctypes

    threads = ctypes.CFUNCTYPE(ctypes.c_int)(blas.get_threads_address())
    set_threads = ctypes.CFUNCTYPE(None, ctypes.c_int)(blas.set_threads_address())
    before = threads()
    set_threads(2)
    try:
        counts = []
        for guard in (guards[0], guards[0], guards[1], guards[1]):
            run(guard, (np.zeros(1),), 1)
            counts.append(threads())
        assert counts == [1, 1, 1, 2]
    finally:
        set_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_fork_inside_a_guard() -> None:
    guards = blas.guard_steps()
    if guards is None:
        pytest.skip("this BLAS keeps its own threads")
    run(guards[0], (np.zeros(1),), 1)
    child = os.fork()
    if child == 0:
        for guard in guards:
            run(guard, (np.zeros(1),), 1)
        os._exit(0)
    run(guards[1], (np.zeros(1),), 1)
    assert os.waitpid(child, 0)[1] == 0


_FROM_SCIPY = """
import sys
from jitgrad import blas_library as library
library._in_numpy = lambda: None
"""


def test_scipy_is_as_if_it_had_been_imported_normally() -> None:
    script = """
library.blas_address("dgemm")
assert "scipy.linalg" not in sys.modules
import scipy.linalg.cython_blas, scipy.linalg, numpy
assert library.blas_address("dgemm") == library.capsule_address(scipy.linalg.cython_blas.__pyx_capi__["dgemm"])
assert (scipy.linalg.solve(numpy.eye(2) * 2, numpy.ones(2)) == 0.5).all()
"""
    subprocess.run([sys.executable, "-c", _FROM_SCIPY + script], check=True)


def test_products_by_scipys_library() -> None:
    script = """
import numpy as np, jitgrad as jg
rng = np.random.default_rng(0)
for m, k, n in ((90, 80, 70), (1, 300, 50), (50, 300, 1)):
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    np.testing.assert_allclose(jg.compile(lambda a, b: np.tanh(a @ b) * 1.5)(a, b), np.tanh(a @ b) * 1.5, rtol=1e-12)
    a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose(jg.compile(lambda a, b: a @ b)(a, b), a @ b, rtol=1e-4, atol=1e-4)
assert "scipy" in sys.modules
"""
    subprocess.run([sys.executable, "-c", _FROM_SCIPY + script], check=True)


def test_the_library_is_numpys_own() -> None:
    """The same one as of the interpreter's products, so no second library is loaded."""
    script = """
import sys, numpy as np, jitgrad as jg
x = np.linspace(0, 1, 5600).reshape(70, 80)
np.testing.assert_array_equal(jg.compile(lambda x: x @ x.T)(x).shape, (70, 70))
from jitgrad import blas_library as library
print("numpy" if library._in_numpy() else "other", "scipy" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    where, loaded = run.stdout.split()
    assert loaded == ("False" if where == "numpy" else "True")
