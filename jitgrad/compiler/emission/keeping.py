"""Emission of lists to which lanes of a vector loop append; what is kept is not decided here."""

from __future__ import annotations

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.registers import INT32, INT64, Register
from jitgrad.compiler.emission.scalar_values import call_intrinsic
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
        bits = b.bitcast(mask, ir.IntType(self.lanes))
        if b.module.has_avx512:
            for buffer, name in zip(keep.buffers, keep.values, strict=True):
                kept = self._compressed(self._narrowed_lanes(name), mask)
                b.store(kept, self._address(buffer, count), align=INT32.width // 8)
            count = b.add(count, b.zext(call_intrinsic(b, "ctpop", [bits]), INT64))
        else:
            wide = b.zext(bits, INT64)
            for lane in range(self.lanes):
                for buffer, name in zip(keep.buffers, keep.values, strict=True):
                    b.store(self._lane(name, lane), self._address(buffer, count), align=INT32.width // 8)
                is_kept = b.and_(b.lshr(wide, ir.Constant(INT64, lane)), ir.Constant(INT64, 1))
                count = b.add(count, is_kept)
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

    def _narrowed_lanes(self, name: str) -> ir.Value:
        """The numbers of a loop in all lanes, as elements of a list."""
        return self.builder.trunc(self._argument(name, self.lanes).value, ir.VectorType(INT32, self.lanes))

    def _lane(self, name: str, lane: int) -> ir.Value:
        """The number of a loop in one lane."""
        assert self.vector is not None
        b = self.builder
        is_along = name == self.vector.var
        if is_along:
            return b.trunc(b.add(self.vector.base, ir.Constant(INT64, lane)), INT32)
        known = self._register(name)
        return b.trunc(b.extract_element(known.value, ir.Constant(INT32, lane)) if known.lanes else known.value, INT32)

    def _compressed(self, value: ir.Value, mask: ir.Value) -> ir.Value:
        """The lanes of the mask, side by side."""
        name = f"llvm.experimental.vector.compress.{value.type.suffix}"
        args = [value, mask, ir.Constant(value.type, ir.Undefined)]
        signature = ir.FunctionType(value.type, [a.type for a in args])
        return self.builder.call(declare(self.builder.module, name, signature), args)
