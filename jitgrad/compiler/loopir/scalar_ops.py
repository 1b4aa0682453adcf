"""The scalar ops of the loop IR and their meaning in Python: the oracle that emitted code is held against."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.spec import type_names
from jitgrad.threefry import threefry2x32

# Ops whose meaning is the NumPy ufunc of the same name.
UFUNCS = (
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power", "float_power", "negative",
    "positive", "absolute", "fabs", "sign", "reciprocal", "square", "sqrt", "cbrt", "exp", "exp2", "expm1", "log",
    "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh",
    "arccosh", "arctanh", "arctan2", "hypot", "logaddexp", "logaddexp2", "maximum", "minimum", "fmax", "fmin",
    "floor", "ceil", "trunc", "rint", "isnan", "isinf", "isfinite", "signbit", "copysign", "heaviside", "deg2rad",
    "rad2deg", "degrees", "radians", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "invert",
    "left_shift", "right_shift",
)  # fmt: skip

SPECIAL = {
    "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "digamma": "psi", "sigmoid": "expit",
    "log_sigmoid": "log_expit",
}  # fmt: skip


def _extreme(better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def update(best: Any, best_at: Any, value: Any, at: Any) -> Any:
        wins = (best == best) and (better(value, best) or value != value)
        return (value, np.int64(at)) if wins else (best, best_at)

    return update


def _wrap_index(i: Any, n: Any) -> Any:
    """An index counted from either end as one from the front."""
    return np.int64(i) + (n if i < 0 else 0)


def _scale_of(divisor: Any) -> Any:
    """The power of two that brings a divisor into the range in which it has a normal reciprocal; 1 for most."""
    info, size = np.finfo(type(divisor)), abs(divisor)
    if size < 4 * info.tiny:
        return type(divisor)(2.0 ** (2 * info.nmant))
    return type(divisor)(2.0 ** (-2 * info.nmant)) if size > 1 / (4 * info.tiny) else type(divisor)(1)


def _reciprocal_of(divisor: Any) -> Any:
    """The factor that, after the scale, divides."""
    return type(divisor)(1) / (divisor * _scale_of(divisor))


def _add_product(total: Any, x: Any, y: Any) -> Any:
    """total + x * y, rounded once: a product of doubles fits no double, but one of long doubles nearly."""
    wide = np.float64 if total.dtype == np.float32 else np.longdouble
    return type(total)(wide(total) + wide(x) * wide(y))


def _softplus(x: Any) -> Any:
    return np.logaddexp(x, type(x)(0))


@functools.cache
def oracle() -> dict[str, Callable[..., Any]]:
    """Name of a scalar op or of a combination → its meaning on NumPy scalars."""
    from scipy import special

    table: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in UFUNCS}
    table |= {name: getattr(special, theirs) for name, theirs in SPECIAL.items()}
    table |= {
        "identity": lambda x: x,
        "replace": lambda x, y: y,
        "cast": lambda x: x,
        "where": lambda c, x, y: x if c else y,
        "clip": lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
        "relu": lambda x: np.maximum(x, type(x)(0)),
        "softplus": _softplus,
        "add_product": _add_product,
        "add_n": lambda *xs: functools.reduce(np.add, xs),
        "gammaln": lambda x: -np.log(abs(x)) if abs(x) < np.finfo(type(x)).tiny else special.gammaln(x),
        "polygamma1": lambda x: special.polygamma(1, x),
        "threefry2x32": threefry2x32,
        "wrap_index": _wrap_index,
        "scale_of": _scale_of,
        "reciprocal_of": _reciprocal_of,
        "argmax": _extreme(lambda a, b: a > b),
        "argmin": _extreme(lambda a, b: a < b),
    }
    return table


def python_namespace() -> dict[str, Any]:
    """Names that the text of a kernel uses when it runs as Python."""
    dtypes = {short: np.dtype(name).type for name, short in type_names.items()}
    return {**oracle(), **dtypes, "serial": range, "vector": range, "across": range, "nan": np.nan, "inf": np.inf}
