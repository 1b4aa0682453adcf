"""Gradient rules of the control ops: each is made of control ops again, and so has a gradient itself.

scan: the forward scan is made once more with what the gradient reads of each step as further ys (the compiler joins the
two), and a scan in the other direction carries the cotangents of the state, and sums for the constants.

while_loop: nothing of a step can be an output, for their number is not known. So its gradient is one op,
while_gradient, which runs the loop, keeps on a stack of its own what the gradient reads, and runs back. That op is
linear in its cotangents g, with the transpose of the loop's Jacobian J as its matrix. Its own gradient for a
cotangent u follows from

    <u, Jᵀ g> = <J u, g>:    J u is a loop that carries a tangent beside its state,

so the gradient with respect to g is that tangent, and with respect to all else the gradient of this second loop, seeded
with g. The rules are closed under differentiation, and no order needs a stack as a value.

cond, call: the branch that was taken runs again with its gradient; what another branch would give is never computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitgrad.control.derivatives import Derivative, complete, derivative_of, new_input, padded, residuals, zeros_or
from jitgrad.control.ops import add_control, call_op, cond_op, scan_op, while_gradient_op, while_op
from jitgrad.control.subgraph import Subgraph
from jitgrad.graph import Tensor
from jitgrad.opdef import Vjp
from jitgrad.operators import call
from jitgrad.spec import is_inexact
from jitgrad.tangents import along

Tensors = tuple[Tensor, ...]
Gradients = list[Tensor | None]
Wanted = tuple[bool, ...]


def outputs_of(made: Any) -> Tensors:
    """The outputs of an op as a tuple."""
    return made if isinstance(made, tuple) else (made,)


def _smooth(tensors: Sequence[Tensor]) -> Tensors:
    return tuple(t for t in tensors if is_inexact(t.dtype))


def _zeros(xs: Sequence[Tensor]) -> Tensors:
    return tuple(call("zeros_like", x) for x in xs)


def _spread(inputs: Sequence[Tensor], wanted: Sequence[bool], found: Sequence[Tensor]) -> Gradients:
    """One entry per input: None for those that carry no gradient, or of which none is wanted."""
    pending = iter(found)
    return [next(pending) if w and is_inexact(x.dtype) else None for x, w in zip(inputs, wanted, strict=True)]


def _backward_state(
    d: Derivative, n_consts: int, n_carry: int, totals: Sequence[int]
) -> tuple[Tensors, Tensors]:
    """The state of a loop that goes back, in the open graph of the body: its placeholders, and what a step makes.

    First the cotangents of the smooth part of the state, then the sums for the constants ``totals``.
    """
    ends = n_consts + n_carry
    state = d.body.inputs[n_consts:ends]
    pairs = [
        (g, zeros_or(dx, x))
        for g, dx, x in zip(d.cotangents[:n_carry], d.gradients[n_consts:ends], state, strict=True)
        if g is not None
    ]
    for k in totals:
        total, dx = new_input("total", d.body.inputs[k].spec), d.gradients[k]
        pairs.append((total, total if dx is None else call("add", total, dx)))
    return tuple(before for before, _ in pairs), tuple(after for _, after in pairs)


# -- scan --------------------------------------------------------------------------------------------------------------


def _scan_rule(
    g: Any, out: Any, *inputs: Tensor, body: Subgraph, n_consts: int, n_carry: int, length: int | None, reverse: bool,
    wanted: Wanted,
) -> Gradients:  # fmt: skip
    ends = n_consts + n_carry
    body, late = complete(body, n_consts)
    consts, init, xs = (*inputs[:n_consts], *late), inputs[n_consts:ends], inputs[ends:]
    n_all = len(consts)
    d = derivative_of(body)
    state, items = body.inputs[n_all : n_all + n_carry], body.inputs[n_all + n_carry :]
    totals = [k for k in range(n_consts) if wanted[k] and is_inexact(consts[k].dtype)]
    chosen = [k for k, x in enumerate(xs) if wanted[ends + k] and is_inexact(x.dtype)]
    with body.graph.reopened():
        before, after = _backward_state(d, n_all, n_carry, totals)
        dxs = tuple(zeros_or(d.gradients[n_all + n_carry + k], items[k]) for k in chosen)
    into = tuple(c for c in d.cotangents[n_carry:] if c is not None)
    read = residuals((*after, *dxs), (*before, *into), body.inputs[:n_all])
    kept = tuple(t for t in read if t not in set(items))
    taken = [k for k, t in enumerate(items) if t in set(read)] or ([0] if length is None else [])
    forward = Subgraph(body.graph, body.inputs, (*body.outputs, *kept), f"{body.name}_saving")
    how: dict[str, Any] = {"n_consts": n_all, "length": length}
    stacks: Tensors = ()
    if kept:
        made = add_control(scan_op, *consts, *init, *xs, body=forward, n_carry=n_carry, reverse=reverse, **how)
        stacks = made[len(body.outputs) :]
    back = Subgraph(
        body.graph,
        (*body.inputs[:n_all], *before, *into, *kept, *(items[k] for k in taken)),
        (*after, *dxs),
        f"{body.name}_gradient",
    )
    gs = outputs_of(g)
    first = (*_smooth_of(gs[:n_carry], state), *_zeros([consts[k] for k in totals]))
    ys = tuple(y for y, c in zip(gs[n_carry:], d.cotangents[n_carry:], strict=True) if c is not None)
    operands = (*consts, *first, *ys, *stacks, *(xs[k] for k in taken))
    if not back.outputs:
        return [None] * len(inputs)
    found = add_control(scan_op, *operands, body=back, n_carry=len(before), reverse=not reverse, **how)
    smooth = len(before) - len(totals)
    always = (True,) * n_carry
    return [
        *_spread(consts[:n_consts], wanted[:n_consts], found[smooth : len(before)]),
        *_spread(init, always, found[:smooth]),
        *_spread(xs, wanted[ends:], found[len(before) :]),
    ]


def _smooth_of(gs: Sequence[Tensor], like: Sequence[Tensor]) -> Tensors:
    return tuple(g for g, x in zip(gs, like, strict=True) if is_inexact(x.dtype))


# -- while -------------------------------------------------------------------------------------------------------------


def _while_rule(
    g: Any, out: Any, *inputs: Tensor, cond: Subgraph, body: Subgraph, n_consts: int, wanted: Wanted, **how: Any
) -> Gradients:
    body, late = complete(body, n_consts)
    consts, init = (*inputs[:n_consts], *late), inputs[n_consts:]
    n_all, n_carry = len(consts), len(init)
    d = derivative_of(body)
    totals = tuple(k for k in range(n_consts) if wanted[k] and is_inexact(consts[k].dtype))
    with body.graph.reopened():
        before, after = _backward_state(d, n_all, n_carry, totals)
    if not before:
        return [None] * len(inputs)
    kept = residuals(after, before, body.inputs[:n_all])
    forward = Subgraph(body.graph, body.inputs, (*body.outputs, *kept), f"{body.name}_saving")
    back = Subgraph(body.graph, (*body.inputs[:n_all], *kept, *before), after, f"{body.name}_gradient")
    first = (*_smooth_of(outputs_of(g), init), *_zeros([consts[k] for k in totals]))
    found = add_control(
        while_gradient_op, *consts, *init, *first,
        cond=padded(cond, n_consts, [x.spec for x in late]), body=forward, back=back,
        n_consts=n_all, n_carry=n_carry, totals=totals, **how,
    )  # fmt: skip
    smooth = len(before) - len(totals)
    return [
        *_spread(consts[:n_consts], wanted[:n_consts], found[smooth:]),
        *_spread(init, (True,) * n_carry, found[:smooth]),
    ]


def _while_gradient_rule(
    g: Any, out: Any, *inputs: Tensor, cond: Subgraph, body: Subgraph, back: Subgraph, n_consts: int, n_carry: int,
    totals: tuple[int, ...], wanted: Wanted, **how: Any,
) -> Gradients:  # fmt: skip
    ends = n_consts + n_carry
    consts, init, sums = inputs[:n_consts], inputs[n_consts:ends], inputs[ends:]
    us = outputs_of(g)
    n_smooth = len(sums) - len(totals)
    plain = Subgraph(body.graph, body.inputs, body.outputs[:n_carry], body.name.removesuffix("_saving"))
    moving, n_moving = _with_tangents(plain, n_consts, totals)
    cond = padded(cond, n_consts, [consts[k].spec for k in totals])
    cond = padded(cond, len(cond.inputs), [x.spec for x in _smooth(init)])
    operands = (*consts, *us[n_smooth:], *init, *us[:n_smooth])
    if how["shapes"] is not None:
        pairs = zip(how["shapes"], init, strict=True)
        how["shapes"] = (*how["shapes"], *(shape for shape, x in pairs if is_inexact(x.dtype)))
    params = {"cond": cond, "body": moving, "n_consts": n_moving, **how}
    pushed = add_control(while_op, *operands, **params)
    into_sums = (*pushed[n_carry:], *us[n_smooth:])
    if not any(wanted[:ends]):
        return [*(None,) * ends, *into_sums]
    seeds = (*_zeros(pushed[:n_carry]), *sums[:n_smooth])
    used = (*wanted[:n_consts], *(False,) * len(totals), *(True,) * (n_carry + n_smooth))
    found = _while_rule(seeds, pushed, *operands, wanted=used, **params)
    return [*found[:n_consts], *found[n_moving : n_moving + n_carry], *into_sums]


def _with_tangents(body: Subgraph, n_consts: int, moved: Sequence[int]) -> tuple[Subgraph, int]:
    """The body of a while loop with the tangents of its smooth state and of the constants ``moved``, and how many
    constants it has: (*consts, *their tangents, *state, *its tangents).
    """
    key = (n_consts, tuple(moved), *map(id, (*body.inputs, *body.outputs)))
    if key not in body.graph.derived:
        with body.graph.reopened():
            consts, state = body.inputs[:n_consts], body.inputs[n_consts:]
            xs = (*(consts[k] for k in moved), *_smooth(state))
            tangents = tuple(new_input("tangent", x.spec) for x in xs)
            outs = along(_smooth(body.outputs), xs, tangents)
        inputs = (*consts, *tangents[: len(moved)], *state, *tangents[len(moved) :])
        body.graph.derived[key] = Subgraph(body.graph, inputs, (*body.outputs, *outs), f"{body.name}_tangent")
    return body.graph.derived[key], n_consts + len(moved)


# -- cond and call -----------------------------------------------------------------------------------------------------


def _cond_rule(
    g: Any, out: Any, index: Tensor, *operands: Tensor, branches: tuple[Subgraph, ...], wanted: Wanted
) -> Gradients:
    backs, late = _branch_gradients(branches, operands, wanted[1:])
    if not backs[0].outputs:
        return [None] * (1 + len(operands))
    gs = _smooth_of(outputs_of(g), branches[0].outputs)
    found = add_control(cond_op, index, *operands, *late, *gs, branches=backs)
    return [None, *_spread(operands, wanted[1:], found)]


def _call_rule(g: Any, out: Any, *operands: Tensor, body: Subgraph, wanted: Wanted) -> Gradients:
    backs, late = _branch_gradients((body,), operands, wanted)
    if not backs[0].outputs:
        return [None] * len(operands)
    gs = _smooth_of(outputs_of(g), body.outputs)
    found = add_control(call_op, *operands, *late, *gs, body=backs[0])
    return _spread(operands, wanted, found)


def _branch_gradients(
    branches: Sequence[Subgraph], operands: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[tuple[Subgraph, ...], Tensors]:
    """Per branch its gradient, as a function of the operands, what rules read from outside (given as well), and the
    cotangents.
    """
    late: list[Tensor] = []
    whole: list[Subgraph] = []
    for branch in branches:
        branch, more = complete(padded(branch, len(operands), [x.spec for x in late]), len(operands) + len(late))
        late += more
        whole.append(branch)
    backs = []
    for branch in whole:
        branch = padded(branch, len(branch.inputs), [x.spec for x in late[len(branch.inputs) - len(operands) :]])
        d = derivative_of(branch)
        with branch.graph.reopened():
            grads = tuple(
                zeros_or(dx, x)
                for dx, x, w in zip(d.gradients, branch.inputs[: len(operands)], wanted, strict=False)
                if w and is_inexact(x.dtype)
            )
        into = tuple(c for c in d.cotangents if c is not None)
        backs.append(Subgraph(branch.graph, (*branch.inputs, *into), grads, f"{branch.name}_gradient"))
    return tuple(backs), tuple(late)


BY_OP: Mapping[str, Vjp] = {
    "scan": _scan_rule,
    "while_loop": _while_rule,
    "while_gradient": _while_gradient_rule,
    "cond": _cond_rule,
    "call": _call_rule,
}
