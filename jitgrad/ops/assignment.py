"""``x[index] = value`` as a new value for which the user's object then stands; reading is in indexing."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import hints
from jitgrad.errors import DTypeError, ShapeError, layout
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Interpreted, OpDef, Params, Specs, define, find
from jitgrad.operators import Selected, call, function
from jitgrad.ops.along_rows import is_one_per_row, written_along_rows
from jitgrad.ops.chosen import with_masks
from jitgrad.ops.common import PYTHON_SCALARS, as_tensor, build, is_weak_key, joint_dtype, type_key, unsupported
from jitgrad.ops.gathering import INDEX, as_index, zeros_like_shape
from jitgrad.ops.indexing import MASK_HINT, Plan, axes_behind, masked_view, plan_index, traced_masks, view
from jitgrad.ops.slicing import unslice
from jitgrad.ops.updating import kept_parts, part_shape, updated
from jitgrad.pieces import part_of
from jitgrad.refusals import traced_value_error
from jitgrad.sources import place as users_line
from jitgrad.spec import DType, TensorSpec, fits, shape_text
from jitgrad.views import can_lay, check_writable, is_written, lay_piece, write


@function("setitem")
def setitem(x: Tensor, index: Any, value: Any) -> None:
    """``x[index] = value``: every index of ``getitem``; traced masks for values that broadcast, and for selections.

    The value is converted to the dtype of ``x``; of several values for one element the last stays, as in
    NumPy. What shares memory with ``x`` changes with it.
    """
    index = with_masks(index)
    if is_written(x, index, value):
        return
    check_writable(x)
    masks = traced_masks(index)
    if masks and isinstance(value, Selected):
        new = assigned(x, index, value)
    else:
        given = as_tensor(value, x.dtype, x.graph)
        if not masks and _is_laid(x, index, given):
            return
        new = assigned(x, index, given)
    if new is not x:
        write(x, new)


def _is_laid(x: Tensor, index: Any, value: Tensor) -> bool:
    """Whether what is assigned to a numbered part was kept as a piece, since the whole is not needed yet."""
    plan = plan_index(x, index)
    part = None if plan.new or plan.positions else part_of(x.spec.shape, plan.slices, plan.drop)
    if part is None or not part.is_numbered or not can_lay(x, value):
        return False
    lay_piece(x, part, _fitted(value, _view_shape(x.spec.known_shape, plan)))
    return True


@function("assigned")
def assigned(x: Tensor, index: Any, value: Any) -> Tensor:
    """A new tensor, or ``x`` itself where nothing is assigned; ``value`` is a tensor, or a selection by the index."""
    if traced_masks(index):
        return _masked(x, index if isinstance(index, tuple) else (index,), value)
    parts = kept_parts(x, index)
    if parts is not None and any(isinstance(position, Tensor) for position in parts[1]):
        return updated(x, parts, _fitted(as_tensor(value, x.dtype, x.graph), part_shape(x, parts)))
    plan = plan_index(x, index)
    if plan.positions:
        part = view(x, plan)
        filled = _gathered_window(part, plan, value)
        return x if filled is part else _with_window(x, plan, filled)
    if x.spec.is_known:
        wide = _fitted(value, _view_shape(x.spec.known_shape, plan))
    else:
        wide = apply_one(find("broadcast_like"), value, view(x, plan))
    return build("identity_tensor", _with_window(x, plan, wide))


def _fitted(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``value`` broadcast to ``shape``; leading extents of 1 too many are dropped, as NumPy does."""
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = build("squeeze", value, tuple(range(extra)))
    if value.spec.is_known and not fits(value.spec.known_shape, shape):
        given = shape_text(value.spec.shape)
        raise ShapeError(
            layout(
                f"an array of shape {given} cannot be assigned to a part of shape {shape_text(shape)}",
                needed=users_line(),
                hint="extents are equal or 1, counted from the last axis; one number fits any part",
            )
        )
    return value if value.shape == shape else build("broadcast_to", value, shape)


