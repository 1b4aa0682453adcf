"""Padding by values that follow from the array: statistics, ramps and odd reflections; no op is defined here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.graph import Tensor
from jitgrad.operators import function
from jitgrad.ops.common import build, unsupported
from jitgrad.ops.slicing import pairs, slice_axis

# (the array, padded along the axes before, the axis, how many elements, at the end?, what the options say) -> them
Border = Callable[[Tensor, int, int, bool, Any], Any]
_MODES = (
    "constant", "edge", "empty", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect", "symmetric", "wrap",
)  # fmt: skip
_STATISTICS = {"mean": "mean", "maximum": "max", "minimum": "min", "median": "median"}


@function("pad_by_values")
def pad_by_values(x: Tensor, widths: Any, mode: Any, options: dict[str, Any]) -> Tensor:
    """As numpy.pad for the modes mean, maximum, minimum, median and linear_ramp, and reflections that are odd."""
    border, told = _border(x, mode, dict(options))
    for axis, (low, high) in enumerate(widths):
        before, after = ((border(x, axis, n, k == 1, told[axis][k]),) if n else () for k, n in enumerate((low, high)))
        x = build("concatenate", [*before, x, *after], axis) if low or high else x
    return x


def _border(x: Tensor, mode: Any, options: dict[str, Any]) -> tuple[Border, Any]:
    """What makes the elements of a mode, and per axis what it is told for both ends."""
    nothing = [(None, None)] * x.ndim
    if mode in _STATISTICS:
        lengths = options.pop("stat_length", None)
        border, told = _statistic(mode), nothing if lengths is None else pairs(lengths, x.ndim, as_value=True)
    elif mode == "linear_ramp":
        border, told = _ramp, pairs(options.pop("end_values", 0), x.ndim, as_value=True)
    elif mode in ("reflect", "symmetric") and options.pop("reflect_type", None) == "odd":
        border, told = _odd(mode == "reflect"), nothing
    else:
        if mode not in _MODES and not callable(mode):
            raise ValueError(f"pad has no mode {mode!r}: its modes are {', '.join(_MODES)}")
        raise unsupported("pad", f" with mode={mode!r} {options or ''}".rstrip())
    if options:
        raise ValueError(f"pad with mode={mode!r} takes no {', '.join(options)}")
    return border, told


def _edge(x: Tensor, axis: int, at_end: bool, count: int | None = 1) -> Tensor:
    """So many elements at one end of an axis; None: all."""
    n = x.spec.known_shape[axis]
    count = n if count is None else min(count, n)
    return slice_axis(x, axis, n - count, None) if at_end else slice_axis(x, axis, 0, count)


def _statistic(mode: str) -> Border:
    def border(x: Tensor, axis: int, count: int, at_end: bool, length: Any) -> Any:
        found = build(_STATISTICS[mode], _edge(x, axis, at_end, length), axis, keepdims=True)
        found = build("rint", found) if x.dtype.kind in "iub" else found
        shape = x.spec.known_shape
        return build("broadcast_to", build("astype", found, x.dtype), (*shape[:axis], count, *shape[axis + 1 :]))

    return border


def _ramp(x: Tensor, axis: int, count: int, at_end: bool, end: Any) -> Any:
    edge = build("astype", _edge(x, axis, at_end), x.dtype if x.dtype.kind in "fc" else np.float64)
    steps = np.arange(count).reshape((-1, *(1,) * (x.ndim - axis - 1)))
    values = (edge - end) / count * steps.astype(edge.dtype) + end
    values = values if x.dtype.kind in "fc" else build("floor", values)
    return build("astype", build("flip", values, axis) if at_end else values, x.dtype)


def _odd(leaves_edge: bool) -> Border:
    def border(x: Tensor, axis: int, count: int, at_end: bool, nothing: Any) -> Any:
        n = x.spec.known_shape[axis]
        if count > n - leaves_edge:
            raise unsupported("pad", f" with an odd reflection of {count} of {n} elements")
        inner = _edge(x, axis, at_end, count + leaves_edge)
        inner = _edge(inner, axis, not at_end, count)
        return 2 * _edge(x, axis, at_end) - build("flip", inner, axis)

    return border
