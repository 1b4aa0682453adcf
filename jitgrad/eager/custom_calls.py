"""custom_gradient on eager tensors: a recorded op whose rule is the user's; what it computes is recorded too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.eager.recorder import Entry, keep
from jitgrad.eager.tensor import EagerTensor, asarray, plain, settled, wrap
from jitgrad.eagerness import finish, local
from jitgrad.errors import layout
from jitgrad.gradients import RuleError
from jitgrad.graph import Tensor
from jitgrad.ops.slices import IndexedSlices
from jitgrad.ops.state import Variable

Rule = Callable[..., Any]


class _Readings:
    """A tape that only notes which Variables are read."""

    def __init__(self) -> None:
        self.watched: set[int] = set()
        self.entries: list[Entry] = []
        self.variables: dict[Variable, EagerTensor] = {}

    def read_variable(self, variable: Variable, value: EagerTensor) -> None:
        """A Variable was read: those that may be trained are noted."""
        if variable.trainable:
            self.variables.setdefault(variable, value)


@dataclass(frozen=True, eq=False)
class CustomRule:
    """The user's rule for one call: ``pull`` takes the cotangents of the values, and gives one or None per leaf."""

    pull: Callable[[Sequence[Any]], Sequence[Any]]
    specs: tuple[tuple[tuple[int, ...], Any], ...]

    def places(self, leaves: int) -> Sequence[int]:
        """Nothing: the user's function keeps what it needs."""
        return ()

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """What the user's rule gives, zeros standing for cotangents that did not arrive."""
        pairs = zip(cotangents, self.specs, strict=True)
        return self.pull([wrap(np.zeros(*spec)) if g is None else settled(g) for g, spec in pairs])


def eager_custom(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    value_and_rule: Callable[[Any], tuple[Any, Rule]],
    pull_through: Callable[[Rule, Any], Any],
    per_leaf: Callable[[Any], list[Any]],
) -> Any:
    """Call a function decorated with custom_gradient, and tell the tapes its rule.

    The values are new tensors: what was recorded inside does not reach them, but is there when the rule itself is
    differentiated. TypeError when Variables are read inside and the rule takes no ``variables``.
    """
    args = pytree.tree_map(settled, args)
    readings = _Readings()
    finish()
    before = local.tapes
    local.tapes = (*before, readings)
    try:
        value, rule = value_and_rule(fn(*args, **kwargs))
        finish()
    finally:
        local.tapes = before
    leaves, structure = pytree.flatten(value)
    outs = [wrap(plain(asarray(leaf))) for leaf in leaves]
    variables = {v: x for v, x in readings.variables.items() if all(x is not leaf for leaf in pytree.flatten(args)[0])}
    if variables and not _takes_variables(rule):
        raise TypeError(
            layout(f"{fn.__name__}, decorated with custom_gradient, reads {next(iter(variables)).name!r}",
                   hint="give its rule a keyword variables=None, and return (gradients, gradients of the variables)")
        )  # fmt: skip

    inputs = [*pytree.flatten(args)[0], *variables.values()]

    def pull(cotangents: Sequence[Any]) -> Sequence[Any]:
        given = pytree.unflatten(structure, list(cotangents))
        if not variables:
            found = per_leaf(pull_through(rule, given))
        else:
            grads, of_variables = rule(given, variables=list(variables))
            found = [*per_leaf(grads), *of_variables]
        return _checked(fn, found, inputs)

    numbers = tuple(getattr(x, "number", None) for x in inputs)
    telling = [tape for tape in before if not tape.watched.isdisjoint(numbers)]
    if telling:
        keep(telling, CustomRule(pull, tuple((x.shape, x.dtype) for x in outs)), numbers, outs, ())
    return pytree.unflatten(structure, outs)


def _checked(fn: Callable[..., Any], grads: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The rule's gradients as tensors, those of leaves that are no tensors left out. RuleError for one that is not of
    its input's shape.
    """
    if len(grads) != len(inputs):
        raise RuleError(f"the rule of {fn.__name__} gave {len(grads)} gradients for {len(inputs)} inputs")
    return [_checked_one(fn, index, *pair) for index, pair in enumerate(zip(grads, inputs, strict=True))]


def _checked_one(fn: Callable[..., Any], index: int, g: Any, x: Any) -> Any:
    if g is None or not isinstance(x, EagerTensor):
        return None
    g = g if isinstance(g, Tensor | IndexedSlices) else asarray(g)
    if g.shape is not None and g.shape != x.shape:
        raise RuleError(layout(f"the rule of {fn.__name__} gave a wrong shape for input {index}",
                               expected=x.shape, got=g.shape))  # fmt: skip
    return g


def _takes_variables(rule: Rule) -> bool:
    parameters = inspect.signature(rule).parameters.values()
    return any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters)
