"""Bodies out of Python functions: what a function does with stand-ins for its arguments, as subgraphs.

Bodies of one op share their first inputs: all that any of them reads from the graph around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.control import states
from jitgrad.control.arrays import filled_like, has_empty
from jitgrad.control.subgraph import Body, Subgraph, outside
from jitgrad.graph import Graph, Operation, Tensor, default_graph, in_graph
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.ops.creation import placeholder
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec
from jitgrad.trace import as_name, describe, graph_in


@dataclass(frozen=True, eq=False)
class TracedBody:
    """A function called on stand-ins: its graph, the stand-ins, and the results with their structure and paths."""

    graph: Body
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    structure: Any
    paths: tuple[str, ...]
    name: str


def trace_body(
    fn: Callable[..., Any], outer: Graph, args: Sequence[Any], likes: Sequence[Any], name: str, kind: type[Body] = Body
) -> TracedBody:
    """Call ``fn`` on stand-ins; ``args`` are trees of numbers, each the place of its leaf among ``likes``: a tensor or
    a spec that the stand-in is like.
    """
    graph = kind(outer)
    with graph.as_default():
        handed = [_stand_in(like, f"{name}_{k}") for k, like in enumerate(likes)]
        made = [x.op for x in handed]  # which an assignment in the function (``c[0] = 1``) leaves as they are
        result = fn(*states.tree_map(lambda k: handed[k], list(args)))
        leaves, structure = states.flatten(result)
        outputs = tuple(as_output(leaf, graph) for leaf in leaves)
    graph.closed_by = describe(fn)
    inputs = tuple([op.outputs[0] for op in made])
    return TracedBody(graph, inputs, outputs, structure, tuple(states.paths(result)), getattr(fn, "__name__", name))


def with_equal_room(bodies: list[TracedBody]) -> list[TracedBody]:
    """The branches with room in TensorArrays that some of them leave empty and others write to."""
    results = [pytree.unflatten(body.structure, list(body.outputs)) for body in bodies]
    if not any(map(has_empty, results)):
        return bodies
    return [_returning(body, filled_like(result, results)) for body, result in zip(bodies, results, strict=True)]


def _returning(body: TracedBody, result: Any) -> TracedBody:
    """The body with another result."""
    leaves, structure = states.flatten(result)
    with body.graph.reopened():
        outputs = tuple(as_output(leaf, body.graph) for leaf in leaves)
    return replace(body, outputs=outputs, structure=structure, paths=tuple(states.paths(result)))


def _stand_in(like: Tensor | TensorSpec, name: str) -> Tensor:
    x = placeholder(like.dtype, like.shape, name=as_name(name))
    x.is_weak = isinstance(like, Tensor) and like.is_weak
    return x


def as_output(leaf: Any, graph: Body) -> Tensor:
    """A leaf of a result as a tensor of the body; Python numbers are weak."""
    if isinstance(leaf, Tensor) or hasattr(leaf, "as_graph_element"):
        found = graph.as_graph_element(leaf)
        assert isinstance(found, Tensor)
        return found
    made: Tensor = call("constant", leaf, graph=graph)
    made.is_weak = type(leaf) in (int, float, complex)
    return made


def graph_for(*trees: Any) -> Graph | None:
    """The graph to build in; None where there are only values."""
    graph = graph_in(states.flatten(trees)[0])
    return default_graph() if graph is None and in_graph() else graph


def as_operand(leaf: Any, graph: Graph) -> Tensor:
    """A leaf as a tensor of the graph; Python numbers are weak."""
    if isinstance(leaf, Tensor) or hasattr(leaf, "as_graph_element"):
        found = graph.as_graph_element(leaf)
        assert isinstance(found, Tensor)
        return found
    made = as_tensor(leaf, graph=graph)
    if type(leaf) in (bool, int, float, complex):
        made.is_weak = type(leaf) is not bool
    return made


def numbered(trees: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The leaves of some trees, and the trees with the numbers of their leaves in place of these."""
    leaves: list[Any] = []
    shapes = []
    for tree in trees:
        own, structure = states.flatten(tree)
        shapes.append(pytree.unflatten(structure, range(len(leaves), len(leaves) + len(own))))
        leaves += own
    return leaves, shapes


def counted(bodies: Sequence[TracedBody], at: int, are_steps: Sequence[bool]) -> list[TracedBody]:
    """The bodies with the number of the step as input ``at``, where one of them asks for it: random numbers follow from
    it. What is a step of a loop has the number of the next one as output ``at``.
    """
    if all(body.graph.counter is None for body in bodies):
        return list(bodies)
    return [_counting(body, at, is_step) for body, is_step in zip(bodies, are_steps, strict=True)]


def _counting(body: TracedBody, at: int, is_step: bool) -> TracedBody:
    with body.graph.reopened():
        step = body.graph.step()
        following = (call("add", step, np.uint64(1)),) if is_step else ()
    inputs = (*body.inputs[:at], step, *body.inputs[at:])
    return replace(body, inputs=inputs, outputs=(*body.outputs[:at], *following, *body.outputs[at:]))


def first_step(bodies: Sequence[TracedBody]) -> tuple[Tensor, ...]:
    """What the bodies are given for the number of the first step: nothing where none asks for it."""
    if all(body.graph.counter is None for body in bodies):
        return ()
    return (call("constant", np.uint64(0), graph=bodies[0].graph.outer),)


def close_over(bodies: Sequence[TracedBody]) -> tuple[tuple[Tensor, ...], tuple[Subgraph, ...]]:
    """What the bodies read from outside, and the bodies with that as their first inputs."""
    keys: dict[tuple[Operation, int], Tensor] = {}
    for body in bodies:
        keys |= {key: inner for key, inner in body.graph.captures.items() if key not in keys}
    subgraphs = []
    for body in bodies:
        with body.graph.reopened():
            own = body.graph.captures
            first = tuple([own[key] if key in own else _unread(like) for key, like in keys.items()])
        subgraphs.append(Subgraph(body.graph, (*first, *body.inputs), body.outputs, body.name))
    return tuple(outside(list(keys))), tuple(subgraphs)


def _unread(like: Tensor) -> Tensor:
    return placeholder(like.dtype, like.spec.shape, name="unread")


def standing_for(fn: Callable[..., Any], step: Callable[..., Any]) -> Callable[..., Any]:
    """The step with the name and the place of the user's function, on whose behalf it is called."""
    step.__name__ = getattr(fn, "__name__", step.__name__)
    step.__wrapped__ = fn  # type: ignore[attr-defined]
    return step
