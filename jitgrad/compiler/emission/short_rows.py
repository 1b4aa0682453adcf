"""Short rows: which loops over rows are emitted for some numbers of registers as well; it emits nothing.

To find out how many registers a row is takes longer than a row of one: a question for each size of what is left over, a
mask, and a load that waits for stores of the rows before, some of which it covers. Where rows with numbers of their own
(a place, a factor) are half a register, one or two, the loop over them is emitted for each of these as well, without
masks, and asks once, ahead of all rows.

Other rows of few registers are straight code with AVX-512, the last register masked. Of 215 instructions for a row of
28 floats 150 were its beginning and end, for masks and the elements that lanes share, which all rows have in common:
the gradient of max-pooling takes 0.56 of the time so, sums of rows of 10 floats 0.55 (one thread, Zen 4, in turns).
"""

from __future__ import annotations

from jitgrad.compiler.emission.interleave import FEW, SOME, is_analytic, weight_of
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
    Update,
)

_REGISTERS = 4
"""How many a row has at most where it is emitted for each number of them."""
_ROOM = 100
"""What all registers of such rows have to do, at most."""
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


def row_in_registers(loop: Loop) -> Loop | None:
    """The loop over a row, where it is the only one there, reads and stores in whole registers, and has no function
    of analysis, which would take longer than its row's beginning and end; else None. One that asks where it stands sums
    nothing: other code adds it up between the places where answers change.
    """
    passes = [s for s in loop.body if isinstance(s, Loop)]
    if loop.kind not in (SERIAL, PARALLEL) or loop.start or len(passes) != 1:
        return None
    columns, made = passes[0], {s.name for s in loop.body if isinstance(s, Let | Load)}
    is_whole = columns.kind == VECTOR and not columns.start and columns.extent not in made
    has_sums = any(isinstance(s, Update) for s in columns.body)
    if not is_whole or weight_of(columns) > SOME or is_analytic(columns) or (has_sums and compares(columns)):
        return None
    stored = {s.buffer for s in columns.body if isinstance(s, Store)}
    made = {s.name for s in columns.body if isinstance(s, Let | Load)}
    is_plain = all(_is_regular(s, columns.var, made, stored) for s in columns.body)
    return columns if is_plain else None


def most_registers(columns: Loop) -> int:
    """Up to how many registers rows have code of their own, by what there is to do for each."""
    fitting = [n for n in range(1, 1 + _REGISTERS) if n * (n + 1) // 2 * weight_of(columns) <= _ROOM]
    return max(fitting, default=0)


def _is_regular(s: Statement, var: str, made: set[str], stored: set[str]) -> bool:
    """Whether a statement computes, sums, stores neighbouring lanes, or reads what it does not store at a distance of
    lanes that stands in the code.
    """
    if isinstance(s, Load):
        is_known = all(isinstance(term.stride, int) for term in s.index.terms if term.var == var)
        names = {term.var for term in s.index.terms} | {bound.var for bound in s.bounds}
        return is_known and not names & made and s.buffer not in stored
    return isinstance(s, Let | Update) or (isinstance(s, Store) and _is_along(s.index, var, made))


def _is_plain(s: Statement, var: str, made: set[str]) -> bool:
    """Whether a statement computes, or reads or writes neighbouring lanes, or one element for all."""
    return isinstance(s, Let) or (isinstance(s, Load | Store) and _is_along(s.index, var, made))


def _is_along(index: Index, var: str, made: set[str]) -> bool:
    lanes = [term for term in index.terms if term.var == var]
    return lanes in ([], [Term(var)]) and all(term.var not in made for term in index.terms)
