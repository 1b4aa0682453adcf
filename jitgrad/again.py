"""Operations made again on other tensors: those of a graph, or the instructions of a program; nothing is run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jitgrad.graph import Operation, apply
from jitgrad.program import Instruction


def make_again(steps: Iterable[Operation | Instruction], values: dict[Any, Any]) -> None:
    """Make operations of the same kinds and params, in the graph of the values.

    ``values`` maps the inputs of ``steps`` (tensors of the old graph, or numbers of a program's values) to tensors, and
    gets their outputs too, but for those that it has already.
    """
    for step in steps:
        opdef = step.opdef if isinstance(step, Operation) else step.op
        made = apply(opdef, *[values[x] for x in step.inputs], **step.params)
        for old, new in zip(step.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            values.setdefault(old, new)
