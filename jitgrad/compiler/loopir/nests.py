"""The loop IR: kernels as nests of counted loops over flat buffers; it knows neither ops nor tensors.

    kernel    ::= "def" NAME "(" buffer* int* constant* ")" ":" statement*
    statement ::= "for" VAR "in" KIND "(" [start ","] extent ")" ":" statement*
                                                                         KIND: parallel, parallel_vector, serial,
                                                                         vector, lanes, columns, across; with a
                                                                         start: serial
                | NAME "=" BUFFER "[" index "]" ["if" guard* "else" literal]
                | NAME "=" OP "(" argument* ")"                          a scalar op, see scalar_ops
                | ACC "=" literal                                        an accumulator comes to life
                | ["if" bound*] ACC "=" COMBINE "(" ACC "," argument ")"
                | ["if" bound*] BUFFER "[" index "]" "=" argument
                | ["if" bound* "and" VAR "in parallel(" INT ")"] BUFFER "[" ACC "] =" VAR ... "; " ACC "+= 1"
                                                                         of a vector's lanes, those that the chunk keeps
                | "if not" bound* BUFFER "[0] =" INT                     a position out of bounds is reported
                | ROUTINE "(" BUFFER* argument* ")"                      a piece of work on whole tiles, see routines
                | (NAME "_all = []")* (NAME "=" argument)* "for" turns ":" statement* (NAME "_all.append(" NAME ")")*
                  (NAME "=" NAME)*                                       a body that is repeated, with what it keeps
                                                                         and hands from turn to turn
    turns     ::= NAME "," ... "in zip(" "(" member "," ... ")" ... ")" | "_ in range(" NUMBER ")"
    index     ::= place ["*" stride] ("+" ...)* ["+" OFFSET] ["+" NUMBER]
    place     ::= VAR | NAME | VAR "//" NUMBER | "(" VAR "+" OFFSET ")" "//" NUMBER
    argument  ::= NAME | VAR | INT | CONSTANT | literal | kept
    member    ::= BUFFER | INT | CONSTANT | kept
    kept      ::= NAME "_all[" NUMBER "]"

The printed text is Python: ``running.py`` executes it, one element at a time, as the oracle of the machine code.
Two kernels with the same text are the same kernel; extents, strides and offsets are run-time integers, and so are
numbers other than the smallest run-time constants: 1/n of a mean changes with the extent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.records import NamedTuple, dataclass
from jitgrad.spec import DType, dtype_text

_INT = np.dtype(np.int64)
PARALLEL, PARALLEL_VECTOR, SERIAL, VECTOR = "parallel", "parallel_vector", "serial", "vector"
LANES, ALONE, COLUMNS, ACROSS = "lanes", "alone", "columns", "across"
LITERAL_STRIDES = (1, -1, 2, 3, 4)
"""Strides that stand in the code: what lanes read so comes out of whole registers."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant of a dtype; two are equal when their bits are: 0.0 is not -0.0, and NaN is NaN.

    ``maker`` is the program's value that is this constant everywhere; None for a number that no value holds.
    """

    value: Any
    dtype: DType
    maker: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    @property
    def _bits(self) -> tuple[DType, bytes]:
        return self.dtype, np.asarray(self.value, self.dtype).tobytes()

    def __str__(self) -> str:
        return f"{dtype_text(self.dtype)}({literal_text(self.value)})"


def literal_text(value: Any) -> str:
    """A Python literal that reads back as the same number; nan and inf by name."""
    return repr(value.item() if hasattr(value, "item") else value)


Argument = str | Literal


@dataclass(frozen=True, slots=True)
class Term:
    """``(var + shift) // divisor * stride``; what is divided is not negative. The stride is a small number (of an outer
    loop one of `LITERAL_STRIDES`) or the name of an int, as the shift is.
    """

    var: str
    stride: str | int = 1
    shift: str | None = None
    divisor: int = 1

    def __str__(self) -> str:
        place = self.var if self.shift is None else f"({self.var} + {self.shift})"
        place = place if self.divisor == 1 else f"{place}//{self.divisor}"
        return place if self.stride == 1 else f"{place}*{self.stride}"


@dataclass(frozen=True, slots=True)
class Index:
    """The sum of terms, an offset (the name of an int) and a number: a place in a flat buffer."""

    terms: tuple[Term, ...]
    offset: str | None = None
    place: int = 0

    def __str__(self) -> str:
        parts = [str(term) for term in self.terms] + ([self.offset] if self.offset else [])
        parts += [str(self.place)] if self.place else []
        return " + ".join(parts) or "0"


@dataclass(frozen=True, slots=True)
class Bound:
    """``lo <= var < hi``, where lo and hi are names of ints (None: no bound on that side)."""

    var: str
    lo: str | None
    hi: str | None

    def __str__(self) -> str:
        return f"{self.lo + ' <= ' if self.lo else ''}{self.var}{' < ' + self.hi if self.hi else ''}"


@dataclass(frozen=True, slots=True)
class Load:
    """Read a buffer; where a bound fails the value is ``fill`` and memory is not touched."""

    name: str
    dtype: DType
    buffer: str
    index: Index
    bounds: tuple[Bound, ...] = ()
    fill: Literal | None = None


@dataclass(frozen=True, slots=True)
class Let:
    """A scalar op on arguments."""

    name: str
    dtype: DType
    op: str
    args: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """An accumulator with its initial value; argmax and argmin carry the index too, as ``name_at``."""

    name: str
    dtype: DType
    combine: str
    init: Literal


@dataclass(frozen=True, slots=True)
class Update:
    """Combine a value into an accumulator; ``at`` is the loop variable that argmax and argmin remember.

    Where a bound, on what is the same for all of a vector, fails nothing is combined. With a ``factor`` the product of
    it and the value is added, and rounded only as a part of the sum.
    """

    acc: str
    dtype: DType
    combine: str
    value: Argument
    at: str | None = None
    bounds: tuple[Bound, ...] = ()
    factor: Argument | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Write a buffer; where a bound fails nothing is written."""

    buffer: str
    index: Index
    value: Argument
    dtype: DType
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Keep:
    """Append values to buffers where the bounds hold and ``slot`` is in the chunk's part of ``slots``; the accumulator
    ``count`` is how many each has.
    """

    count: str
    buffers: tuple[str, ...]
    values: tuple[str, ...]
    bounds: tuple[Bound, ...]
    slot: str
    slots: str


