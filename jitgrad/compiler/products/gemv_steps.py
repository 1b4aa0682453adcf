"""Our own products of a matrix and a vector, as steps; how they are cut is decided elsewhere (gemv.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.compiler.products.blas import BlasStep, Operand
from jitgrad.compiler.products.product_code import Module, Quick, code_modules, product_address
from jitgrad.records import NamedTuple
from jitgrad.spec import dtype_name

DOTS_STUBS = {"float32": "jitgrad_dots_f32", "float64": "jitgrad_dots_f64"}
COMBINE_STUBS = {"float32": "jitgrad_combine_f32", "float64": "jitgrad_combine_f64"}
SUM_STUBS = {"float32": "jitgrad_sum_parts_f32", "float64": "jitgrad_sum_parts_f64"}
BLOCK = ("a_slot", "lda", "x_slot", "y_slot", "columns", "asks")
"""The words of the block of a product; the distance of rows and columns in elements, and what is asked for
(loopir/asked.py).
"""
SUM_BLOCK = ("from_slot", "to_slot", "count", "parts")
"""The words of the block of a sum of parts."""


class GemvPlan(NamedTuple):
    """Rows and columns of the stored matrix, whether its rows are combined (else multiplied with the vector), and the
    number of chunks.
    """

    rows: int
    columns: int
    combines: bool
    chunks: int

    @property
    def parts(self) -> int:
        """The number of elements that hold one result per chunk until these are added; 0 where there is one."""
        return self.chunks * self.columns if self.combines and self.chunks > 1 else 0


def vector_steps(
    dtype: np.dtype[Any],
    n: int,
    plan: GemvPlan,
    operands: tuple[Operand, Operand, Operand],
    part: int,
    asks: int = 0,
) -> list[BlasStep]:
    """The steps of a product with ``n`` columns, cut as planned; the matrix is stored without gaps.

    ``part`` is the slot of the memory for one result per chunk, if the plan asks for any, else that of the result.
    ``asks`` is the word by which a product is told to ask for lines.
    """
    a, b, c = operands
    matrix, vector = (a, b) if n == 1 else (b, a)
    stub = (COMBINE_STUBS if plan.combines else DOTS_STUBS)[dtype_name(dtype)]
    block = (matrix.slot, plan.columns, vector.slot, part, plan.columns, asks)
    steps = [BlasStep(stub, _address(stub), block, plan.rows, plan.chunks)]
    if part != c.slot:
        steps.append(sum_step(dtype, part, c.slot, plan.columns, plan.chunks))
    return steps


def vector_modules(dtype: np.dtype[Any], combines: bool, is_cut: bool) -> dict[str, Module]:
    """The modules that `vector_steps` refers to."""
    stub = (COMBINE_STUBS if combines else DOTS_STUBS)[dtype_name(dtype)]
    return code_modules(stub, _text, quick=Quick(_quick_text)) | (sum_modules(dtype) if is_cut else {})


def sum_modules(dtype: np.dtype[Any]) -> dict[str, Module]:
    """The modules that `sum_step` refers to."""
    return code_modules(SUM_STUBS[dtype_name(dtype)], _text)


def sum_step(dtype: np.dtype[Any], part: int, to: int, count: int, parts: int) -> BlasStep:
    """The step that adds ``parts`` results of ``count`` elements, in slot ``part``, to one in slot ``to``."""
    stub = SUM_STUBS[dtype_name(dtype)]
    return BlasStep(stub, _address(stub), (part, to, count, parts), count, 1)


def _address(stub: str) -> int:
    return product_address(stub, _text, quick=Quick(_quick_text))


def _text(stub: str) -> str:
    from jitgrad.compiler.products.gemv_code import stub_ir

    return stub_ir(stub)


def _quick_text(stub: str) -> str:
    from jitgrad.compiler.products.gemv_code import quick_stub_ir

    return quick_stub_ir(stub)
