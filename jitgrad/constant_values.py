"""Values of traced tensors that follow from constants alone: what NumPy's code may ask of them while it is traced.

``np.linspace(0, 1, n)`` of ``jitgrad.numpy`` is a tensor, so that it can be assigned to, and ``if knots[i] < knots[j]``
asks for values that no argument decides. They are computed when somebody asks, by the meaning of each operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jitgrad.graph import Operation, Tensor


def constant_value(x: Tensor) -> Any:
    """The array or number that a traced tensor stands for, which nobody may write to; None where it depends on
    an argument, a Variable, a random number or an eager tensor, and in graphs that are no traces.

    The graph notes that it was asked: constants may have been made of extents.
    """
    graph = x.op.graph
    if not graph.is_trace or graph.closed_by is not None:
        return None
    if x._view is not None:
        x._view.renew(x)
    if not _is_constant(x.op):
        return None
    graph.tells_extents = True
    return _values_of(x.op)[x.value_index]


def standing_in(x: Tensor) -> Tensor:
    """A tensor that stands for each of many, as one of a batch: what it is made of decides nothing. Itself."""
    x.op.graph.stand_ins.add(x.op)
    return x


def _is_constant(op: Operation) -> bool:
    """Whether no operation that ``op`` is made of is anything but a constant; ``origins`` tells it of most at once."""
    graph = op.graph
    if op.origins and graph.outer is None:
        return False
    open_ones, seen = [op], {op}
    closed_over = {held.op for held, _ in graph.closed_over}
    while open_ones:
        here = open_ones.pop()
        around = _around(here)
        if around is not None:
            if not _is_constant(around.op):
                return False
            continue
        if here.opdef.stateful or here.type == "placeholder" or here in closed_over or here in graph.stand_ins:
            return False
        for x in here.inputs:
            if x.op not in seen and x.op not in graph.constant_values:
                seen.add(x.op)
                open_ones.append(x.op)
    return True


def _around(op: Operation) -> Tensor | None:
    """The tensor of a graph around for which a placeholder stands in the body of a loop or a branch."""
    if op.type != "placeholder" or op.graph.outer is None:
        return None
    found = op.graph.source_of(op.outputs[0])
    return None if found.op is op else found


def _values_of(op: Operation) -> tuple[Any, ...]:
    """The values of an operation's outputs, kept with the graph, those it is made of first."""
    values = op.graph.constant_values
    waiting = [op]
    while waiting:
        here = waiting[-1]
        needed = [x.op for x in here.inputs if x.op not in values] if here not in values else []
        if needed:
            waiting += needed
            continue
        waiting.pop()
        if here in values:
            continue
        around = _around(here)
        if around is not None:
            values[here] = (_values_of(around.op)[around.value_index],)
            continue
        with np.errstate(all="ignore"):
            made = here.opdef.impl(*[values[x.op][x.value_index] for x in here.inputs], **here.params)
        values[here] = (made,) if len(here.outputs) == 1 else tuple(made)
    return values[op]
