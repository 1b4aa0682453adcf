"""Arithmetic on scalars and vectors of LLVM IR, written with Python's operators; no function of analysis.

A `Real` is a float, double, <N x float> or <N x double> with the builder that makes its instructions; `Bits` is
the integer of the same shape, `Mask` a comparison. Python numbers next to a Real become constants of its type, so
that a formula reads as in a textbook: `p = poly(r * r, TABLE); return fma(r, p, r)`. One operator is one LLVM
instruction, without fast-math flags: LLVM neither reassociates nor contracts, and it rounds as written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from jitgrad.compiler import llvmir as ir
from jitgrad.records import dataclass

Number: TypeAlias = int | float
Operand: TypeAlias = "Real | int | float"
_REGISTER_BITS = 512  # of processors that multiply by powers of two
_ROUNDED_AS_EVER = 4  # by the processor's mode, which is to the nearest


@dataclass(frozen=True, slots=True)
class Table:
    """A constant, or coefficients from the lowest power up, for float32 and for float64."""

    single: tuple[float, ...]
    double: tuple[float, ...]

    def of(self, x: Real) -> tuple[float, ...]:
        """The entries for the precision of x."""
        return self.double if x.lanes.is_double else self.single


class Lanes:
    """A floating type, scalar or vector, and the place where its instructions go."""

    def __init__(self, builder: ir.IRBuilder, type_: ir.Type) -> None:
        self.builder = builder
        self.type = type_
        self.count, self.element = (type_.count, type_.element) if isinstance(type_, ir.VectorType) else (0, type_)
        self.is_double = isinstance(self.element, ir.DoubleType)
        self.width = 64 if self.is_double else 32
        self.fraction_bits = 52 if self.is_double else 23
        self.bias = 1023 if self.is_double else 127
        self.bits_type = self.shaped(ir.IntType(self.width))
        whole = self.count * self.width % _REGISTER_BITS == 0 < self.count
        self.has_look_up = builder.module.has_avx512 and not self.is_double
        self.has_scaling = builder.module.has_avx512 and whole
        self.suffix = (f"v{self.count}" if self.count else "") + f"f{self.width}"

    def shaped(self, element: ir.Type) -> ir.Type:
        """The type with this element in as many lanes."""
        return ir.vector_of(element, self.count) if self.count else element

    def constant(self, value: Number) -> Real:
        """The number, rounded to this precision, in all lanes."""
        return Real(self, self._splat(self.element, self.text_of(value)))

    def text_of(self, value: Number) -> str:
        """The number, rounded to this precision, as LLVM writes it."""
        packed = struct.pack("d" if self.is_double else "f", value)
        widened = value if self.is_double else struct.unpack("f", packed)[0]
        return f"0x{struct.unpack('Q', struct.pack('d', widened))[0]:016x}"

    def bits(self, value: int) -> Bits:
        """The integer in all lanes."""
        return Bits(self, self._splat(ir.IntType(self.width), str(value)))

    def _splat(self, element: ir.Type, text: str) -> ir.Value:
        return ir.splat(element, text, self.count) if self.count else ir.Literal(element, text)

    def call(self, intrinsic: str, *args: ir.Value) -> ir.Value:
        """Call llvm.<intrinsic> on values of this type."""
        name = f"llvm.{intrinsic}.{self.suffix}"
        known = self.builder.module.functions.get(name)
        if known is None:
            known = ir.Function(self.builder.module, ir.FunctionType(self.type, [self.type] * len(args)), name)
        return self.builder.call(known, args)


def declare(module: ir.Module, name: str, signature: ir.FunctionType) -> ir.Function:
    """The function of that name in the module, declared if it is new."""
    known = module.functions.get(name)
    return known if known is not None else ir.Function(module, signature, name)


@dataclass(frozen=True, slots=True)
class Real:
    """Floating lanes."""

    lanes: Lanes
    value: ir.Value

    def like(self, other: Operand) -> Real:
        """The operand as lanes of this type."""
        return other if isinstance(other, Real) else self.lanes.constant(other)

    def __add__(self, other: Operand) -> Real:
        return Real(self.lanes, self.lanes.builder.fadd(self.value, self.like(other).value))

    def __radd__(self, other: Number) -> Real:
        return self + other

    def __sub__(self, other: Operand) -> Real:
        return Real(self.lanes, self.lanes.builder.fsub(self.value, self.like(other).value))

    def __rsub__(self, other: Number) -> Real:
        return self.like(other) - self

    def __mul__(self, other: Operand) -> Real:
        return Real(self.lanes, self.lanes.builder.fmul(self.value, self.like(other).value))

    def __rmul__(self, other: Number) -> Real:
        return self * other

    def __truediv__(self, other: Operand) -> Real:
        return Real(self.lanes, self.lanes.builder.fdiv(self.value, self.like(other).value))

    def __rtruediv__(self, other: Number) -> Real:
        return self.like(other) / self

    def __neg__(self) -> Real:
        return Real(self.lanes, self.lanes.builder.fneg(self.value))

    def __abs__(self) -> Real:
        return Real(self.lanes, self.lanes.call("fabs", self.value))

    def __lt__(self, other: Operand) -> Mask:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Mask:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Mask:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Mask:
        return self._compare(">=", other)

    def equals(self, other: Operand) -> Mask:
        """Lanes equal to the other's; a NaN equals nothing."""
        return self._compare("==", other)

    def _compare(self, relation: str, other: Operand) -> Mask:
        return Mask(self.lanes, self.lanes.builder.fcmp_ordered(relation, self.value, self.like(other).value))

    def is_nan(self) -> Mask:
        """Lanes that hold NaN."""
        return Mask(self.lanes, self.lanes.builder.fcmp_unordered("uno", self.value, self.value))

    def is_unordered(self, other: Real) -> Mask:
        """Lanes where either is NaN."""
        return Mask(self.lanes, self.lanes.builder.fcmp_unordered("uno", self.value, other.value))

    def bits(self) -> Bits:
        """The IEEE 754 encoding."""
        return Bits(self.lanes, self.lanes.builder.bitcast(self.value, self.lanes.bits_type))


