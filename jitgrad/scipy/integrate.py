"""scipy.integrate: sums over samples, Gauss's rule, and the solution of differential equations, of traced values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.control.functions import scan, while_loop
from jitgrad.eagerness import is_eager
from jitgrad.numpy import asarray
from jitgrad.operators import call
from jitgrad.scipy.lifting import like_scipy, rest_of
from jitgrad.trace import graph_in
from jitgrad.transforms import stop_gradient

__all__ = ["cumulative_trapezoid", "fixed_quad", "odeint", "simpson", "trapezoid"]


@like_scipy("integrate")
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of samples by the trapezoidal rule."""
    return call("trapezoid", y, x, dx, axis)


def _last(y: Any, x: Any, dx: Any, axis: int) -> tuple[Any, Any]:
    """Samples along the last axis, and the gaps between them."""
    y = np.moveaxis(y, axis, -1)
    if x is None:
        return y, dx * np.ones(y.shape[-1] - 1, y.dtype if y.dtype.kind == "f" else np.float64)
    return y, np.diff(x if np.ndim(x) == 1 else np.moveaxis(x, axis, -1), axis=-1)


@like_scipy("integrate")
def cumulative_trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: float | None = None) -> Any:
    """The integrals up to each sample but the first; with ``initial=0`` that of the first as well."""
    y, gaps = _last(y, x, dx, axis)
    out = np.cumsum(0.5 * gaps * (y[..., 1:] + y[..., :-1]), axis=-1)
    if initial is not None:
        if initial != 0:
            raise ValueError(f"initial must be None or 0, got {initial!r}")
        out = np.concatenate([np.zeros_like(out[..., :1]), out], axis=-1)
    return np.moveaxis(out, -1, axis)


@like_scipy("integrate")
def simpson(y: Any, x: Any = None, *, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of samples by parabolas through three of them; the last interval, where their number is odd, by the
    parabola through the last three (Cartwright, J. Math. Sci. Math. Educ. 11, 2016), as SciPy does.
    """
    y, h = _last(y, x, dx, axis)
    n = y.shape[-1]
    if n < 3:
        return np.sum(0.5 * h * (y[..., 1:] + y[..., :-1]), axis=-1)
    even = (n - 1) // 2 * 2
    a, b = h[..., 0:even:2], h[..., 1:even:2]
    first, middle, last = y[..., 0:even:2], y[..., 1 : even + 1 : 2], y[..., 2 : even + 1 : 2]
    both = a + b
    total = np.sum(both / 6 * ((2 - b / a) * first + both * both / (a * b) * middle + (2 - a / b) * last), axis=-1)
    if even == n - 1:
        return total
    a, b = h[..., -2], h[..., -1]  # the interval that is left is the last
    by_last = (2 * b * b + 3 * a * b) / (6 * (a + b)) * y[..., -1]
    return total + by_last + (b * b + 3 * a * b) / (6 * a) * y[..., -2] - b**3 / (6 * a * (a + b)) * y[..., -3]


def fixed_quad(func: Callable[..., Any], a: Any, b: Any, args: tuple[Any, ...] = (), n: int = 5) -> tuple[Any, None]:
    """The integral of ``func(x, *args)``, a function of a vector of points, from a to b by Gauss's rule of order n."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    points = (b - a) * (nodes + 1) / 2.0 + a
    return (b - a) / 2.0 * np.sum(weights * func(points, *args), axis=-1), None


# -- differential equations ------------------------------------------------------------------------------------------

# The pair of orders 5 and 4 of Dormand and Prince (J. Comput. Appl. Math. 6, 1980).
_TIMES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
_STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERRORS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
_TOLERANCE = 1.49012e-8


def odeint(
    func: Callable[..., Any], y0: Any, t: Any, args: tuple[Any, ...] = (), rtol: float = _TOLERANCE,
    atol: float = _TOLERANCE, tfirst: bool = False,
) -> Any:  # fmt: skip
    """The solution of ``dy/dt = func(y, t, *args)`` with ``y(t[0]) = y0`` at the times ``t``, along the first axis.

    With ``tfirst`` it is ``func(t, y, *args)``. SciPy's own where only arrays are given; of traced values, also such as
    ``func`` reads from around, by steps of orders 5 and 4 whose lengths adapt themselves. They are differentiated step
    by step, their lengths held fixed.
    """
    own = _odeint(func, y0, t, args, rtol, atol, tfirst)
    return own if own is not None else _odeint_of_arrays(func, y0, t, args, rtol=rtol, atol=atol, tfirst=tfirst)


def _odeint(func: Callable[..., Any], y0: Any, t: Any, args: Any, rtol: float, atol: float, tfirst: bool) -> Any:
    """The solution for traced values; None where there are none."""

    def rate(y: Any, now: Any) -> Any:
        return asarray(func(now, y, *args) if tfirst else func(y, now, *args))

    graph = graph_in((y0, t, args))
    if graph is None and not is_eager((y0, t, args)):
        graph = graph_in(rate(np.asarray(y0, np.float64), np.asarray(t)[0]))
    if graph is None:
        return None
    with graph.as_default():
        return _solved(rate, y0, asarray(t), rtol, atol)


@like_scipy("integrate", "odeint")
def _odeint_of_arrays(func: Callable[..., Any], y0: Any, t: Any, args: Any, rtol: Any, atol: Any, tfirst: Any) -> Any:
    return _odeint(func, y0, t, args, rtol, atol, tfirst)


def _solved(rate: Callable[[Any, Any], Any], y0: Any, t: Any, rtol: float, atol: float) -> Any:
    def attempt(state: tuple[Any, Any, Any], end: Any) -> tuple[Any, Any, Any]:
        """One attempt at a step; it counts when its error is small, and tells how long the next one may be."""
        now, y, h = state
        step = np.where(np.abs(h) < np.abs(end - now), h, end - now)
        rates, after = [rate(y, now)], y
        for weights, share in zip(_STAGES, _TIMES, strict=True):
            after = y + step * sum(w * k for w, k in zip(weights, rates, strict=True) if w)
            rates.append(rate(after, now + share * step))
        error = step * sum(w * k for w, k in zip(_ERRORS, rates, strict=True) if w)
        size = np.sqrt(np.mean((error / (atol + rtol * np.maximum(np.abs(y), np.abs(after)))) ** 2))
        size = stop_gradient(np.maximum(size, 1e-10))
        is_good = size <= 1.0
        longer = stop_gradient(step * np.clip(0.9 * size**-0.2, 0.2, 5.0))
        is_last = is_good & (np.abs(h) >= np.abs(end - now))
        now = np.where(is_last, end, np.where(is_good, now + step, now))
        return now, np.where(is_good, after, y), np.where(is_last & (np.abs(longer) < np.abs(h)), h, longer)

    def interval(carry: tuple[Any, Any, Any], end: Any) -> tuple[tuple[Any, Any, Any], Any]:
        state = while_loop(lambda s: s[0] != end, lambda s: attempt(s, end), carry)
        return state, state[1]

    start = y0 * np.ones_like(rate(y0, t[0]))
    first = stop_gradient((t[1] - t[0]) * 0.1)
    _, rest = scan(interval, (t[0], start, first), t[1:])
    return np.concatenate([np.expand_dims(start, 0), rest])


__getattr__, __dir__ = rest_of("integrate", globals())
