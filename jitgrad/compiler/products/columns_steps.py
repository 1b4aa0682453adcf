"""Solutions of triangular systems with many right sides, as steps: names and words; not the code (columns_code.py)."""

from __future__ import annotations

from jitgrad.compiler.products.product_code import Functions

MODULE = "jitgrad_columns"
STEP = MODULE
PREPARE, PREPARE_ONE, SOLVE = f"{MODULE}_prepare", f"{MODULE}_prepare_one", f"{MODULE}_solve"
"""The steps of a cluster that solve with LU factors, or with one triangle: the first makes the words and all that these
tell of, the last does the work.
"""
FACTORS_BLOCK = (
    "factors_slot", "rows_slot", "b_slot", "x_slot", "memory_slot", "scratch_slot", "status_slot", "code", "n",
    "columns", "is_transposed", "is_inverse",
)  # fmt: skip
"""The words of the blocks of a pair. Of an inverse, the first makes the right sides in the place of the result."""
ONE_BLOCK = (*FACTORS_BLOCK[:-1], "is_lower")
"""The same of one triangle, in which no rows change places."""
WORDS = 32
WIDTH = f"{MODULE}_width"
"""The function that gives how many columns are solved for together."""
BLOCK = ("source", "result", "work", "n", "columns", "rows_in", "rows_out", "triangles", "count")
"""Addresses and sizes. `source` and `result` have rows of `columns`. `work` is memory for n rows of a block of columns,
for each thread. `rows_in` says which row of the source becomes the i-th one that is solved for, `rows_out` where that
one goes. `triangles` are `count` times the words of `TRIANGLE`, solved one after the other.
"""
TRIANGLE = ("a", "down", "across", "inverses", "start", "step")
"""A lower triangle in the order of solving: element (i, j) lies at `a` + i `down` + j `across`, one over (i, i) in
`inverses`. Row i of what is solved for is number `start` + i `step` of the work: an upper triangle goes from its last
element back.
"""


def memory_bytes(n: int) -> int:
    """What the first step makes: words, the order of rows, and as they are, one over each diagonal, and ones."""
    return 8 * (WORDS + 4 * n)


def scratch_bytes(n: int) -> int:
    """The right sides of a block of columns, of each thread."""
    from jitgrad.compiler.products.registers import kinds

    return 8 * n * kinds()["float64"].columns


def columns_text() -> str:
    """The module for this machine; where it has no such registers, its functions do nothing."""
    from jitgrad.compiler.products.columns_code import columns_ir, no_columns_ir
    from jitgrad.compiler.products.registers import kinds

    kind = kinds().get("float64")
    return columns_ir(kind) if kind is not None else no_columns_ir()


CODE = Functions(MODULE, columns_text, (STEP, PREPARE, PREPARE_ONE, SOLVE, WIDTH))
