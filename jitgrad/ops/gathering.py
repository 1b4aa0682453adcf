"""Reading at integer positions given by tensors, and the transposes that add there; slices are in slicing.

A position outside ``-n .. n-1`` is an IndexingError, interpreted and compiled. A kernel notes it for the end of the
call; until then it takes the nearest element, in reading and in adding alike, so that no memory outside is touched.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import DTypeError, IndexingError, ShapeError
from jitgrad.graph import Graph, Tensor, apply_one
from jitgrad.opdef import Gather, OpDef, Params, Scatter, Specs, define
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, as_tensors, build, has_shape_of, unsupported, unwrap
from jitgrad.ops.rows import change_rows
from jitgrad.spec import Shape, TensorSpec, is_compatible, normalize_axis, shape_text

INDEX = np.dtype(np.int64)


def as_index(value: Any, x: Tensor) -> Tensor:
    """``value`` as a tensor of 64-bit integers in the graph of ``x``; IndexingError for floats."""
    array = value if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind not in "iub" and not (isinstance(array, np.ndarray) and array.size == 0):
        raise IndexingError(f"positions must be integers, got {array.dtype.name}")
    return (
        as_tensor(value, INDEX, x.graph)
        if isinstance(value, Tensor)
        else as_tensor(array.astype(INDEX), graph=x.graph)
    )


def zeros_like_shape(x: Tensor, graph: Graph | None = None) -> Tensor:
    """Something of the shape of ``x``, for ops that look at nothing else: a constant of ``graph`` (None: of its own)
    where it is known.
    """
    if not x.spec.is_known:
        return x
    zeros = np.broadcast_to(np.zeros((), x.dtype), x.spec.known_shape)
    return build("constant", zeros, graph=x.graph if graph is None else graph)


def _check_integers(specs: Specs) -> None:
    for spec in specs:
        if spec.dtype.kind not in "iu":
            raise DTypeError(f"positions must be integers, got {spec}")


def _infer_scatter(gather: Any, specs: Specs, params: Params) -> Specs:
    like, updates, *index = specs
    expected = gather((TensorSpec(like.shape, updates.dtype), *index), params)[0]
    if expected.shape != updates.shape:
        raise ShapeError(f"updates {updates} do not have the shape that the positions select: {expected}")
    return (TensorSpec(like.shape, updates.dtype),)


# -- take: one tensor of positions along one axis ------------------------------------------------------------


def _infer_take(specs: Specs, params: Params) -> Specs:
    x, index = specs
    _check_integers((index,))
    shape, axis = x.known_shape, params["axis"]
    return (TensorSpec((*shape[:axis], *index.known_shape, *shape[axis + 1 :]), x.dtype),)


def _scatter_take(like: Any, updates: Any, index: Any, axis: int) -> Any:
    out = np.zeros(like.shape, updates.dtype)
    if axis == 0 and out.size and index.dtype.kind in "iu":
        change_rows(np.add, out, index, updates)
    else:
        np.add.at(out, (slice(None),) * axis + (index,), updates)
    return out


take_op = define(
    "take",
    infer=_infer_take,
    impl=lambda x, index, axis: np.take(x, index, axis),
    vjp=lambda g, out, x, index, *, axis: (
        apply_one(scatter_take_op, zeros_like_shape(x), g, index, axis=axis),
        None,
    ),
    kind=Gather("take"),
)

scatter_take_op: OpDef = define(
    "scatter_take",
    infer=functools.partial(_infer_scatter, _infer_take),
    impl=_scatter_take,
    vjp=lambda g, out, like, updates, index, *, axis: (None, apply_one(take_op, g, index, axis=axis), None),
    kind=Scatter("take"),
)


# -- index: several equal-shaped tensors of positions along adjacent axes ------------------------------------


def _infer_index(specs: Specs, params: Params) -> Specs:
    x, *index = specs
    axes = params["axes"]
    _check_integers(tuple(index))
    if len(axes) != len(index) or list(axes) != list(range(axes[0], axes[0] + len(axes))):
        raise ShapeError(f"{len(index)} tensors of positions for the axes {axes}")
    if any(spec.shape != index[0].shape for spec in index):
        raise ShapeError(f"positions of different shapes: {', '.join(map(str, index))}")
    shape = x.known_shape
    return (TensorSpec((*shape[: axes[0]], *index[0].known_shape, *shape[axes[-1] + 1 :]), x.dtype),)


def _scatter_index(like: Any, updates: Any, *index: Any, axes: tuple[int, ...]) -> Any:
    out = np.zeros(like.shape, updates.dtype)
    np.add.at(out, (slice(None),) * axes[0] + index, updates)
    return out


def _index_vjp(g: Tensor, out: Tensor, x: Tensor, *index: Tensor, axes: tuple[int, ...]) -> Any:
    return (apply_one(scatter_index_op, zeros_like_shape(x), g, *index, axes=axes), *[None] * len(index))


def _scatter_index_vjp(
    g: Tensor, out: Tensor, like: Tensor, updates: Tensor, *index: Tensor, axes: Any
) -> Any:
    return (None, apply_one(index_op, g, *index, axes=axes), *[None] * len(index))


index_op = define(
    "index",
    infer=_infer_index,
    impl=lambda x, *index, axes: np.asarray(x[(slice(None),) * axes[0] + index]),
    vjp=_index_vjp,
    kind=Gather("index"),
)

scatter_index_op = define(
    "scatter_index",
    infer=functools.partial(_infer_scatter, _infer_index),
    impl=_scatter_index,
    vjp=_scatter_index_vjp,
    kind=Scatter("index"),
)


# -- take_along_axis: a tensor of positions as large as the result -------------------------------------------


def _infer_take_along(specs: Specs, params: Params) -> Specs:
    x, index = specs
    _check_integers((index,))
    axis, shape, positions = params["axis"], x.known_shape, index.known_shape
    if len(shape) != len(positions) or any(
        m != n for k, (m, n) in enumerate(zip(shape, positions, strict=False)) if k != axis
    ):
        raise ShapeError(f"positions {index} do not fit {x} along axis {axis}")
    return (TensorSpec(positions, x.dtype),)


def _scatter_take_along(like: Any, updates: Any, index: Any, axis: int) -> Any:
    out = np.zeros(like.shape, updates.dtype)
    grid = list(np.indices(index.shape, sparse=True))
    grid[axis] = index
    np.add.at(out, tuple(grid), updates)
    return out


take_along_op = define(
    "take_along_axis",
    infer=_infer_take_along,
    impl=lambda x, index, axis: np.take_along_axis(x, index, axis),
    vjp=lambda g, out, x, index, *, axis: (
        apply_one(scatter_take_along_op, zeros_like_shape(x), g, index, axis=axis),
        None,
    ),
    kind=Gather("take_along"),
)

scatter_take_along_op: OpDef = define(
    "scatter_take_along_axis",
    infer=functools.partial(_infer_scatter, _infer_take_along),
    impl=_scatter_take_along,
    vjp=lambda g, out, like, updates, index, *, axis: (
        None,
        apply_one(take_along_op, g, index, axis=axis),
        None,
    ),
    kind=Scatter("take_along"),
)


# -- functions -----------------------------------------------------------------------------------------------


def checked_positions(index: Any, extent: int | None, axis: int) -> None:
    """IndexingError for a concrete position outside the extent, when both are known."""
    if isinstance(index, Tensor) or extent is None or index.size == 0:
        return
    bad = index[(index < -extent) | (index >= extent)]
    if bad.size:
        raise IndexingError(f"index {bad.flat[0]} is out of bounds for axis {axis} with size {extent}")


@function("take")
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Tensor:
    """Elements of ``a`` at ``indices`` along ``axis`` (None: flattened), whose axes replace that one.

    ``mode`` "wrap" and "clip" as in NumPy; "raise" as the module says for traced positions.
    """
    if out is not None:
        raise unsupported("take", " with out=")
    x, positions = as_tensors(a, indices)
    if axis is None:
        x, axis = build("ravel", x), 0
    axis = axis if x.spec.rank is None and axis >= 0 else normalize_axis(axis, x.ndim)
    index = as_index(positions, x)
    if mode == "raise":
        if positions.op.type == "constant" and x.spec.rank is not None:
            checked_positions(positions.op.params["value"], x.shape[axis], axis)
        return apply_one(take_op, x, index, axis=axis)
    n = x.spec.known_shape[axis]
    moved = build("remainder", index, n) if mode == "wrap" else build("clip", index, 0, n - 1)
    return apply_one(take_op, x, moved, axis=axis)


@function("gather")
def gather(params: Any, indices: Any) -> Tensor:
    """Rows of ``params``: ``take`` along the first axis."""
    return take(params, indices, 0)


@function("take_along_axis")
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Tensor:
    """``out[i, k, ...] = arr[i, indices[i, k, ...], ...]``; axes other than ``axis`` are broadcast."""
    x, positions = as_tensors(arr, indices)
    if axis is None:
        x, axis = build("ravel", x), 0
    axis = normalize_axis(axis, x.ndim)
    if positions.ndim != x.ndim:
        raise ShapeError(f"indices {positions.spec} and arr {x.spec} must have the same number of dimensions")
    x, positions = _agreeing(x, as_index(positions, x), axis)
    return apply_one(take_along_op, x, positions, axis=axis)


def _agreeing(x: Tensor, index: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Both broadcast against each other in all axes but one."""
    if has_shape_of(x, index) or _agree(x.shape, index.shape, axis):
        return x, index
    if not (x.spec.is_known and index.spec.is_known):
        raise ShapeError(f"whether positions {index.spec} are broadcast against {x.spec} is not known")
    wide = [max(m, n) if 0 not in (m, n) else 0 for m, n in zip(x.shape, index.shape, strict=True)]
    tensors = []
    for t in (x, index):
        shape = (*wide[:axis], t.shape[axis], *wide[axis + 1 :])
        tensors.append(t if t.shape == shape else build("broadcast_to", t, shape))
    return tensors[0], tensors[1]


