"""Two rows of a nest at once: the loops over one row and those over the next become one; it emits nothing.

A row's sums, and the division or root that follows, are chains in which each operation waits for the one before it: a
row of 768 floats is worked on for some 250 ns, and waits for 100. A second row fills the waiting, and what all rows
read, or add up in rows of sums, is loaded and stored half as often. Every row goes through the same operations in the
same order as alone, so that bits are the same: it does not matter which rows form pairs, nor whether the code was
compiled quickly, without pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import singledispatch

from jitgrad.compiler import vecmath
from jitgrad.compiler.emission.interleave import most_alive, registers_at_once
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    VECTOR,
    Accumulator,
    Argument,
    Bound,
    Check,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Update,
    arguments,
    statements,
)
from jitgrad.records import NamedTuple

SECOND = "_second"
"""What the names of the second row end in."""
_LONG_ROW, _LONG_SHARING_ROW = 16 << 10, 32 << 10  # bytes
_MOST_ALIVE = 8  # values of a loop's body: those of two rows have room in the registers

Names = Mapping[str, str]


class Pair(NamedTuple):
    """The body of a turn over two rows, on how many registers of lanes its loops work, and the rows' axis."""

    body: tuple[Statement, ...]
    at_once: Mapping[Loop, int]
    axis: str


def pairs_rows(kernel: Kernel) -> bool:
    """Whether some loop over rows of a kernel takes two at once."""
    return any(takes_pairs(s, kernel) for s in kernel.body if isinstance(s, Loop))


def takes_pairs(loop: Loop, kernel: Kernel) -> bool:
    """Whether two turns of a loop over rows can be one, and wait less for themselves."""
    passes = [s for s in loop.body if isinstance(s, Loop)]
    if loop.kind != PARALLEL or len(passes) < 2 or len({p.extent for p in passes}) > 1:
        return False
    roles = _roles(kernel)
    is_plain = "ring" not in roles.values() and all(map(_is_plain_pass, passes))
    return is_plain and _may_be_reordered(loop, roles, _running_sums(kernel))


def longest_row(loop: Loop, kernel: Kernel, is_short: bool) -> int:
    """Up to how many bytes rows are taken two at a time: more where both read, or add to, the same rows, which are no
    longer in the first cache then, and come from the second half as often. Layer norm of 512x8192 floats takes 0.90 of
    the time so, of 512x6000 0.86, RMS norm of 512x8192 0.88, but standardisation, where rows have nothing in common,
    1.1; and layer norm with registers of 32 bytes (``is_short``) 1.09 (Zen 4, AVX-512 but for the last, in turns).
    """
    roles = _roles(kernel)
    loads = [s for s in statements(loop.body) if isinstance(s, Load) and roles[s.buffer] in ("in", "partial")]
    shares = any(s.index.terms and all(term.var != loop.var for term in s.index.terms) for s in loads)
    return _LONG_SHARING_ROW if shares and not is_short else _LONG_ROW


def pair_rows(loop: Loop, kernel: Kernel) -> Pair:
    """Two turns of a loop over rows as one."""
    return _Pairing(loop, _roles(kernel), _running_sums(kernel)).pair()


def _roles(kernel: Kernel) -> dict[str, str]:
    return {b.name: b.role for b in kernel.buffers}


def _running_sums(kernel: Kernel) -> dict[str, Accumulator]:
    """The accumulators that go on from row to row."""
    return {s.name: s for s in kernel.body if isinstance(s, Accumulator)}


def _is_plain_pass(loop: Loop) -> bool:
    """Whether a loop over a row is so short that two have room in the registers, and wait for memory and themselves:
    functions of analysis keep the processor busy, and softmax cross-entropy takes 1.2 of the time with two rows.
    """
    is_flat = all(isinstance(s, Load | Let | Update | Store) for s in loop.body)
    is_analytic = any(isinstance(s, Let) and s.op in vecmath.NAMES for s in loop.body)
    return loop.kind == VECTOR and is_flat and not is_analytic and most_alive(loop.body) <= _MOST_ALIVE


def _may_be_reordered(loop: Loop, roles: Mapping[str, str], running: Mapping[str, Accumulator]) -> bool:
    """Whether a statement may be run for the second row before the following ones are for the first.

    So it is where what goes on from row to row is touched in one place each, and running sums are not looked at.
    """
    touched: dict[str, int] = {}
    for k, s in enumerate(loop.body):
        for t in statements((s,)):
            if isinstance(t, Accumulator | Update) and t.combine.startswith("arg"):
                return False
            if any(a in running for a in arguments(t)):
                return False
            name = _going_on(t, roles, running)
            if name is not None and touched.setdefault(name, k) != k:
                return False
    return True


def _rows_of_scratch(loop: Loop, roles: Mapping[str, str]) -> set[str]:
    """The buffers of scratch that hold one row, and the next one in its place; others have room for all rows."""
    stores = [s for s in statements(loop.body) if isinstance(s, Store) and roles[s.buffer] == "scratch"]
    by_rows = {s.buffer for s in stores if any(term.var == loop.var for term in s.index.terms)}
    return {s.buffer for s in stores} - by_rows


def _going_on(s: Statement, roles: Mapping[str, str], running: Mapping[str, Accumulator]) -> str | None:
    """The row of sums or the running sum that a statement touches."""
    if isinstance(s, Load | Store):
        return s.buffer if roles[s.buffer] == "partial" else None
    return s.acc if isinstance(s, Update) and s.acc in running else None


