"""Accesses of a few elements apart: whole registers and shuffles give what lies in memory, and touch nothing else."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.loopir.nests import PARALLEL_VECTOR, Buffer, Index, Kernel, Load, Loop, Statement, Store, Term
from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.compilation import has_avx512, has_fma, vector_bytes
from jitgrad.config import config
from tests.cases import Array

DTYPES = ("float64", "float32", "int64", "bool")
EXTENTS = (9, 16, 23, 101)
_PAGE = mmap.PAGESIZE

rng = np.random.default_rng(0)


def _array(shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    return (rng.standard_normal(shape) * 9).astype(dtype)


def _times(x: Any, y: Any) -> Any:
    return x ^ y if x.dtype == bool else x * y


def _assert_equal(fn: Callable[..., Any], *args: Array) -> None:
    f = jg.compile(fn)
    with config(quick_start=False):  # quick code puts no places together
        ours, expected = (r if isinstance(r, tuple) else (r,) for r in (f(*args), f.interpret(*args)))
    for a, b in zip(ours, expected, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_places_of_a_stride_stand_in_the_kernel() -> None:
    kernels = jg.compile(lambda x: x[:, 0] * x[:, 2]).explain(_array((50, 3), "float64")).kernels
    assert "v0 = in0[i0*3]" in kernels and "v1 = in0[i0*3 + 2]" in kernels
    kernels = jg.compile(lambda x: x[1:, 1] * x[1:, 2] + x[:-1, 1]).explain(_array((50, 3), "float64")).kernels
    assert kernels.count("= in0[i0*3 + o") == 3 and "+ 1]" in kernels
    kernels = jg.compile(lambda x: x[:, 0] * 2).explain(_array((50, 9), "float64")).kernels
    assert "in0[i0*n0]" in kernels


READS: dict[str, Callable[[Any], Any]] = {
    "first and last": lambda x: _times(x[:, 0], x[:, -1]),
    "one": lambda x: _times(x[:, -1], x[:, -1]),
    "backwards": lambda x: _times(x[::-1, 0], x[::-1, -1]),
    "both ways": lambda x: _times(x[::-1, 0], x[:, -1]),
    "two rows": lambda x: _times(x[1:, 0], x[:-1, -1]),
    "every second row": lambda x: _times(x[::2, 0], x[::2, 1]),
    "its diagonal": lambda x: _times(np.diagonal(x), np.diagonal(x)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", READS)
def test_places_of_rows(name: str, dtype: str) -> None:
    for stride, rows in itertools.product((2, 3, 5, 8), EXTENTS):
        _assert_equal(READS[name], _array((rows, stride), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", [2, 3, 5, -2])
def test_steps_of_slices(step: int, dtype: str) -> None:
    for n in range(24, 58, 5):
        x = _array((n,), dtype)
        _assert_equal(lambda x: (_times(x[::step], x[::step]), _times(x[1::step], x[1::step])), x)
        m = (n - 1) // abs(step)
        _assert_equal(lambda x, m=m: _times(x[::step][:m], x[1::step][:m]), x)


def test_parts_of_complex_numbers() -> None:
    for n, dtype in itertools.product(EXTENTS, (np.complex64, np.complex128)):
        z = (_array((n,), "float64") + 1j * _array((n,), "float64")).astype(dtype)
        _assert_equal(lambda z: np.real(z) * np.imag(z) + np.real(np.conjugate(z)), z)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gradients_of_columns(dtype: str) -> None:
    for stride, rows in itertools.product((2, 3, 4, 7), EXTENTS):
        x = _array((rows, stride), dtype)
        _assert_equal(jg.grad(lambda x: np.sum(x[:, 0] * x[:, -1])), x)


def _halves(x: Any) -> Any:
    return np.sum(x[..., ::2] * x[..., 1::2] ** 2)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("step", [2, 3, -2])
def test_gradients_of_steps(step: int, dtype: str) -> None:
    """Also where a step leaves elements over at either end of the axis."""
    for n, first in itertools.product((9, 24, 25, 50), (0, 1, 2)):
        _assert_equal(jg.grad(lambda x, first=first: np.sum(x[first::step] ** 2) * 2), _array((n,), dtype))
        _assert_equal(jg.grad(lambda x, first=first: np.sum(x[:, first::step] ** 2) * 2), _array((3, n), dtype))


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(48,), (20, 48), (4, 8, 30, 48)])
def test_the_gradient_of_both_halves_is_one_kernel(shape: tuple[int, ...]) -> None:
    x = _array(shape, "float64")
    explained = jg.compile(jg.grad(_halves)).explain(x)
    assert explained.kernels.count("def kernel(") == 1
    assert "*2 + 1] =" in explained.kernels
    _assert_equal(jg.grad(_halves), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks_of_columns(dtype: str) -> None:
    for stride, rows in itertools.product((2, 3, 5, 8), EXTENTS):
        x, y = _array((stride, rows), dtype), _array((rows, max(1, stride - 2)), dtype)
        _assert_equal(lambda x: np.stack([_times(part, part[::-1]) for part in x], -1), x)
        _assert_equal(lambda x: (np.stack([x[0], x[1]], -1), np.stack([x[1], x[0], _times(x[0], x[1])], -1)), x)
        _assert_equal(lambda x, y: np.concatenate([x[0][:, None], y, x[1][:, None]], 1), x, y)
        _assert_equal(lambda x: np.stack([x[0], x[1]], -1).astype(np.float32), x)


def test_places_between_two_axes() -> None:
    """Axes around those along which a value is stored by places are two loops."""
    for shape in ((3, 5, 2), (20, 30, 2)):
        x = _array(shape, "float64")
        _assert_equal(lambda x: np.pad(np.cos(x)[:, None], ((0, 0), (0, 1), (0, 0), (0, 0))).reshape(-1, 2), x * 0)


def test_further_rows_compile_nothing() -> None:
    f = jg.compile(lambda x: x[1:, 0] * x[:-1, 2] + x[::-1, 1][1:])
    f(_array((100, 3), "float64"))
    before = jg.compile(f).cache_info().compiles
    for rows in (50, 1000, 77):
        x = _array((rows, 3), "float64")
        np.testing.assert_array_equal(f(x), f.interpret(x))
    assert jg.compile(f).cache_info().compiles == before


# -- kernels -----------------------------------------------------------------------------------------------------------


def _kernel(dtype: str, stride: int, reads: Sequence[int], is_whole: bool) -> Kernel:
    """Reads some places of rows, and stores them side by side in places of others, of which all are stored or not."""
    type_, count = np.dtype(dtype), len(reads)
    body: list[Statement] = [
        Load(f"v{k}", type_, "in0", Index((Term("i0", stride),), None, place)) for k, place in enumerate(reads)
    ]
    width = count if is_whole else count + 1
    body += [Store("out0", Index((Term("i0", width),), None, k), f"v{count - 1 - k}", type_) for k in range(count)]
    buffers = (Buffer("in0", type_, "in"), Buffer("out0", type_, "out"))
    return Kernel(buffers, ("n0",), (), (Loop("i0", "n0", PARALLEL_VECTOR, tuple(body)),))


_count = itertools.count()


def _native(kernel: Kernel, nbytes: int, quickly: bool) -> Callable[[int, int, int, int], None]:
    """The kernel's function of addresses of both buffers, rows, and where stores go past the caches."""
    name = f"strided_{next(_count)}"
    module = ir.Module(name, has_fma(), nbytes if quickly else 0, has_avx512() and nbytes == 64, quickly)
    emit_kernel(module, kernel, name, nbytes)
    code = native.load_object(native.compile_to_object(module, quickly=quickly), [name])
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)(code[name])

    def call(source: int, target: int, rows: int, streaming: int) -> None:
        table, block = np.array([source, target]), np.array([0, 1, rows, streaming])
        function(table.ctypes.data, block.ctypes.data, 0, rows, 0, 0)
        assert code

    return call


