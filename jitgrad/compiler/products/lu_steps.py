"""LU factors of a matrix by our own code: names, words and memory; not the code (lu_code.py)."""

from __future__ import annotations

from jitgrad.compiler.products.product_code import Functions

MODULE = "jitgrad_lu"
FUNCTION = "jitgrad_lu_factors"
BLOCK = ("source_slot", "factors_slot", "rows_slot", "memory_slot", "n")
"""The words of the block of the step. `memory` has `memory_bytes`."""
ROWS = 8
"""So many rows of a tile; rows of the working matrix behind the last one are zeros."""


def lu_text() -> str:
    """The module of `CODE` for this machine, which has registers of 32 bytes or more."""
    from jitgrad.compiler.products.lu_code import lu_ir
    from jitgrad.compiler.products.registers import kinds

    return lu_ir(kinds()["float64"])


def padded(n: int) -> int:
    """Rows of the working matrix of n."""
    return -(-n // ROWS) * ROWS


def distance(n: int) -> int:
    """Elements between rows of the working matrix: an odd number of lines, which share no places in the cache."""
    return (padded(n) // ROWS | 1) * ROWS


def memory_bytes(n: int) -> int:
    """The working matrix and a panel of it, a register for each row; a register more than that of 64 bytes."""
    return 8 * (padded(n) + ROWS) * (distance(n) + 8)


CODE = Functions(MODULE, lu_text, (MODULE, FUNCTION))