@dataclass(frozen=True, slots=True)
class Check:
    """Where a bound fails, ``code`` (the name of an int) is left in the status buffer."""

    buffer: str
    bounds: tuple[Bound, ...]
    code: str


@dataclass(frozen=True, slots=True)
class Call:
    """A routine at work on buffers, with numbers; see routines."""

    routine: str
    buffers: tuple[str, ...]
    args: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """``var`` runs from 0, or from ``start``, to ``extent``; a parallel loop runs over its chunk's part of it.

    The kinds "vector" and "parallel_vector" say that iterations do not depend on one another but through
    accumulators, so that many run at once. "lanes" is a parallel loop with loops inside: one iteration per lane;
    "alone" is one of a single turn, with one lane.
    "columns" is another, whose chunks count elements, not vectors of them; "across" one that is not parallel.
    """

    var: str
    extent: str
    kind: str
    body: tuple[Statement, ...]
    start: str | None = None

    def with_body(self, body: Sequence[Statement]) -> Loop:
        """The loop with another body; itself where nothing changed."""
        changed = tuple(body)
        return self if changed == self.body else Loop(self.var, self.extent, self.kind, changed, self.start)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A body, once for each of several turns: what a program does again and again to the elements of a vector.

    In the n-th turn ``names[k]`` stands for ``members[k][n]``: buffers, ints or constants, as far apart among those of
    the kernel from turn to turn, or values that another repeat has kept, as far apart. ``carried`` are a name in the
    body, what it is in the first turn, and the name of the body that it is in the turn after. Behind the repeat names
    are those of the last turn, and ``kept_name(name, n)`` is what each of ``kept`` was in the n-th turn.
    """

    turns: int
    names: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    carried: tuple[tuple[str, Argument, str], ...]
    kept: tuple[str, ...]
    body: tuple[Statement, ...]


def kept_name(name: str, turn: int) -> str:
    """What stands for a value of one turn that a repeat has kept."""
    return f"{name}_all[{turn}]"


def is_kept(name: str) -> bool:
    """Whether a name stands for such a value."""
    return name.endswith("]")


def kept_turn(name: str) -> tuple[str, int]:
    """The value and the turn behind such a name."""
    value, turn = name.removesuffix("]").split("_all[")
    return value, int(turn)


Statement = Load | Let | Accumulator | Update | Store | Keep | Check | Call | Loop | Repeat


OWN = ("scratch", "ring", "kept", "tile", "sums")
"""The roles of buffers of which each worker has a part of its own."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A flat array. role: "in", "out", "scratch" (one part of ``extent`` elements per worker), "partial" (one
    per chunk), "ring" (scratch for the latest rows of a value), "kept" (scratch for a list, of ``extent`` elements at
    most), "tile" (scratch with an element per lane, for a loop of lanes), "sums" (a tile that outlives the loop: only
    lanes inside it are written).
    """

    name: str
    dtype: DType
    role: str
    extent: str | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that is given at run time."""

    name: str
    dtype: DType


class Word(NamedTuple):
    """A word of a kernel's block: the slot of a buffer, whose role is the kind, an "int" or a "constant"."""

    kind: str
    dtype: DType
    number: int


