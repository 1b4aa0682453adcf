"""gammaln, the logarithm of the gamma function, and its derivatives digamma and polygamma1; not gamma itself.

Large arguments take Stirling's series (as minimax polynomials), small ones the recurrence and one polynomial.
Negative arguments, which are rare, add the terms of the reflection formula in a branch of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from jitgrad.compiler.vecmath.lanes import Mask, Real, Table, fma, poly, rarely, rint, select, two_product
from jitgrad.compiler.vecmath.logarithmic import LN2, decompose_any, log_of, log_terms
from jitgrad.compiler.vecmath.trigonometric import sine_of_half_turns

_PI = 3.141592653589793
_LOG_PI = 1.1447298858494002
_PI_SQUARED = Table((9.869604, 2.903716e-07), (9.869604401089358, 6.265295508739711e-16))
# lgamma(2 + t) / t for -0.5875 <= t <= 1/2: its value at 0 in two parts, and the rest divided by t; error
# 2**-26.6 and 2**-57.
_LGAMMA_2 = Table((0.42278432846069336, 6.637774e-09), (0.42278433509846713, 4.942915152430645e-18))
_LGAMMA = Table(
    (0.32246703, -0.067352034, 0.020581279, -0.0073920884, 0.0028818164, -0.0011456258, 0.00056306913,
     -0.0003362526),
    (0.3224670334241132, -0.06735230105319791, 0.02058080842778789, -0.007385551028697838,
     0.002890510330498572, -0.001192753910710403, 0.000509669532616284, -0.00022315477801351403,
     9.945737512232735e-05, -4.492603188249857e-05, 2.0508629450484832e-05, -9.440637627771164e-06,
     4.366002656200825e-06, -2.036290673641479e-06, 9.88480145015035e-07, -4.487345583210674e-07,
     1.4176390957332228e-07, -1.1784808234500168e-07, 1.1549652983881686e-07),
)  # fmt: skip
# (lgamma(x) - (x - 1/2)*(log(x) - 1) - (log(2*pi) - 1)/2) * x in x**-2 for x >= 8, errors below 2**-32 and
# 2**-61.
_STIRLING = Table(
    (0.083333276, -0.0027626508),
    (0.0833333333333331, -0.002777777777362826, 0.0007936505776972163, -0.0005951898392129377,
     0.000836467675226951, -0.0016336288549093046),
)  # fmt: skip
_STIRLING_CONSTANT = 0.4189385332046727

# The positive zero of digamma in two parts.
_ROOT = Table((1.4616321325302124, 1.243815e-08), (1.4616321449683622, 9.549995429965697e-17))
# digamma(x) / (x - root) in (x - K) / (x + K) for 1 <= x <= 4, error 2**-26.5 and 2**-53.8; first K.
_DIGAMMA_CENTRE = Table((1.8173828125,), (1.9169921875,))
_DIGAMMA = Table(
    (0.8368884, -1.1127788, 0.75842816, -0.79234666, 0.7434057, -0.7640562, 0.7416489, -0.74493825,
     0.80405754, -0.93312943, 0.6188096),
    (0.8077314510643049, -1.0731911933581375, 0.7256917482566276, -0.7546322987420476, 0.7058920111209691,
     -0.7245837980215541, 0.707951446554381, -0.718753566581227, 0.7101358636449067, -0.7167719225681681,
     0.7113768369675257, -0.7158031867195791, 0.7121206144600059, -0.7153426928575269, 0.7120248768313651,
     -0.7131808128646041, 0.7182164736691485, -0.7345919350844422, 0.680604165449416, -0.572578432006723,
     0.7894831386733112, -1.2584520582325789, 0.8637132699810255),
)  # fmt: skip
# (digamma(x) - log(x) + 1/(2*x)) * x**2 in x**-2 for x >= 4, errors below 2**-31 and 2**-57.
_DIGAMMA_TAIL = Table(
    (-0.08333319, 0.008318518, -0.003535614),
    (-0.08333333333332416, 0.0083333333271952, -0.003968252547885264, 0.004166504058407554,
     -0.007565059088420772, 0.02065570363040417, -0.07174610406142745, 0.23733923400695947,
     -0.4655200071291847),
)  # fmt: skip
# polygamma(1, x) * x in (x - K) / (x + K) for 1 <= x <= 4, error 2**-25.3 and 2**-56.1; first K.
_TRIGAMMA_CENTRE = Table((2.1650390625,), (2.03515625,))
_TRIGAMMA = Table(
    (1.2651647, -0.5940268, 0.70913035, -0.79661375, 0.85445696, -0.8902226, 0.9238785, -0.8960082, 0.70936,
     -1.160993, 1.9919661),
    (1.2842362992305951, -0.6396616973510665, 0.7669212347363116, -0.8607995180059638, 0.9206082396798277,
     -0.9538325567000429, 0.9702069494716385, -0.9775570324647783, 0.9806560972377409, -0.9819151165615533,
     0.9824154447173994, -0.982593548061518, 0.9826178613957492, -0.9830188050198344, 0.9839130562433103,
     -0.9780131524845832, 0.9679386699075404, -1.0289776856111372, 1.1002153140256996, -0.7033072728393052,
     0.41901316479713197, -1.8925007381240988, 2.3819417035097246),
)  # fmt: skip
# (polygamma(1, x) - 1/x - 1/(2*x**2)) * x**3 in x**-2 for x >= 4, errors below 2**-33 and 2**-57.
_TRIGAMMA_TAIL = Table(
    (0.16666661, -0.03332473, 0.023381067, -0.024500964),
    (0.16666666666664898, -0.03333333331892143, 0.02380951972630551, -0.03333275580090271,
     0.07570998080450243, -0.25062992547887275, 1.0803569649012261, -5.01926185310819, 19.018838676841114,
     -38.68842001157036),
)  # fmt: skip


def gammaln(x: Real) -> Real:
    """log|gamma(x)|, to 4 ulp; below 0, of the largest term of the reflection. inf at 0, -1, -2, ...; -inf at -inf.

    From 8 on Stirling's series. Below, with n near x and t = x - n, lgamma(2 + t) from a polynomial, and the log of
    (t + 2) * ... * (t + n - 1) added, or for n < 2 that of x or x*(x + 1) subtracted.
    """
    size = abs(x)
    is_large = size > 8.0
    n = select((size > 1.4140625) & (size < 2.0), 2.0, rint(size))
    t = size - n
    factor = select(n < 1.0, size * (size + 1.0), select(n < 2.0, size, 1.0))
    for step in range(2, 8):
        factor = select(n > step, factor * (t + step), factor)
    k, f = decompose_any(select(is_large, size, factor))
    value = select(is_large, _stirling(size, log_of(k, f)), _lgamma_near_2(t, n < 2.0, k, f))
    value = select(size.equals(0.0) | size.equals(inf), inf, value)
    return _reflected(x, value, _gammaln_reflected)


def _stirling(x: Real, log: Real) -> Real:
    inverse = 1.0 / x
    tail = fma(inverse, poly(inverse * inverse, _STIRLING), _STIRLING_CONSTANT)
    return fma(x - 0.5, log - 1.0, tail)


def _lgamma_near_2(t: Real, is_subtracted: Mask, k: Real, f: Real) -> Real:
    """lgamma(2 + t) + (k*ln2 + log(1 + f)), or minus; where t - f would cancel, the first coefficient has it."""
    ln2_high, ln2_low = LN2.of(t)
    near_2, near_2_low = _LGAMMA_2.of(t)
    half_square, tail = log_terms(f)
    log_rest = fma(k, ln2_low, tail) - half_square
    cancels = is_subtracted & f.equals(t)
    slope = select(cancels, t.like(near_2 - 1.0), near_2)
    k, f, log_rest = (select(is_subtracted, -part, part) for part in (k, f, log_rest))
    rest = fma(t, fma(t, poly(t, _LGAMMA), near_2_low), log_rest)
    return fma(k, ln2_high, fma(t, slope, rest) + select(cancels, 0.0, f))


def _gammaln_reflected(x: Real, of_size: Real) -> Real:
    """log(pi / |x * sin(pi*x)|) - lgamma(|x|), but near 0, where the product is denormal, lgamma(|x|)."""
    size = abs(x)
    sine = abs(sine_of_half_turns(size - rint(size))[0])
    logarithm = log_of(*decompose_any(size * sine))
    value = select(sine.equals(0.0), inf, (_LOG_PI - logarithm) - of_size)
    return select(size < 2.0**-60, of_size, select(size.equals(inf), -inf, value))


def digamma(x: Real) -> Real:
    """The derivative of gammaln, to 4 ulp; below 0, of the largest term of the reflection. NaN at -1, -2, ...

    Below 1 it is digamma(x + 1) - 1/x, with the small difference x + 1 - root taken exactly; below 0 reflected.
    """
    is_negative = x < 0.0
    positive = select(is_negative, 1.0 - x, x)
    is_tiny, is_large = positive < 1.0, positive > 4.0
    root, root_low = _ROOT.of(x)
    inverse = 1.0 / positive
    lost = select(is_negative, (1.0 - positive) - x, 0.0)
    distance = (positive - select(is_tiny, x.like(root - 1.0), root)) + (lost - root_low)
    small = distance * poly(_ratio(positive, is_tiny, _DIGAMMA_CENTRE), _DIGAMMA)
    square = inverse * inverse
    log = log_of(*decompose_any(positive))
    large = log + fma(square, poly(square, _DIGAMMA_TAIL), -0.5 * inverse)
    value = select(is_large, large, small - select(is_tiny, inverse, 0.0))
    value = select(positive.equals(inf), inf, value)
    return _reflected(x, value, _digamma_reflected)


def _digamma_reflected(x: Real, of_complement: Real) -> Real:
    """digamma(1 - x) - pi / tan(pi*x)."""
    part = x - rint(x)
    cosine, _ = sine_of_half_turns(0.5 - abs(part))
    sine, _ = sine_of_half_turns(part)
    return select(part.equals(0.0), nan, fma(cosine / sine, -_PI, of_complement))


def polygamma1(x: Real) -> Real:
    """The second derivative of gammaln (trigamma), to 4 ulp; inf at 0, -1, -2, ...; reflected below 0."""
    is_negative = x < 0.0
    positive = select(is_negative, 1.0 - x, x)
    is_tiny, is_large = positive < 1.0, positive > 4.0
    inverse = 1.0 / positive
    square = inverse * inverse
    shifted = select(is_tiny, positive + 1.0, positive)
    small = poly(_ratio(positive, is_tiny, _TRIGAMMA_CENTRE), _TRIGAMMA) / shifted + select(is_tiny, square, 0.0)
    large = fma(square, fma(inverse, poly(square, _TRIGAMMA_TAIL), 0.5), inverse)
    return _reflected(x, select(is_large, large, small), _polygamma1_reflected)


def _polygamma1_reflected(x: Real, of_complement: Real) -> Real:
    """(pi / sin(pi*x))**2 - polygamma(1, 1 - x)."""
    pi_squared, pi_squared_low = _PI_SQUARED.of(x)
    sine, sine_low = sine_of_half_turns(x - rint(x))
    square, error = two_product(sine, sine)
    ratio = pi_squared / square
    square_low = fma(sine + sine, sine_low, error)
    residual = fma(-ratio, square_low, fma(-ratio, square, pi_squared)) + pi_squared_low
    value = ratio + fma(residual * ratio, 1 / pi_squared, -of_complement)
    return select(ratio.equals(inf) | x.equals(-inf), inf, value)


def _ratio(x: Real, is_shifted: Mask, centre: Table) -> Real:
    """(y - K) / (y + K) for y = x, or x + 1."""
    (k,) = centre.of(x)
    return (x - select(is_shifted, x.like(k - 1.0), k)) / (x + select(is_shifted, x.like(k + 1.0), k))


def _reflected(x: Real, value: Real, reflection: Callable[[Real, Real], Real]) -> Real:
    """The value, but where x < 0 the reflection of it."""
    return rarely(x < 0.0, lambda: reflection(x, value), value)