@dataclass(frozen=True, slots=True)
class Bits:
    """Integer lanes as wide as the reals; arithmetic modulo 2**width."""

    lanes: Lanes
    value: ir.Value

    def like(self, other: Bits | int) -> Bits:
        """The operand as integer lanes."""
        return other if isinstance(other, Bits) else self.lanes.bits(other)

    def __add__(self, other: Bits | int) -> Bits:
        return Bits(self.lanes, self.lanes.builder.add(self.value, self.like(other).value))

    def __sub__(self, other: Bits | int) -> Bits:
        return Bits(self.lanes, self.lanes.builder.sub(self.value, self.like(other).value))

    def __rsub__(self, other: int) -> Bits:
        return self.like(other) - self

    def __and__(self, other: Bits | int) -> Bits:
        return Bits(self.lanes, self.lanes.builder.and_(self.value, self.like(other).value))

    def __or__(self, other: Bits | int) -> Bits:
        return Bits(self.lanes, self.lanes.builder.or_(self.value, self.like(other).value))

    def __xor__(self, other: Bits | int) -> Bits:
        return Bits(self.lanes, self.lanes.builder.xor(self.value, self.like(other).value))

    def __lshift__(self, count: int) -> Bits:
        return Bits(self.lanes, self.lanes.builder.shl(self.value, self.like(count).value))

    def __rshift__(self, count: int) -> Bits:
        """Shift right, filling with zeros."""
        return Bits(self.lanes, self.lanes.builder.lshr(self.value, self.like(count).value))

    def at_most(self, bound: int) -> Bits:
        """The smaller of the two as unsigned integers."""
        return Bits(
            self.lanes,
            self.lanes.builder.select(self.is_below(bound).value, self.value, self.like(bound).value),
        )

    def at_least(self, bound: int) -> Bits:
        """The larger of the two as unsigned integers."""
        return Bits(
            self.lanes,
            self.lanes.builder.select(self.is_below(bound).value, self.like(bound).value, self.value),
        )

    def is_below(self, other: Bits | int) -> Mask:
        """Unsigned less-than."""
        return Mask(self.lanes, self.lanes.builder.icmp_unsigned("<", self.value, self.like(other).value))

    def equals(self, other: Bits | int) -> Mask:
        """Lanes with the same integer."""
        return Mask(self.lanes, self.lanes.builder.icmp_unsigned("==", self.value, self.like(other).value))

    def real(self) -> Real:
        """The number with this IEEE 754 encoding."""
        return Real(self.lanes, self.lanes.builder.bitcast(self.value, self.lanes.type))


@dataclass(frozen=True, slots=True)
class Mask:
    """Boolean lanes."""

    lanes: Lanes
    value: ir.Value

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.lanes, self.lanes.builder.and_(self.value, other.value))

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.lanes, self.lanes.builder.or_(self.value, other.value))

    def __xor__(self, other: Mask) -> Mask:
        return Mask(self.lanes, self.lanes.builder.xor(self.value, other.value))

    def __invert__(self) -> Mask:
        return Mask(self.lanes, self.lanes.builder.not_(self.value))

    def any(self) -> ir.Value:
        """One i1: does any lane hold?"""
        if not self.lanes.count:
            return self.value
        packed = self.lanes.builder.bitcast(self.value, ir.IntType(self.lanes.count))
        return self.lanes.builder.icmp_unsigned("!=", packed, ir.Constant(packed.type, 0))


