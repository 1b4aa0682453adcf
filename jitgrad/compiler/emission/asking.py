"""Emission of what asks for lines of memory before they are read or written; which loops ask is not decided here."""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.ahead import PARTS, Request, Stream, ends_of_rows
from jitgrad.compiler.emission.memory import CACHE_LINE, MemoryEmitter
from jitgrad.compiler.emission.registers import INT32, INT64, POINTER
from jitgrad.compiler.loopir.asked import ASKED_SLOT
from jitgrad.compiler.loopir.nests import Load, Loop, Store
from jitgrad.compiler.vecmath.lanes import declare

AHEAD, LEAST_AHEAD, SHORT_ROW = 16 << 10, 7 << 10, 64 << 10  # bytes
LINES_AHEAD = 2 << 10  # bytes
TO_READ, TO_WRITE, DATA = 0, 1, 1
SECOND_CACHE, FIRST_CACHE = 1, 3


class AskingEmitter(MemoryEmitter):
    """Emits requests for lines, which a processor may leave alone."""

    def _rows_ahead(self, stream: Stream, rows: int) -> ir.Value:
        """How far ahead to ask for a stream, of which a turn reads so many rows: as many turns as have 7 KB, or 16 KB
        where rows have over 64 KB.
        """
        b, (buffer, place, stride, offsets) = self.builder, stream
        row, size = self.registers[stride].value, self.buffers[buffer][1].dtype.itemsize
        turn, one = b.mul(row, ir.Constant(INT64, rows)), ir.Constant(INT64, 1)
        turns = b.add(b.sdiv(ir.Constant(INT64, LEAST_AHEAD // size - 1), b.or_(turn, one)), one)
        ahead = b.select(self._is_short(stream), b.mul(turn, turns), ir.Constant(INT64, AHEAD // size))
        return b.add(ahead, self._furthest(place.offset, offsets)) if len(offsets) > 1 else ahead

    def _furthest(self, first: str | None, offsets: Sequence[str | None]) -> ir.Value:
        """How far behind the first of several offsets the largest is."""
        b, zero = self.builder, ir.Constant(INT64, 0)
        values = {offset: self.registers[offset].value if offset else zero for offset in (first, *offsets)}
        most = values[first]
        for value in values.values():
            most = b.select(b.icmp_signed("<", most, value), value, most)
        return b.sub(most, values[first])

    def _ask_ahead(self, loop: Loop, lanes: int) -> None:
        """Bring so many lanes of what loops over rows to come will read into a cache."""
        b = self.builder
        for request in self.asked:
            self._ask_for_row(loop, request, lanes)
        if self.asked_past:
            with b.if_then(b.icmp_signed("==", self.streaming, ir.Constant(INT64, 0))):
                for request in self.asked_past:
                    self._ask_for_row(loop, request, lanes)

    def _ask_for_row(self, loop: Loop, request: Request, lanes: int) -> None:
        """Bring the part of a row that belongs to so many lanes of a loop into a cache."""
        b, (stream, parts, _) = self.builder, request
        place = b.add(self._place(stream.place)[0], self.to_come.ahead[stream])
        if parts > 1:
            place = b.add(place, self._part_ahead(loop, request))
        size = self.buffers[stream.buffer][1].dtype.itemsize
        for line in range(0, max(1, lanes * size // parts), CACHE_LINE):
            address = self._address(stream.buffer, b.add(place, ir.Constant(INT64, line // size)))
            self._ask_for(address, TO_READ, self.to_come.cache)

    def _part_ahead(self, loop: Loop, request: Request) -> ir.Value:
        """How far the place of a part of a row, to which a turn belongs, is behind the turn's own: nothing where rows
        are long, of which lines a little ahead are asked for, not rows.
        """
        b, (stream, parts, start) = self.builder, request
        assert self.vector is not None
        extent, at = self._register(loop.extent).value, self.vector.base
        before = b.udiv(b.mul(extent, ir.Constant(INT64, start)), ir.Constant(INT64, PARTS))
        within = b.udiv(at, ir.Constant(INT64, parts))
        return b.select(self._is_short(stream), b.sub(b.add(before, within), at), ir.Constant(INT64, 0))

    def _is_short(self, stream: Stream) -> ir.Value:
        """Whether rows of a stream have less than 64 KB."""
        size = self.buffers[stream.buffer][1].dtype.itemsize
        row = self.registers[stream.stride].value
        return self.builder.icmp_signed("<", row, ir.Constant(INT64, SHORT_ROW // size))

    def _ask_to_write(self, stores: Sequence[Store]) -> None:
        """Bring what the next loop over this row will store, if not past the caches, into them."""
        b = self.builder
        if not stores:
            return
        with b.if_then(b.icmp_signed("!=", self.streaming, ir.Constant(INT64, 0)), likely=True):
            for s in stores:
                place = self._place(s.index)[0]
                for lane in range(0, self.lanes, CACHE_LINE // s.dtype.itemsize):
                    address = self._address(s.buffer, b.add(place, ir.Constant(INT64, lane)))
                    self._ask_for(address, TO_WRITE, FIRST_CACHE)

    def _ask_for_ends(self, row: Loop, others: Sequence[str]) -> None:
        """Bring the lines in which rows end that are stored past the caches, but for those that are the row's own.

        The next row has the other part of one. It is stored through the caches, and what is stored behind it waits:
        Poisson's residual of 16384x2048 floats takes 0.97 of the time (Zen 4, in turns).
        """
        b, zero = self.builder, ir.Constant(INT64, 0)
        for loop, store in ends_of_rows(row, others, self.outputs):
            self.registers[loop.var] = self._register(loop.extent)
            end = self._address(store.buffer, self._place(store.index)[0])
            del self.registers[loop.var]
            is_shared = b.icmp_signed("!=", b.and_(b.ptrtoint(end, INT64), ir.Constant(INT64, CACHE_LINE - 1)), zero)
            with b.if_then(b.and_(is_shared, b.icmp_signed("==", self.streaming, zero))):
                self._ask_for(end, TO_WRITE, FIRST_CACHE)

    def _ask_for_lines(self, loop: Loop) -> None:
        """Bring what an element-wise loop reads some turns later into the first cache, where stores go past the caches.

        A processor sees a turn of a long body ahead, and what it then asks memory for comes later than it is wanted:
        gelu of ten million floats took as long as its arithmetic and its memory one after the other, 15.0 ms on one
        thread; stored past the caches 11.2, and with lines asked for 7.4 (Intel, AVX-512). In cache they would be asked
        for in vain. In a region it asks for what other steps will read.
        """
        b, lines = self.builder, list[ir.Value]()
        for s in {(s.buffer, s.index.terms): s for s in loop.body if isinstance(s, Load) and not s.bounds}.values():
            place, distance = self._place(s.index)
            if s.buffer in self.inputs and distance == 1:
                size = s.dtype.itemsize
                ahead = range(LINES_AHEAD // size, (LINES_AHEAD + self.lanes * size) // size, CACHE_LINE // size)
                lines += [self._address(s.buffer, b.add(place, ir.Constant(INT64, far))) for far in ahead]
        zero = ir.Constant(INT64, 0)
        is_past = b.icmp_signed("==", self.streaming, zero)
        asks = b.if_then(b.icmp_signed(">=", self.streaming, zero), likely=False)
        with asks, b.if_else(is_past) as (own, others):
            with own:
                for address in lines:
                    self._ask_for(address, TO_READ, FIRST_CACHE)
            with others:
                self._ask_for_others()

    def _ask_for_others(self) -> None:
        """Bring lines that other steps of a region will read of the next chunk into the second cache, as many as belong
        to the lanes of this turn.
        """
        assert self.vector is not None
        b, table, start = self.builder, self.function.args[0], self.function.args[2]
        slot = b.udiv(self.streaming, ir.Constant(INT64, 1 << ASKED_SLOT))
        nbytes = b.and_(self.streaming, ir.Constant(INT64, (1 << ASKED_SLOT) - 1))
        first = b.load(b.gep(table, [slot], source_etype=INT64), typ=POINTER)
        first = b.gep(first, [b.mul(b.sub(self.vector.base, start), nbytes)], source_etype=ir.IntType(8))

        def ask(far: ir.Value) -> None:
            self._ask_for(b.gep(first, [far], source_etype=ir.IntType(8)), TO_READ, SECOND_CACHE)

        self._counted(ir.Constant(INT64, 0), b.mul(nbytes, ir.Constant(INT64, self.lanes)), CACHE_LINE, ask)

    def _ask_for(self, address: ir.Value, use: int, cache: int) -> None:
        module = self.builder.module
        call = declare(module, "llvm.prefetch.p0", ir.FunctionType(ir.VoidType(), [POINTER, INT32, INT32, INT32]))
        self.builder.call(call, [address, *(ir.Constant(INT32, word) for word in (use, cache, DATA))])
