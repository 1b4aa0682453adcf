"""Emission of accesses whose lanes lie apart at a distance that stands in the code: whole registers, and shuffles.

What a body reads of one array at places of the same stride is loaded once, for all of them: x[:, 0], x[:, 1] and
x[:, 2] are three registers, not three times eight elements. What it stores at all places of a stride is put together
first, and stored in whole registers. The bits that arrive are those of plain accesses, and so is the memory touched,
but for gaps between elements that are read.
"""

from __future__ import annotations

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.places import PlaceEmitter, Shared
from jitgrad.compiler.emission.registers import BOOL, INT32, INT64
from jitgrad.compiler.emission.scalar_values import memory_type
from jitgrad.compiler.emission.shuffles import deinterleave, interleave, joined, picked
from jitgrad.compiler.emission.strides import Places, find_loads, find_stores
from jitgrad.compiler.loopir.nests import Load, Loop, Store


class StridedEmitter(PlaceEmitter):
    """Emits what a body of lanes reads and stores at places of strides."""

    def _enter_strides(self, loop: Loop) -> None:
        """Find what a body does so, before it is emitted: nothing in quick code, where shuffles would take LLVM longer
        than they save: 13 ms for the gradient of max-pooling in place of 3.
        """
        is_quick = self.builder.module.shared_bytes > 0
        self.apart, self.spread = ({}, {}) if is_quick else (find_loads(loop), find_stores(loop))
        self.loaded_apart, self.stored_apart = {}, {}

    def _is_apart(self, load: Load) -> bool:
        """Whether a load is made together with others, of lanes that are all inside or the first ones."""
        vector = self.vector
        return load.name in self.apart and vector is not None and (vector.mask is None or vector.first is not None)

    def _load_places(self, load: Load) -> ir.Value:
        """What a load reads; at the first of several that are made together all of them are."""
        group = self.apart[load.name]
        if group not in self.loaded_apart:
            lanes = self.register_lanes
            base = self._place(group.first)[0]
            parts = [
                self._places_of(group, load, self.builder.add(base, ir.Constant(INT64, first * group.stride)))
                for first in range(0, self.lanes, lanes)
            ]
            self.loaded_apart[group] = {
                place: joined(self.builder, [part[place] for part in parts]) for place in group.places
            }  # fmt: skip
        return self.loaded_apart[group][load.index.place - group.first.place]

    def _places_of(self, group: Places, load: Load, base: ir.Value) -> dict[int, ir.Value]:
        """The places of a register of lanes, of which the first one is at ``base``; those of a negative stride lie
        behind one another from the last lane to the first.
        """
        b, lanes, stride = self.builder, self.register_lanes, abs(group.stride)
        if group.stride < 0:
            base = b.sub(base, ir.Constant(INT64, stride * (lanes - 1)))
        extent = stride * (lanes - 1) + group.places[-1] + 1
        registers = [self._part_of(group, load, base, first, extent) for first in range(0, stride * lanes, lanes)]
        found = deinterleave(b, registers, group.places)
        if group.stride < 0:
            return {place: picked(b, value, value, range(lanes)[::-1]) for place, value in found.items()}
        return found

    def _mask_ahead(self, load: Load) -> None:
        """Make the masks of a load whose lanes lie apart, or share elements, which the builder finds again."""
        assert self.vector is not None
        group = self.apart.get(load.name)
        if group is not None:
            lanes, stride = self.register_lanes, abs(group.stride)
            extent = stride * (lanes - 1) + group.places[-1] + 1
            for first in range(0, stride * lanes, lanes):
                self._read_inside(group, first, extent)
        along = self._bounds_along(load)
        for bound in along:
            self._inside([bound])
        for term in load.index.terms:
            distance = self._along_lanes(term, self.vector.base)[1] if term.var == self.vector.var else 0
            if isinstance(distance, Shared):
                self._shared_between(distance, along) if along else self._shared_inside(distance)

    def _part_of(self, group: Places, load: Load, base: ir.Value, first: int, extent: int) -> ir.Value:
        """The register ``first`` elements behind ``base``, without what lies behind the last element that is read, and
        what only lanes outside of the loop would read.
        """
        b, lanes, align = self.builder, self.register_lanes, load.dtype.itemsize
        vector = ir.VectorType(memory_type(load.dtype), lanes)
        inside = self._read_inside(group, first, extent)
        if first >= extent:
            return ir.Constant(vector, ir.Undefined)
        address = self._address(load.buffer, b.add(base, ir.Constant(INT64, first)))
        if inside is None:
            return b.load(address, typ=vector, align=align)
        arguments = [address, ir.Constant(INT32, align), inside, ir.Constant(vector, None)]
        return self._masked("load", vector, arguments)

    def _read_inside(self, group: Places, first: int, extent: int) -> ir.Value | None:
        """The lanes of such a register that are read; None for all."""
        b, lanes, stride = self.builder, self.register_lanes, abs(group.stride)
        assert self.vector is not None
        elements = range(first, first + lanes)
        lanes_within = ir.Constant(ir.VectorType(BOOL, lanes), [k < extent for k in elements])
        within = None if elements[-1] < extent else lanes_within
        if self.vector.mask is None or self.vector.first is None:
            return within
        numbers = ir.Constant(ir.VectorType(INT32, lanes), list(elements))
        if group.stride > 0:
            outside = b.sub(ir.Constant(INT32, lanes), self.vector.first)
            end = b.sub(ir.Constant(INT32, extent), b.mul(outside, ir.Constant(INT32, stride)))
            return b.icmp_signed("<", numbers, self._splat(end, lanes))
        outside = b.mul(b.sub(ir.Constant(INT32, lanes), self.vector.first), ir.Constant(INT32, stride))
        found = b.icmp_signed(">=", numbers, self._splat(outside, lanes))
        return found if within is None else b.and_(found, within)

    def _is_spread(self, store: Store) -> bool:
        """Whether a store is made together with those at all other places of its stride."""
        vector = self.vector
        is_plain = vector is not None and (vector.mask is None or vector.first is not None)
        return is_plain and not store.bounds and (store.buffer, store.index) in self.spread

    def _registers_of(self, store: Store, raw: ir.Value) -> list[ir.Value]:
        """What is stored, in the order of memory, once the value of the last place is there; nothing before."""
        b, lanes = self.builder, self.register_lanes
        group = self.spread[store.buffer, store.index]
        values = self.stored_apart.setdefault(group, {})
        values[store.index.place - group.first.place] = raw
        if len(values) < group.stride:
            return []
        found: list[ir.Value] = []
        for first in range(0, self.lanes, lanes):
            found += interleave(b, [self._part(values[place], first, lanes) for place in group.places])
        return found
