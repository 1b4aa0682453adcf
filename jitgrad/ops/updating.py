"""One part of an array written at a place that is only known when it runs: what loops do to tables, a row per step.

Elsewhere such an assignment is a choice between old and new for each element, which fuses with what is around it. In a
loop that would be work for all of an array at each step: there it is an op of its own, which the compiler carries out
in the memory of the loop's state. What is read of an array with parts written is one of these, where the place is the
same, else a part of the array before, so that a step needs no whole array in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Operation, Tensor, apply_one
from jitgrad.keys import frozen
from jitgrad.opdef import Params, Scatter, Specs, Update, define, find
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor, build
from jitgrad.ops.gathering import INDEX, as_index, checked_positions, index_op
from jitgrad.records import NamedTuple
from jitgrad.spec import TensorSpec
from jitgrad.views import tie_to

_LEAST_ELEMENTS = 64
"""Of an array that is changed in place; fewer are chosen element by element, in registers where a loop is one kernel.
"""

_MOST_CHOICES = 16
"""Parts that may be the one that is read, beyond which the array itself is made."""

_MOST_LOOKED_AT = 64
"""Operations that two positions are made of, beyond which they are taken to differ."""

_FIRST = INDEX.type(0)  # a place is compared with a number of its own dtype in half the time

Known = tuple[int | None, ...]
Parts = tuple[tuple[int, ...], Sequence[Any]]
"""Neighbouring axes, and an integer along each, a tensor or a number."""


class _Part(NamedTuple):
    """A part of an array: neighbouring axes, what is known of the positions along each, and its place."""

    axes: tuple[int, ...]
    known: Known
    place: Tensor

    def may_be(self, axes: tuple[int, ...], known: Known) -> bool:
        """Whether it may be the part of the same axes with these positions."""
        pairs = zip(self.known, known, strict=True)
        return axes == self.axes and all(m is None or n is None or m == n for m, n in pairs)


def _extents(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, int, int]:
    """How many elements lie around, along and inside of some axes."""
    first, last = axes[0], axes[-1] + 1
    return math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:])


def _infer(specs: Specs, params: Params) -> Specs:
    x, values, place = specs
    axes, shape = params["axes"], x.known_shape
    part = (*shape[: axes[0]], *shape[axes[-1] + 1 :])
    if values != TensorSpec(part, x.dtype) or place != TensorSpec((), INDEX):
        raise ShapeError(f"{values} at {place} does not replace a part of {x} along {axes}")
    return (x,)


def _updated(x: Any, values: Any, place: Any, out: Any = None, *, axes: tuple[int, ...], known: Known) -> Any:
    """``out``: None, or ``x`` itself where nobody reads it afterwards, which then is the result."""
    return _ready_update({"axes": axes}, (x,))(x, values, place, out)


def _ready_update(params: Params, specs: Sequence[Any]) -> Callable[..., Any]:
    """The implementation for arrays of one shape."""
    outer, along, inner = _extents(specs[0].shape, params["axes"])

    def element(x: Any, values: Any, place: Any, out: Any = None) -> Any:
        made = np.array(x, order="C") if out is None else out
        if place >= _FIRST:
            made.flat[place] = values
        return made

    def part(x: Any, values: Any, place: Any, out: Any = None) -> Any:
        made = np.array(x, order="C") if out is None or not out.flags.c_contiguous else out
        if place >= _FIRST:
            made.reshape(outer, along, inner)[:, int(place)] = np.reshape(values, (outer, inner))
        return made

    return element if outer == inner == 1 else part


def _update_vjp(
    g: Tensor, out: Tensor, x: Tensor, values: Tensor, place: Tensor, *, axes: tuple[int, ...], known: Known
) -> Any:
    part = _Part(axes, known, place)
    return _with_part(g, call("zeros_like", values), part), _read(g, part), None


update_op = define("update", infer=_infer, impl=_updated, vjp=_update_vjp, kind=Update(), bound=_ready_update)


# -- which indices ---------------------------------------------------------------------------------------------------


def kept_parts(x: Tensor, index: Any) -> Parts | None:
    """The axes and places of an index of integers along neighbouring axes, traced or not, and of whole axes, where it
    is one of the state of a loop that is changed by updates alone, and large enough for its memory to count.
    """
    if x._view is not None and x._view.pieces is not None:
        return None  # its value is not the present one
    items = index if isinstance(index, tuple) else (index,)
    if not is_kept(x) or len(items) > x.ndim or not all(map(_is_plain, items)):
        return None
    axes = tuple(k for k, item in enumerate(items) if not isinstance(item, slice))
    if not axes or axes[-1] - axes[0] != len(axes) - 1 or _extents(x.spec.known_shape, axes)[1] == 1:
        return None
    return axes, [items[k] for k in axes]


def _is_plain(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.spec.shape == () and item.dtype.kind in "iu"
    return (isinstance(item, slice) and item == slice(None)) or type(item) is int


def part_shape(x: Tensor, parts: Parts) -> tuple[int, ...]:
    """The shape of a part."""
    axes, shape = parts[0], x.spec.known_shape
    return (*shape[: axes[0]], *shape[axes[-1] + 1 :])


def is_kept(x: Tensor) -> bool:
    """Whether an array is the state of a loop, or its cotangent, changed by updates and loops alone, and is large
    enough for its memory to count.
    """
    graph = x.graph
    if not graph.is_repeated or not x.spec.is_known or math.prod(x.spec.known_shape) < _LEAST_ELEMENTS:
        return False
    while x.op.opdef is update_op or x.op.type in ("scan", "while_loop"):
        first = 0 if x.op.opdef is update_op else x.op.params["n_consts"] + x.value_index
        if x.op.type == "scan" and x.value_index >= x.op.params["n_carry"]:
            return False
        x = x.op.inputs[first]
    return x.op.type == "placeholder" and x.dtype.kind != "c" and not graph.is_captured(x)


# -- writing and reading ---------------------------------------------------------------------------------------------


def updated(x: Tensor, parts: Parts, value: Tensor) -> Tensor:
    """``x`` with ``value``, of the shape of a part, at these places."""
    return _with_part(x, value, _part_at(x, parts))


def read_part(x: Tensor, parts: Parts) -> Tensor:
    """The part at these places, a view of ``x`` unless it is a number. IndexingError for a position out of bounds, at
    run time where it is traced; but what was written by the same position in the same step is there, wherever that is.
    """
    axes, positions = parts
    for axis, position in zip(axes, positions, strict=True):
        if not isinstance(position, Tensor):
            checked_positions(np.asarray(position), x.spec.known_shape[axis], axis)
    index = [as_index(position, x) for position in positions]
    if x.op.opdef is not update_op:
        return apply_one(index_op, x, *index, axes=axes)
    part = _part_at(x, parts, nowhere=-2)  # which is no place that was written
    base, choices = _written(x, part)
    if base is x:
        return apply_one(index_op, x, *index, axes=axes)
    last = next((k for k, op in enumerate(choices) if _is_there(part, op)), None)
    if last is None:
        out = _chosen(part, choices, apply_one(index_op, base, *index, axes=axes))
    else:
        out = _chosen(part, choices[:last], choices[last].inputs[1])
    if out.spec.shape != ():
        tie_to(x, out, apply_one(index_op, x, *index, axes=axes))
    return out


def _with_part(x: Tensor, values: Tensor, part: _Part) -> Tensor:
    return apply_one(update_op, x, values, part.place, axes=part.axes, known=part.known)


def _part_at(x: Tensor, parts: Parts, nowhere: int = -1) -> _Part:
    """The part at these positions; its place is ``nowhere`` where one is out of bounds."""
    place, inside, known = None, None, list[int | None]()
    for axis, position in zip(*parts, strict=True):
        n = x.spec.known_shape[axis]
        is_known = not isinstance(position, Tensor)
        if is_known:
            checked_positions(np.asarray(position), n, axis)
        known.append(position % n if is_known else None)
        index = as_index(known[-1] if is_known else position, x)
        if not is_known:
            index = build("where", build("less", index, 0), index + n, index)
            is_inside = build("logical_and", build("greater_equal", index, 0), build("less", index, n))
            inside = is_inside if inside is None else build("logical_and", inside, is_inside)
        place = index if place is None else place * n + index
    if inside is not None:
        place = build("where", inside, place, as_tensor(nowhere, INDEX, x.graph))
    assert place is not None
    return _Part(parts[0], tuple(known), place)


def _written(x: Tensor, part: _Part) -> tuple[Tensor, list[Operation]]:
    """The array below what is written of one, and the updates that may have written a part, the latest first; the array
    itself where these are many, or are of other axes.
    """
    base, choices = x, list[Operation]()
    while base.op.opdef is update_op:
        params = base.op.params
        if params["axes"] != part.axes:
            return x, []
        if part.may_be(params["axes"], params["known"]):
            choices.append(base.op)
        if len(choices) > _MOST_CHOICES:
            return x, []
        base = base.op.inputs[0]
    return base, choices


def _chosen(part: _Part, choices: Sequence[Operation], found: Tensor) -> Tensor:
    """What was written at the place of a part, or what was found there before."""
    for op in reversed(choices):
        _, values, place = op.inputs
        found = values if place is part.place else call("where", call("equal", part.place, place), values, found)
    return found


def _is_there(part: _Part, op: Operation) -> bool:
    """Whether an update has written a part for sure: at the same numbers, or by positions that are made alike."""
    if None not in part.known:
        return bool(part.known == op.params["known"])
    one, other = part.place, op.inputs[2]
    return other.op.type == "where" and _are_alike(one.op.inputs[1], other.op.inputs[1])


def _are_alike(x: Tensor, y: Tensor) -> bool:
    """Whether two numbers are made of the same tensors by the same few operations."""
    pending, looked = [(x, y)], 0
    while pending:
        a, b = pending.pop()
        if a is b:
            continue
        looked += 1
        is_alike = a.op.opdef is b.op.opdef and not a.op.opdef.stateful and a.value_index == b.value_index
        is_made = bool(a.op.inputs) or a.op.type == "constant"
        if looked > _MOST_LOOKED_AT or not is_alike or not is_made or len(a.op.inputs) != len(b.op.inputs):
            return False
        if frozen(a.op.params, _contents) != frozen(b.op.params, _contents):
            return False
        pending += zip(a.op.inputs, b.op.inputs, strict=True)
    return True


def _contents(array: np.ndarray[Any, Any]) -> Any:
    """What stands for an array among params: a number for itself."""
    return (array.dtype, array.tobytes()) if array.ndim == 0 else id(array)


def _read(x: Tensor, part: _Part) -> Tensor:
    """The part at a place, zeros where there is none."""
    base, choices = _written(x, part)
    axes, shape = part.axes, x.spec.known_shape
    merged = (*shape[: axes[0]], _extents(shape, axes)[1], *shape[axes[-1] + 1 :])
    wide = base if merged == shape else build("reshape", base, merged)
    found = apply_one(find("take"), wide, build("maximum", part.place, 0), axis=axes[0])
    return _chosen(part, choices, call("where", call("less", part.place, 0), 0, found))


# -- sums of gradients -----------------------------------------------------------------------------------------------


def added_in_place(addends: Sequence[Tensor]) -> Sequence[Tensor]:
    """Cotangents of the state of a loop, of which those of single parts are added to the one of the whole."""
    first = next((k for k, g in enumerate(addends) if is_kept(g)), None)
    others = [g for k, g in enumerate(addends) if k != first]
    parts = [g for g in others if _is_of_part(g)]
    if first is None or not parts:
        return addends
    total = addends[first]
    for g in parts:
        part = _part_at(g, _scattered_to(g))
        total = _with_part(total, call("add", _read(total, part), g.op.inputs[1]), part)
    return [*[g for g in others if not _is_of_part(g)], total]


def _is_of_part(g: Tensor) -> bool:
    """Whether a cotangent is one of a part that was read, with zeros around it."""
    op = g.op
    if not isinstance(op.opdef.kind, Scatter) or op.opdef.kind.form not in ("take", "index"):
        return False
    return all(index.spec.shape == () for index in op.inputs[2:])


def _scattered_to(g: Tensor) -> Parts:
    """The axes and the positions of the part that a cotangent is of."""
    params = g.op.params
    axes = params["axes"] if "axes" in params else (params["axis"],)
    return axes, [_number(index) for index in g.op.inputs[2:]]


def _number(index: Tensor) -> Any:
    """A position, as a number where it is a constant."""
    return int(index.op.params["value"]) if index.op.type == "constant" else index
