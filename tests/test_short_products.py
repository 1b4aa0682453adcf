"""Products of a matrix of few rows with a long one as steps against NumPy's matmul: odd sizes, last squares, bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from step_kernels import Call

from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.machine import compilation
from jitgrad.compiler.products import gemm
from jitgrad.compiler.products.blas import Operand
from jitgrad.compiler.products.gemm_steps import product_steps
from jitgrad.compiler.products.registers import kinds
from tests.processors import needs_registers

FORMS = {True: "across", False: "down"}
ROWS = {"float32": (12, 16, 27, 61), "float64": (8, 14, 23)}
TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_LEAST", 1)
    monkeypatch.setattr(gemm, "_LEAST_SUMS", 1)
    monkeypatch.setitem(gemm._FEW_ROWS, 16, gemm._FEW_ROWS[32])


def multiply(a: NDArray[Any], b: NDArray[Any], turned: bool, threads: int = 2) -> NDArray[Any]:
    """a bᵀ or a b in steps."""
    (m, k), n = a.shape, b.shape[not turned]
    c = np.full((m, n), np.nan, a.dtype)
    plan = gemm.plan_product(a.dtype, (m, n, k), 1, (False, turned))
    assert plan is not None and plan.form == FORMS[turned], plan
    operands = [Operand(s, x.shape[1], (0,), t) for s, (x, t) in enumerate(((a, False), (b, turned), (c, False)))]
    parts = np.full(plan.parts * c.size, np.nan, c.dtype)
    part = 4 if plan.parts > 1 else 2
    steps = product_steps(c.dtype, (m, n, k), plan, (operands[0], operands[1], operands[2]), 3, part)
    call = Call([a, b, c, c, parts], [(s.address, s.block, s.extent, s.nchunks) for s in steps])
    runtime().run_steps(*call.arguments, 0, threads, 0)
    return c


def right(rng: np.random.Generator, dtype: str, long: int, short: int) -> NDArray[Any]:
    """The long matrix, whose rows are never turned."""
    return rng.standard_normal((long, short)).astype(dtype)


@needs_registers
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("long", "short"), [(4096, 12), (4103, 50), (9999, 24), (4200, 76), (5001, 128), (20011, 34)])
def test_odd_sizes_and_bits(dtype: str, turned: bool, long: int, short: int) -> None:
    rng = np.random.default_rng(2)
    for m in ROWS[dtype]:
        a, b = rng.standard_normal((m, short if turned else long)).astype(dtype), right(rng, dtype, long, short)
        c = multiply(a, b, turned)
        left, other = a.astype(float), (b.T if turned else b).astype(float)
        error = np.abs(c - left @ other)
        assert (error <= TOLERANCE[dtype] * (np.abs(left) @ np.abs(other))).all(), m
        assert {multiply(a, b, turned, threads).tobytes() for threads in (1, 2, 3)} == {c.tobytes()}


@needs_registers
def test_nothing_behind_the_matrix_is_read(tmp_path: Any) -> None:
    """The last page of a mapped file ends with the matrix: a read behind it would be a fault or give a wrong sum."""
    rng = np.random.default_rng(3)
    for turned, (rows, short) in ((True, (4096, 24)), (False, (4096, 24))):
        path = tmp_path / f"{turned}"
        right(rng, "float32", rows, short).tofile(path)
        b = np.memmap(path, np.float32, "r", shape=(rows, short))
        assert b.nbytes % 4096 == 0
        a = rng.standard_normal((16, short if turned else rows)).astype("f4")
        assert np.allclose(multiply(a, b, turned), a @ (b.T if turned else b), atol=1e-2)


@needs_registers
def test_infinities_and_nan_stay_in_their_places() -> None:
    for turned in (True, False):
        a, b = np.ones((16, 50 if turned else 5000), np.float32), np.ones((5000, 50), np.float32)
        b[-1, 7], b[3, 49] = np.inf, np.nan
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(multiply(a, b, turned), a @ (b.T if turned else b), rtol=1e-5)


def test_which_products_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows that nearly fill the lanes, and columns that nearly fill registers."""
    monkeypatch.setattr(compilation, "has_fma", lambda: True)
    monkeypatch.setattr(compilation, "vector_bytes", lambda: 64)

    def form(dtype: str, m: int, short: int, turned: bool, ta: bool = False) -> str | None:
        sizes = (m, 10_000, short) if turned else (m, short, 10_000)
        return gemm._short_form(kinds()[dtype], dtype, sizes, (ta, turned))

    assert form("float32", 16, 50, True) == "across"
    assert form("float32", 16, 50, False) == "down"
    assert form("float32", 64, 50, True) == "across"
    assert [form("float32", m, 50, True) for m in (11, 17, 65)] == [None] * 3
    assert [form("float64", m, 50, False) for m in (6, 12, 40)] == [None] * 3
    assert [form("float32", 16, short, False) for short in (11, 13, 27, 129)] == [None] * 4
    assert form("float32", 16, 50, True, ta=True) is None


def test_on_sixteen_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sums would wait for themselves, and more rows are worth tiles."""
    monkeypatch.undo()
    monkeypatch.setattr(compilation, "has_fma", lambda: True)
    monkeypatch.setattr(compilation, "vector_bytes", lambda: 32)

    def form(dtype: str, m: int, turned: bool) -> str | None:
        return gemm._short_form(kinds()[dtype], dtype, (m, 10_000, 50) if turned else (m, 50, 10_000), (False, turned))

    assert [form("float32", m, True) for m in (8, 16, 17, 24, 40)] == ["across", "across", None, "across", None]
    assert [form("float64", 16, turned) for turned in (True, False)] == [None, "down"]
