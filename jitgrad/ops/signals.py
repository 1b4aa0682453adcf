"""Sequences of samples: convolution, correlation, slopes and polynomials, made of other ops; no op is defined here."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, as_tensors, build, common_dtype
from jitgrad.ops.slicing import slice_axis
from jitgrad.ops.sliding import slide
from jitgrad.spec import normalize_axis


@function("convolve")
def convolve(a: Any, v: Any, mode: str = "full") -> Tensor:
    """As numpy.convolve of two vectors: ``out[n] = sum_k a[n - k] v[k]``. ShapeError for an empty one."""
    x, kernel = _vectors("convolve", a, v)
    if kernel.size > x.size:
        x, kernel = kernel, x
    return _slid(x, build("flip", kernel), mode)


@function("correlate")
def correlate(a: Any, v: Any, mode: str = "valid") -> Tensor:
    """As numpy.correlate of two vectors: ``out[n] = sum_k a[n + k] conj(v[k])``."""
    x, kernel = _vectors("correlate", a, v)
    kernel = build("conjugate", kernel) if kernel.dtype.kind == "c" else kernel
    return build("flip", _slid(kernel, x, mode)) if kernel.size > x.size else _slid(x, kernel, mode)


def _vectors(name: str, a: Any, v: Any) -> tuple[Tensor, Tensor]:
    dtype = common_dtype(a, v)
    x, kernel = (build("atleast_1d", as_tensor(t, dtype)) for t in as_tensors(a, v))
    if x.ndim != 1 or kernel.ndim != 1 or not x.size or not kernel.size:
        raise ShapeError(f"{name} needs two vectors that are not empty, got {x.spec} and {kernel.spec}")
    return x, kernel


def _slid(x: Tensor, kernel: Tensor, mode: str) -> Tensor:
    """The product of the kernel, which is not longer than ``x``, with each stretch of ``x``."""
    k = kernel.size
    before = {"full": k - 1, "same": k // 2, "valid": 0}
    if mode not in before:
        raise ValueError(f"mode must be 'full', 'same' or 'valid', got {mode!r}")
    low = before[mode]
    high = {"full": k - 1, "same": k - 1 - low, "valid": 0}[mode]
    padded = build("pad", x, ((low, high),)) if low or high else x
    return slide(padded, kernel)


@function("gradient")
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """As numpy.gradient: central differences inside, at the ends one-sided ones of first or second order.

    ``varargs`` are a number or a vector of coordinates per axis, or one number for all. One tensor for one axis,
    else a tuple.
    """
    if edge_order not in (1, 2):
        raise ValueError(f"edge_order must be 1 or 2, got {edge_order!r}")
    t = as_tensor(f)
    y = t if t.dtype.kind in "fc" else build("astype", t, np.float64)
    chosen = range(y.ndim) if axis is None else axis if isinstance(axis, list | tuple) else (axis,)
    axes = [normalize_axis(k, y.ndim) for k in chosen]
    spacings = varargs or (1.0,)
    if len(spacings) == 1:
        spacings *= len(axes)
    if len(spacings) != len(axes):
        raise TypeError(f"gradient along {len(axes)} axes takes as many spacings, got {len(varargs)}")
    slopes = tuple(_slope(y, k, h, edge_order) for k, h in zip(axes, spacings, strict=True))
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(y: Tensor, axis: int, h: Any, order: int) -> Tensor:
    """Along an axis that stays where it is: what is computed of a transpose is one to its readers, and in memory."""
    n = y.shape[axis]
    if n < order + 1:
        raise ShapeError(f"gradient needs at least {order + 1} elements along axis {axis}, got {n}")
    if np.ndim(h) == 0:
        inside = (slice_axis(y, axis, 2, None) - slice_axis(y, axis, 0, -2)) / (2.0 * h)
        first = (slice_axis(y, axis, 1, 2) - slice_axis(y, axis, 0, 1)) / h
        last = (slice_axis(y, axis, -1, None) - slice_axis(y, axis, -2, -1)) / h
    else:
        gaps = call("reshape", call("diff", h), (-1, *[1] * (y.ndim - axis - 1)))
        steps = (slice_axis(y, axis, 1, None) - slice_axis(y, axis, 0, -1)) / gaps
        left, right = gaps[:-1], gaps[1:]
        before, behind = slice_axis(steps, axis, 0, -1), slice_axis(steps, axis, 1, None)
        inside = (right * before + left * behind) / (left + right)
        first, last = slice_axis(steps, axis, 0, 1), slice_axis(steps, axis, -1, None)
    if order == 2:
        first, last = 2 * first - slice_axis(inside, axis, 0, 1), 2 * last - slice_axis(inside, axis, -1, None)
        if np.ndim(h) != 0:
            first, last = _parabolas(steps, gaps, axis)
    return build("astype", build("concatenate", [first, inside, last], axis), y.dtype)


def _parabolas(steps: Tensor, gaps: Any, axis: int) -> tuple[Tensor, Tensor]:
    """The slopes at both ends of the parabolas through three points, by those between neighbours."""
    first, second = slice_axis(steps, axis, 0, 1), slice_axis(steps, axis, 1, 2)
    last, before = slice_axis(steps, axis, -1, None), slice_axis(steps, axis, -2, -1)
    low = first - (second - first) * gaps[:1] / (gaps[:1] + gaps[1:2])
    return low, last + (last - before) * gaps[-1:] / (gaps[-1:] + gaps[-2:-1])
