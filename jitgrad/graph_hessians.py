"""Second derivatives in graphs: whole Hessians, batched over all unit directions at once, and their products with
vectors; the same of functions is in transforms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.batching import batch
from jitgrad.batching_rules import Lead, outer_pattern
from jitgrad.constant_values import standing_in
from jitgrad.control.deferred import call_replayed
from jitgrad.differentiation import units
from jitgrad.errors import DTypeError, GradientError, ShapeError, layout
from jitgrad.gradients import Options, gradients, operations_between
from jitgrad.graph import Graph, Tensor, apply_one, default_graph, graph_of
from jitgrad.opdef import find
from jitgrad.operators import call, is_open
from jitgrad.ops.common import as_tensor
from jitgrad.ops.state import Variable
from jitgrad.scopes import compile_attrs
from jitgrad.seeds import is_number_for
from jitgrad.sources import operation_text
from jitgrad.sparse import warn_of_dense
from jitgrad.spec import is_compatible, is_inexact, shape_text
from jitgrad.tangents import curvature_along
from jitgrad.trace import same


def hessians(
    ys: Any,
    xs: Any,
    name: str = "hessians",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: Any = None,
) -> list[Tensor]:
    """Per x of ``xs`` the second derivatives of the sum of all ``ys``, of shape ``x.shape + x.shape``.

    ``ys`` and ``xs`` are a tensor or a sequence of tensors of any shape, also unknown until they are fed. Zeros where
    ys are linear in x or do not depend on it. The other arguments are those of ``gradients``. One derivative with a
    stand-in for the direction, then all unit directions at once: no loop. DTypeError for an x that carries no gradient.
    """
    targets = _tensors(ys, default_graph())
    sources = _tensors(xs, graph_of(targets))
    _refuse_integers(sources)
    options = replace(
        Options.checked(name, colocate_gradients_with_ops, gate_gradients, aggregation_method), name="gradients"
    )  # fmt: skip
    graph = graph_of([*targets, *sources])
    options = replace(
        Options.checked(name, colocate_gradients_with_ops, gate_gradients, aggregation_method), name="gradients"
    )  # fmt: skip
    graph = graph_of([*targets, *sources])
    before = len(graph)
    try:
        with graph.as_default(), graph.name_scope(name):
            return _all_hessians(targets, sources, options)
    except GradientError:
        raise
    except Exception:
        if not any(is_open((*op.inputs, *op.outputs)) for op in operations_between(sources, targets)):
            raise
    graph.forget(before)  # what cannot be batched before shapes are known is, when they are
    with graph.as_default(), graph.only_attrs(compile_attrs(targets[-1].op)):
        found: list[Tensor] = call_replayed(name, lambda ys, xs: _all_hessians(ys, xs, options), targets, sources)
        return found


def _all_hessians(ys: Sequence[Tensor], xs: Sequence[Tensor], options: Options) -> list[Tensor]:
    slopes = gradients(ys, xs, None, options)
    return [_hessian(g, x, options) for g, x in zip(slopes, xs, strict=True)]


def _tensors(value: Any, graph: Graph) -> list[Tensor]:
    """The tensors that ``gradients`` takes these ys or xs for; a Variable is read in the graph."""
    if isinstance(value, str) or not (_is_one(value) or isinstance(value, Iterable)):
        raise TypeError(f"hessians take tensors for ys and xs, got {value!r}")
    items = [value] if _is_one(value) else list(value)
    reads = [x.first_read(graph) if isinstance(x, Variable) else x for x in items]
    return [as_tensor(x) for x in reads]


def _is_one(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "as_graph_element")


def _refuse_integers(xs: Sequence[Tensor]) -> None:
    for x in xs:
        if not is_inexact(x.dtype):
            raise DTypeError(layout(f"{x.name!r} of dtype {x.dtype.name} carries no gradient", op=operation_text(x.op)))


def _hessian(g: Tensor | None, x: Tensor, options: Options) -> Tensor:
    """All derivatives of the gradient ``g`` of x."""
    if g is None:
        return _zeros(x)
    with g.graph.only_attrs(compile_attrs(g.op)):
        seed = standing_in(same(call("zeros_like", g)))
    (along,) = gradients([g], [x], [seed], options)
    if along is None:
        return _zeros(x)
    lead = Lead(x.spec.size) if x.spec.is_known else Lead(None, call("ravel", x))
    with g.graph.only_attrs(compile_attrs(g.op)):
        directions = units(x, lead)
    (rows,) = batch([along], {seed: directions}, lead)
    with g.graph.only_attrs(compile_attrs(along.op)):
        if x.spec.is_known:
            return call("reshape", rows, 2 * x.spec.known_shape)  # type: ignore[no-any-return]
        return apply_one(find("reshape_like"), rows, outer_pattern(x))


def _zeros(x: Tensor) -> Tensor:
    return call("zeros_like", outer_pattern(x))  # type: ignore[no-any-return]


def hessian_vector_product(ys: Any, xs: Any, v: Any) -> list[Tensor]:
    """The Hessian of the sum of all ``ys`` with respect to ``xs``, times ``v``, at the cost of about two gradients.

    ``v`` is a tensor or an array per x, of its shape; a bare one for a bare x. The result is a list like ``xs``, zeros
    where ys are linear. ValueError for another number of vectors than of xs, DTypeError for an x that carries no
    gradient.
    """
    targets = _tensors(ys, default_graph())
    sources = _tensors(xs, graph_of(targets))
    vectors = [v] if _is_one(xs) and not isinstance(v, list | tuple) else [None] if v is None else list(v)
    if len(vectors) != len(sources):
        raise ValueError(f"hessian_vector_product got {len(vectors)} vectors v for {len(sources)} xs")
    _refuse_integers(sources)
    for k, (vector, x) in enumerate(zip(vectors, sources, strict=True)):
        _refuse_vector(k, vector, x)
    graph = graph_of([*targets, *sources])
    with graph.as_default(), graph.name_scope("hessian_vector_product"):
        slopes, before = gradients(targets, sources), len(graph)
        tangents = [as_tensor(t, x.dtype) for t, x in zip(vectors, sources, strict=True)]
        products = curvature_along(slopes, sources, tangents)
        warn_of_dense(graph.operations_since(before), set(products))
        return products


def _refuse_vector(k: int, vector: Any, x: Tensor) -> None:
    """ShapeError for a vector of another shape than x, or none; DTypeError for one that is not of numbers, or complex
    for a real x.
    """
    what, fields = f"hessian_vector_product: v[{k}] does not fit xs[{k}]", {"op": operation_text(x.op)}
    if vector is None:
        raise ShapeError(layout(what, expected=x.spec, got="None", **fields))
    given = vector if hasattr(vector, "shape") else np.asarray(vector)
    if not is_compatible(given.shape, x.shape):
        raise ShapeError(layout(what, expected=x.spec, got=shape_text(given.shape), **fields))
    if not is_number_for(np.dtype(given.dtype), x.dtype):
        raise DTypeError(layout(f"{what}: {given.dtype} for {x.dtype.name}", expected=x.spec, **fields,
                                hint="take .real of it" if given.dtype.kind == "c" else None))  # fmt: skip


__all__ = ["hessian_vector_product", "hessians"]
