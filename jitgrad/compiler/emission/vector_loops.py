"""Loops over registers of lanes: whole registers, some at once, then masked ones for what is left; loops of which each
lane has a matrix or a column of its own. What stands in them is emitted elsewhere (kernel.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeGuard

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.divisors import shared_divisors
from jitgrad.compiler.emission.interleave import (
    FEW,
    SOME,
    columns_at_once,
    is_analytic,
    keep_order,
    keeps_order,
    registers_at_once,
    weight_of,
)
from jitgrad.compiler.emission.memory import CACHE_LINE
from jitgrad.compiler.emission.order import order_block
from jitgrad.compiler.emission.pinned import pin_constants, pins_constants
from jitgrad.compiler.emission.registers import BOOL, INT32, INT64, VectorLoop
from jitgrad.compiler.emission.repeats import RepeatEmitter
from jitgrad.compiler.emission.scalar_values import constant
from jitgrad.compiler.emission.segments import compares
from jitgrad.compiler.loopir.nests import (
    ACROSS,
    COLUMNS,
    PARALLEL,
    PARALLEL_VECTOR,
    Keep,
    Let,
    Load,
    Loop,
    Repeat,
    Statement,
    Update,
    statements,
)

Part = Callable[[ir.Value, ir.Value, "ir.Value | None"], None]  # emits a loop from here to there, in this segment


class VectorLoopEmitter(RepeatEmitter):
    """Emits loops over registers of lanes."""

    is_short = False  # whether registers have no more than SHORT_REGISTER bytes
    row_lanes = 0  # how many elements the rows of the loop being emitted have, where that is known
    _asked_of: Loop | None = None
    _count = 0  # on how many registers a turn of that loop works

    @property
    def is_quick(self) -> bool:
        """Whether little code is worth more than fast code."""
        return self.function.module.shared_bytes > 0

    def _body(self, body: Sequence[Statement]) -> None:
        """Emit statements, on the lanes of ``vector`` where there are any."""
        raise NotImplementedError

    # -- loops of elements ------------------------------------------------------------------------------------------

    def _vector_loop(self, loop: Loop) -> None:
        """Whole vectors first, some at once, then masked ones for what is left; all masked where little work is done.

        The body of a loop written once instead of twice compiles in two thirds of the time.
        """
        start, stop = self._range(loop)
        if self.row_lanes:
            lanes, self.lanes = self.lanes, self.row_lanes
            self._vector_body(loop, start, None, {}, None)
            self.lanes = lanes
            return
        self.is_whole_row = True
        if self.row_registers:
            self._short_row(loop, stop)
        elif self._is_little(loop):
            sums = self._open_sums(loop)
            self._masked_vectors(loop, start, stop, lambda _: sums)
            self._close_sums(loop, [[sums]])
        else:
            self._parts_of_loop(loop, start, stop)
        self.is_whole_row = False

    def _parts_of_loop(self, loop: Loop, start: ir.Value, stop: ir.Value) -> None:
        """The parts of a loop between the places where a question of its has another answer, or a line begins."""
        wide = self.lanes * self._at_once(loop)
        may_begin = self.is_parallel and not self.is_quick
        if self._asks_lanes(loop):  # in registers counted from where lines begin
            lines = self._line_start(loop, start, stop, []) if may_begin else []
            points = self._turning_points(loop, lines[0] if lines else start, wide)
            if points:
                points += lines
        else:
            points = self._turning_points(loop, start, wide)
            if points or (may_begin and not compares(loop)):
                points += self._line_start(loop, start, stop, points)
        is_long = len(loop.body) > SOME or any(isinstance(s, Repeat) for s in loop.body)
        self.is_whole_row = not points
        emit = self._registers_in_turn if self.is_quick and is_long else self._wide_vectors
        emit(loop, lambda part: self._segments(start, stop, points, part) if points else part(start, stop, None))

    def _short_row(self, loop: Loop, stop: ir.Value) -> None:
        """A row of `row_registers`, whole turns first, with the sums that other code has."""
        lanes, wide = self.lanes, self.lanes * self._at_once(loop)
        turns = (self.row_registers - 1) * lanes // wide
        self.lanes = wide
        whole = [self._open_sums(loop)] if turns else []
        for turn in range(turns):
            first = ir.Constant(INT64, turn * wide)
            self._vector_body(loop, first, None, whole[0], None, known=turn * wide)
        self.lanes = lanes
        rest = self._open_sums(loop)
        for k in range(turns * wide // lanes, self.row_registers):
            at, inside, mask = self._row_register(stop, k)
            self._vector_body(loop, at, mask, rest, None, inside, known=k * lanes)
        self._close_sums(loop, [whole, [rest]] if whole else [[rest]])

    def _row_register(self, stop: ir.Value, k: int) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        """Where the k-th register of a row is, how many of its lanes are inside, and their mask: None for all but the
        last one.
        """
        at = ir.Constant(INT64, k * self.lanes)
        return (at, *self._lanes_left(at, stop)[1:]) if k == self.row_registers - 1 else (at, None, None)

    def _masks_ahead(self, row: Loop, loop: Loop, count: int) -> None:
        """Make what the last registers of all rows have in common, where the builder finds it again."""
        outside, own = dict(self.registers), {row.var, *(s.name for s in row.body if isinstance(s, Let | Load))}
        self.registers = {name: register for name, register in outside.items() if name not in own}
        self._spread_invariants(loop, None)
        self.row_registers, last = count, count - 1
        at, inside, mask = self._row_register(self.registers[loop.extent].value, last)
        self.vector = VectorLoop(loop.var, self.lanes, at, mask, first=inside, known=last * self.lanes)
        self._enter_strides(loop)
        for load in (s for s in loop.body if isinstance(s, Load)):
            self._mask_ahead(load)
        self.apart, self.spread, self.vector, self.row_registers = {}, {}, None, 0
        self.registers = outside

    def _at_once(self, loop: Loop) -> int:
        """On how many registers a turn of a loop works; the code of one loop asks for it several times."""
        if loop is not self._asked_of or self.at_once:
            self._asked_of = loop
            self._count = (self.at_once and self.at_once.get(loop)) or registers_at_once(loop, self.is_short)
        return self._count

    def _is_little(self, loop: Loop) -> bool:
        """Whether a loop is written once, for masked registers: outside of where most of the work is; and where code is
        wanted quickly, and no sum depends on how many are worked on at once.
        """
        has_sums = any(isinstance(s, Update) for s in loop.body)
        is_worked = self.is_parallel or loop.kind == PARALLEL_VECTOR or (self.is_nested and not has_sums)
        is_worked = is_worked or any(isinstance(s, Keep) for s in loop.body)
        return not is_worked or (self.is_quick and not has_sums)

    def _wide_vectors(self, loop: Loop, emit_parts: Callable[[Part], None]) -> None:
        """The parts of a loop, each whole vectors first, some at once, then masked ones for what is left."""
        lanes = self.lanes
        count = self._at_once(loop)
        wide, turns = count * lanes, count if self._is_crowded(loop) else 1
        self.lanes = wide // turns
        whole = self._sums_of_each(self._open_sums(loop, turns), turns) if turns > 1 else [self._open_sums(loop)]
        self.lanes = lanes
        rest = self._open_sums(loop)
        outside = dict(self.registers)
        self._settle_sums(loop)

        def part(first: ir.Value, end: ir.Value, segment: ir.Value | None) -> None:
            split, inner = self._split(loop, first, end, segment, wide)
            if not self.is_quick:
                self._spread_invariants(inner, segment)
            self.lanes = wide // turns
            self.asked, self.asked_past = self.to_come.asking.get(loop, ()), self.to_come.past.get(loop, ())

            def emit(variant: Loop) -> None:
                self._counted(first, split, wide, lambda i: self._whole_vectors(variant, i, whole, segment, wide))

            self._scaled_or_not(inner, emit)
            self.lanes = lanes
            left_over = 0 if self.is_quick else lanes
            self._masked_vectors(loop, split, end, lambda _: rest, segment, wide > lanes, left_over)

        emit_parts(part)
        self.registers = outside
        self._close_sums(loop, [whole, [rest]])

    def _is_crowded(self, loop: Loop) -> bool:
        """Whether a loop over two rows has more sums and values than 16 registers have room for, if all the lanes that
        it works on go through its body side by side: then one register of them goes after the other.
        """
        has_sums = any(isinstance(s, Update) for s in loop.body)
        return self.is_short and has_sums and loop in self.at_once and weight_of(loop) > FEW

    def _scaled_or_not(self, loop: Loop, emit: Callable[[Loop], None]) -> None:
        """A loop, and the same without multiplications by scales of divisors, for where all of these are 1."""
        found = {s.args[1] for s in loop.body if _is_scaling(s, self.scales)}
        if self.is_quick or not found or is_analytic(loop):
            emit(loop)
            return
        b = self.builder
        plain: ir.Value = ir.Constant(BOOL, 1)
        for name in sorted(map(str, found)):
            scale = self.registers[name]
            plain = b.and_(plain, b.fcmp_ordered("==", scale.value, constant(1, scale.dtype, 0)))
        body = tuple(_unscaled(s) if _is_scaling(s, self.scales) else s for s in loop.body)
        with b.if_else(plain, likely=True) as (without, scaled):
            with without:
                emit(replace(loop, body=body))
            with scaled:
                emit(loop)

    def _registers_in_turn(self, loop: Loop, emit_parts: Callable[[Part], None]) -> None:
        """The parts of a loop with sums, written once, for masked registers: each of those that good code works on at
        once has sums of its own, and what is left has others, so that both give the same bits.

        Black-Scholes takes 11 ms to compile in place of 65, and its first run 47 in place of 19. Short loops are
        written for whole vectors too: gelu's would run for 35 ms in place of 16, and be there 3 ms earlier.
        """
        sums = self._open_in_turn(loop)

        def part(first: ir.Value, end: ir.Value, segment: ir.Value | None) -> None:
            split, _ = self._split(loop, first, end, segment, self._at_once(loop) * self.lanes)
            self._masked_vectors(loop, first, end, lambda i: self._sums_in_turn(loop, sums, first, i, split), segment)

        emit_parts(part)
        self._close_in_turn(loop, sums)

    def _open_in_turn(self, loop: Loop, *rows: int) -> dict[str, ir.Value]:
        """Sums for each register that good code works on at once, and for what is left; of so many rows."""
        return self._open_sums(loop, *rows, self._at_once(loop) + 1)

    def _sums_in_turn(
        self, loop: Loop, sums: dict[str, ir.Value], first: ir.Value, i: ir.Value, split: ir.Value
    ) -> dict[str, ir.Value]:
        """Those of the register at ``i``, where whole turns go from ``first`` to ``split``."""
        b, count = self.builder, self._at_once(loop)
        turn = b.and_(b.udiv(b.sub(i, first), ir.Constant(INT64, self.lanes)), ir.Constant(INT64, count - 1))
        return self._sums_of_one(sums, b.select(b.icmp_signed("<", i, split), turn, ir.Constant(INT64, count)))

    def _close_in_turn(self, loop: Loop, sums: dict[str, ir.Value]) -> None:
        *whole, rest = self._sums_of_each(sums, self._at_once(loop) + 1)
        self._close_sums(loop, [whole, [rest]])

    def _split(
        self, loop: Loop, first: ir.Value, end: ir.Value, segment: ir.Value | None, wide: int
    ) -> tuple[ir.Value, Loop]:
        """Up to where a part of a loop is so many lanes at once, and the loop as it is there."""
        b = self.builder
        split = b.sub(end, b.srem(b.sub(end, first), ir.Constant(INT64, wide)))
        if segment is not None and self._asks_lanes(loop):
            return b.select(self._has_equal(loop, first, end), first, split), loop
        if segment is None or not self._reads_ring(loop):
            return split, loop
        holds, inner = self._where_all_hold(loop, segment)
        return b.select(holds, split, first), inner

    def _whole_vectors(
        self, loop: Loop, i: ir.Value, sums: Sequence[dict[str, ir.Value]], segment: ir.Value | None, asks: int
    ) -> None:
        """The body for each of ``sums``, one register after the other; the first one asks for ``asks`` lanes ahead."""
        block, blocks = self.builder.block, self.function.blocks
        first, known = len(block.lines), len(blocks)
        self.is_elementwise = loop.kind == PARALLEL_VECTOR and not self.is_quick
        for k, cells in enumerate(sums):
            at = self.builder.add(i, ir.Constant(INT64, k * self.lanes)) if k else i
            self._vector_body(loop, at, None, cells, segment, asks=0 if k else asks, is_first=not k)
        self.is_elementwise = False
        if not self.is_quick and keeps_order(loop, self.is_short):
            for part in (block, *blocks[known:]):
                begin = first if part is block else 0
                if not self.is_short:
                    order_block(part, begin, self.register_lanes)
                keep_order(part, begin)
        if not self.is_quick and block.dominator and pins_constants(loop, block.function.module):
            pin_constants(block.dominator, (block, *blocks[known:]), self.register_lanes)

    def _masked_vectors(
        self, loop: Loop, start: ir.Value, stop: ir.Value, sums: Callable[[ir.Value], dict[str, ir.Value]],
        segment: ir.Value | None = None, may_be_whole: bool = True, asks: int = 0,
    ) -> None:  # fmt: skip
        """Registers of lanes from ``start`` on, the last one masked; ``sums`` gives the accumulators of each."""
        segment = None if self._asks_lanes(loop) else segment

        def masked(i: ir.Value) -> None:
            _, inside, mask = self._lanes_left(i, stop)
            self._vector_body(loop, i, mask, sums(i), segment, inside, may_be_whole, asks)

        self._counted(start, stop, self.lanes, masked)

    def _lanes_left(self, i: ir.Value, stop: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """How many lanes of the register at ``i`` stand before ``stop``, in 64 bits and in 32, and their mask."""
        b, most = self.builder, ir.Constant(INT64, self.lanes)
        left = b.sub(stop, i)
        valid = b.select(b.icmp_signed("<", left, most), left, most)
        inside = b.trunc(valid, INT32)
        return valid, inside, b.icmp_unsigned("<", self._lane_numbers(INT32), self._splat(inside, self.lanes))

    def _vector_body(
        self, loop: Loop, i: ir.Value, mask: ir.Value | None, sums: dict[str, ir.Value], segment: ir.Value | None,
        first: ir.Value | None = None, may_be_whole: bool = False, asks: int = 0, is_first: bool = True,
        known: int | None = None,
    ) -> None:  # fmt: skip
        outside = dict(self.registers)
        self.vector = VectorLoop(
            loop.var, self.lanes, i, mask, sums, segment, first=first, may_be_whole=may_be_whole, known=known
        )
        self.registers.pop(loop.var, None)
        if asks:
            self._ask_ahead(loop, asks)
        if asks and is_first:
            self._ask_to_write(self.written.get(loop, ()))
        if self.is_elementwise:
            self._ask_for_lines(loop)
        self.divisors = shared_divisors(loop)
        self._enter_strides(loop)
        self._body(loop.body)
        self.divisors, self.apart, self.spread = frozenset(), {}, {}
        self._store_late()
        self.vector = None
        self.registers = outside

    # -- loops of lanes ---------------------------------------------------------------------------------------------

    def _lane_range(self, loop: Loop) -> tuple[ir.Value, ir.Value]:
        """The first place and the end of a chunk, whose bounds count vectors of lanes."""
        b, lanes = self.builder, ir.Constant(INT64, self.lanes)
        start, stop = (b.mul(self.function.args[k], lanes) for k in (2, 3))
        extent = self.registers[loop.extent].value
        return start, b.select(b.icmp_signed("<", stop, extent), stop, extent)

    def _lanes_loop(self, loop: Loop) -> None:
        """Chunks of a matrix per lane."""
        start, stop = self._lane_range(loop)

        def body(i: ir.Value) -> None:
            valid, _, mask = self._lanes_left(i, stop)
            outside = dict(self.registers)
            self.vector = VectorLoop(loop.var, self.lanes, i, mask, lane_sums={}, valid=valid)
            self._body(loop.body)
            self.vector = None
            self.registers = outside

        self._counted(start, stop, self.lanes, body)

    def _columns_loop(self, loop: Loop) -> None:
        """Elements next to one another with loops inside: some vectors at once, then masked ones for what is left. Rows
        may be short: of these, whole vectors that are left over have no mask.
        """
        b, lanes = self.builder, self.lanes
        first, stop = self._range(loop)

        def full(i: ir.Value) -> None:
            self._column_body(loop, i, None)

        def masked(i: ir.Value) -> None:
            self._column_body(loop, i, self._lanes_left(i, stop)[2])

        at_once = 1 if self.is_quick else columns_at_once(loop)
        for count in (at_once, 1) if loop.kind == ACROSS and at_once > 1 else (at_once,):
            self.lanes = lanes * count
            split = b.sub(stop, b.srem(b.sub(stop, first), ir.Constant(INT64, self.lanes)))
            self._counted(first, split, self.lanes, full)
            first = split
        self.lanes = lanes
        self._counted(first, stop, lanes, masked)

    def _column_body(self, loop: Loop, i: ir.Value, mask: ir.Value | None) -> None:
        outside = dict(self.registers)
        self.vector = VectorLoop(loop.var, self.lanes, i, mask, lane_sums={})
        self.registers.pop(loop.var, None)
        self._body(loop.body)
        self.vector = None
        self.registers = outside

    # -- ranges -----------------------------------------------------------------------------------------------------

    def _range(self, loop: Loop) -> tuple[ir.Value, ir.Value]:
        if loop.kind == PARALLEL_VECTOR and not self._has_rows:
            return self._whole_lines(loop)
        if loop.kind in (PARALLEL, PARALLEL_VECTOR, COLUMNS):
            return self.function.args[2], self.function.args[3]
        start = self._register(loop.start).value if loop.start else ir.Constant(INT64, 0)
        return start, self._register(loop.extent).value

    @functools.cached_property
    def _has_rows(self) -> bool:
        """Whether a loop over rows is cut as the loops of vectors are, one of which may make what it reads."""
        return any(isinstance(s, Loop) and s.kind == PARALLEL for s in statements(self.kernel.body))

    def _whole_lines(self, loop: Loop) -> tuple[ir.Value, ir.Value]:
        """The range of a chunk, whose bounds are moved to where the nearest lines begin, but for short chunks."""
        b, extent = self.builder, self._register(loop.extent).value
        is_asking = b.icmp_signed(">", self.streaming, ir.Constant(INT64, 0))
        is_cut_anywhere = b.or_(is_asking, b.icmp_signed("==", self.streaming, ir.Constant(INT64, -1)))
        unit = b.select(is_cut_anywhere, ir.Constant(INT64, -1), ir.Constant(INT64, -CACHE_LINE))
        half = b.select(is_cut_anywhere, ir.Constant(INT64, 0), ir.Constant(INT64, CACHE_LINE // 2))

        def moved(bound: ir.Value) -> ir.Value:
            place = b.and_(b.add(bound, half), unit)
            is_inside = b.and_(b.icmp_signed("<", bound, extent), b.icmp_signed("<", place, extent))
            return b.select(is_inside, place, extent)

        return moved(self.function.args[2]), moved(self.function.args[3])


def _is_scaling(s: Statement, scales: Collection[str]) -> TypeGuard[Let]:
    """Whether a statement multiplies by the scale of a divisor, before it does so by the reciprocal."""
    return isinstance(s, Let) and s.op == "multiply" and s.args[1] in scales


def _unscaled(s: Let) -> Let:
    """The same where the scale is 1."""
    return replace(s, op="identity", args=s.args[:1])
