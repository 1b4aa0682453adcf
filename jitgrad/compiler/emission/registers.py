"""Emission of values: registers behind names, vectors of lanes, scalar ops; memory and loops are not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.ahead import Asking, Request, Stream
from jitgrad.compiler.emission.scalar_emit import emit_op
from jitgrad.compiler.emission.scalar_values import constant, element_type
from jitgrad.compiler.emission.strides import Places
from jitgrad.compiler.loopir.nests import Accumulator, Argument, Buffer, Index, Kernel, Let, Literal, Loop, Store
from jitgrad.records import NamedTuple, dataclass
from jitgrad.spec import DType

INT64 = ir.IntType(64)
INT32 = ir.IntType(32)
POINTER = ir.PointerType()
BOOL = ir.IntType(1)
DT_INT64 = np.dtype(np.int64)
COMPARISONS = ("equal", "less", "greater_equal")


@dataclass(frozen=True, slots=True)
class Register:
    """An LLVM value, its dtype and its number of lanes (0: a scalar, the same for all lanes)."""

    value: ir.Value
    dtype: DType
    lanes: int = 0


def count_through(
    b: ir.IRBuilder, function: ir.Function, start: ir.Value, stop: ir.Value, step: int,
    body: Callable[[ir.Value], None],
) -> None:  # fmt: skip
    """``for i in range(start, stop, step): body(i)``, the builder left behind the loop."""
    before = b.block
    head, exit_ = (function.append_basic_block(n) for n in ("loop", "done"))
    b.cbranch(b.icmp_signed("<", start, stop), head, exit_)
    b.position_at_end(head)
    i = b.phi(INT64)
    i.add_incoming(start, before)
    body(i)
    following = b.add(i, ir.Constant(INT64, step), flags=["nsw"])
    i.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, stop), head, exit_)
    b.position_at_end(exit_)


@dataclass(slots=True)
class VectorLoop:
    """The vector loop that is being emitted: its variable, the first lane's number, and which lanes are inside.

    ``segment`` is where the part of the loop begins in which comparisons of its variable have one answer; None where
    the lanes are compared. ``lane_sums`` are the accumulators of a loop of lanes, ``valid`` is how many lanes of it
    are inside; ``first`` is how many lanes the mask of another loop has, which are the first ones, and
    ``may_be_whole`` says that these may be all. ``known`` is the first lane's number, where that stands in the code.
    """

    var: str
    lanes: int
    base: ir.Value
    mask: ir.Value | None
    sums: dict[str, ir.Value] = field(default_factory=dict)
    segment: ir.Value | None = None
    lane_sums: dict[str, ir.Value] | None = None
    valid: ir.Value | None = None
    first: ir.Value | None = None
    may_be_whole: bool = False
    known: int | None = None


class RowsToCome(NamedTuple):
    """Which loops ask for rows to come of the loop around them, and which where stores go past the caches; how far
    ahead each stream is asked for, and into which cache.
    """

    asking: Asking
    past: Asking
    ahead: Mapping[Stream, ir.Value]
    cache: int


class RegisterEmitter:
    """What a kernel's function is made of: its builders, the values behind names, vectors of lanes, scalar ops."""

    def __init__(self, function: ir.Function, kernel: Kernel, lanes: int) -> None:
        self.kernel = kernel
        self.function = function
        self.lanes = self.register_lanes = lanes
        self.entry = ir.IRBuilder(function.append_basic_block("entry"))
        self.builder = ir.IRBuilder(function.append_basic_block("start"))
        self.registers: dict[str, Register] = {}
        self.buffers: dict[str, tuple[ir.Value, Buffer]] = {}
        self.accumulators: dict[str, ir.Value] = {}
        self.inits: dict[str, Accumulator] = {}
        self.vector: VectorLoop | None = None
        self.streaming: ir.Value = ir.Constant(INT64, -1)  # 0 where stores go past the caches
        self.may_stream = False
        self.late: list[tuple[ir.Value, ir.Value, Store]] = []  # values and addresses that a body stores at its end
        self.apart: dict[str, Places] = {}  # loads of a body of lanes at places of strides, by their names
        self.spread: dict[tuple[str, Index], Places] = {}  # stores in all places of strides
        self.loaded_apart: dict[Places, dict[int, ir.Value]] = {}
        self.stored_apart: dict[Places, dict[int, ir.Value]] = {}
        self.divisors: frozenset[Argument] = frozenset()  # by which a body of lanes divides more than once
        self.is_elementwise = False  # inside whole vectors of a parallel loop of vectors
        self.inputs = frozenset(b.name for b in kernel.buffers if b.role == "in")
        self.to_come = RowsToCome({}, {}, {}, 0)  # of the loop around
        self.asked: Sequence[Request] = ()  # those of the loop being emitted
        self.asked_past: Sequence[Request] = ()
        self.outputs = frozenset(b.name for b in kernel.buffers if b.role == "out")
        self.written: dict[Loop, tuple[Store, ...]] = {}  # what the loop over a row behind one stores
        self.at_once: dict[Loop, int] = {}  # on how many registers loops over two rows work
        self.made: dict[str, Let] = {}  # the ops behind values of the loop being emitted
        self.scales: set[str] = set()  # the names of what divisors are multiplied by before their reciprocal
        self.row_registers = 0  # how many each row of the loop being emitted has; 0: any number
        self.kept: dict[str, tuple[ir.Value, DType]] = {}  # by repeats of a body, with the place on the stack of each
        self.is_repeated = False  # inside a repeat
        self.is_parallel = False  # inside a parallel loop, where most of the work is
        self.is_nested = False  # inside any loop
        self.is_whole_row = False  # inside a loop of vectors without parts: its last mask ends where its row does

    def _lane_numbers(self, type_: ir.Type = INT64) -> ir.Value:
        return ir.Constant(ir.VectorType(type_, self.lanes), list(range(self.lanes)))

    def _splat(self, value: ir.Value, lanes: int) -> ir.Value:
        if isinstance(value, ir.Constant):
            return ir.splat(value.type, value.text, lanes)
        if lanes > self.register_lanes:
            narrow = self._splat(value, self.register_lanes)
            picks = [k % self.register_lanes for k in range(lanes)]
            wide = self.builder.shuffle_vector(narrow, narrow, ir.Constant(ir.VectorType(INT32, lanes), picks))
            return ir.Joined(wide, (narrow,) * (lanes // self.register_lanes))
        return self.builder.spread(value, lanes)

    def _part(self, value: ir.Value, first: int, count: int) -> ir.Value:
        """Some neighbouring lanes."""
        picks = ir.Constant(ir.VectorType(INT32, count), list(range(first, first + count)))
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), picks)

    def _counted(self, start: ir.Value, stop: ir.Value, step: int, body: Callable[[ir.Value], None]) -> None:
        """``for i in range(start, stop, step): body(i)``, the builder left behind the loop."""
        count_through(self.builder, self.function, start, stop, step, body)

    # -- scalar ops ------------------------------------------------------------------------------------------------

    def _argument(self, argument: Argument, lanes: int) -> Register:
        return self._in_lanes(argument if isinstance(argument, Literal) else self._register(argument), lanes)

    def _arguments(self, arguments: Sequence[Argument]) -> tuple[list[Register], int]:
        """Those of an op, all in as many lanes as one of them has; and how many these are."""
        found: list[Register | Literal] = []
        lanes = 0
        for argument in arguments:
            if isinstance(argument, Literal):
                found.append(argument)
            else:
                register = self._register(argument)
                found.append(register)
                lanes = max(lanes, register.lanes)
        return [a if type(a) is Register and a.lanes == lanes else self._in_lanes(a, lanes) for a in found], lanes

    def _in_lanes(self, argument: Register | Literal, lanes: int) -> Register:
        if isinstance(argument, Literal):
            return Register(constant(argument.value, argument.dtype, lanes), argument.dtype, lanes)
        if lanes and not argument.lanes:
            return Register(self._splat(argument.value, lanes), argument.dtype, lanes)
        return argument

    def _register(self, name: str) -> Register:
        """What a name stands for; an accumulator is read at each use, a vector of loop numbers made at the
        first one.
        """
        known = self.registers.get(name)
        if known is not None:
            return known
        if self.vector is not None and name == self.vector.var:
            numbers = self.builder.add(self._splat(self.vector.base, self.lanes), self._lane_numbers())
            made = self.registers[name] = Register(numbers, DT_INT64, self.lanes)
            return made
        cell = self.accumulators[name]
        dtype = DT_INT64 if name.endswith("_at") else self.inits[name].dtype
        return Register(self.builder.load(cell, typ=element_type(dtype)), dtype)

    def _let(self, dtype: DType, op: str, args: tuple[Argument, ...]) -> Register:
        if op in COMPARISONS and self.vector is not None and args[0] == self.vector.var:
            limit = self._argument(args[1], 0)
            if not limit.lanes and self.vector.segment is not None:
                return Register(emit_op(self.builder, op, [self.vector.segment, limit.value], [DT_INT64] * 2, dtype, 0),
                                dtype)  # fmt: skip
            if not limit.lanes:
                return self._lanes_where(op, self.vector, limit.value)
        if op == "divide" and args[1] in self.divisors:
            op = "divide_by_shared"
        registers, lanes = self._arguments(args)
        value = emit_op(self.builder, op, [r.value for r in registers], [r.dtype for r in registers], dtype, lanes)
        return Register(value, dtype, lanes)

    def _lanes_where(self, op: str, vector: VectorLoop, limit: ir.Value) -> Register:
        """Where the loop's number is ``limit``, below it, or not: by bits shifted in one register.

        Comparing lanes of 64 bits takes two instructions for each eight.
        """
        b, zero, one = self.builder, ir.Constant(INT64, 0), ir.Constant(INT64, 1)
        count = ir.Constant(INT64, vector.lanes)
        lane = b.sub(limit, vector.base)
        if op == "equal":
            bits = b.select(b.icmp_unsigned("<", lane, count), b.shl(one, lane), zero)
        else:
            lane = b.select(b.icmp_signed("<", lane, zero), zero, lane)
            below = b.select(b.icmp_signed("<", lane, count), b.sub(b.shl(one, lane), one), ir.Constant(INT64, -1))
            bits = below if op == "less" else b.not_(below)
        if vector.lanes < INT64.width:
            bits = b.trunc(bits, ir.IntType(vector.lanes))
        return Register(b.bitcast(bits, ir.VectorType(BOOL, vector.lanes)), np.dtype(bool), vector.lanes)
