"""Questions about elements and positions: which are among others, where extremes and indices are; no op is defined
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.graph import Tensor
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, as_tensors, build, common_dtype, refuse_options, unsupported


@function("isin")
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None
) -> Any:
    """As numpy.isin: sought among the sorted ones."""
    dtype = common_dtype(element, test_elements)
    x, others = (as_tensor(t, dtype) for t in as_tensors(element, test_elements))
    ordered = build("sort", build("ravel", others))
    count = ordered.spec.size
    if not count:
        return build("full_like", x, bool(invert), dtype=bool)
    near = build("take", ordered, build("minimum", build("searchsorted", ordered, x), count - 1), 0)
    return near != x if invert else near == x


@function("array_equiv")
def array_equiv(a1: Any, a2: Any) -> Any:
    """As numpy.array_equiv: whether both are equal once they are broadcast; False where they cannot be."""
    x, y = as_tensors(a1, a2)
    shapes = x.spec.known_shape, y.spec.known_shape
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return as_tensor(False, graph=x.graph)
    return build("all", x == y)


@function("nanargmax")
def nanargmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Tensor:
    """As numpy.nanargmax; the first position where there is no number."""
    refuse_options("nanargmax", out=out)
    return build("argmax", _without_nan(a, -np.inf), axis, keepdims=bool(keepdims))


@function("nanargmin")
def nanargmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Tensor:
    """As numpy.nanargmin; the first position where there is no number."""
    refuse_options("nanargmin", out=out)
    return build("argmin", _without_nan(a, np.inf), axis, keepdims=bool(keepdims))


def _without_nan(a: Any, number: float) -> Tensor:
    x = as_tensor(a)
    return build("where", x == x, x, np.asarray(number, x.dtype)) if x.dtype.kind in "fc" else x


@function("unravel_index")
def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    """As numpy.unravel_index, for positions that are in the array, which is not looked at."""
    extents = tuple(np.atleast_1d(shape).tolist())
    if order not in ("C", "F"):
        raise ValueError(f"order is 'C' or 'F', got {order!r}")
    rest: Any = as_tensor(indices)
    found: list[Any] = []
    for extent in extents[::-1] if order == "C" else extents:
        found.append(call("remainder", rest, extent))
        rest = call("floor_divide", rest, extent)
    return tuple(found[::-1] if order == "C" else found)


@function("ravel_multi_index")
def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """As numpy.ravel_multi_index, for positions that are in the array, which is not looked at."""
    extents = tuple(np.atleast_1d(dims).tolist())
    if order not in ("C", "F"):
        raise ValueError(f"order is 'C' or 'F', got {order!r}")
    steps = [math.prod(extents[k + 1 :] if order == "C" else extents[:k]) for k in range(len(extents))]
    modes = (mode,) * len(extents) if isinstance(mode, str) else mode
    places = [_inside(i, n, how) for i, n, how in zip(multi_index, extents, modes, strict=True)]
    return sum(place * step for place, step in zip(places[1:], steps[1:], strict=True)) + places[0] * steps[0]


def _inside(index: Any, extent: int, mode: str) -> Any:
    if mode == "clip":
        return call("clip", index, 0, extent - 1)
    if mode not in ("raise", "wrap"):
        raise ValueError(f"mode must be 'raise', 'wrap' or 'clip', got {mode!r}")
    return call("remainder", index, extent) if mode == "wrap" else index


@function("lexsort")
def lexsort(keys: Any, axis: int = -1) -> Any:
    """As numpy.lexsort: the order by the last key, where that is equal by the one before it, and so on."""
    rows: Sequence[Any] = list(keys)
    if not rows:
        raise TypeError("lexsort takes keys in a sequence, one or more, got none")
    order = build("argsort", rows[0], axis)
    for key in rows[1:]:
        moved = build("argsort", build("take_along_axis", as_tensor(key), order, axis), axis)
        order = build("take_along_axis", order, moved, axis)
    return order


@function("real_if_close")
def real_if_close(a: Any, tol: Any = 100) -> Any:
    """As numpy.real_if_close of real numbers; of complex ones the dtype depends on values, which is refused."""
    x = as_tensor(a)
    if x.dtype.kind == "c":
        raise unsupported("real_if_close", " of complex numbers", "take .real of it, or np.real_if_close of the result")
    return x


@function("apply_over_axes")
def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """As numpy.apply_over_axes: the function along one axis after the other, which stay."""
    x: Any = as_tensor(a)
    for axis in np.atleast_1d(axes).tolist():
        found = func(x, axis)
        found = found if found.ndim == x.ndim else build("expand_dims", found, axis % x.ndim)
        if found.ndim != x.ndim:
            raise ValueError(f"apply_over_axes takes functions that leave as many axes or one less, got {found.spec}")
        x = found
    return x


@function("apply_along_axis")
def apply_along_axis(func1d: Any, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Refused: it would be a loop of Python over all lines, for which there is jg.map."""
    raise unsupported(
        "apply_along_axis", hint="write the function for all lines at once, with axis=, or as a loop that is compiled: "
        "jg.map(fn, np.moveaxis(x, axis, 0)) calls fn with x's parts along the axis",
    )  # fmt: skip