class Guarded:
    """Memory of three pages, of which only the one in the middle may be touched."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 3 * _PAGE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + _PAGE
        protect = ctypes.CDLL(None).mprotect
        for page in (self.start - _PAGE, self.start + _PAGE):
            assert protect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0) == 0

    def array(self, count: int, dtype: str, at_end: bool) -> Array:
        """An array that begins or ends where the page does."""
        type_ = np.dtype(dtype)
        start = self.start + (_PAGE - count * type_.itemsize if at_end else 0)
        return np.frombuffer((ctypes.c_char * (count * type_.itemsize)).from_address(start), type_)


@pytest.fixture(scope="module")
def guarded() -> Guarded:
    return Guarded()


READ_PLACES = [(stride, reads) for stride in (2, 3, 4, 6, 7, 8, 9, -2, -3)
               for reads in ((*range(abs(stride)),), (0,), (0, abs(stride) - 1), (1, 0))]  # fmt: skip


@pytest.mark.parametrize(
    ("nbytes", "dtype"), [(16, "float32"), (32, "float64"), (64, "float64"), (64, "float32"), (64, "bool")]
)
def test_no_element_is_touched_that_is_not_read_or_stored(nbytes: int, dtype: str, guarded: Guarded) -> None:
    """Rows at the end and at the start of a page behind and in front of which there is none, of all widths."""
    if nbytes > vector_bytes():
        pytest.skip("the processor has no such registers")
    for n, (stride, reads) in enumerate(READ_PLACES):
        is_whole, quickly = n % 3 != 0, n % 4 == 1
        call = _native(_kernel(dtype, stride, reads, is_whole), nbytes, quickly)
        width, span = len(reads) + (not is_whole), max(reads)
        for rows, at_end in itertools.product((1, 2, 3, 7, 8, 9, 16, 20, 25), (False, True)):
            count = abs(stride) * (rows - 1) + span + 1
            if count * np.dtype(dtype).itemsize > _PAGE:
                continue
            source = guarded.array(count, dtype, at_end)
            source[:] = _array((count,), dtype)
            first = abs(stride) * (rows - 1) if stride < 0 else 0
            target = np.zeros(64 + rows * width + 64, dtype)
            stored = target[64 : 64 + rows * width]
            expected = target.copy()
            for k, place in enumerate(reversed(reads)):
                expected[64 + k : 64 + rows * width : width] = source[[first + place + stride * i for i in range(rows)]]
            call(source[first:].ctypes.data, stored.ctypes.data, rows, -1)
            np.testing.assert_array_equal(target, expected, err_msg=f"{stride}, {reads}, {rows}")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_stores_past_the_caches(dtype: str) -> None:
    for stride in range(2, 9):
        call = _native(_kernel(dtype, stride, tuple(range(stride)), True), vector_bytes(), False)
        for rows in (64, 99, 1000):
            source, room = _array((rows * stride,), dtype), np.zeros(rows * stride + 32, dtype)
            start = -room.ctypes.data % 64 // room.itemsize
            target = room[start : start + rows * stride]
            call(source.ctypes.data, target.ctypes.data, rows, 0)
            np.testing.assert_array_equal(target.reshape(rows, stride), source.reshape(rows, stride)[:, ::-1])
            assert not room[:start].any() and not room[start + rows * stride :].any()


@pytest.mark.quick
def test_stores_in_all_places_are_whole_registers() -> None:
    for stride, is_whole in itertools.product((2, 3, 8), (True, False)):
        module = ir.Module("kernel", True, has_avx512=True)
        emit_kernel(module, _kernel("float64", stride, tuple(range(stride)), is_whole), "kernel", 64)
        assert ("llvm.masked.scatter" in str(module)) != is_whole
        assert "llvm.masked.gather" not in str(module)


@pytest.mark.quick
def test_quick_code_stores_strides_lane_by_lane() -> None:
    for shared_bytes in (0, 64):
        module = ir.Module("kernel", True, shared_bytes, True, shared_bytes > 0)
        emit_kernel(module, _kernel("float64", 3, (0, 1, 2), True), "kernel", 64)
        assert ("llvm.masked.scatter" in str(module)) == (shared_bytes > 0)
