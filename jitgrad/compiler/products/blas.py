"""Matrix products as steps: BLAS calls behind the kernel ABI. It plans one product; when a product is BLAS is
decided elsewhere. Sizes may be symbols (compiler/symbols.py): it asks no more of them than it needs to know.

`matmul_step` describes  C[b] = op(A[b]) op(B[b])  (or C[b] += ...) over row-major matrices as a `BlasStep`:
the name of a stub, the words of its block, the extent and the number of chunks. The parallel extent of a step
counts *cells*: a batch index and a tile of C. Each cell is one BLAS call with one thread, so our own threads
share the work, and the bits do not depend on how many there are. Row-major products are column-major ones
with the operands swapped: C' = B' A'.

Addresses of BLAS functions are looked up in each process (blas_library.py), and lie in the block, never in
code. A vector on one side makes it a gemv. Two rules differ from BLAS: k = 0 gives zeros, and what C held
before never shows through, NaN included, unless it is added to.

`guard_steps` puts OpenBLAS on one thread before the first product of a list of steps and back after the last
one (5 ns). Without it its threads and ours fight, because both spin after their work. Two cores, sgemm of 256
x 256 x 256, then a parallel kernel of 8 us, microseconds for both:

    OpenBLAS with two threads                  340 (its gemm alone, repeated beside our waiting worker: 290)
    the product in 32 cells by our threads     167 (the product alone: 158; by one thread: 289, uncut: 332)

Other BLAS libraries keep their own threads, and a product is one cell.

Small products, one thread, microseconds: gemm as a step, and a nest over whole vectors with its sizes fixed
at compile time, several rows of C in registers:

    float32   8x8 @ 8x16   0.06   0.02        float64   8x8 @ 8x16   0.08   0.04
            16x16 @ 16x16  0.11   0.07                16x16 @ 16x16  0.19   0.14
            20x32 @ 32x32  0.41   0.35                20x32 @ 32x32  0.77   0.70 (one row at a time 0.87)

So a nest wins less than 0.1 us per product; it pays below some 16x16x16, or where it saves a pass over
memory.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from jitgrad.blas_library import blas_address, get_threads_address, set_threads_address
from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.cache import compile_cached
from jitgrad.compiler.products.product_code import GUARD_STUBS, MATMUL_STUBS, RESET_STUB, Module
from jitgrad.compiler.symbols import at_once, least, most
from jitgrad.once import Once
from jitgrad.records import NamedTuple
from jitgrad.spec import dtype_name

INT32_MAX = 2**31 - 1
_CHUNK_FLOPS = 2_000_000  # of float32, about 20 us
_CHUNK_ELEMENTS = 200_000  # of a matrix that is read once, for a vector
_PAGE_ELEMENTS = 1024
_MAX_CHUNKS = 64
_TILE_MULTIPLE = 16
_UNPACKED = 1_000_000
_THIN = 32
"""Rows or columns, of which fewer take nearly as long: on one core of Intel's with AVX-512 256 x 512 x 10 takes 51 us
in float32, 300 x 2000 x 3 takes 194. In four cells on two cores 20, and in five cells 41.
"""
_SHORT_SUM = 480
_LETTERS = {"float32": "s", "float64": "d"}


class BlasStep(NamedTuple):
    """A step for the driver: the stub's name and address, the words of its block, and how it is cut."""

    name: str
    address: int
    block: tuple[int, ...]
    extent: int
    nchunks: int


class Operand(NamedTuple):
    """A batch of row-major matrices: table slot, offset and strides in elements. `transposed`: stored the
    other way round.

    `row_stride` is the distance of the stored rows, `batch_strides` one stride per batch axis (0 where
    broadcast).
    """

    slot: int
    row_stride: int
    batch_strides: tuple[int, ...] = ()
    transposed: bool = False
    offset: int = 0


