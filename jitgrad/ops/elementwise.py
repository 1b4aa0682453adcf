"""Elementwise ops: NumPy's ufuncs, one definition each, gradients as lines of mathematics; no shapes here.

Gradients at kinks and edges: ties of maximum and minimum share equally; absolute and hypot have 0 at the
origin, so does arctan2; sqrt has inf at 0; power has 0 with respect to the exponent at base 0 and NaN at a
negative base; floor, sign, rint and comparisons pass none at all.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from jitgrad.graph import Tensor
from jitgrad.operators import call, function, functions
from jitgrad.ops.common import as_tensor, ratio, where
from jitgrad.ops.ufunc import from_ufunc

LN2, LN10 = math.log(2.0), math.log(10.0)


def _share(g: Tensor, wins: Tensor, ties: Tensor) -> Tensor:
    """``g`` for the winner, half of it at a tie, 0 for the loser."""
    return where(wins, g, where(ties, 0.5 * g, 0))


# -- arithmetic ----------------------------------------------------------------------------------------------

from_ufunc(np.add, lambda g, out, x, y: (g, g))
from_ufunc(np.subtract, lambda g, out, x, y: (g, -g))
from_ufunc(np.multiply, lambda g, out, x, y: (g * y, g * x))
from_ufunc(np.divide, lambda g, out, x, y: (g / y, -g * out / y))
from_ufunc(np.negative, lambda g, out, x: -g)
from_ufunc(np.positive, lambda g, out, x: g)
from_ufunc(np.reciprocal, lambda g, out, x: -g * out * out)
from_ufunc(np.square, lambda g, out, x: 2 * g * x)
from_ufunc(np.sqrt, lambda g, out, x: 0.5 * g / out)
from_ufunc(np.cbrt, lambda g, out, x: g / (3 * out * out))
from_ufunc(np.floor_divide)
from_ufunc(np.remainder, lambda g, out, x, y: (g, -g * _quotient(x, y, out)))
from_ufunc(np.fmod, lambda g, out, x, y: (g, -g * _quotient(x, y, out)))


def _quotient(x: Tensor, y: Tensor, remainder: Tensor) -> Any:
    """The integer by which ``y`` was taken away from ``x``."""
    return call("rint", (x - remainder) / y)


def _power_vjp(g: Tensor, out: Tensor, x: Tensor, y: Tensor) -> tuple[Any, Any]:
    return g * _power_slope(x, y), g * out * _log_or_zero(x)


def _power_slope(x: Tensor, y: Tensor) -> Any:
    """``y x**(y-1)``, and 0 for the exponent 0 whatever the base."""
    return where(y == 0, 0, y * call("power", x, where(y == 0, 1, y - 1)))


def _log_or_zero(x: Tensor) -> Any:
    """``log x``, and 0 at 0, where ``x**y`` does not change with y > 0."""
    return call("log", where(x == 0, 1, x))


from_ufunc(np.power, _power_vjp)
from_ufunc(np.float_power, _power_vjp)


@function("operator_power")
def operator_power(x: Any, y: Any) -> Any:
    """``x ** y``: like the operator of NumPy, with short ways for the exponents 2, 1, 1/2 and -1."""
    short = {2: "square", 1: "positive", 0.5: "sqrt", -1: "reciprocal"}
    if type(y) in (int, float) and y in short and _is_short(x, y):
        return call(short[y], x)
    return call("power", x, y)


def _is_short(x: Any, y: float) -> bool:
    kind = x.dtype.kind if hasattr(x, "dtype") else ""
    if kind == "b":  # square gives int8; a scalar goes the long way, which gives int64
        return type(y) is int and y == 2 and x.ndim > 0
    return kind in ("f", "c") or (kind in ("i", "u") and type(y) is int and y == 2)


@function("divmod")
def divmod_(x1: Any, x2: Any) -> tuple[Any, Any]:
    """Quotient and remainder of floor division, as two ops."""
    return call("floor_divide", x1, x2), call("remainder", x1, x2)


# -- exponentials and logarithms -----------------------------------------------------------------------------

from_ufunc(np.exp, lambda g, out, x: g * out)
from_ufunc(np.exp2, lambda g, out, x: g * out * LN2)
from_ufunc(np.expm1, lambda g, out, x: g * call("exp", x))
from_ufunc(np.log, lambda g, out, x: g / x)
from_ufunc(np.log2, lambda g, out, x: g / (x * LN2))
from_ufunc(np.log10, lambda g, out, x: g / (x * LN10))
from_ufunc(np.log1p, lambda g, out, x: g / (1 + x))
from_ufunc(np.logaddexp, lambda g, out, x, y: (g * _weight(x, y), g * _weight(y, x)))
from_ufunc(np.logaddexp2, lambda g, out, x, y: (g * _weight(x, y, LN2), g * _weight(y, x, LN2)))


def _weight(x: Tensor, y: Tensor, rate: float | None = None) -> Any:
    """``e**x / (e**x + e**y)``, or with ``e**rate`` for e; of the dtype of x (a sigmoid has float32 for float16)."""
    difference = _difference(x, y)
    return call("astype", call("sigmoid", difference if rate is None else rate * difference), x.dtype)


def _difference(x: Tensor, y: Tensor) -> Any:
    """``x - y``, and 0 for equal infinities."""
    return where((x == y) & call("isinf", x), 0, x - y)


def _arccosh_root(x: Tensor) -> Any:
    """``sqrt(x**2 - 1)``, of complex x with the sign that arccosh's branch takes."""
    if x.dtype.kind == "c":
        return call("sqrt", x - 1) * call("sqrt", x + 1)
    return call("sqrt", (x - 1) * (x + 1))


