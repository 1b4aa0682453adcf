"""Our own matrix products as steps against NumPy's matmul: layouts, tiles, parts of a sum, odd sizes, bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from step_kernels import Call

import jitgrad as jg
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.machine import compilation
from jitgrad.compiler.products import gemm
from jitgrad.compiler.products.blas import Operand
from jitgrad.compiler.products.gemm_steps import GemmPlan, product_steps
from tests.processors import needs_registers

SIZES = (
    (130, 100, 80), (33, 610, 70), (16, 50, 4000), (1025, 31, 33), (5, 300, 700), (102, 260, 523), (12, 33, 2600),
    (205, 70, 3), (100, 580, 1044), (1024, 130, 523),
)  # fmt: skip
TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


@pytest.fixture(autouse=True)
def all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_is_long_sum", lambda sizes: True)
    monkeypatch.setattr(gemm, "_is_wide", lambda kind, sizes, batch, transposed: batch > 1)


def multiply(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], ta: bool, tb: bool, threads: int = 2) -> GemmPlan:
    """c = op(a) op(b) in steps; how it was cut."""
    sizes = (*c.shape, a.shape[0] if ta else a.shape[1])
    plan = gemm.plan_product(c.dtype, sizes, 1, (ta, tb))
    assert plan is not None
    operands = tuple(
        Operand(slot, x.shape[1], (x.shape[0] * x.shape[1],), turned)
        for slot, (x, turned) in enumerate(((a, ta), (b, tb), (c, False)))
    )
    scratch = np.full(plan.worker_bytes * threads + 64, 255, np.uint8)
    parts = np.full(plan.parts * c.size, np.nan, c.dtype)
    aligned = scratch[-scratch.ctypes.data % 64 :]
    part = 4 if plan.parts > 1 else 2
    steps = product_steps(c.dtype, sizes, plan, (operands[0], operands[1], operands[2]), 3, part)
    call = Call([a, b, c, aligned, parts], [(s.address, s.block, s.extent, s.nchunks) for s in steps])
    runtime().run_steps(*call.arguments, 0, threads, 0)
    return plan


def stored(rng: np.random.Generator, dtype: str, rows: int, columns: int, turned: bool) -> NDArray[Any]:
    return rng.standard_normal((columns, rows) if turned else (rows, columns)).astype(dtype)


def logical(array: NDArray[Any], turned: bool) -> NDArray[Any]:
    return array.T if turned else array


@needs_registers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_all_layouts(dtype: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    for ta, tb in itertools.product((False, True), (False, True)):
        a, b = stored(rng, dtype, m, k, ta), stored(rng, dtype, k, n, tb)
        c = np.full((m, n), np.nan, dtype)
        multiply(a, b, c, ta, tb)
        left, right = logical(a, ta).astype(float), logical(b, tb).astype(float)
        error = np.abs(c - left @ right)
        assert (error <= TOLERANCE[dtype] * (np.abs(left) @ np.abs(right))).all(), (ta, tb)


@needs_registers
@pytest.mark.parametrize("columns", [9, 130])
@pytest.mark.parametrize("shape", [(2048, 1024), (1024, 2048)])
def test_rows_that_share_a_place_in_the_cache(shape: tuple[int, int], columns: int) -> None:
    """A stored distance of whole pages: where columns are many, panels of a transposed A are packed."""
    rng = np.random.default_rng(1)
    for ta in (False, True):
        a, b = rng.standard_normal(shape).astype("f4"), rng.standard_normal((shape[not ta], columns)).astype("f4")
        c = np.empty((shape[ta], columns), np.float32)
        multiply(a, b, c, ta, False)
        np.testing.assert_allclose(c, logical(a, ta).astype(float) @ b, atol=1e-3)


@needs_registers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_do_not_depend_on_what_is_packed(dtype: str) -> None:
    """1024 columns of a transposed A lie whole pages apart, and are packed; 1040 are read where they lie."""
    rng = np.random.default_rng(4)
    wide, b = stored(rng, dtype, 1040, 523, True), stored(rng, dtype, 523, 130, False)
    made = []
    for a in (wide, wide[:, :1024].copy()):
        c = np.empty((a.shape[1], 130), dtype)
        assert multiply(a, b, c, True, False).parts == 1
        made.append(c[:1024].tobytes())
    assert made[0] == made[1]


@needs_registers
@pytest.mark.parametrize("sizes", [(300, 300, 300), (20, 50, 9000), (1000, 40, 60)])
def test_bits_do_not_depend_on_threads(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(3)
    a, b = stored(rng, "float32", m, k, False), stored(rng, "float32", k, n, False)
    results = []
    for threads in (1, 2, 3):
        c = np.empty((m, n), np.float32)
        multiply(a, b, c, False, False, threads)
        results.append(c.tobytes())
    assert len(set(results)) == 1


@needs_registers
def test_parts_of_a_long_sum() -> None:
    plan = gemm.plan_product(np.dtype("f4"), (17, 50, 10000), 1, (False, False))
    assert plan is not None and plan.form == "tiles"
    assert plan.parts > 8
    assert plan.parts * plan.depth >= 10000 > (plan.parts - 1) * plan.depth


@needs_registers
@pytest.mark.parametrize(("m", "n", "k"), [(130, 70, 33), (64, 300, 10), (300, 1100, 9)])
def test_batches(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(5)
    for batch, turned in ((1, False), (3, True), (20, False), (70, True)):
        a = rng.standard_normal((batch, m, k)).astype("f4")
        b = rng.standard_normal((batch, n, k) if turned else (batch, k, n)).astype("f4")
        c = np.full((batch, m, n), np.nan, "f4")
        plan = gemm.plan_product(c.dtype, (m, n, k), batch, (False, turned))
        assert plan is not None
        assert plan.cells >= batch
        operands = tuple(
            Operand(slot, x.shape[2], (x.shape[1] * x.shape[2],), is_turned)
            for slot, (x, is_turned) in enumerate(((a, False), (b, turned), (c, False)))
        )
        scratch = np.full(plan.worker_bytes * 2 + 64, 255, np.uint8)
        aligned = scratch[-scratch.ctypes.data % 64 :]
        steps = product_steps(c.dtype, (m, n, k), plan, (operands[0], operands[1], operands[2]), 3, 2)
        call = Call([a, b, c, aligned], [(s.address, s.block, s.extent, s.nchunks) for s in steps])
        runtime().run_steps(*call.arguments, 0, 2, 0)
        expected = a.astype(float) @ (np.swapaxes(b, 1, 2) if turned else b)
        np.testing.assert_allclose(c, expected, atol=1e-4)


@needs_registers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), [(2, 2, 1), (7, 33, 5), (97, 65, 321), (6, 129, 193), (100, 257, 40)])
def test_nothing_else_is_read_or_written(dtype: str, m: int, n: int, k: int) -> None:
    """NaN between the rows of operands and around them; marks behind what a product and its workers have."""
    rng, threads = np.random.default_rng(6), 2
    for ta, tb in itertools.product((False, True), (False, True)):
        plan = gemm.plan_product(np.dtype(dtype), (m, n, k), 2, (ta, tb))
        assert plan is not None
        operands, arrays, factors = [], [], []
        for slot, (rows, columns, is_turned) in enumerate(((m, k, ta), (k, n, tb))):
            high, wide = (columns, rows) if is_turned else (rows, columns)
            room = np.full((2, high + 1, wide + 5), np.nan, dtype)
            given = room[:, :high, 3 : 3 + wide] = rng.standard_normal((2, high, wide))
            operands.append(Operand(slot, wide + 5, ((high + 1) * (wide + 5),), is_turned, 3))
            arrays.append(room)
            factors.append(np.swapaxes(given, 1, 2) if is_turned else given)
        c, scratch = np.full(2 * m * n + 64, 7, dtype), np.full(plan.worker_bytes * threads + 128, 255, np.uint8)
        aligned = scratch[-scratch.ctypes.data % 64 :]
        a, b = operands
        steps = product_steps(c.dtype, (m, n, k), plan, (a, b, Operand(2, n, (m * n,))), 3, 2)
        call = Call([*arrays, c, aligned], [(s.address, s.block, s.extent, s.nchunks) for s in steps])
        runtime().run_steps(*call.arguments, 0, threads, 0)
        bound = TOLERANCE[dtype] * (abs(factors[0]) @ abs(factors[1]))
        assert (abs(c[: 2 * m * n].reshape(2, m, n) - factors[0] @ factors[1]) <= bound).all()
        assert (c[2 * m * n :] == 7).all()
        assert (aligned[plan.worker_bytes * threads :] == 255).all()


@needs_registers
def test_nan_and_infinity_reach_their_row_and_column_only() -> None:
    a, b = np.ones((130, 100)), np.ones((100, 90))
    a[129, 99], b[0, 89] = np.nan, np.inf
    c = np.zeros((130, 90))
    multiply(a, b, c, False, False)
    assert np.isnan(c[129]).all()
    assert np.isinf(c[:129, 89]).all()
    assert (c[:129, :89] == 100).all()


@needs_registers
def test_values_and_gradients() -> None:
    """Both kinds of products in a program: a transposed right operand, and a long sum."""
    rng = np.random.default_rng(4)
    w, x = rng.standard_normal((9, 40)).astype("f4"), rng.standard_normal((12000, 40)).astype("f4")
    compiled = jg.compile(jg.value_and_grad(lambda w, x: np.mean(np.tanh(w @ x.T))))
    value, gradient = compiled(w, x)
    expected, expected_gradient = compiled.interpret(w, x)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5 * np.abs(expected_gradient).max() + 1e-7)
    (stage, args), *_ = compiled.stages(w, x)
    clusters = [step for step in stage.executable(args).bound.steps if isinstance(step, BoundCluster)]
    assert sum(name.startswith("tiles") for cluster in clusters for name in cluster.names) == 2


@needs_registers
@pytest.mark.parametrize("sizes", [(300, 300, 300), (16, 50, 10000)])
def test_results_with_gaps_are_refused(sizes: tuple[int, int, int]) -> None:
    """Both forms write rows without gaps; a distance of rows of C that they ignored would give a wrong result."""
    _, n, k = sizes
    plan = gemm.plan_product(np.dtype("f4"), sizes, 1, (False, False))
    assert plan is not None
    operands = Operand(0, k), Operand(1, n), Operand(2, n + 8)
    with pytest.raises(ValueError, match=f"rows of {n} elements, stored {n + 8} apart"):
        product_steps(np.dtype("f4"), sizes, plan, operands, 3, 2)


def test_what_is_left_to_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(compilation, "has_fma", lambda: True)
    monkeypatch.setattr(compilation, "vector_bytes", lambda: 64)
    monkeypatch.setattr(compilation, "multiplies_halves", lambda: False)

    def is_ours(sizes: tuple[int, int, int], turned: bool, batch: int = 1, dtype: str = "f4") -> bool:
        return gemm.plan_product(np.dtype(dtype), sizes, batch, (False, turned)) is not None

    assert is_ours((16, 10000, 50), True)
    assert is_ours((16, 50, 10000), False)
    assert is_ours((16, 50, 10000), False, 1, "f8")
    assert is_ours((16, 10000, 50), True, 1, "f8")
    assert not is_ours((12, 10000, 50), True, 1, "f8")
    assert not is_ours((2, 30000, 100), True)
    assert not is_ours((30, 20000, 300), True)
    assert is_ours((64, 256, 4096), False)
    assert not is_ours((16, 10000, 50), True, 3)
    assert is_ours((256, 512, 784), False)
    assert is_ours((256, 256, 64), True, 32)
    assert is_ours((1024, 1024, 10), True)
    assert is_ours((1024, 1024, 10), False)
    assert is_ours((256, 64, 256), False, 32)
    assert is_ours((1024, 1024, 1024), False, 1, "f8")
    assert is_ours((256, 256, 256), False)
    assert not is_ours((64, 64, 64), False)
    assert not is_ours((2048, 40, 2048), False)
    assert not is_ours((1024, 10, 1024), False)
    assert not is_ours((16, 10000, 50), False)
    assert not is_ours((1, 10000, 500), True)
    assert not is_ours((16, 10000, 5), True)
    assert not is_ours((20, 10000, 50), True)
    assert gemm.plan_product(np.dtype("f4"), (256, 64, 256), 32, (True, False)) is not None  # A is not turned for it
    assert gemm.plan_product(np.dtype("f4"), (1024, 32, 1024), 1, (True, False)) is None
    assert gemm.plan_product(np.dtype("f4"), (100, 64, 100), 10, (True, False)) is None
    assert gemm.plan_product(np.dtype("f4"), (784, 512, 256), 1, (True, False)) is not None
    monkeypatch.setattr(compilation, "vector_bytes", lambda: 32)
    assert is_ours((16, 10000, 50), True)
    assert not is_ours((16, 10000, 50), True, 1, "f8")
    assert is_ours((16, 50, 10000), False, 1, "f8")
    assert is_ours((64, 50, 10000), False)
    assert is_ours((256, 512, 784), False)
    assert is_ours((32, 512, 128), False)
    assert not is_ours((16, 512, 1280), False)
    assert is_ours((256, 256, 256), False)
    assert is_ours((256, 256, 64), True, 32)
    assert is_ours((256, 64, 256), False, 32, "f8")
    assert not is_ours((128, 128, 60), True)
    assert not is_ours((1024, 1024, 1024), True)
    assert is_ours((256, 10, 512), False)
    assert is_ours((256, 8, 784), False, 1, "f8")
    assert not is_ours((256, 8, 512), False, 1, "f8")
    assert not is_ours((256, 8, 784), False)
    assert not is_ours((1024, 10, 1024), False)
    assert not is_ours((512, 24, 784), False)
    assert gemm.plan_product(np.dtype("f4"), (512, 10, 256), 1, (True, False)) is not None
    assert gemm.plan_product(np.dtype("f4"), (512, 10, 512), 1, (True, False)) is None
    monkeypatch.setattr(compilation, "vector_bytes", lambda: 16)
    assert not is_ours((256, 256, 64), True, 32)
