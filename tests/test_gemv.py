"""Our own products of a matrix and a vector as steps against NumPy's matmul: both sides, both layouts, bits."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from step_kernels import Call

import jitgrad as jg
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.machine import compilation, native
from jitgrad.compiler.machine.compilation import vector_bytes
from jitgrad.compiler.products import gemv
from jitgrad.compiler.products.blas import Operand
from jitgrad.compiler.products.gemv_code import quick_stub_ir, stub_ir
from jitgrad.compiler.products.gemv_steps import COMBINE_STUBS, DOTS_STUBS, vector_steps


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemv, "_LEAST_BYTES", 1)
    monkeypatch.setattr(gemv, "_LEAST_ROWS", 1)
    monkeypatch.setattr(gemv, "_MOST_COLUMNS", dict.fromkeys(MOST_COLUMNS, 4096))


MOST_COLUMNS = gemv._MOST_COLUMNS
needs_registers = pytest.mark.skipif(vector_bytes() < 32, reason="these products need registers of 32 bytes")
LENGTHS = ((100, 10), (17, 1), (33, 65), (64, 8), (20, 300), (5001, 20), (40000, 9), (200, 45), (300, 30))


def multiply(
    a: NDArray[Any], b: NDArray[Any], ta: bool, tb: bool, threads: int = 2, asks: bool = False
) -> NDArray[Any] | None:
    """op(a) op(b) in steps; None where the product is for BLAS."""
    m, k = a.shape[::-1] if ta else a.shape
    n = b.shape[0] if tb else b.shape[1]
    c = np.full((m, n), np.nan, a.dtype)
    plan = gemv.plan_vector_product(a.dtype, (m, n, k), 1, (ta, tb))
    if plan is None:
        return None
    operands = tuple(Operand(s, x.shape[1], (0,), t) for s, (x, t) in enumerate(((a, ta), (b, tb), (c, False))))
    parts = np.full(plan.parts, np.nan, a.dtype)
    steps = vector_steps(a.dtype, n, plan, (operands[0], operands[1], operands[2]), 3 if plan.parts else 2, asks)
    call = Call([a, b, c, parts], [(s.address, s.block, s.extent, s.nchunks) for s in steps])
    runtime().run_steps(*call.arguments, 0, threads, 0)
    return c


@needs_registers
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("long", "short"), LENGTHS)
def test_asking_for_lines_changes_no_bits(long: int, short: int, is_transposed: bool) -> None:
    rng = np.random.default_rng(1)
    matrix, vector = rng.standard_normal((long, short)), rng.standard_normal((long if is_transposed else short, 1))
    results = [multiply(matrix, vector, is_transposed, False, asks=asks) for asks in (False, True)]
    without, asked = [None if result is None else result.tobytes() for result in results]
    assert without == asked
    assert (without is None) == (short == 1 and is_transposed)


@needs_registers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("long", "short"), LENGTHS)
def test_all_layouts(dtype: str, long: int, short: int) -> None:
    rng = np.random.default_rng(0)
    done = 0
    shapes, sides = ((long, short), (short, long)), (False, True)
    for (rows, columns), turned, left in itertools.product(shapes, sides, sides):
        matrix = rng.standard_normal((columns, rows) if turned else (rows, columns)).astype(dtype)
        whole = matrix.T if turned else matrix
        vector = rng.standard_normal((1, rows) if left else (columns, 1)).astype(dtype)
        a, b = (vector, matrix) if left else (matrix, vector)
        out = multiply(a, b, turned and not left, turned and left)
        if out is None:
            continue
        done += 1
        exact = (vector.astype(float) @ whole) if left else (whole @ vector.astype(float))
        size = (np.abs(vector) @ np.abs(whole)) if left else (np.abs(whole) @ np.abs(vector))
        assert (np.abs(out - exact) <= (2e-5 if dtype == "float32" else 1e-13) * size).all()
    assert done >= 4


@needs_registers
def test_bits_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(1)
    a, x, y = rng.standard_normal((50000, 13)), rng.standard_normal((13, 1)), rng.standard_normal((50000, 1))
    for operands in ((a, x, False, False), (a, y, True, False)):
        results = {out.tobytes() for threads in (1, 2, 3) if (out := multiply(*operands, threads)) is not None}
        assert len(results) == 1


WIDTHS = (1, 3, 4, 5, 8, 10, 12, 16, 17, 20, 23, 27, 31, 32, 33, 45, 64, 65, 66, 100, 130)
"""Columns: less than half of a register, whole ones, all numbers of halves that have code of their own, and more."""


@needs_registers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", WIDTHS)
def test_infinity_and_nan_stay_where_they_belong(columns: int, dtype: str) -> None:
    """An odd row, a row that is not there, and columns beyond the last have no part in any sum."""
    for rows in (3, 7, 8, 9, 15, 16, 17):
        a, x = np.ones((rows, columns), dtype), np.ones((columns, 1), dtype)
        a[rows - 1, -1], a[rows // 2, 0] = np.inf, np.nan
        out = multiply(a, x, False, False)
        assert out is not None
        expected = np.full(rows, columns, dtype)
        expected[rows // 2], expected[-1] = np.nan, np.inf
        np.testing.assert_array_equal(out[:, 0], expected)
        total = multiply(a, np.ones((rows, 1), dtype), True, False)
        if total is None:  # a product of two vectors
            assert columns == 1
            continue
        expected = np.full(columns, rows, dtype)
        expected[0], expected[-1] = np.nan, np.inf
        np.testing.assert_array_equal(total[:, 0], expected)


@needs_registers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", WIDTHS)
def test_quick_code_gives_the_same_bits(columns: int, dtype: str) -> None:
    """Rows that are read without a loop have the bits of rows that are read register by register, and so have those of
    chunks that are no whole registers of rows; sums that go down several rows in a turn those of row by row.
    """
    rng = np.random.default_rng(2)
    a, x = rng.standard_normal((37, columns)).astype(dtype), rng.standard_normal(columns).astype(dtype)
    chunks = [(0, 37)], [(0, 3), (3, 20), (20, 37)]
    products = {run_alone(DOTS_STUBS[dtype], write, a, x, 37, ranges) for write in WRITERS for ranges in chunks}
    assert len(products) == 1
    for rows in (0, 1, 3, 4, 5, 7, 8, 15, 37):
        numbers = rng.standard_normal(37).astype(dtype)
        sums = {run_alone(COMBINE_STUBS[dtype], write, a, numbers, columns, [(0, rows)]) for write in WRITERS}
        assert len(sums) == 1
        np.testing.assert_allclose(np.frombuffer(sums.pop(), dtype), numbers[:rows] @ a[:rows], 1e-5, 1e-5)


WRITERS = (stub_ir, quick_stub_ir)


def run_alone(
    stub: str, write: Callable[[str], str], a: NDArray[Any], x: NDArray[Any], count: int, ranges: list[tuple[int, int]]
) -> bytes:
    """The bytes of a product, of the code that ``write`` writes."""
    out = np.full(count + 1, np.nan, a.dtype)
    table = np.array([a.ctypes.data, x.ctypes.data, out.ctypes.data], np.int64)
    block = np.array([0, a.shape[1], 1, 2, a.shape[1], 0], np.int64)
    for first, end in ranges:
        loaded(stub, write)(table.ctypes.data, block.ctypes.data, first, end, 0, 0)
    assert np.isnan(out[count])
    return out[:count].tobytes()


@functools.cache
def loaded(stub: str, write: Callable[[str], str]) -> Any:
    code = native.load_object(native.compile_beside(write(stub), write is quick_stub_ir), [stub])
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)(code[stub])


@pytest.mark.skipif(vector_bytes() < 64, reason="registers of 64 bytes have halves")
@pytest.mark.parametrize("stubs", [DOTS_STUBS, COMBINE_STUBS])
def test_short_rows_are_read_by_halves(stubs: dict[str, str]) -> None:
    """Of a row of ten numbers in float64, two halves are read whole, and one by a mask."""
    text = stub_ir(stubs["float64"])
    code = text[text.index("short_by3:") : text.index("short_by4:")]
    turn = code[code.index("asked_short3:") :]
    rows = turn[: turn.index("left_short3:")] if "left_short3:" in turn else turn
    assert rows.count("= load <4 x double>") == 2 * rows.count("masked.load.v4f64") == 16
    assert "<8 x double>" not in code


def test_what_is_left_to_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "has_fma", lambda: True)
    monkeypatch.setattr(compilation, "vector_bytes", lambda: 64)
    f8 = np.dtype("f8")
    assert gemv.plan_vector_product(f8, (1000, 1, 10), 1, (False, False)) is not None
    monkeypatch.setattr(gemv, "_LEAST_BYTES", 100_000)
    assert gemv.plan_vector_product(f8, (1000, 1, 10), 1, (False, False)) is None
    assert gemv.plan_vector_product(f8, (10000, 1, 10), 1, (False, False)) is not None
    monkeypatch.setattr(gemv, "_LEAST_BYTES", 1)
    assert gemv.plan_vector_product(f8, (1000, 1, 10), 3, (False, False)) is None
    assert gemv.plan_vector_product(f8, (1, 1, 10), 1, (False, False)) is None
    assert gemv.plan_vector_product(f8, (1000, 1, 0), 1, (False, False)) is None
    monkeypatch.setattr(gemv, "_LEAST_ROWS", 64)
    assert gemv.plan_vector_product(f8, (60, 1, 1000), 1, (False, False)) is None
    assert gemv.plan_vector_product(f8, (300, 1, 100000), 1, (False, False)) is None
    assert gemv.plan_vector_product(np.dtype("i8"), (1000, 1, 10), 1, (False, False)) is None
    for is_repeated in (False, True):
        plan = gemv.plan_vector_product(f8, (8, 1, 8), 1, (True, False), is_repeated)
        assert (plan is not None) == is_repeated
    monkeypatch.setattr(gemv, "_LEAST_ROWS", 1)
    monkeypatch.setattr(gemv, "_MOST_COLUMNS", MOST_COLUMNS)
    for nbytes, most in ((64, 4096), (32, 256)):
        monkeypatch.setattr(compilation, "vector_bytes", lambda nbytes=nbytes: nbytes)
        plans = [gemv.plan_vector_product(f8, (1000, 1, k), 1, (False, False)) for k in (10, most, most + 1)]
        assert [plan is not None for plan in plans] == [True, True, False]
    monkeypatch.setattr(compilation, "vector_bytes", lambda: 16)
    assert gemv.plan_vector_product(f8, (1000, 1, 10), 1, (False, False)) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_products_of_loops(dtype: str) -> None:
    """Of all sizes, turned round and not, with gradients; a branch in a loop has such products too."""
    rng = np.random.default_rng(0)
    for rows, columns in ((1, 1), (2, 3), (3, 2), (7, 9), (8, 8), (17, 5), (5, 33), (40, 1), (1, 40), (64, 20)):
        a, x = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((rows, columns), (columns,)))

        def loss(a: Any, x: Any) -> Any:
            def step(x: Any, t: Any) -> Any:
                y = jg.cond(t > 1, lambda y: y, lambda y: y * 2, np.sign(a @ x) + (a @ x) * 0.5)
                return np.sign(a.T @ y) + t * x, np.sum(y)

            last, sums = jg.scan(step, x, np.arange(3).astype(a.dtype))
            return np.sum(last * last) + np.sum(sums)

        f = jg.compile(jg.value_and_grad(loss, (0, 1)))
        value, gradients = f(a, x)
        expected, others = f.interpret(a, x)
        assert value == expected
        for g, other in zip(gradients, others, strict=True):
            np.testing.assert_array_equal(g, other)
