"""Positions of which all but the last are each element's own: ``x[np.arange(n), labels]`` is about one row at a time.

As NumPy's code says it, positions are arrays along all axes. Where those in front are known, and each the number of its
place, they say no more than ``take_along_axis``, which a loop over rows does in passing: softmax cross-entropy with its
gradient takes 0.26 of the time so for 4096 x 1000 floats, 0.68 for 100 x 10 (Ice Lake).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.graph import Tensor, apply_one
from jitgrad.ops.common import as_tensor, build
from jitgrad.ops.gathering import as_index, scatter_take_along_op, take_along_op


def are_along_rows(x: Tensor, axes: Sequence[int], positions: Sequence[Any]) -> bool:
    """Whether positions along these axes of ``x`` are known to be one, or several, along each of its rows.

    Not in a graph, which keeps what the user built, and whose constants may be fed.
    """
    *own, last = positions
    shape, read = x.spec.shape, last.spec.shape if isinstance(last, Tensor) else last.shape
    if x.graph.takes_feeds or shape is None or read is None or not own or len(axes) != len(shape):
        return False
    around = shape[:-1]
    if None in around or read[: len(around)] != around or len(read) > len(shape):
        return False
    return all(_is_own(numbers, axis) for axis, numbers in enumerate(own))


def _is_own(positions: Any, axis: int) -> bool:
    """Whether positions are known, and each the number of its place along the axis."""
    known = _known(positions)
    if known is None:
        return False
    numbers = np.arange(known.shape[axis]).reshape(-1, *(1,) * (known.ndim - axis - 1))
    return bool((known == numbers).all())


def _known(positions: Any) -> Any:
    """Positions as an array, where they are an array that was given; None of others."""
    if not isinstance(positions, Tensor):
        return positions
    if positions._view is not None:
        positions._view.renew(positions)
    op = positions.op
    if op.type == "broadcast_to" and op.inputs[0].op.type == "constant":
        return np.broadcast_to(op.inputs[0].op.params["value"], positions.spec.known_shape)
    return op.params["value"] if op.type == "constant" else None


def read_along_rows(x: Tensor, positions: Any) -> Tensor:
    """The elements of each row of ``x`` at its positions: [..., n] at [...], or at [..., k]."""
    index = as_index(positions, x)
    if len(positions.shape) == x.ndim:
        return apply_one(take_along_op, x, index, axis=x.ndim - 1)
    found = apply_one(take_along_op, x, build("expand_dims", index, -1), axis=x.ndim - 1)
    return build("squeeze", found, -1)


def is_one_per_row(x: Tensor, axes: Sequence[int], positions: Sequence[Any]) -> bool:
    """Whether positions along these axes of ``x`` are known to be one along each of its rows."""
    last = positions[-1].shape
    return are_along_rows(x, axes, positions) and (len(last) < len(axes) or last[-1] == 1)


def written_along_rows(x: Tensor, positions: Any, values: Tensor) -> Tensor:
    """``x`` [..., n] with a value for each row at its position, both [...] or [..., 1], in place of one element."""
    index = as_index(positions, x)
    if len(positions.shape) < x.ndim:
        index, values = build("expand_dims", index, -1), build("expand_dims", values, -1)
    ones = as_tensor(np.broadcast_to(np.float32(1), index.spec.known_shape), graph=x.graph)
    chosen = apply_one(scatter_take_along_op, x, ones, index, axis=x.ndim - 1)
    return build("where", build("greater", chosen, 0), values, x)