def _view_shape(shape: tuple[int, ...], plan: Plan) -> tuple[int, ...]:
    """The shape that ``view`` gives."""
    extents = [
        len(range(n)[s])
        for k, (n, s) in enumerate(zip(shape, plan.slices, strict=True))
        if k not in plan.drop
    ]
    for place in plan.new:
        extents.insert(place, 1)
    return tuple(extents[k] for k in plan.order or range(len(extents)))


def _selected_shape(part: Tensor, plan: Plan) -> tuple[int, ...]:
    """The shape that ``gather`` gives."""
    shape = part.spec.known_shape
    return (*shape[: plan.axes[0]], *plan.positions[0].shape, *shape[plan.axes[-1] + 1 :])


def _with_window(x: Tensor, plan: Plan, part: Tensor) -> Tensor:
    """``x`` with the planned view of it replaced by ``part``, which has the view's shape."""
    if plan.order is not None:
        part = build("transpose", part, tuple(np.argsort(plan.order).tolist()))
    part = build("squeeze", part, plan.new) if plan.new else part
    if not plan.is_sliced:
        return part
    inside = unslice(_true_like(part), x, plan.slices, plan.drop)
    return build("where", inside, unslice(part, x, plan.slices, plan.drop), x)


def _true_like(x: Tensor) -> Tensor:
    if x.spec.is_known:
        return build("constant", np.broadcast_to(np.True_, x.spec.known_shape), graph=x.graph)
    return apply_one(find("broadcast_like"), as_tensor(True, graph=x.graph), x)


@function("with_parts")
def with_parts(x: Tensor, first: int, numbers: Sequence[tuple[int, ...]], values: Tensor) -> Tensor:
    """``x`` in which the parts of these numbers along neighbouring axes from ``first`` on, none twice, are those along
    the axis ``first`` of ``values``.
    """
    index = [np.array(axis, INDEX) for axis in zip(*numbers, strict=True)]
    axes = tuple(range(first, first + len(index)))
    if x.dtype.kind == "b":
        return assigned(x, (*(slice(None),) * first, *index), values)
    chosen = np.zeros([x.spec.known_shape[axis] for axis in axes], bool)
    chosen[tuple(index)] = True
    mask = chosen.reshape(*chosen.shape, *(1,) * (x.ndim - axes[-1] - 1))
    return build("where", mask, _scattered(x, values, [as_index(i, x) for i in index], axes), x)


# -- positions -----------------------------------------------------------------------------------------------


def _last_writer(*index: Any, extents: tuple[int, ...]) -> Any:
    for positions, n in zip(index, extents, strict=True):
        outside = positions[(positions < -n) | (positions >= n)]
        if outside.size:
            raise IndexError(f"index {outside.flat[0]} is out of bounds for an axis of size {n}")
    writer = np.full(extents, -1, dtype=INDEX)
    writer[index] = np.arange(index[0].size, dtype=INDEX).reshape(index[0].shape)
    return writer


def _infer_last_writer(specs: Specs, params: Params) -> Specs:
    return (TensorSpec(params["extents"], INDEX),)


last_writer_op = define(
    "last_writer",
    infer=_infer_last_writer,
    impl=_last_writer,
    differentiable=False,
    kind=Interpreted(
        "which of several assignments to one element is the last depends on the values of the positions"
    ),
)


def _writer(x: Tensor, index: tuple[Any, ...], extents: tuple[int, ...]) -> Tensor:
    """For each element of the gathered axes, the number of the last assignment to it, or -1."""
    if any(isinstance(i, Tensor) for i in index):
        return apply_one(last_writer_op, *(as_index(i, x) for i in index), extents=extents)
    return as_tensor(_last_writer(*index, extents=extents), graph=x.graph)