def _agree(a: Shape, b: Shape, axis: int) -> bool:
    """Whether two shapes of one rank are known to be the same in all axes but one."""
    return all(m == n is not None for k, (m, n) in enumerate(zip(a, b, strict=True)) if k != axis)


@function("unsorted_segment_sum")
def unsorted_segment_sum(data: Any, ids: Any, n: Any) -> Tensor:
    """Rows of ``data`` added up by their ``ids``: shape (n, *rest) for data of ids.shape + rest.

    Rows with a negative id belong to no segment, as in TensorFlow; an id of n or more is an IndexingError.
    """
    values, positions = as_tensors(data, ids)
    rank = positions.ndim
    if values.ndim < rank or not is_compatible(values.shape[:rank], positions.shape):
        raise ShapeError(f"data {values.spec} must begin with the shape of ids {positions.spec}")
    if positions.dtype.kind == "i":
        is_row = build("reshape", positions >= 0, (*positions.shape, *(1,) * (values.ndim - rank)))
        values, positions = call("where", is_row, values, 0), build("maximum", positions, 0)
    return add_rows(values, positions, operator.index(n))


def add_rows(values: Tensor, positions: Tensor, count: int) -> Tensor:
    """``count`` rows of zeros with ``values`` added at ``positions``."""
    shape = (count, *TensorSpec(values.shape[positions.ndim :], values.dtype).known_shape)
    like = build("constant", np.broadcast_to(np.zeros((), values.dtype), shape), graph=values.graph)
    return apply_one(scatter_take_op, like, values, as_index(positions, values), axis=0)


