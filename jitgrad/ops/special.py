"""Special functions and activations; SciPy is imported only when one of them is interpreted."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import normal_tail
from jitgrad.errors import DTypeError
from jitgrad.opdef import Elementwise, Interpreted, Kind, OpDef, Specs, Vjp, define
from jitgrad.operators import call, function, functions
from jitgrad.ops.common import (
    build,
    dtype_refusal,
    elementwise,
    is_weak_key,
    joint_dtype,
    ratio,
    same_shape,
    type_key,
    where,
)
from jitgrad.spec import DType, TensorSpec

SQRT_PI = math.sqrt(math.pi)


def float_dtype(name: str, *values: Any) -> DType:
    """float32 for float32 and float16 (and Python numbers beside them), float64 for other real numbers.
    DTypeError otherwise.
    """
    keys = tuple(map(type_key, values))
    if all(map(is_weak_key, keys)):
        keys = (np.dtype(np.float64), *keys)
    joint = joint_dtype(*keys)
    if joint.kind not in "biuf":
        raise dtype_refusal(f"{name} takes real numbers, got {joint.name}", values)
    return (
        np.dtype(np.float32)
        if joint in (np.dtype(np.float16), np.dtype(np.float32))
        else np.dtype(np.float64)
    )


def special(name: str) -> Callable[..., Any]:
    """The function of that name in scipy.special, imported when it is called."""

    def evaluate(*arrays: Any) -> Any:
        return getattr(importlib.import_module("scipy.special"), name)(*arrays)

    return evaluate


def _infer(name: str, specs: Specs) -> Specs:
    dtypes = {spec.dtype for spec in specs}
    if len(dtypes) > 1 or not dtypes <= {np.dtype(np.float32), np.dtype(np.float64)}:
        raise DTypeError(
            f"{name} takes float32 or float64, got {' and '.join(sorted(d.name for d in dtypes))}"
        )
    return (TensorSpec(same_shape(specs), specs[0].dtype),)


def define_special(
    name: str,
    vjp: Vjp,
    *,
    arity: int = 1,
    impl: Callable[..., Any] | None = None,
    kind: Kind | None = None,
    names: tuple[str, ...] = (),
) -> OpDef:
    """Define a real function of ``arity`` arguments and enter it under its name and ``names``."""

    op = define(
        name,
        infer=lambda specs, params: _infer(name, specs),
        impl=impl or special(name),
        bound=None if impl else lambda params, specs: getattr(importlib.import_module("scipy.special"), name),
        vjp=vjp,
        kind=kind or Elementwise(name),
        infers_partial=True,
    )

    def build(*values: Any) -> Any:
        if len(values) != arity:
            raise TypeError(f"{name} takes {arity} arrays, got {len(values)}")
        return elementwise(op, *values, dtypes=(float_dtype(name, *values),) * arity)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"As scipy.special.{name}." if impl is None else None
    functions.update(dict.fromkeys((name, *names), build))
    return op


def interpreted(name: str) -> Interpreted:
    """The kind of a function that is left to SciPy."""
    return Interpreted(f"{name} has no native form", is_elementwise=True)


# -- activations ---------------------------------------------------------------------------------------------

define_special("sigmoid", lambda g, out, x: g * out * (1 - out), impl=special("expit"), names=("expit",))
define_special(
    "log_sigmoid", lambda g, out, x: g * call("sigmoid", -x), impl=special("log_expit"), names=("log_expit",)
)
define_special(
    "softplus", lambda g, out, x: g * call("sigmoid", x), impl=lambda x: np.logaddexp(x, x.dtype.type(0))
)
define_special("relu", lambda g, out, x: where(x > 0, g, 0), impl=lambda x: np.maximum(x, x.dtype.type(0)))
define_special("logit", lambda g, out, x: g / (x * (1 - x)), kind=interpreted("logit"))

# -- error functions -----------------------------------------------------------------------------------------


def _gauss(x: Any) -> Any:
    """``exp(-x**2)``."""
    return call("exp", -(x * x))


define_special("erf", lambda g, out, x: g * (2 / SQRT_PI) * _gauss(x))
define_special("erfc", lambda g, out, x: g * (-2 / SQRT_PI) * _gauss(x))
define_special("erfinv", lambda g, out, x: g * (SQRT_PI / 2) * call("exp", out * out))
define_special(
    "erfcinv", lambda g, out, x: g * (-SQRT_PI / 2) * call("exp", out * out), kind=interpreted("erfcinv")
)
define_special("erfcx", lambda g, out, x: g * (2 * x * out - 2 / SQRT_PI), kind=interpreted("erfcx"))
define_special("ndtr", lambda g, out, x: g * _density(x), kind=interpreted("ndtr"))
define_special("ndtri", lambda g, out, x: g / _density(out), kind=interpreted("ndtri"))
define_special("log_ndtr", lambda g, out, x: g * _hazard(x, out), kind=interpreted("log_ndtr"))


def _density(x: Any) -> Any:
    """Of the normal distribution."""
    return _gauss(x * math.sqrt(0.5)) * math.sqrt(0.5 / math.pi)


define_special(
    "normal_excess", lambda g, out, x: g * (1 - (out - x) * out), impl=normal_tail.excess,
    kind=interpreted("normal_excess"),
)  # fmt: skip


_TAIL = -15.0
_MILLS = tuple((-1.0) ** k * math.prod(range(1, 2 * k, 2)) for k in reversed(range(12)))
"""-x times distribution function over density in 1 / x**2, from the highest power down; the next term is below rounding
from `_TAIL` on.
"""


def _hazard(x: Any, log_ndtr: Any) -> Any:
    """Density over distribution function, in double precision. Below 0 the difference of the logarithms has the
    rounding of x² / 2, and its derivatives subtract what is ever more alike; there it is -x and a small excess. Far
    below it is the series, of which derivatives of all orders keep their digits.
    """
    if x.dtype != np.float64:
        double = build("astype", x, np.float64)
        return build("astype", _hazard(double, call("log_ndtr", double)), x.dtype)
    near = call("exp", -0.5 * (x * x) - log_ndtr) * math.sqrt(0.5 / math.pi)
    is_below = call("logical_and", x < 0, x >= _TAIL)
    below = where(is_below, x, -1.0)
    far = call("minimum", x, _TAIL)
    r, ratio = 1 / (far * far), _MILLS[0]
    for term in _MILLS[1:]:
        ratio = ratio * r + term
    return where(is_below, call("normal_excess", below) - below, where(x < _TAIL, -far / ratio, near))


# -- gamma functions -----------------------------------------------------------------------------------------


def _gammaln(x: Any) -> Any:
    """SciPy's, which overflows at denormal numbers, with ``-log|x|`` there."""
    return np.where(abs(x) < np.finfo(x.dtype).tiny, -np.log(abs(x)), special("gammaln")(x))