# -- trigonometric and hyperbolic functions ------------------------------------------------------------------

from_ufunc(np.sin, lambda g, out, x: g * call("cos", x))
from_ufunc(np.cos, lambda g, out, x: -g * call("sin", x))
from_ufunc(np.tan, lambda g, out, x: g * (1 + out * out))
from_ufunc(np.arcsin, lambda g, out, x: g / call("sqrt", (1 - x) * (1 + x)))
from_ufunc(np.arccos, lambda g, out, x: -g / call("sqrt", (1 - x) * (1 + x)))
from_ufunc(np.arctan, lambda g, out, x: g / (1 + x * x))
from_ufunc(np.arctan2, lambda g, out, y, x: (g * _over_square(x, y), -g * _over_square(y, x)))
from_ufunc(np.hypot, lambda g, out, x, y: (g * ratio(x, out), g * ratio(y, out)))
from_ufunc(np.sinh, lambda g, out, x: g * call("cosh", x))
from_ufunc(np.cosh, lambda g, out, x: g * call("sinh", x))
from_ufunc(np.tanh, lambda g, out, x: g * (1 - out * out))
from_ufunc(np.arcsinh, lambda g, out, x: g / call("sqrt", 1 + x * x))
from_ufunc(np.arccosh, lambda g, out, x: g / _arccosh_root(x))
from_ufunc(np.arctanh, lambda g, out, x: g / ((1 - x) * (1 + x)))
from_ufunc(np.deg2rad, lambda g, out, x: g * (math.pi / 180))
from_ufunc(np.radians, lambda g, out, x: g * (math.pi / 180))
from_ufunc(np.rad2deg, lambda g, out, x: g * (180 / math.pi))
from_ufunc(np.degrees, lambda g, out, x: g * (180 / math.pi))


def _over_square(x: Tensor, y: Tensor) -> Any:
    """``x / (x**2 + y**2)``, with 0 at the origin; without overflow."""
    r = call("hypot", x, y)
    return ratio(ratio(x, r), r)


@function("sinc")
def sinc(x: Any) -> Any:
    """As numpy.sinc, ``sin(pi x) / (pi x)``; near 0 its series, whose derivatives are right to any order."""
    t = math.pi * as_tensor(x)
    is_small = abs(t) < 0.5
    return where(is_small, _sinc_series(t * t), call("sin", t) / where(is_small, 1, t))


