"""scipy.special: its functions that are no ufuncs; the others are SciPy's, which jitgrad hears of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgrad.operators import call
from jitgrad.scipy.lifting import like_scipy, rest_of

__all__ = ["beta", "factorial", "log_softmax", "logsumexp", "multigammaln", "polygamma", "softmax"]


@like_scipy("special")
def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    """``log(sum(b exp(a)))`` along ``axis``, without overflow; with ``return_sign`` that of its size, and its sign."""
    if b is None and not return_sign:
        return call("logsumexp", a, axis=axis, keepdims=keepdims)
    a = np.where(b == 0, -np.inf, a) if b is not None else a
    most = call("stop_gradient", np.max(a, axis=axis, keepdims=True))
    most = np.where(np.isfinite(most), most, 0.0)
    total = np.sum(np.exp(a - most) if b is None else b * np.exp(a - most), axis=axis, keepdims=True)
    out = np.log(np.abs(total) if return_sign else total) + most
    found = [out, np.sign(total)] if return_sign else [out]
    found = found if keepdims else [np.squeeze(x, axis if axis is not None else tuple(range(x.ndim))) for x in found]
    return tuple(found) if return_sign else found[0]


@like_scipy("special")
def softmax(x: Any, axis: Any = None) -> Any:
    """``exp(x) / sum(exp(x))`` along ``axis``."""
    return call("softmax", x, axis=axis)


@like_scipy("special")
def log_softmax(x: Any, axis: Any = None) -> Any:
    """``x - logsumexp(x)`` along ``axis``."""
    return call("log_softmax", x, axis=axis)


@like_scipy("special")
def polygamma(n: int, x: Any) -> Any:
    """The n-th derivative of digamma, for a Python int ``n``."""
    return call("polygamma", n, x)


@like_scipy("special")
def multigammaln(a: Any, d: int) -> Any:
    """The logarithm of the multivariate gamma function of dimension ``d``."""
    terms = [call("gammaln", a - 0.5 * k) for k in range(d)]
    return sum(terms[1:], terms[0]) + 0.25 * d * (d - 1) * math.log(math.pi)


@like_scipy("special")
def factorial(n: Any, exact: bool = False) -> Any:
    """``gamma(n + 1)``, and 0 for negative n. ValueError with ``exact``."""
    if exact:
        raise ValueError("factorial of a traced value is not exact")
    return np.where(n < 0, 0.0, call("gamma", n + 1.0))


@like_scipy("special")
def beta(a: Any, b: Any) -> Any:
    """``gamma(a) gamma(b) / gamma(a + b)`` for positive arguments, from gammaln."""
    return np.exp(call("betaln", a, b))


__getattr__, __dir__ = rest_of("special", globals())
