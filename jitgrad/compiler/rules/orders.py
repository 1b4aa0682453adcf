"""Rules for sorts: what is sorted and has its order made as well is sorted once; short axes are sorted by counting."""

from __future__ import annotations

import math

import numpy as np

from jitgrad.compiler.likeness import EXACT
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction, Origin
from jitgrad.spec import DType, TensorSpec

COUNTED, MOST_PAIRS = 32, 4096
"""Extents up to which each element counts those before it, without a call between two clusters, and how many pairs are
compared at most. Microseconds of value and gradient by NumPy's sorts and so, float64, Zen 4:

    elements    4          10         30         32 rows of 4    of 10       of 30
               6.2, 0.4   6.3, 0.5   6.5, 0.9   7.8, 2.1        8.3, 7.0    12.4, 14.7
"""


def sorted_by_order(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """sort(x) = take_along_axis(x, argsort(x)) where the program has that argsort, as with the gradient of sort, or a
    kernel counts.
    """
    (x,), axis = ins.inputs, ins.params["axis"]
    orders = rw.instructions_of("argsort")
    is_made = any(rw.new_inputs(other) == (x,) and other.params["axis"] == axis for other in orders)
    if not is_made and not _is_counted(rw, ins):
        return None
    order = rw.emit(ins.origin, "argsort", x, axis=axis)
    return rw.replace(ins, "take_along_axis", x, order, axis=axis)


def order_by_counting(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """argsort(x)[k] = sum_i i [rank[i] = k], where rank[i] is how many elements are sorted before x[i]"""
    if not _is_counted(rw, ins):
        return None
    (x,), axis, origin = ins.inputs, ins.params["axis"], ins.origin
    shape, dtype = rw.shape(x), rw.dtype(x)
    pairs, count = _Pairs(rw, origin, shape, axis), dtype if dtype.kind == "f" else np.dtype(np.float64)
    rank = pairs.sum(pairs.chosen(_are_before(pairs, x, dtype), pairs.splat(1, count), pairs.splat(0, count)))
    place = pairs.places(count)
    is_there = rw.emit(origin, "equal", pairs.others(rank), pairs.owns(place))
    order = pairs.sum(pairs.chosen(is_there, pairs.others(place), pairs.splat(0, count)))
    return rw.replace(ins, "astype", order, dtype=rw.dtype(ins.outputs[0]))


def _is_counted(rw: Rewriter, ins: Instruction) -> bool:
    """Whether a kernel sorts along a short axis, in a cluster."""
    x, origin = ins.inputs[0], ins.origin
    is_kernel = origin.scope is not None and not origin.is_refused
    has_order = rw.dtype(x).kind in "fiu" and rw.dtype(x).itemsize >= np.dtype(np.float32).itemsize
    shape, n = rw.shape(x), rw.shape(x)[ins.params["axis"]]
    is_small = max(shape) <= EXACT and n <= COUNTED and 0 < n * math.prod(shape) <= MOST_PAIRS
    return is_kernel and has_order and is_small


def _are_before(pairs: _Pairs, x: int, dtype: DType) -> int:
    """Which others of each element come before it in a stable sort: smaller ones and, of equal ones, those in front of
    it. NaN comes behind all numbers.
    """
    rw, origin = pairs.rw, pairs.origin
    other, own, place = pairs.others(x), pairs.owns(x), pairs.places(dtype)
    in_front = rw.emit(origin, "less", pairs.others(place), pairs.owns(place))
    if dtype.kind != "f":
        return pairs.chosen(in_front, rw.emit(origin, "less_equal", other, own), rw.emit(origin, "less", other, own))
    is_nan = rw.emit(origin, "not_equal", x, x)
    at_most = rw.emit(origin, "logical_or", rw.emit(origin, "less_equal", other, own), pairs.owns(is_nan))
    at_least = rw.emit(origin, "logical_or", rw.emit(origin, "greater_equal", other, own), pairs.others(is_nan))
    return pairs.chosen(in_front, at_most, rw.emit(origin, "logical_not", at_least))


class _Pairs:
    """Values for all pairs of elements along an axis, that of the others in front of that of their own; a kernel has
    lanes along the latter, or along what is behind it.
    """

    def __init__(self, rw: Rewriter, origin: Origin, shape: tuple[int, ...], axis: int) -> None:
        self.rw, self.origin, self.axis = rw, origin, axis
        self.shape = (*shape[:axis], shape[axis], *shape[axis:])
        self._line = tuple([n if d == axis else 1 for d, n in enumerate(shape)])

    def others(self, v: int) -> int:
        """A value of the other element of each pair."""
        return self._spread(self.rw.emit(self.origin, "expand_dims", v, axes=(self.axis + 1,)))

    def owns(self, v: int) -> int:
        """A value of the element itself."""
        return self._spread(self.rw.emit(self.origin, "expand_dims", v, axes=(self.axis,)))

    def places(self, dtype: DType) -> int:
        """The numbers of elements along the axis."""
        return self.rw.emit(self.origin, "iota", shape=self._line, axis=self.axis, dtype=dtype)

    def splat(self, number: int, dtype: DType) -> int:
        """One number for all pairs."""
        return self.rw.emit_splat(self.origin, number, TensorSpec(self.shape, dtype))

    def chosen(self, condition: int, x: int, y: int) -> int:
        """One of two values for each pair."""
        return self.rw.emit(self.origin, "where", condition, x, y)

    def sum(self, v: int) -> int:
        """The sum over the other elements."""
        return self.rw.emit(self.origin, "sum", v, axis=(self.axis,), keepdims=False)

    def _spread(self, v: int) -> int:
        return self.rw.emit(self.origin, "broadcast_to", v, shape=self.shape)
