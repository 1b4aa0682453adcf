"""Gradient rules given for types of ops: register_gradient and not_differentiable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.gradient_rules import registered_rules

Rule = Callable[..., Any]


def register_gradient(op_type: str) -> Callable[[Rule], Rule]:
    """Decorator: ``fn(op, *grads)`` is the gradient rule of the operations of that type.

    It gives one tensor, array, IndexedSlices or None per input, bare for a single input. The name may also be one that
    only ``graph.gradient_override_map`` knows. KeyError when the type has a rule of this kind already, TypeError for a
    type that is no string, and for a rule that is no function.
    """
    if not isinstance(op_type, str):
        raise TypeError(f"register_gradient takes the type of an op, a string, got {op_type!r}")

    def register(rule: Rule) -> Rule:
        if not callable(rule):
            raise TypeError(f"the gradient of op {op_type!r} must be a function fn(op, *grads), got {rule!r}")
        if op_type in registered_rules:
            raise KeyError(f"a gradient of op {op_type!r} is registered already")
        registered_rules[op_type] = rule
        return rule

    return register


def not_differentiable(op_type: str) -> None:
    """Operations of that type pass no gradient back. KeyError when the type has a registered rule already."""
    register_gradient(op_type)(lambda op, *grads: (None,) * len(op.inputs))
