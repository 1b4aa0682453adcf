"""Programs with control ops, built from functions of tensors, compiled, and compared with the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.control import ops
from jitgrad.control.subgraph import Body, Subgraph
from jitgrad.executable import Executable, make_executable
from jitgrad.graph import Graph, Tensor, apply
from jitgrad.interpreter import interpret
from jitgrad.ops.common import as_tensor
from jitgrad.ops.creation import placeholder
from jitgrad.program import Program, slice_graph
from jitgrad.scopes import jit_scope
from jitgrad.spec import TensorSpec

Function = Callable[..., Sequence[Tensor]]


def subgraph(graph: Graph, function: Function, specs: Sequence[TensorSpec], name: str = "body") -> Subgraph:
    """A function of tensors as a subgraph; it captures nothing."""
    body = Body(graph)
    with body.as_default(), jit_scope():
        inputs = tuple(placeholder(spec.dtype, spec.shape) for spec in specs)
        outputs = tuple(as_tensor(y, graph=body) for y in function(*inputs))
    assert not body.captures
    return Subgraph(body, inputs, outputs, name)


def _specs(tensors: Sequence[Tensor], items: int = 0) -> list[TensorSpec]:
    first = len(tensors) - items
    whole = [t.spec for t in tensors[:first]]
    return whole + [TensorSpec(t.spec.known_shape[1:], t.spec.dtype) for t in tensors[first:]]


def _listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def scan(
    function: Function, init: Sequence[Tensor], xs: Sequence[Tensor] = (), consts: Sequence[Tensor] = (),
    length: int | None = None, reverse: bool = False,
) -> list[Tensor]:  # fmt: skip
    """``function(*consts, *state, *items)`` gives the next state and then items of ys."""
    inputs = (*consts, *init, *xs)
    steps = xs[0].spec.known_shape[0] if length is None else length
    body = subgraph(inputs[0].graph, function, _specs(inputs, len(xs)))
    counts = {"n_consts": len(consts), "n_carry": len(init)}
    return _listed(apply(ops.scan_op, *inputs, body=body, **counts, length=steps, reverse=reverse))


def while_loop(
    condition: Function, function: Function, init: Sequence[Tensor], consts: Sequence[Tensor] = (),
    most: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """``function(*consts, *state)`` while ``condition(*consts, *state)``."""
    inputs = (*consts, *init)
    cond = subgraph(inputs[0].graph, condition, _specs(inputs), "cond")
    body = subgraph(inputs[0].graph, function, _specs(inputs))
    limits = {"n_consts": len(consts), "maximum_iterations": most, "shapes": None}
    return _listed(apply(ops.while_op, *inputs, cond=cond, body=body, **limits))


def while_gradient(
    condition: Function, function: Function, back: Function, init: Sequence[Tensor], sums: Sequence[Tensor],
    consts: Sequence[Tensor] = (), most: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """``function`` gives the state and what is saved, ``back(*consts, *saved, *sums)`` the next sums."""
    graph, inputs = init[0].graph, (*consts, *init)
    cond = subgraph(graph, condition, _specs(inputs), "cond")
    body = subgraph(graph, function, _specs(inputs))
    saved = [t.spec for t in body.outputs[len(init) :]]
    backward = subgraph(graph, back, [*_specs(consts), *saved, *_specs(sums)], "back")
    counts = {"n_consts": len(consts), "n_carry": len(init), "maximum_iterations": most, "shapes": None}
    bodies = {"cond": cond, "body": body, "back": backward, "totals": ()}
    return _listed(apply(ops.while_gradient_op, *inputs, *sums, **bodies, **counts))


def cond(index: Tensor, branches: Sequence[Function], operands: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of the branch of that number."""
    subs = tuple(subgraph(index.graph, branch, _specs(operands), f"branch_{k}") for k, branch in enumerate(branches))
    return _listed(apply(ops.cond_op, index, *operands, branches=subs))


def call(function: Function, operands: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a function that is not merged with what is around it."""
    return _listed(apply(ops.call_op, *operands, body=subgraph(operands[0].graph, function, _specs(operands))))


def program_of(function: Function, arrays: Sequence[Any]) -> Program:
    """The program of a function of tensors like these arrays, all of it in one scope."""
    with Graph().as_default(), jit_scope():
        inputs = [placeholder(np.asarray(x).dtype, np.shape(x)) for x in arrays]
        outputs = list(function(*inputs))
    return slice_graph(outputs, {t: t.spec for t in inputs})


def compiled(function: Any, arrays: Sequence[Any]) -> Executable:
    """The function, compiled to one native call at most, constants aside."""
    executable = make_executable(program_of(function, arrays))
    clustering = executable.compiled.clustering
    others = [clustering.program.instructions[step] for step in clustering.steps if isinstance(step, int)]
    assert len(clustering.clusters) <= 1 and all(ins.op.name == "constant" for ins in others), clustering.text
    return executable


def check(function: Any, *arrays: Any) -> Executable:
    """The function gives, in one native call and more than once, what the interpreter does."""
    arrays = tuple(np.asarray(x) for x in arrays)
    executable = compiled(function, arrays)
    given = [x.copy() for x in arrays]
    expected = interpret(executable.source, arrays)
    for _ in range(3):
        for got, want in zip(executable(arrays), expected, strict=True):
            want = np.asarray(want)
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-6 if want.dtype == np.float32 else 1e-13, atol=1e-14)
    for array, before in zip(arrays, given, strict=True):
        np.testing.assert_array_equal(array, before)
    return executable
