"""Ops that give the same elements another shape or order: reshape, transpose, flip; none repeats one."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import AxisIndex, IndexMap, OpDef, Params, Reindex, Shaped, Specs, View, define
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, as_tensors, unsupported
from jitgrad.spec import Shape, TensorSpec, normalize_axes, normalize_axis, shape_text

Maps = tuple[tuple[IndexMap | None, ...], ...]


def integers(value: Any) -> tuple[int, ...]:
    """An int, or a sequence of them, as a tuple of Python ints."""
    items = value if isinstance(value, list | tuple | range | np.ndarray) else (value,)
    return tuple(operator.index(n) for n in items)


# -- reshape -------------------------------------------------------------------------------------------------


def _infer_reshape(specs: Specs, params: Params) -> Specs:
    (x,), shape = specs, params["shape"]
    fixed = math.prod(n for n in shape if n != -1)
    if not x.is_known:
        return (TensorSpec(tuple(None if n == -1 else n for n in shape), x.dtype),)
    if -1 in shape and fixed and x.size % fixed == 0:
        return (TensorSpec(tuple(x.size // fixed if n == -1 else n for n in shape), x.dtype),)
    if -1 in shape or fixed != x.size:
        raise ShapeError(
            f"cannot reshape {shape_text(x.shape)} of {x.size} elements into {shape_text(shape)}"
        )
    return (TensorSpec(shape, x.dtype),)


def _infer_reshape_like(specs: Specs, params: Params) -> Specs:
    x, like = specs
    if x.is_known and like.is_known and x.size != like.size:
        raise ShapeError(f"cannot reshape {shape_text(x.shape)} into {shape_text(like.shape)}")
    return (TensorSpec(like.shape, x.dtype),)


def reshape_back(g: Tensor, x: Tensor) -> Tensor:
    """``g`` in the shape of ``x``."""
    if x.spec.is_known:
        return apply_one(reshape_op, g, shape=x.spec.known_shape)
    return apply_one(reshape_like_op, g, x)


reshape_op = define(
    "reshape",
    infer=_infer_reshape,
    impl=lambda x, shape: np.reshape(x, shape),
    bound=lambda params, specs: methodcaller("reshape", params["shape"]),
    vjp=lambda g, out, x, *, shape: reshape_back(g, x),
    kind=View(),
    infers_partial=True,
)

reshape_like_op = define(
    "reshape_like",
    infer=_infer_reshape_like,
    impl=lambda x, like: np.reshape(x, like.shape),
    vjp=lambda g, out, x, like: (reshape_back(g, x), None),
    kind=Shaped("reshape"),
    infers_partial=True,
)


def _infer_merge_axes(specs: Specs, params: Params) -> Specs:
    shape, axis = specs[0].known_shape, params["axis"]
    return (TensorSpec((*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]), specs[0].dtype),)


merge_axes_op = define(
    "merge_axes",
    infer=_infer_merge_axes,
    impl=lambda x, axis: np.reshape(
        x, _infer_merge_axes((TensorSpec(x.shape, x.dtype),), {"axis": axis})[0].known_shape
    ),
    vjp=lambda g, out, x, *, axis: reshape_back(g, x),
    kind=View(),
)


@function("merge_axes")
def merge_axes(x: Tensor, axis: int) -> Tensor:
    """``x`` with ``axis`` and the one behind it made into one; other extents may be unknown."""
    return apply_one(merge_axes_op, x, axis=axis)


@function("reshape")
def reshape(a: Any, /, shape: Any, order: str = "C", *, copy: Any = None) -> Tensor:
    """``a`` in row-major order under another shape, with at most one -1. ShapeError for another size."""
    x = as_tensor(a)
    if order in ("F", "f"):
        return transpose(reshape(transpose(x), tuple(_shape_entries(shape))[::-1]))
    if order not in ("C", "c"):
        raise unsupported("reshape", f" with order={order!r}")
    return apply_one(reshape_op, x, shape=_resolved(x.spec.shape, _shape_entries(shape)))


def _shape_entries(shape: Any) -> list[int | None]:
    entries = list(shape) if isinstance(shape, list | tuple | np.ndarray) else [shape]
    return [None if n is None else operator.index(n) for n in entries]


def _resolved(source: Shape | None, shape: list[int | None]) -> tuple[int, ...]:
    """``shape`` with at most one -1, none for a known source; None stands for the source's unknown extent."""
    if shape.count(-1) > 1 or any(n is not None and n < -1 for n in shape):
        raise ShapeError(f"can only leave one extent open (-1) in the shape {tuple(shape)}")
    if source is None or source.count(None) > 1:
        open_extents = [-1 if n is None else n for n in shape]
        if open_extents.count(-1) > 1:
            raise ShapeError(
                f"the shape {tuple(shape)} leaves several extents open, and the source's are not known"
            )
        return tuple(open_extents)
    if None in shape and None not in source and (-1 in shape or shape.count(None) > 1):
        raise ShapeError(f"the shape {tuple(shape)} leaves several extents open: None is no extent")
    known = math.prod(n for n in source if n is not None)
    fixed = math.prod(n for n in shape if n is not None and n != -1)
    settled = None in shape or None not in source
    if settled and fixed and known % fixed == 0:
        shape = [known // fixed if n == -1 else n for n in shape]
    return tuple(-1 if n is None else n for n in shape)


@function("ravel")
def ravel(a: Any, order: str = "C") -> Tensor:
    """All elements in one dimension."""
    return reshape(a, -1, order=order)


# -- transposes ----------------------------------------------------------------------------------------------


def _transpose_maps(specs: Specs, params: Params) -> Maps:
    return ((IndexMap(tuple(AxisIndex(axis) for axis in _inverse(params["axes"]))),),)


def _infer_transpose(specs: Specs, params: Params) -> Specs:
    shape, axes = specs[0].known_shape, params["axes"]
    if len(axes) != len(shape):
        raise ShapeError(f"axes {axes} do not fit an array of dimension {len(shape)}")
    return (TensorSpec(tuple(shape[axis] for axis in axes), specs[0].dtype),)


def _inverse(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


transpose_op: OpDef = define(
    "transpose",
    infer=_infer_transpose,
    impl=lambda x, axes: np.transpose(x, axes),
    bound=lambda params, specs: methodcaller("transpose", params["axes"]),
    vjp=lambda g, out, x, *, axes: apply_one(transpose_op, g, axes=_inverse(axes)),
    kind=Reindex(_transpose_maps),
)


@function("transpose", "permute_dims")
def transpose(a: Any, axes: Any = None) -> Tensor:
    """Axes in another order, reversed by default. ShapeError for axes that are not a permutation."""
    x = as_tensor(a)
    rank = x.ndim
    order = (
        tuple(range(rank))[::-1] if axes is None else tuple(normalize_axis(n, rank) for n in integers(axes))
    )
    if sorted(order) != list(range(rank)):
        raise ShapeError(
            f"axes {tuple(axes)} are not a permutation of the axes of an array of dimension {rank}"
        )
    return apply_one(transpose_op, x, axes=order)


@function("swapaxes")
def swapaxes(a: Any, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged."""
    x = as_tensor(a)
    axes = list(range(x.ndim))
    i, j = normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim)
    axes[i], axes[j] = j, i
    return transpose(x, axes)


@function("matrix_transpose", "linalg.matrix_transpose")
def matrix_transpose(x: Any, /) -> Tensor:
    """The last two axes exchanged."""
    t = as_tensor(x)
    if t.ndim < 2:
        raise ShapeError(f"matrix_transpose needs at least two dimensions, got {t.spec}")
    return swapaxes(t, -1, -2)


@function("moveaxis")
def moveaxis(a: Any, source: Any, destination: Any) -> Tensor:
    """Axes ``source`` moved to the positions ``destination``, the others kept in order."""
    x = as_tensor(a)
    sources = [normalize_axis(axis, x.ndim) for axis in integers(source)]
    targets = [normalize_axis(axis, x.ndim) for axis in integers(destination)]
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ShapeError(f"cannot move axes {source} to {destination}")
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return transpose(x, order)


@function("rollaxis")
def rollaxis(a: Any, axis: int, start: int = 0) -> Tensor:
    """``axis`` moved to stand before the axis ``start``."""
    x = as_tensor(a)
    axis, before = normalize_axis(axis, x.ndim), start % x.ndim if start < 0 else start
    return moveaxis(x, axis, before - 1 if axis < before else before)


# -- axes of extent 1 ----------------------------------------------------------------------------------------


def _infer_expand_dims(specs: Specs, params: Params) -> Specs:
    shape = list(specs[0].known_shape)
    for axis in params["axes"]:
        shape.insert(axis, 1)
    return (TensorSpec(tuple(shape), specs[0].dtype),)


def _expand_dims_maps(specs: Specs, params: Params) -> Maps:
    rank = len(specs[0].known_shape) + len(params["axes"])
    return ((IndexMap(tuple(AxisIndex(axis) for axis in range(rank) if axis not in params["axes"])),),)


def _with_new_axes(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[slice | None, ...]:
    """The index that puts new axes at these places."""
    return tuple(None if axis in axes else slice(None) for axis in range(len(shape) + len(axes)))


expand_dims_op = define(
    "expand_dims",
    infer=_infer_expand_dims,
    impl=lambda x, axes: np.expand_dims(x, axes),
    bound=lambda params, specs: itemgetter(_with_new_axes(specs[0].known_shape, params["axes"])),
    vjp=lambda g, out, x, *, axes: apply_one(squeeze_op, g, axes=axes),
    kind=Reindex(_expand_dims_maps),
)


def _infer_squeeze(specs: Specs, params: Params) -> Specs:
    shape, axes = specs[0].shape, params["axes"]
    if shape is None:
        return (TensorSpec(None, specs[0].dtype),)
    if any(shape[axis] not in (1, None) for axis in axes):
        raise ShapeError(
            f"cannot squeeze axes {axes} of {shape_text(shape)}: only extents of 1 can be dropped"
        )
    return (TensorSpec(tuple(n for axis, n in enumerate(shape) if axis not in axes), specs[0].dtype),)


def _squeeze_maps(specs: Specs, params: Params) -> Maps:
    kept = iter(range(len(specs[0].known_shape)))
    dims = [
        AxisIndex(None) if axis in params["axes"] else AxisIndex(next(kept))
        for axis in range(len(specs[0].known_shape))
    ]
    return ((IndexMap(tuple(dims)),),)


squeeze_op: OpDef = define(
    "squeeze",
    infer=_infer_squeeze,
    impl=lambda x, axes: np.squeeze(x, axes),
    bound=lambda params, specs: methodcaller("squeeze", params["axes"]),
    vjp=lambda g, out, x, *, axes: apply_one(expand_dims_op, g, axes=axes),
    kind=Reindex(_squeeze_maps),
    infers_partial=True,
)


@function("expand_dims")
def expand_dims(a: Any, axis: Any) -> Tensor:
    """New axes of extent 1 at the positions ``axis`` of the result."""
    x = as_tensor(a)
    axes = integers(axis)
    return apply_one(expand_dims_op, x, axes=normalize_axes(axes, x.ndim + len(axes)))


@function("squeeze")
def squeeze(a: Any, axis: Any = None) -> Tensor:
    """Axes of extent 1 dropped: all of them, or those named. ShapeError when one has another extent."""
    x = as_tensor(a)
    if axis is None and not x.spec.is_known:
        raise ShapeError(f"squeeze of {x.name!r} of shape {shape_text(x.shape)} needs axis=: which extents are 1?")
    axes = tuple(i for i, n in enumerate(x.spec.known_shape) if n == 1) if axis is None else integers(axis)
    return apply_one(squeeze_op, x, axes=normalize_axes(axes, x.ndim))


def _at_least(name: str, grow: Callable[[Tensor], Tensor]) -> None:
    def at_least(*arys: Any) -> Any:
        grown = tuple(grow(x) for x in as_tensors(*arys))
        return grown[0] if len(grown) == 1 else grown

    function(name)(at_least)


_at_least("atleast_1d", lambda x: expand_dims(x, 0) if x.ndim == 0 else x)
_at_least("atleast_2d", lambda x: expand_dims(x, tuple(range(2 - x.ndim))) if x.ndim < 2 else x)
_at_least("atleast_3d", lambda x: expand_dims(x, ((0, 1, 2), (0, 2), (2,))[x.ndim]) if x.ndim < 3 else x)


# -- reversed axes -------------------------------------------------------------------------------------------


def _flip_maps(specs: Specs, params: Params) -> Maps:
    dims = [
        AxisIndex(axis, -1, n - 1) if axis in params["axes"] else AxisIndex(axis)
        for axis, n in enumerate(specs[0].known_shape)
    ]
    return ((IndexMap(tuple(dims)),),)


flip_op: OpDef = define(
    "flip",
    infer=lambda specs, params: specs,
    impl=lambda x, axes: np.flip(x, axes),
    vjp=lambda g, out, x, *, axes: apply_one(flip_op, g, axes=axes),
    kind=Reindex(_flip_maps),
    infers_partial=True,
)


@function("flip")
def flip(m: Any, axis: Any = None) -> Tensor:
    """Elements along ``axis`` (None: all axes) in reverse order."""
    x = as_tensor(m)
    return apply_one(flip_op, x, axes=normalize_axes(None if axis is None else integers(axis), x.ndim))


@function("flipud")
def flipud(m: Any) -> Tensor:
    """Rows in reverse order."""
    return flip(m, 0)


@function("fliplr")
def fliplr(m: Any) -> Tensor:
    """Columns in reverse order."""
    return flip(m, 1)


@function("rot90")
def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Tensor:
    """Turned ``k`` times by 90 degrees from the first towards the second of ``axes``."""
    x = as_tensor(m)
    first, second = (normalize_axis(axis, x.ndim) for axis in integers(axes))
    if first == second:
        raise ShapeError(f"rot90 needs two different axes, got {tuple(axes)}")
    if k % 4 == 2:
        return flip(x, (first, second))
    if k % 4 == 0:
        return flip(x, ())
    return (
        swapaxes(flip(x, second), first, second) if k % 4 == 1 else flip(swapaxes(x, first, second), second)
    )
