"""Our own factorization of a positive definite matrix, and its gradient, as steps: names, words and memory; not the
code (cholesky_code.py).
"""

from __future__ import annotations

from jitgrad.records import NamedTuple

MODULE = "jitgrad_cholesky"
COTANGENT = f"{MODULE}_cotangent"
STEPS = {MODULE: ("tasks",), COTANGENT: ("fill", "tasks", "finish")}
"""The steps of the factor and of its gradient, by what their names begin with."""
BLOCK = (
    "source", "factor", "work", "packed", "result", "n", "column", "blocks", "panels", "threads", "diagonals", "flags",
    "status",
)  # fmt: skip
"""Addresses and sizes. `source` is A, or the cotangent of its lower factor, which is `factor`; both have rows of n, as
`result` has. `column` is the distance of columns of blocks in `work`, and in the factor `packed` like it. A flag per
tile, of each row of blocks one more for its end. `threads`: how many there may be; panels are theirs in turns.
"""
TRIANGLES_MODULE = "jitgrad_triangles"
TRIANGLES = ("jitgrad_triangle_rows", "jitgrad_triangle_columns")
"""The functions that solve with a triangle, and with its transpose."""
LANES = "jitgrad_triangle_lanes"
"""The function that gives how many rows a block has; 0 where all this is left to LAPACK."""
WIDE = 3
"""The blocks of a panel: registers of a row of the widest tile."""
LINE = 64
_MOST_CHUNKS = 64
_BLOCKS_OF_A_CHUNK = 2


def cholesky_text() -> str:
    """The module of `names`, for this machine."""
    from jitgrad.compiler.products.cholesky_code import cholesky_ir
    from jitgrad.compiler.products.registers import kinds

    return cholesky_ir(kinds()["float64"])


def triangles_text() -> str:
    """The module of `TRIANGLES` and `LANES`, for this machine; where it has no such registers, they do nothing."""
    from jitgrad.compiler.products.registers import kinds
    from jitgrad.compiler.products.triangle_code import no_triangles_ir, triangles_ir

    kind = kinds().get("float64")
    return triangles_ir(kind) if kind is not None else no_triangles_ir()


class Layout(NamedTuple):
    """Sizes, and places in the memory of a call, which begins with the working matrix, in bytes."""

    n: int
    column: int
    blocks: int
    panels: int
    packed: int
    diagonals: int
    flags: int
    status: int
    words: int
    nbytes: int


def names() -> tuple[str, ...]:
    """All functions of the module."""
    return tuple(f"{prefix}_{step}" for prefix, steps in STEPS.items() for step in steps)


def layout_for(n: int, lanes: int) -> Layout:
    """For matrices of n rows: whole blocks, and columns of blocks of an odd number of lines, which share no places in
    the cache.
    """
    blocks, line = -(-n // lanes), LINE // 8
    panels = -(-blocks // WIDE)
    column = (-(-blocks * lanes * lanes // line) | 1) * line
    packed = 8 * blocks * column
    diagonals = 2 * packed
    flags = diagonals + 8 * blocks * lanes * (lanes + 1)
    status = flags + -(-4 * blocks * (panels + 1) // LINE) * LINE
    words = status + LINE
    return Layout(n, column, blocks, panels, packed, diagonals, flags, status, words, words + 8 * len(BLOCK))


def cut(step: str, layout: Layout) -> tuple[int, int]:
    """Extent and number of chunks of a step. All chunks of the tasks are one: whoever takes one takes tasks as long as
    there are any.
    """
    if step == "tasks":
        return _MOST_CHUNKS, _MOST_CHUNKS
    return layout.blocks, max(1, min(_MOST_CHUNKS, layout.blocks // _BLOCKS_OF_A_CHUNK))
