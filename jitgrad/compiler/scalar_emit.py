"""Scalar ops as LLVM instructions, for scalars and vectors of lanes alike; analysis is in vecmath, loops are in
emit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir

from jitgrad.compiler import vecmath
from jitgrad.spec import DType

Value: TypeAlias = Any  # an ir.Value; llvmlite is not typed

_FLOATS = {"f": ir.FloatType(), "d": ir.DoubleType()}


def element_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element in a register; bool is i1."""
    if dtype.kind == "b":
        return ir.IntType(1)
    if dtype.kind == "f":
        return _FLOATS[dtype.char]
    return ir.IntType(8 * dtype.itemsize)


def memory_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element in memory; bool is i8."""
    return ir.IntType(8) if dtype.kind == "b" else element_type(dtype)


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
    if not lanes:
        return ir.values.FormattedConstant(element, text)
    splat = ir.values.FormattedConstant(element, f"splat ({element} {text})")
    splat.type = ir.VectorType(element, lanes)
    return splat


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
        return ir.VectorType(element, self.lanes) if self.lanes else element

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
    full = f"llvm.{name}.{type_suffix(type_)}"
    function = vecmath.lanes.declare(builder.module, full, ir.FunctionType(type_, [a.type for a in args]))
    return builder.call(function, args)


def type_suffix(type_: ir.Type) -> str:
    """The overload suffix of a type: ``f32``, ``v16f64``."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{type_suffix(type_.element)}"
    if isinstance(type_, ir.FloatType):
        return "f32"
    if isinstance(type_, ir.DoubleType):
        return "f64"
    return f"i{type_.width}"


Emitter = Callable[..., Value]
_emitters: dict[str, Emitter] = {}


def _op(*names: str) -> Callable[[Emitter], Emitter]:
    def enter(fn: Emitter) -> Emitter:
        for name in names:
            _emitters[name] = fn
        return fn

    return enter


def refusal(name: str, dtypes: Sequence[DType]) -> str | None:
    """Why a scalar op has no machine code for arguments of these dtypes; None when it has."""
    for dtype in dtypes:
        if dtype.kind not in "fiub" or dtype.char in "eg":
            return f"no kernels for {dtype.name}"
    if name.startswith("iota") or name == "cast":
        return None
    if name in vecmath.NAMES:
        return None if dtypes[0].kind == "f" else f"{name} of {dtypes[0].name} has no kernel"
    if name not in _emitters:
        return f"{name} has no kernel"
    if name in _SAME_DTYPES and len({*dtypes}) > 1:
        return f"{name} of {' and '.join(d.name for d in dtypes)} has no kernel"
    if name in _FLOAT_ONLY and dtypes[0].kind != "f":
        return f"{name} of {dtypes[0].name} has no kernel"
    return None


def emit_op(
    builder: ir.IRBuilder, name: str, args: Sequence[Value], dtypes: Sequence[DType], out: DType, lanes: int
) -> Value:
    """Emit a scalar op; all arguments have ``lanes`` lanes (0: scalars) and the given dtypes."""
    if name == "cast":
        return cast(builder, args[0], dtypes[0], out, lanes)
    if name in vecmath.NAMES:
        return vecmath.emit(builder, name, args)
    result = _emitters[name](Ops(builder, dtypes[-1] if name == "where" else dtypes[0], lanes), *args)
    natural = np.dtype(bool) if name in _PREDICATES else (dtypes[-1] if name == "where" else dtypes[0])
    return result if natural == out else cast(builder, result, natural, out, lanes)


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


# -- arithmetic --------------------------------------------------------------------------------------------------------


@_op("identity", "positive")
def _identity(o: Ops, x: Value) -> Value:
    return x


@_op("add")
def _add(o: Ops, x: Value, y: Value) -> Value:
    if o.dtype.kind == "b":
        return o.builder.or_(x, y)
    return o.builder.fadd(x, y) if o.is_float else o.builder.add(x, y)


@_op("add_n")
def _add_n(o: Ops, *xs: Value) -> Value:
    total = xs[0]
    for x in xs[1:]:
        total = _add(o, total, x)
    return total


