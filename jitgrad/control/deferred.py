"""Deferred calls: functions of tensors whose shapes are not known yet, each one operation until the graph runs; which
functions there are is not known here.

A function that must know extents to choose its operations is one operation of a graph, which holds the function. When
a program is made, for the shapes that are fed, the function is called on tensors of these shapes, and what it builds
takes the place of the operation, as the body of a graph function does (inlining.py). The gradient of such an operation
is again one: it calls the function and differentiates what that builds. So all orders hold for all functions.

What is known of the outputs beforehand is found by calling the function on tensors of some shapes that the inputs may
have: extents that come out the same for all of them are known, the others are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.advice import advised
from jitgrad.control import states
from jitgrad.control.derivatives import zeros_or
from jitgrad.control.examples import Found, explored
from jitgrad.control.subgraph import Body, Subgraph
from jitgrad.control.tracing import as_operand, as_output, numbered
from jitgrad.errors import JitgradError, LeakedTracerError, OpenExtentError, hint_in, layout
from jitgrad.gradients import gradients, operations_between
from jitgrad.graph import Graph, Here, Operation, Tensor, apply, graph_of
from jitgrad.interpreter import interpret
from jitgrad.opdef import Control, OpDef, Params, Specs
from jitgrad.operators import call, is_open
from jitgrad.ops.common import unwrap
from jitgrad.ops.creation import placeholder
from jitgrad.program import Program
from jitgrad.records import dataclass
from jitgrad.sources import source_text, user_source
from jitgrad.spec import is_inexact, spec_of
from jitgrad.views import write

# Tensors of known shapes to tensors; None for a gradient that there is not.
Fn = Callable[[Sequence[Tensor]], Sequence[Tensor | None]]
_KEPT_SHAPES = 64
_SHAPE = "shape"


@dataclass(frozen=True, eq=False)
class Deferred:
    """A function that is called when shapes are known.

    ``example`` are specs of inputs that it takes, ``are_weak`` says which of them give way as Python numbers do.
    ``outputs`` is what is known of its outputs, ``present`` tells the results of ``fn`` that are outputs.
    ``is_dynamic``: the shapes of its outputs are not even known for inputs of known shapes.
    """

    name: str
    fn: Fn
    here: Here
    example: Specs
    are_weak: tuple[bool, ...]
    outputs: Specs
    present: tuple[bool, ...]
    is_dynamic: bool = False
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def subgraph(self, specs: Specs) -> Subgraph:
        """What it builds for inputs of these specs."""
        if specs not in self._cache:
            built = _built(self.name, self.fn, self.here, specs, self.are_weak)
            with built.graph.reopened():
                outputs = self.outputs_of(built.outputs, built.inputs)
            while len(self._cache) > _KEPT_SHAPES:
                del self._cache[next(iter(self._cache))]
            self._cache[specs] = Subgraph(built.graph, built.inputs, outputs, self.name)
        found: Subgraph = self._cache[specs]
        return found

    def outputs_of(self, made: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs among what ``fn`` made; a gradient that the example has, and these inputs have not, is zero."""
        pairs = enumerate(zip(made, self.present, strict=True))
        return tuple([zeros_or(t, inputs[k]) if t is None else t for k, (t, is_present) in pairs if is_present])

    def operations(self) -> Sequence[Operation]:
        """The operations that are known beforehand: none."""
        return ()

    def call(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs for these inputs, as those of one operation."""
        made = apply(deferred_op, *inputs, name=self.name.rpartition(".")[2], body=self, noinline=False)
        return made if isinstance(made, tuple) else (made,)

    def backward(self, inputs: Sequence[Tensor], used: tuple[bool, ...], given: tuple[bool, ...]) -> Deferred:
        """The gradient with respect to the inputs that are used, for cotangents of the outputs that are given."""
        key = (used, given)
        if key not in self._cache:
            self._cache[key] = self._derived(inputs, used, given)
        made: Deferred = self._cache[key]
        return made

    def _derived(self, inputs: Sequence[Tensor], used: tuple[bool, ...], given: tuple[bool, ...]) -> Deferred:
        count = len(used)

        def backward(tensors: Sequence[Tensor]) -> list[Tensor | None]:
            places = [(x.op, x.value_index) for x in tensors[:count]]
            outs = self.outputs_of(self.fn(tensors[:count]), tensors)
            xs = [op.outputs[index] for op, index in places]  # which an assignment in the function leaves as they are
            ys: list[Any] = [y for y, is_given in zip(outs, given, strict=True) if is_given]
            found = iter(gradients(ys, [x for x, is_used in zip(xs, used, strict=True) if is_used], tensors[count:]))
            return [next(found) if is_used else None for is_used in used]

        known = self.subgraph(self.example).outputs
        example = (*self.example, *[t.spec for t, is_given in zip(known, given, strict=True) if is_given])
        are_weak = (*self.are_weak, *(False for is_given in given if is_given))
        return _gradient_of(f"{self.name}_grad", backward, inputs, example, are_weak)

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _gradient_of(
    name: str, fn: Fn, inputs: Sequence[Tensor], example: Specs, are_weak: tuple[bool, ...]
) -> Deferred:
    """A function that gives a gradient, or None, for each of the first inputs."""
    here = _present(inputs)
    built = _built(name, fn, here, example, are_weak)
    present = tuple([x is not None for x in built.outputs])
    specs = tuple([x.spec for x, is_present in zip(inputs, present, strict=False) if is_present])
    return Deferred(name, fn, here, example, are_weak, specs, present)


@dataclass(frozen=True, eq=False)
class _Built:
    graph: Body
    inputs: tuple[Tensor, ...]
    outputs: tuple[Any, ...]


def _built(name: str, fn: Fn, here: Here, specs: Specs, are_weak: Sequence[bool]) -> _Built:
    """The function called on tensors of these specs, in a graph of its own."""
    graph = Body(Graph())
    graph._here = here
    with graph.as_default():
        handed = [placeholder(spec.dtype, spec.shape, name=f"x_{k}") for k, spec in enumerate(specs)]
        for x, is_weak in zip(handed, are_weak, strict=True):
            x.is_weak = is_weak
        made = [x.op for x in handed]  # which an assignment in the function leaves as they are
        outputs = tuple(fn(handed))
    graph.closed_by = name
    if graph.captures:
        (op, _), *_ = graph.captures
        raise LeakedTracerError(f"{name} reads {op.name!r} from outside, which shapes that are not known do not allow")
    return _Built(graph, tuple([op.outputs[0] for op in made]), outputs)


def _present(inputs: Sequence[Tensor]) -> Here:
    """What is kept of the place where a call is made: the user's line, and the rules that stand in for others."""
    here = graph_of(inputs)._here
    return Here(source=here.source or user_source(), rules=here.rules)


# -- the op ------------------------------------------------------------------------------------------------------------


def shape_of(x: Tensor) -> Tensor:
    """The shape of ``x``, int64, as a tensor: its value is not computed for it."""

    def shape(t: Tensor) -> Any:
        return call("constant", np.array(t.spec.known_shape, np.int64), graph=t.graph)

    made: Tensor = call_open(_SHAPE, shape, (x,), {})
    return made


def whose_shape(shape: Tensor) -> Tensor | None:
    """The tensor whose shape ``shape_of`` was asked for; None where the tensor is of another origin."""
    op = shape.op
    return op.inputs[0] if op.opdef is deferred_op and op.params["body"].name == _SHAPE else None


def _infer(specs: Specs, params: Params) -> Specs:
    body = params["body"]
    if body.is_dynamic or not all(spec.is_known for spec in specs):
        return body.outputs  # type: ignore[no-any-return]
    program = _program(body, specs)
    return tuple([program.specs[v] for v in program.outputs])


def _program(body: Deferred, specs: Specs) -> Program:
    try:
        return body.subgraph(specs).program(specs)
    except JitgradError as error:
        reason = str(error).partition("\n")[0]
        text = layout(f"{body.name}: {reason}", inputs=", ".join(map(str, specs)),
                      needed=f"at {source_text(body.here.source)}", hint=hint_in(str(error)))  # fmt: skip
        raise type(error)(advised(text)) from error


def _run(*arrays: Any, body: Any, noinline: bool) -> Any:
    if isinstance(body, Deferred):
        specs = tuple(map(spec_of, arrays))
        values = body.subgraph(specs).run(arrays) if body.is_dynamic else interpret(_program(body, specs), arrays)
    else:
        values = interpret(body, arrays)
    return values[0] if len(values) == 1 else tuple(values)


def _specialise(specs: Specs, params: Params) -> Params:
    return {**params, "body": _program(params["body"], specs)}


def _vjp(
    g: Any, out: Any, *inputs: Tensor, body: Deferred, noinline: bool, wanted: Sequence[bool] | None = None,
    masks: Any = None,
) -> Sequence[Tensor | None]:  # fmt: skip
    """As the rule of a graph function; the body is not known yet, so masks of cotangents end here."""
    gs = g if isinstance(g, tuple) else (g,)
    used = tuple([is_inexact(x.dtype) and (wanted is None or wanted[k]) for k, x in enumerate(inputs)])
    given = tuple([g is not None for g in gs])
    if not any(used) or not any(given):
        return [None] * len(inputs)
    back = body.backward(inputs, used, given)
    if not any(back.present):
        return [None] * len(inputs)
    found = iter(back.call((*inputs, *[g for g in gs if g is not None])))
    return [next(found) if is_present else None for is_present in back.present]


deferred_op = OpDef(
    "deferred", infer=_infer, impl=_run, vjp=_vjp, kind=Control("function", _specialise), infers_partial=True
)


# -- calls -------------------------------------------------------------------------------------------------------------


def call_open(name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """``fn(*args, **kwargs)``, where the shapes of some tensors are not known: at once where it can be built so, else
    when the graph runs.
    """
    args, kwargs = pytree.tree_map(unwrap, (tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in pytree.flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    graph = graph_of(tensors)
    if not any(map(is_open, (tensors,))):
        return fn(*args, **kwargs)
    before = len(graph)
    try:
        return fn(*args, **kwargs)
    except (LeakedTracerError, OpenExtentError):
        raise
    except Exception:
        graph.forget(before)
        return _deferred_call(name, fn, args, kwargs, graph)


@dataclass(eq=False)
class _Call:
    """A function of tensors and fixed values as one of tensors: results first, then the new values of the arguments
    that it assigns to for some shapes, the numbers of which are in ``written``.
    """

    fn: Callable[..., Any]
    leaves: Sequence[Any]
    trees: Any
    structure: Any = None
    written: tuple[int, ...] = ()

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor | None]:
        pending = iter(tensors)
        before = [x.op for x in tensors]
        leaves = [next(pending) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = states.tree_map(lambda k: leaves[k], self.trees)
        result = self.fn(*args, **kwargs)
        found, self.structure = states.flatten(result)
        now = {k for k, (x, op) in enumerate(zip(tensors, before, strict=True)) if x.op is not op}
        self.written = tuple(sorted({*self.written, *now}))
        graph: Any = graph_of(tensors)
        return [*[as_output(leaf, graph) for leaf in found], *[tensors[k] for k in self.written]]


def _deferred_call(name: str, fn: Callable[..., Any], args: Any, kwargs: Any, graph: Graph) -> Any:
    leaves, trees = numbered([args, kwargs])
    leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    tensors = [as_operand(leaf, graph) for leaf in leaves if isinstance(leaf, Tensor)]
    run = _Call(fn, leaves, trees)
    here = _present(tensors)
    are_weak = tuple([x.is_weak for x in tensors])

    def tried(specs: Specs) -> Found:
        built = _built(name, run, here, specs, are_weak)
        sub = Subgraph(built.graph, built.inputs, built.outputs, name)
        key = (run.structure, run.written, tuple([t.is_weak for t in built.outputs]))
        return Found(specs, tuple([t.spec for t in built.outputs]), key, sub.is_dynamic)

    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, np.ndarray)]
    found = explored(name, tried, tuple([x.spec for x in tensors]), tensors, shapes)
    structure, written, weak = found.key
    deferred = Deferred(
        name, run, here, found.example, are_weak, found.outputs, (True,) * len(found.outputs), found.is_dynamic
    )
    made = deferred.call(tensors) if found.outputs else ()
    for t, is_weak in zip(made, weak, strict=True):
        t.is_weak = is_weak
    count = len(made) - len(written)
    for k, new in zip(written, made[count:], strict=True):
        write(tensors[k], new)
    return pytree.unflatten(structure, list(made[:count]))


def call_replayed(
    name: str, fn: Callable[[list[Tensor], list[Tensor]], Any], ys: Sequence[Tensor], xs: Sequence[Tensor]
) -> Any:
    """``fn(ys, xs)`` when shapes are known, of what then stands for these tensors: the operations between them are made
    once more.
    """
    between = sorted(operations_between(xs, ys), key=lambda op: op.id)
    inside = {t for op in between for t in op.outputs}
    read = [x for op in between for x in op.inputs] + list(ys)
    given = list(dict.fromkeys([*xs, *(x for x in read if x not in inside)]))

    def replayed(tensors: Sequence[Tensor]) -> Any:
        stands = dict(zip(given, tensors, strict=True))
        for op in between:
            for t, new in zip(op.outputs, _again(op, [stands[x] for x in op.inputs]), strict=True):
                stands.setdefault(t, new)
        return fn([stands[y] for y in ys], [stands[x] for x in xs])

    return _deferred_call(name, replayed, ([*given],), {}, given[0].graph)


def _again(op: Operation, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of an operation for other inputs; of a deferred one, those of what it holds."""
    if op.opdef is deferred_op:
        own = [call("identity_tensor", x) for x in inputs]  # which the function may assign to
        return op.params["body"].outputs_of(op.params["body"].fn(own), own)  # type: ignore[no-any-return]
    made = apply(op.opdef, *inputs, **op.params)
    return made if isinstance(made, tuple) else (made,)


def deferred_rule(op: Operation, cotangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradients of an operation by the rule of its op, called when shapes are known."""
    inputs, outs = op.inputs, op.outputs
    is_given = [g is not None for g in cotangents]
    n, m = len(inputs), len(outs)

    def rule(tensors: Sequence[Tensor]) -> list[Tensor | None]:
        pending = iter(tensors[n + m :])
        gs = [next(pending) if given else None for given in is_given]
        ys = tensors[n : n + m]
        g, out = (gs[0], ys[0]) if m == 1 else (tuple(gs), tuple(ys))
        assert op.opdef.vjp is not None
        found = op.opdef.vjp(g, out, *tensors[:n], **op.params)
        grads = found if isinstance(found, list | tuple) else [found]
        return [g if is_inexact(x.dtype) else None for g, x in zip(grads, inputs, strict=True)]

    def specs_for(specs: Specs) -> Specs:
        made = op.opdef.infer(specs, op.params)
        return (*specs, *made, *[spec for spec, given in zip(made, is_given, strict=True) if given])

    present = [g for g in cotangents if g is not None]
    tensors = (*inputs, *outs, *present)
    name, here = f"{op.type}_grad", _present(tensors)
    are_weak = (False,) * len(tensors)

    def tried(specs: Specs) -> Found:
        example = specs_for(specs)
        built = _built(name, rule, here, example, are_weak)
        return Found(example, (), tuple([t is not None for t in built.outputs]), False)

    found = explored(name, tried, tuple([x.spec for x in inputs]), inputs, is_enough=True)
    if not any(found.key):
        return [None] * n
    specs = tuple([x.spec for x, is_there in zip(inputs, found.key, strict=True) if is_there])
    deferred = Deferred(name, rule, here, found.example, are_weak, specs, found.key)
    made = iter(deferred.call(tensors))
    return [next(made) if is_there else None for is_there in found.key]
