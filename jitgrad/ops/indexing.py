"""``x[index]`` with NumPy's whole grammar, planned as a slice, new axes and a gather; it assigns nothing."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.constant_values import constant_value
from jitgrad.errors import IndexingError, ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.operators import function
from jitgrad.ops.along_rows import are_along_rows, read_along_rows
from jitgrad.ops.chosen import with_masks
from jitgrad.ops.common import as_tensor, build
from jitgrad.ops.gathering import as_index, checked_positions, index_op, positions_of, take_op
from jitgrad.ops.slicing import getslice
from jitgrad.ops.updating import kept_parts, read_part
from jitgrad.pieces import part_of
from jitgrad.records import NamedTuple, dataclass
from jitgrad.refusals import traced_value_error
from jitgrad.views import read_piece

MASK_HINT = (
    "of x[mask] there are what is done element by element, sums, means, extremes, norms, products, .size, and "
    "y[mask] = x[mask]; for all else keep the places: np.where(mask, x, other)"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """An index taken apart: slices (which drop the axes of integers), then new axes, then positions.

    ``slices`` and ``drop`` speak of the axes of x, ``new`` of the axes after that; ``order`` is the transpose
    that brings the axes in ``axes`` together (None: they are adjacent), ``axes`` and ``positions`` are what
    is gathered.
    """

    slices: tuple[slice, ...]
    drop: tuple[int, ...]
    new: tuple[int, ...]
    order: tuple[int, ...] | None
    axes: tuple[int, ...]
    positions: tuple[Any, ...]

    @property
    def is_sliced(self) -> bool:
        """Whether the slices leave anything out."""
        return bool(self.drop) or any(s != slice(None) for s in self.slices)


@function("getitem")
def getitem(x: Tensor, index: Any) -> Tensor:
    """``x[index]``: integers, slices, Ellipsis, None, integer arrays and tensors, concrete boolean arrays.

    IndexingError for too many indices and for concrete positions out of range. A traced mask gives a selection, since
    the shape depends on its values. Traced positions out of range: see gathering.
    """
    index = with_masks(index)
    if traced_masks(index):
        return build("selected", x, index)
    parts = kept_parts(x, index)
    if parts is not None:
        return read_part(x, parts)
    plan = plan_index(x, index)
    if x._view is not None and x._view.pieces is not None and not (plan.new or plan.positions):
        part = part_of(x.spec.shape, plan.slices, plan.drop)
        is_array = any(item is Ellipsis for item in (index if isinstance(index, tuple) else (index,)))
        piece = None if part is None else read_piece(x, part, is_array)
        if piece is not None:
            return piece
    out = view(x, plan)
    if plan.positions:
        return gather(out, plan)
    return build("identity_tensor", x) if out is x else out


def view(x: Tensor, plan: Plan) -> Tensor:
    """The part of ``x`` from which positions are gathered: sliced, with new axes, in order."""
    out = getslice(x, plan.slices, plan.drop) if plan.is_sliced else x
    out = build("expand_dims", out, plan.new) if plan.new else out
    return out if plan.order is None else build("transpose", out, plan.order)


def gather(x: Tensor, plan: Plan) -> Tensor:
    """The planned positions of a view."""
    if are_along_rows(x, plan.axes, plan.positions):
        return read_along_rows(x, plan.positions[-1])
    index = [as_index(i, x) for i in plan.positions]
    if len(index) == 1:
        return apply_one(take_op, x, index[0], axis=plan.axes[0])
    return apply_one(index_op, x, *index, axes=plan.axes)


# -- masks of which no value is known ------------------------------------------------------------------------


class MaskedView(NamedTuple):
    """``x[..., mask, ...]`` of a traced mask: ``part`` is a view of ``x``, in which its axes begin at ``axis``."""

    plan: Plan
    part: Tensor
    mask: Tensor
    axis: int


def traced_masks(index: Any) -> list[Tensor]:
    """The masks in an index of which no value is known."""
    items = index if isinstance(index, tuple) else (index,)
    masks = [item for item in items if isinstance(item, Tensor) and item.dtype.kind == "b"]
    return [mask for mask in masks if constant_value(mask) is None]


def masked_view(x: Tensor, items: tuple[Any, ...]) -> MaskedView:
    """The view for an index with one traced mask beside slices and integers; others are refused."""
    masks = traced_masks(items)
    others = [item for item in items if not any(item is mask for mask in masks)]
    if len(masks) > 1 or not all(item is Ellipsis or isinstance(item, slice | int | np.integer) for item in others):
        raise traced_value_error(
            masks[0], "a boolean mask beside other arrays in an index", "use np.where with one mask: mask & other"
        )
    mask = masks[0]
    where = next(k for k, item in enumerate(items) if item is mask)
    plan = plan_index(x, (*items[:where], *[slice(None)] * mask.ndim, *items[where + 1 :]))
    part, axis = view(x, plan), _axis_of_mask(x, items, where)
    _check_fit(mask, part.shape[axis : axis + mask.ndim], axis)
    return MaskedView(plan, part, mask, axis)


def _axis_of_mask(x: Tensor, items: tuple[Any, ...], where: int) -> int:
    """The axis of the view at which the mask begins: integers in front of it are gone."""
    before = items[:where]
    hidden = x.ndim - sum(
        consumed(item) if isinstance(item, Tensor) else item is not Ellipsis for item in items
    )
    return sum(hidden if item is Ellipsis else isinstance(item, slice) for item in before)


def axes_behind(mask: Tensor, count: int) -> Tensor:
    """The mask with so many axes of extent 1 behind its own."""
    return build("expand_dims", mask, tuple(range(mask.ndim, mask.ndim + count))) if count else mask


# -- planning ------------------------------------------------------------------------------------------------

# An entry of an index: a slice, None (a new axis), an int, or an array or tensor of positions.
Entry = Any


def plan_index(x: Tensor, index: Any) -> Plan:
    """The plan of ``x[index]``."""
    entries = _expanded(x, index)
    slices: list[slice] = []
    drop, new, axes = list[int](), list[int](), list[int]()
    positions: list[Any] = []
    axis = place = 0
    for entry in entries:
        if entry is Ellipsis:
            continue
        if entry is None:
            new.append(place)
            place += 1
            continue
        extent = x.shape[axis]
        if isinstance(entry, int):
            slices.append(_one(entry, extent, axis))
            drop.append(axis)
        else:
            slices.append(entry if isinstance(entry, slice) else slice(None))
            if not isinstance(entry, slice):
                checked_positions(entry, extent, axis)
                axes.append(place)
                positions.append(entry)
            place += 1
        axis += 1
    order, axes = _placed(entries, axes, place) if axes else (None, axes)
    return Plan(
        tuple(slices),
        tuple(drop),
        tuple(new),
        order,
        tuple(axes),
        tuple(positions_of(positions) if positions else ()),
    )


def _placed(entries: Sequence[Entry], axes: list[int], rank: int) -> tuple[tuple[int, ...] | None, list[int]]:
    """The transpose that brings gathered axes together, and where they are then.

    NumPy: the axes of the positions stand where the first of them was when all of them (integers count) are
    next to each other in the index, else in front. An Ellipsis that stands for no axis parts its neighbours too.
    """
    advanced = [number for number, e in enumerate(entries) if isinstance(e, int) or _is_positions(e)]
    together = advanced[-1] - advanced[0] == len(advanced) - 1
    first = sum(e is not Ellipsis and not isinstance(e, int) for e in entries[: advanced[0]]) if together else 0
    rest = [axis for axis in range(rank) if axis not in axes]
    order = (*rest[:first], *axes, *rest[first:])
    return (None if order == tuple(range(rank)) else order), list(range(first, first + len(axes)))


def _is_positions(entry: Entry) -> bool:
    return isinstance(entry, Tensor | np.ndarray)


def _one(position: int, extent: int | None, axis: int) -> slice:
    checked_positions(np.asarray(position), extent, axis)
    return slice(position, position + 1 if position != -1 else None, 1)


def _expanded(x: Tensor, index: Any) -> list[Entry]:
    """The index as one entry per axis of ``x`` and per new axis, without masks; of Ellipsis only one of no axis."""
    items = [_plain(item) for item in (index if isinstance(index, tuple) else (index,))]
    ellipses = [k for k, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise IndexingError("an index can only have a single ellipsis ('...')")
    taken = sum(consumed(item) for item in items)
    rank = x.ndim
    if taken > rank:
        raise IndexingError(f"too many indices for array: array is {rank}-dimensional, but {taken} were indexed")
    where = ellipses[0] if ellipses else len(items)
    items[where : where + 1] = [slice(None)] * (rank - taken) or items[where : where + 1]
    return _without_masks(x, items)


def consumed(item: Entry) -> int:
    """How many axes an entry stands for."""
    if item is None or item is Ellipsis:
        return 0
    return int(item.ndim) if _is_positions(item) and item.dtype.kind == "b" else 1


def _plain(item: Any) -> Entry:
    if item is None or item is Ellipsis:
        return item
    if isinstance(item, slice):
        bounds = [
            None if bound is None else operator.index(bound) for bound in (item.start, item.stop, item.step)
        ]
        if bounds[2] == 0:
            raise ValueError("slice step cannot be zero")
        return slice(*bounds)
    if isinstance(item, Tensor):
        known = constant_value(item) if item.dtype.kind == "b" or item.spec.shape == () else None
        return as_tensor(item) if known is None else _plain(known if np.ndim(known) else known[()])
    if isinstance(item, bool | np.bool_):
        return np.asarray(item)
    if isinstance(item, int | np.integer):
        return int(item)
    return _array(item)


def _array(item: Any) -> Entry:
    if hasattr(item, "as_graph_element"):
        return as_tensor(item)
    if isinstance(item, list | tuple) and any(isinstance(element, Tensor) for element in item):
        return build("stack", item)
    if not isinstance(item, np.ndarray) and hasattr(item, "__index__"):
        return operator.index(item)
    array = np.asarray(item)
    if array.size == 0 and not isinstance(item, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise IndexingError(
            "only integers, slices (`:`), ellipsis (`...`), None and integer or boolean arrays are indices, "
            f"got {type(item).__name__} of dtype {array.dtype.name}"
        )
    return array


def _without_masks(x: Tensor, items: list[Entry]) -> list[Entry]:
    entries: list[Entry] = []
    axis = 0
    for item in items:
        if _is_positions(item) and item.dtype.kind == "b":
            entries += _mask_entries(x, item, axis)
        else:
            entries.append(item)
        axis += consumed(item)
    return entries


def _mask_entries(x: Tensor, mask: Any, axis: int) -> list[Entry]:
    if isinstance(mask, Tensor):
        raise traced_value_error(mask, "indexing with a boolean mask", MASK_HINT)
    if mask.ndim == 0:
        raise ShapeError("an index True or False is not supported: use x[None] or an empty slice")
    _check_fit(mask, x.spec.known_shape[axis : axis + mask.ndim], axis)
    return list(np.nonzero(mask))


def _check_fit(mask: Any, extents: Sequence[int | None], axis: int) -> None:
    for k, (extent, n) in enumerate(zip(extents, mask.shape, strict=True)):
        if extent != n and None not in (extent, n):
            raise IndexingError(
                f"boolean index did not match indexed array along axis {axis + k}; size of axis is {extent} "
                f"but size of corresponding boolean axis is {n}"
            )


@function("compress")
def compress(condition: Any, a: Any, axis: Any = None) -> Tensor:
    """Slices of ``a`` along ``axis`` (None: flattened) where the ``condition`` holds: of a traced one a selection."""
    is_traced = isinstance(condition, Tensor)
    x = as_tensor(a, graph=condition.graph if is_traced else None)
    x, axis = (build("ravel", x), 0) if axis is None else (x, axis)
    if is_traced:
        return build("selected_along", condition, x, axis)
    return build("take", x, np.flatnonzero(np.asarray(condition)), axis)


@function("extract")
def extract(condition: Any, arr: Any) -> Tensor:
    """Elements of ``arr`` where the ``condition`` holds: of a traced one a selection."""
    if not isinstance(condition, Tensor):
        return compress(np.ravel(condition), arr)
    return compress(condition if condition.ndim == 1 else build("ravel", condition), arr)


@function("argwhere")
def argwhere(a: Any) -> Any:
    """As numpy.argwhere where constants decide the values; otherwise refused, since they give the shape."""
    x = as_tensor(a)
    known = constant_value(x)
    if known is None:
        raise traced_value_error(x, "np.argwhere", "the shape of its result depends on the values; " + MASK_HINT)
    return np.argwhere(known)