def _gathered_window(part: Tensor, plan: Plan, value: Tensor) -> Tensor:
    """``part`` with ``value`` at the planned positions."""
    first, count = plan.axes[0], len(plan.axes)
    wide = _fitted(value, _selected_shape(part, plan))
    extents = part.spec.known_shape[first : first + count]
    if isinstance(plan.positions[0], Tensor) and plan.positions[0].shape == ():
        return _at_scalar(part, plan, wide)
    if 0 in plan.positions[0].shape:
        return part
    if is_one_per_row(part, plan.axes, plan.positions):
        return written_along_rows(part, plan.positions[-1], wide)
    spread = (*range(first), *range(first + count, part.ndim))
    writer = _writer(part, plan.positions, extents)
    rows = _merged(wide, first, plan.positions[0].ndim)
    written = build("take", rows, build("maximum", writer, 0), first)
    mask = build("greater_equal", writer, 0)
    return build("where", _aligned(mask, spread), written, part)


def _merged(wide: Tensor, first: int, count: int) -> Tensor:
    shape = wide.spec.known_shape
    if count == 1:
        return wide
    return build("reshape", wide, (*shape[:first], math.prod(shape[first : first + count]), *shape[first + count :]))


def _aligned(mask: Tensor, axes: tuple[int, ...]) -> Tensor:
    return build("expand_dims", mask, axes) if axes else mask


def _at_scalar(part: Tensor, plan: Plan, value: Tensor) -> Tensor:
    """One traced position per axis: a comparison with the running index, which compiles."""
    wide = build("expand_dims", value, plan.axes)
    hit: Any = None
    for axis, position in zip(plan.axes, plan.positions, strict=True):
        n = part.spec.known_shape[axis]
        index = as_index(position, part)
        ruler = np.arange(n).reshape([n if k == axis else 1 for k in range(part.ndim)])
        here = build("equal", build("where", build("less", index, 0), index + n, index), ruler)
        hit = here if hit is None else build("logical_and", hit, here)
    return build("where", hit, wide, part)


# -- masks ---------------------------------------------------------------------------------------------------


def _masked(x: Tensor, items: tuple[Any, ...], value: Any) -> Tensor:
    """``x[..., mask, ...] = value`` with one traced mask beside slices and integers."""
    plan, part, mask, axis = masked_view(x, items)
    after = part.ndim - axis - mask.ndim
    if isinstance(value, Selected):
        wide = build("selected_values", value, mask, after, x.dtype)
    else:
        wide = _for_mask(value, mask, after)
    changed = build("where", axes_behind(mask, after), wide, part)
    if part.spec.is_known and changed.shape != part.shape:
        raise ShapeError(
            f"values of shape {list(value.shape)} are too wide for what a mask chooses of {list(part.shape)}"
        )
    return _with_window(x, plan, changed)


def _for_mask(value: Tensor, mask: Tensor, after: int) -> Tensor:
    """``value`` aligned with the mask's axes: its axis for the chosen elements must have extent 1."""
    if value.ndim <= after:
        return value
    if value.shape[value.ndim - after - 1] != 1:
        raise traced_value_error(mask, "assigning as many values as a boolean mask has True", MASK_HINT)
    at = value.ndim - after
    return build("expand_dims", value, tuple(range(at, at + mask.ndim - 1))) if mask.ndim > 1 else value


# -- extremes at positions -----------------------------------------------------------------------------------


def _extreme_vjp(g: Tensor, out: Tensor, x: Tensor, values: Tensor, *index: Tensor, axes: tuple[int, ...]) -> Any:
    """Shared equally among what is equal to the extreme, the element that was there before too."""
    kept = call("astype", call("equal", x, out), g.dtype)
    hits = call("astype", call("equal", values, apply_one(find("index"), out, *index, axes=axes)), g.dtype)
    count = kept + apply_one(find("scatter_index"), zeros_like_shape(x), hits, *index, axes=axes)
    share = g / call("maximum", count, 1)
    return share * kept, apply_one(find("index"), share, *index, axes=axes) * hits, *[None] * len(index)


