"""Samples and their distribution: windows of a sequence, phases, spaces of equal ratio, histograms; no op is defined
here.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, as_tensors, build, unsupported, where
from jitgrad.ops.slicing import slice_axis
from jitgrad.spec import normalize_axis, promote


@function("lib.stride_tricks.sliding_window_view")
def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Tensor:
    """As numpy.lib.stride_tricks.sliding_window_view, as an array of its own."""
    found = as_tensor(x)
    sizes = tuple(map(operator.index, window_shape if isinstance(window_shape, list | tuple) else (window_shape,)))
    axes = tuple(range(found.ndim)) if axis is None else axis if isinstance(axis, list | tuple) else (axis,)
    if len(sizes) != len(axes):
        raise ValueError(f"one size of the window is needed for each axis, got {sizes} for {axes}")
    for size, k in zip(sizes, [normalize_axis(k, found.ndim) for k in axes], strict=True):
        starts = found.spec.known_shape[k] - size + 1
        if size < 0 or starts < 1:
            raise ShapeError(f"a window of {size} does not fit into {found.spec.known_shape[k]} elements of axis {k}")
        places = np.arange(starts)[:, None] + np.arange(size)
        found = build("moveaxis", build("take", found, places, k), k + 1, -1)
    return found


@function("unwrap")
def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * np.pi) -> Any:
    """As numpy.unwrap: multiples of the period are added where neighbours differ by more than half of it."""
    x = as_tensor(p)
    along = normalize_axis(axis, x.ndim)
    steps = call("diff", x, axis=along)
    half, is_odd = (period / 2, False) if steps.dtype.kind == "f" or isinstance(period, float) else divmod(period, 2)
    moved = call("remainder", steps + half, period) - half
    moved = moved if is_odd else where((moved == -half) & (steps > 0), half, moved)
    turns = where(call("absolute", steps) < (period / 2 if discont is None else discont), 0, moved - steps)
    added = call("cumsum", call("stop_gradient", turns), along)
    first, rest = slice_axis(x, along, 0, 1), slice_axis(x, along, 1, None)
    return build("concatenate", [build("astype", first, added.dtype), rest + added], along)


@function("geomspace")
def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """As numpy.geomspace, of real numbers: logarithms in equal steps, both ends as they were given."""
    ends_given = as_tensors(start, stop)
    if any(x.dtype.kind == "c" for x in ends_given):
        raise unsupported("geomspace", " of complex numbers")
    first, last = (build("astype", x, promote(x.dtype, np.dtype(np.float64))) for x in ends_given)
    first, last = call("broadcast_arrays", first, last)
    sign = call("sign", first)
    low, high = (call("log10", x / sign) for x in (first, last))
    found = call("logspace", low, high, num, endpoint=endpoint) * sign
    ends = [first[None] if num > 0 else None, last[None] if num > 1 and endpoint else None]
    inner = slice_axis(found, 0, int(ends[0] is not None), num - int(ends[1] is not None))
    found = build("concatenate", [x for x in (ends[0], inner, ends[1]) if x is not None], 0)
    found = found if dtype is None else build("astype", found, dtype)
    return build("moveaxis", found, 0, axis) if axis else found


# -- histograms ----------------------------------------------------------------------------------------------


@function("histogram_bin_edges")
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """As numpy.histogram_bin_edges, for a number of bins or their edges."""
    x = build("ravel", as_tensor(a))
    if isinstance(bins, str):
        raise unsupported("histogram", f" with bins={bins!r}", "give a number of bins, or their edges")
    if np.ndim(bins):
        return as_tensors(bins, x)[0]
    count = operator.index(bins)
    if count < 1:
        raise ValueError(f"bins: a number from 1 on, or edges, got {bins}")
    x = x if x.dtype.kind in "fc" else build("astype", x, np.float64)
    low, high = range if range is not None else (build("min", x), build("max", x)) if x.spec.size else (0.0, 1.0)
    is_one = call("equal", low, high)
    return build("linspace", where(is_one, low - 0.5, low), where(is_one, high + 0.5, high), count + 1)


@function("histogram")
def histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    """As numpy.histogram, for a number of bins or their edges. Counts have no gradient, sums of weights have one."""
    x = build("ravel", as_tensor(a))
    edges = histogram_bin_edges(x, bins, range)
    count = edges.spec.size - 1
    last = edges[-1]
    place = where(x == last, count - 1, build("searchsorted", edges, x, "right") - 1)
    place = where(x <= last, place, -1)  # beyond the last edge, and NaN: -1 is a position that no bin has
    what = np.ones(x.spec.known_shape, np.int64) if weights is None else build("ravel", as_tensor(weights))
    found = build("unsorted_segment_sum", what, place, count)
    if not density:
        return found, edges
    return found / build("diff", edges) / build("sum", found), edges
