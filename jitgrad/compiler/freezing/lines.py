"""How the loops of a kernel store cache lines; where they store them is decided elsewhere (freeze.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jitgrad.compiler.emission.memory import CACHE_LINE, row_store
from jitgrad.compiler.emission.rows import pairs_rows
from jitgrad.compiler.emission.segments import asks_equal, compares
from jitgrad.compiler.emission.squares import has_squares
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.loopir.nests import PARALLEL_VECTOR, VECTOR, Kernel, Loop, Store, statements


def is_elementwise(kernel: Kernel) -> bool:
    """Whether loads and stores of a kernel alternate: its parallel loop is one of vectors."""
    return any(isinstance(s, Loop) and s.kind == PARALLEL_VECTOR for s in kernel.body)


def finds_lines(kernel: Kernel) -> bool:
    """Whether the loops of a kernel that store rows go on from where a line begins; two rows at a time would have to
    begin at two places, squares of rows at as many.
    """
    roles = {b.name: b.role for b in kernel.buffers}
    stores = [s for s in statements(kernel.body) if isinstance(s, Store) and roles[s.buffer] == "out"]
    loops = [s for s in statements(kernel.body) if isinstance(s, Loop) and s.kind == VECTOR]
    found = [row_store(loop, roles) for loop in loops if not compares(loop) or asks_equal(loop)]
    return not (pairs_rows(kernel) or has_squares(kernel)) and all(store in found for store in stores)


def has_whole_lines(kernel: Kernel, classes: Sequence[Sequence[int]], extents: Mapping[int, int]) -> bool:
    """Whether no two rows that a kernel stores share a line; ``classes`` are those of the buffers' axes."""
    for buffer, axes in zip(kernel.buffers, classes, strict=True):
        if buffer.role == "out" and len(axes) > 1:
            row = 1 if axes[-1] == ONE else extents[axes[-1]]
            if row * buffer.dtype.itemsize % CACHE_LINE:
                return False
    return True
