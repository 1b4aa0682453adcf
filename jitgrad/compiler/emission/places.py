"""Emission of places in memory, and of reads whose lanes lie apart or share an element; plain accesses are not here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.registers import BOOL, INT32, INT64, Register, RegisterEmitter
from jitgrad.compiler.emission.scalar_values import memory_type
from jitgrad.compiler.loopir.nests import Bound, Index, Load, Term
from jitgrad.compiler.vecmath.lanes import declare
from jitgrad.records import dataclass


@dataclass(frozen=True, slots=True)
class Shared:
    """Lanes that share elements: lane k reads the element ``(k + phase) // times`` behind the first one's. ``known`` is
    the phase, where it stands in the code.
    """

    times: int
    phase: ir.Value
    known: int | None = None


_FAR = 1 << 32  # more than any place below 0 is away from it


Distance = int | Shared | None
"""Of neighbouring lanes: 0 where all read one element, None for any."""


class PlaceEmitter(RegisterEmitter):
    """Emits places; and loads of every second element, or of each twice, out of whole registers, not lane by lane."""

    def _place(self, index: Index) -> tuple[ir.Value, Distance]:
        """The place of lane 0 and the distance of lanes, or a vector of places."""
        b = self.builder
        scalar = self.registers[index.offset].value if index.offset else ir.Constant(INT64, 0)
        scalar = b.add(scalar, ir.Constant(INT64, index.place)) if index.place else scalar
        vector: ir.Value | None = None
        distance: Distance = 0
        for term in index.terms:
            if self.vector is not None and term.var == self.vector.var and isinstance(term.stride, int):
                place, distance = self._along_lanes(term, self.vector.base)
            else:
                register = self._divided(term, self._register(term.var))
                place = self._scaled(register, term)
                if register.lanes:
                    vector = place if vector is None else b.add(vector, place)
                    continue
            scalar = b.add(scalar, place)
        if vector is None:
            return scalar, distance
        if distance:
            vector = b.add(vector, self._steps(distance))
        return b.add(vector, self._splat(scalar, self.lanes)), None

    def _along_lanes(self, term: Term, base: ir.Value) -> tuple[ir.Value, Distance]:
        """Where lane 0 of the loop is, by one term, and the distance of lanes."""
        b = self.builder
        assert isinstance(term.stride, int)
        if term.divisor == 1:
            return self._times(base, term.stride), term.stride
        times = ir.Constant(INT64, term.divisor)
        if term.shift is None:
            return b.udiv(base, times), Shared(term.divisor, b.urem(base, times), self._known_phase(term.divisor))
        shifted = b.add(b.add(base, self.registers[term.shift].value), ir.Constant(INT64, term.divisor * _FAR))
        place = b.sub(b.udiv(shifted, times), ir.Constant(INT64, _FAR))  # lane 0 may be outside, and below 0
        return place, Shared(term.divisor, b.urem(shifted, times))

    def _known_phase(self, times: int) -> int | None:
        """What the number of the loop's first lane leaves over of multiples of ``times``, where that is known."""
        known = None if self.vector is None else self.vector.known
        return None if known is None else known % times

    def _steps(self, distance: int | Shared) -> ir.Value:
        """How far each lane is from lane 0."""
        if isinstance(distance, int):
            return ir.Constant(ir.VectorType(INT64, self.lanes), [distance * k for k in range(self.lanes)])
        b = self.builder
        shifted = b.add(self._lane_numbers(), self._splat(distance.phase, self.lanes))
        return b.udiv(shifted, self._splat(ir.Constant(INT64, distance.times), self.lanes))

    def _divided(self, term: Term, register: Register) -> Register:
        if term.divisor == 1:
            return register
        b, value, numbers = self.builder, register.value, []
        for number in (ir.Constant(INT64, term.divisor), self.registers[term.shift].value if term.shift else None):
            numbers.append(self._splat(number, register.lanes) if number is not None and register.lanes else number)
        value = value if numbers[1] is None else b.add(value, numbers[1])
        return Register(b.udiv(value, numbers[0]), register.dtype, register.lanes)

    def _scaled(self, register: Register, term: Term) -> ir.Value:
        if isinstance(term.stride, int):
            return self._times(register.value, term.stride)
        stride = self.registers[term.stride].value
        if register.lanes:
            stride = self._splat(stride, register.lanes)
        return self.builder.mul(register.value, stride)

    def _times(self, value: ir.Value, stride: int) -> ir.Value:
        if stride in (1, -1):
            return value if stride == 1 else self.builder.neg(value)
        number = ir.Constant(INT64, stride)
        lanes = isinstance(value.type, ir.VectorType)
        return self.builder.mul(value, self._splat(number, value.type.count) if lanes else number)

    def _inside(self, bounds: Sequence[Bound]) -> Register | None:
        """Whether all bounds hold; None when there are none."""
        found: Register | None = None
        for bound in bounds:
            for op, limit in (("greater_equal", bound.lo), ("less", bound.hi)):
                if limit is None:
                    continue
                test = self._let(np.dtype(bool), op, (bound.var, limit))
                if found is not None:
                    lanes = max(found.lanes, test.lanes)
                    values = [r.value if r.lanes == lanes else self._splat(r.value, lanes) for r in (found, test)]
                    test = Register(self.builder.and_(*values), np.dtype(bool), lanes)
                found = test
        return found

    def _address(self, buffer: str, place: ir.Value) -> ir.Value:
        base, description = self.buffers[buffer]
        type_ = memory_type(description.dtype)
        return self.builder.gep(base, [place], source_etype=type_)

    def _masked(self, name: str, vector: ir.Type, args: list[ir.Value]) -> ir.Value:
        pointers = "p0" if name in ("load", "store") else f"v{self.lanes}p0"
        full = f"llvm.masked.{name}.{vector.suffix}.{pointers}"
        known = self.builder.module.functions.get(full)
        if known is None:
            result = ir.VoidType() if name in ("store", "scatter") else vector
            known = declare(self.builder.module, full, ir.FunctionType(result, [a.type for a in args]))
        return self.builder.call(known, args)

    # -- lanes that lie apart, or share elements ----------------------------------------------------------------------

    def _load_apart(self, load: Load, place: ir.Value, distance: int, mask: ir.Value | None) -> ir.Value:
        """Every second element, or third, or fourth: whole registers without what lies behind the last one."""
        wide = self.lanes * distance
        if mask is None:
            inside: ir.Value = ir.Constant(ir.VectorType(BOOL, wide), [k <= wide - distance for k in range(wide)])
        else:
            spread = [k // distance if k % distance == 0 else self.lanes for k in range(wide)]
            inside = self._picked(mask, ir.Constant(mask.type, None), spread)
        raw = self._load_some(load, place, wide, inside)
        return self._picked(raw, ir.Constant(raw.type, ir.Undefined), range(0, wide, distance))

    def _load_shared(self, load: Load, place: ir.Value, shared: Shared) -> ir.Value:
        """Elements that lie side by side, each for several lanes, whose places differ by the phase."""
        return self._spread_shared(self._load_some(load, place, self.lanes, self._shared_inside(shared)), shared)

    def _spread_shared(self, raw: ir.Value, shared: Shared) -> ir.Value:
        """To each lane its element."""
        b, lanes, times = self.builder, self.lanes, shared.times
        anything = ir.Constant(raw.type, ir.Undefined)
        found = self._picked(raw, anything, [(k + (shared.known or 0)) // times for k in range(lanes)])
        for phase in range(1, times) if shared.known is None else ():
            moved = self._picked(raw, anything, [(k + phase) // times for k in range(lanes)])
            found = b.select(b.icmp_signed("==", shared.phase, ir.Constant(INT64, phase)), moved, found)
        return found

    def _shared_inside(self, shared: Shared) -> ir.Value:
        """Which of the elements behind the first one that lanes share are read."""
        b, lanes, times = self.builder, self.lanes, shared.times
        assert self.vector is not None
        first = self.vector.first if self.vector.mask is not None else None
        if first is None and shared.known is not None:
            last = (shared.known + lanes - 1) // times
            return ir.Constant(ir.VectorType(BOOL, lanes), [k <= last for k in range(lanes)])
        count = ir.Constant(INT32, lanes) if first is None else first
        phase = b.trunc(shared.phase, INT32) if shared.known is None else ir.Constant(INT32, shared.known)
        reach = b.add(phase, b.sub(count, ir.Constant(INT32, 1)))
        needed = b.add(b.udiv(reach, ir.Constant(INT32, times)), ir.Constant(INT32, 1))
        return b.icmp_unsigned("<", self._lane_numbers(INT32), self._splat(needed, lanes))

    def _elements_inside(self, load: Load, shared: Shared) -> ir.Value:
        """Which elements that lanes share are read, where other bounds than those of the lanes hold."""
        along = self._bounds_along(load)
        elements = self._shared_between(shared, along)
        others = self._inside([bound for bound in load.bounds if bound not in along])
        return elements if others is None else self.builder.and_(elements, self._splat(others.value, self.lanes))

    def _bounds_along(self, load: Load) -> list[Bound]:
        """The bounds of the lanes."""
        return [bound for bound in load.bounds if self.vector is not None and bound.var == self.vector.var]

    def _shared_between(self, shared: Shared, bounds: Sequence[Bound]) -> ir.Value:
        """Which of these elements lanes read between bounds of the loop's number, that are in the loop as well."""
        b, vector, one = self.builder, self.vector, ir.Constant(INT64, 1)
        assert vector is not None
        count = ir.Constant(INT64, self.lanes) if vector.first is None else b.zext(vector.first, INT64)
        first: ir.Value = ir.Constant(INT64, 0)
        end: ir.Value = count
        for bound in bounds:
            if bound.lo is not None:
                lo = b.sub(self.registers[bound.lo].value, vector.base)
                first = b.select(b.icmp_signed("<", first, lo), lo, first)
            if bound.hi is not None:
                hi = b.sub(self.registers[bound.hi].value, vector.base)
                end = b.select(b.icmp_signed("<", hi, end), hi, end)
        first = b.select(b.icmp_signed("<", first, count), first, count)
        times = ir.Constant(INT64, shared.times)
        lowest = b.udiv(b.add(first, shared.phase), times)
        behind = b.add(b.udiv(b.add(b.sub(end, one), shared.phase), times), one)
        number = b.select(b.icmp_signed("<", first, end), b.sub(behind, lowest), ir.Constant(INT64, 0))
        narrow = [self._splat(b.trunc(value, INT32), self.lanes) for value in (lowest, number)]
        return b.icmp_unsigned("<", b.sub(self._lane_numbers(INT32), narrow[0]), narrow[1])

    def _load_some(self, load: Load, place: ir.Value, count: int, inside: ir.Value) -> ir.Value:
        vector = ir.VectorType(memory_type(load.dtype), count)
        align = ir.Constant(INT32, load.dtype.itemsize)
        address, nothing = self._address(load.buffer, place), ir.Constant(vector, None)
        return self._masked("load", vector, [address, align, inside, nothing])

    def _picked(self, first: ir.Value, second: ir.Value, picks: range | list[int]) -> ir.Value:
        numbers = ir.Constant(ir.VectorType(INT32, len(picks)), list(picks))
        return self.builder.shuffle_vector(first, second, numbers)
