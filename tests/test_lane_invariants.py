"""What is the same for all lanes of a loop stands in front of it; sums that add in some lanes only; constants."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    VECTOR,
    Accumulator,
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
    Update,
)
from jitgrad.compiler.machine.tiers import improver

F32, BOOL = np.dtype(np.float32), np.dtype(bool)
ROW = Index((Term("i0", "n0"), Term("i1")))
ZERO, ONE = (Literal(F32.type(number), F32) for number in (0, 1))
LOAD = Load("v0", F32, "in0", ROW)
SUM = Loop("i1", "n0", VECTOR, (LOAD, Update("acc0", F32, "add", "v0")))


def _text(*body: Statement, init: Literal = ZERO, has_avx512: bool = True, count: int = 2) -> str:
    buffers = (Buffer("in0", F32, "in"), Buffer("out0", F32, "out"), Buffer("scratch0", F32, "scratch", "n0"))
    sums = tuple(Accumulator(f"acc{k}", F32, "add", init) for k in range(count))
    rows = Loop("i0", "n1", PARALLEL, (*sums, *body))
    module = ir.Module("kernel", True, has_avx512=has_avx512)
    emit_kernel(module, Kernel(buffers, ("n0", "n1", "o0"), (), (rows,)), "kernel", 64)
    return str(module)


def _loop_with(text: str, part: str) -> str:
    """The block of a loop over whole vectors in which this is."""
    return next(b for b in re.split(r"\n(?=\w+\.\d+:)", text) if b.startswith("loop.") and part in b)


@pytest.mark.quick
def test_what_is_the_same_for_all_lanes_stands_in_front_of_the_loop() -> None:
    body = (
        LOAD,
        Let("v1", BOOL, "equal", ("i1", "o0")),
        Let("v2", F32, "where", ("v1", ONE, ZERO)),
        Let("v3", F32, "multiply", ("v0", "acc0")),
        Let("v4", F32, "add", ("v3", "v2")),
        Store("scratch0", Index((Term("i1"),)), "v4", F32),
    )
    loop = _loop_with(_text(SUM, Loop("i1", "n0", VECTOR, body)), "fmul <32 x float>")
    assert "insertelement" not in loop
    assert "select" not in loop
    assert "alloca" not in loop
    assert len(re.findall(r"load float,", loop)) == 0  # of the sum


@pytest.mark.quick
def test_what_stands_in_front_of_a_loop_is_in_the_order_in_which_the_loop_reads_it() -> None:
    """Not in that of a set of names, which differs from process to process: the same program has the same text."""
    sums = [f"acc{k}" for k in range(7)]
    body = (LOAD, Let("v1", F32, "add_n", ("v0", *sums)), Store("out0", ROW, "v1", F32))
    text = _text(Loop("i1", "n0", VECTOR, body), count=len(sums), has_avx512=False)  # with it rows are written twice
    cells = re.findall(r"(%\S+) = alloca float", text)
    assert len(cells) == len(sums)
    read = re.findall(r"(%\S+) = load float, ptr (%\S+?)[,\n]", text)
    assert [cell for _, cell in read] == cells
    spread = re.findall(r"insertelement <16 x float> poison, float (%\S+), i32 0", text)
    assert spread == [name for name, _ in read]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("has_avx512", "init", "is_masked"), [(True, ZERO, True), (False, ZERO, False), (True, ONE, False)]
)
def test_a_sum_adds_in_some_lanes_by_a_mask(has_avx512: bool, init: Literal, is_masked: bool) -> None:
    body = (
        LOAD,
        Let("v1", BOOL, "less", ("v0", ONE)),
        Let("v2", F32, "where", ("v1", "v0", ZERO)),
        Let("v3", F32, "cast", ("v1",)),
        Update("acc0", F32, "add", "v2"),
        Update("acc1", F32, "add", "v3"),
    )
    loop = _loop_with(_text(Loop("i1", "n0", VECTOR, body), init=init, has_avx512=has_avx512), "<64 x i1>")
    sums = re.findall(r"(%v\d+) = fadd <\d+ x float>", loop)
    assert len(sums) == 2
    assert all((f"> {total}, <" in loop) is is_masked for total in sums)  # chosen in lanes of the mask


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 15, 64, 100, 1000])
def test_sums_of_some_lanes_are_those_of_the_interpreter(n: int, dtype: Any) -> None:
    x = np.random.default_rng(n).standard_normal((7, n)).astype(dtype)
    x[:, ::5], x[3] = -0.0, -0.0
    x[5, n // 2] = np.nan
    compiled = jg.compile(lambda x: (np.sum(np.where(x > 0, x, 0.0), axis=1), np.sum(x > 0, axis=1, dtype=x.dtype)))
    for found, expected in zip(compiled(x), compiled.interpret(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.quick
def test_constants_of_a_row_are_in_registers_before_its_loop() -> None:
    body = (LOAD, Let("v1", F32, "exp", ("v0",)), Store("scratch0", Index((Term("i1"),)), "v1", F32))
    row = Loop("i1", "n0", VECTOR, body)
    loop, before = _loop_with(_text(row), "scalef"), _loop_with(_text(row, has_avx512=False), "shl")
    pinned = _text(row).count('call <16 x float> asm "", "=v,0"(<16 x float> splat (float 0x')
    assert pinned == len(set(re.findall(r"splat \(float 0x[0-9a-f]*[1-9a-f][0-9a-f]*\)", before))) >= 12
    assert "splat (float" not in loop.replace("splat (float 0x0000000000000000)", "")
    assert "asm" not in _text(Loop("i1", "n0", VECTOR, (LOAD, Let("v1", F32, "square", ("v0",)), *body[2:])))


@pytest.mark.quick
def test_an_element_that_equals_a_number_leaves_whole_vectors_in_their_places() -> None:
    body = (
        LOAD,
        Let("v1", BOOL, "equal", ("i1", "o0")),
        Let("v2", F32, "where", ("v1", ONE, "v0")),
        Update("acc1", F32, "add", "v2"),
    )
    text = _text(Loop("i1", "n0", VECTOR, body))
    assert re.search(r"= and i64 %v\d+, -64$", text, re.MULTILINE)  # the place, in whole turns of four registers
    assert "shl i64 1" in text  # lanes are asked
    assert "shl i64 1" not in _loop_with(text, "load <64 x float>")
    between = (*body[:1], replace(body[1], op="less"), *body[2:])
    assert "shl i64 1" not in _text(Loop("i1", "n0", VECTOR, between))


@pytest.mark.parametrize("n", [1, 40, 64, 100, 1000])
def test_quick_and_good_code_give_the_same_bits_wherever_the_element_is(n: int) -> None:
    def loss(z: Any, labels: Any) -> Any:
        z = z - np.max(z, axis=1, keepdims=True)
        picked = np.take_along_axis(z, labels[:, None], axis=1)[:, 0]
        return np.mean(np.log(np.sum(np.exp(z), axis=1)) - picked)

    labels = np.arange(-n, n)
    z = np.random.default_rng(n).standard_normal((2 * n, n)).astype(np.float32)
    step = jg.compile(jg.value_and_grad(loss))
    quick = step(z, labels)
    improver.wait()
    good = step(z, labels)
    for first, second, expected in zip(quick, good, step.interpret(z, labels), strict=True):
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(second, expected, rtol=1e-5, atol=1e-6)


def test_an_operation_reads_an_accumulator_once() -> None:
    x = np.arange(60.0).reshape(6, 10) + 1
    shares = jg.compile(lambda x: np.sum(np.cumsum(x, 1) / np.max(x, 1, keepdims=True)))
    read = [line.partition(" = ")[2] for line in shares.explain(x).llvm.splitlines()]
    assert any(text.startswith("load double") for text in read)
    assert not [text for text, following in itertools.pairwise(read) if text == following and text.startswith("load")]
