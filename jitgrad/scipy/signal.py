"""scipy.signal: convolutions, correlations and linear filters of traced values; filters are designed with SciPy's own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.control.functions import scan
from jitgrad.dispatch import unsupported
from jitgrad.errors import ShapeError
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor, told_shape
from jitgrad.scipy.lifting import like_scipy, rest_of

__all__ = ["convolve", "convolve2d", "correlate", "correlate2d", "fftconvolve", "lfilter"]


@like_scipy("signal")
def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Any:
    """The convolution of two arrays of as many dimensions: "full", in the "same" shape as ``in1``, or where they
    overlap in whole ("valid"). Of vectors and with ``method="direct"`` by sums, else by Fourier transforms.
    """
    x, y = _pair("convolve", in1, in2)
    if mode == "valid" and _is_within(x, y):
        x, y = y, x
    by_sums = x.ndim == 1 or method == "direct"
    return _cut((_summed if by_sums else _transformed)(x, y), x.shape, y.shape, mode)


@like_scipy("signal")
def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> Any:
    """As ``convolve``, by Fourier transforms along all axes."""
    x, y = _pair("fftconvolve", in1, in2)
    if axes is not None and sorted(np.atleast_1d(axes) % x.ndim) != list(range(x.ndim)):
        raise unsupported(f"scipy.signal.fftconvolve with axes={axes!r}")
    if mode == "valid" and _is_within(x, y):
        x, y = y, x
    return _cut(_transformed(x, y), x.shape, y.shape, mode)


@like_scipy("signal")
def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Any:
    """``out[k] = sum_l in1[l] conj(in2[l - k + n - 1])``: the convolution with ``in2`` turned round."""
    x, y = _pair("correlate", in1, in2)
    is_inside = mode == "valid" and _is_within(x, y)
    turned = convolve(x, np.conjugate(np.flip(y)), mode, method)
    return np.conjugate(np.flip(convolve(y, np.conjugate(np.flip(x)), mode, method))) if is_inside else turned


@like_scipy("signal")
def convolve2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0) -> Any:
    """The convolution of two matrices, zeros around them."""
    if boundary != "fill" or fillvalue != 0:
        raise unsupported(f"scipy.signal.convolve2d with {boundary=} and {fillvalue=}")
    return convolve(in1, in2, mode, "direct")


@like_scipy("signal")
def correlate2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0) -> Any:
    """The correlation of two matrices, zeros around them."""
    if boundary != "fill" or fillvalue != 0:
        raise unsupported(f"scipy.signal.correlate2d with {boundary=} and {fillvalue=}")
    return correlate(in1, in2, mode, "direct")


def _pair(name: str, in1: Any, in2: Any) -> tuple[Any, Any]:
    """Both as tensors of one dtype. ShapeError unless they have as many dimensions, one at least, and elements."""
    x, y = as_tensor(in1), as_tensor(in2)
    if x.ndim != y.ndim or not x.ndim or not x.size or not y.size:
        raise ShapeError(f"{name} takes two arrays of as many dimensions that are not empty, got {x.spec} and {y.spec}")
    dtype = np.result_type(x.dtype, y.dtype)
    return as_tensor(x, dtype), as_tensor(y, dtype)


def _is_within(x: Any, y: Any) -> bool:
    return any(n < m for n, m in zip(told_shape(x), told_shape(y), strict=True))


def _summed(x: Any, y: Any) -> Any:
    """The full convolution, a shifted product for each element of the smaller array."""
    if x.ndim == 1:
        return np.convolve(x, y)
    x, y = (y, x) if math.prod(told_shape(x)) < math.prod(told_shape(y)) else (x, y)
    full = [n + m - 1 for n, m in zip(x.shape, y.shape, strict=True)]
    wide = np.pad(x, [(m - 1, m - 1) for m in y.shape])
    terms = []
    for place in np.ndindex(*y.shape):
        starts = [m - 1 - k for m, k in zip(y.shape, place, strict=True)]
        terms.append(wide[tuple(slice(k, k + n) for k, n in zip(starts, full, strict=True))] * y[place])
    return functools.reduce(np.add, terms)


def _transformed(x: Any, y: Any) -> Any:
    """The full convolution as a product of Fourier transforms."""
    full = tuple(n + m - 1 for n, m in zip(x.shape, y.shape, strict=True))
    if x.dtype.kind == "c":
        return np.fft.ifftn(np.fft.fftn(x, full) * np.fft.fftn(y, full), full)
    return call("astype", np.fft.irfftn(np.fft.rfftn(x, full) * np.fft.rfftn(y, full), full), np.result_type(x, 0.0))


def _cut(full: Any, of: Sequence[int], by: Sequence[int], mode: str) -> Any:
    if mode not in ("full", "same", "valid"):
        raise ValueError(f'mode must be "full", "same" or "valid", got {mode!r}')
    if mode == "full":
        return full
    wanted = [n if mode == "same" else n - m + 1 for n, m in zip(of, by, strict=True)]
    starts = [(n - m) // 2 for n, m in zip(full.shape, wanted, strict=True)]
    return full[tuple(slice(k, k + n) for k, n in zip(starts, wanted, strict=True))]


@like_scipy("signal")
def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """``a[0] y[n] = b[0] x[n] + b[1] x[n-1] + ... - a[1] y[n-1] - ...`` along ``axis``; with ``zi``, the state before
    the first sample, also the state after the last one.
    """
    b, a = np.atleast_1d(b) / np.atleast_1d(a)[0], np.atleast_1d(a) / np.atleast_1d(a)[0]
    order = max(told_shape(b)[0], told_shape(a)[0]) - 1
    b, a = np.pad(b, (0, order + 1 - b.shape[0])), np.pad(a, (0, order + 1 - a.shape[0]))
    samples = np.moveaxis(x, axis, 0)
    if zi is None:
        state = np.zeros((order, *samples.shape[1:]), np.result_type(b.dtype, a.dtype, samples.dtype))
    else:
        state = np.moveaxis(zi, axis, 0)
    by, back = (np.reshape(c[1:], (order, *[1] * (samples.ndim - 1))) for c in (b, a))

    def step(z: Any, sample: Any) -> tuple[Any, Any]:
        y = b[0] * sample + (z[0] if order else 0.0)
        later = np.concatenate([z[1:], np.zeros_like(z[:1])]) if order else z
        return (later + by * sample - back * y).astype(state.dtype), y

    last, out = scan(step, state, samples)
    return np.moveaxis(out, 0, axis) if zi is None else (np.moveaxis(out, 0, axis), np.moveaxis(last, 0, axis))


__getattr__, __dir__ = rest_of("signal", globals())
