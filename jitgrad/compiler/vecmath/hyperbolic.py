"""Hyperbolic functions and their inverses; exponentials and logarithms come from their own modules."""

from __future__ import annotations

from math import inf, nan

from jitgrad.compiler.vecmath.exponential import (
    EXP2,
    LN2,
    LOG2_E,
    nearest_integer,
    remainder_in_two_parts,
)
from jitgrad.compiler.vecmath.lanes import (
    Mask,
    Real,
    Table,
    copysign,
    fast_two_sum,
    fma,
    poly,
    power_of_two,
    select,
    sqrt,
    two_sum,
    upper_bound,
)
from jitgrad.compiler.vecmath.logarithmic import decompose, log_of
from jitgrad.compiler.vecmath.pieces import tanh_by_pieces

# sinh and cosh overflow below these; the formulas inside say so.
_SINH_BOUND = Table((89.5,), (710.6,))
# (sinh(r) - r) / r**3 and (cosh(r) - 1) / r**2 in r**2 for |r| <= ln2/2, relative errors below 2**-33 and
# 2**-61.
_SINH = Table(
    (0.16666667, 0.008333175, 0.00019974024),
    (0.16666666666666677, 0.008333333333321376, 0.0001984126988686522, 2.7557243380748274e-06,
     2.510935275055233e-08),
)  # fmt: skip
_COSH = Table(
    (0.5, 0.04166646, 0.0013935453),
    (0.5, 0.041666666666666685, 0.0013888888888873264, 2.4801587349281697e-05, 2.7557251718491587e-07,
     2.092181064328652e-09),
)  # fmt: skip
# From here on tanh rounds to 1.
_TANH_BOUND = Table((10.0,), (20.0,))
# (tanh(x)/x - 1) / x**2 = P/Q in x**2 for |x| <= 9/16, error relative to tanh 2**-28.9 and 2**-62.6.
_TANH_P = Table((-0.3333332, -0.0015500309), (-0.3333333333333333, -0.020499817663349913, -0.00019922318307870397))
_TANH_Q = Table((1.0, 0.4046419), (1.0, 0.4614994529900444, 0.023292688840603985, 0.00020658208808202553))
# Beyond this x + sqrt(x**2 + 1) is 2*x.
_LARGE = Table((2.0**13,), (2.0**28,))
# (atanh(s) - s) / s**3 in s**2 for |s| <= 0.203, error relative to atanh 2**-35.1 and 2**-62.1.
_ATANH = Table(
    (0.3333333, 0.20000468, 0.14251648, 0.12077711),
    (0.33333333333333287, 0.20000000000036047, 0.142857142761646, 0.11111112333231181, 0.09090822563704597,
     0.07695874795735325, 0.06581722020400319, 0.06954304066814575),
)  # fmt: skip


