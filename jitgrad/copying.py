"""Rows: operations of a trace as they are compared with those of others, and copied for other shapes; and parts, what a
walk has added, or a whole trace. Who compares and copies them is following.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jitgrad.compiler.constants import is_splat, splat, splat_number
from jitgrad.compiler.likeness import (
    EXACT,
    Params,
    Shape,
    UnlikeError,
    exact_among,
    holds_large,
    is_named,
    is_uniform,
    large,
    params_of,
)
from jitgrad.gradient_rules import registered_rules
from jitgrad.graph import GRADIENT_RULE, Operation
from jitgrad.opdef import Control, OpDef
from jitgrad.records import NamedTuple
from jitgrad.sources import Source
from jitgrad.spec import DType, TensorSpec

Place = tuple[int, int]
"""A tensor of a graph: the number of its operation, and of the output."""

_LEAST, _MOST = 0.34, 2.15  # no rule makes such numbers of extents above 8: their roots and logarithms lie outside


class Row(NamedTuple):
    """An operation as it is compared and copied."""

    opdef: OpDef
    name: str
    source: Source | None
    inputs: tuple[Place, ...]
    params: Mapping[str, Any]
    compared: Params | None
    attrs: Mapping[str, Any]
    device: str
    colocation: tuple[str, ...]
    original: int
    outputs: tuple[tuple[Shape, DType, bool], ...]
    number: Any
    is_fixed: bool
    is_uniform: bool
    is_copied: bool
    is_gradient: bool
    origins: int


class Part(NamedTuple):
    """What a walk has added, or a whole trace: its operations, whether all can be copied, the shapes in them, and those
    whose shapes are inferred again, with what they read.
    """

    rows: tuple[Row, ...]
    is_copied: bool
    shapes: tuple[Shape, ...]
    checked: tuple[tuple[Row, tuple[tuple[Shape, DType], ...]], ...]


def exact_among_operations(operations: Iterable[Operation]) -> int:
    """Up to where extents are part of the pattern of operations, see compiler/likeness.py."""
    return exact_among((op.opdef, max([t.spec.rank or 0 for t in op.outputs], default=0)) for op in operations)


def row_of(op: Operation) -> Row:
    """UnlikeError for operations that are not followed."""
    opdef = op.opdef
    is_special = isinstance(opdef.kind, Control) or opdef.stateful or opdef.name in registered_rules
    if is_special or op.control_inputs or GRADIENT_RULE in op._attrs or any(map(callable, op.params.values())):
        raise UnlikeError
    if any(not t.spec.is_known for t in op.outputs):
        raise UnlikeError
    compared = params_of(op.params)
    exact = exact_among_operations((op,))
    return Row(
        opdef, op.name, op.source, tuple([(x.op.id, x.value_index) for x in op.inputs]), op.params, compared, op._attrs,
        op.device, op._colocation, -1 if op.original_op is None else op.original_op.id,
        tuple([(t.spec.known_shape, t.spec.dtype, t.is_weak) for t in op.outputs]),
        _number_of(compared), compared is None or compared.is_fixed, is_uniform(opdef),
        _is_copied(op.params, compared, exact) and not (op.is_gradient and _counts_starts(op)), op.is_gradient,
        op.origins,
    )  # fmt: skip


def copied_params(row: Row, shape: Callable[[Shape], Shape], number: Any) -> Mapping[str, Any]:
    """The params of a row for other extents, of a constant with this number."""
    params, compared = row.params, row.compared
    if row.is_fixed or compared is None:
        return params
    array = compared.array
    if array is not None:
        return {**params, "value": splat(number, shape(array.shape), array.dtype)}
    return {**params, **{name: shape(old) for name, old in compared.shapes}}


def check_shapes(part: Part, shape: Callable[[Shape], Any]) -> None:
    """UnlikeError where a copy for other shapes would not be what a walk makes."""
    for old in part.shapes:
        shape(old)
    for row, inputs in part.checked:
        params = copied_params(row, shape, row.number)
        specs = tuple([TensorSpec(shape(extents), dtype) for extents, dtype, _ in row.outputs])
        if row.opdef.infer(tuple([TensorSpec(shape(old), dtype) for old, dtype in inputs]), params) != specs:
            raise UnlikeError


def part_of(rows: Sequence[Row], first: int) -> Part:
    """The rows from the number ``first`` on."""
    made = rows[first:]
    shapes = {shape for row in made for shape, _, _ in row.outputs}
    shapes.update(shape for row in made if row.compared is not None for _, shape in row.compared.shapes)
    checked = tuple([
        (row, tuple([rows[k].outputs[index][:2] for k, index in row.inputs]))
        for row in made if row.inputs and not row.is_uniform
    ])  # fmt: skip
    return Part(tuple(made), all(row.is_copied for row in made), tuple(shapes), checked)


def _number_of(compared: Params | None) -> Any:
    """The number of a constant, if it is one and not an array."""
    if compared is None or compared.array is None or not is_splat(compared.array):
        return None
    return splat_number(compared.array)


def _is_copied(params: Mapping[str, Any], compared: Params | None, exact: int) -> bool:
    """Whether all params of an operation in a gradient are the same for all extents, but for shapes."""
    if compared is None:
        return True
    if compared.array is not None:
        number = _number_of(compared)
        return number is not None and (is_named(number.item()) or _LEAST <= abs(number.item()) <= _MOST)
    names = {name for name, _ in compared.shapes}
    return not any(holds_large(value, exact) for name, value in params.items() if name not in names)


def _counts_starts(op: Operation) -> bool:
    """Whether a slice in a gradient may start and stop at sums of extents, which by accident are other extents of the
    model, and as far apart. That of a slice has its ends, unless it takes steps: then what it has made room for ends
    with the last of them. Those of joined arrays are all made, each beginning where the one before ends, so that their
    shapes tell.
    """
    of = op.original_op
    is_known = of is not None and of.type in ("getslice", "unslice", "concatenate")
    has_steps = of is not None and any(abs(step) != 1 for step in of.params.get("step", ()))
    bounds = (*(() if is_known else op.params.get("start", ())), *(op.params.get("stop", ()) if has_steps else ()))
    return bool(large(bounds, EXACT))


