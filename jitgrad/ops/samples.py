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
from jitgrad.ops.common import as_tensor, as_tensors, build, joint_dtype, type_key, unsupported, where
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
        extent = found.spec.known_shape[k]
        starts = extent - size + 1
        if size < 0 or starts < 1:
            raise ShapeError(f"a window of {size} does not fit into {extent} elements of axis {k}")
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
    """As numpy.geomspace, of real numbers: logarithms in equal steps, both ends as they were given. From a traced 0,
    which NumPy refuses, all are NaN.
    """
    if any(not isinstance(x, Tensor) and np.any(np.equal(x, 0)) for x in (start, stop)):
        raise ValueError(f"geomspace takes no end that is 0, got {start} and {stop}")
    ends_given = as_tensors(start, stop)
    if any(x.dtype.kind == "c" for x in ends_given):
        raise unsupported("geomspace", " of complex numbers")
    first, last = (build("astype", x, promote(x.dtype, np.dtype(np.float64))) for x in ends_given)
    first, last = call("broadcast_arrays", first, last)
    sign = call("sign", first)
    low, high = first / sign, last / sign
    found = call("logspace", call("log10", low), call("log10", high), num, endpoint=endpoint)
    ends = [low[None] if num > 0 else None, high[None] if num > 1 and endpoint else None]
    inner = slice_axis(found, 0, int(ends[0] is not None), num - int(ends[1] is not None))
    found = build("concatenate", [x for x in (ends[0], inner, ends[1]) if x is not None], 0) * sign
    found = found if dtype is None else build("astype", found, dtype)
    return build("moveaxis", found, 0, axis) if axis else found


# -- histograms ----------------------------------------------------------------------------------------------


@function("histogram_bin_edges")
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """As numpy.histogram_bin_edges, for a number of bins or their edges. What is traced is not looked at: edges that do
    not rise, a range that falls or is infinite.
    """
    x = build("ravel", as_tensor(a))
    if isinstance(bins, str):
        raise unsupported("histogram", f" with bins={bins!r}", "give a number of bins, or their edges")
    if np.ndim(bins):
        return _rising(as_tensors(bins, x)[0], bins)
    count = operator.index(bins)
    if count < 1:
        raise ValueError(f"bins: a number from 1 on, or edges, got {bins}")
    x = x if x.dtype.kind in "fc" else build("astype", x, np.float64)
    low, high = _ends(x, range)
    dtype = joint_dtype(type_key(low), type_key(high), x.dtype)
    is_one = call("equal", low, high)
    return build("linspace", where(is_one, low - 0.5, low), where(is_one, high + 0.5, high), count + 1, dtype=dtype)


def _ends(x: Tensor, range: Any) -> tuple[Any, Any]:
    """Where the bins begin and end; ValueError where numbers of a range cannot be that."""
    if range is None:
        return (build("min", x), build("max", x)) if x.spec.size else (0.0, 1.0)
    low, high = range
    if any(isinstance(end, Tensor) for end in (low, high)):
        return low, high
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise ValueError(f"a range of bins has two finite numbers, the smaller one first, got {range}")
    return low, high


def _rising(edges: Tensor, given: Any) -> Tensor:
    """The edges; ValueError where numbers that were given fall, or are no vector."""
    if edges.ndim != 1:
        raise ShapeError(f"edges of bins are a vector, got {edges.spec}")
    if edges.op.type == "constant" and np.any(np.diff(edges.op.params["value"]) < 0):
        raise ValueError(f"edges of bins rise, got {given}")
    return edges


@function("histogram")
def histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    """As numpy.histogram, for a number of bins or their edges. Counts have no gradient, sums of weights have one."""
    data = as_tensor(a)
    x = build("ravel", data)
    edges = histogram_bin_edges(x, bins, range)
    what = as_tensor(np.ones(x.spec.known_shape, np.int64) if weights is None else weights, graph=x.graph)
    if weights is not None and what.shape != data.shape:
        raise ShapeError(f"histogram takes one weight for each element, got {what.spec} for {data.spec}")
    found = _sums_in_bins(x, edges, build("ravel", what))
    if not density:
        return found, edges
    return found / build("diff", edges) / build("sum", found), edges


def _sums_in_bins(x: Tensor, edges: Tensor, what: Tensor) -> Tensor:
    """The sums, in their dtype, of what belongs to elements between two edges; a last edge belongs to the last bin."""
    count = edges.spec.size - 1
    if count < 1:
        return as_tensor(np.zeros(0, what.dtype), graph=x.graph)
    last = edges[-1]
    place = where(x == last, count - 1, build("searchsorted", edges, x, "right") - 1)
    place = where(x <= last, place, -1)  # beyond the last edge, and NaN: -1 is a position that no bin has
    return build("astype", build("unsorted_segment_sum", what, place, count), what.dtype)
