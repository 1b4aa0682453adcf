"""gradients() as people call it: gradients of look-ups are IndexedSlices; the walk itself makes dense tensors.

The gradient of a look-up is a scatter into zeros. What is asked for is the rows and their positions, and those are the
scatter's inputs: so a gradient that is a scatter along the first axis, or a sum of nothing else, is given as slices,
and the scatter runs only if someone makes them dense. One dense addend makes the whole sum dense.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence, Set
from typing import Any

from jitgrad.gradients import Options, gradients_and_operations
from jitgrad.graph import Operation, Tensor, apply_one
from jitgrad.opdef import Elementwise, find
from jitgrad.operators import call, takes_open
from jitgrad.ops.slices import IndexedSlices, is_large, warn_if_large
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
    AggregationMethod, by which several gradients of one tensor are summed; ValueError for anything else. TypeError
    for a flag that is no bool, and for a name that is no string.
    """
    options = Options.checked(name, colocate_gradients_with_ops, gate_gradients, aggregation_method, stop_gradients)
    found, made = gradients_and_operations(ys, xs, grad_ys, options)
    given = [None if g is None else as_slices(g) for g in found]
    warn_of_dense(made, {g for g in given if isinstance(g, Tensor)})
    return given


def as_slices(g: Tensor) -> Tensor | IndexedSlices:
    """Slices of a tensor that is a scatter of rows, or a sum of such; any other tensor as it is."""
    parts = _parts(g)
    if parts is None:
        return g
    with g.graph.continuing(g.op, compile_attrs(g.op), f"{g.op.name}_slices/"), g.graph.as_default():
        rows = [_flat(part) for part in parts]
        if len(rows) == 1 and all(map(operator.is_, rows[0], parts[0].inputs[1:])):
            return IndexedSlices.of_dense(*rows[0], g)
        values, indices = map(_joined, zip(*rows, strict=True))
        dense = apply_one(find("scatter_take"), parts[0].inputs[0], values, indices, axis=0)  # what is fed reaches it
        return IndexedSlices.of_dense(values, indices, dense)


def warn_of_dense(made: Sequence[Operation], dense: Set[Tensor]) -> None:
    """Warn of large gradients of look-ups that are no slices: ``dense`` ones, and what an operation asks values of.

    ``made`` are the operations of the gradients.
    """
    for op in made:
        if is_row_scatter(op) and is_large(op.outputs[0].spec) and (op.outputs[0] in dense or _is_read(op, dense)):
            warn_if_large(op.name, op.outputs[0].spec)


def _is_read(op: Operation, dense: Set[Tensor]) -> bool:
    """Whether the values of an operation are read by others than sums, or by a sum that is given as dense."""
    pending = [op]
    while pending:
        for reader in pending.pop().outputs[0].consumers():
            if not _is_sum(reader):
                return True
            if reader.outputs[0] in dense:
                return True
            pending.append(reader)
    return False


def _joined(column: tuple[Tensor, ...]) -> Tensor:
    return column[0] if len(column) == 1 else call("concatenate", list(column))


def _parts(g: Tensor) -> list[Operation] | None:
    """The scatters that a tensor is the sum of, in its order; None when it is anything else."""
    found: list[Operation] = []
    pending = [g.op]
    while pending:
        op = pending.pop()
        if is_row_scatter(op):
            found.append(op)
        elif _is_sum(op):
            pending += [x.op for x in reversed(op.inputs)]
        else:
            return None
    return found


def _is_sum(op: Operation) -> bool:
    return isinstance(op.opdef.kind, Elementwise) and op.type in ("add_n", "add", "identity")


def is_row_scatter(op: Operation) -> bool:
    """Whether an operation adds rows to zeros, at positions along the first axis."""
    if op.type == "scatter_take":
        return bool(op.params["axis"] == 0)
    return op.type == "scatter_index" and tuple(op.params["axes"]) == (0,)


def _flat(op: Operation) -> Rows:
    """Rows and positions of a scatter, with those of the scatters that made its rows put together."""
    outer: list[Tensor] = []
    while is_row_scatter(inner := op.inputs[1].op) and _rank(op.inputs[2]) == 1 and _rank(inner.inputs[2]) == 1:
        outer.append(op.inputs[2])
        op = inner
    values, positions = _rows_of(*op.inputs[1:])
    for index in reversed(outer):
        positions = call("take", index, positions, 0)
    return values, positions


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
