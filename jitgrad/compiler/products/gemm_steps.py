"""Our own products of two matrices as steps; how they are cut is decided elsewhere (gemm.py)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from jitgrad.compiler.products.blas import BlasStep, Operand, product_block
from jitgrad.compiler.products.product_code import (
    PACK_STUBS,
    SHARED_STUBS,
    SUFFIXES,
    UNPACKED_STUBS,
    Functions,
    Module,
    Quick,
    code_modules,
    packing_names,
    product_address,
    tile_names,
    unpacked_name,
)
from jitgrad.compiler.symbols import least
from jitgrad.records import NamedTuple
from jitgrad.spec import dtype_name

STUBS = {"float32": "jitgrad_multiply_f32", "float64": "jitgrad_multiply_f64"}
SHORT_FORMS = ("across", "down")
"""Of products of few rows with a long matrix."""


class GemmPlan(NamedTuple):
    """Tiles of C, parts of the sum and the places in each, the number of tiles of parts of all products of the batch,
    the bytes that each worker needs, and how many products there are. Or, in the form ``across`` or ``down``, a product
    of few rows with a long matrix, or, ``tall`` or ``turned``, one of two of few columns, in ``cells`` chunks of rows.
    Or, in the form ``shared``, rows of C, the columns of B that are packed at a time, the places of a part of the sum,
    and the bytes of packed B. Or, in the form ``unpacked``, tiles of one panel of columns, of a transposed A that is
    read where it lies.
    """

    rows: int
    columns: int
    parts: int
    depth: int
    cells: int
    worker_bytes: int
    batch: int = 1
    form: str = "tiles"
    shared_bytes: int = 0


def product_steps(
    dtype: np.dtype[Any],
    sizes: tuple[int, int, int],
    plan: GemmPlan,
    operands: tuple[Operand, Operand, Operand],
    scratch: int,
    part: int,
) -> list[BlasStep]:
    """The steps of a product C = op(A) op(B) of sizes (m, n, k), or a batch of them, cut as planned. ValueError for a C
    with gaps between its rows.

    ``scratch`` is the slot of the workers' memory; ``part`` that of the parts of a sum, one after another, or of packed
    B, else of C.
    """
    m, n, k = sizes
    if operands[2].row_stride != n:
        distance = operands[2].row_stride
        raise ValueError(f"the result of our own products has no gaps: rows of {n} elements, stored {distance} apart")
    if plan.form == "shared":
        return _shared_steps(dtype, sizes, plan, operands, scratch, part)
    if plan.form == "unpacked":
        return [_unpacked_step(dtype, sizes, plan, operands, scratch)]
    if plan.form != "tiles":
        return _steps_of_few(dtype, sizes, plan, operands, part)
    a, b, c = operands
    block = product_block(
        (0, 0, m, n, k, plan.rows, plan.columns, 0),
        (a, b, Operand(part, n, (m * n,))),
        (plan.batch,),
        (scratch, plan.worker_bytes, plan.depth),
    )
    steps = [_tiles_step(dtype, STUBS, block, plan.cells)]
    if plan.parts > 1:
        from jitgrad.compiler.products.gemv_steps import sum_step

        steps.append(sum_step(dtype, part, c.slot, m * n, plan.parts))
    return steps


def _steps_of_few(
    dtype: np.dtype[Any],
    sizes: tuple[int, int, int],
    plan: GemmPlan,
    operands: tuple[Operand, Operand, Operand],
    part: int,
) -> list[BlasStep]:
    """Where there are few rows or columns. A start of the others does not load what makes these, which takes 0.4 ms."""
    if plan.form in SHORT_FORMS:
        from jitgrad.compiler.products.short_steps import short_steps

        return short_steps(dtype, sizes, plan.form, plan.cells, operands, part)
    from jitgrad.compiler.products.tall_steps import tall_steps

    return tall_steps(dtype, sizes, plan.form, plan.cells, operands, part)


def _shared_steps(
    dtype: np.dtype[Any],
    sizes: tuple[int, int, int],
    plan: GemmPlan,
    operands: tuple[Operand, Operand, Operand],
    scratch: int,
    part: int,
) -> list[BlasStep]:
    """One step packs B, the next makes rows of C."""
    (m, n, k), (a, b, c) = sizes, operands
    name, packed = dtype_name(dtype), Operand(part, n)
    pack = product_block((0, 0, k, n, 0, plan.depth, plan.columns, 0), (b, b, packed), ())
    worker = scratch, plan.worker_bytes, plan.depth
    block = product_block((0, 0, m, n, k, plan.rows, n, 0), (a, packed, c), (), worker)
    stub, pieces = PACK_STUBS[name], -(-k // plan.depth) * -(-n // plan.columns)
    packing = BlasStep(stub, product_address(stub, _text, quick=_quick(stub, dtype)), pack, pieces, least(pieces, 64))
    return [packing, _tiles_step(dtype, SHARED_STUBS, block, plan.cells)]


def _tiles_step(dtype: np.dtype[Any], stubs: Mapping[str, str], block: tuple[int, ...], cells: int) -> BlasStep:
    stub = stubs[dtype_name(dtype)]
    address = product_address(stub, _text, _tiles(dtype), _quick(stub, dtype))
    return BlasStep(stub, address, block, cells, least(cells, 64))


def _unpacked_step(
    dtype: np.dtype[Any],
    sizes: tuple[int, int, int],
    plan: GemmPlan,
    operands: tuple[Operand, Operand, Operand],
    scratch: int,
) -> BlasStep:
    name, worker = dtype_name(dtype), (scratch, plan.worker_bytes, plan.depth)
    block = product_block((0, 0, *sizes, plan.rows, plan.columns, 0), operands, (plan.batch,), worker)
    stub = UNPACKED_STUBS[name]
    address = product_address(stub, _text, _unpacked_tile(dtype), _quick(stub, dtype))
    return BlasStep(stub, address, block, plan.cells, least(plan.cells, 64))


def product_modules(dtype: np.dtype[Any], has_parts: bool) -> dict[str, Module]:
    """The modules that `product_steps` refers to, where B is not shared."""
    stub = STUBS[dtype_name(dtype)]
    modules = code_modules(stub, _text, _tiles(dtype), _quick(stub, dtype))
    if has_parts:
        from jitgrad.compiler.products.gemv_steps import sum_modules

        modules |= sum_modules(dtype)
    return modules


def unpacked_modules(dtype: np.dtype[Any]) -> dict[str, Module]:
    """The same where a transposed A is not packed."""
    stub = UNPACKED_STUBS[dtype_name(dtype)]
    return code_modules(stub, _text, _unpacked_tile(dtype), _quick(stub, dtype))


def shared_modules(dtype: np.dtype[Any]) -> dict[str, Module]:
    """The same where B is shared."""
    pack, stub = PACK_STUBS[dtype_name(dtype)], SHARED_STUBS[dtype_name(dtype)]
    packing = code_modules(pack, _text, quick=_quick(pack, dtype))
    return packing | code_modules(stub, _text, _tiles(dtype), _quick(stub, dtype))


def _quick(stub: str, dtype: np.dtype[Any]) -> Quick:
    """Shorter code: it makes all tiles of packed operands as whole ones, which are half of their code, and products
    have their packing in common.
    """
    name, suffix = dtype_name(dtype), SUFFIXES[dtype_name(dtype)]
    packing = Functions(
        f"jitgrad_packing_{suffix}", partial(_called_text, name, "packing"), packing_names(suffix), quickly=True
    )
    if stub in PACK_STUBS.values():
        return Quick(_quick_text, (packing,))
    if stub in UNPACKED_STUBS.values():
        return Quick(_quick_text, (_unpacked_tile(dtype), packing))
    text = partial(_called_text, name, "first")
    return Quick(_quick_text, (Functions(f"jitgrad_tiles_{suffix}_first", text, tile_names(suffix)[:1]), packing))


def _tiles(dtype: np.dtype[Any]) -> Functions:
    """Whole tiles of packed operands, low and narrow ones."""
    name, suffix = dtype_name(dtype), SUFFIXES[dtype_name(dtype)]
    return Functions(f"jitgrad_tiles_{suffix}", partial(_called_text, name, "all"), tile_names(suffix))


def _unpacked_tile(dtype: np.dtype[Any]) -> Functions:
    """The tile of a transposed A that is not packed."""
    name = dtype_name(dtype)
    names = (unpacked_name(SUFFIXES[name]),)
    return Functions(f"{UNPACKED_STUBS[name]}_tiles", partial(_called_text, name, "unpacked"), names)


def _text(stub: str) -> str:
    from jitgrad.compiler.products.gemm_cells import gemm_step_ir

    return gemm_step_ir(stub)


def _quick_text(stub: str) -> str:
    from jitgrad.compiler.products.gemm_cells import gemm_step_ir

    return gemm_step_ir(stub, quickly=True)


def _called_text(name: str, which: str) -> str:
    from jitgrad.compiler.products.gemm_cells import gemm_called_ir

    return gemm_called_ir(name, which)
