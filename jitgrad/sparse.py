"""gradients() as people call it: gradients of look-ups are IndexedSlices; the walk itself makes dense tensors.

The gradient of a look-up is a scatter into zeros. What is asked for is the rows and their positions, and those are the
scatter's inputs: so a gradient that is a scatter along the first axis, or a sum of nothing else, is given as slices,
and the scatter runs only if someone makes them dense. One dense addend makes the whole sum dense.
"""

from __future__ import annotations

import operator
from typing import Any

from jitgrad.gradients import gradients as dense_gradients
from jitgrad.graph import Operation, Tensor, apply_one
from jitgrad.opdef import Elementwise, find
from jitgrad.operators import call, takes_open
from jitgrad.ops.slices import IndexedSlices
from jitgrad.scopes import compile_attrs

Rows = tuple[Tensor, Tensor]


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
) -> list[Any]:
    """Derivatives of the sum of all ``ys`` with respect to each of ``xs``, as tensors of the same graph.

    ``ys``, ``xs``, ``grad_ys`` and ``stop_gradients`` are a tensor or a sequence of tensors. None stands where ``ys``
    do not depend on that x, IndexedSlices where only rows of x were looked up. ``grad_ys`` are the cotangents of ``ys``
    (None: ones). Tensors in ``stop_gradients`` are constants. Linear in the operations between xs and ys. GradientError
    for an op without a rule, DTypeError or ValueError for grad_ys that do not fit.

    ``colocate_gradients_with_ops``: gradient operations get the device and the colocation groups of their operation.
    ``gate_gradients``: all gradients of an operation are ready before any of them is used. ``aggregation_method``: an
    AggregationMethod, by which several gradients of one tensor are summed; ValueError for anything else.
    """
    found = dense_gradients(
        ys, xs, grad_ys, name, colocate_gradients_with_ops, gate_gradients, aggregation_method, stop_gradients
    )
    return [None if g is None else as_slices(g) for g in found]


def as_slices(g: Tensor) -> Tensor | IndexedSlices:
    """Slices of a tensor that is a scatter of rows, or a sum of such; any other tensor as it is."""
    parts = _parts(g)
    if parts is None:
        return g
    graph = g.graph
    scopes = graph.only_attrs(compile_attrs(g.op)), graph.name_scope(f"{g.op.name}_slices"), graph.making_gradients()
    with scopes[0], scopes[1], scopes[2], graph.as_default():
        rows = [_flat(part) for part in parts]
        if len(rows) == 1 and all(map(operator.is_, rows[0], parts[0].inputs[1:])):
            return IndexedSlices.of_dense(*rows[0], g)
        values, indices = map(_joined, zip(*rows, strict=True))
        dense = apply_one(find("scatter_take"), parts[0].inputs[0], values, indices, axis=0)  # what is fed reaches it
        return IndexedSlices.of_dense(values, indices, dense)


def _joined(column: tuple[Tensor, ...]) -> Tensor:
    return column[0] if len(column) == 1 else call("concatenate", list(column))


def _parts(g: Tensor) -> list[Operation] | None:
    """The scatters that a tensor is the sum of; None when it is anything else."""
    op = g.op
    if is_row_scatter(op):
        return [op]
    if not isinstance(op.opdef.kind, Elementwise) or op.type not in ("add_n", "add", "identity"):
        return None
    found: list[Operation] = []
    for x in op.inputs:
        parts = _parts(x)
        if parts is None:
            return None
        found += parts
    return found


def is_row_scatter(op: Operation) -> bool:
    """Whether an operation adds rows to zeros, at positions along the first axis."""
    if op.type == "scatter_take":
        return bool(op.params["axis"] == 0)
    return op.type == "scatter_index" and tuple(op.params["axes"]) == (0,)


def _flat(op: Operation) -> Rows:
    """Rows and positions of a scatter, with those of a scatter that made its rows put together."""
    _, updates, index = op.inputs
    inner = updates.op
    if is_row_scatter(inner) and _rank(index) == 1 and _rank(inner.inputs[2]) == 1:
        values, positions = _flat(inner)
        return values, call("take", index, positions, 0)
    return _rows_of(updates, index)


def _rows_of(updates: Tensor, index: Tensor) -> Rows:
    if _rank(index) == 1:
        return updates, index
    values, positions = _in_rows(updates, index)
    return values, positions


def _flattened(updates: Tensor, index: Tensor) -> Rows:
    """Rows and positions, each along one axis."""
    return call("reshape", updates, (-1, *updates.shape[index.ndim :])), call("reshape", index, (-1,))


_in_rows = takes_open("rows", _flattened)


def _rank(t: Tensor) -> int | None:
    return None if t.shape is None else len(t.shape)
