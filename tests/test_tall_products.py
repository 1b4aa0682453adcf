"""Products of two tall matrices as steps against NumPy's matmul: odd sizes, last rows and columns, gaps, bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from step_kernels import Call

import jitgrad as jg
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.machine import compilation
from jitgrad.compiler.products import gemm
from jitgrad.compiler.products.blas import Operand
from jitgrad.compiler.products.gemm_steps import product_steps
from tests.processors import needs_registers

TOLERANCE = {"float32": 2e-5, "float64": 1e-13}
COLUMNS = [(2, 2), (3, 30), (30, 3), (5, 5), (7, 13), (8, 16), (9, 17), (10, 7), (64, 33), (128, 64), (64, 128)]


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_LEAST_TALL", 1)


def multiply(a: NDArray[Any], b: NDArray[Any], threads: int = 2) -> NDArray[Any]:
    """aᵀ b in steps; rows of either may lie apart."""
    (k, m), n = a.shape, b.shape[1]
    c = np.full((m, n), np.nan, a.dtype)
    plan = gemm.plan_product(a.dtype, (m, n, k), 1, (True, False))
    assert plan is not None and plan.form in ("tall", "turned"), plan
    strides = [x.strides[0] // x.itemsize for x in (a, b)]
    operands = (Operand(0, strides[0], (0,), True), Operand(1, strides[1], (0,)), Operand(2, n, (0,)))
    parts = np.full(plan.parts * c.size, np.nan, c.dtype)
    steps = product_steps(c.dtype, (m, n, k), plan, operands, 3, 4 if plan.parts > 1 else 2)
    call = Call([a, b, c, c, parts], [(s.address, s.block, s.extent, s.nchunks) for s in steps])
    runtime().run_steps(*call.arguments, 0, threads, 0)
    return c


@needs_registers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n"), COLUMNS)
def test_odd_sizes_and_bits(dtype: str, m: int, n: int) -> None:
    rng = np.random.default_rng(m + n)
    for k in (2048, 2111, 9999):
        a, b = rng.standard_normal((k, m + 3)).astype(dtype)[:, :m], rng.standard_normal((k, n)).astype(dtype)
        c = multiply(a, b)
        left, right = a.T.astype(float), b.astype(float)
        assert (np.abs(c - left @ right) <= TOLERANCE[dtype] * (np.abs(left) @ np.abs(right))).all(), k
        assert {multiply(a, b, threads).tobytes() for threads in (1, 3)} == {c.tobytes()}


@needs_registers
def test_nothing_behind_the_matrices_is_read(tmp_path: Any) -> None:
    """The last page of a mapped file ends with the matrix: a read behind it would be a fault or give a wrong sum."""
    rng = np.random.default_rng(3)
    for m, n in ((12, 4), (4, 12), (24, 20)):
        mapped = []
        for columns in (m, n):
            path = tmp_path / f"{m}_{n}_{columns}"
            rng.standard_normal((4096, columns)).astype("f4").tofile(path)
            mapped.append(np.memmap(path, np.float32, "r", shape=(4096, columns)))
            assert mapped[-1].nbytes % 4096 == 0
        assert np.allclose(multiply(mapped[0], mapped[1]), mapped[0].T @ mapped[1], atol=1e-2)


@needs_registers
@pytest.mark.parametrize(("m", "n"), [(10, 7), (30, 3), (3, 30)])
def test_infinities_and_nan_stay_in_their_places(m: int, n: int) -> None:
    a, b = np.ones((5000, m)), np.ones((5000, n))
    a[-1, m - 1], b[7, 0], a[3, 1], b[:, n - 1] = np.inf, np.nan, -np.inf, -0.0
    with np.errstate(invalid="ignore"):
        expected = a.T @ b
    found = multiply(a, b)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(np.signbit(found[expected == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("width", [64, 32])
def test_which_products_are_of_tall_matrices(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(compilation, "vector_bytes", lambda: width)
    monkeypatch.setattr(compilation, "has_fma", lambda: True)

    def form(m: int, n: int, k: int, turned: tuple[bool, bool] = (True, False), batch: int = 1) -> str | None:
        plan = gemm.plan_product(np.dtype("float64"), (m, n, k), batch, turned)
        return None if plan is None else plan.form

    assert [form(10, 8, 50_000), form(6, 100, 50_000)] == ["tall"] * 2
    assert [form(30, 3, 50_000), form(100, 7, 10_000)] == ["turned"] * 2
    apart = [form(10, 7, 50_000, turned) for turned in ((False, False), (False, True), (True, True))]
    apart += [form(10, 7, 50_000, batch=3), form(10, 7, 2000), form(129, 7, 50_000), form(65, 65, 50_000)]
    assert {"tall", "turned"}.isdisjoint([*apart, form(2, 2, 100_000), form(1, 70, 50_000)])


@needs_registers
def test_a_regression_for_several_outputs() -> None:
    rng = np.random.default_rng(5)
    x, w, y = rng.standard_normal((5001, 11)), rng.standard_normal((11, 7)), rng.standard_normal((5001, 7))
    f = jg.compile(jg.value_and_grad(lambda w, x: np.sum((x @ w - y[: len(x)]) ** 2)))
    for n in (5001, 4000, 3000):
        for ours, theirs in zip(f(w, x[:n]), f.interpret(w, x[:n]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10)
