"""Batching: part of a graph repeated over a new leading axis, an operation for an operation.

Jacobians are made of it: one derivative with a stand-in for the seed, then all the seeds at once. The rules per kernel
kind are in batching_rules. An op for which none applies becomes ``batched_<name>``: the op on one example after another
in the interpreter, and with the same kind when it is one that moves elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.batching_rules import Inputs, Lead, Mask, repeat, rule_for
from jitgrad.constant_values import standing_in
from jitgrad.control.subgraph import is_pure_call
from jitgrad.gradients import operations_between
from jitgrad.graph import Operation, Tensor, apply
from jitgrad.opdef import AxisIndex, Control, Guard, IndexMap, Interpreted, OpDef, Params, Reindex, Specs, Vjp
from jitgrad.operators import call
from jitgrad.scopes import compile_attrs
from jitgrad.spec import TensorSpec


def batch(ys: Sequence[Tensor], stand_ins: Mapping[Tensor, Tensor], n: int | Lead) -> list[Tensor]:
    """``ys`` as they are for each of ``n`` values of the stand-ins.

    ``stand_ins`` maps a tensor to its values, shape (n, *shape). Extents that the graph does not know are taken from
    tensors when it runs; ranks must be known. The results have shape (n, *y.shape), also where y does not depend on
    a stand-in.
    """
    lead = n if isinstance(n, Lead) else Lead(n)
    made: dict[Tensor, Tensor] = dict(stand_ins)
    for op in sorted(operations_between(tuple(stand_ins), ys), key=lambda op: op.id):
        mask = tuple(x in made for x in op.inputs)
        if any(mask) and not all(t in made for t in op.outputs):
            inputs = tuple(made.get(x, x) for x in op.inputs)
            with op.graph.derived_from(op, compile_attrs(op)):
                outputs = _batch_operation(op, inputs, mask, lead)
            made.update(zip(op.outputs, outputs, strict=True))
    return [made[y] if y in made else repeat(y, lead) for y in ys]


def _batch_operation(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> tuple[Tensor, ...]:
    if is_pure_call(op):
        return _batch_body(op, inputs, mask, lead)
    rule = rule_for(op)
    made = None if rule is None else rule(op, inputs, mask, lead)
    if made is None:
        made = apply(batched(op.opdef), *inputs, **_joined(mask, op.params))
    return made if isinstance(made, tuple) else (made,)


def _batch_body(op: Operation, inputs: Inputs, mask: Mask, lead: Lead) -> tuple[Tensor, ...]:
    """A call of a graph function: the operations of its body are made in its place, and batched."""
    body = op.params["body"]
    made: dict[Tensor, Tensor] = dict(zip(body.inputs, op.inputs, strict=True))
    with op.graph.as_default():
        for inner in body.operations():
            outputs = apply(inner.opdef, *[made[x] for x in inner.inputs], **inner.params)
            made.update(zip(inner.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
    stand_ins = {x: wide for x, wide, is_batched in zip(op.inputs, inputs, mask, strict=True) if is_batched}
    return tuple(batch([made[y] for y in body.outputs], stand_ins, lead))


# -- any op: one example after another -----------------------------------------------------------------------


@functools.cache
def batched(opdef: OpDef) -> OpDef:
    """The op on a leading axis of those inputs for which ``params["batched"]`` holds; its other params are
    the op's own.
    """

    def infer(specs: Specs, params: Params) -> Specs:
        mask, own = _split(params)
        extent = next(spec.shape[0] for spec, is_batched in zip(specs, mask, strict=True) if is_batched and spec.shape)
        outputs = opdef.infer(_single(specs, mask), own)
        return tuple(
            TensorSpec(None if spec.shape is None else (extent, *spec.shape), spec.dtype) for spec in outputs
        )

    def impl(*arrays: Any, **params: Any) -> Any:
        mask, own = _split(params)
        extent = next(len(a) for a, is_batched in zip(arrays, mask, strict=True) if is_batched)
        results = [
            opdef.impl(
                *[a[i] if is_batched else a for a, is_batched in zip(arrays, mask, strict=True)], **own
            )
            for i in range(extent)
        ]
        if isinstance(results[0], tuple):
            return tuple(np.stack(parts) for parts in zip(*results, strict=True))
        return np.stack(results)

    def vjp(g: Any, out: Any, *inputs: Tensor, **params: Any) -> Any:
        return _batched_vjp(opdef, g, out, inputs, *_split(params))

    kind = opdef.kind
    return OpDef(
        f"batched_{opdef.name}",
        infer,
        impl,
        None if opdef.vjp is None else vjp,
        Reindex(_batched_maps(kind))
        if isinstance(kind, Reindex)
        else Interpreted(f"{opdef.name} of a batch"),
        opdef.differentiable,
        opdef.stateful,
        isinstance(kind, Control),  # whose states may change their shapes
    )


def batched_rule(opdef: OpDef, mask: Mask, own: dict[str, Any]) -> Vjp:
    """The gradient rule of an op on examples, by that of the op on one with the params ``own``; the params of the
    operation that it belongs to do not matter.
    """

    def vjp(g: Any, out: Any, *inputs: Tensor, wanted: Mask | None = None, **params: Any) -> Any:
        how = own if wanted is None else {**own, "wanted": wanted}
        return _batched_vjp(opdef, g, out, inputs, mask, how)

    return vjp


def _joined(mask: Mask, own: Params) -> Params:
    """The params of a batched op; the op may be a batched one itself."""
    return {"batched": mask, **{_renamed(key, "batched", "batched_inner"): value for key, value in own.items()}}


def _split(params: Params) -> tuple[Mask, dict[str, Any]]:
    own = {_renamed(key, "batched_inner", "batched"): value for key, value in params.items() if key != "batched"}
    return params["batched"], own


def _renamed(key: str, old: str, new: str) -> str:
    return new + key.removeprefix(old) if key.startswith(old) else key


def _single(specs: Specs, mask: Mask) -> Specs:
    return tuple(
        TensorSpec(None if spec.shape is None else spec.shape[1:], spec.dtype) if is_batched else spec
        for spec, is_batched in zip(specs, mask, strict=True)
    )


def _batched_maps(kind: Reindex) -> Callable[[Specs, Params], tuple[tuple[IndexMap | None, ...], ...]]:
    def maps(specs: Specs, params: Params) -> tuple[tuple[IndexMap | None, ...], ...]:
        mask, own = _split(params)
        return tuple(
            tuple(_next_map(one, is_batched) for one, is_batched in zip(output, mask, strict=True))
            for output in kind.maps(_single(specs, mask), own)
        )

    return maps


def _next_map(one: IndexMap | None, is_batched: bool) -> IndexMap | None:
    """The map with all output axes one further, and the leading axis itself where the input has it."""
    if one is None:
        return None
    dims = tuple(d if d.axis is None else replace(d, axis=d.axis + 1) for d in one.dims)
    guards = tuple(Guard(guard.axis + 1, guard.lo, guard.hi) for guard in one.guards)
    return IndexMap((AxisIndex(0), *dims) if is_batched else dims, guards)


def _batched_vjp(
    opdef: OpDef, g: Any, out: Any, inputs: Inputs, mask: Mask, own: dict[str, Any]
) -> tuple[Any, ...]:
    """The op's own rule on stand-ins for one example, batched; what all examples read gets the sum over
    them.
    """
    assert opdef.vjp is not None
    stand_ins: dict[Tensor, Tensor] = {}

    def first(x: Tensor) -> Tensor:
        one = standing_in(call("getitem", x, 0))
        stand_ins[one] = x
        return one

    outs = out if isinstance(out, tuple) else (out,)
    gs = g if isinstance(g, tuple) else (g,)
    one_out, one_g = tuple(map(first, outs)), tuple(None if t is None else first(t) for t in gs)
    ones = [first(x) if is_batched else x for x, is_batched in zip(inputs, mask, strict=True)]
    is_single = not isinstance(out, tuple)
    if isinstance(opdef.kind, Control):
        own = {"wanted": (True,) * len(inputs), **own}
    grads = opdef.vjp(one_g[0] if is_single else one_g, one_out[0] if is_single else one_out, *ones, **own)
    grads = grads if isinstance(grads, list | tuple) else (grads,)
    present = [t for t in grads if t is not None]
    found = iter(batch(present, stand_ins, outs[0].shape[0]))
    return tuple(
        None if t is None else next(found) if is_batched else call("sum", next(found), axis=0)
        for t, is_batched in zip(grads, mask, strict=True)
    )
