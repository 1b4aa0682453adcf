"""Our own products whose packed B all threads share, or with a transposed A that is not packed, against NumPy's matmul
and the same products in tiles.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from step_kernels import Call

import jitgrad as jg
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.machine import compilation
from jitgrad.compiler.machine.cache import KernelCache, cache_key
from jitgrad.compiler.machine.tiers import improver
from jitgrad.compiler.products import gemm, product_code
from jitgrad.compiler.products.blas import Operand
from jitgrad.compiler.products.gemm_shared import MOST_ROWS, cell_bytes
from jitgrad.compiler.products.gemm_steps import GemmPlan, product_steps
from jitgrad.compiler.products.gemm_tiles import TALL
from jitgrad.compiler.products.registers import kinds
from jitgrad.config import config
from tests.processors import needs_registers

pytestmark = needs_registers
SIZES = ((36, 64, 40), (97, 65, 321), (130, 257, 523), (205, 70, 3), (200, 300, 600), (7, 33, 5))
PANELS = ((45, 3, 264), (256, 0, 256), (41, 5, 392), (33, 0, 8), (300, 1, 500))
TOLERANCE = {"float32": 2e-5, "float64": 1e-13}
MARKS = 64


def share(monkeypatch: pytest.MonkeyPatch, is_sharing: bool) -> None:
    """Have all products share packed B, but those of a transposed A with one panel, or none."""
    found = {name: dataclasses.replace(kind, halves=is_sharing) for name, kind in kinds().items()}
    monkeypatch.setattr(gemm, "kinds", lambda: found)
    monkeypatch.setattr(gemm, "_is_wide", lambda *of_product: True)
    monkeypatch.setattr(gemm, "_short_form", lambda *of_product: None)
    for least in ("_LEAST_SHARED", "_LEAST_SHARING"):
        monkeypatch.setattr(gemm, least, 1)


def marked(dtype: str, nbytes: int) -> NDArray[Any]:
    """Memory at a line of the cache, NaN all over, with marks behind it."""
    raw = np.full(nbytes + MARKS + 64, 255, np.uint8)
    room = raw[-raw.ctypes.data % 64 :][: nbytes + MARKS]
    room[nbytes:] = 7
    return room


def multiply(
    dtype: str, sizes: tuple[int, int, int], ta: bool, tb: bool, threads: int = 2
) -> tuple[NDArray[Any], GemmPlan]:
    """A product of normal numbers with NaN between their rows and around them, checked; and how it was cut."""
    (m, n, k), rng = sizes, np.random.default_rng(6)
    plan = gemm.plan_product(np.dtype(dtype), sizes, 1, (ta, tb))
    assert plan is not None
    operands, arrays, factors = [], [], []
    for slot, (rows, columns, is_turned) in enumerate(((m, k, ta), (k, n, tb))):
        high, wide = (columns, rows) if is_turned else (rows, columns)
        room = np.full((high + 1, wide + 5), np.nan, dtype)
        given = room[:high, 3 : 3 + wide] = rng.standard_normal((high, wide))
        operands.append(Operand(slot, wide + 5, (0,), is_turned, 3))
        arrays.append(room)
        factors.append(given.T if is_turned else given)
    c = np.full(m * n + MARKS, 7, dtype)
    memory = [marked(dtype, plan.worker_bytes * threads), marked(dtype, plan.shared_bytes)]
    part = 4 if plan.shared_bytes else 2
    steps = product_steps(c.dtype, sizes, plan, (operands[0], operands[1], Operand(2, n, (m * n,))), 3, part)
    call = Call([*arrays, c, *memory], [(s.address, s.block, s.extent, s.nchunks) for s in steps])
    runtime().run_steps(*call.arguments, 0, threads, 0)
    assert (c[m * n :] == 7).all()
    assert all((room[-MARKS:] == 7).all() for room in memory)
    bound = TOLERANCE[dtype] * (abs(factors[0]) @ abs(factors[1]))
    made = c[: m * n].reshape(m, n)
    assert (abs(made - factors[0] @ factors[1]) <= bound).all()
    return made, plan


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", SIZES)
def test_same_bits_as_without_sharing(monkeypatch: pytest.MonkeyPatch, dtype: str, sizes: tuple[int, int, int]) -> None:
    """Whatever is transposed, for any number of threads, and nothing else is read or written."""
    for ta, tb in itertools.product((False, True), (False, True)):
        made = set()
        for is_sharing, threads in ((True, 1), (True, 2), (True, 3), (False, 2)):
            share(monkeypatch, is_sharing)
            result, plan = multiply(dtype, sizes, ta, tb, threads)
            assert (plan.form != "tiles") == is_sharing
            made.add(result.tobytes())
        assert len(made) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "missing", "k"), PANELS)
def test_transposed_and_not_packed(monkeypatch: pytest.MonkeyPatch, dtype: str, m: int, missing: int, k: int) -> None:
    """One panel of B, or nearly; rows that fill tiles and others, parts of the sum."""
    columns = kinds()[dtype].columns
    n = columns - min(missing, columns // 4)  # a panel of registers of 32 bytes has 8
    for turned in (False, True):
        made = set()
        for is_sharing, threads in ((True, 1), (True, 2), (False, 2)):
            share(monkeypatch, is_sharing)
            result, plan = multiply(dtype, (m, n, k), True, turned, threads)
            assert plan.form == ("unpacked" if is_sharing else "tiles")
            made.add(result.tobytes())
        assert len(made) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("is_sharing", [True, False])
def test_quick_code_has_whole_tiles_and_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str, sizes: tuple[int, int, int], is_sharing: bool
) -> None:
    """Beyond rows and columns of a product, whole tiles meet what lies there: NaN, and nothing behind it is written."""
    share(monkeypatch, is_sharing)
    monkeypatch.setattr(product_code, "_entered", set())
    monkeypatch.setattr(product_code, "_begun", set())
    module = {"float32": "jitgrad_tiles_f32", "float64": "jitgrad_tiles_f64"}[dtype]
    for folder in (tmp_path / "first", tmp_path / "other"):
        for ta, tb in itertools.product((False, True), (False, True)):
            made = []
            for _ in ("quickly", "well"):
                monkeypatch.setattr(product_code, "_addresses", {})
                with config(cache_dir=str(folder), quick_start=True):
                    made.append(multiply(dtype, sizes, ta, tb)[0].tobytes())
                improver.wait()
            assert made[0] == made[1]
        kept = KernelCache(folder, 1 << 30)
        assert kept.has(cache_key(module))
        assert not kept.has(cache_key(f"{module}_first"))
    assert [name for _, name in product_code._begun] == [module] * 2


def test_memory_for_whole_panels_of_rows() -> None:
    """Whole tiles read all rows of the last panel of A: some of them lie behind the cell's."""
    for kind in kinds().values():
        for rows in range(1, MOST_ROWS + 1):
            packed = cell_bytes(kind, rows) // kind.size - TALL * kind.columns
            assert packed >= kind.row * TALL * -(-rows // TALL)
            assert packed % (kind.row * kind.lanes) == 0  # whole squares


@pytest.mark.parametrize(("rows", "height"), [(1024, 48), (784, 36), (512, 66), (256, 66), (192, 48)])
def test_processors_have_as_many_rows(monkeypatch: pytest.MonkeyPatch, rows: int, height: int) -> None:
    share(monkeypatch, True)
    monkeypatch.setattr(gemm, "_processors", lambda: 2)
    plan = gemm.plan_product(np.dtype("f4"), (rows, 512, 512), 1, (False, False))
    assert plan is not None
    assert (plan.rows, plan.cells) == (height, -(-rows // height))


def test_which_products_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones of two matrices, where registers of 64 bytes are multiplied in halves."""

    def form(m: int, n: int, k: int, batch: int = 1, turned: bool = False) -> str | None:
        plan = gemm.plan_product(np.dtype("f4"), (m, n, k), batch, (turned, False))
        return None if plan is None else plan.form

    monkeypatch.setattr(compilation, "vector_bytes", lambda: 64)
    monkeypatch.setattr(compilation, "multiplies_halves", lambda: True)
    assert form(1024, 1024, 784) == "shared"
    assert form(256, 512, 784) == "shared"
    assert form(128, 1024, 1024) == "tiles"
    assert form(256, 256, 256) == "tiles"
    assert form(512, 512, 512, 4) == "tiles"
    assert form(1024, 10, 1024) is None
    assert form(256, 64, 256, 32) == "tiles"
    assert form(256, 64, 256, 32, True) == "unpacked"
    assert form(256, 64, 255, 32, True) is None
    assert form(256, 32, 256, 32, True) is None
    monkeypatch.setattr(compilation, "multiplies_halves", lambda: False)
    assert form(1024, 1024, 784) == "tiles"
    assert form(256, 64, 256, 32, True) == "tiles"


def test_values_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with shared products, also where only its batch is another; NaN stays in its row."""
    share(monkeypatch, True)
    rng = np.random.default_rng(4)
    w = rng.standard_normal((90, 70)).astype("f4")
    compiled = jg.compile(jg.value_and_grad(lambda w, x: np.mean(np.tanh(x @ w)), (0, 1)))
    for rows in (120, 250):
        x = rng.standard_normal((rows, 90)).astype("f4")
        value, gradients = compiled(w, x)
        expected, expected_gradients = compiled.interpret(w, x)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5 * np.abs(expected_gradient).max() + 1e-7)
    x[7, 3] = np.nan
    of_x = compiled(w, x)[1][1]
    assert np.isnan(of_x[7]).all()
    assert np.isfinite(np.delete(of_x, 7, 0)).all()
