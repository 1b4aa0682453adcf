"""Gradient rules of the control ops: each is made of control ops again, and so has a gradient itself.

That of scan has a module of its own, which is all that most programs with loops load.

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
from dataclasses import replace
from typing import Any

from jitgrad.control.derivatives import (
    Gradients,
    Tensors,
    backward_state,
    complete,
    derivative_of,
    new_input,
    outputs_of,
    padded,
    residuals,
    smooth,
    smooth_of,
    spread,
    zeros,
    zeros_or,
)
from jitgrad.control.ops import add_control, call_op, cond_op, while_gradient_op, while_op
from jitgrad.control.subgraph import Subgraph
from jitgrad.control.sums import Outside, carried_in, plan_rows, sources_of
from jitgrad.graph import Tensor
from jitgrad.opdef import Vjp
from jitgrad.spec import is_inexact
from jitgrad.tangents import along

Wanted = tuple[bool, ...]


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
        shares = [zeros_or(d.gradients[k], body.inputs[k]) for k in totals]
        before, after = backward_state(d, n_all, n_carry, shares)
    if not before:
        return [None] * len(inputs)
    kept = residuals(after, before, body.inputs[:n_all])
    forward = Subgraph(body.graph, body.inputs, (*body.outputs, *kept), f"{body.name}_saving")
    back = Subgraph(body.graph, (*body.inputs[:n_all], *kept, *before), after, f"{body.name}_gradient")
    first = (*smooth_of(outputs_of(g), init), *zeros([consts[k] for k in totals]))
    found = add_control(
        while_gradient_op, *consts, *init, *first,
        cond=padded(cond, n_consts, [x.spec for x in late]), body=forward, back=back,
        n_consts=n_all, n_carry=n_carry, totals=totals, **how,
    )  # fmt: skip
    smooth = len(before) - len(totals)
    return [
        *spread(consts[:n_consts], wanted[:n_consts], found[smooth:]),
        *spread(init, (True,) * n_carry, found[:smooth]),
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
    cond = padded(cond, len(cond.inputs), [x.spec for x in smooth(init)])
    operands = (*consts, *us[n_smooth:], *init, *us[:n_smooth])
    if how["shapes"] is not None:
        pairs = zip(how["shapes"], init, strict=True)
        how["shapes"] = (*how["shapes"], *(shape for shape, x in pairs if is_inexact(x.dtype)))
    params = {"cond": cond, "body": moving, "n_consts": n_moving, **how}
    pushed = add_control(while_op, *operands, **params)
    into_sums = (*pushed[n_carry:], *us[n_smooth:])
    if not any(wanted[:ends]):
        return [*(None,) * ends, *into_sums]
    seeds = (*zeros(pushed[:n_carry]), *sums[:n_smooth])
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
            xs = (*(consts[k] for k in moved), *smooth(state))
            tangents = tuple(new_input("tangent", x.spec) for x in xs)
            outs = along(smooth(body.outputs), xs, tangents)
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
    gs = smooth_of(outputs_of(g), branches[0].outputs)
    found = add_control(cond_op, index, *operands, *late, *gs, branches=backs)
    return [None, *spread(operands, wanted[1:], found)]


def _call_rule(g: Any, out: Any, *operands: Tensor, body: Subgraph, wanted: Wanted) -> Gradients:
    backs, late = _branch_gradients((body,), operands, wanted)
    if not backs[0].outputs:
        return [None] * len(operands)
    gs = smooth_of(outputs_of(g), body.outputs)
    sums = plan_rows(backs[0].outputs)  # gradients of look-ups come out as rows
    parts = tuple(dict.fromkeys(x for one in sums for x in (*carried_in(one), *sources_of(one))))
    found = add_control(call_op, *operands, *late, *gs, body=replace(backs[0], outputs=parts, _cache={}))
    made = dict(zip(parts, found, strict=True))
    outside = Outside(made, made, is_stacked=False)
    likes = [x for x, w in zip(operands, wanted, strict=True) if w and is_inexact(x.dtype)]
    return spread(operands, wanted, [outside.sum(one, like) for one, like in zip(sums, likes, strict=True)])


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
    "while_loop": _while_rule,
    "while_gradient": _while_gradient_rule,
    "cond": _cond_rule,
    "call": _call_rule,
}
