"""One part of an array written at a place that is only known when it runs: what loops do to tables, a row per step.

Elsewhere such an assignment is a choice between old and new for each element, which fuses with what is around it. In a
loop that would be work for all of an array at each step: there it is an op of its own, which the compiler carries out
in the memory of the loop's state. It reads its own writes: a part is that which was written last, if it is the same
one, else one of the array before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Params, Scatter, Specs, Update, define, find
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor, build
from jitgrad.ops.gathering import INDEX, as_index, checked_positions
from jitgrad.spec import TensorSpec

_LEAST_ELEMENTS = 64
"""Of an array that is changed in place; fewer are chosen element by element, in registers where a loop is one kernel.
"""

Parts = tuple[tuple[int, ...], Sequence[Any]]
"""Neighbouring axes, and an integer along each, a tensor or a number."""


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


def _updated(x: Any, values: Any, place: Any, axes: tuple[int, ...]) -> Any:
    out = np.array(x, order="C")
    if place >= 0:
        outer, along, inner = _extents(out.shape, axes)
        out.reshape(outer, along, inner)[:, int(place)] = np.reshape(values, (outer, inner))
    return out


def _update_vjp(g: Tensor, out: Tensor, x: Tensor, values: Tensor, place: Tensor, *, axes: tuple[int, ...]) -> Any:
    zeros = call("zeros_like", values)
    return apply_one(update_op, g, zeros, place, axes=axes), _part(g, place, axes), None


update_op = define("update", infer=_infer, impl=_updated, vjp=_update_vjp, kind=Update())


# -- which indices ---------------------------------------------------------------------------------------------------


def parts_of(x: Tensor, index: Any) -> Parts | None:
    """The axes and places of an index of integers along neighbouring axes, traced or not, and of whole axes."""
    items = index if isinstance(index, tuple) else (index,)
    if len(items) > x.ndim or not all(map(_is_plain, items)):
        return None
    axes = tuple(k for k, item in enumerate(items) if not isinstance(item, slice))
    if not axes or axes[-1] - axes[0] != len(axes) - 1:
        return None
    return axes, [items[k] for k in axes]


def kept_parts(x: Tensor, index: Any) -> Parts | None:
    """The same where an assignment to the index may be one in place: of a traced part of the state of a loop."""
    parts = parts_of(x, index) if is_kept(x) else None
    if parts is None or not any(isinstance(position, Tensor) for position in parts[1]):
        return None
    return parts if _extents(x.spec.known_shape, parts[0])[1] > 1 else None


def _is_plain(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.spec.shape == () and item.dtype.kind in "iu"
    return (isinstance(item, slice) and item == slice(None)) or type(item) is int


def part_shape(x: Tensor, parts: Parts) -> tuple[int, ...]:
    """The shape of a part."""
    axes, shape = parts[0], x.spec.known_shape
    return (*shape[: axes[0]], *shape[axes[-1] + 1 :])


def is_kept(x: Tensor) -> bool:
    """Whether an array is the state of a loop, changed by updates alone, and large enough for its memory to count."""
    if not x.graph.is_repeated or not x.spec.is_known or math.prod(x.spec.known_shape) < _LEAST_ELEMENTS:
        return False
    while x.op.opdef is update_op:
        x = x.op.inputs[0]
    return x.op.type == "placeholder" and x.dtype.kind != "c"


# -- writing and reading ---------------------------------------------------------------------------------------------


def updated(x: Tensor, parts: Parts, value: Tensor) -> Tensor:
    """``x`` with ``value``, of the shape of a part, at these places."""
    axes, positions = parts
    return apply_one(update_op, x, value, _place(x, axes, positions), axes=axes)


def read_updated(x: Tensor, index: Any) -> Tensor | None:
    """``x[index]`` of what updates have made: a part that was written, or one of the array before; None for others."""
    parts = parts_of(x, index) if x.op.opdef is update_op else None
    if parts is None or parts[0] != x.op.params["axes"]:
        return None
    before, values, written = x.op.inputs
    is_written = call("equal", _place(x, *parts), written)
    return call("where", is_written, values, call("getitem", before, index))  # type: ignore[no-any-return]


def _place(x: Tensor, axes: Sequence[int], positions: Sequence[Any]) -> Tensor:
    """The place of a part, -1 where a position is out of bounds."""
    place, inside = None, None
    for axis, position in zip(axes, positions, strict=True):
        n = x.spec.known_shape[axis]
        checked_positions(position if isinstance(position, Tensor) else np.asarray(position), n, axis)
        index = as_index(position, x)
        index = build("where", build("less", index, 0), index + n, index)
        is_inside = build("logical_and", build("greater_equal", index, 0), build("less", index, n))
        place = index if place is None else place * n + index
        inside = is_inside if inside is None else build("logical_and", inside, is_inside)
    return build("where", inside, place, as_tensor(-1, INDEX, x.graph))


def _part(x: Tensor, place: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The part at a place, zeros where there is none; of the array under what is known to be written."""
    if x.op.opdef is update_op and x.op.params["axes"] == axes:
        before, values, written = x.op.inputs
        return call("where", call("equal", place, written), values, _part(before, place, axes))  # type: ignore[no-any-return]
    shape = x.spec.known_shape
    merged = (*shape[: axes[0]], _extents(shape, axes)[1], *shape[axes[-1] + 1 :])
    wide = x if merged == shape else build("reshape", x, merged)
    found = apply_one(find("take"), wide, build("maximum", place, 0), axis=axes[0])
    return call("where", call("less", place, 0), 0, found)  # type: ignore[no-any-return]


# -- sums of gradients -----------------------------------------------------------------------------------------------


def added_in_place(addends: Sequence[Tensor]) -> Sequence[Tensor]:
    """Cotangents of the state of a loop, of which those of single parts are added to the one of the whole."""
    whole = next((g for g in addends if is_kept(g)), None)
    parts = [] if whole is None else [g for g in addends if g is not whole and _is_of_part(g)]
    if whole is None or not parts:
        return addends
    total: Tensor = whole
    for g in parts:
        axes, place = _scattered_to(g)
        total = apply_one(update_op, total, call("add", _part(total, place, axes), g.op.inputs[1]), place, axes=axes)
    placed = {whole, *parts}
    return [*[g for g in addends if g not in placed], total]


def _is_of_part(g: Tensor) -> bool:
    """Whether a cotangent is one of a part that was read, with zeros around it."""
    op = g.op
    if not isinstance(op.opdef.kind, Scatter) or op.opdef.kind.form not in ("take", "index"):
        return False
    return all(index.spec.shape == () for index in op.inputs[2:])


def _scattered_to(g: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """The axes and the place of the part that a cotangent is of."""
    params = g.op.params
    axes = params["axes"] if "axes" in params else (params["axis"],)
    return axes, _place(g, axes, g.op.inputs[2:])
