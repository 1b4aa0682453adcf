"""Emission of lists to which lanes of a vector loop append; what is kept is not decided here."""

from __future__ import annotations

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.registers import DT_INT64, INT32, INT64, Register
from jitgrad.compiler.emission.scalar_values import call_intrinsic, cast, type_suffix
from jitgrad.compiler.emission.sums import SumEmitter
from jitgrad.compiler.loopir.nests import Keep
from jitgrad.compiler.vecmath.lanes import declare


class KeepEmitter(SumEmitter):
    """Emits what appends lanes to lists. A list has room for a register behind its last element."""

    def _keep(self, keep: Keep) -> None:
        """With AVX-512 lanes are moved together in a register, which is stored as a whole; else each is stored at the
        end of the list, which moves on if the lane is kept. Neither branches, for nobody can foretell which are kept.
        """
        b, cell = self.builder, self.accumulators[keep.count]
        mask = self._mask(self._inside_chunk(keep))
        assert mask is not None
        count = b.load(cell, typ=INT64)
        values = [self._lanes_to_keep(keep, number) for number in range(len(keep.buffers))]
        if b.module.has_avx512:
            for buffer, value in zip(keep.buffers, values, strict=True):
                b.store(self._compressed(value, mask), self._address(buffer, count), align=INT32.width // 8)
            number = call_intrinsic(b, "ctpop", [b.bitcast(mask, ir.IntType(self.lanes))])
            count = b.add(count, b.zext(number, INT64))
        else:
            for lane in range(self.lanes):
                at = ir.Constant(INT32, lane)
                for buffer, value in zip(keep.buffers, values, strict=True):
                    b.store(b.extract_element(value, at), self._address(buffer, count), align=INT32.width // 8)
                count = b.add(count, b.zext(b.extract_element(mask, at), INT64))
        b.store(count, cell)

    def _inside_chunk(self, keep: Keep) -> Register | None:
        """Which lanes are in bounds and in the chunk's slots."""
        b = self.builder
        slot = self._argument(keep.slot, self.lanes).value
        lo, hi = self.function.args[2:4]
        from_first, slots = b.sub(slot, self._splat(lo, self.lanes)), self._splat(b.sub(hi, lo), self.lanes)
        own = b.icmp_unsigned("<", from_first, slots)
        inside = self._inside(keep.bounds)
        if inside is not None:
            own = b.and_(own, inside.value if inside.lanes else self._splat(inside.value, self.lanes))
        return Register(own, np.dtype(bool), self.lanes)

    def _lanes_to_keep(self, keep: Keep, number: int) -> ir.Value:
        value, (_, buffer) = self._argument(keep.values[number], self.lanes).value, self.buffers[keep.buffers[number]]
        narrowed: ir.Value = cast(self.builder, value, DT_INT64, buffer.dtype, self.lanes)
        return narrowed

    def _compressed(self, value: ir.Value, mask: ir.Value) -> ir.Value:
        """The lanes of the mask, side by side."""
        name = f"llvm.experimental.vector.compress.{type_suffix(value.type)}"
        args = [value, mask, ir.Constant(value.type, ir.Undefined)]
        signature = ir.FunctionType(value.type, [a.type for a in args])
        return self.builder.call(declare(self.builder.module, name, signature), args)