class _Pairing:
    def __init__(self, loop: Loop, roles: Mapping[str, str], running: Mapping[str, Accumulator]) -> None:
        self.loop = loop
        self.roles = roles
        self.running = running
        own = {s.name for s in statements(loop.body) if isinstance(s, Load | Let | Accumulator)}
        own |= _rows_of_scratch(loop, roles)
        self.names = {name: name + SECOND for name in (loop.var, *own)}
        self.at_once: dict[Loop, int] = {}

    def pair(self) -> Pair:
        body = [s for first in self.loop.body for s in self._twice(first)]
        return Pair(tuple(body), self.at_once, self.loop.var + SECOND)

    def _twice(self, first: Statement) -> Iterator[Statement]:
        if not isinstance(first, Loop):
            yield from (first, renamed(first, self.names))
            return
        sums = {s.acc: s.acc + SECOND for s in first.body if isinstance(s, Update) and s.acc in self.running}
        yield from (replace(self.running[acc], name=name) for acc, name in sums.items())
        second = [renamed(s, {**self.names, **sums}) for s in first.body]
        if _compares(first):
            loops = [first, replace(first, body=tuple(second))]
        else:
            loops = [replace(first, body=tuple(_joined(first.body, second, self.roles)))]
        for loop in loops:
            self.at_once[loop] = registers_at_once(first)
            yield loop
        for acc, name in sums.items():
            yield Update(acc, self.running[acc].dtype, self.running[acc].combine, name)


def _compares(loop: Loop) -> bool:
    """Whether a loop goes by segments, between places where comparisons of its variable change their answer: sums of
    lanes would differ with those of another row.
    """
    return any(loop.var in arguments(s) or (isinstance(s, Load | Store) and s.bounds) for s in loop.body)


def _joined(first: Sequence[Statement], second: Sequence[Statement], roles: Mapping[str, str]) -> list[Statement]:
    """Both rows' statements; what does not depend on the row is loaded and computed once, and what the first row
    leaves in a row of sums is handed to the second.
    """
    known: dict[object, str] = {key: s.name for s in first if (key := _key(s, roles)) and isinstance(s, Load | Let)}
    left = {(s.buffer, s.index): s for s in first if isinstance(s, Store) and roles.get(s.buffer) == "partial"}
    makers = {s.name: s.dtype for s in first if isinstance(s, Let)}
    names: dict[str, str] = {}
    body: list[Statement] = []
    handed: set[tuple[str, Index]] = set()
    for old in second:
        s = renamed(old, names)
        key = _key(s, roles)
        if isinstance(s, Load) and (store := left.get((s.buffer, s.index))) and makers.get(str(store.value)) == s.dtype:
            names[s.name] = str(store.value)
            handed.add((s.buffer, s.index))
        elif isinstance(s, Load | Let) and key in known:
            names[s.name] = known[key]
        else:
            body.append(s)
    kept = [s for s in first if not (isinstance(s, Store) and (s.buffer, s.index) in handed)]
    return [*kept, *body]


def _key(s: Statement, roles: Mapping[str, str]) -> object:
    """What a value is, where it is the same at each time; None else."""
    if isinstance(s, Let):
        return s.op, s.dtype, s.args
    if isinstance(s, Load) and roles.get(s.buffer) == "in":
        return s.buffer, s.index, s.bounds, s.fill
    return None


# -- renaming ----------------------------------------------------------------------------------------------------------


@singledispatch
def renamed(s: Statement, names: Names) -> Statement:
    """A statement with other names."""
    raise TypeError(f"no {type(s).__name__} is part of a loop over rows of which two are taken at once")


@renamed.register
def _(s: Load, names: Names) -> Statement:
    name, buffer = names.get(s.name, s.name), names.get(s.buffer, s.buffer)
    return replace(s, name=name, buffer=buffer, index=_index(s.index, names), bounds=_bounds(s.bounds, names))


@renamed.register
def _(s: Let, names: Names) -> Statement:
    return replace(s, name=names.get(s.name, s.name), args=tuple(_argument(a, names) for a in s.args))


@renamed.register
def _(s: Accumulator, names: Names) -> Statement:
    return replace(s, name=names.get(s.name, s.name))


@renamed.register
def _(s: Update, names: Names) -> Statement:
    factor = None if s.factor is None else _argument(s.factor, names)
    return replace(s, acc=names.get(s.acc, s.acc), value=_argument(s.value, names), factor=factor)


@renamed.register
def _(s: Store, names: Names) -> Statement:
    buffer, value = names.get(s.buffer, s.buffer), _argument(s.value, names)
    return replace(s, buffer=buffer, value=value, index=_index(s.index, names), bounds=_bounds(s.bounds, names))


@renamed.register
def _(s: Check, names: Names) -> Statement:
    return replace(s, bounds=_bounds(s.bounds, names))


def _index(index: Index, names: Names) -> Index:
    terms = tuple(replace(t, var=names.get(t.var, t.var)) for t in index.terms)
    offset = None if index.offset is None else names.get(index.offset, index.offset)
    return replace(index, terms=terms, offset=offset)


def _bounds(bounds: tuple[Bound, ...], names: Names) -> tuple[Bound, ...]:
    return tuple(
        Bound(names.get(b.var, b.var), *(None if end is None else names.get(end, end) for end in (b.lo, b.hi)))
        for b in bounds
    )


def _argument(argument: Argument, names: Names) -> Argument:
    return names.get(argument, argument) if isinstance(argument, str) else argument
