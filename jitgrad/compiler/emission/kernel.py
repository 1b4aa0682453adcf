"""Emission: a kernel of the loop IR becomes an LLVM function whose innermost loops work on vectors of lanes.

The function is ``void kernel(ptr table, ptr block, i64 lo, i64 hi, i64 chunk, i64 worker)``: the block holds one slot
number of the table per buffer, then the ints and the constants, then 0 where stores go past the caches, else -1, or -2
or -3 where an element-wise loop's chunks begin with whole lines all the same (so they do with 0), or what such a loop
asks for (loopir/asked.py).
Vector loops are emitted on vector types, not left to LLVM's vectoriser: the order of every sum is fixed here, no flag
allows reassociation, and the pass pipeline can be a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.ahead import (
    Asking,
    find_asking,
    find_asking_past,
    find_second_halves,
    rows_to_write,
    without_halves,
)
from jitgrad.compiler.emission.asking import FIRST_CACHE, SECOND_CACHE
from jitgrad.compiler.emission.memory import CACHE_LINE, within
from jitgrad.compiler.emission.registers import DT_INT64, INT64, POINTER, Register, RowsToCome
from jitgrad.compiler.emission.row_sums import RowSumEmitter, find_row_sum
from jitgrad.compiler.emission.rows import longest_row, pair_rows, takes_pairs
from jitgrad.compiler.emission.short_rows import most_registers, row_in_registers, row_of_numbers
from jitgrad.compiler.emission.squares import find_square
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    Accumulator,
    Call,
    Check,
    Keep,
    Kernel,
    Let,
    Load,
    Loop,
    Repeat,
    Statement,
    Store,
    Update,
    statements,
)

KERNEL_TYPE = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, INT64, INT64, INT64, INT64])
ALIGNED_FRAME = '"stackrealign"'
"""A function begins its memory where its largest registers are aligned. LLVM does so by itself where it knows of such
memory before it gives out registers, not where it finds later that there are too few of them: then each register of 64
bytes that it keeps in memory may lie in two cache lines, and does for three of four callers. Gelu of 1e5 floats takes
0.87 of the time so, Black-Scholes 0.95 (one thread, AVX-512, in turns).
"""
SHORT_REGISTER = 32  # bytes


def emit_kernel(
    module: ir.Module, kernel: Kernel, name: str, vector_bytes: int, pause: Callable[[], None] | None = None
) -> ir.Function:
    """Add the kernel's function to a module; ``vector_bytes`` is the width of the machine's vector registers, and
    ``pause`` is called between statements. In a module of quick code each row is worked on alone.
    """
    function = ir.Function(module, KERNEL_TYPE, name)
    function.attributes.update(("nounwind", ALIGNED_FRAME))
    emitter = _KernelEmitter(function, kernel, lanes_for(kernel, vector_bytes))
    emitter.pause = pause
    emitter.is_short = vector_bytes <= SHORT_REGISTER
    emitter.emit()
    return function


def lanes_for(kernel: Kernel, vector_bytes: int) -> int:
    """Lanes of the loops: a register of the widest float; one for a matrix that is alone."""
    return 1 if kernel.is_alone else vector_bytes // kernel.float_bytes


class _KernelEmitter(RowSumEmitter):
    """Emits the statements of a kernel, loop by loop."""

    pause: Callable[[], None] | None = None

    def emit(self) -> None:
        self._prologue()
        self._body(self.kernel.body)
        if self.may_stream:
            self._end_streams()
        self.builder.ret_void()
        self.entry.branch(self.function.blocks[1])

    # -- statements ------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[Statement]) -> None:
        rest = list(body)
        while rest:
            statement = rest.pop(0)
            if self.pause is not None:
                self.pause()
            match statement:  # most of them first
                case Let(name, dtype, op, args):
                    self.registers[name] = self._let(dtype, op, args)
                    self.made[name] = statement
                    if op == "scale_of":
                        self.scales.add(name)
                case Load():
                    self.registers[statement.name] = self._load(statement)
                case Store():
                    self._store(statement)
                case Repeat():
                    self._repeat(statement)
                case Loop(kind="vector" | "parallel_vector"):
                    self._vector_loop(statement)
                case Loop(kind="lanes" | "alone"):
                    self._lanes_loop(statement)
                case Loop(kind="columns" | "across"):
                    self._columns_loop(statement)
                case Loop():
                    self._loop(statement)
                case Call():
                    self._call(statement)
                case Accumulator():
                    self._accumulator(statement)
                case Update():
                    self._update(statement)
                case Keep():
                    self._keep(statement)
                case Check() if self.vector is None and (inside := within(statement, rest)):
                    del rest[: len(inside)]
                    self._check(statement, partial(self._body, inside))
                case Check():
                    self._check(statement)

    def _loop(self, loop: Loop) -> None:
        start, stop = self._range(loop)
        outside = self.is_parallel
        self.is_parallel |= loop.kind == PARALLEL
        outer, self.is_nested = self.is_nested, True
        if not self.is_quick and takes_pairs(loop, self.kernel):
            start = self._row_pairs(loop, start, stop)
        square = find_square(loop, self.kernel) if self.is_parallel and not self.is_quick else None
        if square is not None:
            start = self._squares(loop, square, start, stop)
        found = None if self.is_quick else find_row_sum(loop, self.kernel)
        if found is not None:
            self._rest_of_rows(self._sum_rows(loop, found), start, stop)
        else:
            columns = None if self.is_quick else row_of_numbers(loop)
            start = start if columns is None else self._rows_in_registers(loop, columns, start, stop)
            alike = self._rows_alike(loop)
            start = start if alike is None else self._rows_by_registers(loop, alike, start, stop)
            self._turns(loop, start, stop)
        self.is_parallel, self.is_nested = outside, outer

    def _rows_in_registers(self, loop: Loop, columns: Loop, start: ir.Value, stop: ir.Value) -> ir.Value:
        """All rows, where each is half a register, one or two, without a question at each; the first row that is left.

        A loop runs to ``start`` where rows have another extent.
        """
        b, known = self.builder, self.registers[columns.extent]
        for lanes in (self.lanes // 2, self.lanes, 2 * self.lanes):
            extent = ir.Constant(INT64, lanes)
            end = b.select(b.icmp_signed("==", known.value, extent), stop, start)
            self.registers[columns.extent] = Register(extent, DT_INT64)
            self.row_lanes = lanes
            self._turns(loop, start, end)
            self.registers[columns.extent], self.row_lanes = known, 0
            start = end
        return start

    def _rows_alike(self, loop: Loop) -> Loop | None:
        """The loop over a row, where rows of few registers have code of their own."""
        is_worth_it = self.is_parallel and not self.is_quick and self.builder.module.has_avx512
        return row_in_registers(loop) if is_worth_it else None

    def _rows_by_registers(self, loop: Loop, columns: Loop, start: ir.Value, stop: ir.Value) -> ir.Value:
        """All rows, where each is a few registers of which the last one is masked, and no store goes past the caches;
        the first row that is left. Masks are made ahead of all rows.
        """
        b, extent = self.builder, self.registers[columns.extent].value
        is_cached = b.icmp_signed("!=", self.streaming, ir.Constant(INT64, 0))
        for count in range(1, 1 + most_registers(columns)):
            least, most = (count - 1) * self.lanes, self._most_lanes(columns, count)
            fits = b.icmp_unsigned("<", b.sub(extent, ir.Constant(INT64, least + 1)), ir.Constant(INT64, most - least))
            end = b.select(b.and_(is_cached, fits), stop, start)
            self._masks_ahead(loop, columns, count)
            self.row_registers = count
            self._turns(loop, start, end)
            self.row_registers = 0
            start = end
        return start

    def _most_lanes(self, columns: Loop, count: int) -> int:
        """How many elements a row of so many registers has at most: one of whole turns adds in another order, but for
        a turn of one register or two, whose products are rounded apart.
        """
        wide, most = self._at_once(columns) * self.lanes, count * self.lanes
        sums = [s for s in columns.body if isinstance(s, Update)]
        is_alike = most == wide <= 2 * self.lanes and all(s.factor is None for s in sums)
        return most - 1 if sums and most % wide == 0 and not is_alike else most

    def _row_pairs(self, loop: Loop, start: ir.Value, stop: ir.Value) -> ir.Value:
        """Two rows at a time where rows are short; the first row that is left."""
        b, pair, one = self.builder, pair_rows(loop, self.kernel), ir.Constant(INT64, 1)
        extent = next(s.extent for s in loop.body if isinstance(s, Loop))
        most = ir.Constant(INT64, longest_row(loop, self.kernel, self.is_short) // self.kernel.float_bytes)
        has_short_rows = b.icmp_signed("<=", self.registers[extent].value, most)
        behind = b.select(has_short_rows, b.sub(stop, b.and_(b.sub(stop, start), one)), start)
        self.at_once = dict(pair.at_once)
        self._turns(replace(loop, body=pair.body), start, behind, (pair.axis,))
        return behind

    def _are_whole_lines(self, loop: Loop) -> bool:
        """Whether the rows of a loop are known to be whole lines: their ends are no other row's."""
        sizes = [self.row_lanes * s.dtype.itemsize for s in statements(loop.body) if isinstance(s, Store)]
        return self.row_lanes > 0 and not any(size % CACHE_LINE for size in sizes)

    def _rest_of_rows(self, loop: Loop, start: ir.Value, stop: ir.Value) -> None:
        """A loop over terms for the columns that blocks have left over; where there is no block its checks count."""
        b, columns = self.builder, loop.body[-1]
        assert isinstance(columns, Loop) and columns.start is not None
        split, end = self.registers[columns.start].value, self._register(columns.extent).value
        is_left = b.or_(b.icmp_signed("<", split, end), b.icmp_signed("==", split, ir.Constant(INT64, 0)))
        with b.if_then(is_left):
            self._turns(loop, start, stop)

    def _lines_of_turn(self, loop: Loop) -> int:
        """How many lines of floats a turn of a loop goes through; 0 where its turns differ, or are no whole ones."""
        if self._is_little(loop) or any(isinstance(s, Load) and s.bounds for s in loop.body):
            return 0
        return max(1, self._at_once(loop) * self.lanes * self.kernel.float_bytes // CACHE_LINE)

    def _find_to_come(self, loop: Loop, others: tuple[str, ...]) -> RowsToCome:
        """What loops inside of a loop ask for: of one row into the first cache, where lines are few at a time; several
        rows, or those of a ring, and what is made of them fill that.
        """
        past: Asking = {}
        cache = SECOND_CACHE
        if self.is_quick or not self.builder.module.has_few_buffers:
            asking = find_asking(loop, self.inputs, others)
            past = {} if self.is_quick else find_asking_past(loop, self.inputs)
        else:
            asking = without_halves(find_asking(loop, self.inputs, others, self._lines_of_turn), self.to_come.asking)
            halves = find_second_halves(loop, self.inputs)
            cache = SECOND_CACHE if others or loop.start or halves else FIRST_CACHE
            asking = {p: (*asking.get(p, ()), *halves.get(p, ())) for p in (*asking, *halves)}
        streams = [request.stream for found in (asking, past) for asked in found.values() for request in asked]
        return RowsToCome(asking, past, {s: self._rows_ahead(s, 1 + len(others)) for s in streams}, cache)

    def _turns(self, loop: Loop, start: ir.Value, stop: ir.Value, others: tuple[str, ...] = ()) -> None:
        """All turns of a loop; ``others`` are the axes of the following rows, which a turn works on as well."""
        b, rows = self.builder, 1 + len(others)
        to_come = self._find_to_come(loop, others)
        written = rows_to_write(loop, self.outputs) if self.is_parallel and not self.is_quick else {}

        def turn(i: ir.Value) -> None:
            self._ask_for_later(loop, i)
            self.registers[loop.var] = Register(i, DT_INT64)
            for number, axis in enumerate(others, 1):
                self.registers[axis] = Register(b.add(i, ir.Constant(INT64, number)), DT_INT64)
            around = self.to_come, self.written
            self.to_come, self.written = to_come, written
            if loop.kind == PARALLEL and not (self.is_quick or self.row_registers or self._are_whole_lines(loop)):
                self._ask_for_ends(loop, others)
            self._body(loop.body)
            self.to_come, self.written = around

        self._counted(start, stop, rows, turn)
        if loop.start:  # whoever reads the ring asks for the rows that come next
            self.registers[loop.var] = Register(stop, DT_INT64)
