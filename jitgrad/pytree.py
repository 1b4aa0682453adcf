"""Pytrees: nested containers taken apart into leaves and put together again; a thin layer over optree,
loaded when used.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.forking import wait_for_when_forking

_namespace = "jitgrad"
_registering = threading.RLock()
wait_for_when_forking(_registering)
_plain: set[type] = {np.ndarray, float, int, bool, complex, str, np.float64, np.float32, np.int64}
_containers: set[type] = set()


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure. Lists, tuples, dicts, named tuples and dataclasses are containers; None is
    structure.
    """
    import optree

    leaves, structure = optree.tree_flatten(tree, namespace=_namespace)
    for leaf in leaves:
        if type(leaf) not in _plain and _learn(type(leaf)):
            return flatten(tree)
    return leaves, structure


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The tree of that structure with these leaves."""
    import optree

    return optree.tree_unflatten(structure, leaves)


def tree_map(fn: Callable[..., Any], tree: Any) -> Any:
    """The tree with ``fn`` of each leaf in the leaf's place."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [fn(leaf) for leaf in leaves])


def paths(tree: Any, root: str = "") -> list[str]:
    """Per leaf, the expression that reaches it from ``root``: ``params['w'][0]``."""
    import optree

    flatten(tree)
    accessors = optree.tree_accessors(tree, namespace=_namespace)
    return [accessor.codify(root) for accessor in accessors]


def _learn(cls: type) -> bool:
    """Make a dataclass known to optree as a container; False for every other type, which is remembered."""
    if not dataclasses.is_dataclass(cls):
        _plain.add(cls)
        return False
    with _registering:
        if cls not in _containers:
            _register(cls)
            _containers.add(cls)
    return True


def _register(cls: Any) -> None:
    import optree

    names = tuple(field.name for field in dataclasses.fields(cls))

    def take_apart(value: Any) -> tuple[tuple[Any, ...], None, tuple[str, ...]]:
        return tuple(getattr(value, name) for name in names), None, names

    def put_together(_: Any, values: Any) -> Any:
        made = object.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)
        return made

    optree.register_pytree_node(
        cls, take_apart, put_together, path_entry_type=optree.DataclassEntry, namespace=_namespace
    )


def flatten_up_to(structure_of: Any, tree: Any) -> list[Any]:
    """The parts of ``tree`` that stand where ``structure_of`` has leaves. ValueError when the structures
    differ.
    """
    structure = flatten(structure_of)[1]
    return list(structure.flatten_up_to(tree))
