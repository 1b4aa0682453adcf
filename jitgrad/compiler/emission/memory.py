"""Emission of memory accesses: contiguous, reversed, gathered, masked; loops are not here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.places import Distance, Shared
from jitgrad.compiler.emission.registers import BOOL, DT_INT64, INT32, INT64, Register
from jitgrad.compiler.emission.scalar_values import cast, constant, memory_type
from jitgrad.compiler.emission.shuffles import joined
from jitgrad.compiler.emission.strided import StridedEmitter
from jitgrad.compiler.loopir.nests import Check, Index, Let, Load, Loop, Statement, Store, Term, Update, statements
from jitgrad.spec import DType

CACHE_LINE = 64
LEAST_ROW, MOST_BORDER = 1 << 10, 256  # bytes
FEW_STORES = 4
_WHOLE_REGISTERS = (0, 1, -1, 2, 3, 4)
"""Distances of lanes that are all read out of whole registers, whatever the mask."""


def row_store(loop: Loop, roles: Mapping[str, str]) -> Store | None:
    """The one store of a loop over a row into an array, where the loop may be cut anywhere: not one with sums, whose
    order would follow from addresses.
    """
    stores = [s for s in loop.body if isinstance(s, Store) and roles[s.buffer] == "out"]
    return stores[0] if len(stores) == 1 and not any(isinstance(s, Update) for s in loop.body) else None


def within(check: Check, body: Sequence[Statement]) -> list[Statement] | None:
    """The statements of a body between a check and the next one without its bounds, where all of them may be left out
    when these fail: what they store is bound by them. None where they may not. An update of a scatter has one branch
    so, in place of three.
    """
    behind = list(takewhile(lambda s: not isinstance(s, Check), body))
    stores = [s for s in behind if isinstance(s, Store)]
    is_plain = all(isinstance(s, Load | Let | Store) for s in behind) and behind[-1:] == stores[-1:] != []
    if not is_plain or not all(s.bounds == check.bounds for s in stores):
        return None
    return [
        replace(s, bounds=()) if isinstance(s, Load | Store) and s.bounds == check.bounds else s for s in behind
    ]  # fmt: skip


class MemoryEmitter(StridedEmitter):
    """Emits loads, stores and checks, for scalars and for vectors of lanes with any distance between them."""

    def _load(self, load: Load) -> Register:
        b, (place, distance) = self.builder, self._place(load.index)
        inside = self._inside(load.bounds)
        is_vector = distance != 0 or (inside is not None and inside.lanes)
        if not is_vector:
            return self._load_scalar(load, place, inside)
        assert self.vector is not None
        if inside is not None and not inside.lanes:
            return self._load_where(load, inside)
        if self._is_apart(load):
            return Register(self._from_memory(self._load_places(load), load.dtype, self.lanes), load.dtype, self.lanes)
        mask = None if self._has_room(load) else self._mask(inside)
        fill = constant(load.fill.value if load.fill else 0, load.dtype, self.lanes)
        if isinstance(distance, int) and distance not in _WHOLE_REGISTERS:
            place, distance = b.add(self._splat(place, self.lanes), self._steps(distance)), None
        if distance == 0 and not isinstance(place.type, ir.VectorType):
            assert mask is not None
            return self._load_one(load, place, mask, fill)
        is_known = mask is None or (inside is None and self.vector.first is not None)
        if isinstance(distance, Shared) and not is_known and self.row_registers:
            assert mask is not None
            elements = self._elements_inside(load, distance)
            raw = self._spread_shared(self._load_some(load, place, self.lanes, elements), distance)
            value = b.select(mask, self._from_memory(raw, load.dtype, self.lanes), fill)
            return Register(value, load.dtype, self.lanes)
        if isinstance(distance, Shared) and not is_known:
            place, distance = b.add(self._splat(place, self.lanes), self._steps(distance)), None
        raw = self._load_lanes(load, place, distance, mask, fill)
        return Register(self._from_memory(raw, load.dtype, self.lanes), load.dtype, self.lanes)

    def _load_where(self, load: Load, inside: Register) -> Register:
        """Lanes that are all read, or all filled."""
        assert load.fill is not None
        b, fill = self.builder, constant(load.fill.value, load.dtype, self.lanes)
        before = b.block
        with b.if_then(inside.value):
            found = self._load(replace(load, bounds=()))
            within = b.block
        merged = b.phi(found.value.type)
        merged.add_incoming(fill, before)
        merged.add_incoming(found.value, within)
        return Register(merged, load.dtype, self.lanes)

    def _load_one(self, load: Load, place: ir.Value, mask: ir.Value, fill: ir.Value) -> Register:
        """One element for all lanes that are inside, if any is, as of a padded row's edge: gathered, it would be loaded
        once for each lane.
        """
        b, bits = self.builder, ir.IntType(self.lanes)
        some = b.icmp_signed("!=", b.bitcast(mask, bits), ir.Constant(bits, 0))
        one = self._load_scalar(load, place, Register(some, np.dtype(bool)))
        return Register(b.select(mask, self._splat(one.value, self.lanes), fill), load.dtype, self.lanes)

    def _load_scalar(self, load: Load, place: ir.Value, inside: Register | None) -> Register:
        b = self.builder
        type_ = memory_type(load.dtype)
        if inside is None:
            raw = b.load(self._address(load.buffer, place), typ=type_, align=load.dtype.itemsize)
            return Register(self._from_memory(raw, load.dtype, 0), load.dtype)
        assert load.fill is not None
        before = b.block
        with b.if_then(inside.value):
            raw = b.load(self._address(load.buffer, place), typ=type_, align=load.dtype.itemsize)
            value = self._from_memory(raw, load.dtype, 0)
            within = b.block
        merged = b.phi(value.type)
        merged.add_incoming(constant(load.fill.value, load.dtype, 0), before)
        merged.add_incoming(value, within)
        return Register(merged, load.dtype)

    def _load_lanes(
        self, load: Load, place: ir.Value, distance: Distance, mask: ir.Value | None, fill: ir.Value
    ) -> ir.Value:
        b, lanes = self.builder, self.lanes
        if isinstance(distance, Shared):
            return self._load_shared(load, place, distance)
        vector = ir.vector_of(memory_type(load.dtype), lanes)
        align = load.dtype.itemsize
        raw_fill = self._to_memory(fill, load.dtype, lanes)
        if distance is not None and distance > 1:
            raw = self._load_apart(load, place, distance, mask)
            return raw if mask is None else b.select(mask, raw, raw_fill)
        if distance == -1:
            place = b.sub(place, ir.Constant(INT64, lanes - 1))
            mask = None if mask is None else self._reversed(mask)
            raw_fill = self._reversed(raw_fill)
        address = self._address(load.buffer, place)
        if isinstance(place.type, ir.VectorType):
            return self._masked("gather", vector, [address, _int32(align), mask or self._all(), raw_fill])
        if mask is None:
            raw = b.load(address, typ=vector, align=align)
        else:
            raw = self._masked("load", vector, [address, _int32(align), mask, raw_fill])
        return self._reversed(raw) if distance == -1 else raw

    def _line_start(self, loop: Loop, start: ir.Value, stop: ir.Value, points: Sequence[ir.Value]) -> list[ir.Value]:
        """Where a loop that stores rows past the caches comes to the start of a cache line, if rows may share lines.

        A loop that has parts, between ``points``, is asked only where it reads rows of a ring: rows of a grid with a
        border are no whole lines, and the place is the first behind the border. Short rows would have more parts than
        whole vectors.
        """
        b, roles = self.builder, {name: buffer.role for name, (_, buffer) in self.buffers.items()}
        has_ring = any(isinstance(s, Load) and roles[s.buffer] == "ring" for s in loop.body)
        store = row_store(loop, roles)
        made = {s.name for s in loop.body if isinstance(s, Load | Let)}
        if store is None or (points and not has_ring) or any(term.var in made for term in store.index.terms):
            return []  # also where it is stored at positions that are read
        inner = self._behind_border(start, points, MOST_BORDER // store.dtype.itemsize)
        self.registers[loop.var] = Register(inner, DT_INT64)
        place, _ = self._place(store.index)
        del self.registers[loop.var]
        address, size = b.ptrtoint(self._address(store.buffer, place), INT64), store.dtype.itemsize
        short = b.and_(b.sub(ir.Constant(INT64, 0), address), ir.Constant(INT64, CACHE_LINE - 1))
        ahead = b.udiv(short, ir.Constant(INT64, size))
        is_past = b.icmp_signed("==", self.streaming, ir.Constant(INT64, 0))
        is_long = b.icmp_signed(">=", b.sub(stop, start), ir.Constant(INT64, LEAST_ROW // size))
        is_past = b.and_(is_past, is_long)
        return [b.select(is_past, b.add(inner, ahead), start)]

    def _behind_border(self, start: ir.Value, points: Sequence[ir.Value], most: int) -> ir.Value:
        """The last of the points that lie within ``most`` elements of the start; the start where none does."""
        b, inner = self.builder, start
        limit = b.add(start, ir.Constant(INT64, most))
        for point in points:
            is_border = b.and_(b.icmp_signed("<", inner, point), b.icmp_signed("<=", point, limit))
            inner = b.select(is_border, point, inner)
        return inner

    def _reversed(self, value: ir.Value) -> ir.Value:
        picks = ir.Constant(ir.VectorType(INT32, self.lanes), list(range(self.lanes))[::-1])
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), picks)

    def _all(self) -> ir.Value:
        return ir.Constant(ir.VectorType(BOOL, self.lanes), [1] * self.lanes)

    def _has_room(self, access: Load | Store) -> bool:
        """Whether a whole register is read, or stored, of a row of sums. Its place is the loop's number alone, so that
        the row ends where its memory does, with room behind it. A load that follows a store with a mask waits until
        that is in the cache.
        """
        assert self.vector is not None
        is_row = self.is_whole_row and not access.bounds and access.index == Index((Term(self.vector.var),))
        return is_row and self.buffers[access.buffer][1].role == "scratch"

    def _mask(self, inside: Register | None) -> ir.Value | None:
        """The lanes that may touch memory: those of the loop for which the bounds hold."""
        assert self.vector is not None
        if inside is None:
            return self.vector.mask
        value = inside.value if inside.lanes else self._splat(inside.value, self.lanes)
        return value if self.vector.mask is None else self.builder.and_(value, self.vector.mask)

    def _from_memory(self, raw: ir.Value, dtype: DType, lanes: int) -> ir.Value:
        return cast(self.builder, raw, np.dtype(np.uint8), dtype, lanes) if dtype.kind == "b" else raw

    def _to_memory(self, value: ir.Value, dtype: DType, lanes: int) -> ir.Value:
        return cast(self.builder, value, dtype, np.dtype(np.uint8), lanes) if dtype.kind == "b" else value

    def _check(self, check: Check, inside_only: Callable[[], None] | None = None) -> None:
        """Report what is out of bounds; ``inside_only`` writes what is done where nothing is."""
        b = self.builder
        inside = self._inside(check.bounds)
        assert inside is not None
        if inside_only is not None:
            with b.if_else(inside.value, likely=True) as (then, otherwise):
                with then:
                    inside_only()
                with otherwise:
                    self._report(check)
            return
        outside = b.not_(inside.value)
        if inside.lanes:
            assert self.vector is not None
            if self.vector.mask is not None:
                outside = b.and_(outside, self.vector.mask)
            bits = ir.IntType(self.lanes)
            outside = b.icmp_unsigned("!=", b.bitcast(outside, bits), ir.Constant(bits, 0))
        with b.if_then(outside, likely=False):
            self._report(check)

    def _report(self, check: Check) -> None:
        """The first to report is heard: others may follow from it."""
        b, place = self.builder, self.buffers[check.buffer][0]
        is_first = b.icmp_signed("==", b.load(place, typ=INT64), ir.Constant(INT64, 0))
        b.store(b.select(is_first, self.registers[check.code].value, b.load(place, typ=INT64)), place)

    def _store(self, store: Store) -> None:
        b = self.builder
        place, distance = self._place(store.index)
        align = store.dtype.itemsize
        inside = self._inside(store.bounds)
        if inside is not None and not inside.lanes:
            with b.if_then(inside.value):
                self._store(replace(store, bounds=()))
            return
        if distance == 0:
            register = self._argument(store.value, 0)
            value = cast(b, register.value, register.dtype, store.dtype, 0)
            b.store(self._to_memory(value, store.dtype, 0), self._address(store.buffer, place), align=align)
            return
        assert self.vector is not None
        register = self._argument(store.value, self.lanes)
        value = cast(b, register.value, register.dtype, store.dtype, self.lanes)
        raw = self._to_memory(value, store.dtype, self.lanes)
        if self._is_spread(store):
            self._store_places(store, self._registers_of(store, raw))
            return
        mask = None if self._has_room(store) else self._mask(inside)
        if isinstance(distance, int) and distance not in (1, -1):
            place = b.add(self._splat(place, self.lanes), self._steps(distance))
        if distance == -1:
            place = b.sub(place, ir.Constant(INT64, self.lanes - 1))
            raw, mask = self._reversed(raw), None if mask is None else self._reversed(mask)
        address = self._address(store.buffer, place)
        if isinstance(place.type, ir.VectorType):
            self._masked("scatter", raw.type, [raw, address, _int32(align), mask or self._all()])
        elif mask is None:
            self._store_lanes(raw, address, store)
        elif inside is None and distance == 1 and self._avoids_masks(store):
            assert mask is not None and self.vector.first is not None
            self._store_first(raw, address, store, self.vector.first, mask)
        elif inside is None and distance == 1 and self._may_go_past(store):
            self._store_end_of_row(raw, address, store, mask)
        else:
            self._masked("store", raw.type, [raw, address, _int32(align), mask])

    def _store_places(self, store: Store, registers: Sequence[ir.Value]) -> None:
        """Store registers one behind the other, from the first place of a stride on."""
        if not registers:
            return
        assert self.vector is not None
        b, lanes, align = self.builder, self.register_lanes, store.dtype.itemsize
        group = self.spread[store.buffer, store.index]
        place = self._place(group.first)[0]
        numbers = range(0, len(registers) * lanes, lanes)
        if self.vector.mask is None or self.vector.first is None:
            together = max(1, CACHE_LINE // (lanes * align))
            together = together if len(registers) % together == 0 else 1
            for k in range(0, len(registers), together):
                address = self._address(store.buffer, b.add(place, ir.Constant(INT64, numbers[k])))
                self._store_lanes(joined(b, registers[k : k + together]), address, store)
            return
        end = self._splat(b.mul(self.vector.first, _int32(group.stride)), lanes)
        for first, raw in zip(numbers, registers, strict=True):
            elements = ir.Constant(ir.VectorType(INT32, lanes), list(range(first, first + lanes)))
            address = self._address(store.buffer, b.add(place, ir.Constant(INT64, first)))
            self._masked("store", raw.type, [raw, address, _int32(align), b.icmp_signed("<", elements, end)])

    def _may_go_past(self, store: Store) -> bool:
        """Whether what is left over of a row is stored by good code, and whole registers of it past the caches."""
        if self.row_registers or not self.is_parallel or self.vector is None or self.vector.first is None:
            return False
        return self.buffers[store.buffer][1].role == "out" and not self.builder.module.shared_bytes

    def _store_end_of_row(self, raw: ir.Value, address: ir.Value, store: Store, mask: ir.Value) -> None:
        """Store the first lanes by a mask, but in pieces where stores go past the caches.

        There the line is in none, and a masked store has those behind it wait until memory has given it: Poisson's
        residual of 16384x2048 floats takes 0.89 of the time in pieces. In cache cross-entropy would take 1.02 of it, in
        rows of 1000 (Zen 4, in turns).
        """
        assert self.vector is not None and self.vector.first is not None
        b = self.builder
        with b.if_else(b.icmp_signed("==", self.streaming, ir.Constant(INT64, 0)), likely=False) as (past, through):
            with past:
                self._store_first(raw, address, store, self.vector.first, mask)
            with through:
                self._masked("store", raw.type, [raw, address, _int32(store.dtype.itemsize), mask])

    def _avoids_masks(self, store: Store) -> bool:
        """Whether the first lanes of a register are stored without a mask."""
        vector, is_quick = self.vector, self.builder.module.shared_bytes > 0
        if vector is None or vector.first is None:
            return False
        if self.row_registers:
            return self._is_in_place(store)
        return self._is_reread(store) or (self._masks_are_slow and (vector.may_be_whole or not is_quick))

    @functools.cached_property
    def _masks_are_slow(self) -> bool:
        """Whether registers that may be whole are asked before they are stored: before AVX-512, but not in quick code
        of many stores, where the questions take longer to compile, 20 of them 4 ms.
        """
        module, stores = self.builder.module, sum(isinstance(s, Store) for s in statements(self.kernel.body))
        return not module.has_avx512 and (not module.shared_bytes or stores <= FEW_STORES)

    def _is_reread(self, store: Store) -> bool:
        """Whether a row of several is written that the kernel reads: sums over an outer axis."""
        return len(store.index.terms) > 1 and store.buffer in self._loaded

    def _is_in_place(self, store: Store) -> bool:
        """Whether what is stored may lie where the kernel reads: the next row begins where a masked store ends."""
        loads = [s for s in statements(self.kernel.body) if isinstance(s, Load) and s.index == store.index]
        return any(self.buffers[s.buffer][1].role == "in" for s in loads)

    @functools.cached_property
    def _loaded(self) -> set[str]:
        """The buffers that the kernel reads."""
        return {s.buffer for s in statements(self.kernel.body) if isinstance(s, Load)}

    def _store_first(self, raw: ir.Value, address: ir.Value, store: Store, count: ir.Value, mask: ir.Value) -> None:
        """Store the first ``count`` lanes: all at once, past the caches where the kernel is told to store so, or in
        pieces of half as many lanes each, which go through the caches.

        A load that overlaps with a masked store waits until that is done, also where its lanes are masked, and rows
        that lie one behind the other overlap so: adding rows of ten numbers to such takes 8.4 ns each with masked
        stores, 3 without. Before AVX-512 a masked store takes as long as a dozen others: there only quick code has
        them, where pieces take longer to compile than they save.
        """
        b, align = self.builder, store.dtype.itemsize
        with b.if_else(b.icmp_signed("==", count, _int32(raw.type.count))) as (whole, part):
            with whole:
                self._store_lanes(raw, address, store)
            with part:
                if b.module.shared_bytes and not self._is_reread(store):
                    self._masked("store", raw.type, [raw, address, _int32(align), mask])
                else:
                    self._store_pieces(raw, address, count, align)

    def _store_pieces(self, raw: ir.Value, address: ir.Value, count: ir.Value, align: int) -> None:
        b, size = self.builder, raw.type.count // 2
        while size:
            low, high = (self._some_lanes(raw, first, size) for first in (0, size))
            is_stored = b.icmp_signed("!=", b.and_(count, _int32(size)), _int32(0))
            with b.if_then(is_stored):
                b.store(low, address, align=align)
            raw = b.select(is_stored, high, low)
            behind = b.select(is_stored, ir.Constant(INT64, size), ir.Constant(INT64, 0))
            address = b.gep(address, [behind], source_etype=raw.type.element)
            size //= 2

    def _some_lanes(self, value: ir.Value, first: int, count: int) -> ir.Value:
        picks = ir.Constant(ir.VectorType(INT32, count), list(range(first, first + count)))
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), picks)

    def _store_lanes(self, raw: ir.Value, address: ir.Value, store: Store) -> None:
        """Store contiguous lanes, past the caches where the arrays are larger.

        In nests a row is stored in one go, and would wait for its lines to be read: layer norm of 4096x768 floats takes
        0.8 of the time so. Where loads and stores alternate, see `_ask_for_lines`.
        """
        b, width = self.builder, raw.type.count * store.dtype.itemsize
        may_stream = (self.is_parallel or self.is_elementwise) and not self.row_registers
        if not may_stream or self.buffers[store.buffer][1].role != "out" or width % CACHE_LINE:
            b.store(raw, address, align=store.dtype.itemsize)
            return
        self.may_stream = True
        if self.is_elementwise and not (store.bounds or self.is_repeated) and store.buffer not in self._loaded:
            self.late.append((raw, address, store))
        else:
            self._store_past_or_through([(raw, address, store)])

    def _store_late(self) -> None:
        """Store what an element-wise body made, all at its end, with one question for all arrays where to: a question
        in the middle is a border that no instruction is moved across.
        """
        if self.late:
            self._store_past_or_through(self.late)
            self.late = []

    def _store_past_or_through(self, stores: Sequence[tuple[ir.Value, ir.Value, Store]]) -> None:
        b = self.builder
        places = [b.ptrtoint(address, INT64) for _, address, _ in stores]
        offset = b.and_(functools.reduce(b.or_, places), ir.Constant(INT64, CACHE_LINE - 1))
        with b.if_else(b.icmp_signed("==", offset, self.streaming), likely=False) as (past, through):
            with past:
                for raw, address, _ in stores:
                    b.store(raw, address, align=CACHE_LINE).set_metadata(
                        "nontemporal", b.module.add_metadata([ir.Constant(INT32, 1)])
                    )
            with through:
                for raw, address, store in stores:
                    b.store(raw, address, align=store.dtype.itemsize)

    def _end_streams(self) -> None:
        """Let other threads see what was stored past the caches before they see that this one is done."""
        b = self.builder
        with b.if_then(b.icmp_signed("==", self.streaming, ir.Constant(INT64, 0)), likely=False):
            b.fence("seq_cst")


def _int32(value: int) -> ir.Value:
    return ir.Constant(INT32, value)