def fma(x: Real, y: Operand, z: Operand) -> Real:
    """x*y + z, rounded once."""
    return Real(x.lanes, x.lanes.call("fma", x.value, x.like(y).value, x.like(z).value))


def sqrt(x: Real) -> Real:
    """The square root, correctly rounded."""
    return Real(x.lanes, x.lanes.call("sqrt", x.value))


def rint(x: Real) -> Real:
    """The nearest integer, ties to even."""
    return Real(x.lanes, x.lanes.call("rint", x.value))


def floor(x: Real) -> Real:
    """The largest integer not above x."""
    return Real(x.lanes, x.lanes.call("floor", x.value))


def copysign(size: Real, sign: Real) -> Real:
    """|size| with the sign of `sign`."""
    return Real(size.lanes, size.lanes.call("copysign", size.value, sign.value))


def select(mask: Mask, yes: Operand, no: Operand) -> Real:
    """`yes` in the lanes of the mask, `no` elsewhere."""
    lanes = mask.lanes
    chosen = [side.value if isinstance(side, Real) else lanes.constant(side).value for side in (yes, no)]
    return Real(lanes, lanes.builder.select(mask.value, *chosen))


def lower_bound(x: Real, bound: Operand) -> Real:
    """max(x, bound), but NaN where x is."""
    bound = x.like(bound)
    return select(bound > x, bound, x)


def upper_bound(x: Real, bound: Operand) -> Real:
    """min(x, bound), but NaN where x is."""
    bound = x.like(bound)
    return select(bound < x, bound, x)


def poly(x: Real, coefficients: Table | Sequence[Operand]) -> Real:
    """c0 + c1*x + c2*x**2 + ... by Horner's rule; long ones with even and odd powers apart, to be done sooner.

    The last two steps are Horner's in any case, so that where |x| is small the error is that of c0 + c1*x.
    """
    terms = list(coefficients.of(x) if isinstance(coefficients, Table) else coefficients)
    return _horner(x, [*terms[:2], poly_behind(x, terms)]) if len(terms) > 2 else _horner(x, terms)


def poly_behind(x: Real, terms: Sequence[Operand]) -> Real:
    """c2 + c3*x + c4*x**2 + ..., as it is part of the polynomial."""
    if len(terms) <= 8:
        return _horner(x, terms[2:])
    square = x * x
    return fma(_horner(square, terms[3::2]), x, _horner(square, terms[2::2]))


def _horner(x: Real, terms: Sequence[Operand]) -> Real:
    value = x.like(terms[-1])
    for term in reversed(terms[:-1]):
        value = fma(value, x, term)
    return value


def two_sum(x: Real, y: Operand) -> tuple[Real, Real]:
    """x + y as a rounded sum and its exact error (Knuth)."""
    y = x.like(y)
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def fast_two_sum(x: Real, y: Operand) -> tuple[Real, Real]:
    """x + y as a rounded sum and its exact error, where |x| >= |y| or x = 0 (Dekker)."""
    y = x.like(y)
    total = x + y
    return total, y - (total - x)


def two_product(x: Real, y: Operand) -> tuple[Real, Real]:
    """x * y as a rounded product and its exact error."""
    product = x * y
    return product, fma(x, y, -product)


def power_of_two(biased: Bits) -> Real:
    """2**(b - bias) for the low bits b of the integers, 0 < b < 2*bias + 1; higher bits fall out."""
    return (biased << biased.lanes.fraction_bits).real()


def times_power_of_two(x: Real, n: Real) -> Real:
    """x * 2**n for integers n, rounded once, by an instruction of registers with 64 bytes."""
    return _of_registers("mask.scalef", (x, n), (_ROUNDED_AS_EVER,))


def near_reciprocal(x: Real) -> Real:
    """1 / x within 2**-14 of it, by an instruction of registers with 64 bytes."""
    return _of_registers("rcp14", (x,))


def significand(x: Real) -> Real:
    """The number in [1, 2), with the sign of x, of which x is the product with a power of two; 1 for 0 and infinity. By
    an instruction of registers with 64 bytes.
    """
    return _of_registers("mask.getmant", (x,), (_ROUNDED_AS_EVER,), first=(0,))


def exponent(x: Real) -> Real:
    """The exponent of that power of two; -inf for 0, inf for infinity. By an instruction of registers with 64 bytes."""
    return _of_registers("mask.getexp", (x,), (_ROUNDED_AS_EVER,))