@function("bincount")
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Tensor:
    """Sums of ``weights`` (None: counts) by the value of ``x``. Of a traced ``x``, ``minlength`` must be given, and is
    their number: NumPy's depends on the largest value. A value beyond it, or below 0, is an IndexingError.
    """
    is_traced = isinstance(unwrap(x), Tensor)
    if is_traced and not minlength:
        raise unsupported("bincount", " without minlength, which fixes the length of the result,", "give minlength=")
    positions = as_tensor(x)
    if positions.ndim != 1:
        raise ShapeError(f"bincount needs a vector of positions, got {positions.spec}")
    values = _counted(positions, weights)
    if not is_traced:
        return add_rows(values, positions, np.bincount(x, minlength=minlength).size)
    if positions.dtype.kind == "i":
        positions = call("where", positions < 0, minlength, positions)  # no position counts from the end
    return add_rows(values, positions, minlength)


def _counted(positions: Tensor, weights: Any) -> Tensor:
    """What is added at each position, 1 or a weight in float64."""
    if weights is None:
        return as_tensor(np.broadcast_to(np.ones((), INDEX), positions.spec.known_shape), graph=positions.graph)
    values = as_tensor(weights, graph=positions.graph)
    if values.dtype.kind == "c":
        raise DTypeError(f"bincount does not take complex weights: {values.spec}")
    if values.shape != positions.shape:
        raise ShapeError(f"bincount takes one weight for each of {positions.shape[0]} positions, got {values.spec}")
    return as_tensor(values, np.dtype(float))


@function("one_hot")
def one_hot(indices: Any, depth: Any, dtype: Any = np.float32) -> Tensor:
    """Ones where the new last axis has the value of ``indices``, else zeros."""
    positions = as_tensor(indices)
    if positions.dtype.kind not in "iu":
        raise IndexingError(f"positions must be integers, got {positions.dtype.name}")
    if operator.index(depth) < 0:
        raise ShapeError(f"one_hot needs a number of classes from 0 on, got {depth}")
    ruler = np.arange(operator.index(depth))
    hits = build("equal", build("expand_dims", positions, -1), ruler)
    return build("astype", hits, np.dtype(dtype))


def positions_of(index: Sequence[Any]) -> list[Any]:
    """Index tensors and arrays of equal shape: broadcast against each other. IndexingError where they do not."""
    try:
        if any(isinstance(i, Tensor) for i in index):
            return list(call("broadcast_arrays", *index))
        return list(np.broadcast_arrays(*index))
    except ValueError:
        shapes = " ".join(shape_text(np.shape(i)) for i in index)
        message = f"shape mismatch: indexing arrays could not be broadcast together with shapes {shapes}"
        raise IndexingError(message) from None
