"""Short rows, each with numbers of its own (its place, a factor): which loops over rows these are; it emits nothing.

To find out how many registers a row is takes longer than a row of one: a question for each size of what is left over, a
mask, and a load that waits for stores of the rows before, some of which it covers. Where rows are half a register, one
or two, the loop over them is emitted for each of these as well, and asks once, ahead of all rows.
"""

from __future__ import annotations

from jitgrad.compiler.emission.interleave import FEW, weight_of
from jitgrad.compiler.emission.segments import compares
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    SERIAL,
    VECTOR,
    Check,
    Index,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Term,
)

_MOST = 2 * FEW
"""What a turn over the columns has to do, at most, where it is emitted several times."""


def row_of_numbers(loop: Loop) -> Loop | None:
    """The loop over the columns of rows, where it stands alone behind what is loaded for a row, goes along memory, and
    sums nothing; else None.
    """
    if loop.kind not in (SERIAL, PARALLEL) or loop.start or not loop.body:
        return None
    *ahead, columns = loop.body
    if not isinstance(columns, Loop) or columns.kind != VECTOR or columns.start or weight_of(columns) > _MOST:
        return None
    found = {s.name for s in ahead if isinstance(s, Let | Load)}
    has_numbers = any(isinstance(s, Load) for s in ahead) and all(isinstance(s, Let | Load | Check) for s in ahead)
    if not has_numbers or columns.extent in found or compares(columns):
        return None
    made = {s.name for s in columns.body if isinstance(s, Let | Load)}
    return columns if all(_is_plain(s, columns.var, made) for s in columns.body) else None


def _is_plain(s: Statement, var: str, made: set[str]) -> bool:
    """Whether a statement computes, or reads or writes neighbouring lanes, or one element for all."""
    return isinstance(s, Let) or (isinstance(s, Load | Store) and _is_along(s.index, var, made))


def _is_along(index: Index, var: str, made: set[str]) -> bool:
    lanes = [term for term in index.terms if term.var == var]
    return lanes in ([], [Term(var)]) and all(term.var not in made for term in index.terms)
