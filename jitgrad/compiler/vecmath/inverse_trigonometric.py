"""arcsin, arccos, arctan and arctan2; no sine or tangent."""

from __future__ import annotations

from jitgrad.compiler.vecmath.lanes import Mask, Real, Table, copysign, fma, poly, select, sqrt

_PI = 3.141592653589793
# What pi as a number of the type leaves out, relative to it.
_PI_LOW = Table((-2.7827534e-08,), (3.8981718325193755e-17,))
# (atan(t) - t) / t**3 in t**2 on 0 <= t <= 1, relative error 2**-27.1 and 2**-55.6.
_ATAN = Table(
    (-0.333333, 0.1999853, -0.1426404, 0.10951225, -0.08401156, 0.057929676, -0.031162543, 0.010913197,
     -0.0017947699),
    (-0.3333333333333307, 0.19999999999951748, -0.14285714282587975, 0.11111111007338298,
     -0.09090907007729378, 0.07692279888088033, -0.06666404416676946, 0.05880529770469071,
     -0.052535266297026255, 0.047223479238855226, -0.04219242674676178, 0.0366431472421738,
     -0.029905736702170747, 0.021987076136806036, -0.01390258590867567, 0.007197896454278909,
     -0.0028856174077379927, 0.0008315630749146613, -0.00015221204951091803, 1.3230107105229849e-05),
)  # fmt: skip
# (asin(s) - s) / s**3 in s**2 on 0 <= s <= 1/2, relative error 2**-27.6 and 2**-59.9.
_ASIN = Table(
    (0.16666752, 0.074953094, 0.04546915, 0.024184778, 0.0421583),
    (0.1666666666666676, 0.07499999999970866, 0.044642857174561124, 0.03038194270984861, 0.022372214936539216,
     0.0173516128396704, 0.013980811484793947, 0.011398980926483948, 0.010779892730881462,
     0.003707689705305604, 0.021704493764290265, -0.020995081990904513, 0.03262624266481659),
)  # fmt: skip


def arctan(x: Real) -> Real:
    """The arc tangent, to 2 ulp: of |x|, or pi/2 less that of 1/|x|."""
    size = abs(x)
    swapped = size > 1.0
    t = select(swapped, 1.0, size) / select(swapped, size, 1.0)
    return copysign(_turned(_arctan_below_1(t), select(swapped, x.like(_PI / 2), 0.0), swapped), x)


def arctan2(y: Real, x: Real) -> Real:
    """The angle of the point (x, y), to 2 ulp, with the special cases of IEEE 754, which are NumPy's."""
    height, width = abs(y), abs(x)
    swapped = height > width
    smaller, larger = select(swapped, width, height), select(swapped, height, width)
    t = select(smaller.equals(larger), select(larger.equals(0.0), larger, 1.0), smaller / larger)
    is_left = (x.bits() >> (x.lanes.width - 1)).equals(1)
    base = select(swapped, x.like(_PI / 2), select(is_left, x.like(_PI), 0.0))
    return copysign(_turned(_arctan_below_1(t), base, swapped ^ is_left), y)


def _arctan_below_1(t: Real) -> Real:
    square = t * t
    return fma(square * poly(square, _ATAN), t, t)


def _turned(angle: Real, base: Real, backward: Mask) -> Real:
    """base + angle, or base - angle, for a base that is a multiple of pi/2."""
    step = select(backward, -angle, angle)
    return base + fma(base, _PI_LOW.of(base)[0], step)


def arcsin(x: Real) -> Real:
    """The arc sine, to 2 ulp: beyond 1/2 it is pi/2 - 2*asin(sqrt((1 - |x|) / 2))."""
    is_large, root, tail = _arcsin_terms(abs(x))
    base, factor = select(is_large, x.like(_PI / 2), 0.0), select(is_large, x.like(-2.0), 1.0)
    return copysign(_arc(base, factor, root, tail), x)


def arccos(x: Real) -> Real:
    """The arc cosine, to 2 ulp: pi/2 - asin(x), or beyond 1/2 from 2*asin(sqrt((1 - |x|) / 2))."""
    is_large, root, tail = _arcsin_terms(abs(x))
    base = select(is_large, select(x < 0.0, x.like(_PI), 0.0), x.like(_PI / 2))
    factor = copysign(select(is_large, x.like(2.0), 1.0), select(is_large, x, -x))
    return _arc(base, factor, root, tail)


def _arcsin_terms(size: Real) -> tuple[Mask, Real, Real]:
    """Whether |x| > 1/2, and r and t with asin(s) = r + t for the s = |x| or sqrt((1 - |x|) / 2) to take."""
    is_large = size > 0.5
    square = select(is_large, fma(size, -0.5, 0.5), size * size)
    root = select(is_large, sqrt(square), size)
    # What the square root lost is its residual / (2*root); where that matters, 1.4 is near enough.
    lost = select(is_large, fma(-root, root, square) * 1.4, 0.0)
    return is_large, root, fma(square * poly(square, _ASIN), root, lost)


def _arc(base: Real, factor: Real, root: Real, tail: Real) -> Real:
    """base + factor * (root + tail)."""
    return fma(factor, root, base) + fma(factor, tail, base * _PI_LOW.of(base)[0])
