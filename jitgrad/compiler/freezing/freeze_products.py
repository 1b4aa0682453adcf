"""Freezing products: which are our own and how they are cut, the memory that they need, and their tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.freezing.freeze_loops import Frozen
from jitgrad.compiler.freezing.freeze_own import PARTS, SCRATCH, Memory
from jitgrad.compiler.fusing.buffers import aligned
from jitgrad.compiler.fusing.nodes import Product
from jitgrad.compiler.products.gemm import plan_product
from jitgrad.compiler.products.gemm_steps import GemmPlan
from jitgrad.compiler.products.gemv import plan_vector_product
from jitgrad.compiler.products.gemv_steps import GemvPlan
from jitgrad.compiler.products.own_products import product_sizes
from jitgrad.compiler.symbols import at_once
from jitgrad.program import Program

Cuts = tuple[GemvPlan | None, GemmPlan | None]
"""How a product is cut as one with a vector, and as one of two matrices; both None when it is left to BLAS."""


def cut_product(program: Program, item: Product, is_repeated: bool) -> Cuts:
    """How a product is cut, which ``is_repeated`` in a loop."""
    (sizes, batch), transposed = product_sizes(program, item), (item.transpose_a, item.transpose_b)
    dtype = program.specs[item.value].dtype
    vector = at_once(_planner(_vector_plan_of(is_repeated), dtype, transposed), *sizes, batch)
    return vector, at_once(_planner(plan_product, dtype, transposed), *sizes, batch)


def product_memory(program: Program, number: int, item: Product, cuts: Cuts, nbytes: int) -> Memory:
    """What our own products need beside their operands, ``nbytes`` being those of the result."""
    vector, matrix = cuts
    if matrix is not None:
        scratch = ((number, SCRATCH), aligned(matrix.worker_bytes), True)
        beside = matrix.shared_bytes or (matrix.parts * nbytes if matrix.parts > 1 else 0)
        return [scratch, ((number, PARTS), beside, False)] if beside else [scratch]
    itemsize = program.specs[item.value].dtype.itemsize
    return [((number, PARTS), vector.parts * itemsize, False)] if vector is not None and vector.parts else []


def freeze_product(
    program: Program, number: int, item: Product, cuts: Cuts, at: Sequence[int], memory: Mapping[object, int],
    row_chunks: int,
) -> Frozen:  # fmt: skip
    """The task of a product of values that lie ``at`` these places; ``row_chunks`` are those of independent rows of the
    loop that it is in, 0 elsewhere.
    """
    (sizes, batch), dtype, (vector, matrix) = product_sizes(program, item), program.specs[item.value].dtype.str, cuts
    operands = [
        (place, columns, rows * columns, is_transposed)
        for place, v, is_transposed in zip(
            at, (item.a, item.b, item.value), (item.transpose_a, item.transpose_b, False), strict=True
        )
        for *_, rows, columns in (program.specs[v].known_shape,)
    ]
    part = memory.get((number, PARTS), at[2])
    if matrix is not None:
        return "own product", number, dtype, sizes, tuple(matrix), memory[number, SCRATCH], part, *operands
    if row_chunks:
        return "row product", number, dtype, sizes, *operands, row_chunks
    if vector is None:
        return "product", number, dtype, sizes, *operands, batch
    return "vector product", number, dtype, sizes[1], tuple(vector), part, *operands


@functools.lru_cache
def _vector_plan_of(is_repeated: bool) -> Callable[..., Any]:
    return functools.partial(plan_vector_product, is_repeated=is_repeated)


@functools.lru_cache
def _planner(plan: Callable[..., Any], dtype: np.dtype[Any], transposed: tuple[bool, bool]) -> Callable[..., Any]:
    """How to plan products of a kind, by their sizes."""
    return lambda m, n, k, batch: plan(dtype, (m, n, k), batch, transposed)
