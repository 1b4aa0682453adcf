"""Derivatives of subgraphs: what their rules add behind them, and which values of the forward part that reads.

The gradient of a body is built in the body's own graph. What it reads of the forward part are inputs of the body,
values that depend on nothing but constants of the loop (made again), and the rest: these are saved, step by step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.control.subgraph import Body, Subgraph, outside
from jitgrad.gradients import Options, gradients
from jitgrad.graph import Operation, Tensor
from jitgrad.masks import Masks
from jitgrad.opdef import Elementwise, Reindex, Shaped, View
from jitgrad.operators import call
from jitgrad.ops.creation import placeholder
from jitgrad.program import needed_operations
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec, is_inexact

Tensors = tuple[Tensor, ...]
Gradients = list[Tensor | None]

# Made again rather than saved: what moves elements, compares or copies; to load the result would cost as much.
_CHEAP = frozenset((
    "add", "subtract", "multiply", "negative", "positive", "identity", "astype", "square", "where", "equal",
    "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_not", "logical_and", "logical_or",
))  # fmt: skip


@dataclass(frozen=True, eq=False)
class Derivative:
    """A body with its gradient: per output the stand-in for its cotangent, per input its gradient; None where
    the dtype carries none, or where the outputs do not depend on the input.

    ``masks``: stand-ins for where cotangents are 0 because of a where(), of those outputs that have them; and
    ``input_masks``: what these tell of the gradients.
    """

    body: Subgraph
    cotangents: tuple[Tensor | None, ...]
    gradients: tuple[Tensor | None, ...]
    masks: tuple[Tensor | None, ...]
    input_masks: tuple[Tensor | None, ...]

    @property
    def graph(self) -> Body:
        """The graph of both."""
        return self.body.graph


def derivative_of(body: Subgraph, masked: Sequence[bool] = ()) -> Derivative:
    """The body with its gradient, built once; ``masked`` tells the outputs of whose cotangents a mask is given, ()
    none.
    """
    made: Derivative | None = body._cache.get("derivative")
    if made is None:
        with body.graph.reopened():
            made = body._cache["derivative"] = _derived(body, masked)
    return made


def _derived(body: Subgraph, masked: Sequence[bool]) -> Derivative:
    cotangents = tuple(_stand_in("cotangent", y) for y in body.outputs)
    masks = tuple(
        new_input("mask", TensorSpec(y.shape, np.dtype(bool))) if is_masked else None
        for y, is_masked in zip(body.outputs, masked or (False,) * len(body.outputs), strict=True)
    )
    table = Masks()
    for g, mask in zip(cotangents, masks, strict=True):
        if g is not None and mask is not None:
            table.enter(g, mask)
    pairs = [(y, g) for y, g in zip(body.outputs, cotangents, strict=True) if g is not None]
    smooth = [x for x in body.inputs if is_inexact(x.dtype)]
    found = iter(_partial([y for y, _ in pairs], smooth, [g for _, g in pairs], body.inputs, table))
    per_input = tuple(next(found) if is_inexact(x.dtype) else None for x in body.inputs)
    return Derivative(body, cotangents, per_input, masks, tuple(map(table.of, per_input)))


def _partial(
    ys: Sequence[Tensor], xs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor], masks: Masks
) -> Sequence[Tensor | None]:
    """Partial derivatives: an input may be made of another one in the graph, and is a value of its own here."""
    if not ys:
        return [None] * len(xs)
    return gradients(list(ys), list(xs), list(cotangents), Options(stopped=list(inputs)), masks)


def _stand_in(name: str, like: Tensor) -> Tensor | None:
    return placeholder(like.dtype, like.spec.shape, name=name) if is_inexact(like.dtype) else None


def new_input(name: str, spec: TensorSpec) -> Tensor:
    """A placeholder in the graph that is open."""
    return placeholder(spec.dtype, spec.shape, name=name)


def zeros_or(g: Tensor | None, like: Tensor) -> Tensor:
    """A gradient, or the zeros that None stands for."""
    made: Tensor = call("zeros_like", like) if g is None else g
    return made


def complete(
    body: Subgraph, n_consts: int, masked: Sequence[bool] = ()
) -> tuple[Subgraph, tuple[Tensor, ...]]:  # fmt: skip
    """The body with what its rules read from outside as further inputs behind its first ``n_consts``; and that.

    A rule given by a user may read other tensors than the function that it belongs to.
    """
    derivative_of(body, masked)
    known = set(body.inputs)
    late = {inner: key for key, inner in body.graph.captures.items() if inner not in known}
    if not late:
        return body, ()
    inputs = (*body.inputs[:n_consts], *late, *body.inputs[n_consts:])
    wider = Subgraph(body.graph, inputs, body.outputs, body.name, body.effects)
    return _deriving_as(body, wider, n_consts, len(late)), tuple(outside(list(late.values())))


def _deriving_as(old: Subgraph, new: Subgraph, at: int, count: int) -> Subgraph:
    """``new`` with the derivative of ``old``, whose rules alone may read the ``count`` further inputs before ``at``.

    Built again, a rule given by a user would read other tensors from outside than the first time.
    """
    d: Derivative | None = old._cache.get("derivative")
    if d is not None:
        none = (None,) * count
        gradients, masks = ((*of[:at], *none, *of[at:]) for of in (d.gradients, d.input_masks))
        new._cache["derivative"] = replace(d, body=new, gradients=gradients, input_masks=masks)
    return new


def padded(sub: Subgraph, at: int, specs: Sequence[TensorSpec]) -> Subgraph:
    """The subgraph with further inputs before input ``at``, which it does not read."""
    if not specs:
        return sub
    with sub.graph.reopened():
        unread = [placeholder(spec.dtype, spec.shape, name="unread") for spec in specs]
    wider = Subgraph(sub.graph, (*sub.inputs[:at], *unread, *sub.inputs[at:]), sub.outputs, sub.name, sub.effects)
    return _deriving_as(sub, wider, at, len(unread))


# -- what the rules of loops share -------------------------------------------------------------------------------------


def outputs_of(made: Any) -> Tensors:
    """The outputs of an op as a tuple."""
    return made if isinstance(made, tuple) else (made,)


def smooth(tensors: Sequence[Tensor]) -> Tensors:
    """Those of a dtype that carries gradients."""
    return tuple(t for t in tensors if is_inexact(t.dtype))


def zeros(xs: Sequence[Tensor]) -> Tensors:
    """Zeros like each."""
    return tuple(call("zeros_like", x) for x in xs)


def spread(inputs: Sequence[Tensor], wanted: Sequence[bool], found: Sequence[Tensor]) -> Gradients:
    """One entry per input: None for those that carry no gradient, or of which none is wanted."""
    pending = iter(found)
    return [next(pending) if w and is_inexact(x.dtype) else None for x, w in zip(inputs, wanted, strict=True)]


def backward_state(d: Derivative, n_consts: int, n_carry: int, shares: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
    """The state of a loop that goes back, in the open graph of the body: its placeholders, and what a step makes.

    First the cotangents of the smooth part of the state, then the sums of the steps' ``shares``.
    """
    ends = n_consts + n_carry
    state = d.body.inputs[n_consts:ends]
    pairs = [
        (g, zeros_or(dx, x))
        for g, dx, x in zip(d.cotangents[:n_carry], d.gradients[n_consts:ends], state, strict=True)
        if g is not None
    ]
    totals = [new_input("total", share.spec) for share in shares]
    pairs += [(total, call("add", total, share)) for total, share in zip(totals, shares, strict=True)]
    return tuple(before for before, _ in pairs), tuple(after for _, after in pairs)


def smooth_of(gs: Sequence[Tensor], like: Sequence[Tensor]) -> Tensors:
    """Those that stand where ``like`` carries gradients."""
    return tuple(g for g, x in zip(gs, like, strict=True) if is_inexact(x.dtype))


# -- what is saved -----------------------------------------------------------------------------------------------------


def residuals(
    wanted: Sequence[Tensor], given: Iterable[Tensor], fixed: Iterable[Tensor], at_hand: Collection[Tensor] = ()
) -> tuple[Tensor, ...]:
    """The tensors of a forward part that ``wanted`` read, in the order of the graph.

    ``given`` are what the gradient part has of its own: cotangents. ``fixed`` are the same in both parts: the constants
    of a loop, and what is made of nothing else. To save those ``at_hand`` costs nothing.
    """
    own = set(given)
    operations = needed_operations(wanted, (), own)
    behind, free = reach(operations, own, fixed)
    read = [x for op in operations if op in behind for x in _values_read(op)]
    read += [t for t in wanted if t.op not in behind]
    found = dict.fromkeys(x for x in read if x not in own and x.op not in behind and x not in free)
    return _cheapest(found, free, set(at_hand))


def reach(
    operations: Iterable[Operation], given: Collection[Tensor], fixed: Iterable[Tensor]
) -> tuple[set[Operation], set[Tensor]]:
    """The operations that depend on tensors that are given, and the tensors made of nothing but fixed ones."""
    behind: set[Operation] = set()
    free = set(fixed)
    for op in operations:
        if any(x in given or x.op in behind for x in op.inputs):
            behind.add(op)
        elif not op.opdef.stateful and op.type != "placeholder" and all(x in free for x in op.inputs):
            free.update(op.outputs)
    return behind, free


def _values_read(op: Operation) -> tuple[Tensor, ...]:
    """The inputs whose values matter, not only their shapes, where shapes are known."""
    if isinstance(op.opdef.kind, Shaped) and all(x.spec.is_known for x in op.inputs):
        return op.inputs[:1]
    return op.inputs


def _cheapest(read: dict[Tensor, None], free: set[Tensor], at_hand: set[Tensor]) -> tuple[Tensor, ...]:
    """Fewer tensors from which the others follow by cheap ops."""
    found = set(read)
    for x in sorted(read, key=lambda t: t.op.id, reverse=True):
        if x in at_hand or not x.op.inputs:
            continue
        others = [t for t in x.op.inputs if t not in free and t not in found]
        is_move = isinstance(x.op.opdef.kind, Reindex | View | Shaped) and len(x.op.inputs) <= 2
        made_of = _made_of(x, free, found | at_hand)
        if made_of is not None:
            found.remove(x)
            found.update(made_of)
        elif is_move and len(others) <= 1 and not _grows(x, others):
            found.remove(x)
            found.update(others)
    found = _with_common_origins(found, free, at_hand)
    return tuple(sorted(found, key=lambda t: (t.op.id, t.value_index)))


def _with_common_origins(found: set[Tensor], free: set[Tensor], at_hand: set[Tensor]) -> set[Tensor]:
    """The tensors with one in place of several that follow from it by a few cheap ops: t for (1 + t)/2 and 1 - t²."""
    made_from: dict[Tensor, set[Tensor]] = {}
    for x in found - at_hand:
        for origin in _origins(x, free):
            made_from.setdefault(origin, set()).add(x)
    for origin in sorted(made_from, key=lambda t: (len(made_from[t]), t.op.id, t.value_index), reverse=True):
        group = made_from[origin] & found
        if len(group) > 1 or (group and origin in found):
            found = (found - group) | {origin}
    return found


def _origins(x: Tensor, free: set[Tensor], ops: int = 3) -> list[Tensor]:
    """The tensors that ``x`` follows from, each alone, by a few cheap ops."""
    chain: list[Tensor] = []
    while len(chain) < ops and isinstance(x.op.opdef.kind, Elementwise) and x.op.type in _CHEAP:
        inputs = {t for t in x.op.inputs if t not in free}
        if len(inputs) != 1:
            break
        x = inputs.pop()
        chain.append(x)
    return chain


def _made_of(x: Tensor, free: set[Tensor], at_hand: set[Tensor], ops: int = 3) -> set[Tensor] | None:
    """The tensors at hand that ``x`` is made of by a few cheap ops; None when it takes others."""
    if not ops or not isinstance(x.op.opdef.kind, Elementwise) or x.op.type not in _CHEAP:
        return None
    used: set[Tensor] = set()
    for t in x.op.inputs:
        if t in at_hand:
            used.add(t)
        elif t not in free:
            inner = _made_of(t, free, at_hand, ops - 1)
            if inner is None:
                return None
            used |= inner
    return used


def _grows(x: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether saving the others takes more memory than saving ``x``."""
    specs = [x.spec, *(t.spec for t in others)]
    return all(spec.is_known for spec in specs) and sum(s.nbytes for s in specs[1:]) > specs[0].nbytes
