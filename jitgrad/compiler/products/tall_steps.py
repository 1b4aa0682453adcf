"""Products of two tall matrices as steps; how they are cut is decided elsewhere (gemm.py)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from jitgrad.compiler.products.blas import BlasStep, Operand
from jitgrad.compiler.products.gemv_steps import sum_modules, sum_step
from jitgrad.compiler.products.product_code import Functions, Module, code_modules, product_address
from jitgrad.spec import dtype_name

STUBS = {"float32": "jitgrad_tall_f32", "float64": "jitgrad_tall_f64"}
FORMS = ("tall", "turned")
"""Lanes are columns of B; or columns of A, and C is made as Bᵀ A."""
BLOCK = ("a_slot", "lda", "b_slot", "ldb", "c_slot", "m", "n", "down", "along")
"""The words of the block; strides in elements, those of C last."""
MOST_COLUMNS, MOST_FEW = 128, 64
"""Of the matrices, and of that with fewer: the sums of a chunk lie on the stack, 64 KB of it in float64. Wider ones are
rare, not slow: 64 and 160 columns, 20000 rows, take 4.7 ms in place of OpenBLAS's 7.4, 96 and 96 3.5 in place of 5.3
(float64, two of Intel's cores with AVX-512).
"""
HEIGHTS = {32: (8, 4, 2), 16: (4, 3, 2)}
"""Rows of C whose sums are in registers at once, by the number of registers: most, and those of rests."""


def tile_names(stub: str) -> tuple[str, ...]:
    """The loops on registers that a function calls: from most rows to the fewest, each with one register and two."""
    name = stub.replace("jitgrad_", "jitgrad_tile_")
    return tuple(f"{name}_{height}_{width}" for height in ("high", "low", "flat") for width in ("one", "two"))


def tall_steps(
    dtype: np.dtype[Any], sizes: tuple[int, int, int], form: str, chunks: int,
    operands: tuple[Operand, Operand, Operand], part: int,
) -> list[BlasStep]:  # fmt: skip
    """The steps of C = Aᵀ B of sizes (m, n, k); ``part`` as for `product_steps`."""
    (m, n, k), (a, b, c) = sizes, operands
    stub = STUBS[dtype_name(dtype)]
    if form == "tall":
        block = (a.slot, a.row_stride, b.slot, b.row_stride, part, m, n, n, 1)
    else:
        block = (b.slot, b.row_stride, a.slot, a.row_stride, part, n, m, 1, n)
    steps = [BlasStep(stub, product_address(stub, _text, _tiles(stub)), block, k, chunks)]
    if part != c.slot:
        steps.append(sum_step(dtype, part, c.slot, m * n, chunks))
    return steps


def tall_modules(dtype: np.dtype[Any], has_parts: bool) -> dict[str, Module]:
    """The modules that `tall_steps` refers to."""
    stub = STUBS[dtype_name(dtype)]
    return code_modules(stub, _text, _tiles(stub)) | (sum_modules(dtype) if has_parts else {})


def _tiles(stub: str) -> Functions:
    return Functions(f"{stub}_tiles", partial(_tiles_text, stub), tile_names(stub))


def _text(stub: str) -> str:
    from jitgrad.compiler.products.tall_code import stub_ir

    return stub_ir(stub)


def _tiles_text(stub: str) -> str:
    from jitgrad.compiler.products.tall_code import tiles_ir

    return tiles_ir(stub)
