"""How an operation is repeated over a new leading axis, a rule per kernel kind; which operations are, batching decides.

A rule gets the operation, its inputs (some of them with the new axis, as the mask says) and how many examples there
are. It gives the outputs with the new axis, or None where it does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.graph import Operation, Tensor, apply, apply_one
from jitgrad.opdef import (
    Contract,
    Control,
    Convolve,
    Elementwise,
    Gather,
    Interpreted,
    Library,
    Pairs,
    Reduce,
    Reindex,
    Scan,
    Scatter,
    Shaped,
    Sweep,
    Update,
    View,
    find,
)  # fmt: skip
from jitgrad.operators import call
from jitgrad.spec import Shape

Inputs = tuple[Tensor, ...]
Mask = tuple[bool, ...]


class Lead:
    """How many examples there are: a number, or (None) as many as ``like`` has elements, known when it runs.

    ``units`` are tensors known to be the rows of a unit matrix, whatever their shape: a product with one is no product.
    """

    __slots__ = ("extent", "like", "units")

    def __init__(self, extent: int | None, like: Tensor | None = None) -> None:
        self.extent = extent
        self.like = like
        self.units: set[Tensor] = set()

    def viewed(self, before: Tensor, after: Tensor) -> Tensor:
        """The second tensor, which has the elements of the first in the same order."""
        if before in self.units:
            self.units.add(after)
        return after

    @property
    def open_extent(self) -> int:
        """The number as a shape for ``reshape`` takes it: -1 when it is not known."""
        return -1 if self.extent is None else self.extent

    def column(self, rank: int, x: Tensor) -> Tensor:
        """Something of shape (n, 1, ..., 1) with ``rank`` ones, in the graph of ``x``; only its shape matters."""
        if self.extent is None:
            return call("reshape", self.like, (-1, *[1] * rank))  # type: ignore[no-any-return]
        column = np.broadcast_to(np.zeros((), x.dtype), (self.extent, *[1] * rank))
        return call("constant", column, graph=x.graph)  # type: ignore[no-any-return]

    def numbers(self, x: Tensor) -> Tensor:
        """The numbers of the examples, from 0, in the graph of ``x``."""
        if self.extent is None:
            return call("cumsum", call("ones_like", self.like, np.int64)) - 1  # type: ignore[no-any-return]
        return call("constant", np.arange(self.extent), graph=x.graph)  # type: ignore[no-any-return]


Rule = Callable[[Operation, Inputs, Mask, Lead], Any]


def repeat(x: Tensor, lead: Lead) -> Tensor:
    """``x`` as often as there are examples, along a new leading axis."""
    if lead.extent is not None and x.spec.is_known:
        return call("broadcast_to", x, (lead.extent, *x.spec.known_shape))  # type: ignore[no-any-return]
    return apply_one(find("broadcast_like"), x, lead.column(x.ndim, x))


def outer_pattern(x: Tensor) -> Tensor:
    """Something of shape ``x.shape + x.shape``."""
    if x.spec.is_known:
        return call("constant", np.broadcast_to(np.zeros((), x.dtype), 2 * x.spec.known_shape), graph=x.graph)  # type: ignore[no-any-return]
    return apply_one(find("broadcast_like"), call("expand_dims", x, tuple(range(x.ndim, 2 * x.ndim))), x)


def _all_repeated(inputs: Inputs, mask: Mask, lead: Lead) -> Inputs:
    return tuple(x if is_batched else repeat(x, lead) for x, is_batched in zip(inputs, mask, strict=True))


def _reshaped(x: Tensor, shape: Shape, like: Callable[[], Tensor]) -> Tensor:
    """``x`` in a shape with at most one extent that is not known, else in the shape of what ``like`` gives."""
    known = [n for n in shape if n is not None]
    if len(known) == len(shape) or (len(known) == len(shape) - 1 and 0 not in known):
        return call("reshape", x, tuple(-1 if n is None else n for n in shape))  # type: ignore[no-any-return]
    return apply_one(find("reshape_like"), x, like())


def _example_shape(lead: Lead, t: Tensor) -> Shape:
    return (lead.extent, *t.shape)


def _same_op(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    """An op that treats leading axes one by one, or every element."""
    return apply(op.opdef, *_all_repeated(inputs, mask, lead), **op.params)


def _view(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    out = op.outputs[0]
    if not mask[0]:
        return None
    return lead.viewed(inputs[0], _reshaped(inputs[0], _example_shape(lead, out), lambda: repeat(out, lead)))


def _shaped(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    """The shape of one example is that of the operation at hand, whose values do not matter."""
    kind, out, x = op.opdef.kind, op.outputs[0], inputs[0] if mask[0] else repeat(inputs[0], lead)
    assert isinstance(kind, Shaped)
    if kind.form == "reshape":
        return lead.viewed(x, _reshaped(x, _example_shape(lead, out), lambda: repeat(out, lead)))
    if kind.form == "broadcast":
        return apply_one(op.opdef, _with_units(x, out.ndim + 1), _pattern(out, lead))
    if kind.form == "sum":
        total = apply_one(op.opdef, x, _with_units(_pattern(out, lead), x.ndim))
        return call("squeeze", total, tuple(range(1, x.ndim - out.ndim)))
    axis = op.params["axis"]
    size = apply_one(op.opdef, x, **{**op.params, "axis": tuple(range(1, x.ndim)) if axis is None else _next(axis)})
    return repeat(size, lead)


def _pattern(x: Tensor, lead: Lead) -> Tensor:
    """Something of the shape that ``x`` has for all examples."""
    if lead.extent is None or not x.spec.is_known:
        return repeat(x, lead)
    zeros = np.broadcast_to(np.zeros((), x.dtype), (lead.extent, *x.spec.known_shape))
    return call("constant", zeros, graph=x.graph)  # type: ignore[no-any-return]


def _with_units(x: Tensor, rank: int) -> Tensor:
    """``x`` with as many axes of extent 1 behind its first as ``rank`` takes."""
    return call("expand_dims", x, tuple(range(1, 1 + rank - x.ndim)))  # type: ignore[no-any-return]


def _reduce(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    axis, x = op.params["axis"], op.inputs[0]
    if axis is None and op.type.startswith("arg"):
        if not x.spec.is_known:
            return None
        flat = call("reshape", inputs[0], (lead.open_extent, x.spec.size))
        found = apply(op.opdef, flat, **{**op.params, "axis": 1, "keepdims": False})
        return call("reshape", found, (lead.open_extent, *op.outputs[0].spec.known_shape))
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    moved = tuple(a % x.ndim + 1 for a in axes)
    return apply(op.opdef, *inputs, **{**op.params, "axis": moved[0] if isinstance(axis, int) else moved})


def _along_axis(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    """An op along one axis of inputs of one shape."""
    wide = _all_repeated(inputs, mask, lead)
    return apply(op.opdef, *wide, **{**op.params, "axis": op.params["axis"] % op.inputs[0].ndim + 1})


# -- products: what all examples share is not repeated, their rows or columns are put side by side -------------------


def _contract(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    turned_a, turned_b = op.params["transpose_a"], op.params["transpose_b"]
    a, b = inputs
    if all(mask):
        return apply(op.opdef, a, b, **op.params)
    if mask[0]:
        found = _rows_times(a, turned_a, b, turned_b, lead)
    else:
        found = _rows_times(b, not turned_b, a, not turned_a, lead)
    if found is None:
        return _same_op(op, inputs, mask, lead)
    return found if mask[0] else call("matrix_transpose", found)


def _rows_times(x: Tensor, is_turned: bool, shared: Tensor, is_shared_turned: bool, lead: Lead) -> Tensor | None:
    """The rows of all examples, times one (batch of) matrices: one product; None where too few extents are known."""
    *batch, r, k = (*x.shape[1:-2], *x.shape[:-3:-1]) if is_turned else x.shape[1:]
    c = shared.shape[-2 if is_shared_turned else -1]
    n = lead.extent
    rows = None if n is None or r is None else n * r
    if [*batch, rows, k].count(None) > 1 or [*batch, n, r, c].count(None) > 1:
        return None
    if x in lead.units and not batch and r == 1 and n == k:
        rows_of_shared = call("matrix_transpose", shared) if is_shared_turned else shared
        return call("reshape", rows_of_shared, _open(n, r, c))  # type: ignore[no-any-return]
    x = call("matrix_transpose", x) if is_turned and r != 1 else x
    x = call("moveaxis", x, 0, len(batch)) if batch else x
    flat = call("reshape", x, _open(*batch, rows, k))
    out = apply_one(find("matmul"), flat, shared, transpose_a=False, transpose_b=is_shared_turned)
    out = call("reshape", out, _open(*batch, n, r, c))
    return call("moveaxis", out, len(batch), 0) if batch else out  # type: ignore[no-any-return]


def _open(*shape: int | None) -> tuple[int, ...]:
    return tuple(-1 if n is None else n for n in shape)


def _convolve(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    """Examples of images are more images, those of weights more channels; None where both operands have some."""
    if all(mask):
        return None
    place = mask.index(True)
    into, out_of = {"windows": ((0, 0), (0, 1)), "filters": ((1, 1), (1, 0))}[op.opdef.kind.form][place]  # type: ignore[union-attr]
    own, made = op.inputs[place].shape, op.outputs[0].shape
    if [lead.extent, *own].count(None) + (lead.extent is None and None in made) > (lead.extent is not None):
        return None
    wide = call("moveaxis", inputs[place], 0, into)
    many = None if lead.extent is None or own[into] is None else lead.extent * own[into]
    operands = list(inputs)
    operands[place] = call("reshape", wide, _open(*own[:into], many, *own[into + 1 :]))
    out = apply_one(op.opdef, *operands, **op.params)
    return call("moveaxis", call("reshape", out, _open(*made[:out_of], lead.extent, *made[out_of:])), out_of, 0)


def _sweep(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    """Each example slides its vector: a product with all stretches. Searches in tables of their own have no rule."""
    if op.opdef.kind != Sweep("slide"):
        return None
    x, w = inputs
    (count,), (k,) = op.outputs[0].spec.known_shape, op.inputs[1].spec.known_shape
    stretches = call("take", x, np.arange(count)[:, None] + np.arange(k), -1)
    return call("squeeze", call("matmul", stretches, call("expand_dims", w, -1)), -1)


# -- positions -------------------------------------------------------------------------------------------------------


def _gather(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    x, *index = inputs
    if op.opdef.kind == Gather("take_along"):
        return _along_axis(op, inputs, mask, lead)
    if not any(mask[1:]):
        return apply(op.opdef, x, *index, **_next_axes(op))
    first, count, rank = _gathered_axes(op)
    if not mask[0]:
        same = apply(op.opdef, x, *_all_repeated(tuple(index), mask[1:], lead), **op.params)
        return call("moveaxis", same, first, 0)
    front = _moved(x, first, count, 0)
    found = apply_one(find("index"), front, *_own_positions(index, mask[1:], lead), axes=tuple(range(count + 1)))
    return _moved(found, 0, rank, first)


def _scatter(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    (like, updates), index = _all_repeated(inputs[:2], mask[:2], lead), inputs[2:]
    if op.opdef.kind == Scatter("take_along"):
        return _along_axis(op, (like, updates, *index), (True, True, *mask[2:]), lead)
    if not any(mask[2:]):
        return apply(op.opdef, like, updates, *index, **_next_axes(op))
    first, count, rank = _gathered_axes(op)
    positions = _own_positions(index, mask[2:], lead)
    front, rows = _moved(like, first, count, 0), _moved(updates, first, rank, 0)
    found = apply_one(find("scatter_index"), front, rows, *positions, axes=tuple(range(count + 1)))
    return _moved(found, 0, count, first)


def _update(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    """Parts at the same place of all examples; for places of their own, a choice for each part of each example."""
    x, values = _all_repeated(inputs[:2], mask[:2], lead)
    axes, place = _next(op.params["axes"]), inputs[2]
    if not mask[2]:
        return apply(op.opdef, x, values, place, axes=axes, known=op.params["known"])
    shape = op.inputs[0].spec.known_shape
    first, rest = axes[0], (1,) * (len(shape) - axes[-1])
    along = tuple(shape[axis - 1] for axis in axes)
    places = np.arange(math.prod(along)).reshape(1, *(1,) * (first - 1), *along, *rest)
    wanted = call("reshape", place, (lead.open_extent, *(1,) * len(shape)))
    return call("where", call("equal", wanted, places), call("expand_dims", values, axes), x)


def _gathered_axes(op: Operation) -> tuple[int, int, int]:
    """The first axis that positions are for, how many such axes there are, and the rank of the positions."""
    axes = op.params["axes"] if "axes" in op.params else (op.params["axis"],)
    return axes[0], len(axes), op.inputs[-1].ndim


def _moved(x: Tensor, first: int, count: int, to: int) -> Tensor:
    """``count`` axes of the examples moved to another place behind the leading axis."""
    if first == to:
        return x
    places = (range(1 + start, 1 + start + count) for start in (first, to))
    return call("moveaxis", x, *map(tuple, places))  # type: ignore[no-any-return]


def _own_positions(index: Any, mask: Mask, lead: Lead) -> list[Tensor]:
    """The positions with the number of the example in front of them."""
    wide = _all_repeated(tuple(index), mask, lead)
    numbers = call("reshape", lead.numbers(wide[0]), (lead.open_extent, *[1] * (wide[0].ndim - 1)))
    return [*call("broadcast_arrays", numbers, wide[0])[:1], *wide]


def _next_axes(op: Operation) -> dict[str, Any]:
    params = dict(op.params)
    if "axis" in params:
        params["axis"] += 1
    if "axes" in params:
        params["axes"] = _next(params["axes"])
    return params


# -- moves: the same op, its axes one further ------------------------------------------------------------------------


def _next(axes: Any) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)


def _windowed(lead: Lead, params: Any) -> dict[str, Any]:
    """Slices with all examples in front."""
    first = {"start": 0, "stop": lead.extent, "step": 1}
    return {**{key: (value, *params[key]) for key, value in first.items()}, "drop": _next(params["drop"])}


def _window(lead: Lead, params: Any) -> dict[str, Any]:
    """A window in zeros, of a given shape or of that of a second input."""
    shape = params["shape"]
    return {**_windowed(lead, params), "shape": None if shape is None else (lead.extent, *shape)}


# What the params become, where an op of the same name moves the batch.
_MOVES: dict[str, Callable[[Lead, Any], dict[str, Any]]] = {
    "transpose": lambda lead, p: {"axes": (0, *_next(p["axes"]))},
    "expand_dims": lambda lead, p: {"axes": _next(p["axes"])},
    "squeeze": lambda lead, p: {"axes": _next(p["axes"])},
    "flip": lambda lead, p: {"axes": _next(p["axes"])},
    "concatenate": lambda lead, p: {"axis": p["axis"] + 1},
    "stack": lambda lead, p: {"axis": p["axis"] + 1},
    "split": lambda lead, p: {"axis": p["axis"] + 1},
    "getslice": _windowed,
    "unslice": _window,
    "pad": lambda lead, p: {"pad_width": ((0, 0), *p["pad_width"])},
}


def _moved_op(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    if op.type == "broadcast_to" and lead.extent is not None:
        shape = op.params["shape"]
        return call("broadcast_to", _with_units(inputs[0], len(shape) + 1), (lead.extent, *shape))
    if op.type not in _MOVES or (lead.extent is None and op.params.get("shape") is not None):
        return None
    moved = apply(op.opdef, *_all_repeated(inputs, mask, lead), **{**op.params, **_MOVES[op.type](lead, op.params)})
    return lead.viewed(inputs[0], moved) if op.type in ("expand_dims", "squeeze") else moved


# -- the library -----------------------------------------------------------------------------------------------------


def _library(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    """Matrices on the last two axes; systems with one matrix are one system with the right sides side by side."""
    if op.opdef.kind not in (Library("solve"), Library("solve_triangular")) or mask[0]:
        return _same_op(op, inputs, mask, lead)
    a, b = inputs
    *batch, m, k = op.inputs[1].shape
    n = lead.extent
    columns = None if n is None or k is None else n * k
    if [*batch, m, columns].count(None) > 1 or [*batch, m, n, k].count(None) > 1:
        return _same_op(op, inputs, mask, lead)
    side_by_side = call("reshape", call("moveaxis", b, 0, -2), _open(*batch, m, columns))
    solved = apply_one(op.opdef, a, side_by_side, **op.params)
    return call("moveaxis", call("reshape", solved, _open(*batch, m, n, k)), -2, 0)


def _control(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> Any:
    from jitgrad.control.batched import batch_control

    return batch_control(op, inputs, mask, lead)


_rules: dict[type, Rule] = {
    Control: _control,
    Elementwise: _same_op,
    View: _view,
    Pairs: _same_op,
    Shaped: _shaped,
    Reindex: _moved_op,
    Reduce: _reduce,
    Scan: _along_axis,
    Contract: _contract,
    Convolve: _convolve,
    Sweep: _sweep,
    Gather: _gather,
    Scatter: _scatter,
    Update: _update,
    Library: _library,
}
# Interpreted ops that work along an axis.
_ALONG_AXIS = frozenset(("sort", "argsort"))


def rule_for(op: Operation) -> Rule | None:
    """The rule for an operation; None where there is none."""
    kind = op.opdef.kind
    if isinstance(kind, Interpreted):
        return _same_op if kind.is_elementwise else _along_axis if op.type in _ALONG_AXIS else None
    return _rules.get(type(kind))
