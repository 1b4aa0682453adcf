"""Diagonals and triangles of matrices, differences of neighbours; masks compare two running indices."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import AxisIndex, IndexMap, Params, Reindex, Specs, define
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, as_tensors, build, unsupported
from jitgrad.ops.slicing import pad_constant, select_runs, slice_axis
from jitgrad.spec import TensorSpec, normalize_axis

Maps = tuple[tuple[IndexMap | None, ...], ...]


def _diagonal_length(rows: int, columns: int, offset: int) -> int:
    return max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))


def _infer_diagonal(specs: Specs, params: Params) -> Specs:
    shape, pair = specs[0].known_shape, (params["axis1"], params["axis2"])
    rest = [n for axis, n in enumerate(shape) if axis not in pair]
    length = _diagonal_length(shape[pair[0]], shape[pair[1]], params["offset"])
    return (TensorSpec((*rest, length), specs[0].dtype),)


def _diagonal_maps(specs: Specs, params: Params) -> Maps:
    rank, offset = len(specs[0].known_shape), params["offset"]
    kept = iter(range(rank - 2))
    starts = {params["axis1"]: max(-offset, 0), params["axis2"]: max(offset, 0)}
    dims = [
        AxisIndex(rank - 2, 1, starts[axis]) if axis in starts else AxisIndex(next(kept))
        for axis in range(rank)
    ]
    return ((IndexMap(tuple(dims)),),)


def _diagonal_vjp(g: Tensor, out: Tensor, x: Tensor, *, offset: int, axis1: int, axis2: int) -> Tensor:
    rows, columns = x.spec.known_shape[axis1], x.spec.known_shape[axis2]
    return build("moveaxis", on_diagonal(g, rows, columns, offset), (-2, -1), (axis1, axis2))


diagonal_op = define(
    "diagonal",
    infer=_infer_diagonal,
    impl=lambda x, offset, axis1, axis2: np.diagonal(x, offset, axis1, axis2),
    vjp=_diagonal_vjp,
    kind=Reindex(_diagonal_maps),
)


def on_diagonal(v: Tensor, rows: int, columns: int, offset: int) -> Tensor:
    """Matrices of zeros with the last axis of ``v`` on a diagonal."""
    first = min(max(-offset, 0), rows)
    last = rows - first - v.spec.known_shape[-1]
    column = build("expand_dims", pad_constant(v, [*[(0, 0)] * (v.ndim - 1), (first, last)]), -1)
    return _where(_compare("equal", rows, columns, offset), column)


def _compare(how: str, rows: int, columns: int, offset: int) -> Tensor:
    """Where ``row + offset`` compares so with ``column``."""
    return build(how, build("constant", np.arange(offset, rows + offset).reshape(-1, 1)), np.arange(columns))


def _where(mask: Tensor, x: Tensor) -> Tensor:
    return build("where", mask, x, np.zeros((), x.dtype))


@function("diagonal")
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The elements ``a[i, i + offset]`` of two axes, as a new last axis."""
    x = as_tensor(a)
    first, second = normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim)
    if first == second:
        raise ShapeError(f"diagonal needs two different axes, got {axis1} and {axis2}")
    return apply_one(diagonal_op, x, offset=int(offset), axis1=first, axis2=second)


@function("linalg.diagonal")
def matrix_diagonal(x: Any, /, *, offset: int = 0) -> Tensor:
    """The diagonal of the last two axes."""
    return diagonal(x, offset, -2, -1)


@function("trace")
def trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Tensor:
    """The sum of a diagonal."""
    if out is not None:
        raise unsupported("trace", " with out=")
    return build("sum", diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


@function("linalg.trace")
def matrix_trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of the diagonal of the last two axes."""
    return trace(x, offset, -2, -1, dtype)


@function("diag")
def diag(v: Any, k: int = 0) -> Tensor:
    """A matrix with the vector ``v`` on a diagonal, or the diagonal of a matrix."""
    x, k = as_tensor(v), operator.index(k)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag needs a vector or a matrix, got {x.spec}")
    n = x.spec.known_shape[0] + abs(k)
    return on_diagonal(x, n, n, k)


@function("diagflat")
def diagflat(v: Any, k: int = 0) -> Tensor:
    """A matrix with all elements of ``v`` on a diagonal."""
    return diag(build("ravel", v), k)


def _triangle(name: str, how: str) -> None:
    def triangle(m: Any, k: int = 0) -> Tensor:
        x = as_tensor(m)
        if x.ndim == 1:
            x = build("broadcast_to", x, (*x.spec.known_shape, *x.spec.known_shape))
        if x.ndim == 0:
            raise ShapeError(f"{name} needs a vector or matrices, got {x.spec}")
        rows, columns = x.spec.known_shape[-2:]
        return _where(_compare(how, rows, columns, k), x)

    function(name)(triangle)


_triangle("tril", "greater_equal")
_triangle("triu", "less_equal")


@function("diff")
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """``a[i + 1] - a[i]`` along ``axis``, ``n`` times; bools give where they differ."""
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n}")
    x = as_tensor(a)
    axis = normalize_axis(axis, x.ndim)
    ends = [_end(value, x, axis) for value in (prepend, append)]
    parts = [*([] if ends[0] is None else [ends[0]]), x, *([] if ends[1] is None else [ends[1]])]
    x = build("concatenate", parts, axis) if len(parts) > 1 else x
    for _ in range(n):
        how = "not_equal" if x.dtype.kind == "b" else "subtract"
        x = build(how, slice_axis(x, axis, 1), slice_axis(x, axis, 0, -1))
    return x


def _end(value: Any, x: Tensor, axis: int) -> Tensor | None:
    if value is None:
        return None
    end = as_tensor(value, graph=x.graph)
    shape = x.spec.known_shape
    return build("broadcast_to", end, (*shape[:axis], 1, *shape[axis + 1 :])) if end.ndim == 0 else end


@function("ediff1d")
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Tensor:
    """Differences of neighbours of the flattened array, between what is put in front and behind."""
    x = build("ravel", ary)
    ends = [
        None if end is None else build("ravel", as_tensor(end, x.dtype, x.graph))
        for end in (to_begin, to_end)
    ]
    parts = [part for part in (ends[0], diff(x), ends[1]) if part is not None]
    return build("concatenate", parts) if len(parts) > 1 else parts[0]


@function("delete")
def delete(arr: Any, obj: Any, axis: Any = None) -> Tensor:
    """``arr`` without the concrete positions ``obj`` along ``axis`` (None: flattened)."""
    if isinstance(obj, Tensor):
        raise unsupported("delete", " at traced positions, on which the shape of the result depends,")
    x = as_tensor(arr)
    x, axis = (build("ravel", x), 0) if axis is None else (x, normalize_axis(axis, x.ndim))
    kept = np.delete(np.arange(x.spec.known_shape[axis]), obj)
    return select_runs(x, axis, kept.tolist()) if kept.size else slice_axis(x, axis, 0, 0)


@function("vander")
def vander(x: Any, N: Any = None, increasing: bool = False) -> Tensor:
    """Columns ``x**0, x**1, ...``, the highest power first unless ``increasing``."""
    (column,) = as_tensors(x)
    if column.ndim != 1:
        raise ShapeError(f"vander needs a vector, got {column.spec}")
    column = as_tensor(column, np.promote_types(column.dtype, np.int64))
    count = column.spec.known_shape[0] if N is None else int(N)
    powers = [build("ones_like", column)]
    for _ in range(count - 1):
        powers.append(build("multiply", powers[-1], column))
    powers = powers[:count] if increasing else powers[:count][::-1]
    return build("stack", powers, axis=1)
