"""Pytrees: nested containers taken apart into leaves and put together again; a thin layer over optree.

Taking apart and putting together is done by optree's extension module, which is loaded without the package around it:
2 ms in place of 10. Whatever needs the package imports it.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.forking import wait_for_when_forking
from jitgrad.keys import frozen

TakeApart = Callable[[Any], tuple[tuple[Any, ...], Any, tuple[str, ...]]]
PutTogether = Callable[[Any, Any], Any]
_namespace = "jitgrad"
_registering = threading.RLock()
wait_for_when_forking(_registering)
_plain: set[type] = {np.ndarray, float, int, bool, complex, str, np.float64, np.float32, np.int64}
_containers: set[type] = set()
# Classes that tell how they are taken apart (children, what is fixed, names of the children) and put together again.
_declared: dict[type, tuple[TakeApart, PutTogether]] = {}


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure. Lists, tuples, dicts, named tuples and dataclasses are containers; None is structure, and
    so are fields of dataclasses that are declared static, ``field(metadata={"static": True})``.
    """
    leaves, structure = _native.flatten(tree, None, False, _namespace)
    for leaf in leaves:
        if type(leaf) not in _plain and _learn(type(leaf)):
            return flatten(tree)
    return leaves, structure


def key_orders(tree: Any) -> list[tuple[Any, ...]]:
    """The keys of each dict in a tree that was flattened, in their order: structures are equal in any, and what goes
    through a dict tells them apart.
    """
    kind = type(tree)
    if kind in _plain or tree is None:
        return []
    if isinstance(tree, dict):
        return [tuple(tree), *_orders_in(tree.values())]
    if kind in _declared:
        return _orders_in(_declared[kind][0](tree)[0])
    if kind in _containers:
        return _orders_in([getattr(tree, field.name) for field in dataclasses.fields(tree) if not _is_static(field)])
    return _orders_in(tree) if isinstance(tree, tuple | list | deque) else []


def call_orders(args: Any, kwargs: Any, names_count: bool) -> tuple[Any, ...]:
    """The `key_orders` of a call's arguments, and of the names where they count."""
    named = [kwargs[name] for name in sorted(kwargs)]
    return tuple(kwargs) if names_count else (), *_orders_in(args), *_orders_in(named)


def _orders_in(trees: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [order for tree in trees for order in key_orders(tree)]


def flatten_up_to_class(tree: Any, cls: type) -> tuple[list[Any], Any]:
    """As ``flatten``, with the objects of a class as leaves."""
    flatten(tree)
    leaves, structure = _native.flatten(tree, lambda x: isinstance(x, cls), False, _namespace)
    return leaves, structure


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The tree of that structure with these leaves."""
    return structure.unflatten(leaves)


def is_plain(structure: Any) -> bool:
    """Whether all containers of a structure are lists, tuples and dicts, and no classes of their own."""
    tree = unflatten(structure, range(structure.num_leaves))
    return _is_plain(tree)


def _is_plain(tree: Any) -> bool:
    if type(tree) is dict:
        return all(type(key) is str for key in tree) and all(map(_is_plain, tree.values()))
    return type(tree) is int or tree is None or (type(tree) in (list, tuple) and all(map(_is_plain, tree)))


def _load_native() -> Any:
    """optree's extension module; that of the package, where the package is loaded or cannot be done without."""
    module = None if "optree" in sys.modules else _load_alone()
    if module is None:
        import optree

        module = sys.modules[f"{optree.__name__}._C"]
    return module


def _load_alone() -> Any:
    spec = importlib.util.find_spec("optree")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = os.path.join(folder, f"_C{suffix}")
            if os.path.exists(file):
                return _execute(file)
    return None


def _execute(file: str) -> Any:
    """The module in a file; a later import of the package gives the same one. None if it cannot stand alone."""
    spec = importlib.util.spec_from_file_location("optree._C", file)
    if spec is None or spec.loader is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.flatten((), None, False, _namespace)
    except (ImportError, AttributeError, TypeError):
        return None
    return module


_native = _load_native()


def tree_map(fn: Callable[..., Any], tree: Any) -> Any:
    """The tree with ``fn`` of each leaf in the leaf's place."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [fn(leaf) for leaf in leaves])


def paths(tree: Any, root: str = "") -> list[str]:
    """Per leaf, the expression that reaches it from ``root``: ``params['w'][0]``."""
    plain = _plain_paths(tree, root)
    if plain is not None:
        return plain
    import optree

    flatten(tree)
    accessors = optree.tree_accessors(tree, namespace=_namespace)
    return [accessor.codify(root) for accessor in accessors]


def _plain_paths(tree: Any, root: str) -> list[str] | None:
    """`paths` of a tree of lists, tuples, dicts with text for keys, and None; None for any other."""
    kind = type(tree)
    if kind is list or kind is tuple:
        parts = [(f"{root}[{k}]", item) for k, item in enumerate(tree)]
    elif kind is dict and all(type(key) is str for key in tree):
        parts = [(f"{root}[{key!r}]", tree[key]) for key in sorted(tree)]
    elif kind in _plain:
        return [root]
    elif tree is None:
        return []
    else:
        return None
    found = [_plain_paths(item, path) for path, item in parts]
    return None if None in found else [path for paths in found if paths is not None for path in paths]


def _learn(cls: type) -> bool:
    """Make a dataclass, or a declared class, known to optree as a container; False for other types: remembered."""
    if cls not in _declared and not dataclasses.is_dataclass(cls):
        _plain.add(cls)
        return False
    with _registering:
        if cls not in _containers:
            _register(cls)
            _containers.add(cls)
    return True


def declare(cls: type, take_apart: TakeApart, put_together: PutTogether) -> None:
    """Let objects of a class be containers: ``take_apart(object)`` gives its children, what is fixed, and the names of
    the children; ``put_together(fixed, children)`` an object.
    """
    _declared[cls] = take_apart, put_together


def _register(cls: Any) -> None:
    import optree

    if cls in _declared:
        optree.register_pytree_node(
            cls, *_declared[cls], path_entry_type=optree.GetAttrEntry, namespace=_namespace
        )
        return

    names = tuple(field.name for field in dataclasses.fields(cls) if not _is_static(field))
    fixed = tuple(field.name for field in dataclasses.fields(cls) if _is_static(field))

    def take_apart(value: Any) -> tuple[tuple[Any, ...], _Fixed | None, tuple[str, ...]]:
        given = _Fixed({name: getattr(value, name) for name in fixed}) if fixed else None
        return tuple(getattr(value, name) for name in names), given, names

    def put_together(given: Any, values: Any) -> Any:
        made = object.__new__(cls)
        for name, value in (*zip(names, values, strict=True), *(given.values.items() if given else ())):
            object.__setattr__(made, name, value)
        return made

    optree.register_pytree_node(
        cls, take_apart, put_together, path_entry_type=optree.DataclassEntry, namespace=_namespace
    )


def _is_static(field: dataclasses.Field[Any]) -> bool:
    return bool(field.metadata.get("static"))


class _Fixed:
    """The static fields of a dataclass, compared as static arguments are: 1, 1.0 and True differ."""

    __slots__ = ("key", "values")

    def __init__(self, values: dict[str, Any]) -> None:
        self.values, self.key = values, frozen(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return ", ".join([f"{name}={value!r}" for name, value in self.values.items()])


def flatten_up_to(structure_of: Any, tree: Any) -> list[Any]:
    """The parts of ``tree`` that stand where ``structure_of`` has leaves. ValueError when the structures
    differ.
    """
    structure = flatten(structure_of)[1]
    return list(structure.flatten_up_to(tree))