def matmul_step(
    dtype: np.dtype[Any],
    sizes: tuple[int, int, int],
    a: Operand,
    b: Operand,
    c: Operand,
    batch: tuple[int, ...] = (),
    accumulate: bool = False,
    rows: int | None = None,
) -> BlasStep | None:
    """The step for C = op(A) op(B), or C += with `accumulate`; `sizes` is (m, n, k). None if there is nothing
    to do. With `rows`, each chunk makes so many of C.

    A is stored (m, k), or (k, m) when transposed; B is (k, n) or (n, k); C is (m, n). Raises ValueError for a
    dtype other than float32 and float64, and for sizes or strides beyond 32 bits.
    """
    m, n, k = sizes
    if 0 in (m, n, *batch) or (k == 0 and accumulate):
        return None
    _check(dtype, (*sizes, a.row_stride, b.row_stride, c.row_stride), c)
    each = rows
    is_turned = a.transposed, b.transposed
    rows, columns = (
        (each, _columns_beside(each, n, k)) if each else at_once(_tiling(is_turned), m, n, k, math.prod(batch))
    )
    cells = math.prod(batch) * -(-m // rows) * -(-n // columns)
    chunks = m // each if each else _chunks(cells, m, n, _work(m, n, k) * math.prod(batch) * dtype.itemsize // 4)
    gemm, gemv, stub, address = _functions(dtype_name(dtype))
    block = product_block((gemm, gemv, m, n, k, rows, columns, int(accumulate)), (a, b, c), batch)
    return BlasStep(stub, address, block, cells, chunks)


def batch_chunks(dtype: np.dtype[Any], sizes: tuple[int, int, int], batch: int, transposed: tuple[bool, bool]) -> int:
    """In how many chunks a batch of products (m, n, k) runs if each of them is one call; else, and where threads cannot
    share them, 0.
    """
    m, n, k = sizes
    if least(m, n, k, batch) < 1 or not set_threads_address() or _tile(transposed, m, n, k, batch) != (m, n):
        return 0
    return _chunks(batch, m, n, _work(m, n, k) * batch * dtype.itemsize // 4)


@cache
def _functions(dtype: str) -> tuple[int, int, str, int]:
    """The addresses of gemm and gemv, the stub that calls them and its address."""
    letter, stub = _LETTERS[dtype], MATMUL_STUBS[dtype]
    return blas_address(letter + "gemm"), blas_address(letter + "gemv"), stub, stub_address(stub)


def product_block(
    head: Sequence[int], operands: Sequence[Operand], batch: tuple[int, ...], scratch: Sequence[int] = (0, 0, 0)
) -> tuple[int, ...]:
    """The words of a product's block, in the order of `BLOCK`: those before ``nbatch`` and the last three as given."""
    block = [*head, len(batch)]
    for slot, row_stride, _, is_transposed, offset in operands:
        block += slot, offset, most(1, row_stride), int(is_transposed)
    block += scratch
    for axis, extent in enumerate(batch):
        block.append(extent)
        block += [operand.batch_strides[axis] for operand in operands]
    return tuple(block)


def _check(dtype: np.dtype[Any], numbers: Sequence[int], c: Operand) -> None:
    if dtype_name(dtype) not in _LETTERS:
        raise ValueError(f"BLAS products are float32 or float64, not {dtype}")
    if any(number > INT32_MAX for number in numbers):
        raise ValueError(f"BLAS takes sizes below 2**31, got {max(numbers)}")
    if c.transposed:
        raise ValueError("the result of a product is stored untransposed")


@cache
def _tiling(transposed: tuple[bool, bool]) -> Callable[[int, int, int, int], tuple[int, int]]:
    return partial(_tile, transposed)


def _tile(transposed: tuple[bool, bool], m: int, n: int, k: int, batch: int) -> tuple[int, int]:
    """Rows and columns of C per cell, for one thread each. Depends on the sizes only, so the bits do not
    change.

    OpenBLAS multiplies without packing its operands while m n k <= 1e6, 10 to 20 % faster: tiles for short
    sums stay below that. Long sums get large tiles, because every cell packs its share of A and B again.
    """
    if not set_threads_address() or (batch >= _MAX_CHUNKS and m * n * k <= _UNPACKED):
        return m, n
    if 1 in (m, n):
        return _vector_tile(m, n, k, transposed)
    if m * n * k <= _UNPACKED:
        return m, n
    if k <= _SHORT_SUM:
        rows, columns = least(m, 32), least(n, 32 if transposed[1] else 64)
        return rows, least(n, columns * (32 // rows))
    return _large_tile(m, n, 2 * _work(m, n, k) // _CHUNK_FLOPS)


def _work(m: int, n: int, k: int) -> int:
    """Multiplications that take as long as those of a product."""
    return m * n * k if 1 in (m, n) else most(m, n) * most(least(m, n), _THIN) * k


def _columns_beside(rows: int, n: int, k: int) -> int:
    """Columns of tiles of so many rows, as equal as may be: as many as are surely multiplied without packing, but not
    few. 16 x 64 x 512, B transposed, runs at 105 GFLOP/s on one core, 16 x 112 x 512 at 34.
    """
    wide = max(2, _UNPACKED // 2 // max(1, rows * k) // _TILE_MULTIPLE) * _TILE_MULTIPLE
    return _side(n, -(-n // wide))


def _vector_tile(m: int, n: int, k: int, transposed: tuple[bool, bool]) -> tuple[int, int]:
    """Pieces of the result; where the matrix is walked across its rows they stay wide enough to read whole
    pages.
    """
    across = transposed[0] if n == 1 else not transposed[1]
    pages = m * n // _PAGE_ELEMENTS if across else _MAX_CHUNKS
    pieces = most(1, least(_MAX_CHUNKS, pages, m * n * k // _CHUNK_ELEMENTS))
    return (m, _side(n, pieces)) if m == 1 else (_side(m, pieces), n)


def _large_tile(m: int, n: int, pieces: int) -> tuple[int, int]:
    """Tiles of 256, of 512 for large results; smaller ones only until there are four."""
    side = 512 if m * n > 512 * 512 else 256
    rows, columns = least(m, side), least(n, side)
    while -(-m // rows) * -(-n // columns) < least(4, pieces) and most(rows, columns) >= 64:
        rows, columns = (_side(rows, 2), columns) if rows >= 2 * columns else (rows, _side(columns, 2))
    return rows, columns


def _side(extent: int, pieces: int) -> int:
    """The extent cut in pieces, rounded up to whole vectors."""
    return extent if pieces == 1 else least(extent, -(-extent // (pieces * _TILE_MULTIPLE)) * _TILE_MULTIPLE)


def _chunks(cells: int, m: int, n: int, products: int) -> int:
    if not set_threads_address():
        return 1
    wanted = products // _CHUNK_ELEMENTS if 1 in (m, n) else 2 * products // _CHUNK_FLOPS
    chunks: int = most(1, least(cells, _MAX_CHUNKS, wanted - wanted % 2))  # two threads have as many each
    return chunks


def guard_steps() -> tuple[BlasStep, BlasStep] | None:
    """Steps to run before the first and after the last product of a list; None where the library cannot be
    told.
    """
    setter, getter = set_threads_address(), get_threads_address()
    if not setter or not getter:
        return None
    enter, leave = (BlasStep(stub, stub_address(stub), (getter, setter), 1, 1) for stub in GUARD_STUBS)
    return enter, leave


@cache
def stub_address(name: str) -> int:
    """The address of a stub; its module is compiled, or taken from the cache, at the first use."""
    # Stubs only pass arguments on: good code would take three times as long to make, and no call gets shorter.
    if name in _MODULES:
        return compile_cached(_MODULES[name], partial(_text, name), [name], quickly=True)[name]
    return _guards()[name]


_MODULES = {stub: stub.replace("jitgrad_matmul", "blas") for stub in MATMUL_STUBS.values()}


def _text(stub: str) -> str:
    from jitgrad.compiler.products.blas_stubs import matmul_ir

    return matmul_ir(next(dtype for dtype, name in MATMUL_STUBS.items() if name == stub))


def _guard_text() -> str:
    from jitgrad.compiler.products.blas_stubs import guard_ir

    return guard_ir()


def stub_modules(dtype: np.dtype[Any]) -> dict[str, Module]:
    """The modules that `matmul_step` and `guard_steps` refer to."""
    stub = MATMUL_STUBS.get(dtype.name)
    return {_MODULES[stub]: (partial(_text, stub), True), "blas_guard": (_guard_text, True)} if stub is not None else {}


@Once
def _guards() -> native.NativeCode:
    """The module that counts who has put the library on one thread."""
    code = compile_cached("blas_guard", _guard_text, (*GUARD_STUBS, RESET_STUB), quickly=True)
    if set_threads_address() and hasattr(os, "register_at_fork"):
        reset = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code[RESET_STUB])
        os.register_at_fork(after_in_child=partial(reset, set_threads_address()))
    return code
