"""custom_gradient on eager tensors: a recorded op whose rule is the user's; what it computes is recorded too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.custom import check_takes_variables, noting_reads, rule_results
from jitgrad.eager.recorder import keep
from jitgrad.eager.tensor import EagerTensor, asarray, plain, wrap
from jitgrad.eagerness import local, number_of, settled
from jitgrad.errors import layout
from jitgrad.gradients import RuleError
from jitgrad.graph import Tensor
from jitgrad.ops.slices import IndexedSlices
from jitgrad.records import dataclass
from jitgrad.spec import is_inexact

Rule = Callable[..., Any]


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
    per_leaf: Callable[[Any], list[Any]],
) -> Any:
    """Call a function decorated with custom_gradient, and tell the tapes its rule.

    The values are new tensors: what was recorded inside does not reach them, but is there when the rule itself is
    differentiated. TypeError when Variables are read inside and the rule takes no ``variables``.
    """
    before = local.tapes
    args = pytree.tree_map(settled, args)
    with noting_reads() as readings:
        value, rule = value_and_rule(fn(*args, **kwargs))
    leaves, structure = pytree.flatten(value)
    outs = [wrap(plain(asarray(leaf))) for leaf in leaves]
    given = pytree.flatten(args)[0]
    variables = {v: x for v, x in readings.variables.items() if all(x is not leaf for leaf in given)}
    if variables:
        check_takes_variables(fn, rule, list(variables))

    inputs = [*given, *variables.values()]

    def pull(cotangents: Sequence[Any]) -> Sequence[Any]:
        grads, of_variables = rule_results(rule, pytree.unflatten(structure, list(cotangents)), list(variables))
        return _checked(fn, [*per_leaf(grads), *of_variables], inputs)

    numbers = tuple(map(number_of, inputs))
    telling = [tape for tape in before if not tape.watched.isdisjoint(numbers)]
    if telling:
        keep(telling, CustomRule(pull, tuple((x.shape, x.dtype) for x in outs)), numbers, outs, ())
    return pytree.unflatten(structure, outs)


def _checked(fn: Callable[..., Any], grads: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The rule's gradients as tensors of the dtypes of the inputs, those of leaves that are no tensors left out.
    RuleError for one that is not of its input's shape.
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
    if isinstance(g, IndexedSlices) or g.dtype == x.dtype or not is_inexact(x.dtype):
        return g
    return (np.real(g) if x.dtype.kind == "f" else g).astype(x.dtype)
