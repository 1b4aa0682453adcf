"""gradients() with every gradient a dense tensor: what it is given is made tensors of one graph for the walk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jitgrad.collecting import collection_paused
from jitgrad.gradient_rules import RuleError
from jitgrad.gradient_walk import Options, Walk
from jitgrad.graph import Graph, Operation, Tensor, default_graph, graph_of
from jitgrad.masks import Masks
from jitgrad.ops.state import Variable
from jitgrad.reachability import operations_between

Tensors = list[Tensor]
Found = list[Tensor | None]


def gradients(
    ys: Any, xs: Any, grad_ys: Any = None, options: Options | None = None, masks: Masks | None = None
) -> list[Tensor | None]:
    """As ``jitgrad.gradients``, which tells the arguments and errors, with every gradient a dense tensor.

    Integer and bool ys carry no gradient. ``masks`` has those of ``grad_ys``, and gets those of the gradients.
    """
    return _gradients(ys, xs, grad_ys, options, masks)[0]


def gradients_and_operations(
    ys: Any, xs: Any, grad_ys: Any = None, options: Options | None = None
) -> tuple[list[Tensor | None], list[Operation]]:
    """The gradients, and the operations that were made for them."""
    found, graph, before = _gradients(ys, xs, grad_ys, options, None)
    return found, graph.operations_since(before)


def _gradients(
    ys: Any, xs: Any, grad_ys: Any, options: Options | None, masks: Masks | None
) -> tuple[list[Tensor | None], Graph, int]:
    """The gradients, their graph, and how many operations it had before."""
    options = options or Options()
    targets = _as_tensors(ys, default_graph())
    around = graph_of(targets)
    sources = _as_tensors(xs, around)
    stopped = set(_as_tensors(options.stopped, around)) if options.stopped is not None else set()
    graph = graph_of([*targets, *sources])
    for t in (*targets, *sources, *stopped):
        graph.as_graph_element(t)
    if targets and targets[0].graph.outer is not None:  # in a body, where others stand for what is read from around
        here = targets[0].graph.captured
        sources, stopped = [here(x) for x in sources], {here(x) for x in stopped}
    before = len(graph)
    found = _followed(graph, targets, sources, grad_ys, stopped, options) if masks is None else None
    if found is None:
        found = _walked(graph, targets, sources, grad_ys, stopped, options, masks or Masks())
    return found, graph, before


def _walked(
    graph: Graph, targets: Tensors, sources: Tensors, grad_ys: Any, stopped: set[Tensor], options: Options, masks: Masks
) -> Found:
    with graph.name_scope(options.name) as scope, graph.making_gradients(), collection_paused():
        walk = Walk(graph, scope, sources, stopped, options, masks)
        walk.seed(targets, grad_ys)
        walk.run(targets)
        return [walk.gradient_of(x) for x in sources]


def _followed(
    graph: Graph, targets: Tensors, sources: Tensors, grad_ys: Any, stopped: set[Tensor], options: Options
) -> Found | None:
    """The gradients of a graph that follows another: copied from that, or noted for others; None where neither is."""
    follower = graph.follower
    how = (options.name, options.is_colocated, options.is_gated, options.method)
    asked = follower.ask(targets, sources, grad_ys, list(stopped), how) if follower is not None else None
    if follower is None or asked is None:
        return None
    found: Found | None = follower.recall(asked)
    if found is None:
        first, names = len(graph), graph.count_of_names
        found = _walked(graph, targets, sources, grad_ys, stopped, options, Masks())
        follower.note(asked, first, names, found)
    return found


def _as_tensors(value: Any, graph: Graph) -> list[Tensor]:
    """What a value lists, as tensors; a Variable is read in the graph."""
    is_other = isinstance(value, str | np.ndarray) or not isinstance(value, Iterable)
    if is_other and not hasattr(value, "as_graph_element"):
        raise TypeError(f"gradients takes tensors for ys and xs, got {value!r}")
    items = [value] if isinstance(value, Tensor) or hasattr(value, "as_graph_element") else list(value)
    return [_as_tensor(item, graph) for item in items]


def _as_tensor(item: Any, graph: Graph) -> Any:
    if isinstance(item, Variable):
        is_inside = graph.outer is not None
        return item.as_graph_element(graph) if is_inside else item.first_read(graph)  # which the other reads follow
    return item.as_graph_element() if hasattr(item, "as_graph_element") else item


__all__ = ["Options", "RuleError", "gradients", "gradients_and_operations", "operations_between"]