define_special("gammaln", lambda g, out, x: g * call("digamma", x), impl=_gammaln, names=("lgamma",))
define_special("digamma", lambda g, out, x: g * call("polygamma1", x), names=("psi",))
define_special("gamma", lambda g, out, x: g * out * call("digamma", x), kind=interpreted("gamma"))
define_special(
    "polygamma1",
    lambda g, out, x: g * call("polygamma", 2, x),
    impl=lambda x: special("polygamma")(1, x).astype(x.dtype),
    names=("trigamma",),
)
polygamma_op = define(
    "polygamma",
    infer=lambda specs, params: _infer("polygamma", specs),
    impl=lambda x, n: special("polygamma")(n, x).astype(x.dtype),
    vjp=lambda g, out, x, *, n: g * call("polygamma", n + 1, x),
    kind=interpreted("polygamma of order 2 and above"),
    infers_partial=True,
)


@function("polygamma")
def polygamma(n: Any, x: Any) -> Any:
    """As scipy.special.polygamma for a Python int ``n``: the n-th derivative of digamma."""
    order = operator.index(n)
    if order < 0:
        raise ValueError(f"polygamma needs n >= 0, got {order}")
    if order < 2:
        return call("polygamma1" if order else "digamma", x)
    return elementwise(polygamma_op, x, dtypes=(float_dtype("polygamma", x),), n=order)


@function("betaln")
def betaln(a: Any, b: Any) -> Any:
    """As scipy.special.betaln for positive arguments and 0, from gammaln."""
    total = call("add", a, b)
    first, second = call("gammaln", a), call("gammaln", b)
    of_total = where((first == np.inf) & (second == np.inf) & (total <= 0), 0.0, call("gammaln", total))
    return first + second - of_total


# -- entropies -----------------------------------------------------------------------------------------------

define_special(
    "xlogy", lambda g, out, x, y: (g * call("log", y), g * ratio(x, y)), arity=2, kind=interpreted("xlogy")
)
define_special(
    "xlog1py",
    lambda g, out, x, y: (g * call("log1p", y), g * ratio(x, 1 + y)),
    arity=2,
    kind=interpreted("xlog1py"),
)
define_special("entr", lambda g, out, x: -g * (call("log", x) + 1), kind=interpreted("entr"))
define_special(
    "rel_entr",
    lambda g, out, x, y: (g * (call("log", x / y) + 1), -g * x / y),
    arity=2,
    kind=interpreted("rel_entr"),
)
define_special(
    "kl_div",
    lambda g, out, x, y: (g * call("log", x / y), g * (1 - x / y)),
    arity=2,
    kind=interpreted("kl_div"),
)

# -- Bessel functions ----------------------------------------------------------------------------------------

define_special("i0", lambda g, out, x: g * call("i1", x), kind=interpreted("i0"), names=("scipy.special.i0",))
define_special("i1", lambda g, out, x: g * (call("i0", x) - _over(out, x)), kind=interpreted("i1"))
define_special("i0e", lambda g, out, x: g * (call("i1e", x) - call("sign", x) * out), kind=interpreted("i0e"))
define_special(
    "i1e",
    lambda g, out, x: g * (call("i0e", x) - call("sign", x) * out - _over(out, x)),
    kind=interpreted("i1e"),
)
define_special("j0", lambda g, out, x: -g * call("j1", x), kind=interpreted("j0"))
define_special("j1", lambda g, out, x: g * (call("j0", x) - _over(out, x)), kind=interpreted("j1"))


@function("i0")
def i0(x: Any) -> Any:
    """As numpy.i0, which has the dtype of its argument where that is float16."""
    found = call("scipy.special.i0", x)
    return build("astype", found, np.float16) if getattr(x, "dtype", None) == np.float16 else found


def _over(bessel: Any, x: Any) -> Any:
    """``J1(x) / x`` (or I1), an even function that is 1/2 at 0."""
    return where(x == 0, 0.5, bessel / where(x == 0, 1, x))