def _define_extreme(ufunc: np.ufunc) -> OpDef:
    def changed(x: Any, values: Any, *index: Any, axes: tuple[int, ...]) -> Any:
        out = np.array(x)
        ufunc.at(out, (slice(None),) * axes[0] + index, values)
        return out

    return define(
        f"{ufunc.__name__}_at",
        infer=lambda specs, params: specs[:1],
        impl=changed,
        vjp=_extreme_vjp,
        kind=Interpreted("extremes at positions are NumPy's"),
    )


maximum_at_op, minimum_at_op = map(_define_extreme, (np.maximum, np.minimum))


# -- NumPy's functions that write ----------------------------------------------------------------------------


def _target(name: str, x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise unsupported(
            name,
            " of traced values into an array that is not traced",
            f"make the array with {hints.ZEROS}",
        )
    return x


@function("put_along_axis")
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    """``arr[i, indices[i, k], ...] = values[i, k, ...]`` for the user's object; the last value stays."""
    x = _target("put_along_axis", arr)
    if axis is None:
        return put(x, indices, values)
    index = as_index(indices, x) if isinstance(indices, Tensor) else np.asarray(indices)
    axis = axis % x.ndim
    shape = list(x.spec.known_shape)
    shape[axis] = index.shape[axis]
    grid: list[Any] = list(np.indices(tuple(shape), sparse=True))
    grid[axis] = index
    setitem(x, tuple(grid), values)
    return None


@function("put")
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """``a.flat[ind] = v`` for the user's object ``a``; a value shorter than ``ind`` is repeated."""
    x = _target("put", a)
    if mode != "raise":
        raise unsupported("put", f" with mode={mode!r}")
    index = build("ravel", ind) if isinstance(ind, Tensor) else np.ravel(ind)
    values = build("ravel", as_tensor(v, x.dtype, x.graph))
    if values.size != index.size:
        values = build("take", values, np.arange(index.size) % values.size, 0)
    if index.size:
        flat = assigned(build("ravel", x), index, values)
        write(x, build("reshape", flat, x.spec.known_shape))


@function("copyto")
def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """``dst[...] = src`` where the mask ``where`` holds."""
    x = _target("copyto", dst)
    given = _given_dtype(src, x)
    if not np.can_cast(given, x.dtype, casting):  # type: ignore[arg-type]
        raise DTypeError(f"copyto: {given.name} cannot be stored as {x.dtype.name} with casting={casting!r}")
    if where is True:
        return setitem(x, ..., src)
    write(x, build("where", where, _fitted(as_tensor(src, x.dtype, x.graph), x.spec.known_shape), x))
    return None


def _given_dtype(src: Any, x: Tensor) -> DType:
    """The dtype of what is stored in ``x``: Python numbers take that of ``x`` where it is of their kind."""
    key = type_key(src) if type(src) in PYTHON_SCALARS else type_key(as_tensor(src))
    return joint_dtype(x.dtype, key) if is_weak_key(key) else key


@function("putmask")
def putmask(a: Any, mask: Any, values: Any) -> None:
    """``a.flat[i] = values[i]`` where the mask holds; values that are fewer are repeated."""
    x = _target("putmask", a)
    _put_where("putmask", x, mask, values, lambda chosen: np.arange(x.size))


@function("place")
def place(arr: Any, mask: Any, vals: Any) -> None:
    """The first elements of ``arr`` where the mask holds become the first of ``vals``, which is repeated."""
    x = _target("place", arr)
    if not np.size(vals) and not isinstance(mask, Tensor) and np.any(mask):
        raise ValueError("place takes one value at least where the mask has a True, got none")
    _put_where("place", x, mask, vals, lambda chosen: build("cumsum", chosen) - 1)


def _put_where(name: str, x: Tensor, mask: Any, values: Any, numbers: Callable[[Tensor], Any]) -> None:
    """Write to the elements chosen by a mask of as many those values whose ``numbers`` are given, counted round."""
    chosen = build("ravel", build("astype", mask, bool))
    if chosen.size != x.size:
        raise ShapeError(f"{name} takes a mask of the size of the array, {x.size}, got {chosen.size}")
    source = build("ravel", as_tensor(values, x.dtype, x.graph))
    if not source.size:
        if name == "place" and isinstance(mask, Tensor) and x.size:
            raise traced_value_error(mask, "placing no values", "give one value at least, or a mask that is not traced")
        return
    given = source if source.size == 1 else build("take", source, numbers(chosen) % source.size, 0)
    write(x, build("reshape", build("where", chosen, given, build("ravel", x)), x.spec.known_shape))


@function("fill_diagonal")
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """``a[i, i] = val`` for the user's matrix ``a``, a scalar or one value per row."""
    x = _target("fill_diagonal", a)
    if x.ndim != 2 or wrap:
        raise unsupported("fill_diagonal", " beyond a plain matrix")
    position = np.arange(min(x.spec.known_shape))
    setitem(x, (position, position), val)


@function("add.at")
def add_at(a: Any, indices: Any, b: Any) -> None:
    """``a[indices] += b`` where values for the same element add up, for the user's object ``a``."""
    _change_at("add", a, indices, b, lambda part, *at: build("add", part, _scattered(part, *at)))


@function("subtract.at")
def subtract_at(a: Any, indices: Any, b: Any) -> None:
    """``a[indices] -= b`` where values for the same element add up, for the user's object ``a``."""
    _change_at("subtract", a, indices, b, lambda part, *at: build("subtract", part, _scattered(part, *at)))


@function("maximum.at")
def maximum_at(a: Any, indices: Any, b: Any) -> None:
    """The largest of each element and all values for it, for the user's object ``a``."""
    _change_at("maximum", a, indices, b, functools.partial(_extreme, maximum_at_op))


@function("minimum.at")
def minimum_at(a: Any, indices: Any, b: Any) -> None:
    """The least of each element and all values for it, for the user's object ``a``."""
    _change_at("minimum", a, indices, b, functools.partial(_extreme, minimum_at_op))


def _check_whole(name: str, x: Tensor, b: Any) -> None:
    """DTypeError for numbers that may have fractions, added to integers: NumPy drops that of each sum."""
    found = _given_dtype(b, x)
    is_whole = found.kind not in "fc" or (not isinstance(b, Tensor) and np.all(np.equal(b, np.rint(b))))
    if is_whole or x.dtype.kind in "fc":
        return
    raise DTypeError(
        layout(
            f"{name}.at: {found.name} cannot be stored as {x.dtype.name}",
            hint=f"add to x.astype(np.{found.name}), and convert the result",
        )
    )


def _change_at(name: str, a: Any, indices: Any, b: Any, changed: Callable[..., Tensor]) -> None:
    """Write what ``changed`` makes of a window, of values as wide as what is selected, and of positions along axes;
    without positions, what the function of this name makes of the selected elements.
    """
    x = _target(f"{name}.at", a)
    plan = plan_index(x, indices)
    if name in ("add", "subtract"):
        _check_whole(name, x, b)
    value = as_tensor(b, x.dtype, x.graph)
    if not plan.positions:
        return setitem(x, indices, build(name, build("getitem", x, indices), value))
    part = view(x, plan)
    index = [as_index(i, x) for i in plan.positions]
    new = changed(part, _fitted(value, _selected_shape(part, plan)), index, plan.axes)
    write(x, _with_window(x, plan, new))
    return None


def _extreme(op: OpDef, part: Tensor, values: Tensor, index: list[Tensor], axes: tuple[int, ...]) -> Tensor:
    return apply_one(op, part, values, *index, axes=tuple(axes))


def _scattered(part: Tensor, updates: Tensor, index: list[Tensor], axes: tuple[int, ...]) -> Tensor:
    if len(index) == 1:
        return apply_one(find("scatter_take"), part, updates, index[0], axis=axes[0])
    return apply_one(find("scatter_index"), part, updates, *index, axes=axes)
