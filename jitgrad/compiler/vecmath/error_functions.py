"""The error function, its complement and its inverse; not the gamma functions."""

from __future__ import annotations

from jitgrad.compiler.vecmath.exponential import (
    EXP2,
    LOG2_E,
    expm1_tail,
    nearest_integer,
    remainder_in_two_parts,
    scaled,
)
from jitgrad.compiler.vecmath.lanes import Real, Table, copysign, fma, poly, power_of_two, select, two_product, upper_bound

# Where erf passes from its odd polynomial to 1 - erfc, and where it is 1.
_ERF_LIMITS = Table((1.0, 3.9375), (1.25, 5.9375))
# erf(x)/x - 1 in x**2 up to the first limit, error relative to erf 2**-29.0 and 2**-56.2.
_ERF = Table(
    (0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.0051871645, -0.00079978845, 7.807049e-05),
    (0.1283791670955126, -0.37612638903184004, 0.1128379167096358, -0.026866170646252806, 0.0052239776331687885,
     -0.0008548327338966285, 0.0001205534117954187, -1.4925790767676134e-05, 1.6463710902412896e-06,
     -1.6377550846312875e-07, 1.4856557218702451e-08, -1.23506489875555e-09, 8.953711643376979e-11,
     -4.251794688929668e-12),
)  # fmt: skip
# log2(erfc(x)) between the limits, such that erf has relative error 2**-28.8 and 2**-57.0.
_LOG2_ERFC = Table(
    (-0.0004927213, -1.626046, -0.92064846, -0.14875156, 0.03150564, -0.004252565, 0.00026888758),
    (-6.321827673014598e-06, -1.6278530090865064, -0.9186641492043133, -0.14773301687299958, 0.026669150365371496,
     0.0014841931182141292, -0.003595606035380401, 0.0017143184065427993, -0.0005382889524490511,
     0.0001256227650267295, -2.229721877836329e-05, 2.978897025959792e-06, -2.8961754609061173e-07,
     1.9225647406479686e-08, -7.708483397212437e-10, 1.3820636011820029e-11),
)  # fmt: skip
# erfc(x) * exp(x**2) * (1 + 2*x) = P((x - K) / (x + K)) for x up to the bound, where erfc is 0; first K and the bound.
_ERFC_RANGE = Table((2.0419921875, 10.2), (4.134765625, 27.4))
# Relative error 2**-25.9 and 2**-55.1.
_ERFC = Table(
    (1.2759969, -0.09615043, -0.15991984, 0.16507272, -0.059678774, -0.0051238476, 0.009053569, 0.00060818595,
     -0.0013607327, -0.0002500612, 6.543334e-05),
    (1.2306865908298008, -0.13901910867458153, 0.020894740821009384, 0.0609479610565321, -0.09648514886747743,
     0.0935229501681275, -0.06952525801449597, 0.04153724389486596, -0.01985391109384914, 0.007220788881083864,
     -0.001684892259156438, 3.080698153833252e-05, 0.0001594933823537668, -5.7575783523038554e-05,
     -7.336937339555621e-07, 7.088808415794422e-06, -1.5687177117285092e-06, -6.162797817288662e-07,
     3.0882566075293566e-07, 4.9804718044007244e-08, -3.952725748873202e-08, -5.405145369300852e-09,
     1.7671073693975124e-09),
)  # fmt: skip


def erf(x: Real) -> Real:
    """The error function, to 1.5 ulp: an odd polynomial, or 1 - 2**P(|x|), whose error counts less than 1/5."""
    turn, end = _ERF_LIMITS.of(x)
    size = abs(x)
    square = size * size
    inner = fma(size, poly(square, _ERF), size)
    exponent = poly(upper_bound(size, end), _LOG2_ERFC)
    n, biased = nearest_integer(exponent, 1.0)
    complement = poly(exponent - n, EXP2) * power_of_two(biased - x.lanes.bias)
    return copysign(select(size < turn, inner, 1.0 - complement), x)


def erfc(x: Real) -> Real:
    """1 - erf(x), to 2 ulp, also where it is tiny (Shepherd & Laframboise 1981); for x < 0 it is 2 - erfc(|x|).

    exp(-x**2) is 2**n * (1 + e) with x**2 in two parts; the division by 1 + 2*x is corrected by its residual.
    """
    centre, end = _ERFC_RANGE.of(x)
    size = upper_bound(abs(x), end)
    numerator = poly((size - centre) / (size + centre), _ERFC)
    divisor = fma(size, 2.0, 1.0)
    scale = numerator / divisor
    residual = fma(-scale, divisor, numerator) - scale * fma(size, 2.0, 1.0 - divisor)
    square, error = two_product(size, size)
    n, biased = nearest_integer(square, -LOG2_E)
    r, low = remainder_in_two_parts(-square, n)
    growth = r + expm1_tail(r, low - error)
    value = scaled(scale + fma(scale, growth, residual * scale), biased)
    return select(x < 0.0, 2.0 - value, value)
