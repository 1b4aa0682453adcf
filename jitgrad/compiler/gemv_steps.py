"""Our own products of a matrix and a vector, and regions, as steps; how they are cut is decided elsewhere (gemv.py)."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from jitgrad.compiler import native
from jitgrad.compiler.blas import BlasStep, Operand
from jitgrad.compiler.cache import KernelCache, cache_key, compile_cached, kernel_cache
from jitgrad.config import config, get_num_threads

DOTS_STUBS = {"float32": "jitgrad_dots_f32", "float64": "jitgrad_dots_f64"}
COMBINE_STUBS = {"float32": "jitgrad_combine_f32", "float64": "jitgrad_combine_f64"}
SUM_STUBS = {"float32": "jitgrad_sum_parts_f32", "float64": "jitgrad_sum_parts_f64"}
SEQUENCE_STUBS = {"float32": "jitgrad_sequence_f32", "float64": "jitgrad_sequence_f64"}
BLOCK = ("a_slot", "lda", "x_slot", "y_slot", "columns")
"""The words of the block of a product; the distance of rows and columns in elements."""
SUM_BLOCK = ("from_slot", "to_slot", "count", "parts")
"""The words of the block of a sum of parts."""


def vector_steps(
    dtype: np.dtype[Any], n: int, cut: tuple[int, int, bool, int], operands: tuple[Operand, Operand, Operand], part: int
) -> list[BlasStep]:
    """The steps of a product with ``n`` columns, cut as a `GemvPlan` says; the matrix is stored without gaps.

    ``part`` is the slot of the memory for one result per chunk, if the plan asks for any, else that of the result.
    """
    rows, columns, combines, chunks = cut
    a, b, c = operands
    matrix, vector = (a, b) if n == 1 else (b, a)
    stub = (COMBINE_STUBS if combines else DOTS_STUBS)[dtype.name]
    block = (matrix.slot, columns, vector.slot, part, columns)
    steps = [BlasStep(stub, _address(stub), block, rows, chunks)]
    if part != c.slot:
        stub = SUM_STUBS[dtype.name]
        steps.append(BlasStep(stub, _address(stub), (part, c.slot, columns, chunks), columns, 1))
    return steps


def sequence_address(dtype: np.dtype[Any]) -> int:
    """The address of the function that runs kernels one after another."""
    return _address(SEQUENCE_STUBS[dtype.name])


@cache
def _address(stub: str) -> int:
    """The address of a function: compiled quickly and then well, like a kernel, if it is not on disk."""
    code = kernel_cache().get(cache_key(stub), [stub])
    return code[stub] if code is not None else _compiled(stub)


def _compiled(stub: str) -> int:
    from jitgrad.compiler.gemv_ir import stub_ir
    from jitgrad.compiler.machine import improve
    from jitgrad.compiler.tiers import Task

    text = stub_ir(stub)
    if not config.quick_start or get_num_threads() == 1:
        return compile_cached(stub, lambda: text, [stub])[stub]
    quick = f"{stub}_quick"
    address = native.compile_module(text.replace(stub, quick), [quick], quickly=True)[quick]
    improve([Task(text, partial(_improved, stub, address, kernel_cache()))])
    return address


def _improved(stub: str, old: int, kept: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep good code in place of quick code; both addresses."""
    code = native.load_object(object_code, [stub])
    kept.put(cache_key(stub), code)
    return old, code[stub]
