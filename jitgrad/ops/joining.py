"""Ops that put tensors together, take them apart or repeat them: concatenate, stack, split, tile, roll."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply, apply_one
from jitgrad.opdef import AxisIndex, Guard, IndexMap, Params, Reindex, Specs, define
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, as_tensors, build, common_dtype, known_extents, unsupported
from jitgrad.ops.holding import repeated
from jitgrad.ops.slicing import getslice, select_runs, selected, slice_axis, unslice
from jitgrad.spec import TensorSpec, is_compatible, normalize_axis

Maps = tuple[tuple[IndexMap | None, ...], ...]
_FEW_COPIES = 8  # read by an index, and their gradient a sum of as many slices


# -- concatenate ---------------------------------------------------------------------------------------------


def _infer_concatenate(specs: Specs, params: Params) -> Specs:
    axis = params["axis"]
    shapes = [spec.shape for spec in specs if spec.shape is not None]
    if len({len(shape) for shape in shapes}) > 1:
        raise ShapeError(f"inputs have different numbers of dimensions: {', '.join(map(str, specs))}")
    if len(shapes) < len(specs):
        return (TensorSpec(None, specs[0].dtype),)
    frames = [(*shape[:axis], *shape[axis + 1 :]) for shape in shapes]
    frame = [next((n for n in extents if n is not None), None) for extents in zip(*frames, strict=True)]
    if not all(is_compatible(shape, tuple(frame)) for shape in frames):
        raise ShapeError(f"inputs must agree in all axes but {axis}, got {', '.join(map(str, specs))}")
    along = [shape[axis] for shape in shapes]
    frame.insert(axis, None if None in along else sum(along))  # type: ignore[arg-type]
    return (TensorSpec(tuple(frame), specs[0].dtype),)


def _concatenate_maps(specs: Specs, params: Params) -> Maps:
    return (tuple(_piece_maps([spec.known_shape for spec in specs], params["axis"])),)


def _piece_maps(shapes: Sequence[tuple[int, ...]], axis: int) -> list[IndexMap]:
    """Where, in the concatenation of arrays of these shapes, each of them stands."""
    maps, offset = [], 0
    for shape in shapes:
        dims = [AxisIndex(k, 1, -offset if k == axis else 0) for k in range(len(shape))]
        maps.append(IndexMap(tuple(dims), (Guard(axis, offset, offset + shape[axis]),)))
        offset += shape[axis]
    return maps


def _concatenate_vjp(g: Tensor, out: Tensor, *xs: Tensor, axis: int) -> Sequence[Tensor | None]:
    extents = [None if x.spec.shape is None else x.spec.shape[axis] for x in xs]
    if None in extents:
        parts = apply(split_like_op, g, *xs, axis=axis)
        return (parts,) if len(xs) == 1 else parts
    ends = [0, *itertools.accumulate(n for n in extents if n is not None)]
    return [slice_axis(g, axis, start, stop) for start, stop in itertools.pairwise(ends)]


concatenate_op = define(
    "concatenate",
    infer=_infer_concatenate,
    impl=lambda *xs, axis: np.concatenate(xs, axis),
    vjp=_concatenate_vjp,
    kind=Reindex(_concatenate_maps),
    infers_partial=True,
)


def _infer_split_like(specs: Specs, params: Params) -> Specs:
    return tuple(TensorSpec(spec.shape, specs[0].dtype) for spec in specs[1:])


def _split_like_impl(x: Any, *likes: Any, axis: int) -> Any:
    parts = np.split(x, np.cumsum([like.shape[axis] for like in likes])[:-1], axis)
    return tuple(parts) if len(parts) > 1 else parts[0]


def _split_like_maps(specs: Specs, params: Params) -> Maps:
    none = (None,) * (len(specs) - 1)
    return tuple(
        (piece, *none) for piece in _slice_maps([spec.known_shape for spec in specs[1:]], params["axis"])
    )


def _slice_maps(shapes: Sequence[tuple[int, ...]], axis: int) -> list[IndexMap]:
    """How arrays of these shapes read their concatenation."""
    maps, offset = [], 0
    for shape in shapes:
        maps.append(IndexMap(tuple(AxisIndex(k, 1, offset if k == axis else 0) for k in range(len(shape)))))
        offset += shape[axis]
    return maps


def _joined(gs: Any, axis: int) -> Tensor:
    parts = gs if isinstance(gs, tuple) else (gs,)
    return apply_one(concatenate_op, *parts, axis=axis)


split_like_op = define(
    "split_like",
    infer=_infer_split_like,
    impl=_split_like_impl,
    vjp=lambda gs, outs, x, *likes, axis: (_joined(gs, axis), *[None] * len(likes)),
    kind=Reindex(_split_like_maps),
    infers_partial=True,
)


@function("concatenate", "concat")
def concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Tensor:
    """The arrays one behind the other along ``axis`` (None: flattened first), in their common dtype."""
    if out is not None:
        raise unsupported("concatenate", " with out=")
    xs = _common(arrays, dtype)
    if axis is None:
        xs, axis = [build("ravel", x) for x in xs], 0
    ranks = [x.spec.rank for x in xs if x.spec.rank is not None]
    if 0 in ranks:
        raise ShapeError("zero-dimensional arrays cannot be concatenated")
    if axis < 0 and not ranks:
        raise ShapeError("concatenate along an axis counted from the end needs a known number of dimensions")
    return apply_one(concatenate_op, *xs, axis=normalize_axis(axis, ranks[0]) if ranks else axis)


def _common(arrays: Any, dtype: Any = None) -> list[Tensor]:
    """Tensors of one dtype from a sequence, or from the rows of a tensor."""
    values = list(arrays)
    if not values:
        raise ShapeError("need at least one array")
    wanted = common_dtype(*values) if dtype is None else np.dtype(dtype)
    return [as_tensor(x, wanted) for x in as_tensors(*values)]


# -- stack ---------------------------------------------------------------------------------------------------


def _infer_stack(specs: Specs, params: Params) -> Specs:
    shape = specs[0].known_shape
    if any(spec.shape != shape for spec in specs):
        raise ShapeError(f"all inputs must have the same shape, got {', '.join(map(str, specs))}")
    return (TensorSpec((*shape[: params["axis"]], len(specs), *shape[params["axis"] :]), specs[0].dtype),)


def _stack_maps(specs: Specs, params: Params) -> Maps:
    axis = params["axis"]
    dims = tuple(AxisIndex(k) for k in range(len(specs[0].known_shape) + 1) if k != axis)
    return (tuple(IndexMap(dims, (Guard(axis, k, k + 1),)) for k in range(len(specs))),)


def _stack_vjp(g: Tensor, out: Tensor, *xs: Tensor, axis: int) -> list[Tensor]:
    return [
        getslice(g, [slice(k, k + 1) if a == axis else slice(None) for a in range(g.ndim)], (axis,))
        for k in range(len(xs))
    ]


stack_op = define(
    "stack",
    infer=_infer_stack,
    impl=lambda *xs, axis: np.stack(xs, axis),
    vjp=_stack_vjp,
    kind=Reindex(_stack_maps),
)


@function("stack")
def stack(
    arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Tensor:
    """Arrays of one shape along a new axis, in their common dtype."""
    if out is not None:
        raise unsupported("stack", " with out=")
    xs = _common(arrays, dtype)
    return apply_one(stack_op, *xs, axis=normalize_axis(axis, xs[0].ndim + 1))


@function("vstack", "row_stack")
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Tensor:
    """Rows (or arrays of two and more dimensions) one below the other."""
    return concatenate([build("atleast_2d", x) for x in as_tensors(*tup)], 0, dtype=dtype)


@function("hstack")
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Tensor:
    """Joined along the second axis; one-dimensional arrays along the first."""
    xs = [build("atleast_1d", x) for x in as_tensors(*tup)]
    return concatenate(xs, 0 if xs[0].ndim == 1 else 1, dtype=dtype)


@function("dstack")
def dstack(tup: Any) -> Tensor:
    """Joined along the third axis."""
    return concatenate([build("atleast_3d", x) for x in as_tensors(*tup)], 2)


@function("column_stack")
def column_stack(tup: Any) -> Tensor:
    """One-dimensional arrays as columns, beside two-dimensional ones."""
    return concatenate([x if x.ndim > 1 else build("reshape", x, (-1, 1)) for x in as_tensors(*tup)], 1)


@function("append")
def append(arr: Any, values: Any, axis: Any = None) -> Tensor:
    """``values`` behind ``arr`` along ``axis`` (None: both flattened)."""
    return concatenate(as_tensors(arr, values), axis)


@function("block")
def block(arrays: Any) -> Tensor:
    """As numpy.block: nested lists of arrays, the innermost joined along the last axis."""
    depth = _depth(arrays)
    rank = max(depth, *(x.ndim for x in as_tensors(*_leaves(arrays))))
    return _blocked(arrays, depth, rank)


def _depth(arrays: Any) -> int:
    return 1 + max(map(_depth, arrays)) if isinstance(arrays, list) else 0


def _leaves(arrays: Any) -> list[Any]:
    return [leaf for item in arrays for leaf in _leaves(item)] if isinstance(arrays, list) else [arrays]


def _blocked(arrays: Any, depth: int, rank: int) -> Tensor:
    if isinstance(arrays, list):
        return concatenate([_blocked(item, depth - 1, rank) for item in arrays], -depth)
    x = as_tensor(arrays)
    return build("reshape", x, (1,) * (rank - x.ndim) + x.spec.known_shape) if x.ndim < rank else x


# -- split ---------------------------------------------------------------------------------------------------


def _part_shapes(specs: Specs, params: Params) -> list[tuple[int, ...]]:
    shape, axis = specs[0].known_shape, params["axis"]
    bounds = itertools.pairwise((0, *params["at"], None))
    return [(*shape[:axis], selected(shape[axis], *bound).extent, *shape[axis + 1 :]) for bound in bounds]


def _split_maps(specs: Specs, params: Params) -> Maps:
    axis = params["axis"]
    shape = specs[0].known_shape
    starts = [selected(shape[axis], start).start for start in (0, *params["at"])]
    return tuple(
        (IndexMap(tuple(AxisIndex(k, 1, start if k == axis else 0) for k in range(len(shape)))),)
        for start in starts
    )


def _split_vjp(gs: Any, outs: Any, x: Tensor, *, axis: int, at: tuple[int, ...]) -> Tensor:
    bounds = list(itertools.pairwise((0, *at, None)))
    parts = gs if isinstance(gs, tuple) else (gs,)
    if list(at) == sorted(at) and all(n >= 0 for n in at):
        return apply_one(concatenate_op, *parts, axis=axis)
    frame = [slice(None)] * x.ndim
    windows = [
        unslice(g, x, [*frame[:axis], slice(*bound), *frame[axis + 1 :]])
        for g, bound in zip(parts, bounds, strict=True)
    ]
    return sum(windows[1:], start=windows[0])


split_op = define(
    "split",
    infer=lambda specs, params: tuple(
        TensorSpec(shape, specs[0].dtype) for shape in _part_shapes(specs, params)
    ),
    impl=lambda x, axis, at: tuple(np.split(x, at, axis)) if at else x,
    vjp=_split_vjp,
    kind=Reindex(_split_maps),
)


@function("array_split")
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Parts along ``axis``: so many of nearly equal extent, or cut at the given positions."""
    x = as_tensor(ary)
    axis = normalize_axis(axis, x.ndim)
    if np.ndim(indices_or_sections) == 0:
        at = _section_ends(x.spec.shape[axis] if x.spec.shape else None, operator.index(indices_or_sections))
    else:
        at = tuple(operator.index(n) for n in indices_or_sections)
    parts = apply(split_op, x, axis=axis, at=at)
    return list(parts) if at else [parts]