def _of_registers(name: str, args: Sequence[Real], last: Sequence[int] = (), first: Sequence[int] = ()) -> Real:
    """An instruction for all lanes of each register; ``first`` and ``last`` are integers that it is given besides."""
    lanes, builder = args[0].lanes, args[0].lanes.builder
    count = _REGISTER_BITS // lanes.width
    register, bits = ir.VectorType(lanes.element, count), ir.IntType(count)
    number = ir.IntType(32)
    before, behind = ([ir.Constant(number, value) for value in values] for values in (first, last))
    rest = [*before, ir.Constant(register, ir.Undefined), ir.Constant(bits, -1), *behind]
    signature = ir.FunctionType(register, [*[register] * len(args), *(value.type for value in rest)])
    kind = "pd" if lanes.is_double else "ps"
    function = declare(builder.module, f"llvm.x86.avx512.{name}.{kind}.512", signature)
    parts = [
        builder.call(function, [*(part_of(builder, arg.value, place, count) for arg in args), *rest])
        for place in range(0, lanes.count, count)
    ]
    return Real(lanes, joined(builder, parts))


def by_registers(function: Callable[..., Real], *args: Real) -> Real:
    """A function of lanes, written for one register of them after the other."""
    lanes, builder = args[0].lanes, args[0].lanes.builder
    count = _REGISTER_BITS // lanes.width
    register = Lanes(builder, ir.VectorType(lanes.element, count))
    parts = [
        function(*(Real(register, part_of(builder, arg.value, first, count)) for arg in args)).value
        for first in range(0, lanes.count, count)
    ]
    return Real(lanes, joined(builder, parts))


def look_up(place: Bits, table: Sequence[float]) -> Real:
    """One of 32 floats for each lane, by the low five bits of its integer, out of two registers of 64 bytes."""
    lanes, builder = place.lanes, place.lanes.builder
    count = _REGISTER_BITS // lanes.width
    floats, integers = ir.VectorType(lanes.element, count), ir.VectorType(ir.IntType(lanes.width), count)
    signature = ir.FunctionType(floats, [floats, integers, floats])
    function = declare(builder.module, "llvm.x86.avx512.vpermi2var.ps.512", signature)
    low, high = (
        ir.Literal(floats, f"<{', '.join(f'float {lanes.text_of(number)}' for number in half)}>")
        for half in (table[:count], table[count:])
    )
    if not lanes.count:
        wide = builder.insert_element(ir.Constant(integers, ir.Undefined), place.value, ir.Constant(ir.IntType(32), 0))
        found = builder.call(function, [low, wide, high])
        return Real(lanes, builder.extract_element(found, ir.Constant(ir.IntType(32), 0)))
    if lanes.count < count:
        nothing = ir.Constant(place.value.type, ir.Undefined)
        wide = builder.shuffle_vector(place.value, nothing, _picks(0, lanes.count, count))
        return Real(lanes, part_of(builder, builder.call(function, [low, wide, high]), 0, lanes.count))
    parts = [
        builder.call(function, [low, part_of(builder, place.value, first, count), high])
        for first in range(0, lanes.count, count)
    ]
    return Real(lanes, joined(builder, parts))


def part_of(builder: ir.IRBuilder, value: ir.Value, first: int, count: int) -> ir.Value:
    """Neighbouring lanes of a vector; itself where it has no more."""
    if value.type.count == count:
        return value
    if isinstance(value, ir.Joined) and first % (width := value.parts[0].type.count) == count % width == 0:
        return joined(builder, value.parts[first // width : (first + count) // width])
    return builder.shuffle_vector(value, value, _picks(first, count))


def joined(builder: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """Vectors of one type side by side; a power of two of them."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    low, high = (joined(builder, side) for side in (parts[:half], parts[half:]))
    return ir.Joined(builder.shuffle_vector(low, high, _picks(0, 2 * low.type.count)), tuple(parts))


@cache
def _picks(first: int, count: int, width: int = 0) -> ir.Value:
    """Neighbouring lanes; the last one again and again where there are to be more."""
    picks = [min(k, first + count - 1) for k in range(first, first + max(count, width))]
    return ir.Constant(ir.VectorType(ir.IntType(32), len(picks)), picks)


def rarely(mask: Mask, special: Callable[[], Real], usual: Real) -> Real:
    """select(mask, special(), usual); the code of `special` runs only if some lane of the mask holds."""
    lanes, builder = mask.lanes, mask.lanes.builder
    before = builder.block
    with builder.if_then(mask.any(), likely=False):
        chosen = select(mask, special(), usual)
        during = builder.block
    merged = builder.phi(lanes.type)
    merged.add_incoming(usual.value, before)
    merged.add_incoming(chosen.value, during)
    return Real(lanes, merged)
