"""Which results a kernel may write over an operand: where it reads each element once, just before it writes the one in
its place. Whether an operand is read again by others is decided elsewhere (freezing/in_place.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    PARALLEL_VECTOR,
    SERIAL,
    VECTOR,
    Call,
    Check,
    Index,
    Keep,
    Kernel,
    Load,
    Loop,
    Repeat,
    Statement,
    Store,
)
from jitgrad.records import NamedTuple

_PLAIN = (PARALLEL, PARALLEL_VECTOR, SERIAL, VECTOR)


class _Use(NamedTuple):
    """A statement that reads or writes a buffer, its number, and the loops around it."""

    number: int
    statement: Statement
    loops: tuple[Loop, ...]


def find_overwritable(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Pairs of an input and an output, by their numbers among the buffers, that may lie in the same memory."""
    only = _only_uses(kernel)
    used = [(k, b, only[b.name]) for k, b in enumerate(kernel.buffers) if b.name in only]
    read = [(k, b.dtype, use) for k, b, use in used if b.role == "in"]
    written = [(k, b.dtype, use) for k, b, use in used if b.role == "out"]
    return tuple([
        (a, b)
        for a, dtype, load in read for b, other, store in written
        if dtype == other and _is_in_place(load, store)
    ])  # fmt: skip


def _is_in_place(read: _Use, write: _Use) -> bool:
    """Whether the only read of a buffer and the only write of another are at the same place, in this order, in the same
    loops, which come by each place once.
    """
    load, store = read.statement, write.statement
    if not isinstance(load, Load) or not isinstance(store, Store) or load.bounds or store.bounds:
        return False
    if not (read.loops and write.loops) or read.loops[-1] is not write.loops[-1] or read.number > write.number:
        return False
    return load.index == store.index and _is_once(load.index, read.loops)


def _is_once(index: Index, loops: Sequence[Loop]) -> bool:
    """Whether every turn of the loops has a place of its own: all of their variables are in the index, as they are."""
    are_plain = all(loop.kind in _PLAIN and loop.start is None for loop in loops)
    are_whole = all(term.divisor == 1 and term.shift is None for term in index.terms)
    return are_plain and are_whole and sorted(term.var for term in index.terms) == sorted(loop.var for loop in loops)


def _only_uses(kernel: Kernel) -> dict[str, _Use]:
    """The buffers that one statement touches, with that."""
    uses: dict[str, list[_Use]] = {}
    for number, (statement, loops) in enumerate(_walk(kernel.body, ())):
        for name in _touched(statement):
            uses.setdefault(name, []).append(_Use(number, statement, loops))
    return {name: found[0] for name, found in uses.items() if len(found) == 1}


def _walk(body: Sequence[Statement], loops: tuple[Loop, ...]) -> Iterator[tuple[Statement, tuple[Loop, ...]]]:
    """All statements but loops, in order, each with the loops around it; those of repeats once for each turn."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from _walk(statement.body, (*loops, statement))
        elif isinstance(statement, Repeat):
            for turn in range(statement.turns):
                members = [listed[turn] for listed in statement.members]
                stand_for = dict(zip(statement.names, members, strict=True))
                for s in statement.body:
                    if isinstance(s, Load | Store):
                        offset = stand_for.get(s.index.offset or "", s.index.offset)
                        index = replace(s.index, offset=offset)
                        s = replace(s, buffer=stand_for.get(s.buffer, s.buffer), index=index)
                    yield s, loops
        else:
            yield statement, loops


def _touched(statement: Statement) -> tuple[str, ...]:
    """The buffers that a statement reads or writes."""
    match statement:
        case Load(buffer=name) | Store(buffer=name) | Check(buffer=name):
            return (name,)
        case Call(buffers=names) | Keep(buffers=names):
            return names
    return ()
