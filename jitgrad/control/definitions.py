"""Graph functions as they stand in a graph: bodies with a name, attributes and a gradient, called as one operation;
what users decorate and call is in graph_functions.py.

A call is an op whose type is the name of the function. Its inputs are the arguments, then what the body reads from
outside; its outputs are the results, then what operations with a state made in the body: a gradient reads these and
does not run them again. Programs have no such op: inlining.py puts the body in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from jitgrad.control.derivatives import complete, derivative_of, zeros_or
from jitgrad.control.ops import run_body
from jitgrad.control.subgraph import Body, Subgraph, output_specs, outside, program_of
from jitgrad.control.tracing import TracedBody
from jitgrad.errors import layout
from jitgrad.gradient_rules import RuleError, fitted
from jitgrad.graph import Graph, Here, Operation, Tensor, apply
from jitgrad.masks import Masks
from jitgrad.opdef import Control, OpDef, Params, Specs, find
from jitgrad.operators import call as call_op
from jitgrad.ops.gathering import zeros_like_shape
from jitgrad.ops.slices import IndexedSlices
from jitgrad.ops.state import Variable, no_op, read_op
from jitgrad.records import dataclass
from jitgrad.sources import operation_text
from jitgrad.sparse import as_slices
from jitgrad.spec import is_inexact

# rule(call, inputs, cotangents of the results) gives a gradient or None per input.
Rule = Callable[[Any, Sequence[Tensor], Sequence[Tensor | None]], Any]

# What the code asks operations for by their types.
_RESERVED = frozenset(("constant", "placeholder", "scatter_index", "scatter_take", "where"))


class FunctionBody(Body):
    """The graph of a function: its operations have no scope, no device and no control inputs of the place around."""

    is_repeated = False  # its gradient is given what was drawn

    def __init__(self, outer: Graph) -> None:
        super().__init__(outer)
        self.is_function = True
        self._here = Here()
        self.variables_read: dict[Variable, Tensor] = {}

    def captured(self, x: Tensor, variable: Any = None) -> Tensor:
        """As that of a body. A Variable is read anew for each call."""
        if variable in self.variables_read:
            return self.variables_read[variable]
        stand_in = super().captured(x, variable)
        if variable is not None:
            self.variables_read[variable] = stand_in
        return stand_in


@dataclass(frozen=True, eq=False)
class GraphFunction:
    """A function of a graph: its name, its attributes, and ``body``, with the results of the function first.

    ``structure`` is that of the results, ``n_args`` the number of tensors among the arguments. ``rule`` gives the
    gradient, if the user has given one.
    """

    name: str
    body: Subgraph
    n_args: int
    n_results: int
    structure: Any = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    noinline: bool = False
    rule: Rule | None = None
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def graph(self) -> Graph:
        """The graph of its operations."""
        return self.body.graph

    @property
    def operations(self) -> list[Operation]:
        """The operations that a call runs, in order."""
        return self.body.operations()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that stand for its arguments."""
        return self.body.inputs[: self.n_args]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Its results, as tensors of its graph."""
        return self.body.outputs[: self.n_results]

    def get_attr(self, key: str) -> Any:
        """The attribute of that name; LookupError when there is none."""
        if key not in self.attrs:
            raise LookupError(f"function {self.name!r} has no attribute {key!r}")
        return self.attrs[key]

    @property
    def opdef(self) -> OpDef:
        """The op that calls it."""
        if "opdef" not in self._cache:
            self._cache["opdef"] = OpDef(
                self.name, infer=_infer, impl=_run, vjp=self._gradient, kind=Control("function", _specialise),
                stateful=bool(self.body.effects), infers_partial=True,
            )  # fmt: skip
        found: OpDef = self._cache["opdef"]
        return found

    def call(self, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of a call; ``operands`` are all inputs of the body."""
        made = apply(self.opdef, *operands, body=self.body, noinline=self.noinline)
        return made if isinstance(made, tuple) else (made,)

    # -- its gradient --------------------------------------------------------------------------------------------------

    def _gradient(
        self, g: Any, out: Any, *inputs: Tensor, body: Subgraph, noinline: bool, wanted: Sequence[bool] | None = None,
        masks: Masks | None = None,
    ) -> Sequence[Any]:  # fmt: skip
        outs, gs = (out, g) if isinstance(out, tuple) else ((out,), (g,))
        if self.rule is not None:
            return self._by_rule(outs, gs[: self.n_results], inputs)
        used = tuple([is_inexact(x.dtype) and (wanted is None or wanted[k]) for k, x in enumerate(inputs)])
        if not any(used):
            return [None] * len(inputs)
        masks = masks or Masks()
        bounds = [masks.of(g) for g in gs]
        key = (used, tuple([g is not None for g in gs]), tuple([mask is not None for mask in bounds]))
        if key not in self._cache:
            self._cache[key] = _derive(self, *key)
        derived: _Derived = self._cache[key]
        cotangents = [t for t in (*gs, *bounds) if t is not None]
        found = iter(derived.function.call((*inputs, *derived.late, *outs[self.n_results :], *cotangents)))
        grads: list[Any] = [next(derived.given(k, x, found)) if is_used else None
                            for k, (x, is_used) in enumerate(zip(inputs, used, strict=True))]  # fmt: skip
        for k in derived.masked:
            masks.enter(grads[k], next(found))
        for k in derived.unread:
            masks.enter_zeros(grads[k])
        return grads

    def _by_rule(self, outs: Sequence[Tensor], gs: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> list[Any]:
        """What the user's rule gives; what the body reads from outside gets no gradient where the rule gives none."""
        assert self.rule is not None
        zeros = [call_op("zeros_like", y) if g is None and is_inexact(y.dtype) else g
                 for g, y in zip(gs, outs, strict=False)]  # fmt: skip
        call: Any = outs[0].op
        if call.opdef is not self.opdef:
            call = Call(self.name, tuple(inputs), tuple(outs))
        result = self.rule(call, inputs[: self.n_args], zeros)
        grads = list(result) if isinstance(result, list | tuple) else [result]
        if len(grads) not in (self.n_args, len(inputs)):
            text = f"the gradient of function {self.name!r} gave {len(grads)} gradients for {self.n_args} arguments"
            raise RuleError(layout(text, op=operation_text(outs[0].op), hint="return one per argument, or None"))
        grads += [None] * (len(inputs) - len(grads))
        return [*map(fitted, grads, inputs)]


@dataclass(frozen=True, eq=False)
class Call:
    """A call as a gradient rule sees it that is no operation: of values, or of one example of a batch."""

    type: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


# -- the op of a call --------------------------------------------------------------------------------------------------


def _infer(specs: Specs, params: Params) -> Specs:
    return output_specs(params["body"], specs)


def _run(*arrays: Any, body: Any, noinline: bool) -> Any:
    return run_body(body, arrays)


def _specialise(specs: Specs, params: Params) -> Params:
    return {**params, "body": program_of(params["body"], specs)}


# -- derived gradients -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Derived:
    """The gradient of a function as a function: (*inputs, *late, *kept outputs, *cotangents, *their masks) →
    (*gradients, *their masks).

    ``late`` is what rules read from outside, ``sliced`` tells the inputs whose gradients are rows and their positions,
    ``masked`` those whose gradients have a mask, ``unread`` those that no output depends on.
    """

    function: GraphFunction
    late: tuple[Tensor, ...]
    sliced: frozenset[int]
    masked: tuple[int, ...]
    unread: tuple[int, ...]

    def given(self, k: int, x: Tensor, found: Iterator[Tensor]) -> Iterator[Tensor]:
        """The gradient of input ``k``, from the next of the outputs."""
        if k not in self.sliced:
            yield next(found)
        else:
            values, indices = next(found), next(found)
            yield apply(find("scatter_take"), zeros_like_shape(x), values, indices, axis=0)


def _derive(
    function: GraphFunction, used: Sequence[bool], given: Sequence[bool], bounded: Sequence[bool]
) -> _Derived:
    """The gradient with respect to the inputs that ``used`` says for cotangents of the outputs that ``given`` says,
    with masks where ``bounded`` says so, defined in the graph of the function.
    """
    body, kept = function.body, function.body.outputs[function.n_results :]
    outputs = tuple([t for t, is_given in zip(body.outputs, given, strict=True) if is_given])
    plain = Subgraph(body.graph, body.inputs, outputs, function.name)
    masked = [has_mask for has_mask, is_given in zip(bounded, given, strict=True) if is_given]
    whole, late = complete(plain, len(body.inputs), masked)
    d = derivative_of(whole)
    with body.graph.reopened():
        grads = [as_slices(zeros_or(d.gradients[k], x)) for k, x in enumerate(body.inputs) if used[k]]
        made = [t for g in grads for t in ((g.values, g.indices) if isinstance(g, IndexedSlices) else (g,))]
    places = [k for k, is_used in enumerate(used) if is_used]
    sliced = frozenset(k for k, g in zip(places, grads, strict=True) if isinstance(g, IndexedSlices))
    cotangents = tuple([c for c in (*d.cotangents, *d.masks) if c is not None])
    unread = tuple(k for k in places if d.gradients[k] is None)
    found = {k: mask for k in places if k not in sliced and (mask := d.input_masks[k]) is not None}
    sub = Subgraph(body.graph, (*whole.inputs, *kept, *cotangents), (*made, *found.values()), f"{function.name}_grad")
    return _Derived(define(sub, noinline=function.noinline), late, sliced, tuple(found), unread)


# -- defining ----------------------------------------------------------------------------------------------------------


def define(
    sub: Subgraph,
    n_args: int | None = None,
    structure: Any = None,
    attrs: Callable[[str], Mapping[str, Any]] = lambda name: {},
    noinline: bool = False,
    rule: Rule | None = None,
    all_effects: bool = False,
) -> GraphFunction:
    """A subgraph as a function that is registered in the outermost graph, by the name of the subgraph or that with a
    number; ``attrs`` gives the attributes for the name.

    What has a state runs at each call, where ``all_effects`` says so also what no result needs.
    """
    operations = sub.graph.operations if all_effects else sub.operations()
    effects = tuple([op for op in operations if op.opdef not in (read_op, no_op) and op.opdef.stateful])
    kept = tuple([t for op in effects for t in op.outputs])
    functions = outermost(sub.graph).functions
    name = _free_name(sub.name, functions)
    body = Subgraph(sub.graph, sub.inputs, (*sub.outputs, *kept), name, effects)
    count = len(sub.inputs) if n_args is None else n_args
    made = GraphFunction(name, body, count, len(sub.outputs), structure, attrs(name), noinline, rule)
    functions[name] = made
    return made


def define_traced(
    traced: TracedBody, name: str, attrs: Callable[[str], Mapping[str, Any]], noinline: bool, rule: Rule | None
) -> GraphFunction:
    """What a Python function does as a function of the graph."""
    inputs = (*traced.inputs, *traced.graph.captures.values())
    sub = Subgraph(traced.graph, inputs, traced.outputs, name)
    return define(sub, len(traced.inputs), traced.structure, attrs, noinline, rule, all_effects=True)


def operands(function: GraphFunction, args: Sequence[Tensor], graph: Graph) -> tuple[Tensor, ...]:
    """The inputs of a call in ``graph``: the arguments, and what the body reads from outside."""
    body = function.body.graph
    assert isinstance(body, FunctionBody)
    variables = {stand_in: variable for variable, stand_in in body.variables_read.items()}
    given = dict(zip(body.captures.values(), outside(list(body.captures)), strict=True))
    rest = function.body.inputs[function.n_args :]
    read = [variables[t].as_graph_element(graph) if t in variables else given[t] for t in rest]
    return (*args, *read)


def outermost(graph: Graph) -> Graph:
    """The graph around all bodies."""
    while graph.outer is not None:
        graph = graph.outer
    return graph


def _free_name(name: str, functions: Mapping[str, Any]) -> str:
    number, found = 0, name
    while found in functions or found in _RESERVED:
        number += 1
        found = f"{name}_{number}"
    return found
