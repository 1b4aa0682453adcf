"""Groups with a matrix per lane: whether a node fits into such a draft, and over which axes; see small.

All nodes of such a group run over the matrices; each has inner axes of its own, because what a node makes is read
from a tile in cache, at any place, and never passed on in a register.
"""

from __future__ import annotations

from jitgrad.compiler.fusing.drafts import MOST_WEIGHT, Draft, weight_of
from jitgrad.compiler.fusing.groups import Axes
from jitgrad.compiler.fusing.nodes import MAP, REDUCE, ROUTINE, Node
from jitgrad.compiler.fusing.small import is_tiny, sized

_MOST_INNER = 3


def lead_dims(node: Node, lead: tuple[int, ...]) -> list[int] | None:
    """The leading dimensions of a node's domain that run over the extent classes ``lead``; None when others do."""
    dims = sized(node.classes)[: len(lead)]
    if tuple(node.classes[d] for d in dims) != lead:
        return None
    return dims if node.batch is None or dims == sized(node.classes[: node.batch]) else None


def fit_matrices(draft: Draft, node: Node, misread: set[int]) -> Axes | str:
    """The axes of a node in a draft with a matrix per lane, or why it cannot join; ``misread`` are the values
    that it reads otherwise than matrix by matrix.
    """
    if draft.weight + weight_of(node) > MOST_WEIGHT:
        return f"the kernel is full: its ops weigh {draft.weight} of {MOST_WEIGHT}"
    assert draft.lead is not None
    dims = lead_dims(node, draft.lead)
    if dims is None:
        return "it does not run over the same matrices"
    return _objection(draft, node, dims, misread) or matrix_axes(draft, node, dims)


def _objection(draft: Draft, node: Node, dims: list[int], misread: set[int]) -> str | None:
    inner = [d for d in sized(node.classes) if d not in dims]
    if node.form not in (MAP, REDUCE, ROUTINE) or node.combine.startswith("arg"):
        return "it is neither an elementwise op nor a sum nor a routine"
    if node.batch is None and not any(v in draft.out_axes for v in node.reads):
        return "it reads nothing that is made matrix by matrix"
    if len(inner) > _MOST_INNER or not all(is_tiny(node.shape[d]) for d in inner):
        return "its matrices are not small"
    if misread or node.op in {f"iota{d}" for d in dims}:
        return "it reads across matrices"
    if 0 < sum(d in dims for d in node.along) < len(dims):
        return "it combines along some of the axes that count matrices"
    return None


def matrix_axes(draft: Draft, node: Node, dims: list[int]) -> Axes:
    """The leading axes for ``dims``, new ones for all others."""
    first = max(len(draft.axes), len(dims))
    inner = {d: first + k for k, d in enumerate(d for d in sized(node.classes) if d not in dims)}
    place = dict(zip(dims, range(len(dims)), strict=True)) | inner
    return tuple(place.get(d) for d in range(len(node.classes)))
