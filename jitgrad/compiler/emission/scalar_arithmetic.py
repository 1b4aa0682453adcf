"""Scalar ops of the loop IR as LLVM instructions, one function each; analysis is in vecmath, loops are in emit."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import vecmath
from jitgrad.compiler.emission.scalar_values import Ops, Value, cast
from jitgrad.compiler.emission.threefry import random_bits
from jitgrad.compiler.vecmath.division import quotient
from jitgrad.compiler.vecmath.lanes import Lanes, Real

Emitter = Callable[..., Value]
emitters: dict[str, Emitter] = {}


def _op(*names: str) -> Callable[[Emitter], Emitter]:
    def enter(fn: Emitter) -> Emitter:
        for name in names:
            emitters[name] = fn
        return fn

    return enter


# -- arithmetic --------------------------------------------------------------------------------------------------------


@_op("replace")
def _replace(o: Ops, x: Value, y: Value) -> Value:
    return y


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


@_op("add_product")
def _add_product(o: Ops, total: Value, x: Value, y: Value) -> Value:
    """total + x * y, rounded once where the processor can."""
    return o.builder.fadd(total, o.builder.fmul(x, y, flags=("contract",)), flags=("contract",))


@_op("divide")
def _divide(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.fdiv(x, y)


@_op("divide_by_shared")
def _divide_by_shared(o: Ops, x: Value, y: Value) -> Value:
    """x / y, where others are divided by y, too."""
    lanes = Lanes(o.builder, x.type)
    return quotient(Real(lanes, x), Real(lanes, y)).value


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
    return o.builder.or_(x, y) if o.dtype.kind == "b" else _extreme(o, ">", x, y)


@_op("minimum")
def _minimum(o: Ops, x: Value, y: Value) -> Value:
    return o.builder.and_(x, y) if o.dtype.kind == "b" else _extreme(o, "<", x, y)


@_op("fmax")
def _fmax(o: Ops, x: Value, y: Value) -> Value:
    return _further(o, ">", x, y, y)


@_op("fmin")
def _fmin(o: Ops, x: Value, y: Value) -> Value:
    return _further(o, "<", x, y, y)


def _extreme(o: Ops, relation: str, x: Value, y: Value) -> Value:
    """The further one, or NaN; of zeros of both signs the second, as in NumPy on x86.

    A constant is asked whether it is as far: that it is no NaN is known before the code runs, and x need not be asked.
    Else x is frozen: where it is stored again at its place, LLVM would make one masked store of choice and store.
    """
    if not o.is_float:
        return _further(o, relation, x, y, x)
    if not isinstance(y, ir.Constant):
        return o.builder.select(o.is_nan(x), o.builder.freeze(x), o.builder.select(o.compare(relation, x, y), x, y))
    found = o.builder.select(o.compare(f"{relation}=", y, x), y, x)
    return o.builder.select(o.is_nan(y), y, found)


def _further(o: Ops, relation: str, x: Value, y: Value, nan: Value) -> Value:
    """x where it is the further one, else y; but x where ``nan`` is NaN: the first choice is one instruction, which
    gives y where either is NaN, and the second asks one of them alone.
    """
    found = o.builder.select(o.compare(relation, x, y), x, y)
    return o.builder.select(o.is_nan(nan), x, found) if o.is_float else found


@_op("clip")
def _clip(o: Ops, x: Value, lo: Value, hi: Value) -> Value:
    """x where it equals a bound, with its own sign of zero: NumPy's with numbers as bounds."""
    return _further(o, "<", hi, _further(o, ">", lo, x, lo), hi)


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
    emitters[_name] = _rounding(_intrinsic)


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


COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
for _name, _symbol in COMPARISONS.items():
    emitters[_name] = _comparison(_symbol)


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


@_op("threefry2x32")
def _threefry2x32(o: Ops, counter: Value, key: Value) -> Value:
    return random_bits(o, counter, key)


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
