"""States: the trees that loops carry, and their leaves; what is a leaf elsewhere and has parts here is taken apart.

IndexedSlices are a leaf that stands for a dense tensor. As part of a state they stay what they are: rows and their
positions are carried, each a leaf, and a body gets slices again.
"""

from __future__ import annotations

from typing import Any

from jitgrad import pytree
from jitgrad.graph import Tensor
from jitgrad.ops.slices import IndexedSlices


class _Rows:
    """IndexedSlices as a container; put together, they are IndexedSlices again."""

    def __init__(self, slices: IndexedSlices) -> None:
        self.slices = slices


pytree.declare(
    _Rows,
    lambda rows: ((rows.slices.values, rows.slices.indices), rows.slices.dense_shape, ("values", "indices")),
    lambda shape, parts: IndexedSlices.of_parts(parts[0], parts[1], shape),
)


def _opened(tree: Any) -> Any:
    if not any(map(_has_parts, pytree.flatten(tree)[0])):
        return tree
    return pytree.tree_map(lambda leaf: _Rows(leaf) if _has_parts(leaf) else leaf, tree)


def _has_parts(leaf: Any) -> bool:
    """Whether a leaf is carried as rows and their positions: slices of a shape that is not a value of the graph."""
    return isinstance(leaf, IndexedSlices) and not isinstance(leaf.dense_shape, Tensor)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a state and its structure."""
    return pytree.flatten(_opened(tree))


def paths(tree: Any) -> list[str]:
    """Per leaf, the expression that reaches it."""
    return pytree.paths(_opened(tree))


def flatten_up_to(tree: Any, other: Any) -> list[Any]:
    """The parts of ``other`` that stand where a state has leaves."""
    return pytree.flatten_up_to(_opened(tree), other)


def tree_map(fn: Any, tree: Any) -> Any:
    """The state with ``fn`` of each leaf in the leaf's place."""
    leaves, structure = flatten(tree)
    return pytree.unflatten(structure, [fn(leaf) for leaf in leaves])
