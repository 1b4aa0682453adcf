"""Values in LLVM IR by dtype: their types, constants, comparisons and conversions, for scalars and vectors alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.vecmath.lanes import declare
from jitgrad.records import dataclass
from jitgrad.spec import DType

Value: TypeAlias = Any  # an ir.Value; llvmlite is not typed

_FLOATS = {"f": ir.FloatType(), "d": ir.DoubleType()}
_BOOL, _INTS = ir.IntType(1), {size: ir.IntType(8 * size) for size in (1, 2, 4, 8)}


def element_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element in a register; bool is i1."""
    if dtype.kind == "b":
        return _BOOL
    if dtype.kind == "f":
        return _FLOATS[dtype.char]
    return _INTS[dtype.itemsize]


def memory_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element in memory; bool is i8."""
    return _INTS[1] if dtype.kind == "b" else element_type(dtype)


def constant_text(value: object, dtype: DType) -> str:
    """A scalar constant as LLVM writes it: floats by their bits, so that every one is exact."""
    if dtype.kind == "f":
        return f"0x{int(np.float64(value).view(np.uint64)):016x}"  # type: ignore[arg-type]
    if dtype.kind == "b":
        return "true" if value else "false"
    return str(int(value))  # type: ignore[call-overload]


def constant(value: object, dtype: DType, lanes: int) -> Value:
    """A constant of a dtype, in all lanes when there are any (0: a scalar)."""
    element = element_type(dtype)
    text = constant_text(value, dtype)
    return ir.splat(element, text, lanes) if lanes else ir.Literal(element, text)


@dataclass(frozen=True, slots=True)
class Ops:
    """Emits one op: the builder, the dtype of the arguments, and the number of lanes (0 for scalars)."""

    builder: ir.IRBuilder
    dtype: DType
    lanes: int

    def const(self, value: object, dtype: DType | None = None) -> Value:
        """A constant of the arguments' dtype, or of another."""
        return constant(value, dtype or self.dtype, self.lanes)

    def shaped(self, dtype: DType) -> ir.Type:
        """The register type of a dtype in as many lanes."""
        element = element_type(dtype)
        return ir.vector_of(element, self.lanes) if self.lanes else element

    def intrinsic(self, name: str, *args: Value) -> Value:
        """Call ``llvm.name`` overloaded on the type of the first argument."""
        return call_intrinsic(self.builder, name, args)

    @property
    def is_float(self) -> bool:
        """Whether the arguments are floats."""
        return self.dtype.kind == "f"

    @property
    def is_signed(self) -> bool:
        """Whether integer arguments are signed."""
        return self.dtype.kind == "i"

    def compare(self, op: str, x: Value, y: Value) -> Value:
        """Ordered comparison (``!=`` unordered), by the arguments' dtype."""
        if self.is_float:
            return (self.builder.fcmp_unordered if op == "!=" else self.builder.fcmp_ordered)(op, x, y)
        return (self.builder.icmp_signed if self.is_signed else self.builder.icmp_unsigned)(op, x, y)

    def is_nan(self, x: Value) -> Value:
        """Whether x is NaN."""
        return self.builder.fcmp_unordered("uno", x, x)

    def truth(self, x: Value) -> Value:
        """``x != 0``."""
        return x if self.dtype.kind == "b" else self.compare("!=", x, self.const(0))


def call_intrinsic(builder: ir.IRBuilder, name: str, args: Sequence[Value]) -> Value:
    """Call ``llvm.name`` overloaded on the type of the first argument, which is also the result's."""
    type_ = args[0].type
    full = f"llvm.{name}.{type_.suffix}"
    function = declare(builder.module, full, ir.FunctionType(type_, [a.type for a in args]))
    return builder.call(function, args)


def cast(builder: ir.IRBuilder, x: Value, source: DType, target: DType, lanes: int) -> Value:
    """Convert between dtypes as NumPy's astype does."""
    ops = Ops(builder, source, lanes)
    type_ = ops.shaped(target)
    a, b = source.kind, target.kind
    if source == target:
        return x
    if b == "b":
        return ops.truth(x)
    if a == "f" and b == "f":
        return (builder.fpext if target.itemsize > source.itemsize else builder.fptrunc)(x, type_)
    if a == "f":
        return _float_to_integer(ops, x, target)
    if a == "b" and b == "f":
        return builder.select(x, ops.const(1, target), ops.const(0, target))
    if b == "f":
        return (builder.sitofp if a == "i" else builder.uitofp)(x, type_)
    if a != "b" and target.itemsize == source.itemsize:
        return x
    if a != "b" and target.itemsize < source.itemsize:
        return builder.trunc(x, type_)
    return (builder.sext if a == "i" else builder.zext)(x, type_)


def _float_to_integer(o: Ops, x: Value, target: DType) -> Value:
    """Truncation as NumPy's on x86: through int32 for narrow types, int64 for uint32; else the least number."""
    if target.char in "LQ" and target.itemsize == 8:
        return _float_to_uint64(o, x, target)
    through: DType = np.dtype(np.int32 if target.itemsize <= 2 or target == np.int32 else np.int64)
    limit = 2.0 ** (8 * through.itemsize - 1)
    fits = o.builder.and_(o.compare(">=", x, o.const(-limit)), o.compare("<", x, o.const(limit)))
    whole = o.builder.fptosi(o.builder.select(fits, x, o.const(0)), o.shaped(through))
    whole = o.builder.select(fits, whole, o.const(-int(limit), through))
    return o.builder.trunc(whole, o.shaped(target)) if target.itemsize < through.itemsize else whole


def _float_to_uint64(o: Ops, x: Value, target: DType) -> Value:
    """The upper half of the range is reached through int64 by subtracting 2**63."""
    int64, half = np.dtype(np.int64), o.const(2.0**63)
    is_upper = o.compare(">=", x, half)
    low = _float_to_integer(o, o.builder.select(is_upper, o.builder.fsub(x, half), x), int64)
    flipped = o.builder.xor(low, o.const(np.iinfo(int64).min, int64))
    return o.builder.select(is_upper, flipped, low)
