"""Gradient rules: which one an operation has, and whether what it gives can be true; the walk is in gradients.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jitgrad import operators
from jitgrad.errors import DTypeError, GradientError, JitgradError, layout
from jitgrad.graph import GRADIENT_RULE, Operation, Tensor, innermost
from jitgrad.opdef import Control, OpDef, definitions
from jitgrad.operators import is_open
from jitgrad.sources import operation_text
from jitgrad.spec import is_compatible, is_inexact

if TYPE_CHECKING:
    from jitgrad.masks import Masks

# Name -> fn(op, *grads), for all graphs: an op type, or what gradient_override_map gives for one.
registered_rules: dict[str, Callable[..., Any]] = {}

_SEQUENCES = (list, tuple)


def passes_gradient(t: Tensor) -> bool:
    """Whether a gradient of a tensor goes on to the operation that made it; also where the rule for that is missing."""
    op = t.op
    opdef = op.opdef
    has_rule = opdef.vjp is not None or opdef.differentiable or GRADIENT_RULE in op._attrs
    return (has_rule or opdef.name in registered_rules) and t.spec.dtype.kind in "fc"


def has_own_rule(op: Operation) -> bool:
    """Whether the rule of an operation is the one that its op was defined with."""
    return GRADIENT_RULE not in op._attrs and op.opdef.name not in registered_rules


def apply_rule(
    op: Operation, cotangents: Sequence[Tensor | None], wanted: Sequence[Tensor], masks: Masks | None = None
) -> Sequence[Tensor | None]:
    """The cotangents of an operation's inputs by its gradient rule, checked.

    A graph function takes the masks of its cotangents, and enters those of what it gives. GradientError when there is
    no rule, RuleError when it gives the wrong number of them or a wrong shape.
    """
    return _checked(op, _found(op, cotangents, wanted, masks))


def _found(
    op: Operation, cotangents: Sequence[Tensor | None], wanted: Sequence[Tensor], masks: Masks | None
) -> Sequence[Tensor | None]:
    opdef: OpDef = op.opdef
    if not has_own_rule(op):
        return _overridden(op, op._attrs.get(GRADIENT_RULE, opdef.name), cotangents)
    if opdef.vjp is None:
        if opdef.differentiable:
            raise _no_rule(op, wanted)
        return (None,) * len(op.inputs)
    params = op.params
    if isinstance(opdef.kind, Control):
        matter = set(wanted)
        params = {**params, "wanted": tuple([x in matter for x in op.inputs])}
        if opdef.kind.form == "function":
            params["masks"] = masks
    g, out = _bare(op, cotangents)
    graph = innermost(op.graph)
    before = len(graph)
    try:
        return _as_sequence(opdef.vjp(g, out, *op.inputs, **params))
    except Exception as error:
        if isinstance(error, GradientError) or isinstance(opdef.kind, Control):
            raise
        if not is_open((*op.inputs, *op.outputs)):
            raise
        graph.forget(before)
    from jitgrad.control import deferred

    return deferred.deferred_rule(op, cotangents)


def _overridden(op: Operation, rule: Any, cotangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """By a rule from outside, or one that is known by its name."""
    rule = registered_rules.get(rule, rule)
    return _by_users_rule(op, rule(op, *cotangents)) if callable(rule) else _by_rule_of(rule, op, cotangents)


def _bare(op: Operation, cotangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
    """Cotangent and output as rules of definitions take them: bare where there is one output."""
    return (cotangents[0], op.outputs[0]) if len(op.outputs) == 1 else (tuple(cotangents), op.outputs)


def _as_sequence(result: Any) -> Sequence[Any]:
    return result if isinstance(result, _SEQUENCES) else (result,)


def _by_rule_of(name: str, op: Operation, cotangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """By the rule of another op type, given such params as it takes: "identity" lets a gradient pass straight through.
    """
    rule = next((opdef.vjp for opdef in definitions() if opdef.name == name), None)
    if rule is None:
        raise GradientError(
            layout(f"gradient_override_map names {name!r}, for which there is no gradient rule", op=operation_text(op),
                   hint=f"give it one with register_gradient({name!r})")
        )  # fmt: skip
    taken = inspect.signature(rule).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in taken)
    names = {p.name for p in taken if p.kind is p.KEYWORD_ONLY}
    params = {key: value for key, value in op.params.items() if takes_all or key in names}
    g, out = _bare(op, cotangents)
    return _by_users_rule(op, rule(g, out, *op.inputs, **params))


def _by_users_rule(op: Operation, result: Any) -> Sequence[Any]:
    """What a rule from outside gave, as tensors of the dtypes of the inputs: real parts for real ones."""
    grads = _as_sequence(result)
    try:
        return [*map(fitted, grads, op.inputs)] if len(grads) == len(op.inputs) else grads
    except DTypeError as error:
        raise RuleError(
            layout(f"the gradient rule of {op.type!r} gave what is no gradient: {str(error).partition(chr(10))[0]}",
                   op=operation_text(op), hint="give tensors, arrays of numbers, or None")
        ) from None  # fmt: skip


def fitted(g: Any, x: Tensor) -> Tensor | None:
    """A gradient from outside as a tensor of the dtype of ``x``: of a complex one the real part for a real ``x``."""
    if g is None:
        return None
    g = g.as_graph_element() if hasattr(g, "as_graph_element") else g
    fit: Tensor = g if isinstance(g, Tensor) else operators.call("constant", g, graph=x.graph)
    if fit.dtype != x.dtype and is_inexact(x.dtype):
        fit = operators.call("astype", operators.call("real", fit) if x.dtype.kind == "f" else fit, x.dtype)
    return fit


def _no_rule(op: Operation, wanted: Sequence[Tensor]) -> GradientError:
    return GradientError(
        layout(
            f"op {op.type!r} has no gradient rule",
            op=operation_text(op),
            needed=f"gradients with respect to {', '.join(x.op.name for x in wanted)}",
            hint=f"wrap it in stop_gradient(...), or give it a rule with register_gradient({op.type!r})",
        )
    )


class RuleError(JitgradError, ValueError):
    """A gradient rule gave the wrong number of gradients, one of the wrong shape, or no numbers."""


def _checked(op: Operation, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if len(grads) != len(op.inputs):
        raise RuleError(layout(f"the gradient rule of {op.type!r} gave {len(grads)} gradients, not {len(op.inputs)}",
                               op=operation_text(op)))  # fmt: skip
    for index, (g, x) in enumerate(zip(grads, op.inputs, strict=True)):
        if g is not None and g.spec.shape != x.spec.shape and not is_compatible(g.spec.shape, x.spec.shape):
            raise RuleError(layout(f"the gradient rule of {op.type!r} gave a wrong shape for input {index}",
                                   op=operation_text(op), expected=x.spec, got=g.spec))  # fmt: skip
    return grads