def _section_ends(extent: int | None, sections: int) -> tuple[int, ...]:
    if sections < 1:
        raise ShapeError(f"the number of parts must be positive, got {sections}")
    if extent is None:
        raise ShapeError("cannot split an axis of unknown extent into equal parts: give the positions")
    each, extra = divmod(extent, sections)
    return tuple(itertools.accumulate([each + 1] * extra + [each] * (sections - extra)))[:-1]


@function("split")
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """As ``array_split``, but a number of parts must divide the extent: ShapeError otherwise."""
    x = as_tensor(ary)
    if np.ndim(indices_or_sections) == 0:
        extent = x.spec.shape[normalize_axis(axis, x.ndim)] if x.spec.shape else None
        if extent is not None and extent % operator.index(indices_or_sections):
            raise ShapeError(
                f"array split does not result in an equal division: {extent} into {indices_or_sections}"
            )
    return array_split(x, indices_or_sections, axis)


@function("vsplit")
def vsplit(ary: Any, indices_or_sections: Any) -> list[Tensor]:
    """Split along the first axis."""
    return split(ary, indices_or_sections, 0)


@function("hsplit")
def hsplit(ary: Any, indices_or_sections: Any) -> list[Tensor]:
    """Split along the second axis, a one-dimensional array along its only one."""
    x = as_tensor(ary)
    return split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


