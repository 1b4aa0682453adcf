"""Rows of a few registers have code of their own for each number of them, with the bits of other code."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.emission.short_rows import most_registers, row_in_registers
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    SERIAL,
    VECTOR,
    Accumulator,
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
    Update,
)
from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.compilation import has_avx512, has_fma, vector_bytes
from tests.cases import Array
from tests.test_strides import Guarded

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
SUMS = ("add", "product", "maximum")
_count = itertools.count()


def _row(*terms: Term) -> Index:
    return Index((Term("i0", "n0"), *terms))


# -- which rows --------------------------------------------------------------------------------------------------------

LOAD, STORE = Load("v0", F32, "in0", _row(Term("i1"))), Store("out0", _row(Term("i1")), "v0", F32)


def _columns(*body: Statement, extent: str = "n0") -> Loop:
    return Loop("i1", extent, VECTOR, body)


@pytest.mark.quick
def test_which_rows_are_emitted_so() -> None:
    columns = _columns(LOAD, STORE)
    for kind in (PARALLEL, SERIAL):
        assert row_in_registers(Loop("i0", "n1", kind, (columns,))) is columns
    apart = _columns(Load("v0", F32, "in0", _row(Term("i1", 3))), Load("v1", F32, "in0", _row(Term("i1", 1, None, 2))))
    assert row_in_registers(Loop("i0", "n1", PARALLEL, (apart,))) is apart
    gathered = _columns(Load("v1", I64, "in1", _row(Term("i1"))), Load("v0", F32, "in0", Index((Term("v1"),))), STORE)
    far, spread = (Index((Term("i0", "n0"), Term("i1", stride))) for stride in ("n1", 2))
    guarded = Load("v0", F32, "in0", _row(Term("i1")), (Bound("i1", "o0", None),), Literal(F32.type(0), F32))
    bounded = _columns(guarded, STORE)
    assert row_in_registers(Loop("i0", "n1", PARALLEL, (bounded,))) is bounded
    others = [
        gathered, _columns(Load("v0", F32, "in0", far)), _columns(LOAD, Store("out0", spread, "v0", F32)),
        _columns(guarded, Update("acc0", F32, "add", "v0")), _columns(Load("v0", F32, "out0", _row(Term("i1"))), STORE),
        _columns(LOAD, *[Let(f"v{k}", F32, "add", ("v0", "v0")) for k in range(1, 70)], STORE),
        _columns(LOAD, STORE, extent="v9"),
    ]  # fmt: skip
    extent = Load("v9", I64, "in1", Index((Term("i0"),)))
    for other in others:
        assert row_in_registers(Loop("i0", "n1", PARALLEL, (extent, other))) is None
    assert row_in_registers(Loop("i0", "n1", PARALLEL, (columns, columns))) is None
    assert row_in_registers(Loop("i0", "n1", PARALLEL, (columns,), start="n2")) is None
    assert [most_registers(_columns(*[LOAD] * n)) for n in (1, 10, 11, 16, 17, 33, 34, 60)] == [4, 4, 3, 3, 2, 2, 1, 1]


# -- kernels -----------------------------------------------------------------------------------------------------------


def _kernel(dtype: str, sums: Sequence[str], is_light: bool) -> Kernel:
    """Rows of elements, of every second one, and of each twice; what is made of them, and sums of it."""
    type_ = np.dtype(dtype)
    body: list[Statement] = [Load("v0", type_, "in0", Index((Term("i0", "n0"), Term("i1"))))]
    if not is_light:
        body += [
            Load("v1", type_, "in1", Index((Term("i0", "n2"), Term("i1", 2)))),
            Load("v2", type_, "in1", Index((Term("i0", "n2"), Term("i1", 2)), None, 1)),
            Load("v3", type_, "in2", Index((Term("i0", "n3"), Term("i1", 1, None, 2)))),
            Load("v4", type_, "in2", Index((Term("i0", "n3"), Term("i1", 1, None, 3)))),
            Let("v5", type_, "subtract", ("v1", "v2")),
            Let("v6", type_, "multiply", ("v3", "v4")),
            Let("v7", type_, "add", ("v5", "v6")),
            Let("v0x", type_, "add", ("v0", "v7")),
        ]
    value = "v0" if is_light else "v0x"
    body += [Update(s, type_, "add" if s == "product" else s, value, factor=value if s == "product" else None)
             for s in sums]  # fmt: skip
    body += [] if is_light else [Store("out0", Index((Term("i0", "n0"), Term("i1"))), value, type_)]
    inits = {"maximum": -np.inf}
    row: list[Statement] = [
        Accumulator(s, type_, "add" if s == "product" else s, Literal(type_.type(inits.get(s, 0)), type_)) for s in sums
    ]
    row.append(Loop("i1", "n0", VECTOR, tuple(body)))
    row += [Store("out1", Index((Term("i0", len(SUMS)),), None, k), s, type_) for k, s in enumerate(sums)]
    roles = {"in0": "in", "in1": "in", "in2": "in", "out0": "out", "out1": "out"}
    buffers = tuple(Buffer(name, type_, role) for name, role in roles.items())
    return Kernel(buffers, ("n0", "n1", "n2", "n3"), (), (Loop("i0", "n1", PARALLEL, tuple(row)),))


def _bounded(dtype: str, times: int) -> Kernel:
    """Rows with a border, and elements that lanes share within it, in the first rows only, or in its left part."""
    type_ = np.dtype(dtype)
    zero, inside = Literal(type_.type(0), type_), Bound("i1", "o0", "o1")
    shifted, plain = (Term("i1", 1, shift, times) for shift in ("o2", None))
    within, start, rows = (inside, Bound("i0", None, "o4")), (Bound("i1", None, "o3"),), Term("i0", "n3")
    body = (
        Load("v0", type_, "in0", Index((Term("i0", "n2"), Term("i1")), "o2"), (inside,), zero),
        Load("v1", type_, "in1", Index((rows, shifted)), within, zero),
        Load("v2", type_, "in1", Index((rows, plain)), start, zero),
        Let("v3", type_, "multiply", ("v1", "v2")),
        Let("v4", type_, "subtract", ("v0", "v3")),
        Store("out0", Index((Term("i0", "n0"), Term("i1"))), "v4", type_),
    )
    rows_loop = Loop("i0", "n1", PARALLEL, (Loop("i1", "n0", VECTOR, body),))
    buffers = tuple(Buffer(name, type_, name.rstrip("01")) for name in ("in0", "in1", "out0"))
    ints = ("n0", "n1", "n2", "n3", "o0", "o1", "o2", "o3", "o4")
    return Kernel(buffers, ints, (), (rows_loop,))


class _Native:
    """A kernel's function of the addresses of its buffers, its ints, and where stores go past the caches."""

    def __init__(self, kernel: Kernel, quickly: bool) -> None:
        name, nbytes = f"rows_{next(_count)}", vector_bytes()
        module = ir.Module(name, has_fma(), nbytes if quickly else 0, has_avx512(), quickly)
        emit_kernel(module, kernel, name, nbytes)
        self.code = native.load_object(native.compile_to_object(module, quickly=quickly), [name])
        self.function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)(self.code[name])

    def __call__(self, arrays: Sequence[Array], ints: Sequence[int], streaming: int) -> None:
        table = np.array([a.ctypes.data for a in arrays])
        block = np.array([*range(len(arrays)), *ints, streaming])
        self.function(table.ctypes.data, block.ctypes.data, 0, ints[1], 0, 0)


