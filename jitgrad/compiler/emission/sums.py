"""Emission of accumulators: sums and extremes, in one fixed order for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.asking import AskingEmitter
from jitgrad.compiler.emission.registers import DT_INT64, INT32, INT64
from jitgrad.compiler.emission.scalar_emit import emit_op
from jitgrad.compiler.emission.scalar_values import constant, element_type
from jitgrad.compiler.loopir.nests import Accumulator, Argument, Literal, Loop, Update, arguments
from jitgrad.spec import DType


class SumEmitter(AskingEmitter):
    """Emits accumulators: a cell per accumulator, and in vector loops one per lane, combined behind the loop."""

    def _accumulator(self, statement: Accumulator) -> None:
        name = statement.name
        self.inits[name] = statement
        self._new_sum(name, statement, 0, self.accumulators)

    def _new_sum(
        self, name: str, statement: Accumulator, lanes: int, into: dict[str, ir.Value], counts: Sequence[int] = ()
    ) -> None:
        init = constant(statement.init.value, statement.dtype, lanes)
        into[name] = self._cell(init, counts)
        if statement.combine.startswith("arg"):
            into[name + "_at"] = self._cell(constant(0, DT_INT64, lanes), counts)

    def _cell(self, init: ir.Value, counts: Sequence[int]) -> ir.Cell:
        type_ = init.type
        for count in reversed(counts):
            type_ = ir.ArrayType(type_, count)
        cell = self.entry.alloca(type_)
        for k in range(prod(counts)):
            place = self.builder.gep(cell, [ir.Constant(INT64, k)], source_etype=init.type) if counts else cell
            self.builder.store(init, place)
        return cell

    def _one_of(self, cell: ir.Cell, number: ir.Value) -> ir.Cell:
        type_: ir.Type = cell.allocated_type.element
        return ir.Cell(type_, self.builder.gep(cell, [number], source_etype=type_).text)

    def _open_sums(self, loop: Loop, *counts: int) -> dict[str, ir.Value]:
        """One accumulator per lane for each accumulator that the loop updates: of a register, of so many, or of so many
        rows with so many registers each.
        """
        sums: dict[str, ir.Value] = {}
        for update in _updates(loop):
            self._new_sum(update.acc, self.inits[update.acc], self.lanes, sums, counts)
        return sums

    def _sums_of_one(self, sums: dict[str, Any], number: ir.Value) -> dict[str, ir.Value]:
        """The accumulators of one of several registers or rows."""
        return {name: self._one_of(cell, number) for name, cell in sums.items()}

    def _sums_of_each(self, sums: dict[str, Any], count: int) -> list[dict[str, ir.Value]]:
        """The accumulators of each of so many registers."""
        return [self._sums_of_one(sums, ir.Constant(INT64, k)) for k in range(count)]

    def _close_sums(self, loop: Loop, parts: Sequence[Sequence[dict[str, ir.Value]]]) -> None:
        """Combine what the parts of a loop have summed, each halved to the fewest lanes, then these into the scalar."""
        for update in _updates(loop):
            dtype = self.inits[update.acc].dtype
            total: list[ir.Value] = []
            for registers in parts:
                part = self._sum_of_registers(update, dtype, registers)
                total = self._combine(update.combine, dtype, total, part, self.lanes) if total else part
            single = [
                self.builder.extract_element(p, ir.Constant(INT32, 0))
                for p in self._narrowed(update, dtype, total, 1)
            ]  # fmt: skip
            self._combine_into_cell(update, dtype, single)

    def _sum_of_registers(
        self, update: Update, dtype: DType, registers: Sequence[dict[str, ir.Value]]
    ) -> list[ir.Value]:
        """Registers combined, halving their number each time, then lanes."""
        parts = [self._sums_of_lanes(update, cells) for cells in registers]
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [self._combine(update.combine, dtype, low, high, self.lanes) for low, high in pairs]
        return self._narrowed(update, dtype, parts[0], self.lanes)

    def _sums_of_lanes(self, update: Update, cells: dict[str, Any]) -> list[ir.Value]:
        names = [update.acc] if update.at is None else [update.acc, update.acc + "_at"]
        return [self.builder.load(cells[name], typ=cells[name].allocated_type) for name in names]

    def _narrowed(self, update: Update, dtype: DType, parts: list[ir.Value], lanes: int) -> list[ir.Value]:
        """Lanes combined, halving the vector each time."""
        width = parts[0].type.count
        while width > lanes:
            width //= 2
            low = [self._part(p, 0, width) for p in parts]
            high = [self._part(p, width, width) for p in parts]
            parts = self._combine(update.combine, dtype, low, high, width)
        return parts

    def _combine(
        self, combine: str, dtype: DType, old: Sequence[ir.Value], new: Sequence[ir.Value], lanes: int
    ) -> list[ir.Value]:
        if len(new) > len(old):
            return [emit_op(self.builder, "add_product", [*old, *new], [dtype] * 3, dtype, lanes)]
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
            new = [self._argument(a, 0).value for a in arguments(update)]
            if update.at is not None:
                new.append(self._register(update.at).value)
            self._combine_into_cell(update, dtype, new)

    def _combine_into_cell(self, update: Update, dtype: DType, new: Sequence[ir.Value]) -> None:
        b = self.builder
        inside = self._inside(update.bounds)
        cells = [self.accumulators[update.acc]]
        old = [b.load(cells[0], typ=element_type(dtype))]
        if update.at is not None:
            cells.append(self.accumulators[update.acc + "_at"])
            old.append(b.load(cells[1], typ=INT64))
        for cell, before, after in zip(cells, old, self._combine(update.combine, dtype, old, new, 0), strict=True):
            b.store(after if inside is None else b.select(inside.value, after, before), cell)

    def _update_lanes(self, update: Update, dtype: DType) -> None:
        assert self.vector is not None
        b, lanes = self.builder, self.lanes
        cells = [self.vector.sums[update.acc]]
        old = [b.load(cells[0], typ=ir.VectorType(element_type(dtype), lanes))]
        chosen = self._chosen(update)
        new = [self._argument(a, lanes).value for a in (chosen[1:] if chosen else arguments(update))]
        if update.at is not None:
            cells.append(self.vector.sums[update.acc + "_at"])
            old.append(b.load(cells[1], typ=ir.VectorType(INT64, lanes)))
            new.append(self._argument(update.at, lanes).value)
        # An extreme asks its first argument whether it is NaN: what is new, for which nothing has to wait.
        is_extreme = update.combine in ("maximum", "minimum")
        pair = (new, old) if is_extreme else (old, new)
        mask = self.vector.mask
        if chosen:
            where = self._argument(chosen[0], lanes).value
            mask = where if mask is None else b.and_(mask, where)
        for cell, before, after in zip(cells, old, self._combine(update.combine, dtype, *pair, lanes), strict=True):
            b.store(after if mask is None else b.select(mask, after, before), cell)

    def _chosen(self, update: Update) -> tuple[Argument, Argument] | None:
        """The condition and the value, where a sum adds a value in some lanes and 0.0 in the others: with AVX-512 an
        addition has a mask. A sum that began with 0.0 is never -0.0, so that adding 0.0 leaves it as it is.
        """
        let, init = self.made.get(str(update.value)), self.inits[update.acc]
        is_sum = update.combine == "add" and update.factor is None and init.dtype.kind == "f" and _is_zero(init.init)
        if let is None or not is_sum or not self.builder.module.has_avx512:
            return None
        match let.op, let.args:
            case "where", (str(condition), value, Literal() as other) if _is_zero(other):
                return condition, value
            case "cast", (str(condition),) if self._register(condition).dtype.kind == "b":
                return condition, Literal(init.dtype.type(1), init.dtype)
        return None


def _is_zero(number: Literal) -> bool:
    """Whether a number is 0.0, which -0.0 is not."""
    return number.value == 0 and not np.signbit(number.value)


def _updates(loop: Loop) -> Iterator[Update]:
    return (s for s in loop.body if isinstance(s, Update))
