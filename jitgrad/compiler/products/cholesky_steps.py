"""Our own factorization of a positive definite matrix, and its gradient, as steps: names, words and memory; not the
code (cholesky_code.py).
"""

from __future__ import annotations

from jitgrad.compiler.products.product_code import Functions
from jitgrad.records import NamedTuple

MODULE = "jitgrad_cholesky"
TASKS, COTANGENT_TASKS = "tasks", "cotangent_tasks"
KEPT = "cholesky_cotangent_of_kept"
STEPS = {
    "cholesky": ("clear", TASKS), "cholesky_cotangent": ("fill", COTANGENT_TASKS), KEPT: ("clear", COTANGENT_TASKS)
}  # fmt: skip
"""The steps of the factor, of its gradient, and of the gradient of a factor that has left its blocks in memory."""
BLOCK = (
    "source_slot", "factor_slot", "memory_slot", "kept_slot", "result_slot", "status_slot", "code", "n", "column",
    "blocks", "panels", "diagonals_place", "flags_place",
)  # fmt: skip
"""The words of the block of each step. `source` is A, or the cotangent of its lower factor, which is `factor`; both
have rows of n, as `result` has. `memory` begins with the working matrix, in which columns of blocks are `column`
elements apart; blocks on the diagonal, and flags, lie at places in it, in bytes. A flag per tile, of each row of blocks
one more for its end. `kept` is the memory that a factor has left, which its gradient reads; of a factor it is `memory`.
`code` is left in the status where A is not positive definite.
"""
WORDS = (
    "source", "factor", "work", "kept", "result", "n", "column", "blocks", "panels", "threads", "diagonals", "flags",
    "status", "code",
)  # fmt: skip
"""What a step makes of it: addresses and sizes. `threads`: how many the run may use; panels are theirs in turns."""
WIDE = 3
"""The blocks of a panel: registers of a row of the widest tile."""
LINE = 64
_MOST_CHUNKS = 64
_BLOCKS_OF_A_CHUNK = 2


def cholesky_text() -> str:
    """The module of `CODE`, for this machine."""
    from jitgrad.compiler.products.cholesky_code import cholesky_ir
    from jitgrad.compiler.products.registers import kinds

    return cholesky_ir(kinds()["float64"])


class Layout(NamedTuple):
    """Sizes, and places in the memory of a call, which begins with the working matrix, in bytes."""

    n: int
    column: int
    blocks: int
    panels: int
    diagonals: int
    flags: int
    nbytes: int


def is_tasks(step: str) -> bool:
    """Whether a step is the one whose parts take tasks."""
    return step in (TASKS, COTANGENT_TASKS)


def function_of(step: str) -> str:
    """The name of the function of a step."""
    return f"{MODULE}_{step}"


def layout_for(n: int, lanes: int) -> Layout:
    """For matrices of n rows: whole blocks, and columns of blocks of an odd number of lines, which share no places in
    the cache.
    """
    blocks, line = -(-n // lanes), LINE // 8
    panels = -(-blocks // WIDE)
    column = (-(-blocks * lanes * lanes // line) | 1) * line
    diagonals = 8 * blocks * column
    flags = diagonals + 8 * blocks * lanes * (lanes + 1)
    nbytes = flags + -(-4 * blocks * (panels + 1) // LINE) * LINE
    return Layout(n, column, blocks, panels, diagonals, flags, nbytes)


def cut(step: str, layout: Layout) -> tuple[int, int]:
    """Extent and number of chunks of a step. All chunks of the tasks are one: whoever takes one takes tasks as long as
    there are any.
    """
    if is_tasks(step):
        return _MOST_CHUNKS, _MOST_CHUNKS
    if step == "clear":
        return 1, 1
    return layout.blocks, max(1, min(_MOST_CHUNKS, layout.blocks // _BLOCKS_OF_A_CHUNK))


CODE = Functions(
    MODULE, cholesky_text, tuple(map(function_of, dict.fromkeys(step for steps in STEPS.values() for step in steps)))
)
"""A function for each kind of step."""
