"""The error function, its complement and its inverse; not the gamma functions."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nan

from jitgrad.compiler.vecmath.exponential import (
    EXP,
    EXP2,
    LOG2_E,
    exp_argument,
    nearest_integer,
    remainder_in_two_parts,
    scaled,
)
from jitgrad.compiler.vecmath.lanes import (
    Real,
    Table,
    copysign,
    fma,
    poly,
    poly_behind,
    power_of_two,
    select,
    sqrt,
    upper_bound,
)
from jitgrad.compiler.vecmath.logarithmic import decompose_any, log_in_two_parts
from jitgrad.records import dataclass

# Where erf passes from its odd polynomial to 1 - erfc, and where it is 1.
_ERF_LIMITS = Table((1.0, 3.9375), (1.25, 5.9375))
# erf(x)/x - 1 in x**2 up to the first limit, error relative to erf 2**-29.0 and 2**-56.2.
_ERF = Table(
    (0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.0051871645, -0.00079978845, 7.807049e-05),
    (0.1283791670955126, -0.37612638903184004, 0.1128379167096358, -0.026866170646252806,
     0.0052239776331687885, -0.0008548327338966285, 0.0001205534117954187, -1.4925790767676134e-05,
     1.6463710902412896e-06, -1.6377550846312875e-07, 1.4856557218702451e-08, -1.23506489875555e-09,
     8.953711643376979e-11, -4.251794688929668e-12),
)  # fmt: skip
# log2(erfc(x)) between the limits, such that erf has relative error 2**-28.8 and 2**-57.0.
_LOG2_ERFC = Table(
    (-0.0004927213, -1.626046, -0.92064846, -0.14875156, 0.03150564, -0.004252565, 0.00026888758),
    (-6.321827673014598e-06, -1.6278530090865064, -0.9186641492043133, -0.14773301687299958,
     0.026669150365371496, 0.0014841931182141292, -0.003595606035380401, 0.0017143184065427993,
     -0.0005382889524490511, 0.0001256227650267295, -2.229721877836329e-05, 2.978897025959792e-06,
     -2.8961754609061173e-07, 1.9225647406479686e-08, -7.708483397212437e-10, 1.3820636011820029e-11),
)  # fmt: skip
# erfc(x) * exp(x**2) * (1 + 2*x) = P((x - K) / (x + K)) from 0.6 up to the bound, where erfc is 0, but not yet exp;
# K and the bound.
_ERFC_RANGE = Table((2.0419921875, 10.19), (4.134765625, 27.31))
# Relative error 2**-29.0 and 2**-56.4.
_ERFC = Table(
    (1.2759969, -0.096150346, -0.15991895, 0.16507022, -0.059693165, -0.0051054223, 0.009139362, 0.00056115066,
     -0.0015812139, -0.00021371827, 0.0002729907),
    (1.2306865908298008, -0.13901910867458117, 0.020894740821005096, 0.060947961056486095, -0.09648514886720641,
     0.09352295016981584, -0.06952525802108969, 0.04153724386603886, -0.019853911012446695, 0.007220789155234013,
     -0.001684892839587883, 3.080539650841798e-05, 0.00015949593425422647, -5.7569986392601636e-05,
     -7.408008340420573e-07, 7.075322381164244e-06, -1.5562373212745837e-06, -5.969362556809233e-07,
     2.9557836234588473e-07, 3.421028536445622e-08, -3.190342585213077e-08),
)  # fmt: skip


def erf(x: Real) -> Real:
    """The error function, to 1.5 ulp: an odd polynomial, or 1 - 2**P(|x|), whose error counts little."""
    turn, end = _ERF_LIMITS.of(x)
    size = abs(x)
    exponent = poly(upper_bound(size, end), _LOG2_ERFC)
    n, biased = nearest_integer(exponent, 1.0)
    complement = poly(exponent - n, EXP2) * power_of_two(biased - x.lanes.bias)
    return copysign(select(size < turn, _erf_near_0(size), 1.0 - complement), x)


def _erf_near_0(x: Real) -> Real:
    return fma(x, poly(x * x, _ERF), x)


def erfc(x: Real) -> Real:
    """1 - erf(x), to 2 ulp, also where it is tiny; for x < -5/8 it is 2 - erfc(|x|).

    The mapping of the half line to an interval is Shepherd & Laframboise's (1981). One division serves both quotients,
    by x + K and by 1 + 2*x, and the residual corrects the second. exp(-x**2) begins as exp of the rounded square, so
    that a gradient, which has that, shares it, and what rounding lost is made good to first order.
    """
    centre, end = _ERFC_RANGE.of(x)
    size = upper_bound(abs(x), end)
    first, *others = _ERFC.of(x)
    shifted, divisor = size + centre, fma(size, 2.0, 1.0)
    divisor_low = fma(size, 2.0, 1.0 - divisor)
    inverse = 1.0 / (shifted * divisor)
    q = (size - centre) * (divisor * inverse)
    rest = poly(q, others)
    numerator = fma(q, rest, first)
    numerator_low = fma(q, rest, first - numerator)
    inverse = shifted * inverse
    scale = numerator * inverse
    residual = fma(-scale, divisor, numerator) + fma(-scale, divisor_low, numerator_low)
    minus_square = exp_argument(-(x * x))
    n, biased = nearest_integer(minus_square, LOG2_E)
    r, low = remainder_in_two_parts(minus_square, n)
    bend = r * r * poly_behind(r, EXP.of(x))
    lost = fma(scale, low - fma(size, size, minus_square), residual * inverse)
    growth = fma(scale, r, fma(scale, bend, fma(lost, r + bend, lost)))
    value = scaled(scale + growth, n, biased)
    return select(abs(x) < 0.625, 1.0 - _erf_near_0(x), select(x < 0.0, 2.0 - value, value))


@dataclass(frozen=True, slots=True)
class _Piece:
    """From w = start on: a quotient of polynomials in w - start, numerator and denominator."""

    start: float
    numerator: tuple[float, ...]
    denominator: tuple[float, ...]


# With w = -log(1 - y**2): erfinv(y)/y - 1 - 15/64*w in the first piece, erfinv(y)/y - sqrt(w) in the
# others. Errors relative to erfinv 2**-28.3 and 2**-57.7.
_ERFINV_SLOPE = 15 / 64
_ERFINV_SINGLE = (
    _Piece(
        0.0,
        (-0.11377307, -0.018358964, 0.008552571, -0.0010566915, -0.00017852633),
        (1.0, 0.14060792, 0.023435287, 0.0025165463, -7.410892e-05, 0.0),
    ),
    _Piece(
        5.0,
        (-0.15625522, -0.07319115, -0.012275158, -0.0015415278, -6.612544e-05),
        (1.0, 0.4050221, 0.07794601, 0.008753883, 0.0004948926, 2.0868897e-06),
    ),
)
_ERFINV_DOUBLE = (
    _Piece(
        0.0,
        (-0.11377307454724199, -0.013900337808487456, 0.005190175696407451, -0.0017899264252763897,
         0.00014668777885558007, -4.923309932061628e-05, -8.590469609873394e-07, -3.275552133212702e-07,
         -1.519129339199049e-08),
        (1.0, 0.10142122280742531, 0.053788447211361834, 0.004387336083594776, 0.0008728011850773142,
         5.156413906661414e-05, 3.804237495893811e-06, 1.2064949848409515e-07, -1.3840451963029259e-09,
         1.952754328175063e-11),
    ),
    _Piece(
        6.25,
        (-0.1640546361892081, -0.081952355738504, -0.01825503844297927, -0.0026424376476654665,
         -0.00024949686085043703, -1.683244420370819e-05, -7.503290483863934e-07, -1.912821516644038e-08,
         -7.11703079642964e-11),
        (1.0, 0.4779321416279117, 0.11039018995986519, 0.015960110107039998, 0.0015714331065670095,
         0.00010910380655428721, 5.133627106188469e-06, 1.494806215792964e-07, 1.1706911413248715e-09, 0.0),
    ),
    _Piece(
        16.0,
        (-0.16021620258844635, -0.04759454811901348, -0.006664559272632392, -0.0005583645299059108,
         -2.9628994789766724e-05, -9.478900367063065e-07, -1.4102048748385424e-08, -6.810533774905351e-11,
         -4.7838843481067374e-14),
        (1.0, 0.30447110833101965, 0.04385951876009096, 0.0038012755068456993, 0.0002110999338152806,
         7.258652582408476e-06, 1.2833807486850322e-07, 8.794675500753319e-10, 1.3988370972449545e-12, 0.0),
    ),
)  # fmt: skip


def erfinv(y: Real) -> Real:
    """The inverse of erf, to 2 ulp: y times 1 + 15/64*w + R(w), or sqrt(w) + R(w), for w = -log(1 - y**2).

    After Giles (2010), but R is a quotient of polynomials whose coefficients are selected by w; it is small, so
    that its error counts little. In the first piece what rounding w and the line lost is made good.
    """
    complement = fma(-y, y, 1.0)
    log, log_low = log_in_two_parts(*decompose_any(complement))
    w = -log
    first, *others = _ERFINV_DOUBLE if y.lanes.is_double else _ERFINV_SINGLE
    starts = [w > piece.start for piece in others]

    def chosen(parts: Iterable[float]) -> Real:
        value, *rest = (y.like(part) for part in parts)
        for is_started, part in zip(starts, rest, strict=True):
            value = select(is_started, part, value)
        return value

    pieces = (first, *others)
    t = w - chosen(piece.start for piece in pieces)
    numerator = poly(t, [chosen(parts) for parts in zip(*(piece.numerator for piece in pieces), strict=True)])
    denominator = poly(t, [chosen(parts) for parts in zip(*(piece.denominator for piece in pieces), strict=True)])
    is_tail = starts[0]
    line = fma(w, _ERFINV_SLOPE, 1.0)
    lost = fma(log_low, -_ERFINV_SLOPE, fma(w, _ERFINV_SLOPE, 1.0 - line))
    rest = numerator / denominator + select(is_tail, 0.0, lost)
    value = fma(y, select(is_tail, sqrt(w), line), y * rest)
    return select(abs(y) < 1.0, value, select(abs(y).equals(1.0), copysign(y.like(inf), y), nan))