@dataclass(frozen=True)
class Kernel:
    """Buffers, ints, constants and a body."""

    buffers: tuple[Buffer, ...]
    ints: tuple[str, ...]
    constants: tuple[Constant, ...]
    body: tuple[Statement, ...]

    @functools.cached_property
    def words(self) -> dict[str, Word]:
        """The words of its block by the names of what they are, in order."""
        named = [*((b.name, b.role, b.dtype) for b in self.buffers), *((name, "int", _INT) for name in self.ints)]
        named += [(constant.name, "constant", constant.dtype) for constant in self.constants]
        return {name: Word(kind, dtype, number) for number, (name, kind, dtype) in enumerate(named)}

    @functools.cached_property
    def text(self) -> str:
        """The kernel as runnable Python."""
        return "\n".join(_kernel_lines(self)) + "\n"

    @functools.cached_property
    def float_bytes(self) -> int:
        """The bytes of the widest float that it works on; 8 where there is none."""
        dtypes = [s.dtype for s in statements(self.body) if isinstance(s, Let | Load | Update)]
        dtypes += [buffer.dtype for buffer in self.buffers if buffer.role in ("tile", "sums")]
        return max((dtype.itemsize for dtype in dtypes if dtype.kind == "f"), default=8)

    @functools.cached_property
    def is_alone(self) -> bool:
        """Whether its loop of lanes has a single turn: a tile holds one number at each place."""
        return any(isinstance(s, Loop) and s.kind == ALONE for s in self.body)

    @functools.cached_property
    def size(self) -> int:
        """Number of statements, nested ones included."""
        return sum(1 for _ in statements(self.body))


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """All statements of a body, nested ones included, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop | Repeat):
            yield from statements(statement.body)


def arguments(s: Statement) -> tuple[Argument, ...]:
    """What a statement computes with, combines or stores."""
    match s:
        case Let(args=args):
            return args
        case Update(value=value, factor=factor):
            return (value,) if factor is None else (value, factor)
        case Store(value=value):
            return (value,)
    return ()


def _kernel_lines(kernel: Kernel) -> Iterator[str]:
    yield "def kernel("
    yield from (f"    {b.name}: {_annotation(b)!r}," for b in kernel.buffers)
    yield from (f"    {name}," for name in kernel.ints)
    yield from (f"    {c.name}: {dtype_text(c.dtype)!r}," for c in kernel.constants)
    yield "):"
    yield from _body_lines(kernel.body, "    ")


def _annotation(buffer: Buffer) -> str:
    extent = f"[{buffer.extent}]" if buffer.extent else ""
    return f"{buffer.role} {dtype_text(buffer.dtype)}{extent}"


def _body_lines(body: Sequence[Statement], indent: str) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Loop):
            span = ", ".join(filter(None, (statement.start, statement.extent)))
            yield f"{indent}for {statement.var} in {statement.kind}({span}):"
            yield from _body_lines(statement.body, indent + "    ")
        elif isinstance(statement, Repeat):
            yield from (indent + line for line in _repeat_lines(statement))
        else:
            yield from (indent + line for line in _statement_lines(statement))
    if not body:
        yield indent + "pass"


def _repeat_lines(s: Repeat) -> Iterator[str]:
    yield from (f"{name}_all = []" for name in s.kept)
    yield from (f"{name} = {first}" for name, first, _ in s.carried)
    members = ", ".join(f"({', '.join(listed)})" for listed in s.members)
    yield f"for {', '.join(s.names)}, in zip({members}):" if s.names else f"for _ in range({s.turns}):"
    yield from _body_lines(s.body, "    ")
    yield from (f"    {name}_all.append({name})" for name in s.kept)
    yield from (f"    {name} = {following}" for name, _, following in s.carried)


def _statement_lines(s: Statement) -> Iterator[str]:
    match s:
        case Load(name, _, buffer, index, (), _):
            yield f"{name} = {buffer}[{index}]"
        case Load(name, _, buffer, index, bounds, fill):
            yield f"{name} = {buffer}[{index}] if {' and '.join(map(str, bounds))} else {fill}"
        case Let(name, dtype, op, args):
            yield f"{name} = {dtype_text(dtype)}({op}({', '.join(map(str, args))}))"
        case Accumulator(name, _, combine, init):
            yield f"{name} = {init}"
            if combine.startswith("arg"):
                yield f"{name}_at = i64(0)"
        case Update(acc, _, combine, value, None, bounds, None):
            yield f"{_guard(bounds)}{acc} = {combine}({acc}, {value})"
        case Update(acc, _, _, value, None, bounds, factor):
            yield f"{_guard(bounds)}{acc} = add_product({acc}, {value}, {factor})"
        case Update(acc, _, combine, value, at, bounds):
            yield f"{_guard(bounds)}{acc}, {acc}_at = {combine}({acc}, {acc}_at, {value}, {at})"
        case Store(buffer, index, value, _, bounds):
            yield f"{_guard(bounds)}{buffer}[{index}] = {value}"
        case Keep(count, buffers, values, bounds, slot, slots):
            kept = "; ".join(f"{buffer}[{count}] = {value}" for buffer, value in zip(buffers, values, strict=True))
            own = " and ".join((*map(str, bounds), f"{slot} in parallel({slots})"))
            yield f"if {own}: {kept}; {count} += 1"
        case Check(buffer, bounds, code):
            yield f"if not ({' and '.join(map(str, bounds))}): {buffer}[0] = {code}"
        case Call(routine, buffers, args):
            yield f"{routine}({', '.join(map(str, (*buffers, *args)))})"


def _guard(bounds: Sequence[Bound]) -> str:
    return f"if {' and '.join(map(str, bounds))}: " if bounds else ""
