"""Convolutions of images [n, c, y, x] as ops: what windows that move by one element see, times weights, and the sums
over windows that its gradient takes. Strides, groups and other layouts are made of these and others elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Convolve, Params, Specs, define
from jitgrad.operators import call
from jitgrad.spec import TensorSpec

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def _halo(kernel: Pair, dilation: Pair) -> Pair:
    """How much further a window reaches than its first element."""
    return (kernel[0] - 1) * dilation[0], (kernel[1] - 1) * dilation[1]


def _counts(extents: tuple[int, ...], kernel: tuple[int, ...], params: Params) -> tuple[int, ...]:
    reach = _halo(kernel, params["dilation"])  # type: ignore[arg-type]
    return tuple(n + sum(pair) - more for n, pair, more in zip(extents, params["padding"], reach, strict=True))


def _infer_windows(specs: Specs, params: Params) -> Specs:
    (n, c, *extents), (o, each, *kernel) = (spec.known_shape for spec in specs)
    counts = _counts(tuple(extents), tuple(kernel), params)
    if c != each or min(counts) < 0:
        raise ShapeError(f"weights of {specs[1]} do not fit an image of {specs[0]}")
    return (TensorSpec((n, o, *counts), specs[0].dtype),)


def _infer_filters(specs: Specs, params: Params) -> Specs:
    (n, c, *extents), (m, o, *counts) = (spec.known_shape for spec in specs)
    if n != m or _counts(tuple(extents), params["kernel"], params) != tuple(counts):
        raise ShapeError(f"windows of {params['kernel']} over {specs[0]} do not give {specs[1]}")
    return (TensorSpec((o, c, *params["kernel"]), specs[0].dtype),)


def _patches(x: Any, kernel: Pair, padding: Padding, dilation: Pair) -> Any:
    """What windows see, [n, c i j, windows]."""
    wide = np.pad(x, ((0, 0), (0, 0), *padding))
    spans = tuple(reach + 1 for reach in _halo(kernel, dilation))
    seen = np.lib.stride_tricks.sliding_window_view(wide, spans, axis=(2, 3))[..., :: dilation[0], :: dilation[1]]
    n, c, *counts = seen.shape[:4]
    return seen.transpose(0, 1, 4, 5, 2, 3).reshape(n, c * kernel[0] * kernel[1], counts[0] * counts[1])


def _windows_impl(x: Any, w: Any, padding: Padding, dilation: Pair) -> Any:
    seen = _patches(x, w.shape[2:], padding, dilation)
    counts = _counts(x.shape[2:], w.shape[2:], {"padding": padding, "dilation": dilation})
    return (w.reshape(len(w), seen.shape[1]) @ seen).reshape(len(x), len(w), *counts)


def _filters_impl(x: Any, g: Any, kernel: Pair, padding: Padding, dilation: Pair) -> Any:
    seen = _patches(x, kernel, padding, dilation)
    each = g.reshape(*g.shape[:2], seen.shape[2]) @ np.swapaxes(seen, 1, 2)
    return each.sum(0).reshape(g.shape[1], x.shape[1], *kernel)


def convolve_windows(x: Tensor, w: Tensor, padding: Padding, dilation: Pair) -> Tensor:
    """``out[n, o, y, x] = sum_cij w[o, c, i, j] x[n, c, y + i dilation - padding, x + j dilation - padding]``; no more
    padding than windows reach, so that the gradient is of the same kind.
    """
    return apply_one(windows_op, x, w, padding=padding, dilation=dilation)


def _convolve_filters(x: Tensor, g: Tensor, kernel: Pair, padding: Padding, dilation: Pair) -> Tensor:
    return apply_one(filters_op, x, g, kernel=kernel, padding=padding, dilation=dilation)


def _spread(g: Tensor, w: Tensor, padding: Padding, dilation: Pair) -> Tensor:
    """The transpose of a convolution as a map of its image: one with the weights turned round."""
    reach = _halo(w.spec.known_shape[2:], dilation)  # type: ignore[arg-type]
    rest = tuple((more - low, more - high) for more, (low, high) in zip(reach, padding, strict=True))
    return convolve_windows(g, weights_turned(w), rest, dilation)  # type: ignore[arg-type]


def weights_turned(w: Tensor) -> Tensor:
    """Weights with the positions in a window in reverse, and channels in the place of results."""
    flipped = call("flip", w, tuple(range(2, w.ndim)))
    return call("transpose", flipped, (1, 0, *range(2, w.ndim)))  # type: ignore[no-any-return]


def _windows_vjp(
    g: Tensor, out: Tensor, x: Tensor, w: Tensor, *, padding: Padding, dilation: Pair
) -> tuple[Tensor, Tensor]:
    kernel = w.spec.known_shape[2:]
    return _spread(g, w, padding, dilation), _convolve_filters(x, g, kernel, padding, dilation)  # type: ignore[arg-type]


def _filters_vjp(
    g: Tensor, out: Tensor, x: Tensor, y: Tensor, *, kernel: Pair, padding: Padding, dilation: Pair
) -> tuple[Tensor, Tensor]:
    return _spread(y, g, padding, dilation), convolve_windows(x, g, padding, dilation)


windows_op = define(
    "convolve_windows", infer=_infer_windows, impl=_windows_impl, vjp=_windows_vjp, kind=Convolve("windows")
)
filters_op = define(
    "convolve_filters", infer=_infer_filters, impl=_filters_impl, vjp=_filters_vjp, kind=Convolve("filters")
)
