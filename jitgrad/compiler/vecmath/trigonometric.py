"""sin, cos and tan over the whole range; not their inverses.

Up to a limit the argument is reduced by Cody & Waite's method with pi in three parts, the first difference exact
in the fma; sin and cos reduce by pi, so that one polynomial on |r| <= pi/2 does. Larger arguments, which are rare,
are recomputed lane by lane in a function of their own (`large_arguments`).
"""

from __future__ import annotations

from jitgrad.compiler.vecmath.lanes import (
    Bits,
    Real,
    Table,
    fast_two_sum,
    fma,
    lower_bound,
    poly,
    select,
    two_product,
    two_sum,
    upper_bound,
)
from jitgrad.compiler.vecmath.large_arguments import Angle, recomputed

_INVERSE_PI = 0.3183098861837907
_HALF_PI = 1.5707963267948966
# Up to here n is right and n times the part of pi left out is far below an ulp of the rest.
_LIMIT = Table((2.0**17,), (2.0**27,))
_PI = Table(
    (3.1415927, -8.742278e-08, -3.4302273e-15),
    (3.141592653589793, 1.2246467991473532e-16, -2.9947698097183397e-33),
)
# (sin(r) - r) / r**3 in r**2 on |r| <= pi/2, relative error 2**-27.2 and 2**-61.5.
_SIN = Table(
    (-0.16666667, 0.0083333505, -0.00019843093, 2.7627061e-06, -2.5503322e-08),
    (-0.16666666666666666, 0.008333333333333207, -0.00019841269841212506, 2.755731921158013e-06,
     -2.5052106905910187e-08, 1.6058941098378446e-10, -7.643022304049841e-13, 2.721453829374664e-15),
)  # fmt: skip

# (tan(r) - r) / r**3 in r**2 on |r| <= pi/4, relative error 2**-29.5 and 2**-56.1.
_TAN = Table(
    (0.3333335, 0.13332672, 0.05405942, 0.021283044, 0.01083668, 8.549899e-05, 0.0043794145),
    (0.3333333333333276, 0.13333333333417108, 0.0539682539254798, 0.021869489637507376, 0.008863218762225119,
     0.0035922927108166295, 0.0014547358660647208, 0.0005951579159040439, 0.00022210445963046416,
     0.00013709416915704117, -2.7189789759260847e-05, 9.019290599299362e-05, -4.527743607825696e-05,
     2.0959931002950203e-05),
)  # fmt: skip


def sin(x: Real) -> Real:
    """The sine, to 2 ulp: (-1)**n * sin(|x| - n*pi) with the sign of x."""
    size = abs(x)
    magic = 1.5 * 2.0**x.lanes.fraction_bits
    shifted = fma(size, _INVERSE_PI, magic)
    value = _sine(_reduced(size, shifted - magic))
    fast = _with_sign(value, _odd(shifted))
    return _with_sign(recomputed("sine", x, fast, _LIMIT.of(x)[0], _sine_of_angle), x.bits() & _sign_bit(x))


def cos(x: Real) -> Real:
    """The cosine, to 2 ulp: sin(|x| - (n - 1/2)*pi) for even n, its negative for odd."""
    size = abs(x)
    magic = 1.5 * 2.0**x.lanes.fraction_bits
    shifted = fma(size, _INVERSE_PI, 0.5) + magic
    fast = _with_sign(_sine(_reduced(size, (shifted - magic) - 0.5)), _odd(shifted))
    return recomputed("sine", x, fast, _LIMIT.of(x)[0], _sine_of_angle, 1)


def tan(x: Real) -> Real:
    """The tangent, to 2 ulp: of r = |x| - n*pi/2 for even n, -1 / tan(r) for odd, with the sign of x."""
    size = abs(x)
    magic = 1.5 * 2.0**x.lanes.fraction_bits
    shifted = fma(size, 2 * _INVERSE_PI, magic)
    fast = _tangent(shifted.bits(), *_reduced_in_two_parts(size, (shifted - magic) * 0.5))
    return _with_sign(recomputed("tangent", x, fast, _LIMIT.of(x)[0], _tangent_of_angle), x.bits() & _sign_bit(x))


def sine_of_half_turns(turns: Real) -> tuple[Real, Real]:
    """sin(pi * turns) for |turns| <= 1/2 as a number and what rounding it lost.

    What rounding pi * turns lost is added to the small terms, times about its cosine.
    """
    high, low, _ = _PI.of(turns)
    r, error = two_product(turns, high)
    square = r * r
    lost = fma(turns, low, error) * fma(square, -0.405, 1.0)
    return fast_two_sum(r, fma(square * poly(square, _SIN), r, lost))


def _sine(r: Real) -> Real:
    square = r * r
    return lower_bound(upper_bound(fma(square * poly(square, _SIN), r, r), 1.0), -1.0)


def _tangent(quadrant: Bits, r: Real, low: Real) -> Real:
    """tan(r + low), or -1 / tan(r + low), corrected for what rounding the tangent lost."""
    square = r * r
    factor = square * poly(square, _TAN)
    tangent = fma(factor, r, r)
    lost = fma(factor, r, r - tangent) + fma(square, low, low)
    is_odd = (quadrant & 1).equals(1)
    ratio = select(is_odd, -1.0, tangent) / select(is_odd, tangent, 1.0)
    return fma(lost, select(is_odd, ratio * ratio, 1.0), ratio)


def _sine_of_angle(angle: Angle) -> Real:
    is_odd = (angle.quadrant & 1).equals(1)
    folded = select(is_odd, _HALF_PI - abs(angle.rest), angle.rest)
    return _with_sign(_sine(folded), (angle.quadrant >> 1) << 63)


def _tangent_of_angle(angle: Angle) -> Real:
    return _tangent(angle.quadrant, angle.rest, angle.low)


def _reduced(x: Real, turns: Real) -> Real:
    """x - turns*pi; the first difference is exact."""
    for part in _PI.of(x):
        x = fma(turns, -part, x)
    return x


def _reduced_in_two_parts(x: Real, turns: Real) -> tuple[Real, Real]:
    """x - turns*pi as a rounded number and what rounding lost, also where almost everything cancels."""
    first, second, third = _PI.of(x)
    product, error = two_product(turns, second)
    difference, lost = two_sum(fma(turns, -first, x), -product)
    return fast_two_sum(difference, lost - fma(turns, third, error))


def _sign_bit(x: Real) -> int:
    return 1 << (x.lanes.width - 1)


def _odd(shifted: Real) -> Bits:
    """The lowest bit, where the sign is."""
    return shifted.bits() << (shifted.lanes.width - 1)


def _with_sign(value: Real, sign: Bits) -> Real:
    return (value.bits() ^ sign).real()
