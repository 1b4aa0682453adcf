"""Arrays with elements more than they had, at given places or over again: insert and resize; no op is defined here."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, build, filled, unsupported
from jitgrad.spec import normalize_axis


@function("insert")
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Tensor:
    """As numpy.insert for positions that are no tensors."""
    if isinstance(obj, Tensor):
        raise unsupported("insert", " at traced positions")
    x = as_tensor(arr) if axis is not None else build("ravel", as_tensor(arr))
    along = 0 if axis is None else normalize_axis(axis, x.ndim)
    extents = x.spec.known_shape
    places = np.atleast_1d(np.arange(*obj.indices(extents[along])) if isinstance(obj, slice) else np.asarray(obj))
    places = np.flatnonzero(places) if places.dtype.kind == "b" else places
    new = as_tensor(values, x.dtype, x.graph)
    new = build("reshape", new, (*(1,) * (x.ndim - new.ndim), *new.spec.known_shape)) if new.ndim < x.ndim else new
    if np.ndim(obj) == 0 and not isinstance(obj, slice):  # at one position, values stand side by side on the first axis
        new = build("moveaxis", new, 0, along)
    count = new.spec.known_shape[along] if places.size == 1 else places.size
    new = build("broadcast_to", new, (*extents[:along], count, *extents[along + 1 :]))
    order = np.insert(np.arange(extents[along]), obj, extents[along] + np.arange(count))
    return build("take", build("concatenate", [x, new], along), order, along)


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
