"""Emission: a kernel of the loop IR becomes an LLVM function whose innermost loops work on vectors of lanes.

The function is ``void kernel(ptr table, ptr block, i64 lo, i64 hi, i64 chunk, i64 worker)``: the block holds one slot
number of the table per buffer, then the ints and the constants. Vector loops are emitted on vector types, not left to
LLVM's vectoriser: the order of every sum is fixed here, no flag allows reassociation, and the pass pipeline can be a
short one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from llvmlite import ir

from jitgrad.compiler.loopir import (
    PARALLEL,
    PARALLEL_VECTOR,
    Accumulator,
    Argument,
    Bound,
    Buffer,
    Check,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
    statements,
)  # fmt: skip
from jitgrad.compiler.scalar_emit import cast, constant, element_type, emit_op, memory_type, type_suffix
from jitgrad.compiler.vecmath.lanes import declare
from jitgrad.spec import DType

INT64 = ir.IntType(64)
INT32 = ir.IntType(32)
POINTER = ir.PointerType()
BOOL = ir.IntType(1)
DT_INT64 = np.dtype(np.int64)
KERNEL_TYPE = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, INT64, INT64, INT64, INT64])
CACHE_LINE = 64


@dataclass(frozen=True, slots=True)
class Register:
    """An LLVM value, its dtype and its number of lanes (0: a scalar, the same for all lanes)."""

    value: ir.Value
    dtype: DType
    lanes: int = 0


@dataclass(slots=True)
class _VectorLoop:
    """The vector loop that is being emitted: its variable, the first lane's number, and which lanes are inside."""

    var: str
    lanes: int
    base: ir.Value
    mask: ir.Value | None
    sums: dict[str, ir.Value] = field(default_factory=dict)


def emit_kernel(module: ir.Module, kernel: Kernel, name: str, vector_bytes: int) -> ir.Function:
    """Add the kernel's function to a module; ``vector_bytes`` is the width of the machine's vector registers."""
    function = ir.Function(module, KERNEL_TYPE, name)
    function.attributes.add("nounwind")
    _KernelEmitter(function, kernel, lanes_for(kernel, vector_bytes)).emit()
    return function


def lanes_for(kernel: Kernel, vector_bytes: int) -> int:
    """Lanes of the vector loops: a register of the widest float, two of them when the kernel is small enough for it."""
    widths = [
        s.dtype.itemsize for s in statements(kernel.body) if isinstance(s, Let | Load | Update) and s.dtype.kind == "f"
    ]
    lanes = vector_bytes // max(widths, default=8)
    return 2 * lanes if kernel.size <= 40 else lanes


