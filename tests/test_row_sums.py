"""Rows summed in registers: which loops are, that bits are those of quick code, and that checks are still made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.emission.row_sums import find_row_sum
from jitgrad.compiler.loopir.nests import (
    SERIAL,
    VECTOR,
    Bound,
    Buffer,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
)
from jitgrad.compiler.machine.tiers import improver

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
HERE = Index((Term("i1"),))
POSITION = Load("v0", I64, "in0", Index((Term("i0"),)))
BOUND = Bound("v0", "n2", "n3")
LOOKED_UP = Load("v1", F32, "in1", Index((Term("v0", "n1"), Term("i1"))), (BOUND,), Literal(F32.type(0), F32))
BEFORE, ADD, AFTER = Load("v2", F32, "row0", HERE), Let("v3", F32, "add", ("v2", "v1")), Store("row0", HERE, "v3", F32)
COLUMNS = Loop("i1", "n1", VECTOR, (LOOKED_UP, BEFORE, ADD, AFTER))
TERMS = Loop("i0", "n0", SERIAL, (POSITION, COLUMNS))


def _kernel(loop: Loop, role: str = "scratch") -> Kernel:
    row = Buffer("row0", F32, role, "n1" if role == "scratch" else None)
    buffers = (Buffer("in0", I64, "in"), Buffer("in1", F32, "in"), row)
    return Kernel(buffers, ("n0", "n1", "n2", "n3"), (), (loop,))


def _with_columns(*body: Statement) -> Loop:
    return replace(TERMS, body=(POSITION, replace(COLUMNS, body=body)))


@pytest.mark.quick
def test_a_row_of_sums_is_found() -> None:
    found = find_row_sum(TERMS, _kernel(TERMS))
    assert found is not None
    assert (found.before, found.update.value, found.after, found.looked_up) == (BEFORE, "v1", AFTER, [LOOKED_UP])
    plain = replace(LOOKED_UP, index=Index((Term("i0", "n1"), Term("i1"))), bounds=(), fill=None)
    found = find_row_sum(loop := _with_columns(plain, BEFORE, ADD, AFTER), _kernel(loop))
    assert found is not None
    assert found.looked_up == []


@pytest.mark.quick
@pytest.mark.parametrize(
    "loop",
    [
        _with_columns(LOOKED_UP, BEFORE, replace(ADD, op="maximum"), AFTER),
        _with_columns(LOOKED_UP, BEFORE, replace(ADD, args=("v2", "v2")), AFTER),
        _with_columns(LOOKED_UP, BEFORE, ADD, replace(AFTER, index=Index((Term("i1", 2),)))),
        _with_columns(LOOKED_UP, BEFORE, ADD, replace(AFTER, bounds=(BOUND,))),
        _with_columns(LOOKED_UP, BEFORE, Let("v4", F32, "multiply", ("v2", "v1")), ADD, AFTER),
        _with_columns(replace(LOOKED_UP, bounds=(Bound("i1", None, "n3"),)), BEFORE, ADD, AFTER),
        replace(TERMS, kind="parallel"),
        replace(TERMS, body=(*TERMS.body, POSITION)),
        replace(TERMS, body=()),
    ],
    ids=["extreme", "doubled", "elsewhere", "bounded", "read twice", "border", "parallel", "more", "empty"],
)  # fmt: skip
def test_other_loops_are_left_as_they_are(loop: Loop) -> None:
    assert find_row_sum(loop, _kernel(loop)) is None


@pytest.mark.quick
def test_only_memory_of_the_kernel_is_kept_in_registers() -> None:
    assert find_row_sum(TERMS, _kernel(TERMS, "out")) is None


@pytest.mark.quick
def test_good_code_asks_for_later_terms_outside_of_the_row_of_sums() -> None:
    text = {}
    for role in ("scratch", "out"):
        module = ir.Module("test")
        emit_kernel(module, _kernel(TERMS, role), "kernel", 64)
        text[role] = str(module)
    assert "llvm.prefetch" in text["scratch"]
    assert "<64 x float>" in text["scratch"]
    assert "<64 x float>" not in text["out"]


def bags(table: Any, tokens: Any, scale: Any) -> Any:
    return np.sum(np.tanh(np.mean(table[tokens], axis=1)) * scale)


def _bits(result: Any) -> list[bytes]:
    value, gradients = result
    return [np.asarray(part).tobytes() for part in (value, *gradients)]


@pytest.mark.parametrize("columns", [1, 15, 64, 131])
@pytest.mark.parametrize("terms", [1, 7, 32])
def test_bits_are_those_of_quick_code_and_of_any_number_of_threads(columns: int, terms: int) -> None:
    rng = np.random.default_rng(columns)
    for dtype, kind in ((np.float32, np.int64), (np.float64, np.int32)):
        table = rng.standard_normal((90, columns)).astype(dtype)
        tokens = rng.integers(-90, 90, (70, terms)).astype(kind)
        scale = rng.standard_normal((70, columns)).astype(dtype)
        f = jg.compile(jg.value_and_grad(bags, (0, 2)))
        quick = _bits(f(table, tokens, scale))
        improver.wait()
        before = jg.get_num_threads()
        try:
            for threads in (1, 2, 3):
                jg.set_num_threads(threads)
                assert _bits(f(table, tokens, scale)) == quick
        finally:
            jg.set_num_threads(before)
        value, gradients = f(table, tokens, scale)
        want, wanted = f.interpret(table, tokens, scale)
        for got, expected in zip((value, *gradients), (want, *wanted), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5 if dtype == np.float32 else 1e-12, atol=1e-5)


@pytest.mark.parametrize("columns", [0, 16, 64, 80])
def test_a_position_out_of_bounds_is_found_whatever_the_columns(columns: int) -> None:
    table, tokens, scale = np.ones((5, columns)), np.array([[0, 1, 5]]), np.ones((1, columns))
    with pytest.raises(IndexError):
        jg.compile(bags)(table, tokens, scale)