@_op("subtract")
def _subtract(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.fsub(x, y) if o.is_float else o.builder.sub(x, y)


@_op("multiply")
def _multiply(o: Ops, x: Value, y: Value) -> Value:
    if o.dtype.kind == "b":
        return o.builder.and_(x, y)
    return o.builder.fmul(x, y) if o.is_float else o.builder.mul(x, y)


@_op("divide")
def _divide(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.fdiv(x, y)


@_op("negative")
def _negative(o: Ops, x: Value) -> Value:
    return o.builder.fneg(x) if o.is_float else o.builder.sub(o.const(0), x)


@_op("square")
def _square(o: Ops, x: Value) -> Value:
    return _multiply(o, x, x)


@_op("reciprocal")
def _reciprocal(o: Ops, x: Value) -> Value:
    return o.builder.fdiv(o.const(1), x)


@_op("sqrt")
def _sqrt(o: Ops, x: Value) -> Value:
    return o.intrinsic("sqrt", x)


@_op("absolute", "fabs")
def _absolute(o: Ops, x: Value) -> Value:
    if o.is_float:
        return o.intrinsic("fabs", x)
    if not o.is_signed:
        return x
    return o.builder.select(o.compare("<", x, o.const(0)), o.builder.sub(o.const(0), x), x)


@_op("sign")
def _sign(o: Ops, x: Value) -> Value:
    zero, one = o.const(0), o.const(1)
    positive = o.builder.select(o.compare(">", x, zero), one, zero if not o.is_float else _zero_or_nan(o, x))
    if o.dtype.kind == "u":
        return positive
    return o.builder.select(o.compare("<", x, zero), o.const(-1), positive)


def _zero_or_nan(o: Ops, x: Value) -> Value:
    return o.builder.select(o.is_nan(x), x, o.const(0))


@_op("maximum")
def _maximum(o: Ops, x: Value, y: Value) -> Value:
    if o.dtype.kind == "b":
        return o.builder.or_(x, y)
    keeps = o.compare(">=", x, y)
    return o.builder.select(o.builder.or_(keeps, o.is_nan(x)) if o.is_float else keeps, x, y)


@_op("minimum")
def _minimum(o: Ops, x: Value, y: Value) -> Value:
    if o.dtype.kind == "b":
        return o.builder.and_(x, y)
    keeps = o.compare("<=", x, y)
    return o.builder.select(o.builder.or_(keeps, o.is_nan(x)) if o.is_float else keeps, x, y)


@_op("fmax")
def _fmax(o: Ops, x: Value, y: Value) -> Value:
    keeps = o.compare(">=", x, y)
    return o.builder.select(o.builder.or_(keeps, o.is_nan(y)) if o.is_float else keeps, x, y)


@_op("fmin")
def _fmin(o: Ops, x: Value, y: Value) -> Value:
    keeps = o.compare("<=", x, y)
    return o.builder.select(o.builder.or_(keeps, o.is_nan(y)) if o.is_float else keeps, x, y)


@_op("clip")
def _clip(o: Ops, x: Value, lo: Value, hi: Value) -> Value:
    return _minimum(o, _maximum(o, x, lo), hi)


@_op("relu")
def _relu(o: Ops, x: Value) -> Value:
    return _maximum(o, x, o.const(0))


@_op("where")
def _where(o: Ops, condition: Value, x: Value, y: Value) -> Value:
    return o.builder.select(condition, x, y)


@_op("heaviside")
def _heaviside(o: Ops, x: Value, at_zero: Value) -> Value:
    step = o.builder.select(o.compare(">", x, o.const(0)), o.const(1), o.const(0))
    step = o.builder.select(o.compare("==", x, o.const(0)), at_zero, step)
    return o.builder.select(o.is_nan(x), x, step)


@_op("deg2rad", "radians")
def _deg2rad(o: Ops, x: Value) -> Value:
    return _multiply(o, x, o.const(o.dtype.type(math.pi / 180)))


@_op("rad2deg", "degrees")
def _rad2deg(o: Ops, x: Value) -> Value:
    return _multiply(o, x, o.const(o.dtype.type(180 / math.pi)))


@_op("scale_of")
def _scale_of(o: Ops, divisor: Value) -> Value:
    """The power of two that brings a divisor into the range in which it has a normal reciprocal; 1 for most."""
    info = np.finfo(o.dtype)
    size = o.intrinsic("fabs", divisor)
    is_small = o.compare("<", size, o.const(4 * info.tiny))
    is_large = o.compare(">", size, o.const(1 / (4 * info.tiny)))
    up, down = o.const(2.0 ** (2 * info.nmant)), o.const(2.0 ** (-2 * info.nmant))
    return o.builder.select(is_small, up, o.builder.select(is_large, down, o.const(1)))


@_op("reciprocal_of")
def _reciprocal_of(o: Ops, divisor: Value) -> Value:
    return o.builder.fdiv(o.const(1), o.builder.fmul(divisor, _scale_of(o, divisor)))


# -- division with a remainder -----------------------------------------------------------------------------------------


@_op("fmod")
def _fmod(o: Ops, x: Value, y: Value) -> Value:
    if o.is_float:
        return o.builder.frem(x, y)
    quotient, safe = _quotient(o, x, y)
    return _where_zero(o, y, o.builder.sub(x, o.builder.mul(quotient, safe)))


@_op("remainder")
def _remainder(o: Ops, x: Value, y: Value) -> Value:
    b = o.builder
    if not o.is_float:
        return _integer_divmod(o, x, y)[1]
    mod = b.frem(x, y)
    zero = o.const(0)
    differs = b.xor(o.compare("<", y, zero), o.compare("<", mod, zero))
    shifted = b.select(b.and_(o.compare("!=", mod, zero), differs), b.fadd(mod, y), mod)
    signed_zero = o.intrinsic("copysign", zero, y)
    return b.select(o.compare("==", mod, zero), signed_zero, shifted)


@_op("floor_divide")
def _floor_divide(o: Ops, x: Value, y: Value) -> Value:
    """Floats as NumPy: the quotient of x - remainder, rounded to the nearest integer; x/y where y is 0."""
    b = o.builder
    if not o.is_float:
        return _integer_divmod(o, x, y)[0]
    zero, one = o.const(0), o.const(1)
    mod = b.frem(x, y)
    quotient = b.fdiv(b.fsub(x, mod), y)
    differs = b.xor(o.compare("<", y, zero), o.compare("<", mod, zero))
    quotient = b.select(b.and_(o.compare("!=", mod, zero), differs), b.fsub(quotient, one), quotient)
    floor = o.intrinsic("floor", quotient)
    rounded = b.select(o.compare(">", b.fsub(quotient, floor), o.const(0.5)), b.fadd(floor, one), floor)
    result = b.select(o.compare("==", quotient, zero), o.intrinsic("copysign", zero, b.fdiv(x, y)), rounded)
    result = b.select(o.is_nan(quotient), quotient, result)
    return b.select(o.compare("==", y, zero), b.fdiv(x, y), result)


def _quotient(o: Ops, x: Value, y: Value) -> tuple[Value, Value]:
    """x / y rounded towards zero with a divisor made safe (1 in place of 0; and -1 handled as a negation)."""
    b = o.builder
    unsafe = o.compare("==", y, o.const(0))
    if o.is_signed:
        minus = o.compare("==", y, o.const(-1))
        safe = b.select(b.or_(unsafe, minus), o.const(1), y)
        return b.select(minus, b.sub(o.const(0), x), b.sdiv(x, safe)), b.select(unsafe, o.const(1), y)
    safe = b.select(unsafe, o.const(1), y)
    return b.udiv(x, safe), safe


def _integer_divmod(o: Ops, x: Value, y: Value) -> tuple[Value, Value]:
    """Quotient rounded down and remainder with the sign of the divisor; 0 where the divisor is 0."""
    b = o.builder
    quotient, safe = _quotient(o, x, y)
    rest = b.sub(x, b.mul(quotient, safe))
    if o.is_signed:
        zero = o.const(0)
        differs = b.and_(
            b.icmp_signed("!=", rest, zero), b.xor(b.icmp_signed("<", rest, zero), b.icmp_signed("<", y, zero))
        )
        quotient = b.select(differs, b.sub(quotient, o.const(1)), quotient)
        rest = b.select(differs, b.add(rest, y), rest)
    return _where_zero(o, y, quotient), _where_zero(o, y, rest)


def _where_zero(o: Ops, y: Value, result: Value) -> Value:
    return o.builder.select(o.compare("==", y, o.const(0)), o.const(0), result)


# -- rounding and classification ---------------------------------------------------------------------------------------


def _rounding(intrinsic: str) -> Emitter:
    return lambda o, x: o.intrinsic(intrinsic, x) if o.is_float else x


for _name, _intrinsic in (("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc"), ("rint", "roundeven")):
    _emitters[_name] = _rounding(_intrinsic)


@_op("isnan")
def _isnan(o: Ops, x: Value) -> Value:
    return o.is_nan(x) if o.is_float else o.const(False, np.dtype(bool))


@_op("isinf")
def _isinf(o: Ops, x: Value) -> Value:
    if not o.is_float:
        return o.const(False, np.dtype(bool))
    return o.compare("==", o.intrinsic("fabs", x), o.const(np.inf))


@_op("isfinite")
def _isfinite(o: Ops, x: Value) -> Value:
    return o.compare("<", o.intrinsic("fabs", x), o.const(np.inf)) if o.is_float else o.const(True, np.dtype(bool))


@_op("signbit")
def _signbit(o: Ops, x: Value) -> Value:
    bits = np.dtype(f"i{o.dtype.itemsize}")
    integers = Ops(o.builder, bits, o.lanes)
    return integers.compare("<", o.builder.bitcast(x, integers.shaped(bits)), integers.const(0))


@_op("copysign")
def _copysign(o: Ops, x: Value, y: Value) -> Value:
    return o.intrinsic("copysign", x, y)


def _comparison(symbol: str) -> Emitter:
    return lambda o, x, y: o.compare(symbol, x, y)


_COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
for _name, _symbol in _COMPARISONS.items():
    _emitters[_name] = _comparison(_symbol)


@_op("logical_and")
def _logical_and(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.and_(o.truth(x), o.truth(y))


@_op("logical_or")
def _logical_or(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.or_(o.truth(x), o.truth(y))


@_op("logical_xor")
def _logical_xor(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.xor(o.truth(x), o.truth(y))


@_op("logical_not")
def _logical_not(o: Ops, x: Value) -> Value:
    return o.builder.xor(o.truth(x), o.const(True, np.dtype(bool)))


# -- bits --------------------------------------------------------------------------------------------------------------


@_op("bitwise_and")
def _bitwise_and(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.and_(x, y)


@_op("bitwise_or")
def _bitwise_or(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.or_(x, y)


@_op("bitwise_xor")
def _bitwise_xor(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.xor(x, y)


@_op("invert")
def _invert(o: Ops, x: Value) -> Value:
    return o.builder.xor(x, o.const(True if o.dtype.kind == "b" else -1))


@_op("left_shift")
def _left_shift(o: Ops, x: Value, y: Value) -> Value:
    return _shifted(o, y, lambda count: o.builder.shl(x, count), o.const(0))


@_op("right_shift")
def _right_shift(o: Ops, x: Value, y: Value) -> Value:
    beyond = o.builder.ashr(x, o.const(8 * o.dtype.itemsize - 1)) if o.is_signed else o.const(0)
    shift = o.builder.ashr if o.is_signed else o.builder.lshr
    return _shifted(o, y, lambda count: shift(x, count), beyond)


def _shifted(o: Ops, count: Value, shift: Callable[[Value], Value], beyond: Value) -> Value:
    """A shift by fewer bits than the width, else ``beyond``: LLVM leaves larger counts undefined."""
    fits = o.builder.icmp_unsigned("<", count, o.const(8 * o.dtype.itemsize))
    return o.builder.select(fits, shift(o.builder.select(fits, count, o.const(0))), beyond)


@_op("wrap_index")
def _wrap_index(o: Ops, i: Value, n: Value) -> Value:
    """An index counted from either end as one from the front."""
    int64 = Ops(o.builder, np.dtype(np.int64), o.lanes)
    i = cast(o.builder, i, o.dtype, int64.dtype, o.lanes)
    return o.builder.select(int64.compare("<", i, int64.const(0)), o.builder.add(i, n), i)


@_op("logaddexp2")
def _logaddexp2(o: Ops, x: Value, y: Value) -> Value:
    """max + log2(1 + 2**-|x - y|); equal infinities are their own sum."""
    b = o.builder
    largest = _maximum(o, x, y)
    distance = o.intrinsic("fabs", b.fsub(x, y))
    tail = vecmath.emit(b, "log1p", [vecmath.emit(b, "exp2", [b.fneg(distance)])])
    total = b.fadd(largest, b.fmul(tail, o.const(o.dtype.type(1 / math.log(2)))))
    return b.select(o.compare("==", x, y), b.fadd(x, o.const(1)), total)


_PREDICATES = {
    *_COMPARISONS,
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
}
_FLOAT_ONLY = {
    "divide", "reciprocal", "sqrt", "heaviside", "deg2rad", "rad2deg", "degrees", "radians", "copysign", "signbit",
    "logaddexp2",
}  # fmt: skip
_SAME_DTYPES = {
    "add", "add_n", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin", "clip", "heaviside", "fmod",
    "remainder", "floor_divide", "copysign", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    "logaddexp2", *_COMPARISONS,
}  # fmt: skip
