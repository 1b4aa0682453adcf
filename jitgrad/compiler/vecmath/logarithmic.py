"""Logarithms: log, log2, log10, log1p, and the core that other families use; no powers, no special functions.

All write x = 2**k * m with sqrt(1/2) <= m < sqrt(2) by integer operations on the encoding, and f = m - 1 exactly.
float32 takes log(1+f) = f - f**2/2 + f**3 * P(f). float64 takes s = f/(2+f) and the series of 2*atanh(s), whose few
terms cost less than a long polynomial; it is arranged as in Sun's fdlibm, so that its error counts little.
"""

from __future__ import annotations

from math import inf, nan

from jitgrad.compiler.vecmath.lanes import (
    Bits,
    Real,
    Table,
    copysign,
    fast_two_sum,
    fma,
    poly,
    select,
    two_product,
)

LN2 = Table((0.6931472, -1.9046542e-09), (0.6931471805599453, 2.3190468138462996e-17))
SQRT_HALF_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}

# 2 * (log(1+f) - f + f**2/2) / f**3 on sqrt(1/2) - 1 <= f <= sqrt(2) - 1, error relative to the log 2**-27.3.
_LOG_SINGLE = (0.6666666, -0.50001646, 0.4000253, -0.3324664, 0.28401502, -0.263191, 0.25538174, -0.15292229)
# (2*atanh(s)/s - 2) / s**2 in s**2 for |s| <= 0.1716, error relative to the log 2**-58.5.
_ATANH_DOUBLE = (0.6666666666666735, 0.39999999999409336, 0.2857142874369247, 0.22222198428184017,
                 0.18183572403886902, 0.1531383074465798, 0.1479827446935775)  # fmt: skip
# 1/ln(base) in two parts, then ln2/ln(base) in two, the first short enough for an exact product with an
# exponent.
_TO_BASE_2 = Table((1.442695, 1.925963e-08, 1.0, 0.0), (1.4426950408889634, 2.0355273740931033e-17, 1.0, 0.0))
_TO_BASE_10 = Table(
    (0.4342945, -1.010305e-08, 0.30102539, 4.605039e-06),
    (0.4342944819032518, 1.098319650216765e-17, 0.30102999566361177, 3.694239077158931e-13),
)


def log(x: Real) -> Real:
    """The natural logarithm, to 1 ulp."""
    k, f = decompose_any(x)
    return with_log_limits(x, log_of(k, f))


def log2(x: Real) -> Real:
    """The logarithm to base 2, to 1 ulp; exact for powers of two."""
    return with_log_limits(x, _log_to_base(*decompose_any(x), _TO_BASE_2))


def log10(x: Real) -> Real:
    """The logarithm to base 10, to 1 ulp."""
    return with_log_limits(x, _log_to_base(*decompose_any(x), _TO_BASE_10))


def log1p(x: Real) -> Real:
    """log(1 + x), to 1 ulp, also where x is small: what rounding 1 + x loses is added to f."""
    total = x + 1.0
    part = total - x
    lost = (x - (total - part)) + (1.0 - part)
    return copysign(with_log_limits(total, log_of(*decompose(total, lost))), x)


def log1p_unit(z: Real) -> Real:
    """log(1 + z) for 0 <= z <= 1 or NaN, to 1 ulp."""
    total = z + 1.0
    return log_of(*decompose(total, z - (total - 1.0)))


def decompose(x: Real, low: Real) -> tuple[Real, Real, Real]:
    """k, f and a remainder of f with x + low = 2**k * (1 + f), for normal x > 0 and |low| below an ulp of x."""
    k, mantissa, shifted = _split(x, 0.0)
    largest = 2 * x.lanes.bias << x.lanes.fraction_bits
    inverse = (largest - (shifted & _exponent_mask(x)).at_most(largest)).real()
    leading = mantissa - 1.0
    f = fma(low, inverse, leading)
    return k, f, fma(low, inverse, leading - f)


def decompose_any(x: Real) -> tuple[Real, Real]:
    """k and f with x = 2**k * (1 + f), for x > 0, denormals included; rubbish for others."""
    precision = x.lanes.fraction_bits + 1.0
    denormal = x < 2.0 ** (1 - x.lanes.bias)
    k, mantissa, _ = _split(select(denormal, x * 2.0**precision, x), select(denormal, x.like(precision), 0.0))
    return k, mantissa - 1.0


def _split(x: Real, scale: Real | float) -> tuple[Real, Real, Bits]:
    lanes = x.lanes
    offset = (lanes.bias << lanes.fraction_bits) - SQRT_HALF_BITS[lanes.width]
    shifted = x.bits() + offset
    implicit = 2.0**lanes.fraction_bits
    exponent = ((shifted >> lanes.fraction_bits) | x.like(implicit).bits()).real()
    mantissa = (shifted & ((1 << lanes.fraction_bits) - 1)) + SQRT_HALF_BITS[lanes.width]
    return exponent - (scale + x.like(implicit + lanes.bias)), mantissa.real(), shifted


def _exponent_mask(x: Real) -> int:
    return (2 * x.lanes.bias + 1) << x.lanes.fraction_bits


def log_of(k: Real, f: Real, low: Real | None = None) -> Real:
    """k*ln2 + log(1 + f + low)."""
    return fma(k, LN2.of(f)[0], _log_remainder(k, f, low))


def log_in_two_parts(k: Real, f: Real) -> tuple[Real, Real]:
    """k*ln2 + log(1 + f) and what its last rounding lost."""
    ln2_high = LN2.of(f)[0]
    rest = _log_remainder(k, f)
    high = fma(k, ln2_high, rest)
    return high, fma(k, ln2_high, -high) + rest


def _log_remainder(k: Real, f: Real, low: Real | None = None) -> Real:
    """log(1 + f + low) and the small part of k*ln2."""
    half_square, tail = log_terms(f)
    small = fma(k, LN2.of(f)[1], tail)
    return f - (half_square - (small if low is None else small + low))


def log_terms(f: Real) -> tuple[Real, Real]:
    """h and t with log(1 + f) = f - h + t, h = f**2/2."""
    half_square = 0.5 * f * f
    if not f.lanes.is_double:
        return half_square, half_square * f * poly(f, _LOG_SINGLE)
    s = f / (f + 2.0)
    z = s * s
    return half_square, s * fma(z, poly(z, _ATANH_DOUBLE), half_square)


def _log_to_base(k: Real, f: Real, base: Table) -> Real:
    """(k*ln2 + log(1 + f)) / ln(base), the sum and the product in two parts each."""
    factor, factor_low, ln2_high, ln2_low = base.of(f)
    half_square, tail = log_terms(f)
    high, low = fast_two_sum(f, -half_square)
    product, error = two_product(high, factor)
    rest = fma(low + tail, factor, fma(high, factor_low, error))
    total, lost = fast_two_sum(k * ln2_high, product)
    return total + (lost + fma(k, ln2_low, rest))


def with_log_limits(x: Real, value: Real) -> Real:
    """The value where 0 < x < inf; -inf at 0, NaN below, inf and NaN as they are."""
    one_denormal = x.bits() - 1
    ordinary = one_denormal.is_below(_exponent_mask(x) - 1)
    return select(ordinary, value, select(x.equals(0.0), -inf, select(x < 0.0, nan, x)))
