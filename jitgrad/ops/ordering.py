"""Stable sorting by NumPy's unstable sorts, which have vector instructions; no op is here."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_FEW = 64  # below, a stable sort takes no longer
_FEW_TO_ORDER = 256  # the same for orders, of which ties are asked: 200 float64 take 8 us stably, 10 in this way
_FAST = frozenset(map(np.dtype, ("f4", "f8", "i4", "i8", "u4", "u8")))  # others NumPy sorts stably as fast, or faster


def sorted_along(x: Array, axis: int) -> Array:
    """As np.sort(x, axis, kind="stable"), but for which NaN is where.

    What compares as equal looks the same, but for zeros: where both are there, the sort itself is stable.
    """
    if not _is_fast(x, axis):
        return np.sort(x, axis, kind="stable")
    found = np.sort(x, axis)
    if x.dtype.kind == "f" and (found == 0).any():
        signs = np.signbit(x[x == 0])
        if signs.any() and not signs.all():
            return np.sort(x, axis, kind="stable")
    return found


def order_along(x: Array, axis: int) -> Array:
    """As np.argsort(x, axis, kind="stable"): an unstable one, then places of equal elements are sorted among them."""
    if not _is_fast(x, axis) or x.size < _FEW_TO_ORDER:
        return x.argsort(axis, "stable")
    order = np.argsort(x, axis)
    if x.ndim == 1:
        return _ties_in_order(x[order], order)
    places = np.moveaxis(order, axis, -1)
    values = np.take_along_axis(np.moveaxis(x, axis, -1), places, -1)
    return np.moveaxis(_ties_in_order(values, places), -1, axis)


def ready_order(dtype: np.dtype[Any], shape: tuple[int, ...], axis: int) -> Callable[[Array], Array]:
    """`order_along` of arrays of this dtype and shape, made for many calls."""
    if math.prod(shape) < _FEW_TO_ORDER or dtype not in _FAST or shape[axis] < _FEW:
        return methodcaller("argsort", axis, "stable")
    return partial(order_along, axis=axis)


def _ties_in_order(values: Array, places: Array) -> Array:
    """Places of sorted values along the last axis, those of equal ones in order."""
    left, right = values[..., :-1], values[..., 1:]
    tied = left == right
    if values.dtype.kind == "f" and np.isnan(values[..., -1]).any():
        tied |= np.isnan(left)  # of two neighbours, the first is NaN only if both are
    if not tied.any():
        return places
    runs = np.zeros(places.shape, np.int64)
    np.cumsum(~tied, axis=-1, out=runs[..., 1:])
    runs *= places.shape[-1]
    return np.sort(runs + places, -1) - runs


def _is_fast(x: Array, axis: int) -> bool:
    return x.dtype in _FAST and x.shape[axis] >= _FEW
