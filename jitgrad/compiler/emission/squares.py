"""Transposed reads in squares: a loop of vectors that reads an array along the loop over its rows, not along its own.

Row by row, each lane of such a read is an element of another cache line, and a line that has been read for one row has
left the caches before it is read for the next: the more so where lines lie a power of two apart. So as many rows as a
register has lanes are worked on together, a register of columns at a time: the square of elements that they read is
loaded row by row of the array, transposed in registers, and left on the stack, from which each row takes its register.

Microseconds on two threads (Zen 4, float64), row by row and in squares:

    x.T * 1.5     700 x 700: 164, 85     1024 x 1024: 1660, 343    2048 x 2048: 13000, 4400
    x + x.T       700 x 700: 185, 105    1024 x 1024: 1730, 636    2048 x 2048: 13300, 4600

    sum of (x - x.T)²   700: 200, 125    1024: 1900, 390           2000 x 2000: 4200, 3250

A processor that works on the rows of a square, which takes hundreds of instructions where there is more to do than to
add, does not see the next square's loads. They lie rows apart, where its own foresight does not reach, and so do the
rows' other lines: memory would be waited for at each square. So the next square's lines are asked for, each by the
place where it ends: where it begins is a line that the block of rows before has brought.

    exp(x + z.T)           float32 2000 x 2000: 4000, 2210   float64: 7880, 4470     4096 x 4096: 50800, 23300
    the sum of that                         5520, 2430                7760, 4440                  50200, 20500

x + z.T, which the processor sees ahead, takes 0.85 to 1.02 of the time out of cache, and what is in cache 0.9 to 1.05.

Each row has sums of its own, as many as a loop over it alone, which are added up row by row: bits are those of rows
alone. Quick code reads row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.asking import FIRST_CACHE, TO_READ
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
_REGISTERS_AHEAD = 4
"""So far ahead a row asks for what it reads of its own; one is too late (2000 x 2000 floats: 1.3 times as long)."""

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
        if end is None:
            self._ask_for_next(load, place, self.registers[stride].value)
        read: list[ir.Value] = []
        for k in range(1, lanes + 1):
            read.append(self._load_some(load, place, lanes, inside))
            behind = b.add(place, self.registers[stride].value)
            if end is not None:  # the last one again: even lanes that are masked out cost time where no memory is
                behind = b.select(b.icmp_signed("<", b.add(first, ir.Constant(INT64, k)), end), behind, place)
            place = behind
        for k, register in enumerate(transposed(b, read)):
            b.store(register, self._row_in(load, cell, ir.Constant(INT64, k)), align=load.dtype.itemsize)

    def _ask_for_next(self, load: Load, place: ir.Value, stride: ir.Value) -> None:
        """Bring the lines in which the registers of the next square end."""
        b = self.builder
        last = b.add(place, ir.Constant(INT64, self.lanes - 1))
        for k in range(self.lanes, 2 * self.lanes):
            far = b.add(last, b.mul(stride, ir.Constant(INT64, k)))
            self._ask_for(self._address(load.buffer, far), TO_READ, FIRST_CACHE)

    def _ask_along(self, columns: Loop, column: ir.Value) -> None:
        """Bring what a row reads of its own some registers later."""
        ahead = self.builder.add(column, ir.Constant(INT64, _REGISTERS_AHEAD * self.lanes))
        self.registers[columns.var] = Register(ahead, DT_INT64)
        for s in columns.body:
            if isinstance(s, Load) and Term(columns.var) in s.index.terms and len(s.index.terms) > 1:
                self._ask_for(self._address(s.buffer, self._place(s.index)[0]), TO_READ, FIRST_CACHE)
        del self.registers[columns.var]

    def _row(self, columns: Loop, column: ir.Value, end: ir.Value | None, sums: dict[str, ir.Value]) -> None:
        """A register of a row, all lanes of it or those before an end."""
        if end is None:
            self._ask_along(columns, column)
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