def _sinc_series(square: Any) -> Any:
    """The sum of ``(-1)**k t**(2k) / (2k+1)!``, to rounding for ``|t| < 0.5``."""
    coefficients = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]
    return functools.reduce(lambda total, c: total * square + c, reversed(coefficients))


# -- extremes, signs and rounding ----------------------------------------------------------------------------

from_ufunc(np.maximum, lambda g, out, x, y: (_share(g, x > y, x == y), _share(g, y > x, x == y)))
from_ufunc(np.minimum, lambda g, out, x, y: (_share(g, x < y, x == y), _share(g, y < x, x == y)))
from_ufunc(
    np.fmax,
    lambda g, out, x, y: (_share(g, (x > y) | (y != y), x == y), _share(g, (y > x) | (x != x), x == y)),
)
from_ufunc(
    np.fmin,
    lambda g, out, x, y: (_share(g, (x < y) | (y != y), x == y), _share(g, (y < x) | (x != x), x == y)),
)
from_ufunc(np.absolute, lambda g, out, x: g * _phase(x, out))
from_ufunc(np.fabs, lambda g, out, x: g * call("sign", x))
from_ufunc(np.copysign, lambda g, out, x, y: (where(call("signbit", x) == call("signbit", y), g, -g), None))
from_ufunc(np.heaviside, lambda g, out, x, y: (None, where(x == 0, g, 0)))
from_ufunc(np.floor)
from_ufunc(np.ceil)
from_ufunc(np.trunc)
from_ufunc(np.rint)
from_ufunc(np.signbit)


def _phase(x: Tensor, magnitude: Tensor) -> Any:
    """The derivative of the absolute value: the sign; for complex x the conjugate of its direction."""
    return ratio(call("conjugate", x), magnitude) if x.dtype.kind == "c" else call("sign", x)


def _sign_vjp(g: Tensor, out: Tensor, x: Tensor) -> Any:
    """None for a real x; the sign of a complex one is its direction ``x / |x|``, and turns with it."""
    if x.dtype.kind != "c":
        return None
    across = g - call("conjugate", g * out * out)  # what is left of g without its part along x
    return where(x == 0, 0, across / where(x == 0, 1, 2 * call("absolute", x)))


from_ufunc(np.sign, _sign_vjp)

# -- comparison, logic, bits ---------------------------------------------------------------------------------

from_ufunc(np.equal)
from_ufunc(np.not_equal)
from_ufunc(np.less)
from_ufunc(np.less_equal)
from_ufunc(np.greater)
from_ufunc(np.greater_equal)
from_ufunc(np.logical_and)
from_ufunc(np.logical_or)
from_ufunc(np.logical_xor)
from_ufunc(np.logical_not)
from_ufunc(np.isnan)
from_ufunc(np.isinf)
from_ufunc(np.isfinite)
from_ufunc(np.bitwise_and)
from_ufunc(np.bitwise_or)
from_ufunc(np.bitwise_xor)
from_ufunc(np.invert)
from_ufunc(np.left_shift)
from_ufunc(np.right_shift)

# -- ufuncs without a native form ----------------------------------------------------------------------------

from_ufunc(np.gcd, interpreted="gcd has no native form")
from_ufunc(np.lcm, interpreted="lcm has no native form")
from_ufunc(np.bitwise_count, interpreted="bitwise_count has no native form")
from_ufunc(np.nextafter, interpreted="nextafter has no native form")
from_ufunc(np.spacing, interpreted="spacing has no native form")
from_ufunc(np.ldexp, lambda g, out, x, n: (call("ldexp", g, n), None), interpreted="ldexp has no native form")
from_ufunc(np.frexp, lambda g, out, x: call("ldexp", g[0], -out[1]), interpreted="frexp has no native form")
from_ufunc(np.modf, lambda g, out, x: g[0], interpreted="modf has no native form")


def _enter_aliases() -> None:
    """NumPy's second names for the ufuncs above: abs, mod, true_divide, acos, bitwise_not, ..."""
    for name, value in vars(np).items():
        if isinstance(value, np.ufunc) and name != value.__name__ and value.__name__ in functions:
            functions[name] = functions[value.__name__]


_enter_aliases()
