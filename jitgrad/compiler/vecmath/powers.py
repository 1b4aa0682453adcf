"""Powers and roots: power, cbrt, hypot; square roots are an instruction and need no function.

power(x, y) = exp(y * log|x|) with the logarithm as a sum of two numbers, about twice as precise, since an
absolute error of y * log|x| is a relative one of the result.
"""

from __future__ import annotations

from math import inf, nan

from jitgrad.compiler.vecmath.exponential import EXP, EXP_BOUNDS, LOG2_E, nearest_integer, remainder, scaled
from jitgrad.compiler.vecmath.lanes import (
    Mask,
    Real,
    Table,
    copysign,
    fast_two_sum,
    fma,
    lower_bound,
    poly,
    rint,
    select,
    sqrt,
    two_product,
    upper_bound,
)
from jitgrad.compiler.vecmath.logarithmic import decompose_any

# ln2 with the leading part short enough for exact products with an exponent, and 2/3, each in two parts.
_LN2 = Table((0.693145752, 1.42860677e-06), (0.6931471805598903, 5.497923018708371e-14))
_TWO_THIRDS = Table((0.6666667, -1.9868216e-08), (0.6666666666666666, 3.700743415417188e-17))
# (2*atanh(s)/s - 2 - 2/3*s**2) / s**4 in s**2 for |s| <= 0.1716, error relative to atanh
# 2**-36.8 and 2**-66.3.
_ATANH = Table(
    (0.40000153, 0.28547087, 0.23419762),
    (0.4000000000000227, 0.28571428570091245, 0.22222222521472912, 0.18181784226350586, 0.15386764036839598,
     0.13256656789287777, 0.13197864507370158),
)  # fmt: skip

# 1/3, 2/9, 14/81: (1 - h)**(-1/3) = 1 + h * (1/3 + 2/9*h + 14/81*h**2 + ...).
_BINOMIAL = (1 / 3, 2 / 9, 14 / 81)
# Below the first number, cbrt multiplies by the second, a cube, and the root by the third.
_CBRT_SCALES = Table((2.0**-64, 2.0**72, 2.0**-24), (2.0**-600, 2.0**600, 2.0**-200))
# What to take from the rough logarithm so that |1 - x * r**3| is at most 0.102.
_CBRT_OFFSET = 0.06805
# Above the first number, hypot multiplies by the second; below the third by the fourth.
_HYPOT_SCALES = Table((2.0**60, 2.0**-70, 2.0**-50, 2.0**100), (2.0**500, 2.0**-600, 2.0**-450, 2.0**600))


def power(x: Real, y: Real) -> Real:
    """x**y to 2 ulp, with the special cases of IEEE 754 `pow`, which are NumPy's."""
    size = abs(x)
    y_rounded, y_half = rint(y), 0.5 * y
    is_integer = y_rounded.equals(y)
    is_odd = is_integer & ~rint(y_half).equals(y_half)
    value = _power_of_positive(size, y)
    is_extreme = size.equals(0.0) | size.equals(inf) | abs(y).equals(inf)
    value = select(is_extreme, _power_of_extreme(size, y), value)
    value = copysign(value, select(is_odd, x, 1.0))
    is_undefined = ((x < 0.0) & (size < inf) & ~is_integer) | x.is_unordered(y)
    return select(x.equals(1.0) | y.equals(0.0), 1.0, select(is_undefined, nan, value))


def _power_of_extreme(size: Real, y: Real) -> Real:
    """The power where the base is 0 or inf, or the exponent infinite."""
    grows: Mask = (size > 1.0) ^ (y < 0.0)
    return select(size.equals(1.0), 1.0, select(grows, inf, 0.0))


def _power_of_positive(x: Real, y: Real) -> Real:
    low, high = EXP_BOUNDS.of(x)
    log_high, log_low = _log_in_two_parts(x)
    product, error = two_product(log_high, y)
    bounded = lower_bound(upper_bound(product, high), low)
    n, biased = nearest_integer(bounded, LOG2_E)
    tail = select(bounded.equals(product), fma(log_low, y, error), 0.0)
    return scaled(poly(remainder(bounded, n) + tail, EXP), n, biased)


def _log_in_two_parts(x: Real) -> tuple[Real, Real]:
    """log(x) for x > 0 as an unevaluated sum, good to about 1.2 times the precision in digits.

    With s = f / (2 + f): log(1 + f) = s * (2 + s**2 * (2/3 + s**2 * P(s**2))), all but P in two parts.
    """
    k, f = decompose_any(x)
    ln2_high, ln2_low = _LN2.of(x)
    third_high, third_low = _TWO_THIRDS.of(x)
    divisor = f + 2.0
    inverse = 1.0 / divisor
    s = f * inverse
    s_low = fma(f - (divisor - 2.0), -s, fma(s, -divisor, f)) * inverse
    z, z_error = two_product(s, s)
    u, u_low = fast_two_sum(x.like(third_high), fma(z, poly(z, _ATANH), third_low))
    w, w_error = two_product(z, u)
    w_low = fma(fma(s + s, s_low, z_error), u, fma(z, u_low, w_error))
    t, t_error = fast_two_sum(x.like(2.0), w)
    product, product_error = two_product(s, t)
    product_low = fma(s_low, t, fma(s, t_error + w_low, product_error))
    high, error = fast_two_sum(k * ln2_high, product)
    return fast_two_sum(high, fma(k, ln2_low, error + product_low))


def cbrt(x: Real) -> Real:
    """The cube root, to 1 ulp.

    The encoding of |x| is a rough logarithm; divided by -3 it encodes r, the inverse root to 4 %. Two steps of
    order four make r exact but for rounding, and x * r**2 is corrected once by its own residual.
    """
    tiny, up, down = _CBRT_SCALES.of(x)
    size = abs(x)
    is_tiny = size < tiny
    a = select(is_tiny, size * up, size)
    r = _rough_inverse_cube_root(a)
    for _ in range(2):
        h = fma(a * r, -(r * r), 1.0)
        r = fma(r * h, poly(h, _BINOMIAL), r)
    square = r * r
    root = a * square
    root_square, error = two_product(root, root)
    residual = fma(root_square, root, -a) + error * root
    root = fma(residual * square, -1 / 3, root)
    root = select(is_tiny, root * down, root)
    return copysign(select((size > 0.0) & (size < inf), root, size), x)


def _rough_inverse_cube_root(x: Real) -> Real:
    lanes = x.lanes
    shift = lanes.width - lanes.fraction_bits
    magic = 2.0**lanes.fraction_bits
    encoding = ((x.bits() >> shift) | x.like(magic).bits()).real() - magic
    offset = (4 / 3 * lanes.bias - _CBRT_OFFSET) * 2.0 ** (lanes.fraction_bits - shift)
    third = fma(encoding, -1 / 3, magic + offset)
    return (third.bits() << shift).real()


def hypot(x: Real, y: Real) -> Real:
    """sqrt(x**2 + y**2), to 1.5 ulp, without overflow or underflow in between; infinite if either side is."""
    huge, down, tiny, up = _HYPOT_SCALES.of(x)
    x, y = abs(x), abs(y)
    is_larger = x > y
    larger, smaller = select(is_larger, x, y), select(is_larger, y, x)
    is_huge, is_tiny = larger > huge, larger < tiny
    scale = select(is_huge, down, select(is_tiny, x.like(up), 1.0))
    unscale = select(is_huge, 1 / down, select(is_tiny, x.like(1 / up), 1.0))
    a, b = larger * scale, smaller * scale
    root = sqrt(fma(a, a, b * b)) * unscale
    return select(x.equals(inf) | y.equals(inf), inf, root)
