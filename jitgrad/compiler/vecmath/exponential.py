"""Exponentials: exp, exp2, expm1, and the logistic functions that are made of them; no logarithm of its own.

All reduce x = n*ln2 + r with |r| <= ln2/2 (Cody & Waite 1980; ln2 is in two parts, and the products are exact in
the fma), take a minimax polynomial in r, and multiply by 2**n. The integer n is found by adding 1.5 * 2**p, which
leaves it in the low bits of the sum, biased so that shifting those into the exponent field makes a power of two.
"""

from __future__ import annotations

from jitgrad.compiler.vecmath.lanes import (
    Bits,
    Real,
    Table,
    fma,
    lower_bound,
    poly,
    power_of_two,
    select,
    times_power_of_two,
    two_sum,
    upper_bound,
)
from jitgrad.compiler.vecmath.logarithmic import log1p_unit

LOG2_E = 1.4426950408889634
LN2 = Table((0.6931472, -1.9046542e-09), (0.6931471805599453, 2.3190468138462996e-17))

# exp(r) on |r| <= ln2/2, relative error 2**-28.2 and 2**-57.9.
EXP = Table(
    (1.0, 1.0, 0.49999994, 0.16666515, 0.041668106, 0.008369357, 0.0013838599),
    (1.0, 1.0, 0.5000000000000011, 0.16666666666666421, 0.04166666666652553, 0.008333333333485907,
     0.001388888894497424, 0.00019841269531588375, 2.48014915943296e-05, 2.7557558179068043e-06,
     2.763082047407817e-07, 2.5010828214100398e-08),
)  # fmt: skip
# 2**r on |r| <= 1/2, relative error 2**-28 and 2**-57.
EXP2 = Table(
    (1.0, 0.6931472, 0.24022594, 0.055503663, 0.009625442, 0.0013387903, 0.00013333972),
    (1.0, 0.6931471805599453, 0.24022650695910172, 0.055504108664824574, 0.009618129107577113,
     0.0013333558145567697, 0.00015403530478775388, 1.5252734737716176e-05, 1.3215424528984496e-06,
     1.017765617529637e-07, 7.075608221375388e-09, 4.5193094364432933e-10),
)  # fmt: skip
# (expm1(r) - r) / r**2 on the same interval, error relative to expm1 2**-26.0 and 2**-54.1.
_EXPM1 = Table(
    (0.49999997, 0.16666538, 0.04166741, 0.008367255, 0.001388118),
    (0.5000000000000006, 0.16666666666665497, 0.04166666666656517, 0.008333333334283419,
     0.0013888888936159477, 0.00019841267451875178, 2.480149938898292e-05, 2.755966790815931e-06,
     2.762842027121271e-07, 2.427842493857673e-08),
)  # fmt: skip
# Outside these bounds the result is 0 or inf, and the formula inside still says so.
EXP_BOUNDS = Table((-104.0, 89.0), (-746.0, 710.0))
_EXP2_BOUNDS = Table((-151.0, 128.0), (-1076.0, 1024.0))


def exp(x: Real) -> Real:
    """e**x, to 1 ulp."""
    bounded = exp_argument(x)
    n, biased = nearest_integer(bounded, LOG2_E)
    return scaled(poly(remainder(bounded, n), EXP), n, biased)


def exp_argument(x: Real) -> Real:
    """x, or the bound beyond which exp is 0 or inf; functions that go on as exp does share what they have in common."""
    low, high = EXP_BOUNDS.of(x)
    return lower_bound(upper_bound(x, high), low)


def exp2(x: Real) -> Real:
    """2**x, to 1 ulp."""
    low, high = _EXP2_BOUNDS.of(x)
    x = lower_bound(upper_bound(x, high), low)
    n, biased = nearest_integer(x, 1.0)
    return scaled(poly(x - n, EXP2), n, biased)