class _KernelEmitter:
    def __init__(self, function: ir.Function, kernel: Kernel, lanes: int) -> None:
        self.kernel = kernel
        self.function = function
        self.lanes = lanes
        self.entry = ir.IRBuilder(function.append_basic_block("entry"))
        self.builder = ir.IRBuilder(function.append_basic_block("start"))
        self.registers: dict[str, Register] = {}
        self.buffers: dict[str, tuple[ir.Value, Buffer]] = {}
        self.accumulators: dict[str, ir.Value] = {}
        self.inits: dict[str, Accumulator] = {}
        self.vector: _VectorLoop | None = None
        self.is_parallel = False  # inside a parallel loop, where most of the work is

    def emit(self) -> None:
        self._prologue()
        self._body(self.kernel.body)
        self.builder.ret_void()
        self.entry.branch(self.function.blocks[1])

    # -- arguments -------------------------------------------------------------------------------------------------

    def _prologue(self) -> None:
        table, block, _, _, chunk, worker = self.function.args
        words = itertools.count()
        slots = [self._word(block, next(words)) for _ in self.kernel.buffers]
        for name in self.kernel.ints:
            self.registers[name] = Register(self._word(block, next(words)), DT_INT64)
        for number in self.kernel.constants:
            value = self._word(block, next(words), element_type(number.dtype))
            self.registers[number.name] = Register(value, number.dtype)
        for buffer, slot in zip(self.kernel.buffers, slots, strict=True):
            address = self.builder.load(self.builder.gep(table, [slot], source_etype=INT64), typ=POINTER)
            if buffer.role in ("scratch", "partial"):
                number = worker if buffer.role == "scratch" else chunk
                part = self._part_bytes(buffer)
                address = self.builder.gep(address, [self.builder.mul(number, part)], source_etype=ir.IntType(8))
            self.buffers[buffer.name] = (address, buffer)

    def _word(self, block: ir.Value, number: int, type_: ir.Type = INT64) -> ir.Value:
        place = self.builder.gep(block, [ir.Constant(INT64, number)], source_etype=INT64)
        return self.builder.load(place, typ=type_)

    def _part_bytes(self, buffer: Buffer) -> ir.Value:
        """Bytes of one worker's or chunk's part; workers' parts are whole cache lines."""
        assert buffer.extent is not None
        size = self.builder.mul(self.registers[buffer.extent].value, ir.Constant(INT64, buffer.dtype.itemsize))
        if buffer.role == "partial":
            return size
        padded = self.builder.add(size, ir.Constant(INT64, CACHE_LINE - 1))
        return self.builder.and_(padded, ir.Constant(INT64, -CACHE_LINE))

    # -- statements ------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[Statement]) -> None:
        for statement in body:
            match statement:
                case Loop(kind="vector" | "parallel_vector"):
                    self._vector_loop(statement)
                case Loop():
                    self._loop(statement)
                case Load():
                    self.registers[statement.name] = self._load(statement)
                case Let(name, dtype, op, args):
                    self.registers[name] = self._let(dtype, op, args)
                case Accumulator():
                    self._accumulator(statement)
                case Update():
                    self._update(statement)
                case Store():
                    self._store(statement)
                case Check():
                    self._check(statement)

    def _range(self, loop: Loop) -> tuple[ir.Value, ir.Value]:
        if loop.kind in (PARALLEL, PARALLEL_VECTOR):
            return self.function.args[2], self.function.args[3]
        return ir.Constant(INT64, 0), self.registers[loop.extent].value

    def _counted(self, start: ir.Value, stop: ir.Value, step: int, body: Callable[[ir.Value], None]) -> None:
        """``for i in range(start, stop, step): body(i)``, the builder left behind the loop."""
        b = self.builder
        before = b.block
        head, exit_ = (self.function.append_basic_block(n) for n in ("loop", "done"))
        b.cbranch(b.icmp_signed("<", start, stop), head, exit_)
        b.position_at_end(head)
        i = b.phi(INT64)
        i.add_incoming(start, before)
        body(i)
        following = b.add(i, ir.Constant(INT64, step), flags=["nsw"])
        i.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, stop), head, exit_)
        b.position_at_end(exit_)

    def _loop(self, loop: Loop) -> None:
        start, stop = self._range(loop)

        def body(i: ir.Value) -> None:
            self.registers[loop.var] = Register(i, DT_INT64)
            self._body(loop.body)

        outside = self.is_parallel
        self.is_parallel |= loop.kind == PARALLEL
        self._counted(start, stop, 1, body)
        self.is_parallel = outside

    def _vector_loop(self, loop: Loop) -> None:
        """Whole vectors first, then one masked vector for what is left; every vector masked where little work is done.

        The body of a loop written once instead of twice compiles in two thirds of the time.
        """
        b = self.builder
        start, stop = self._range(loop)
        sums = self._open_sums(loop)
        lanes = ir.Constant(INT64, self.lanes)

        def full(i: ir.Value) -> None:
            self._vector_body(loop, i, None, sums)

        def masked(i: ir.Value) -> None:
            left = b.sub(stop, i)
            inside = b.trunc(b.select(b.icmp_signed("<", left, lanes), left, lanes), INT32)
            mask = b.icmp_unsigned("<", self._lane_numbers(INT32), self._splat(inside, self.lanes))
            self._vector_body(loop, i, mask, sums)

        split = start
        if self.is_parallel or loop.kind == PARALLEL_VECTOR:
            split = b.sub(stop, b.srem(b.sub(stop, start), lanes))
            self._counted(start, split, self.lanes, full)
        self._counted(split, stop, self.lanes, masked)
        self._close_sums(loop, sums)

    def _vector_body(self, loop: Loop, i: ir.Value, mask: ir.Value | None, sums: dict[str, ir.Value]) -> None:
        outside = dict(self.registers)
        self.vector = _VectorLoop(loop.var, self.lanes, i, mask, sums)
        self.registers.pop(loop.var, None)
        self._body(loop.body)
        self.vector = None
        self.registers = outside

    def _lane_numbers(self, type_: ir.Type = INT64) -> ir.Value:
        return ir.Constant(ir.VectorType(type_, self.lanes), list(range(self.lanes)))

    def _splat(self, value: ir.Value, lanes: int) -> ir.Value:
        type_ = ir.VectorType(value.type, lanes)
        if isinstance(value, ir.Constant):
            splat = ir.values.FormattedConstant(value.type, f"splat ({value.type} {value.get_reference()})")
            splat.type = type_
            return splat
        single = self.builder.insert_element(ir.Constant(type_, ir.Undefined), value, ir.Constant(INT32, 0))
        zeros = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
        return self.builder.shuffle_vector(single, ir.Constant(type_, ir.Undefined), zeros)

    # -- scalar ops ------------------------------------------------------------------------------------------------

    def _argument(self, argument: Argument, lanes: int) -> Register:
        if isinstance(argument, Literal):
            return Register(constant(argument.value, argument.dtype, lanes), argument.dtype, lanes)
        register = self._register(argument)
        if lanes and not register.lanes:
            return Register(self._splat(register.value, lanes), register.dtype, lanes)
        return register

    def _register(self, name: str) -> Register:
        """What a name stands for; an accumulator is read at each use, a vector of loop numbers made at the
        first one.
        """
        if self.vector is not None and name == self.vector.var and name not in self.registers:
            numbers = self.builder.add(self._splat(self.vector.base, self.lanes), self._lane_numbers())
            self.registers[name] = Register(numbers, DT_INT64, self.lanes)
        cell = self.accumulators.get(name)
        if cell is None:
            return self.registers[name]
        dtype = DT_INT64 if name.endswith("_at") else self.inits[name].dtype
        return Register(self.builder.load(cell, typ=element_type(dtype)), dtype)

    def _lanes_of(self, arguments: Sequence[Argument]) -> int:
        return max((self._register(a).lanes for a in arguments if isinstance(a, str)), default=0)

    def _let(self, dtype: DType, op: str, args: tuple[Argument, ...]) -> Register:
        lanes = self._lanes_of(args)
        registers = [self._argument(a, lanes) for a in args]
        value = emit_op(self.builder, op, [r.value for r in registers], [r.dtype for r in registers], dtype, lanes)
        return Register(value, dtype, lanes)

    # -- accumulators ----------------------------------------------------------------------------------------------

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

    # -- memory ----------------------------------------------------------------------------------------------------

    def _place(self, index: Index) -> tuple[ir.Value, int | None]:
        """The place of lane 0 (or a vector of places) and the distance of lanes: 0 uniform, 1 or -1, None for any."""
        b = self.builder
        scalar = self.registers[index.offset].value if index.offset else None
        vector: ir.Value | None = None
        distance: int | None = 0
        for term in index.terms:
            if self.vector is not None and term.var == self.vector.var and isinstance(term.stride, int):
                distance = term.stride
                base = self.vector.base if term.stride == 1 else b.neg(self.vector.base)
                scalar = base if scalar is None else b.add(scalar, base)
                continue
            register = self._register(term.var)
            place = self._scaled(register, term)
            if register.lanes:
                vector = place if vector is None else b.add(vector, place)
            else:
                scalar = place if scalar is None else b.add(scalar, place)
        scalar = ir.Constant(INT64, 0) if scalar is None else scalar
        if vector is None:
            return scalar, distance
        if distance:
            steps = ir.Constant(ir.VectorType(INT64, self.lanes), [distance * k for k in range(self.lanes)])
            vector = b.add(vector, steps)
        return b.add(vector, self._splat(scalar, self.lanes)), None

    def _scaled(self, register: Register, term: Term) -> ir.Value:
        if term.stride == 1:
            return register.value
        if isinstance(term.stride, int):
            return self.builder.neg(register.value)
        stride = self.registers[term.stride].value
        if register.lanes:
            stride = self._splat(stride, register.lanes)
        return self.builder.mul(register.value, stride)

    def _address(self, buffer: str, place: ir.Value) -> ir.Value:
        base, description = self.buffers[buffer]
        type_ = memory_type(description.dtype)
        if isinstance(place.type, ir.VectorType):
            gep = self.builder.gep(base, [place], source_etype=type_)
            gep.type = ir.VectorType(POINTER, self.lanes)
            return gep
        return self.builder.gep(base, [place], source_etype=type_)

    def _load(self, load: Load) -> Register:
        place, distance = self._place(load.index)
        inside = self._inside(load.bounds)
        is_vector = distance != 0 or (inside is not None and inside.lanes)
        if not is_vector:
            return self._load_scalar(load, place, inside)
        assert self.vector is not None
        mask = self._mask(inside)
        fill = constant(load.fill.value if load.fill else 0, load.dtype, self.lanes)
        if distance == 0 and not isinstance(place.type, ir.VectorType):
            place = self._splat(place, self.lanes)
        raw = self._load_lanes(load, place, distance, mask, fill)
        return Register(self._from_memory(raw, load.dtype, self.lanes), load.dtype, self.lanes)

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
        self, load: Load, place: ir.Value, distance: int | None, mask: ir.Value | None, fill: ir.Value
    ) -> ir.Value:
        b, lanes = self.builder, self.lanes
        vector = ir.VectorType(memory_type(load.dtype), lanes)
        align = load.dtype.itemsize
        raw_fill = self._to_memory(fill, load.dtype, lanes)
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

    def _masked(self, name: str, vector: ir.Type, args: list[ir.Value]) -> ir.Value:
        pointers = "p0" if name in ("load", "store") else f"v{self.lanes}p0"
        full = f"llvm.masked.{name}.{type_suffix(vector)}.{pointers}"
        is_store = name in ("store", "scatter")
        result = ir.VoidType() if is_store else vector
        return self.builder.call(
            declare(self.builder.module, full, ir.FunctionType(result, [a.type for a in args])), args
        )

    def _reversed(self, value: ir.Value) -> ir.Value:
        picks = ir.Constant(ir.VectorType(INT32, self.lanes), list(range(self.lanes))[::-1])
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), picks)

    def _all(self) -> ir.Value:
        return ir.Constant(ir.VectorType(BOOL, self.lanes), [1] * self.lanes)

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

    def _check(self, check: Check) -> None:
        b = self.builder
        inside = self._inside(check.bounds)
        assert inside is not None
        outside = b.not_(inside.value)
        if inside.lanes:
            assert self.vector is not None
            if self.vector.mask is not None:
                outside = b.and_(outside, self.vector.mask)
            bits = ir.IntType(self.lanes)
            outside = b.icmp_unsigned("!=", b.bitcast(outside, bits), ir.Constant(bits, 0))
        with b.if_then(outside, likely=False):
            b.store(self.registers[check.code].value, self.buffers[check.buffer][0])

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
        mask = self._mask(inside)
        if distance == -1:
            place = b.sub(place, ir.Constant(INT64, self.lanes - 1))
            raw, mask = self._reversed(raw), None if mask is None else self._reversed(mask)
        address = self._address(store.buffer, place)
        if isinstance(place.type, ir.VectorType):
            self._masked("scatter", raw.type, [raw, address, _int32(align), mask or self._all()])
        elif mask is None:
            b.store(raw, address, align=align)
        else:
            self._masked("store", raw.type, [raw, address, _int32(align), mask])


def _int32(value: int) -> ir.Value:
    return ir.Constant(INT32, value)


def _updates(loop: Loop) -> Iterator[Update]:
    return (s for s in loop.body if isinstance(s, Update))
