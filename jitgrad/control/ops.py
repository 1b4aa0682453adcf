"""The control ops: cond, while_loop, while_gradient, scan and call; what their rules build is in rules.py.

Inputs come in groups: ``consts`` are what a body reads from outside and is the same for all steps, ``init`` the state
before the first step, ``xs`` what is taken apart along the first axis, an item per step. A subgraph is a param; in a
Program it is a Program.

    cond             (index, *operands)          branches[index](*operands) → outputs
    call             (*operands)                 body(*operands) → outputs
    scan             (*consts, *init, *xs)       body(*consts, *state, *items) → (*state, *items of ys)
    while_loop       (*consts, *init)            while cond(*consts, *state): state = body(*consts, *state)
    while_gradient   (*consts, *init, *sums)     as while_loop with body(...) → (*state, *saved), and then for each
                                                 step, the last first: sums = back(*consts, *saved, *sums)

The sums are the cotangents of the smooth part of the state, and one for each of the constants that ``totals`` lists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.control.subgraph import Sub, Subgraph, output_specs, program_of
from jitgrad.errors import JitgradError, ShapeError, layout
from jitgrad.graph import Tensor, apply
from jitgrad.interpreter import LISTED_FROM, interpret, repeated, scan_steps
from jitgrad.opdef import Control, OpDef, Params, Specs, Vjp, define
from jitgrad.program import Program
from jitgrad.spec import TensorSpec, is_compatible, is_inexact


class LoopLimitError(JitgradError, RuntimeError):
    """A loop wanted to go on after its ``maximum_iterations``."""


def _run(sub: Sub, arrays: Sequence[Any]) -> list[Any]:
    return interpret(sub, arrays) if isinstance(sub, Program) else sub.run(arrays)


def run_body(sub: Sub, arrays: Sequence[Any]) -> Any:
    """The results of a body as an op gives them: bare where there is one."""
    return _results(_run(sub, arrays))


# -- scan --------------------------------------------------------------------------------------------------------------


def item_spec(spec: TensorSpec) -> TensorSpec:
    """The spec of what one step of a scan gets of an input."""
    return TensorSpec(None if spec.shape is None else spec.shape[1:], spec.dtype)


def scan_specs(specs: Specs, params: Params) -> Specs:
    """What the body is given."""
    split = params["n_consts"] + params["n_carry"]
    return (*specs[:split], *map(item_spec, specs[split:]))


def scan_length(specs: Specs, params: Params) -> int | None:
    """The number of steps: that of the params, else the extent of the first input that is taken apart."""
    if params["length"] is not None:
        return int(params["length"])
    shape = specs[params["n_consts"] + params["n_carry"]].shape
    return None if shape is None else shape[0]


def _infer_scan(specs: Specs, params: Params) -> Specs:
    n_consts, n_carry, length = params["n_consts"], params["n_carry"], scan_length(specs, params)
    for spec in specs[n_consts + n_carry :]:
        if spec.shape is not None and (not spec.shape or spec.shape[0] not in (None, length)):
            raise ShapeError(f"a scan of {length} steps takes apart {spec} along its first axis")
    outs = output_specs(params["body"], scan_specs(specs, params))
    items = (
        TensorSpec(None if spec.shape is None else (length, *spec.shape), spec.dtype) for spec in outs[n_carry:]
    )
    return (*_kept(specs[n_consts : n_consts + n_carry], outs[:n_carry], "scan"), *items)


def _kept(before: Specs, after: Specs, what: str) -> Specs:
    """The specs of a state, which a step must not change."""
    for x, y in zip(before, after, strict=True):
        if x.dtype != y.dtype or not is_compatible(x.shape, y.shape):
            raise ShapeError(f"the body of a {what} changes a part of its state from {x} to {y}")
    return tuple(x if x.is_known else y if y.is_known else x for x, y in zip(before, after, strict=True))


def _specialise_scan(specs: Specs, params: Params) -> Params:
    body = program_of(params["body"], scan_specs(specs, params))
    return {**params, "body": body, "length": scan_length(specs, params)}


def _scan(*arrays: Any, body: Sub, n_consts: int, n_carry: int, length: int | None, reverse: bool) -> Any:
    consts, state = arrays[:n_consts], list(arrays[n_consts : n_consts + n_carry])
    xs = arrays[n_consts + n_carry :]
    length = len(xs[0]) if length is None else length
    steps = range(length)[::-1] if reverse else range(length)
    looped = scan_steps(body, n_consts, n_carry, length) if isinstance(body, Program) else None
    if looped is not None:
        ys = _empty(body, n_carry, length)
        items = zip(steps, *[x[::-1] if reverse else x for x in xs], strict=True)
        return _results([*looped((*consts, *state, items, *ys)), *ys])
    ys = []
    for t in steps:
        outputs = _run(body, (*consts, *state, *[x[t] for x in xs]))
        state = outputs[:n_carry]
        if not ys:
            ys = [np.empty((length, *np.shape(y)), np.asarray(y).dtype) for y in outputs[n_carry:]]
        for stack, y in zip(ys, outputs[n_carry:], strict=True):
            stack[t] = y
    return _results([*state, *(ys if length else _empty(body, n_carry, 0))])


def _empty(body: Sub, n_carry: int, length: int) -> list[Any]:
    """Room for the stacked items of so many steps."""
    if isinstance(body, Program):
        specs = [body.specs[v] for v in body.outputs[n_carry:]]
    else:
        specs = [t.spec for t in body.outputs[n_carry:]]
    return [np.empty((length, *[n or 0 for n in spec.shape or ()]), spec.dtype) for spec in specs]


def _results(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


# -- while -------------------------------------------------------------------------------------------------------------


def _infer_while(specs: Specs, params: Params) -> Specs:
    n_consts = params["n_consts"]
    invariants = params["shapes"]
    if invariants is not None:
        return tuple(
            TensorSpec(shape, spec.dtype) for shape, spec in zip(invariants, specs[n_consts:], strict=True)
        )
    return _kept(specs[n_consts:], output_specs(params["body"], specs), "while loop")


def _specialise_while(specs: Specs, params: Params) -> Params:
    cond, body = program_of(params["cond"], specs), program_of(params["body"], specs)
    return {**params, "cond": cond, "body": body}


def _steps(
    cond: Sub, body: Sub, consts: Sequence[Any], state: Sequence[Any], most: int | None, kept: list[Any] | None = None
) -> list[Any]:
    """The state after the last step; LoopLimitError when it is not reached within ``most`` steps. What a step gives
    beside the state goes to ``kept``.
    """
    count, values = 0, list(state)
    is_next, step = _repeated(cond), _repeated(body)
    with np.errstate(all="ignore"):
        while is_next((*consts, *values))[0]:
            if most is not None and count >= most:
                raise LoopLimitError(loop_limit_text(most))
            values = step((*consts, *values))
            if kept is not None:
                kept.append(values[len(state) :])
                values = values[: len(state)]
            count += 1
            if count == LISTED_FROM:
                is_next, step = _repeated(cond), _repeated(body)
    return values


def _repeated(sub: Sub) -> Callable[[Sequence[Any]], list[Any]]:
    return repeated(sub) if isinstance(sub, Program) else sub.run


def loop_limit_text(most: int) -> str:
    """What is said of a loop that does not end in time."""
    return layout(
        f"a while loop goes on after its maximum_iterations={most}",
        hint="raise the limit, or look why the condition stays true",
    )


def _while(
    *arrays: Any, cond: Sub, body: Sub, n_consts: int, maximum_iterations: int | None, shapes: Any
) -> Any:
    return _results(_steps(cond, body, arrays[:n_consts], arrays[n_consts:], maximum_iterations))


def _gradient_groups(params: Params) -> tuple[int, int]:
    return params["n_consts"], params["n_consts"] + params["n_carry"]


def _infer_while_gradient(specs: Specs, params: Params) -> Specs:
    first, last = _gradient_groups(params)
    outs = output_specs(params["body"], specs[:last])
    if params["shapes"] is not None:
        smooth = [spec for spec in specs[first:last] if is_inexact(spec.dtype)]
        return (*smooth, *specs[last + len(smooth) :])  # like the state before the first step
    saved = outs[params["n_carry"] :]
    _kept(specs[first:last], outs[: params["n_carry"]], "while loop")
    return _kept(
        specs[last:], output_specs(params["back"], (*specs[:first], *saved, *specs[last:])), "while loop's gradient"
    )


def _specialise_while_gradient(specs: Specs, params: Params) -> Params:
    first, last = _gradient_groups(params)
    body = program_of(params["body"], specs[:last])
    saved = tuple(body.specs[v] for v in body.outputs[params["n_carry"] :])
    back = program_of(params["back"], (*specs[:first], *saved, *specs[last:]))
    return {**params, "cond": program_of(params["cond"], specs[:last]), "body": body, "back": back}


def _while_gradient(
    *arrays: Any,
    cond: Sub,
    body: Sub,
    back: Sub,
    n_consts: int,
    n_carry: int,
    totals: tuple[int, ...],
    maximum_iterations: int | None,
    shapes: Any,
) -> Any:
    consts, sums = arrays[:n_consts], list(arrays[n_consts + n_carry :])
    kept: list[list[Any]] = []
    _steps(cond, body, consts, arrays[n_consts : n_consts + n_carry], maximum_iterations, kept)
    step = _repeated(back)
    with np.errstate(all="ignore"):
        while kept:
            sums = step((*consts, *kept.pop(), *sums))
    return _results(sums)


# -- cond and call -----------------------------------------------------------------------------------------------------


def _infer_cond(specs: Specs, params: Params) -> Specs:
    index, operands = specs[0], specs[1:]
    if index.shape not in ((), None) or index.dtype.kind not in "biu":
        raise ShapeError(f"the branch is chosen by one bool or integer, got {index}")
    first, *rest = (output_specs(branch, operands) for branch in params["branches"])
    return tuple(map(_common, first, *rest))


def _common(*specs: TensorSpec) -> TensorSpec:
    """The spec of what each branch makes."""
    first = specs[0]
    for other in specs[1:]:
        if other.dtype != first.dtype or not is_compatible(other.shape, first.shape):
            raise ShapeError(f"one branch gives {first}, another {other}")
    return next((spec for spec in specs if spec.is_known), first)


def _specialise_cond(specs: Specs, params: Params) -> Params:
    return {**params, "branches": tuple(program_of(branch, specs[1:]) for branch in params["branches"])}


def _cond(index: Any, *operands: Any, branches: tuple[Sub, ...]) -> Any:
    return _results(_run(branches[branch_number(index, len(branches))], operands))


def branch_number(index: Any, count: int) -> int:
    """The branch that an index chooses: the nearest one, where there is none of that number; True is branch 1."""
    return min(max(int(np.asarray(index)[()]), 0), count - 1)


def _infer_call(specs: Specs, params: Params) -> Specs:
    return output_specs(params["body"], specs)


def _specialise_call(specs: Specs, params: Params) -> Params:
    return {**params, "body": program_of(params["body"], specs)}


def _call(*operands: Any, body: Sub) -> Any:
    return run_body(body, operands)


# -- the ops -----------------------------------------------------------------------------------------------------------


def _rule(name: str) -> Vjp:
    """A rule by its name: rules are made of these ops, and so are loaded when one is asked for."""

    def vjp(g: Any, out: Any, *inputs: Any, **params: Any) -> Any:
        if name == "scan":
            from jitgrad.control.scan_rule import scan_rule as rule
        else:
            from jitgrad.control.rules import BY_OP

            rule = BY_OP[name]
        return rule(g, out, *inputs, **params)

    return vjp


def _define(name: str, form: str, infer: Any, impl: Any, specialise: Any) -> OpDef:
    return define(
        name, infer=infer, impl=impl, vjp=_rule(name), kind=Control(form, specialise), infers_partial=True
    )


cond_op = _define("cond", "cond", _infer_cond, _cond, _specialise_cond)
call_op = _define("call", "call", _infer_call, _call, _specialise_call)
scan_op = _define("scan", "scan", _infer_scan, _scan, _specialise_scan)
while_op = _define("while_loop", "while", _infer_while, _while, _specialise_while)
while_gradient_op = _define(
    "while_gradient", "while_gradient", _infer_while_gradient, _while_gradient, _specialise_while_gradient
)


@functools.cache
def _with_state(opdef: OpDef) -> OpDef:
    return replace(opdef, stateful=True)


def add_control(opdef: OpDef, *inputs: Tensor, **params: Any) -> tuple[Tensor, ...]:
    """The outputs of a control op; where a body has a state or an effect, the op has."""
    subs = [item for value in params.values() for item in (value if isinstance(value, tuple) else (value,))]
    is_stateful = any(sub.is_stateful for sub in subs if isinstance(sub, Subgraph))
    made = apply(_with_state(opdef) if is_stateful else opdef, *inputs, **params)
    return made if isinstance(made, tuple) else (made,)
