"""Arrays with elements more than they had, at given places or over again: insert and resize; no op is defined here."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from jitgrad.errors import IndexingError, ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, build, filled, unsupported
from jitgrad.spec import normalize_axis


@function("insert")
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Tensor:
    """As numpy.insert for positions that are no tensors; IndexingError for one beyond the end."""
    if isinstance(obj, Tensor):
        raise unsupported("insert", " at traced positions")
    x = as_tensor(arr) if axis is not None else build("ravel", as_tensor(arr))
    along = 0 if axis is None else normalize_axis(axis, x.ndim)
    new = _inserted(as_tensor(values, x.dtype, x.graph), x, obj, along)
    order = _order(obj, x.spec.known_shape[along], new.spec.known_shape[along])
    return build("take", build("concatenate", [x, new], along), order, along)


def _inserted(values: Tensor, x: Tensor, obj: Any, along: int) -> Tensor:
    """What is inserted, in the shape of ``x`` but along the axis: an element for each position, or at one position all
    values that there are.
    """
    shape = list(x.spec.known_shape)
    new = build("reshape", values, (*(1,) * x.ndim, *values.spec.known_shape)[-x.ndim :])
    if not isinstance(obj, slice) and np.ndim(obj) == 0:
        new = build("moveaxis", new, 0, along)  # at a number, other than in a list of one, the first axis goes along
    positions = _count(obj, shape[along])
    shape[along] = new.spec.known_shape[along] if positions == 1 else positions
    return build("broadcast_to", new, tuple(shape))


def _count(obj: Any, extent: int) -> int:
    """How many positions there are in a slice, a mask or an array of integers."""
    if isinstance(obj, slice):
        return len(range(*obj.indices(extent)))
    places = np.asarray(obj)
    return int(np.count_nonzero(places)) if places.dtype.kind == "b" else places.size


def _order(obj: Any, extent: int, count: int) -> Any:
    """Where each element of the result stands among the old ones and, behind them, the new ones."""
    try:
        return np.insert(np.arange(extent), obj, extent + np.arange(count))
    except IndexError:
        raise IndexingError(beyond(extent, obj)) from None


def beyond(extent: int, obj: Any) -> str:
    """What is said of positions that an axis does not have: there is one more than elements, behind the last."""
    return f"insert takes positions from {-extent} to {extent}, behind the last, got {obj}"


@function("resize")
def resize(a: Any, new_shape: Any) -> Tensor:
    """As numpy.resize: the elements again and again until the shape is full; zeros of none."""
    x = build("ravel", as_tensor(a))
    shape = tuple(map(operator.index, new_shape if isinstance(new_shape, list | tuple) else (new_shape,)))
    size, count = math.prod(shape), x.spec.size
    if any(n < 0 for n in shape):
        raise ShapeError(f"all elements of new_shape must be non-negative, got {shape}")
    if not count:
        return as_tensor(filled(shape, 0, x.dtype), graph=x.graph)
    repeated = build("tile", x, -(-size // count)) if size > count else x
    return build("reshape", repeated[:size], shape)
