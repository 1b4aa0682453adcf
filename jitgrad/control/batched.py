"""Batching of control ops: their bodies repeated over a new leading axis, so that the loop itself stays one loop.

What depends on nothing that has the axis is computed once for all examples. A loop whose condition, or a branch whose
index, differs from example to example is not batched here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jitgrad.batching import batch, batched_rule
from jitgrad.batching_rules import Lead, repeat
from jitgrad.control.ops import add_control
from jitgrad.control.subgraph import Subgraph
from jitgrad.gradients import operations_between
from jitgrad.graph import Operation, Tensor
from jitgrad.opdef import Control
from jitgrad.operators import call
from jitgrad.ops.creation import placeholder

Tensors = tuple[Tensor, ...]
Mask = tuple[bool, ...]


def batch_control(op: Operation, inputs: Tensors, mask: Mask, lead: Lead) -> Tensors | None:
    """The outputs for all examples, along a new leading axis; None where that cannot be done.

    ``mask`` tells which inputs have the axis.
    """
    values = [item for value in op.params.values() for item in (value if isinstance(value, tuple) else (value,))]
    bodies = [value for value in values if isinstance(value, Subgraph)]
    is_open = any(not x.spec.is_known for sub in bodies for x in (*sub.inputs, *sub.outputs))
    if lead.extent is None or is_open or any(sub.is_dynamic or sub.is_stateful for sub in bodies):
        return None
    assert isinstance(op.opdef.kind, Control)
    made: Tensors | None = _BY_FORM[op.opdef.kind.form](op, inputs, mask, lead.extent)
    return made


# -- bodies ------------------------------------------------------------------------------------------------------------


def _depends(sub: Subgraph, mask: Sequence[bool]) -> Mask:
    """Which outputs of a body have the axis when these inputs have it."""
    sources = tuple(x for x, has_axis in zip(sub.inputs, mask, strict=True) if has_axis)
    between = operations_between(sources, sub.outputs)
    return tuple(y in set(sources) or y.op in between for y in sub.outputs)


def _settled(sub: Subgraph, before: Mask, state: Mask, after: Mask) -> Mask:
    """Which parts of a state, given with these, have the axis after any number of steps."""
    while True:
        made = _depends(sub, (*before, *state, *after))
        wider = tuple(a or b for a, b in zip(state, made, strict=False))
        if wider == state:
            return state
        state = wider


def _wide(sub: Subgraph, mask: Sequence[bool], wanted: Sequence[bool], n: int) -> Subgraph:
    """The body for all examples; outputs have the axis where it is wanted, and all that depend on such inputs."""
    with sub.graph.reopened():
        inputs = tuple(
            placeholder(x.dtype, (n, *x.spec.known_shape), name="batch") if has_axis else x
            for x, has_axis in zip(sub.inputs, mask, strict=True)
        )
        stand_ins = {x: w for x, w, has_axis in zip(sub.inputs, inputs, mask, strict=True) if has_axis}
        chosen = [y for y, is_wanted in zip(sub.outputs, wanted, strict=True) if is_wanted]
        made = iter(batch(chosen, stand_ins, n) if stand_ins else [repeat(y, Lead(n)) for y in chosen])
        outputs = tuple(next(made) if is_wanted else y for y, is_wanted in zip(sub.outputs, wanted, strict=True))
    return Subgraph(sub.graph, inputs, outputs, sub.name)


def _repeated(xs: Sequence[Tensor], mask: Sequence[bool], wanted: Sequence[bool], n: int) -> Tensors:
    """The tensors with the axis where it is wanted."""
    pairs = zip(xs, mask, wanted, strict=True)
    return tuple(repeat(x, Lead(n)) if is_wanted and not has_axis else x for x, has_axis, is_wanted in pairs)


def _swapped(x: Tensor) -> Tensor:
    """The first two axes exchanged: that of the steps and that of the examples."""
    made: Tensor = call("transpose", x, (1, 0, *range(2, x.ndim)))
    return made


# -- the ops -----------------------------------------------------------------------------------------------------------


def _scan(op: Operation, inputs: Tensors, mask: Mask, n: int) -> Tensors:
    body, n_consts, n_carry = op.params["body"], op.params["n_consts"], op.params["n_carry"]
    last = n_consts + n_carry
    state = _settled(body, mask[:n_consts], mask[n_consts:last], mask[last:])
    inner = (*mask[:n_consts], *state, *mask[last:])
    items = _depends(body, inner)[n_carry:]
    wide = _wide(body, inner, (*state, *items), n)
    init = _repeated(inputs[n_consts:last], mask[n_consts:last], state, n)
    xs = [_swapped(x) if has_axis else x for x, has_axis in zip(inputs[last:], mask[last:], strict=True)]
    made = add_control(op.opdef, *inputs[:n_consts], *init, *xs, **{**op.params, "body": wide})
    ys = tuple(_swapped(y) if has_axis else y for y, has_axis in zip(made[n_carry:], items, strict=True))
    return (*_everywhere(made[:n_carry], state, n), *_everywhere(ys, items, n))


def _everywhere(xs: Sequence[Tensor], mask: Sequence[bool], n: int) -> Tensors:
    return _repeated(xs, mask, (True,) * len(xs), n)


def _while(op: Operation, inputs: Tensors, mask: Mask, n: int) -> Tensors | None:
    body, cond, n_consts = op.params["body"], op.params["cond"], op.params["n_consts"]
    state = _settled(body, mask[:n_consts], mask[n_consts:], ())
    inner = (*mask[:n_consts], *state)
    if any(_depends(cond, inner)):
        return None
    params = {**op.params, "cond": _unasked(cond, inner, n), "body": _wide(body, inner, state, n)}
    init = _repeated(inputs[n_consts:], mask[n_consts:], state, n)
    return _everywhere(add_control(op.opdef, *inputs[:n_consts], *init, **params), state, n)


def _unasked(cond: Subgraph, mask: Sequence[bool], n: int) -> Subgraph:
    """A condition that does not depend on what has the axis."""
    return _wide(cond, mask, (False,), n)


def _while_gradient(op: Operation, inputs: Tensors, mask: Mask, n: int) -> Tensors | None:
    p, n_consts = op.params, op.params["n_consts"]
    last = n_consts + p["n_carry"]
    body, cond, back = p["body"], p["cond"], p["back"]
    moving = replace(body, outputs=body.outputs[: p["n_carry"]], _cache={})
    state = _settled(moving, mask[:n_consts], mask[n_consts:last], ())
    inner = (*mask[:n_consts], *state)
    if any(_depends(cond, inner)):
        return None
    saved = _depends(body, inner)[p["n_carry"] :]
    sums = _settled(back, (*mask[:n_consts], *saved), mask[last:], ())
    wide = {
        "cond": _unasked(cond, inner, n),
        "body": _wide(body, inner, (*state, *saved), n),
        "back": _wide(back, (*mask[:n_consts], *saved, *sums), sums, n),
    }
    init = _repeated(inputs[n_consts:last], mask[n_consts:last], state, n)
    first = _repeated(inputs[last:], mask[last:], sums, n)
    # Its own gradient is that of one example, batched: what it adds up is not of the shape of the constants any more.
    opdef = replace(op.opdef, vjp=batched_rule(op.opdef, (*mask[:n_consts], *state, *sums), dict(p)))
    return _everywhere(add_control(opdef, *inputs[:n_consts], *init, *first, **{**p, **wide}), sums, n)


def _cond(op: Operation, inputs: Tensors, mask: Mask, n: int) -> Tensors | None:
    if mask[0]:
        return None
    branches = op.params["branches"]
    wide = tuple(_wide(branch, mask[1:], (True,) * len(branch.outputs), n) for branch in branches)
    return add_control(op.opdef, *inputs, branches=wide)


def _call(op: Operation, inputs: Tensors, mask: Mask, n: int) -> Tensors:
    body = op.params["body"]
    return add_control(op.opdef, *inputs, body=_wide(body, mask, (True,) * len(body.outputs), n))


_BY_FORM: dict[str, Callable[[Operation, Tensors, Mask, int], Any]] = {
    "scan": _scan,
    "while": _while,
    "while_gradient": _while_gradient,
    "cond": _cond,
    "call": _call,
}
