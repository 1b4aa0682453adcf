"""Factors of positive definite matrices, their gradients, and triangular systems with one right side, as steps; which
are our own is decided elsewhere (fusing/factors.py), the code is in cholesky_code.py and triangle_code.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jitgrad.compiler.machine.cache import cache_key, compile_cached, kernel_cache
from jitgrad.compiler.machine.native import NativeCode
from jitgrad.compiler.products.blas import BlasStep
from jitgrad.compiler.products.cholesky_steps import (
    LANES,
    MODULE,
    STEPS,
    TRIANGLE_STEPS,
    TRIANGLES,
    TRIANGLES_MODULE,
    Layout,
    cholesky_text,
    cut,
    function_of,
    is_tasks,
    layout_for,
    names,
    triangles_text,
)
from jitgrad.compiler.products.eigen_steps import eigen_modules, eigen_step
from jitgrad.compiler.products.product_code import Module

FACTORS = frozenset(STEPS)
"""The routines that work on tiles."""
SOLUTIONS = {"solve_triangular": 0, "solve_turned": 1}
"""Those that solve with a triangle, and the place of their function."""


def sizes_of(rows: int) -> Layout:
    """What a factor of a matrix of so many rows, or its gradient, is cut into on this machine, and its memory."""
    from jitgrad.compiler.products.registers import kinds

    return layout_for(rows, kinds()["float64"].lanes)


def factor_steps(
    routine: str, is_lower: bool, sizes: Sequence[int], slots: Sequence[int], status: int, code: int
) -> list[tuple[str, BlasStep]]:
    """The steps of a routine, with what their names begin with.

    ``slots`` are those of the operands and of the result; of a factor and of its gradient also that of memory of its
    own, and that of the memory in which the factor leaves its blocks, for a factor the same. Both have the sizes of a
    `Layout`; a triangle's only size is its rows. The slot of the status is ``status``; the status becomes ``code`` if a
    matrix is not positive definite, or has a zero on its diagonal.
    """
    if routine == "eigh_joined":
        n, count = sizes
        return [("factor", eigen_step(is_lower, n, count, slots, status, code))]
    if routine in SOLUTIONS:
        name = TRIANGLE_STEPS[SOLUTIONS[routine]]
        block = (*slots, status, code, *sizes, int(is_lower))
        return [("factor", BlasStep(name, triangle_code()[name], block, 1, 1))]
    made, layout = cholesky_code(), Layout(*sizes)
    *operands, result, memory, kept = slots
    block = (
        operands[-1], operands[0], memory, kept, result, status, code, layout.n, layout.column, layout.blocks,
        layout.panels, layout.diagonals, layout.flags,
    )  # fmt: skip
    steps = (BlasStep(step, made[function_of(step)], block, *cut(step, layout)) for step in STEPS[routine])
    return [("factor" if is_tasks(step.name) else step.name, step) for step in steps]


def factor_modules(routine: str) -> dict[str, Module]:
    """The module that the steps of a routine refer to, where it is not on disk. It is compiled well at once: loops on
    registers, as tiles of products.
    """
    if routine == "eigh_joined":
        return eigen_modules()
    name, text = (MODULE, cholesky_text) if routine in FACTORS else (TRIANGLES_MODULE, triangles_text)
    return {} if kernel_cache().has(cache_key(name)) else {name: (text, False)}


@cache
def cholesky_code() -> NativeCode:
    """The code of factors and their gradients."""
    return compile_cached(MODULE, cholesky_text, names())


@cache
def triangle_code() -> NativeCode:
    """The code of triangular systems."""
    return compile_cached(TRIANGLES_MODULE, triangles_text, (*TRIANGLES, *TRIANGLE_STEPS, LANES))
