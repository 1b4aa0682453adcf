"""Objects and values: a tensor that the user holds comes to stand for another value of its graph; which one is decided
elsewhere.
"""

from __future__ import annotations

from jitgrad.errors import UnsupportedOpError, layout
from jitgrad.graph import Tensor
from jitgrad.sources import operation_text, source_text, user_source


def rebind(x: Tensor, new: Tensor) -> None:
    """Let the object ``x`` stand for the value ``new``; all operations made so far keep the old one.

    ``new`` must be the output of an operation made for this purpose, that nobody holds. A fresh tensor takes
    the place of ``x`` in the graph, and ``x`` takes that of ``new``. Code that keeps a list of tensors over a
    call of user code (inputs of a trace) must keep their operations instead.
    """
    if new.op.graph is not x.op.graph:
        raise outside_error(x)
    x.op.graph.is_written = True
    leave(x)
    enter(x, new)


def outside_error(x: Tensor) -> UnsupportedOpError:
    """The error for a write, in the body of a loop or a branch, to an array from around it."""
    return UnsupportedOpError(
        layout(
            "the body of a loop or a branch assigns to an array that it reads from outside",
            op=operation_text(x.op),
            needed=f"at {source_text(user_source())}",
            hint="make the array part of the loop's state, assign to it there and return it; or assign to a copy of it",
        )
    )


def leave(x: Tensor) -> None:
    """Put another tensor in the place of ``x`` in the graph, if it has one."""
    x.op.graph.settle()
    if x.op.outputs[x.value_index] is not x:
        return
    old = Tensor(x.op, x.value_index, x.spec)
    old.is_weak = x.is_weak
    old._consumers = x._consumers
    _take_place(old, x)


def enter(x: Tensor, new: Tensor) -> None:
    """Put ``x``, which has no place in the graph, in that of ``new``."""
    new.op.graph.settle()
    x.op, x.value_index, x.spec = new.op, new.value_index, new.spec
    x.is_weak, x._consumers = new.is_weak, new._consumers
    _take_place(x, new)


def _take_place(t: Tensor, of: Tensor) -> None:
    for op in dict.fromkeys(t._consumers):
        op.inputs = tuple(t if x is of else x for x in op.inputs)
    outputs = list(t.op.outputs)
    outputs[t.value_index] = t
    t.op.outputs = tuple(outputs)
