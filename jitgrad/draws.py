"""Random numbers as people call for them: in graphs and traced functions one operation, elsewhere an eager tensor.

Seeds, as in TensorFlow: the numbers follow from the graph's seed (``set_random_seed``; 0 until then) and the
operation's. An operation without a seed has in its place how many draws were made in the graph before it, so that the
same code gives the same numbers, and each draw others. A Session starts every stream, and goes on with each run. A
compiled function is traced with the seed of the graph around it and keeps its own place in the streams, so that each
call gives new numbers. Outside of graphs, in functions that are not compiled too, there is one place per stream for the
whole process, and ``set_random_seed`` begins them again.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.eagerness import is_eager
from jitgrad.errors import DTypeError, ShapeError, layout
from jitgrad.graph import Graph, Tensor, apply, default_graph, in_graph
from jitgrad.opdef import OpDef
from jitgrad.ops.random import draw, normal_op, uniform_op
from jitgrad.running import Runner
from jitgrad.scopes import jit_scope
from jitgrad.sources import place
from jitgrad.spec import DType, shape_text
from jitgrad.streams import reading, shared, stream_key
from jitgrad.trace import graph_in

_MANY = 1 << 14  # from here on compiling a kernel pays after a few draws


def set_random_seed(seed: int | None) -> None:
    """The seed of the default graph, for the draws that are made in it from now on; outside of graphs that of eager
    draws, whose streams begin again. None: as if none had been set.
    """
    default_graph().seed = _checked_seed("set_random_seed", seed)
    if not in_graph():
        shared.restart()


def random_uniform(
    shape: Any,
    low: Any = 0.0,
    high: Any = 1.0,
    dtype: Any = np.float64,
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Numbers between ``low`` and ``high``, all equally likely: low is possible, high only by rounding.

    ``dtype`` is float32 or float64 (DTypeError). The bounds are numbers, or arrays and tensors, which are broadcast and
    have gradients. A tensor of the graph where one is built, made by one operation (with arithmetic behind it, for
    bounds that are no numbers); else an eager tensor. ShapeError for an unknown or negative extent, and for bounds that
    do not broadcast to ``shape``; TypeError for a seed that is no integer.
    """
    if _is_number(low) and _is_number(high):
        return _draw(uniform_op, (), shape, dtype, seed, name, low=float(low), high=float(high))
    low, high = _bounds(uniform_op, shape, dtype, low=low, high=high)
    u = _draw(uniform_op, (low, high), shape, dtype, seed, name, low=0.0, high=1.0)
    return low + (high - low) * u


def random_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = np.float64,
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """Numbers of a normal distribution; else as ``random_uniform``."""
    if _is_number(mean) and _is_number(stddev):
        return _draw(normal_op, (), shape, dtype, seed, name, mean=float(mean), stddev=float(stddev))
    mean, stddev = _bounds(normal_op, shape, dtype, mean=mean, stddev=stddev)
    z = _draw(normal_op, (mean, stddev), shape, dtype, seed, name, mean=0.0, stddev=1.0)
    return mean + stddev * z


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | np.integer | np.floating)


def _bounds(op: OpDef, shape: Any, dtype: Any, **values: Any) -> Iterator[Any]:
    """Bounds (or mean and deviation) in the dtype of the draw. DTypeError for values that are not real, ShapeError for
    such as do not broadcast to the shape of the draw.
    """
    extents, kind = _checked_shape(op, shape), _checked_dtype(op, dtype)
    for key, value in values.items():
        x = value if _is_number(value) or hasattr(value, "astype") else np.asarray(value)
        if not _is_number(x):
            if x.dtype.kind not in "fiub":
                raise DTypeError(layout(f"{op.name}: {key} is {x.dtype.name}, and numbers are real", needed=place()))
            if not _broadcasts(x.shape, extents):
                raise ShapeError(
                    layout(
                        f"{op.name}: {key} does not broadcast to the shape of the numbers",
                        expected=shape_text(extents),
                        got=shape_text(x.shape),
                        needed=place(),
                        hint="draw as many numbers as there are bounds: shape=np.broadcast_shapes(...)",
                    )
                )
            x = x if x.dtype == kind else x.astype(kind)
        yield x


