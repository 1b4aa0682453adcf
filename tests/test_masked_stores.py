"""Good code stores without masks where a masked store takes as long as a dozen others: before AVX-512."""

from __future__ import annotations

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.llvmir import Module
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    SERIAL,
    VECTOR,
    Buffer,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Term,
)

F32 = np.dtype(np.float32)
LANE = Index((Term("i1"),))
ADD = Loop(
    "i1",
    "n1",
    VECTOR,
    (
        Load("v0", F32, "in0", Index((Term("i0", "n1"), Term("i1")))),
        Load("v1", F32, "out0", LANE),
        Let("v2", F32, "add", ("v0", "v1")),
        Store("out0", LANE, "v2", F32),
    ),
)


def _text(*body: Statement, has_avx512: bool = False, vector_bytes: int = 32) -> str:
    module = Module("rows", True, has_avx512=has_avx512)
    kernel = Kernel((Buffer("in0", F32, "in"), Buffer("out0", F32, "out")), ("n0", "n1"), (), body)
    emit_kernel(module, kernel, "kernel", vector_bytes)
    return str(module)


@pytest.mark.quick
def test_no_store_is_masked_before_avx512() -> None:
    copy = Loop("i1", "n1", VECTOR, (Load("v0", F32, "in0", LANE), Store("out0", LANE, "v0", F32)))
    text = _text(copy)
    assert all(text.count(f" store <{lanes} x float>") == 1 for lanes in (8, 4, 2, 1))
    assert "llvm.masked.store" not in text
    text = _text(copy, has_avx512=True, vector_bytes=64)
    assert " store <16 x float>" not in text
    assert text.count('call void @"llvm.masked.store') == 1


@pytest.mark.quick
def test_rows_of_a_serial_nest_are_worked_on_in_whole_registers() -> None:
    """The two registers of a turn are one vector here."""
    assert "store <16 x float>" in _text(Loop("i0", "n0", SERIAL, (ADD,)))


@pytest.mark.quick
def test_ends_of_rows_are_stored_in_pieces_past_the_caches_alone() -> None:
    """There a masked store waits for a line of memory; in cache pieces take longer."""
    index = Index((Term("i0", "n1"), Term("i1")))
    copy = Loop("i1", "n1", VECTOR, (Load("v0", F32, "in0", index), Store("out0", index, "v0", F32)))
    text = _text(Loop("i0", "n0", PARALLEL, (copy,)), has_avx512=True, vector_bytes=64)
    masked = text.index('call void @"llvm.masked.store')
    past, through = (text[:masked].rindex(f"\n{name}.") for name in ("then", "else"))
    assert past < through
    assert all(past < text.index(f" store <{lanes} x float>", past) for lanes in (8, 4, 2, 1))
    assert text.count("!nontemporal") == 2  # whole registers inside of a row, and at its end
    assert "i32 1, i32 3, i32 1)" in text  # the line that the next row begins in


def test_scatters_and_small_matrices_of_every_width() -> None:
    rng = np.random.default_rng(3)
    scatter = jg.compile(jg.grad(lambda table, at, w: np.sum(table[at] * w)))
    products = jg.compile(jg.value_and_grad(lambda a, b: np.sum((a @ b) ** 2), (0, 1)))
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33):
        at = rng.integers(0, 5, 11)
        for dtype in (np.float32, np.float64):
            table, w = rng.integers(-9, 9, (5, n)).astype(dtype), rng.integers(-9, 9, (11, n)).astype(dtype)
            np.testing.assert_array_equal(scatter(table, at, w), scatter.interpret(table, at, w))
            a, b = (rng.integers(-3, 3, (21, *shape)).astype(dtype) for shape in ((2, n), (n, 3)))
            for ours, expected in zip(products(a, b)[1], products.interpret(a, b)[1], strict=True):
                np.testing.assert_array_equal(ours, expected)
