"""Functions that make arrays of a given shape: zeros, full_like, arange, linspace; constants, not ops."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from jitgrad.graph import Tensor
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, filled, filled_like, joint_dtype, known_extents, type_key, unsupported


def _constant(value: Any, graph: Any = None) -> Tensor:
    return call("constant", value, graph=graph)  # type: ignore[no-any-return]


def _is_traced(*values: Any) -> bool:
    return any(isinstance(value, Tensor) or hasattr(value, "as_graph_element") for value in values)


@function("full")
def full(
    shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", *, device: Any = None, like: Any = None
) -> Tensor:
    """As numpy.full; the value may be traced."""
    if _is_traced(fill_value):
        value = as_tensor(fill_value) if dtype is None else call("astype", fill_value, dtype)
        return call("broadcast_to", value, known_extents(shape, "full"))  # type: ignore[no-any-return]
    return _constant(filled(known_extents(shape, "full"), fill_value, dtype))


@function("zeros", "empty")
def zeros(
    shape: Any, dtype: Any = float, order: str = "C", *, device: Any = None, like: Any = None
) -> Tensor:
    """As numpy.zeros."""
    return full(shape, 0, np.float64 if dtype is None else dtype)


@function("ones")
def ones(shape: Any, dtype: Any = None, order: str = "C", *, device: Any = None, like: Any = None) -> Tensor:
    """As numpy.ones."""
    return full(shape, 1, np.float64 if dtype is None else dtype)


@function("full_like")
def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Tensor:
    """As numpy.full_like; ``a`` may have unknown extents, the value may be traced."""
    x = as_tensor(a)
    wanted = x.dtype if dtype is None else np.dtype(dtype)
    if shape is not None:
        return full(shape, fill_value, wanted)
    if _is_traced(fill_value):
        return _spread(call("astype", fill_value, wanted), x)
    value = np.asarray(fill_value, wanted)
    return filled_like(x, value, wanted) if value.ndim == 0 else _spread(value, x)


def _spread(value: Any, x: Tensor) -> Tensor:
    return call("broadcast_arrays", value, x)[0]  # type: ignore[no-any-return]


@function("zeros_like", "empty_like")
def zeros_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None
) -> Tensor:
    """As numpy.zeros_like."""
    return full_like(a, 0, dtype, shape=shape)


@function("ones_like")
def ones_like(
    a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None
) -> Tensor:
    """As numpy.ones_like."""
    return full_like(a, 1, dtype, shape=shape)


@function("arange")
def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None, like: Any = None
) -> Tensor:
    """As numpy.arange. UnsupportedOpError for traced bounds: they decide the shape."""
    if _is_traced(start, stop, step):
        raise unsupported("arange", " with traced bounds, which decide the shape,")
    bounds = (0, start) if stop is None else (start, stop)
    make: Any = np.arange
    return _constant(make(*bounds, 1 if step is None else step, dtype=dtype))


@function("linspace")
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """As numpy.linspace; the ends may be traced, the number of points not."""
    count = operator.index(num)
    if count < 0:
        raise ValueError(f"the number of points must not be negative, got {count}")
    if not _is_traced(start, stop):
        make: Any = np.linspace
        grid = make(start, stop, count, endpoint, True, dtype, axis)
        return tuple(map(_constant, grid)) if retstep else _constant(grid[0])
    found = joint_dtype(type_key(start), type_key(stop))
    found = found if found.kind in "fc" else np.dtype(np.float64)  # in their own, integers wrap between the ends
    points, step = _between(as_tensor(start, found), as_tensor(stop, found), count, endpoint)
    is_whole = dtype is not None and np.dtype(dtype).kind in "iu"
    points = call("floor", points) if is_whole and found.kind == "f" else points
    points = points if dtype is None else call("astype", points, dtype)
    moved = points if axis == 0 else call("moveaxis", points, 0, axis)
    return (moved, step) if retstep else moved


def _between(start: Tensor, stop: Tensor, count: int, endpoint: bool) -> tuple[Tensor, Tensor]:
    """Points along a new first axis, and the step between them; the last point is ``stop`` itself."""
    intervals = count - 1 if endpoint else count
    width = stop - start
    step = width / intervals if intervals > 0 else width * np.nan
    column = (-1, *(1,) * width.ndim)
    index = np.arange(count, dtype=step.dtype).reshape(column)
    points = start + index * (step if intervals > 0 else width)
    is_last = np.arange(count).reshape(column) == (count - 1 if endpoint and count > 1 else count)
    return call("where", is_last, stop, points), step


@function("logspace")
def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """As numpy.logspace; the ends and the base may be traced."""
    powers = call("power", base, linspace(start, stop, num, endpoint, axis=axis))
    return powers if dtype is None else call("astype", powers, dtype)


@function("eye")
def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: Any = float,
    order: str = "C",
    *,
    device: Any = None,
    like: Any = None,
) -> Tensor:
    """As numpy.eye."""
    return _constant(np.eye(N, M, k, np.float64 if dtype is None else dtype))


@function("identity")
def identity(n: int, dtype: Any = None, *, like: Any = None) -> Tensor:
    """As numpy.identity: the unit matrix."""
    return eye(n, dtype=dtype)


@function("tri")
def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = float, *, like: Any = None) -> Tensor:
    """As numpy.tri: ones at and below the k-th diagonal."""
    return _constant(np.tri(N, M, k, np.float64 if dtype is None else dtype))
