"""custom_gradient: a function that brings its own gradient, in graphs, in traced code and beside tapes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitgrad import pytree
from jitgrad.eagerness import finish, has_value, is_eager, local, set_tapes
from jitgrad.errors import layout
from jitgrad.given import check_function
from jitgrad.gradient_rules import RuleError, fitted
from jitgrad.graph import Tensor, apply, default_graph, in_graph
from jitgrad.opdef import AxisIndex, IndexMap, Params, Reindex, Specs, define
from jitgrad.ops.common import as_tensor
from jitgrad.sources import function_name, operation_text
from jitgrad.spec import TensorSpec, is_compatible
from jitgrad.trace import as_name, graph_in, same

Rule = Callable[..., Any]


def _first(specs: Specs, params: Params) -> Specs:
    return specs[: params["count"]]


def _pass_through(specs: Specs, params: Params) -> tuple[tuple[IndexMap | None, ...], ...]:
    """Output i is input i, element by element; no other input is read."""

    def whole(spec: TensorSpec) -> IndexMap:
        return IndexMap(tuple(AxisIndex(axis) for axis in range(len(spec.known_shape))))

    return tuple(
        tuple(whole(spec) if number == output else None for number, spec in enumerate(specs))
        for output in range(params["count"])
    )


def _values(*arrays: Any, count: int, rule: Rule) -> Any:
    return arrays[0] if count == 1 else arrays[:count]


def _by_rule(g: Any, out: Any, *inputs: Tensor, count: int, rule: Rule) -> tuple[Any, ...]:
    cotangents = (g,) if count == 1 else g
    return (*(None,) * count, *rule(cotangents, inputs[count:]))


# Inputs: the values, then the arguments. The values pass no gradient on, so the operations that computed them
# are not differentiated for the rule's sake; what the rule itself uses of them is, when the gradient is
# differentiated again.
custom_gradient_op = define(
    "custom_gradient", infer=_first, impl=_values, vjp=_by_rule, kind=Reindex(_pass_through)
)


def custom_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: ``fn(*args)`` returns ``(value, vjp)``, and the gradient of the value is what ``vjp`` says.

    ``vjp`` takes the cotangent of the value, in its structure (or one argument per entry of a tuple), and
    returns a tuple of gradients, one per positional argument, each in the argument's structure, or None; bare
    for a single argument. It is made of ops, so it can be differentiated again. Keyword arguments, and what
    ``fn`` closes over, get no gradient, but for Variables: where ``fn`` reads some that may be trained, ``vjp`` is
    called with ``variables=`` their list, and returns (gradients of the arguments, gradients of the Variables).
    TypeError when it takes no ``variables``.
    """
    check_function("custom_gradient", fn)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        graph = graph_in((args, kwargs)) or (default_graph() if in_graph() else None)
        if graph is not None:
            with graph.as_default():
                return _traced_custom(fn, args, kwargs)
        if local.tapes or is_eager((args, kwargs)):
            return _eager_custom(fn, args, kwargs)
        return _value_and_rule(fn, fn(*args, **kwargs))[0]

    return call


