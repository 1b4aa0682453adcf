"""Explicit broadcasting and its transpose, the sum; elsewhere shapes are equal or the op says otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.constant_values import constant_value
from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import AxisIndex, IndexMap, OpDef, Params, Reindex, Shaped, Specs, define
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, as_tensors, broadcast, build, known_extents
from jitgrad.refusals import traced_value_error
from jitgrad.spec import TensorSpec, broadcast_shapes, is_compatible, shape_text

Maps = tuple[tuple[IndexMap | None, ...], ...]


def _infer_broadcast_to(specs: Specs, params: Params) -> Specs:
    shape = params["shape"]
    if not is_compatible(broadcast_shapes(specs[0].shape, shape), shape):
        raise ShapeError(f"{shape_text(specs[0].shape)} does not broadcast to {shape_text(shape)}")
    return (TensorSpec(shape, specs[0].dtype),)


def _broadcast_maps(specs: Specs, params: Params) -> Maps:
    inner, outer = specs[0].known_shape, params["shape"]
    grown = len(outer) - len(inner)
    dims = [
        AxisIndex(None) if n == 1 and outer[axis + grown] != 1 else AxisIndex(axis + grown)
        for axis, n in enumerate(inner)
    ]
    return ((IndexMap(tuple(dims)),),)


def _sum_to(g: Tensor, shape: tuple[int, ...], outer: tuple[int, ...]) -> Tensor:
    """The transpose of broadcasting ``shape`` to ``outer``: a sum, and a reshape where the rank grew too."""
    grown = len(outer) - len(shape)
    stretched = [axis + grown for axis, n in enumerate(shape) if n == 1 and outer[axis + grown] != 1]
    axes = (*range(grown), *stretched)
    if not axes:
        return g
    total: Tensor = build("sum", g, axis=axes, keepdims=not grown)
    return build("reshape", total, shape) if grown and stretched else total


def _broadcast_to_vjp(g: Tensor, out: Tensor, x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return _sum_to(g, x.spec.known_shape, shape) if x.spec.is_known else apply_one(sum_to_like_op, g, x)


def _ready_broadcast(shape: tuple[int, ...], spec: TensorSpec) -> Callable[[Any], Any]:
    """Small results are written: NumPy's view takes ten times as long to make as a few numbers to write."""
    empty, dtype = np.empty, spec.dtype
    if math.prod(shape) * dtype.itemsize > _WRITTEN_BYTES:
        return lambda x: np.broadcast_to(x, shape)

    def broadcast(x: Any) -> Any:
        out = empty(shape, dtype)
        out[...] = x
        return out

    return broadcast


_WRITTEN_BYTES = 16 * 1024


broadcast_to_op = define(
    "broadcast_to",
    infer=_infer_broadcast_to,
    impl=lambda x, shape: np.broadcast_to(x, shape),
    bound=lambda params, specs: _ready_broadcast(params["shape"], specs[0]),
    vjp=_broadcast_to_vjp,
    kind=Reindex(_broadcast_maps),
    infers_partial=True,
)

broadcast_like_op = define(
    "broadcast_like",
    infer=lambda specs, params: (TensorSpec(broadcast_shapes(*(s.shape for s in specs)), specs[0].dtype),),
    impl=lambda x, *others: np.broadcast_to(x, np.broadcast_shapes(*(a.shape for a in (x, *others)))),
    vjp=lambda g, out, x, *others: (apply_one(sum_to_like_op, g, x), *(None for _ in others)),
    kind=Shaped("broadcast"),
    infers_partial=True,
)


def _sum_to_like(x: Any, like: Any) -> Any:
    grown = x.ndim - like.ndim
    stretched = [axis + grown for axis, n in enumerate(like.shape) if n == 1 and x.shape[axis + grown] != 1]
    axes = (*range(grown), *stretched)  # a sum over no axes would turn -0.0 into 0.0
    return np.sum(x, axis=axes, dtype=x.dtype).reshape(like.shape) if axes else x


def _infer_sum_to_like(specs: Specs, params: Params) -> Specs:
    shape = specs[1].shape
    if specs[0].is_known and specs[1].is_known and broadcast_shapes(specs[0].shape, shape) != specs[0].shape:
        raise ShapeError(f"{specs[0]} is not a broadcast of {shape_text(shape)}")
    return (TensorSpec(shape, specs[0].dtype),)


sum_to_like_op: OpDef = define(
    "sum_to_like",
    infer=_infer_sum_to_like,
    impl=_sum_to_like,
    vjp=lambda g, out, x, like: (apply_one(broadcast_like_op, g, x), None),
    kind=Shaped("sum"),
    infers_partial=True,
)


@function("broadcast_to")
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Tensor:
    """``array`` repeated along new leading axes and axes of extent 1; ShapeError when it does not fit."""
    return apply_one(broadcast_to_op, as_tensor(array), shape=known_extents(shape, "broadcast_to"))


@function("broadcast_arrays")
def broadcast_arrays(*arrays: Any, subok: bool = False) -> tuple[Tensor, ...]:
    """All arrays broadcast against each other."""
    return broadcast(*as_tensors(*arrays))


@function("meshgrid")
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinate arrays from vectors, the first two axes exchanged for ``indexing="xy"``."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing must be 'xy' or 'ij', got {indexing!r}")
    axes = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        axes[:2] = [1, 0]
    shapes = [tuple(-1 if k == place else 1 for k in range(len(xi))) for place in axes]
    grids = tuple(build("reshape", x, shape) for x, shape in zip(as_tensors(*xi), shapes, strict=True))
    return grids if sparse else broadcast_arrays(*grids)


@function("ix_")
def ix_(*args: Any) -> tuple[Any, ...]:
    """Vectors of positions, each along an axis of its own, so that ``x[np.ix_(rows, columns)]`` is all pairs; a mask
    stands for the positions where it holds, and must be known.
    """
    vectors = [_positions(arg) for arg in args]
    if any(len(vector.shape) != 1 for vector in vectors):
        raise ValueError("Cross index must be 1 dimensional")
    shapes = [tuple(-1 if k == place else 1 for k in range(len(args))) for place in range(len(args))]
    return tuple(vector.reshape(shape) for vector, shape in zip(vectors, shapes, strict=True))


def _positions(arg: Any) -> Any:
    """One argument of ``ix_``: a tensor of integers where no constants decide it, else an array."""
    known = constant_value(arg) if isinstance(arg, Tensor) else arg
    if known is None and arg.dtype.kind == "b":
        raise traced_value_error(arg, "np.ix_ of a mask", "np.where with one mask: mask[:, None] & other")
    if known is None:
        return arg
    array = np.asarray(known)
    array = array.astype(np.intp) if array.size == 0 and not isinstance(known, np.ndarray) else array
    return array.nonzero()[0] if array.dtype.kind == "b" and array.ndim == 1 else array