def expm1(x: Real) -> Real:
    """e**x - 1, to 1.5 ulp, also where it is small: 2 * (2**(n-1) * expm1(r) + (2**(n-1) - 1/2))."""
    high = EXP_BOUNDS.of(x)[1]
    bounded = lower_bound(upper_bound(x, high), -20.0 - 25.0 * x.lanes.is_double)
    n, biased = nearest_integer(bounded, LOG2_E)
    half_power = power_of_two(biased - (x.lanes.bias + 1))
    r, low = remainder_in_two_parts(bounded, n)
    grown = fma(expm1_tail(r, low), half_power, fma(r, half_power, half_power - 0.5))
    return select(abs(x) < 2.0 ** -(x.lanes.fraction_bits + 2), x, grown + grown)


def sigmoid(x: Real) -> Real:
    """1 / (1 + exp(-x)), to 2 ulp: with z = exp(-|x|) and t = z / (1 + z), it is 1 - t or, below 0, z - z*t."""
    z = exp_of_minus(abs(x))
    whole = select(x < 0.0, z, 1.0)
    return fma(-whole, z / (z + 1.0), whole)


def softplus(x: Real) -> Real:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), to 2 ulp."""
    return lower_bound(x, 0.0) + log1p_unit(exp_of_minus(abs(x)))


def log_sigmoid(x: Real) -> Real:
    """log(1 / (1 + exp(-x))) = -softplus(-x), to 2 ulp."""
    return -softplus(-x)


def logaddexp(x: Real, y: Real) -> Real:
    """log(exp(x) + exp(y)) = max + log1p(exp(-|x - y|)), to 2 ulp of the larger of max and the result.

    The difference is taken in two parts, since its rounding is a relative error of the exponential.
    """
    larger = select((x > y) | x.is_nan(), x, y)
    difference, lost = two_sum(x, -y)
    distance = select(x.equals(y), 0.0, abs(difference))
    towards = select(difference < 0.0, lost, -lost)
    return larger + log1p_unit(exp_of_minus(distance, select(abs(lost) < 1.0, towards, 0.0)))


def exp_of_minus(x: Real, low: Real | None = None) -> Real:
    """exp(-x) for x >= 0 or NaN; or exp(low - x) for a small number low."""
    bounded = -upper_bound(x, -EXP_BOUNDS.of(x)[0])
    n, biased = nearest_integer(bounded, LOG2_E)
    r = remainder(bounded, n)
    return scaled(poly(r if low is None else r + low, EXP), n, biased)


def nearest_integer(x: Real, factor: float) -> tuple[Real, Bits]:
    """n = rint(x * factor), and integers whose low bits hold n + 2 * bias."""
    magic = 1.5 * 2.0**x.lanes.fraction_bits + 2 * x.lanes.bias
    shifted = fma(x, factor, magic)
    return shifted - magic, shifted.bits()


def remainder(x: Real, n: Real) -> Real:
    """x - n*ln2, rounded once."""
    ln2_high, ln2_low = LN2.of(x)
    return fma(n, -ln2_low, fma(n, -ln2_high, x))


def remainder_in_two_parts(x: Real, n: Real) -> tuple[Real, Real]:
    """x - n*ln2 as a rounded number and what rounding lost."""
    ln2_high, ln2_low = LN2.of(x)
    high = fma(n, -ln2_high, x)
    r = fma(n, -ln2_low, high)
    return r, fma(n, -ln2_low, high - r)


def expm1_tail(r: Real, low: Real) -> Real:
    """expm1(r + low) - r for |r| <= ln2/2."""
    return fma(r * r, poly(r, _EXPM1), low)


def scaled(x: Real, n: Real, biased: Bits) -> Real:
    """x * 2**n, rounded once: by one instruction where there is one (exp of float32 takes 0.8 of the time), else by
    two factors that neither overflow nor are denormal, so that only the last product rounds.
    """
    if x.lanes.has_scaling:
        return times_power_of_two(x, n)
    half = biased >> 1
    return x * power_of_two(half) * power_of_two(biased - half)
