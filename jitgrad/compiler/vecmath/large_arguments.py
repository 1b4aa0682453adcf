"""Trigonometric functions of huge arguments, one lane at a time; the usual arguments never come here.

The fast formulas are right up to a limit. `recomputed` sends the lanes beyond it, if there are any, through a
scalar float64 function that is made once per module: Payne & Hanek's reduction (SIGNUM Newsletter 18, 1983)
multiplies the integer significand of x by the 192 bits of 2/pi that matter and drops the multiples of four quadrants.
Sine and cosine share it, a quadrant apart: it takes 7 ms to compile, three times as long as a sine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, nan

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.vecmath.lanes import (
    Bits,
    Lanes,
    Mask,
    Real,
    declare,
    fast_two_sum,
    fma,
    rarely,
    select,
    two_product,
)
from jitgrad.compiler.vecmath.shared import Write, shared_function
from jitgrad.records import dataclass

_I64 = ir.IntType(64)
_I128 = ir.IntType(128)
_DOUBLE = ir.DoubleType()
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
# 64 zeros, then the binary digits of 2/pi.
_TWO_OVER_PI = (
    "0000000000000000a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e0"
    "06492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b"
    "1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea"
    "6bfb5fb11f8d5d08"
)


@dataclass(frozen=True, slots=True)
class Angle:
    """x = quadrant*pi/2 + rest + low with |rest| <= pi/4; only the two lowest bits of the quadrant count."""

    quadrant: Bits
    rest: Real
    low: Real


def recomputed(
    name: str, x: Real, fast: Real, limit: float, function: Callable[[Angle], Real], quadrants: int = 0
) -> Real:
    """`fast`, but where |x| > limit the function of the exactly reduced |x|, so many quadrants further; inf gives NaN.
    limit >= 1.
    """
    lanewise = _lanewise_routine(name, x.lanes, limit, function)
    args = [x.value, fast.value, _I64(quadrants)]
    return rarely(abs(x) > limit, lambda: Real(x.lanes, x.lanes.builder.call(lanewise, args)), fast)


def _scalar_routine(name: str, module: ir.Module, function: Callable[[Angle], Real]) -> ir.Function:
    def write(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        x = abs(Real(Lanes(builder, _DOUBLE), args[0]))
        angle = _reduce(x)
        further = replace(angle, quadrant=angle.quadrant + Bits(x.lanes, args[1]))
        return select(x < inf, function(further), nan).value

    return _routine(module, f"jitgrad.{name}.large", _DOUBLE, [_DOUBLE, _I64], write)


def _lanewise_routine(name: str, lanes: Lanes, limit: float, function: Callable[[Angle], Real]) -> ir.Function:
    """A loop over the lanes that replaces those beyond the limit."""

    def write(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        scalar = _scalar_routine(name, builder.module, function)
        return (_each_lane if lanes.count else _one_lane)(builder, lanes, args, limit, scalar)

    args = [lanes.type, lanes.type, _I64]
    return _routine(lanes.builder.module, f"jitgrad.{name}.large.{lanes.suffix}", lanes.type, args, write)


def _each_lane(
    builder: ir.IRBuilder, lanes: Lanes, args: Sequence[ir.Value], limit: float, scalar: ir.Function
) -> ir.Value:
    x, fast, quadrants = args
    entry, loop, done = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    lane, result = builder.phi(_I64), builder.phi(lanes.type)
    lane.add_incoming(_I64(0), entry)
    result.add_incoming(fast, entry)
    elements = [builder.extract_element(x, lane), builder.extract_element(fast, lane)]
    value = _one_lane(builder, lanes, [*elements, quadrants], limit, scalar)
    replaced = builder.insert_element(result, value, lane)
    following = builder.add(lane, _I64(1))
    lane.add_incoming(following, builder.block)
    result.add_incoming(replaced, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, _I64(lanes.count)), loop, done)
    builder.position_at_end(done)
    return replaced


def _one_lane(
    builder: ir.IRBuilder, lanes: Lanes, args: Sequence[ir.Value], limit: float, scalar: ir.Function
) -> ir.Value:
    x, fast, quadrants = args
    before = builder.block
    size = abs(Real(Lanes(builder, lanes.element), x))
    with builder.if_then((size > limit).value):
        wide = x if lanes.is_double else builder.fpext(x, _DOUBLE)
        exact = builder.call(scalar, [wide, quadrants])
        slow = exact if lanes.is_double else builder.fptrunc(exact, lanes.element)
        during = builder.block
    value = builder.phi(lanes.element)
    value.add_incoming(fast, before)
    value.add_incoming(slow, during)
    return value


def _routine(module: ir.Module, name: str, result: ir.Type, args: list[ir.Type], write: Write) -> ir.Function:
    """The function of that name, which is written once.

    It stays out of line and unoptimised: it is rare, and its compilation would cost more than the usual code's.
    """
    return shared_function(module, name, ir.FunctionType(result, args), write, ("noinline", "nounwind", "optnone"))


def _reduce(x: Real) -> Angle:
    """Reduce 1 <= x < inf: x*2/pi modulo 4 as a fraction T / 2**126, split at the nearest quadrant."""
    builder = x.lanes.builder
    turns = _scaled_turns(x)
    fraction = builder.shl(turns, _I128(2))
    is_negative = builder.icmp_signed("<", fraction, _I128(0))
    below = builder.trunc(builder.lshr(turns, _I128(126)), _I64)
    quadrant = builder.add(below, builder.zext(is_negative, _I64))
    size = builder.select(is_negative, builder.neg(fraction), fraction)
    high, low = _times_half_pi(x.lanes, size)
    sign = select(Mask(x.lanes, is_negative), -1.0, 1.0)
    return Angle(Bits(x.lanes, quadrant), high * sign, low * sign)


def _scaled_turns(x: Real) -> ir.Value:
    """T with x * 2/pi = T / 2**126 modulo 4, its last bits rounded down.

    x = m * 2**(e - 1075), so that the binary digits of 2/pi before number e - 1076 give multiples of four: the
    product of m and the 192 digits from there is wanted modulo 2**192, of which T is the high part.
    """
    builder = x.lanes.builder
    bits = x.bits()
    digit = (bits >> 52) - 1013
    first = (digit >> 6).value
    table = _digits_of_two_over_pi(builder.module)
    places = [builder.gep(table, [builder.add(first, _I64(step))], _I64) for step in range(4)]
    words = [builder.load(place, _I64) for place in places]
    shift = builder.and_(digit.value, _I64(63))
    funnel = declare(builder.module, "llvm.fshl.i64", ir.FunctionType(_I64, [_I64] * 3))
    high, middle, low = (
        builder.zext(builder.call(funnel, [left, right, shift]), _I128) for left, right in pairwise(words)
    )
    significand = builder.zext(((bits & ((1 << 52) - 1)) | (1 << 52)).value, _I128)
    total = builder.shl(builder.mul(significand, high), _I128(64))
    total = builder.add(total, builder.mul(significand, middle))
    return builder.add(total, builder.lshr(builder.mul(significand, low), _I128(64)))


def _times_half_pi(lanes: Lanes, fraction: ir.Value) -> tuple[Real, Real]:
    """pi/2 * fraction / 2**128 as a sum of two doubles, from the 106 leading digits."""
    builder = lanes.builder
    count_zeros = declare(builder.module, "llvm.ctlz.i128", ir.FunctionType(_I128, [_I128, ir.IntType(1)]))
    zeros = builder.call(count_zeros, [builder.or_(fraction, _I128(1)), ir.IntType(1)(1)])
    digits = builder.shl(fraction, zeros)
    high = _fraction(lanes, builder.lshr(digits, _I128(75)), 2.0**-53)
    low = _fraction(lanes, builder.and_(builder.lshr(digits, _I128(22)), _I128((1 << 53) - 1)), 2.0**-106)
    product, error = two_product(high, _HALF_PI[0])
    rest, rest_low = fast_two_sum(product, fma(high, _HALF_PI[1], fma(low, _HALF_PI[0], error)))
    scale = ((1023 - Bits(lanes, builder.trunc(zeros, _I64))) << 52).real()
    return rest * scale, rest_low * scale


def _fraction(lanes: Lanes, digits: ir.Value, unit: float) -> Real:
    return Real(lanes, lanes.builder.sitofp(lanes.builder.trunc(digits, _I64), _DOUBLE)) * unit


def _digits_of_two_over_pi(module: ir.Module) -> ir.GlobalVariable:
    name = "jitgrad.two_over_pi"
    table = module.variables.get(name)
    if table is None:
        words = [int(_TWO_OVER_PI[at : at + 16], 16) for at in range(0, len(_TWO_OVER_PI), 16)]
        table = ir.GlobalVariable(module, ir.ArrayType(_I64, len(words)), name)
        table.initializer = ir.Constant(table.value_type, words)
        table.global_constant = True
        table.linkage = "internal"
    return table