def _broadcasts(shape: Sequence[int | None] | None, extents: Sequence[int]) -> bool:
    """Whether an array of a shape, of which not all may be known, is no larger than ``extents`` along any axis."""
    if shape is None:
        return True
    pairs = zip(reversed(shape), reversed(extents), strict=False)
    return len(shape) <= len(extents) and all(n in (None, 1, extent) for n, extent in pairs)


def _draw(
    op: OpDef, values: Any, shape: Any, dtype: Any, seed: int | None, name: str | None, **params: float
) -> Any:
    extents, kind = _checked_shape(op, shape), _checked_dtype(op, dtype)
    seed = _checked_seed(op.name, seed)
    graph = graph_in(values) or (default_graph() if in_graph() else None)
    if graph is not None:
        return draw(op, graph, extents, kind, seed, name, **params)
    from jitgrad.eager.tensor import wrap

    return wrap(_drawn_now(op, stream_key(default_graph().seed, seed, 0), extents, kind, tuple(params.items())))


def _drawn_now(
    op: OpDef, key: int, shape: tuple[int, ...], dtype: DType, params: tuple[tuple[str, float], ...]
) -> Any:
    """Numbers from the eager streams: many by machine code, few without."""
    if math.prod(shape) >= _MANY:
        return _runner(op, key, shape, dtype, params).run([])[0]
    with reading(shared):
        return op.impl(shape=shape, dtype=dtype, key=key, number=0, **dict(params))


@functools.lru_cache(maxsize=64)
def _runner(
    op: OpDef, key: int, shape: tuple[int, ...], dtype: DType, params: tuple[tuple[str, float], ...]
) -> Runner:
    with Graph().as_default(), jit_scope():
        own: dict[str, Any] = {"shape": shape, "dtype": dtype, "key": key, "number": 0, **dict(params)}
        out = apply(op, **own)
    return Runner([out], (), name=op.name, streams=shared)


def _checked_seed(name: str, seed: Any) -> int | None:
    """The seed as an integer. TypeError for anything else, a tensor of a graph too: the key is made of it now."""
    try:
        return None if seed is None else operator.index(seed)
    except TypeError:
        raise TypeError(layout(f"{name}: a seed is an integer or None, got {seed!r}", needed=place())) from None


def _checked_shape(op: OpDef, shape: Any) -> tuple[int, ...]:
    entries = tuple(shape) if isinstance(shape, list | tuple | np.ndarray) else (shape,)
    if any(n is None or isinstance(n, Tensor) or is_eager(n) for n in entries):
        raise ShapeError(
            layout(
                f"{op.name}: random numbers need a known shape, got {shape!r}",
                needed=place(),
                hint="give the extents as integers; numbers for a shape that is fed can be fed with it",
            )
        )
    if not all(isinstance(n, int | np.integer) for n in entries):
        raise TypeError(layout(f"{op.name}: a shape is made of integers, got {shape!r}", needed=place()))
    if any(n < 0 for n in entries):
        raise ShapeError(layout(f"{op.name}: a shape has no negative extent, got {shape!r}", needed=place()))
    return tuple(map(operator.index, entries))


_OTHER_DTYPES = {
    "f": "draw float32 or float64, and convert with .astype",
    "c": "draw two arrays of real numbers, x + 1j * y",
}


def _checked_dtype(op: OpDef, dtype: Any) -> DType:
    kind: DType = np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        raise DTypeError(
            layout(
                f"{op.name} makes float32 and float64, got {kind.name}",
                needed=place(),
                hint=_OTHER_DTYPES.get(kind.kind, "integers below n: jg.random_uniform(shape, 0, n).astype(int)"),
            )
        )
    return kind


__all__ = ["random_normal", "random_uniform", "set_random_seed"]
