"""Factors of matrices, gradients of Cholesky's, systems with triangles or factors, and inverses, as steps; which are
our own is decided elsewhere (fusing/factors.py), the code is in cholesky_code.py, lu_code.py, triangle_code.py for one
right side and columns_code.py for several. Eigenvalues are passed on to eigen_steps.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jitgrad.compiler.machine.cache import cache_key, compile_cached, kernel_cache
from jitgrad.compiler.machine.native import NativeCode
from jitgrad.compiler.products.blas import BlasStep
from jitgrad.compiler.products.cholesky_steps import (
    LANES,
    LOWER,
    LU_STEPS,
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
from jitgrad.compiler.products.columns_steps import MODULE as COLUMNS_MODULE
from jitgrad.compiler.products.columns_steps import PREPARE, PREPARE_ONE, SOLVE, STEP, WIDTH, columns_text
from jitgrad.compiler.products.decomposition_steps import decomposition_modules, decomposition_step
from jitgrad.compiler.products.lu_steps import FUNCTION as LU_FUNCTION
from jitgrad.compiler.products.lu_steps import MODULE as LU_MODULE
from jitgrad.compiler.products.lu_steps import lu_text
from jitgrad.compiler.products.product_code import Module

FACTORS = frozenset(STEPS)
"""The routines that work on tiles."""
SOLUTIONS = {"solve_triangular": TRIANGLE_STEPS[0], "solve_turned": TRIANGLE_STEPS[1]}
"""Those that solve with a triangle, and their functions."""
ONE_TRIANGLE = frozenset(("solve_triangular_columns", "solve_turned_columns"))
COLUMNS = ONE_TRIANGLE | {"lu_solve_columns", "lu_inv"}
"""Those with several right sides."""
DECOMPOSITIONS = frozenset(("eigh", "eigvalsh", "svd", "svdvals", "qr"))
"""Those by NumPy's loops."""
_MOST_CHUNKS = 64


def sizes_of(rows: int) -> Layout:
    """What a factor of a matrix of so many rows, or its gradient, is cut into on this machine, and its memory."""
    from jitgrad.compiler.products.registers import kinds

    return layout_for(rows, kinds()["float64"].lanes)


def factor_steps(
    routine: str, form: tuple[bool, bool], sizes: Sequence[int], slots: Sequence[int], status: int, code: int
) -> list[tuple[str, BlasStep]]:
    """The steps of a routine, with what their names begin with. ``form``: whether lower, and whether transposed.

    ``slots`` are those of the operands and of the results; of LU factors also that of memory of its own; of many right
    sides that, and that of the memory of each thread; of a Cholesky factor and of its gradient its own, and that in
    which the factor leaves its blocks, for a factor the same. These two have the sizes of a `Layout`; those of many
    right sides are rows and columns, those of decompositions are told by `decomposition_step`, those of others their
    rows. The slot of the status is ``status``; the status becomes ``code`` if a matrix is not positive definite, has a
    zero on its diagonal, or values that are not found.
    """
    is_lower, is_transposed = form
    if routine in DECOMPOSITIONS:
        return [("factor", decomposition_step(routine, is_lower, sizes, slots, status, code))]
    if routine == "lu":
        return [("factor", BlasStep(LU_MODULE, lu_code()[LU_MODULE], (*slots, *sizes), 1, 1))]
    if routine == "lu_solve":
        name = LU_STEPS[is_transposed]
        return [("factor", BlasStep(name, triangle_code()[name], (*slots, status, code, *sizes), 1, 1))]
    if routine in COLUMNS:
        return _column_steps(routine, form, sizes, slots, (status, code))
    if routine in SOLUTIONS:
        name = SOLUTIONS[routine]
        block = (*slots, status, code, *sizes, LOWER if is_lower else 0)
        return [("factor", BlasStep(name, triangle_code()[name], block, 1, 1))]
    code_of, layout = cholesky_code(), Layout(*sizes)
    *operands, result, memory, kept = slots
    block = (
        operands[-1], operands[0], memory, kept, result, status, code, layout.n, layout.column, layout.blocks,
        layout.panels, layout.diagonals, layout.flags,
    )  # fmt: skip
    steps = (BlasStep(step, code_of[function_of(step)], block, *cut(step, layout)) for step in STEPS[routine])
    return [("factor" if is_tasks(step.name) else step.name, step) for step in steps]


def _column_steps(
    routine: str, form: tuple[bool, bool], sizes: Sequence[int], slots: Sequence[int], told: tuple[int, int]
) -> list[tuple[str, BlasStep]]:
    """Many right sides with both factors or one triangle. An inverse has none: it makes them in the place of its
    result. Where there is one triangle no rows are exchanged, and its slot stands for theirs.
    """
    (n, columns), (is_lower, is_transposed), is_inverse = sizes, form, routine == "lu_inv"
    *operands, result, memory, scratch = slots
    is_one = routine in ONE_TRIANGLE
    if is_one:
        operands = [operands[0], *operands]
    elif is_inverse:
        operands = [*operands, result]
    last = is_lower if is_one else is_inverse
    turned = is_transposed or routine == "solve_turned_columns"
    block = (*operands, result, memory, scratch, *told, n, columns, int(turned), int(last))
    blocks, made, first = -(-columns // _width()), columns_code(), PREPARE_ONE if is_one else PREPARE
    return [
        ("prepare", BlasStep(first, made[first], block, 1, 1)),
        ("factor", BlasStep(SOLVE, made[SOLVE], block, blocks, min(blocks, _MOST_CHUNKS))),
    ]


def factor_modules(routine: str) -> dict[str, Module]:
    """The module that the steps of a routine refer to, where it is not on disk. It is compiled well at once: loops on
    registers, as tiles of products.
    """
    if routine in DECOMPOSITIONS:
        return decomposition_modules()
    name, text = (MODULE, cholesky_text) if routine in FACTORS else (TRIANGLES_MODULE, triangles_text)
    if routine == "lu":
        name, text = LU_MODULE, lu_text
    if routine in COLUMNS:
        name, text = COLUMNS_MODULE, columns_text
    return {} if kernel_cache().has(cache_key(name)) else {name: (text, False)}


@cache
def cholesky_code() -> NativeCode:
    """The code of factors and their gradients."""
    return compile_cached(MODULE, cholesky_text, names())


@cache
def triangle_code() -> NativeCode:
    """The code of triangular systems."""
    return compile_cached(TRIANGLES_MODULE, triangles_text, (*TRIANGLES, *TRIANGLE_STEPS, *LU_STEPS, LANES))


@cache
def columns_code() -> NativeCode:
    """The code of systems with many right sides."""
    return compile_cached(COLUMNS_MODULE, columns_text, (STEP, PREPARE, PREPARE_ONE, SOLVE, WIDTH))


def _width() -> int:
    """How many right sides are solved for together."""
    from jitgrad.compiler.products.registers import kinds

    return kinds()["float64"].columns


@cache
def lu_code() -> NativeCode:
    """The code of LU factors."""
    return compile_cached(LU_MODULE, lu_text, (LU_MODULE, LU_FUNCTION))
