"""Our own products of two matrices as steps; how they are cut is decided elsewhere (gemm.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitgrad.compiler.products.blas import BlasStep, Operand, product_block
from jitgrad.compiler.products.gemv_steps import sum_modules, sum_step
from jitgrad.compiler.products.product_code import (
    PACK_STUBS,
    SHARED_STUBS,
    SUFFIXES,
    UNPACKED_STUBS,
    Module,
    code_modules,
    product_address,
    tile_names,
    unpacked_name,
)
from jitgrad.compiler.products.short_steps import short_steps
from jitgrad.compiler.products.tall_steps import FORMS, tall_steps
from jitgrad.compiler.symbols import least
from jitgrad.spec import dtype_name

STUBS = {"float32": "jitgrad_multiply_f32", "float64": "jitgrad_multiply_f64"}


def product_steps(
    dtype: np.dtype[Any],
    sizes: tuple[int, int, int],
    cut: tuple[int, int, int, int, int, int, int, str, int],
    operands: tuple[Operand, Operand, Operand],
    scratch: int,
    part: int,
) -> list[BlasStep]:
    """The steps of a product C = op(A) op(B) of sizes (m, n, k), or a batch of them, cut as a `GemmPlan`
    says. ValueError for a C with gaps between its rows.

    ``scratch`` is the slot of the workers' memory; ``part`` that of the parts of a sum, one after another, or of packed
    B, else of C.
    """
    m, n, k = sizes
    if operands[2].row_stride != n:
        distance = operands[2].row_stride
        raise ValueError(f"the result of our own products has no gaps: rows of {n} elements, stored {distance} apart")
    rows, columns, parts, depth, cells, worker_bytes, batch, form, _ = cut
    if form == "shared":
        return _shared_steps(dtype, sizes, cut, operands, scratch, part)
    if form == "unpacked":
        return [_unpacked_step(dtype, sizes, cut, operands, scratch)]
    if form in FORMS:
        return tall_steps(dtype, sizes, form, cells, operands, part)
    if form != "tiles":
        return short_steps(dtype, sizes, form, cells, operands, part)
    a, b, c = operands
    block = product_block(
        (0, 0, m, n, k, rows, columns, 0), (a, b, Operand(part, n, (m * n,))), (batch,), (scratch, worker_bytes, depth)
    )
    steps = [_tiles_step(dtype, STUBS, block, cells)]
    if parts > 1:
        steps.append(sum_step(dtype, part, c.slot, m * n, parts))
    return steps


def _shared_steps(
    dtype: np.dtype[Any],
    sizes: tuple[int, int, int],
    cut: tuple[int, int, int, int, int, int, int, str, int],
    operands: tuple[Operand, Operand, Operand],
    scratch: int,
    part: int,
) -> list[BlasStep]:
    """One step packs B, the next makes rows of C."""
    (m, n, k), (a, b, c) = sizes, operands
    rows, columns, _, depth, cells, worker_bytes, *_ = cut
    name, packed = dtype_name(dtype), Operand(part, n)
    pack = product_block((0, 0, k, n, 0, depth, columns, 0), (b, b, packed), ())
    block = product_block((0, 0, m, n, k, rows, n, 0), (a, packed, c), (), (scratch, worker_bytes, depth))
    stub, pieces = PACK_STUBS[name], -(-k // depth) * -(-n // columns)
    packing = BlasStep(stub, product_address(stub, _text), pack, pieces, least(pieces, 64))
    return [packing, _tiles_step(dtype, SHARED_STUBS, block, cells)]


def _tiles_step(dtype: np.dtype[Any], stubs: Mapping[str, str], block: tuple[int, ...], cells: int) -> BlasStep:
    stub, tiles = stubs[dtype_name(dtype)], tile_names(SUFFIXES[dtype_name(dtype)])
    return BlasStep(stub, product_address(stub, _text, tiles, _tiles_text), block, cells, least(cells, 64))


def _unpacked_step(
    dtype: np.dtype[Any],
    sizes: tuple[int, int, int],
    cut: tuple[int, int, int, int, int, int, int, str, int],
    operands: tuple[Operand, Operand, Operand],
    scratch: int,
) -> BlasStep:
    rows, columns, _, depth, cells, worker_bytes, batch, *_ = cut
    name = dtype_name(dtype)
    a, b, c = operands
    block = product_block((0, 0, *sizes, rows, columns, 0), (a, b, c), (batch,), (scratch, worker_bytes, depth))
    address = product_address(UNPACKED_STUBS[name], _text, (unpacked_name(SUFFIXES[name]),), _tiles_text)
    return BlasStep(UNPACKED_STUBS[name], address, block, cells, least(cells, 64))


def product_modules(dtype: np.dtype[Any], has_parts: bool) -> dict[str, Module]:
    """The modules that `product_steps` refers to, where B is not shared."""
    return code_modules(STUBS[dtype_name(dtype)], _text, _tiles_text) | (sum_modules(dtype) if has_parts else {})


def unpacked_modules(dtype: np.dtype[Any]) -> dict[str, Module]:
    """The same where a transposed A is not packed."""
    return code_modules(UNPACKED_STUBS[dtype_name(dtype)], _text, _tiles_text)


def shared_modules(dtype: np.dtype[Any]) -> dict[str, Module]:
    """The same where B is shared."""
    name = dtype_name(dtype)
    return code_modules(PACK_STUBS[name], _text) | code_modules(SHARED_STUBS[name], _text, _tiles_text)


def _text(stub: str) -> str:
    from jitgrad.compiler.products.gemm_cells import gemm_step_ir

    return gemm_step_ir(stub)


def _tiles_text(stub: str) -> str:
    from jitgrad.compiler.products.gemm_cells import gemm_tiles_ir

    return gemm_tiles_ir(stub)