def sinh(x: Real) -> Real:
    """The hyperbolic sine, to 2 ulp, by addition: sinh(n*ln2)*cosh(r) + cosh(n*ln2)*sinh(r)."""
    size = abs(x)
    s, c, sinh_r, cosh_r_minus_1 = _hyperbolic_parts(size)
    half = s + fma(s, cosh_r_minus_1, c * sinh_r)
    return copysign(select(size < 2.0 ** -(x.lanes.fraction_bits // 2 + 2), size, half + half), x)


def cosh(x: Real) -> Real:
    """The hyperbolic cosine, to 2 ulp, by addition: cosh(n*ln2)*cosh(r) + sinh(n*ln2)*sinh(r)."""
    s, c, sinh_r, cosh_r_minus_1 = _hyperbolic_parts(abs(x))
    half = c + fma(c, cosh_r_minus_1, s * sinh_r)
    return half + half


def _hyperbolic_parts(x: Real) -> tuple[Real, Real, Real, Real]:
    """For x = n*ln2 + r >= 0: sinh(n*ln2)/2, cosh(n*ln2)/2, sinh(r), cosh(r) - 1."""
    bias = x.lanes.bias
    x = upper_bound(x, _SINH_BOUND.of(x)[0])
    n, biased = nearest_integer(x, LOG2_E)
    r, low = remainder_in_two_parts(x, n)
    square = r * r
    growing = power_of_two(biased - (bias + 2))
    falling = select(x < 60.0, power_of_two((3 * bias - 2) - biased), 0.0)
    sinh_r = r + fma(square * poly(square, _SINH), r, low)
    return growing - falling, growing + falling, sinh_r, square * poly(square, _COSH)


def tanh(x: Real) -> Real:
    """x + x**3 * P/Q for small x, else 1 - 2 / (exp(2x) + 1), to 2 ulp; one division does for both. Where lanes can
    look numbers up, by pieces.

    exp(2x) is 2**t with t = 2*log2(e) * x, rounded once: the constant in one part is wrong by 0.22 of 2**-24, and by
    0.13 of 2**-53, and where x is large the exponential counts little.
    """
    if x.lanes.has_look_up:
        return tanh_by_pieces(x)
    size = abs(x)
    is_small = size < 0.5625
    square = size * size
    bounded = upper_bound(size, _TANH_BOUND.of(x)[0])
    n, biased = nearest_integer(bounded, 2 * LOG2_E)
    rest = fma(bounded, 2 * LOG2_E, -n)
    grown = fma(poly(rest, EXP2), power_of_two(biased - x.lanes.bias), 1.0)
    numerator = select(is_small, size * square * poly(square, _TANH_P), -2.0)
    ratio = numerator / select(is_small, poly(square, _TANH_Q), grown)
    return copysign(select(is_small, size, 1.0) + ratio, x)


def arcsinh(x: Real) -> Real:
    """log(|x| + sqrt(x**2 + 1)) with the sign of x, to 2 ulp, as log1p of |x| + x**2 / (1 + sqrt(1 + x**2))."""
    size = abs(x)
    square = size * size
    is_large = size > _LARGE.of(x)[0]
    grown = size + square / (sqrt(square + 1.0) + 1.0)
    total, lost = two_sum(grown, 1.0)
    value = _log_of_sum(select(is_large, size, total), select(is_large, 0.0, lost), is_large)
    return copysign(select(size < inf, value, size), x)


def arccosh(x: Real) -> Real:
    """log(x + sqrt(x**2 - 1)), to 2 ulp, as log1p of t + sqrt(t*(t + 2)) with t = x - 1; NaN below 1."""
    t = x - 1.0
    is_large = x > _LARGE.of(x)[0]
    grown, lost = fast_two_sum(sqrt(fma(t, t, t + t)), t)
    total, more_lost = two_sum(grown, 1.0)
    value = _log_of_sum(select(is_large, x, total), select(is_large, 0.0, lost + more_lost), is_large)
    return select(x < 1.0, nan, select(x < inf, value, x))


def _log_of_sum(x: Real, low: Real, doubled: Mask) -> Real:
    """log(x + low), or log(2x)."""
    k, f, lost = decompose(x, low)
    return log_of(k + select(doubled, x.like(1.0), 0.0), f, lost)


def arctanh(x: Real) -> Real:
    """log((1 + x) / (1 - x)) / 2, to 2 ulp.

    With 2**k near the quotient, (1 + x) / (1 - x) = 2**k * (1 + s) / (1 - s) gives k*ln2/2 + atanh(s), where s is
    one quotient of two fmas, and x itself for k = 0.
    """
    lanes, size = x.lanes, abs(x)
    half_step = 1 << (lanes.fraction_bits - 1)
    steps = ((size + 1.0).bits() - (1.0 - size).bits() + half_step) >> lanes.fraction_bits
    power = power_of_two(steps + lanes.bias)
    implicit = 2.0**lanes.fraction_bits
    k = (steps | x.like(implicit).bits()).real() - implicit
    above, below = power + 1.0, 1.0 - power
    is_large = size > 0.5
    t = select(is_large, size - 1.0, size)
    s = fma(t, select(is_large, power, above), select(is_large, size + 1.0, below)) / fma(
        t, select(is_large, -power, below), select(is_large, size + 1.0, above)
    )
    square = s * s
    ln2_high, ln2_low = LN2.of(x)
    tail = fma(square * s, poly(square, _ATANH), k * (0.5 * ln2_low))
    value = fma(k, 0.5 * ln2_high, s + tail)
    return copysign(select(size < 1.0, value, select(size.equals(1.0), inf, nan)), x)