@function("dsplit")
def dsplit(ary: Any, indices_or_sections: Any) -> list[Tensor]:
    """Split along the third axis."""
    return split(ary, indices_or_sections, 2)


@function("unstack")
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along ``axis``, without it."""
    t = as_tensor(x)
    n = t.spec.known_shape[normalize_axis(axis, t.ndim)]
    parts = split(t, n, axis) if n else []
    return tuple(build("squeeze", part, axis) for part in parts)


# -- repetition and rotation ---------------------------------------------------------------------------------


@function("tile")
def tile(A: Any, reps: Any) -> Tensor:
    """``A`` laid side by side ``reps`` times along each axis, missing axes counted as new leading ones."""
    x = as_tensor(A)
    given = _counts("tile", reps if isinstance(reps, list | tuple | np.ndarray) else (reps,))
    counts = (1,) * (x.ndim - len(given)) + given
    shape = (1,) * (len(counts) - x.ndim) + x.spec.known_shape
    apart = build("reshape", x, tuple(itertools.chain.from_iterable((1, n) for n in shape)))
    wide = build("broadcast_to", apart, tuple(itertools.chain.from_iterable(zip(counts, shape, strict=True))))
    return build("reshape", wide, tuple(c * n for c, n in zip(counts, shape, strict=True)))


@function("repeat")
def repeat(a: Any, repeats: Any, axis: Any = None) -> Tensor:
    """Each element ``repeats`` times along ``axis`` (None: flattened); one number, or one per element."""
    if isinstance(repeats, Tensor):
        raise unsupported("repeat", " with traced repeats, on which the shape of the result depends,")
    counts = _counts("repeat", np.ravel(repeats).tolist() if np.ndim(repeats) else (repeats,))
    x = as_tensor(a)
    if axis is None:
        x, axis = build("ravel", x), 0
    axis = normalize_axis(axis, x.ndim)
    if len(counts) == 1:
        return _repeat_each(x, counts[0], axis)
    extent = x.spec.known_shape[axis]
    if len(counts) != extent:
        raise ShapeError(f"{len(counts)} counts for {extent} elements along axis {axis}")
    return build("take", x, np.repeat(np.arange(extent), counts), axis)


def _counts(name: str, values: Any) -> tuple[int, ...]:
    """How often something is repeated; ShapeError where a number is known only when the graph runs, or negative."""
    counts = known_extents(tuple(values), name, "the number of copies")
    if min(counts, default=0) < 0:
        raise ShapeError(f"{name}: counts must not be negative, got {min(counts)}")
    return counts


def _repeat_each(x: Tensor, count: int, axis: int) -> Tensor:
    shape = x.spec.known_shape
    if 1 < count <= _FEW_COPIES:
        return repeated(x, count, axis)
    apart = build("expand_dims", x, axis + 1)
    wide = build("broadcast_to", apart, (*shape[: axis + 1], count, *shape[axis + 1 :]))
    return build("reshape", wide, (*shape[:axis], shape[axis] * count, *shape[axis + 1 :]))


@function("roll")
def roll(a: Any, shift: Any, axis: Any = None) -> Tensor:
    """Elements moved ``shift`` places along ``axis`` (None: flattened), from the end back to the start; shifts may be
    traced.
    """
    x = as_tensor(a)
    if axis is None:
        return build("reshape", roll(build("ravel", x), shift, 0), x.spec.known_shape)
    shifts, axes = _each(shift), _each(axis)
    count = max(len(shifts), len(axes))
    shifts, axes = (given * count if len(given) == 1 else given for given in (shifts, axes))
    if len(shifts) != len(axes):
        raise ValueError(f"roll takes one shift for each axis, or one for all, got {len(shifts)} for {len(axes)}")
    for places, along in zip(shifts, axes, strict=True):
        x = _rolled(x, places, normalize_axis(along, x.ndim))
    return x


def _each(given: Any) -> list[Any]:
    """A number, or several, as a list."""
    if isinstance(given, Tensor):
        return [given] if given.ndim == 0 else list(given)
    return list(given) if isinstance(given, list | tuple) else np.atleast_1d(given).tolist()


def _rolled(x: Tensor, places: Any, k: int) -> Tensor:
    n = x.spec.known_shape[k]
    if not n:
        return x
    if isinstance(places, Tensor):
        return build("take", x, (np.arange(n) - build("astype", places, np.int64)) % n, k)
    return select_runs(x, k, np.roll(np.arange(n), places))
