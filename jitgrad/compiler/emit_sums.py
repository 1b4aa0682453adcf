"""Emission of accumulators: sums and extremes, in one fixed order for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llvmlite import ir

from jitgrad.compiler.emit_memory import MemoryEmitter
from jitgrad.compiler.emit_registers import DT_INT64, INT32, INT64
from jitgrad.compiler.loopir import Accumulator, Loop, Update
from jitgrad.compiler.scalar_emit import emit_op
from jitgrad.compiler.scalar_values import constant, element_type
from jitgrad.spec import DType


class SumEmitter(MemoryEmitter):
    """Emits accumulators: a cell per accumulator, and in vector loops one per lane, combined behind the loop."""

    def _accumulator(self, statement: Accumulator) -> None:
        name = statement.name
        self.inits[name] = statement
        self._new_sum(name, statement, 0, self.accumulators)

    def _new_sum(self, name: str, statement: Accumulator, lanes: int, into: dict[str, ir.Value]) -> None:
        init = constant(statement.init.value, statement.dtype, lanes)
        into[name] = self._cell(init)
        if statement.combine.startswith("arg"):
            into[name + "_at"] = self._cell(constant(0, DT_INT64, lanes))

    def _cell(self, init: ir.Value) -> ir.Value:
        cell = self.entry.alloca(init.type)
        self.builder.store(init, cell)
        return cell

    def _open_sums(self, loop: Loop) -> dict[str, ir.Value]:
        """One accumulator per lane for each accumulator that the loop updates."""
        sums: dict[str, ir.Value] = {}
        for update in _updates(loop):
            self._new_sum(update.acc, self.inits[update.acc], self.lanes, sums)
        return sums

    def _close_sums(self, loop: Loop, sums: dict[str, ir.Value]) -> None:
        """Combine the lanes, halving the vector each time, and the result into the scalar accumulator."""
        for update in _updates(loop):
            dtype = self.inits[update.acc].dtype
            vector = ir.VectorType(element_type(dtype), self.lanes)
            parts = [self.builder.load(sums[update.acc], typ=vector)]
            if update.at is not None:
                parts.append(self.builder.load(sums[update.acc + "_at"], typ=ir.VectorType(INT64, self.lanes)))
            lanes = self.lanes
            while lanes > 1:
                lanes //= 2
                low = [self._half(p, 0, lanes) for p in parts]
                high = [self._half(p, lanes, lanes) for p in parts]
                parts = self._combine(update.combine, dtype, low, high, lanes)
            single = [self.builder.extract_element(p, ir.Constant(INT32, 0)) for p in parts]
            self._combine_into_cell(update, dtype, single)

    def _half(self, value: ir.Value, first: int, count: int) -> ir.Value:
        picks = ir.Constant(ir.VectorType(INT32, count), list(range(first, first + count)))
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), picks)

    def _combine(
        self, combine: str, dtype: DType, old: Sequence[ir.Value], new: Sequence[ir.Value], lanes: int
    ) -> list[ir.Value]:
        if len(old) == 1:
            return [emit_op(self.builder, combine, [old[0], new[0]], [dtype, dtype], dtype, lanes)]
        wins = self._wins(combine, dtype, old, new)
        return [self.builder.select(wins, n, o) for o, n in zip(old, new, strict=True)]

    def _wins(self, combine: str, dtype: DType, old: Sequence[ir.Value], new: Sequence[ir.Value]) -> ir.Value:
        """Whether a candidate (value, index) beats the best so far: a NaN first, then the extreme, then the
        lower index.
        """
        b = self.builder
        op = ">" if combine == "argmax" else "<"
        if dtype.kind == "f":
            better = b.fcmp_ordered(op, new[0], old[0])
            old_nan, new_nan = (b.fcmp_unordered("uno", x[0], x[0]) for x in (old, new))
            better = b.or_(better, b.and_(new_nan, b.not_(old_nan)))
            same = b.or_(b.fcmp_ordered("==", new[0], old[0]), b.and_(new_nan, old_nan))
        else:
            compare = b.icmp_signed if dtype.kind == "i" else b.icmp_unsigned
            better, same = compare(op, new[0], old[0]), compare("==", new[0], old[0])
        earlier = b.icmp_signed("<", new[1], old[1])
        return b.or_(better, b.and_(same, earlier))

    def _update(self, update: Update) -> None:
        dtype = self.inits[update.acc].dtype
        if self.vector is not None and update.acc in self.vector.sums:
            self._update_lanes(update, dtype)
        else:
            new = [self._argument(update.value, 0).value]
            if update.at is not None:
                new.append(self._register(update.at).value)
            self._combine_into_cell(update, dtype, new)

    def _combine_into_cell(self, update: Update, dtype: DType, new: Sequence[ir.Value]) -> None:
        b = self.builder
        cells = [self.accumulators[update.acc]]
        old = [b.load(cells[0], typ=element_type(dtype))]
        if update.at is not None:
            cells.append(self.accumulators[update.acc + "_at"])
            old.append(b.load(cells[1], typ=INT64))
        for cell, value in zip(cells, self._combine(update.combine, dtype, old, new, 0), strict=True):
            b.store(value, cell)

    def _update_lanes(self, update: Update, dtype: DType) -> None:
        assert self.vector is not None
        b, lanes = self.builder, self.lanes
        cells = [self.vector.sums[update.acc]]
        old = [b.load(cells[0], typ=ir.VectorType(element_type(dtype), lanes))]
        new = [self._argument(update.value, lanes).value]
        if update.at is not None:
            cells.append(self.vector.sums[update.acc + "_at"])
            old.append(b.load(cells[1], typ=ir.VectorType(INT64, lanes)))
            new.append(self._argument(update.at, lanes).value)
        for cell, before, after in zip(cells, old, self._combine(update.combine, dtype, old, new, lanes), strict=True):
            b.store(after if self.vector.mask is None else b.select(self.vector.mask, after, before), cell)


def _updates(loop: Loop) -> Iterator[Update]:
    return (s for s in loop.body if isinstance(s, Update))
