"""Emission inside loops of lanes: a value per lane, in registers and tiles; loops and routines are elsewhere."""

from __future__ import annotations

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.keeping import KeepEmitter
from jitgrad.compiler.emission.registers import Register
from jitgrad.compiler.emission.routines import emit_routine
from jitgrad.compiler.emission.scalar_values import cast, constant, element_type, memory_type
from jitgrad.compiler.loopir.nests import Accumulator, Call, Load, Store, Update, arguments

TILES = ("tile", "sums")


class LaneEmitter(KeepEmitter):
    """Emits what stands in a loop of lanes: a register is a vector unless it is the same in all lanes."""

    # -- accumulators ----------------------------------------------------------------------------------------------

    def _lane_sums(self) -> dict[str, ir.Value] | None:
        """The cells of accumulators that have one value per lane; None outside of loops of lanes."""
        return None if self.vector is None else self.vector.lane_sums

    def _accumulator(self, statement: Accumulator) -> None:
        sums = self._lane_sums()
        if sums is None:
            super()._accumulator(statement)
        else:
            self.inits[statement.name] = statement
            self._new_sum(statement.name, statement, self.lanes, sums)

    def _update(self, update: Update) -> None:
        sums = self._lane_sums()
        if sums is None or update.acc not in sums:
            super()._update(update)
            return
        before = self._register(update.acc).value
        new = [self._argument(a, self.lanes).value for a in arguments(update)]
        dtype = self.inits[update.acc].dtype
        self.builder.store(self._combine(update.combine, dtype, [before], new, self.lanes)[0], sums[update.acc])

    def _register(self, name: str) -> Register:
        sums = self._lane_sums()
        if sums is None or name not in sums:
            return super()._register(name)
        dtype = self.inits[name].dtype
        value = self.builder.load(sums[name], typ=ir.VectorType(element_type(dtype), self.lanes))
        return Register(value, dtype, self.lanes)

    # -- tiles -----------------------------------------------------------------------------------------------------

    def _tile_address(self, buffer: str, place: ir.Value) -> ir.Value:
        base, description = self.buffers[buffer]
        vector = ir.VectorType(memory_type(description.dtype), self.lanes)
        return self.builder.gep(base, [place], source_etype=vector)

    def _load(self, load: Load) -> Register:
        if self.buffers[load.buffer][1].role not in TILES:
            return super()._load(load)
        place, _ = self._place(load.index)
        inside = self._inside(load.bounds)
        if inside is None:
            return self._load_tile(load, place)
        assert load.fill is not None
        b = self.builder
        before = b.block
        with b.if_then(inside.value):
            found = self._load_tile(load, place)
            within = b.block
        merged = b.phi(found.value.type)
        merged.add_incoming(constant(load.fill.value, load.dtype, self.lanes), before)
        merged.add_incoming(found.value, within)
        return Register(merged, load.dtype, self.lanes)

    def _load_tile(self, load: Load, place: ir.Value) -> Register:
        vector = ir.VectorType(memory_type(load.dtype), self.lanes)
        raw = self.builder.load(self._tile_address(load.buffer, place), typ=vector, align=load.dtype.itemsize)
        return Register(self._from_memory(raw, load.dtype, self.lanes), load.dtype, self.lanes)

    def _store(self, store: Store) -> None:
        role = self.buffers[store.buffer][1].role
        if role not in TILES:
            super()._store(store)
            return
        assert self.vector is not None
        place, _ = self._place(store.index)
        register = self._argument(store.value, self.lanes)
        value = cast(self.builder, register.value, register.dtype, store.dtype, self.lanes)
        raw = self._to_memory(value, store.dtype, self.lanes)
        address = self._tile_address(store.buffer, place)
        if role == "sums":
            assert self.vector.mask is not None
            before = self.builder.load(address, typ=raw.type, align=store.dtype.itemsize)
            raw = self.builder.select(self.vector.mask, raw, before)
        self.builder.store(raw, address, align=store.dtype.itemsize)

    def _call(self, call: Call) -> None:
        """A routine; in a loop of lanes it gets the number of matrices, too, and the loop's variable as a scalar."""
        numbers = []
        for a in call.args:
            is_lane = self.vector is not None and a == self.vector.var
            numbers.append(self.vector.base if is_lane and self.vector else self._argument(a, 0).value)
        if self.vector is not None:
            assert self.vector.valid is not None
            numbers.append(self.vector.valid)
        emit_routine(self.builder, call.routine, [self.buffers[name] for name in call.buffers], numbers, self.lanes)