def _eager_custom(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from jitgrad.eager.custom_calls import eager_custom

    def value_and_rule(result: Any) -> tuple[Any, Rule]:
        return _value_and_rule(fn, result)

    return eager_custom(fn, args, kwargs, value_and_rule, lambda grads: _per_leaf(fn, grads, args))


def _value_and_rule(fn: Callable[..., Any], result: Any) -> tuple[Any, Rule]:
    if not isinstance(result, tuple) or len(result) != 2 or not callable(result[1]):
        raise TypeError(f"{fn.__name__}, decorated with custom_gradient, must return (value, vjp)")
    return result


def _traced_custom(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given, arg_structure = pytree.flatten(args)
    leaves = [as_tensor(leaf) if hasattr(leaf, "as_graph_element") or has_value(leaf) else leaf for leaf in given]
    inputs = [leaf if isinstance(leaf, Tensor) else None for leaf in leaves]
    handed = [leaf if x is None else same(x) for leaf, x in zip(leaves, inputs, strict=True)]
    with noting_reads() as readings:
        value, vjp = _value_and_rule(fn, fn(*pytree.unflatten(arg_structure, handed), **kwargs))
    variables = list(readings.variables)
    if variables:
        check_takes_variables(fn, vjp, variables)
    value_leaves, structure = pytree.flatten(value)
    values = [as_tensor(leaf) for leaf in value_leaves]
    reads = [v.first_read(default_graph()) for v in variables]
    traced = [*[x for x in inputs if x is not None], *reads]

    def rule(cotangents: Sequence[Tensor], primals: Sequence[Tensor]) -> list[Tensor | None]:
        grads, of_variables = rule_results(vjp, pytree.unflatten(structure, list(cotangents)), variables)
        flat = _per_leaf(fn, grads, args)
        given = [*flat, *of_variables]
        xs = enumerate([*inputs, *reads])
        return [_of_shape(fn, k, fitted(g, x), x) for g, (k, x) in zip(given, xs, strict=True) if x is not None]

    outputs = apply(custom_gradient_op, *values, *traced, name=as_name(function_name(fn)), count=len(values), rule=rule)
    return pytree.unflatten(structure, list(outputs) if len(values) != 1 else [outputs])


def _of_shape(fn: Callable[..., Any], number: int, g: Tensor | None, x: Tensor) -> Tensor | None:
    """A gradient; RuleError, which counts the leaves of the arguments from 0, where it is not of its input's shape."""
    if g is not None and not is_compatible(g.spec.shape, x.spec.shape):
        name = function_name(fn)
        raise RuleError(layout(f"the rule of {name} gave a wrong shape for input {number}", op=operation_text(x.op),
                               expected=x.spec, got=g.spec))  # fmt: skip
    return g


class Readings:
    """Listens as a tape does, and only notes which Variables that may be trained are read, here and now."""

    def __init__(self) -> None:
        self.watched: set[int] = set()
        self.entries: list[Any] = []
        self.variables: dict[Any, Any] = {}

    def read_variable(self, variable: Any, value: Any) -> None:
        """A Variable was read: its value is noted."""
        if variable.trainable:
            self.variables.setdefault(variable, value)

    def read_in_graph(self, variable: Any) -> None:
        """A Variable was read in a graph."""
        if variable.trainable:
            self.variables.setdefault(variable, None)

    def watches(self, variable: Any) -> bool:
        """No: nothing is differentiated here."""
        return False


@contextmanager
def noting_reads() -> Iterator[Readings]:
    """Notes which Variables are read inside, beside what the tapes of this thread note."""
    finish()
    before, readings = local.tapes, Readings()
    set_tapes((*before, readings))
    try:
        yield readings
        finish()
    finally:
        set_tapes(before)


def check_takes_variables(fn: Callable[..., Any], rule: Rule, variables: Sequence[Any]) -> None:
    """TypeError for a rule that does not take the Variables that ``fn`` reads."""
    parameters = inspect.signature(rule).parameters.values()
    if not any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(
            layout(f"{fn.__name__}, decorated with custom_gradient, reads {variables[0].name!r}",
                   hint="give its rule a keyword variables=None, and return (gradients, gradients of the variables)")
        )  # fmt: skip


def rule_results(rule: Rule, cotangent: Any, variables: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The gradients of the arguments, and those of the Variables, which the rule is given by keyword if there are any.

    ValueError when the rule does not give one for each Variable.
    """
    if not variables:
        return _call_rule(rule, cotangent), ()
    given = _call_rule(functools.partial(rule, variables=list(variables)), cotangent)
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], tuple | list):
        raise ValueError("with variables, a rule gives (gradients, gradients of the variables)")
    if len(given[1]) != len(variables):
        raise ValueError(f"the rule gave {len(given[1])} gradients for {len(variables)} variables")
    return given


def _call_rule(vjp: Rule, cotangent: Any) -> Any:
    """One argument in the structure of the value, unless the rule wants one per entry of a tuple."""
    if not isinstance(cotangent, tuple | list) or len(cotangent) == 1:
        return vjp(cotangent)
    kinds = [p.kind for p in inspect.signature(vjp).parameters.values()
             if p.default is p.empty and p.kind in _POSITIONAL]  # fmt: skip
    takes_each = inspect.Parameter.VAR_POSITIONAL in kinds or len(kinds) == len(cotangent)
    return vjp(*cotangent) if takes_each else vjp(cotangent)


_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def _per_leaf(fn: Callable[..., Any], grads: Any, args: tuple[Any, ...]) -> list[Any]:
    """The rule's gradients, one per leaf of the arguments; None for all leaves of an argument whose
    gradient is None.
    """
    is_one_per_argument = len(args) != 1 or (isinstance(grads, tuple) and not isinstance(args[0], tuple | list))
    is_sequence = isinstance(grads, tuple | list)
    given = grads if is_sequence and (is_one_per_argument or len(grads) == 1) else (grads,)
    if len(given) != len(args):
        raise ValueError(f"the rule of {fn.__name__} gave {len(given)} gradients for {len(args)} arguments")
    found: list[Any] = []
    for g, arg in zip(given, args, strict=True):
        count = len(pytree.flatten(arg)[0])
        flat = [None] * count if g is None else pytree.flatten_up_to(arg, g)
        found += flat
    return found