@pytest.fixture(scope="module")
def pages() -> list[Guarded]:
    return [Guarded() for _ in range(5)]


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize(
    ("dtype", "sums", "is_light"),
    [("float32", (), False), ("float32", SUMS, False), ("float64", SUMS, False), ("float64", ("add",), False),
     ("float32", ("add",), True), ("float64", ("product",), True), ("float32", ("maximum",), True)],
)  # fmt: skip
def test_rows_have_the_bits_of_quick_code_and_touch_nothing_else(
    dtype: str, sums: tuple[str, ...], is_light: bool, is_in_place: bool, pages: list[Guarded]
) -> None:
    """Rows that end where a page does behind which there is none, or begin where one does, of all widths."""
    kernel = _kernel(dtype, sums, is_light)
    quick, good = _Native(kernel, True), _Native(kernel, False)
    rng, rows = np.random.default_rng(3), 3
    for columns, at_end in itertools.product(range(1, 80), (False, True)):
        shared = (columns + 1) // 2
        counts = [rows * columns, 2 * rows * columns, rows * shared, rows * columns, rows * len(SUMS)]
        given = [(rng.standard_normal(count) * 9).astype(dtype) for count in counts]
        given[0][columns // 2 :: 7 * columns] = rng.choice([np.nan, np.inf, -0.0])
        results = []
        for call, streaming in ((quick, -1), (good, -1), (good, 0)):
            arrays = [page.array(n, dtype, at_end) for page, n in zip(pages, counts, strict=True)]
            for array, values in zip(arrays, given, strict=True):
                array[:] = values
            if is_in_place and not is_light:
                arrays[3] = arrays[0]
            with np.errstate(all="ignore"):
                call(arrays, (columns, rows, 2 * columns, shared), streaming)
            results.append([arrays[k].tobytes() for k in (3, 4)])
            if not is_light:
                x, y, z = given[0].reshape(rows, -1), given[1].reshape(rows, -1, 2), given[2].reshape(rows, -1)
                k = np.arange(columns)
                expected = x + ((y[..., 0] - y[..., 1]) + z[:, k // 2] * z[:, k // 3])
                np.testing.assert_allclose(arrays[3].reshape(rows, -1), expected, rtol=1e-4, atol=1e-3)
        assert results[0] == results[1] == results[2], f"{columns} columns"


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_with_a_border_touch_what_lies_inside_only(dtype: str, times: int, pages: list[Guarded]) -> None:
    kernel = _bounded(dtype, times)
    assert row_in_registers(kernel.body[0]) is not None  # type: ignore[arg-type]
    calls, rng, rows = [_Native(kernel, quickly) for quickly in (True, False)], np.random.default_rng(7), 3
    borders = itertools.product(range(1, 70, 2), (0, 1, 4, 17), (0, 1, 3, 18), (False, True))
    for columns, before, behind, at_end in borders:
        lo, hi = min(before, columns), max(columns - behind, 0)
        width = max(hi - lo, 0)
        shared = -(-width // times)
        end, few = min(columns, times * shared), 2
        x = (rng.standard_normal((rows, width)) * 9).astype(dtype)
        y = (rng.standard_normal((rows, shared)) * 9).astype(dtype)
        expected, product = (np.zeros((rows, columns), dtype) for _ in range(2))
        expected[:, lo:hi] = x
        product[:few, lo:hi] = y[:few, np.arange(width) // times]
        product[:, :end] *= y[:, np.arange(end) // times]
        product[:, end:] *= 0
        for call, streaming in ((calls[0], -1), (calls[1], -1), (calls[1], 0)):
            sizes = (x.size, y.size, product.size)
            arrays = [page.array(n, dtype, at_end) for page, n in zip(pages, sizes, strict=False)]
            arrays[0][:], arrays[1][:], arrays[2][:] = x.ravel(), y.ravel(), 7
            call(arrays, (columns, rows, width, shared, lo, hi, -lo, end, few), streaming)
            np.testing.assert_array_equal(arrays[2].reshape(rows, columns), expected - product)


@pytest.mark.quick
def test_masks_are_made_ahead_of_all_rows() -> None:
    module = ir.Module("kernel", True, has_avx512=True)
    emit_kernel(module, _kernel("float32", (), False), "kernel", 64)
    blocks = re.split(r"\n(?=\w+\.\d+:)", str(module))
    rows = [block for block in blocks if block.startswith("loop.")][:2]  # those of one register, and of two
    for block in rows:
        assert "llvm.masked.load" in block
        assert "icmp ult <16 x i32>" not in block
        assert "icmp slt <16 x i32>" not in block


# -- programs ----------------------------------------------------------------------------------------------------------


def _reads(x: Any, s: Any) -> Any:
    n = x.shape[1] // 2 * 2
    doubled = np.repeat(x, 2, 1) * np.repeat(s[:, None], 2 * x.shape[1], 1)
    return (x.sum(1), x.max(1), np.argmax(x, 1), np.argmin(x, 1), (x * x).sum(1), x * s[:, None], doubled,
            x[:, :n:2] * x[:, 1:n:2] + 1, x[:, ::-1] * s[:, None], np.repeat(x, 3, 1) * s[:, None] + 1)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_all_widths(dtype: str) -> None:
    """Sums of whole numbers, exact in any order; by quick code first, then by good code."""
    rng, f, before = np.random.default_rng(4), jg.compile(_reads), jg.get_num_threads()
    widths = (0, 1, 2, 7, 8, 9, 15, 16, 17, 28, 31, 32, 33, 48, 50, 64, 65)
    for width, rows in itertools.product(widths, (0, 1, 2, 300)):
        x, s = rng.integers(-9, 10, (rows, width + 1)).astype(dtype), 2.0 ** rng.integers(-2, 3, rows)
        x[::5, -1:], x[1::7, :1], x[2::9, width // 2], s = np.nan, np.inf, -0.0, s.astype(dtype)
        for threads in (1, 2):
            jg.set_num_threads(threads)
            with np.errstate(all="ignore"):
                for ours, expected in zip(f(x, s), f.interpret(x, s), strict=True):
                    np.testing.assert_array_equal(ours, expected)
                    assert ours.dtype == expected.dtype
    jg.set_num_threads(before)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pools_of_all_widths(dtype: str, size: int) -> None:
    """Values and gradients of layers whose windows share no element, in rows of one register to several."""
    rng, before = np.random.default_rng(size), jg.get_num_threads()

    def loss(x: Any, b: Any) -> Any:
        y = nn.relu(x + b[:, None, None])
        return (nn.max_pool2d(y, size) ** 2).sum() + (nn.avg_pool2d(y, size) ** 2).sum()

    f = jg.compile(jg.value_and_grad(loss, (0, 1)))
    for width in (size, size + 1, 5 * size, 14 * size, 16 * size, 23 * size + 1):
        x, b = rng.integers(-9, 10, (2, 3, 2 * size, width)).astype(dtype), np.array([1, 0, -2], dtype)
        for threads in (1, 2):
            jg.set_num_threads(threads)
            (value, (of_x, of_b)), (expected, (x_slope, b_slope)) = f(x, b), f.interpret(x, b)
            for ours, theirs in ((value, expected), (of_x, x_slope), (of_b, b_slope)):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-6)
    jg.set_num_threads(before)
