"""Transposed reads in squares: a loop of vectors that reads an array along the loop over its rows, not along its own.

Row by row, each lane of such a read is an element of another cache line, and a line that has been read for one row has
left the caches before it is read for the next: the more so where lines lie a power of two apart. So as many rows as a
register has lanes are worked on together, a register of columns at a time: the square of elements that they read is
loaded row by row of the array, transposed in registers, and left on the stack, from which each row takes its register.

Microseconds on two threads (Zen 4, float64), row by row and in squares:

    x.T * 1.5     700 x 700: 164, 85     1024 x 1024: 1660, 343    2048 x 2048: 13000, 4400
    x + x.T       700 x 700: 185, 105    1024 x 1024: 1730, 636    2048 x 2048: 13300, 4600

    sum of (x - x.T)²   700: 200, 125    1024: 1900, 390           2000 x 2000: 4200, 3250

Lines asked for some squares ahead did not help: 2048 x 2048 took 0.9 of the time, what is in cache 1.1 to 1.2.

Each row has sums of its own, as many as a loop over it alone, which are added up row by row: bits are those of rows
alone. Quick code reads row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.registers import DT_INT64, INT64, Register
from jitgrad.compiler.emission.scalar_values import memory_type
from jitgrad.compiler.emission.segments import compares
from jitgrad.compiler.emission.shuffles import transposed
from jitgrad.compiler.emission.vector_loops import VectorLoopEmitter
from jitgrad.compiler.loopir.nests import (
    SERIAL,
    VECTOR,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Store,
    Term,
    Update,
    statements,
)
from jitgrad.records import NamedTuple

_LEAST_ROWS = 3
"""Fewer are worked on one by one: a square takes as long for one row as for all."""

Columns = Callable[[ir.Value, "ir.Value | None"], None]  # emits columns from a place on: all lanes, or up to an end


class Square(NamedTuple):
    """What is inside a loop over rows: loops of which each holds the next one, a loop of vectors, and what that reads
    along the rows.
    """

    middle: tuple[Loop, ...]
    columns: Loop
    turned: tuple[Load, ...]


def has_squares(kernel: Kernel) -> bool:
    """Whether a loop of a kernel is worked on in squares."""
    return any(isinstance(s, Loop) and find_square(s, kernel) is not None for s in statements(kernel.body))


def find_square(rows: Loop, kernel: Kernel) -> Square | None:
    """How a loop over rows is worked on in squares; None where it is not."""
    roles = {b.name: b.role for b in kernel.buffers}
    inside = _nested(rows)
    if not inside or inside[-1].kind != VECTOR:
        return None
    *middle, columns = inside
    if any(loop.kind != SERIAL for loop in middle) or not _is_plain(columns, roles):
        return None
    if middle and _has_sums(columns):
        return None  # rows that come again would be added up in another order
    turned = [s for s in columns.body if isinstance(s, Load) and _is_turned(s.index, rows.var, columns.var)]
    return Square(tuple(middle), columns, tuple(turned)) if turned else None


def _nested(loop: Loop) -> list[Loop]:
    """The loops inside a loop, as long as each holds nothing but the next one."""
    found: list[Loop] = []
    while len(loop.body) == 1 and isinstance(loop.body[0], Loop) and not loop.body[0].start:
        loop = loop.body[0]
        found.append(loop)
    return found


def _is_plain(loop: Loop, roles: Mapping[str, str]) -> bool:
    """Whether a loop of vectors goes from arrays to arrays, element by element."""
    is_flat = not loop.start and all(isinstance(s, Load | Let | Store | Update) for s in loop.body)
    moves = [s for s in loop.body if isinstance(s, Load | Store)]
    sums = [s for s in loop.body if isinstance(s, Update)]
    is_plain = all(roles[s.buffer] in ("in", "out") and not s.bounds for s in moves)
    return is_flat and is_plain and not compares(loop) and all(s.at is None and not s.bounds for s in sums)


def _has_sums(loop: Loop) -> bool:
    return any(isinstance(s, Update) for s in loop.body)


def _is_turned(index: Index, row: str, column: str) -> bool:
    """Whether places follow one another along the rows, and lie a named distance apart along the columns."""
    along = [term for term in index.terms if term.var in (row, column)]
    return len(along) == 2 and Term(row) in along and any(_is_far(term, column) for term in along)


def _is_far(term: Term, column: str) -> bool:
    return term.var == column and isinstance(term.stride, str) and term.divisor == 1 and term.shift is None


class SquareEmitter(VectorLoopEmitter):
    """Emits rows in squares."""

    turned: Mapping[str, ir.Value] = {}  # where the lanes lie that a row reads, by the names of loads

    def _load(self, load: Load) -> Register:
        if load.name not in self.turned:
            return super()._load(load)
        raw = self.builder.load(self.turned[load.name], typ=self._lanes_of(load), align=load.dtype.itemsize)
        return Register(self._from_memory(raw, load.dtype, self.lanes), load.dtype, self.lanes)

    def _squares(self, rows: Loop, square: Square, start: ir.Value, stop: ir.Value) -> ir.Value:
        """As many rows at a time as a register has lanes; the first row that is left."""
        b, lanes, zero = self.builder, self.lanes, ir.Constant(INT64, 0)
        over = b.and_(b.sub(stop, start), ir.Constant(INT64, lanes - 1))
        are_few = b.icmp_signed("<", over, ir.Constant(INT64, _LEAST_ROWS))
        behind = b.select(are_few, b.sub(stop, over), stop)
        cells = {s.name: self.entry.alloca(ir.ArrayType(self._lanes_of(s), lanes)) for s in square.turned}

        def block(first: ir.Value) -> None:
            count, _, inside = self._lanes_left(first, behind)
            sums = self._open_in_turn(square.columns, lanes)

            def part(column: ir.Value, end: ir.Value | None) -> None:
                self.registers[rows.var] = Register(first, DT_INT64)
                for s in square.turned:
                    self._turn(s, square.columns.var, column, end, inside, cells[s.name])

                def row(k: ir.Value) -> None:
                    self.registers[rows.var] = Register(b.add(first, k), DT_INT64)
                    self.turned = {s.name: self._row_in(s, cells[s.name], k) for s in square.turned}
                    self._row(square.columns, column, end, self._sums_of_one(sums, k))
                    self.turned = {}

                self._counted(zero, count, 1, row)

            self._through(square.middle, square.columns, part)
            if sums:
                self._counted(zero, count, 1, lambda k: self._close_in_turn(square.columns, self._sums_of_one(sums, k)))

        self._counted(start, behind, lanes, block)
        return behind

    def _through(self, middle: Sequence[Loop], columns: Loop, emit: Columns) -> None:
        """The loops between the rows and the columns, and these a register at a time."""
        b, zero = self.builder, ir.Constant(INT64, 0)
        if middle:
            loop, *rest = middle

            def turn(i: ir.Value) -> None:
                self.registers[loop.var] = Register(i, DT_INT64)
                self._through(rest, columns, emit)

            self._counted(zero, self._register(loop.extent).value, 1, turn)
            return
        stop = self._register(columns.extent).value
        split = b.sub(stop, b.srem(stop, ir.Constant(INT64, self.lanes)))
        self._counted(zero, split, self.lanes, lambda column: emit(column, None))
        with b.if_then(b.icmp_signed("<", split, stop)):
            emit(split, stop)

    def _turn(
        self, load: Load, column: str, first: ir.Value, end: ir.Value | None, inside: ir.Value, cell: ir.Value
    ) -> None:
        """Leave a square of what a load reads on the stack, a register for each row that is ``inside``."""
        b, lanes = self.builder, self.lanes
        self.registers[column] = Register(first, DT_INT64)
        place = self._place(load.index)[0]
        del self.registers[column]
        stride = next(t.stride for t in load.index.terms if t.var == column)
        assert isinstance(stride, str)
        read: list[ir.Value] = []
        for k in range(1, lanes + 1):
            read.append(self._load_some(load, place, lanes, inside))
            behind = b.add(place, self.registers[stride].value)
            if end is not None:  # the last one again: even lanes that are masked out cost time where no memory is
                behind = b.select(b.icmp_signed("<", b.add(first, ir.Constant(INT64, k)), end), behind, place)
            place = behind
        for k, register in enumerate(transposed(b, read)):
            b.store(register, self._row_in(load, cell, ir.Constant(INT64, k)), align=load.dtype.itemsize)

    def _row(self, columns: Loop, column: ir.Value, end: ir.Value | None, sums: dict[str, ir.Value]) -> None:
        """A register of a row, all lanes of it or those before an end."""
        _, inside, mask = (None, None, None) if end is None else self._lanes_left(column, end)
        if sums:
            first, stop = self._range(columns)
            split, _ = self._split(columns, first, stop, None, self._at_once(columns) * self.lanes)
            sums = self._sums_in_turn(columns, sums, first, column, split)
        self._vector_body(columns, column, mask, sums, None, inside)

    def _row_in(self, load: Load, cell: ir.Value, row: ir.Value) -> ir.Value:
        return self.builder.gep(cell, [row], source_etype=self._lanes_of(load))

    def _lanes_of(self, load: Load) -> ir.VectorType:
        return ir.VectorType(memory_type(load.dtype), self.lanes)
