"""Triangular systems with one right side, and those with LU factors, as functions and as steps: names and words; not
the code (triangle_code.py).
"""

from __future__ import annotations

from jitgrad.compiler.products.product_code import Functions

FUNCTIONS = ("jitgrad_triangle_rows", "jitgrad_triangle_columns")
"""Those that solve with a triangle, and with its transpose."""
STEPS = ("jitgrad_triangle_rows_step", "jitgrad_triangle_columns_step")
"""The same as steps of a cluster."""
BLOCK = ("a_slot", "b_slot", "x_slot", "status_slot", "code", "n", "form")
"""The words of their blocks: the slot of the status, and what is left there if a zero is on the diagonal."""
LU_STEPS = ("jitgrad_lu_solve_step", "jitgrad_lu_solve_turned_step")
"""The steps that solve with both factors of a matrix, and of its transpose."""
LU_BLOCK = ("factors_slot", "rows_slot", "b_slot", "x_slot", "status_slot", "code", "n")
LOWER, UNIT = 1, 2
"""Which triangle, and whether its diagonal is ones."""
LANES = "jitgrad_triangle_lanes"
"""The function that gives how many rows a block has; 0 where all this is left to LAPACK."""


def triangles_text() -> str:
    """The module of `CODE`, for this machine; where it has no such registers, its functions do nothing."""
    from jitgrad.compiler.products.registers import kinds
    from jitgrad.compiler.products.triangle_code import no_triangles_ir, triangles_ir

    kind = kinds().get("float64")
    return triangles_ir(kind) if kind is not None else no_triangles_ir()


CODE = Functions("jitgrad_triangles", triangles_text, (*FUNCTIONS, *STEPS, *LU_STEPS, LANES))
