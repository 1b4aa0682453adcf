"""What operations get from where they are made: names, places, attrs, rules, and what they run after. A graph has such
scopes; they make no operations.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jitgrad.errors import layout
from jitgrad.operations import Here, Operation, Tensor
from jitgrad.sources import checked_name


class _Inside:
    """Context manager: operations made inside are made at another ``Here``, which ``move`` makes of the present one."""

    __slots__ = ("before", "graph", "move")

    def __init__(self, graph: Scopes, move: Callable[[Here], Here]) -> None:
        self.graph = graph
        self.move = move

    def __enter__(self) -> None:
        self.before = self.graph._here
        self.graph._here = self.move(self.before)

    def __exit__(self, *error: object) -> None:
        self.graph._here = self.before


class _At:
    """Context manager: operations made inside are made at this ``Here``."""

    __slots__ = ("before", "graph", "here")

    def __init__(self, graph: Scopes, here: Here) -> None:
        self.graph = graph
        self.here = here

    def __enter__(self) -> None:
        self.before = self.graph._here
        self.graph._here = self.here

    def __exit__(self, *error: object) -> None:
        self.graph._here = self.before


class Scopes:
    """The scopes of a graph that are active, and the names that it has used."""

    def __init__(self) -> None:
        self._here = Here()
        self._names: dict[str, int] = {}

    def as_graph_element(self, obj: Any) -> Tensor | Operation:
        """The tensor or operation of the graph that a name or an object stands for."""
        raise NotImplementedError

    @property
    def here(self) -> Here:
        """What the active scopes give to new operations."""
        return self._here

    # -- names -----------------------------------------------------------------------------------------------------

    def unique_name(self, name: str) -> str:
        """``name`` in the current name scope, with ``_1``, ``_2``, ... appended when it is taken."""
        full, names = self._here.name_scope + name, self._names
        count = names.get(full)
        if count is None:
            names[full] = 1
            return full
        while (candidate := f"{full}_{count}") in names:
            count += 1
        names[full] = count + 1
        names[candidate] = 1
        return candidate

    @property
    def count_of_names(self) -> int:
        """How many names are in use."""
        return len(self._names)

    def names_behind(self, count: int) -> dict[str, int]:
        """The names in use behind the first so many, and those of which they are numbered copies."""
        names, found = self._names, dict[str, int]()
        for name in itertools.islice(reversed(names), len(names) - count):
            found[name] = names[name]
            base, _, tail = name.rpartition("_")
            if tail.isdigit() and base in names:
                found[base] = names[base]
        return found

    def take_names(self, names: Mapping[str, int]) -> None:
        """Let names be in use, as `names_behind` gives them."""
        self._names.update(names)

    # -- scopes ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Operations made inside are named ``name/...``; a name that ends in "/" is entered again as it is; ""
        is the root.
        """
        if not name:
            scope = ""
        elif name.endswith("/"):
            scope = checked_name(name)
        else:
            scope = self.unique_name(checked_name(name)) + "/"
        with _Inside(self, lambda here: here._replace(name_scope=scope)):
            yield scope

    def attr_scope(self, **attrs: Any) -> contextlib.AbstractContextManager[None]:
        """Operations made inside get these attrs; a callable value is asked with each operation."""
        return self.only_attrs({**self._here.attrs, **attrs})

    def only_attrs(self, attrs: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Operations made inside get exactly these attrs, whatever scope is active."""
        fixed, asks = MappingProxyType(dict(attrs)), any(map(callable, attrs.values()))
        return _Inside(self, lambda here: here._replace(attrs=fixed, asks=asks))

    def current_attr(self, key: str) -> Any:
        """What the active attr scope gives for ``key``; None when it gives nothing."""
        return self._here.attrs.get(key)

    def control_dependencies(self, ops: Sequence[Any] | None) -> contextlib.AbstractContextManager[None]:
        """Operations made inside run after ``ops``; None drops the dependencies of the enclosing scopes."""
        if ops is None:
            return _Inside(self, lambda here: here._replace(control=()))
        if not isinstance(ops, Iterable) or isinstance(ops, str):
            raise TypeError(layout(f"control_dependencies takes operations and tensors in a list, got {ops!r}"))
        elements = [self.as_graph_element(op) for op in ops]
        wanted = [element.op if isinstance(element, Tensor) else element for element in elements]
        control = tuple(dict.fromkeys((*self._here.control, *wanted)))
        return _Inside(self, lambda here: here._replace(control=control))

    @property
    def has_control_dependencies(self) -> bool:
        """Whether new operations run after others that they do not read."""
        return bool(self._here.control)

    def device(self, name: str | None) -> contextlib.AbstractContextManager[None]:
        """Operations made inside carry this device string."""
        if not isinstance(name, str | None):
            raise TypeError(f"a device is a string or None, got {name!r}")
        return _Inside(self, lambda here: here._replace(device=name or ""))

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> contextlib.AbstractContextManager[None]:
        """Operations made inside carry the device of ``op``, and its colocation groups beside those of the enclosing
        scopes, or alone with ``ignore_existing``.
        """
        element = self.as_graph_element(op)
        target = element.op if isinstance(element, Tensor) else element
        return _Inside(self, lambda here: (here._replace(colocation=()) if ignore_existing else here).beside(target))

    def gradient_override_map(self, op_type_map: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Operations made inside, of the types that ``op_type_map`` has, get another gradient rule.

        It gives per op type a rule ``fn(op, *grads)``, the name under which ``register_gradient`` knows one, or another
        op type, whose rule is taken: ``{"rint": "identity"}`` lets gradients pass straight through. TypeError for
        anything else.
        """
        for op_type, rule in op_type_map.items():
            if not isinstance(op_type, str) or not (isinstance(rule, str) or callable(rule)):
                given = f"{op_type!r}: {rule!r}"
                raise TypeError(f"gradient_override_map takes op types and rules or names of rules, got {given}")
        return _Inside(self, lambda here: here._replace(rules=MappingProxyType({**here.rules, **op_type_map})))

    def derived_from(
        self,
        op: Operation,
        attrs: MappingProxyType[str, Any],
        name_scope: str | None = None,
        is_colocated: bool = False,
    ) -> contextlib.AbstractContextManager[None]:
        """Operations made inside have ``op`` as their ``original_op``, its source line and exactly these attrs; the
        names begin with ``name_scope``, if one is given, and ``is_colocated`` gives them the place of ``op``.
        """

        here = self._here
        device, groups = (op.device, tuple(op.colocation_groups)) if is_colocated else (here.device, here.colocation)
        scope = here.name_scope if name_scope is None else name_scope
        return _At(self, Here(device, groups, scope, attrs, False, here.control, op, op.source, here.rules, True))

    def made_at(self, here: Here) -> contextlib.AbstractContextManager[None]:
        """Operations made inside are made ``here``."""
        return _At(self, here)

    def in_scope(self, name_scope: str, attrs: MappingProxyType[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Operations made inside are named ``name_scope...`` and have exactly these attrs."""
        here = self._here._replace(name_scope=name_scope, attrs=attrs, asks=False)
        return _At(self, here)

    def continuing(
        self, op: Operation, attrs: MappingProxyType[str, Any], name_scope: str
    ) -> contextlib.AbstractContextManager[None]:
        """Operations made inside go on with what ``op`` makes for a gradient: they have its place, the operation that
        it derives from and its source line, these attrs, and names that begin with ``name_scope``.
        """

        def beside(here: Here) -> Here:
            return here._replace(
                device=op.device, colocation=op._colocation, name_scope=name_scope, attrs=attrs, asks=False,
                original_op=op.original_op, source=op.source, is_gradient=True,
            )  # fmt: skip

        return _Inside(self, beside)

    def making_gradients(self) -> contextlib.AbstractContextManager[None]:
        """Operations made inside say that they are made for a gradient."""
        return _Inside(self, lambda here: here._replace(is_gradient=True))
