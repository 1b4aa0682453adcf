"""Products of a matrix of few rows with a long one as steps; how they are cut is decided elsewhere (gemm.py)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from jitgrad.compiler.products.blas import BlasStep, Operand
from jitgrad.compiler.products.gemv_steps import sum_modules, sum_step
from jitgrad.compiler.products.product_code import Functions, Module, code_modules, product_address
from jitgrad.spec import dtype_name

ACROSS_STUBS = {"float32": "jitgrad_across_f32", "float64": "jitgrad_across_f64"}
DOWN_STUBS = {"float32": "jitgrad_down_f32", "float64": "jitgrad_down_f64"}
BLOCK = ("a_slot", "lda", "b_slot", "ldb", "c_slot", "ldc", "m", "n", "k")
"""The words of the block of either; strides in elements."""
MOST_SHORT = 128
"""Of the long matrix, columns: what is kept of them lies on the stack."""
SUMS = {32: (26, 12), 16: (13, 6)}
"""Columns of the long matrix whose sums are in registers at once, by their number: most, and those of a rest."""


def tile_names_of(stub: str) -> tuple[str, ...]:
    """The functions with the loops on registers that one function calls."""
    name = stub.replace("jitgrad_", "jitgrad_tile_")
    return (name,) if stub in ACROSS_STUBS.values() else (f"{name}_turn", f"{name}_wide", f"{name}_few")


def short_steps(
    dtype: np.dtype[Any], sizes: tuple[int, int, int], form: str, chunks: int,
    operands: tuple[Operand, Operand, Operand], part: int,
) -> list[BlasStep]:  # fmt: skip
    """The steps of C = A Bᵀ (``across``) or A B (``down``) of sizes (m, n, k); ``part`` as for `product_steps`."""
    m, n, k = sizes
    a, b, c = operands
    stub = (ACROSS_STUBS if form == "across" else DOWN_STUBS)[dtype_name(dtype)]
    block = (a.slot, a.row_stride, b.slot, b.row_stride, part, n, m, n, k)
    address = product_address(stub, _text, _tiles(stub))
    steps = [BlasStep(stub, address, block, n if form == "across" else k, chunks)]
    if part != c.slot:
        steps.append(sum_step(dtype, part, c.slot, m * n, chunks))
    return steps


def short_modules(dtype: np.dtype[Any], form: str, has_parts: bool) -> dict[str, Module]:
    """The modules that `short_steps` refers to."""
    stub = (ACROSS_STUBS if form == "across" else DOWN_STUBS)[dtype_name(dtype)]
    return code_modules(stub, _text, _tiles(stub)) | (sum_modules(dtype) if has_parts else {})


def _tiles(stub: str) -> Functions:
    return Functions(f"{stub}_tiles", partial(_tiles_text, stub), tile_names_of(stub))


def _text(stub: str) -> str:
    from jitgrad.compiler.products.short_code import stub_ir

    return stub_ir(stub)


def _tiles_text(stub: str) -> str:
    from jitgrad.compiler.products.short_code import tiles_ir

    return tiles_ir(stub)
