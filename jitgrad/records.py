"""Dataclasses and named tuples that cost a start little; for readers and type checkers, the standard library's.

``dataclasses.dataclass`` compiles the source of up to six methods when it makes a class, 0.8 ms (Zen 3), and an import
makes fifty. Here methods are functions that all classes share, but for those that are called often: 0.1 ms.
``typing.NamedTuple`` compiles the annotation of each field, to see whether it is one: half of 0.2 ms. The rest, like
fields, ``replace()`` and patterns, is left to the standard library.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTupleType(type):
        def __new__(meta, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> Any:
            if not bases:
                return super().__new__(meta, name, bases, namespace)
            fields = namespace["__annotations__"]
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            made = collections.namedtuple(name, fields, defaults=defaults)
            for key, value in namespace.items():
                setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_NamedTupleType):
        """As ``typing.NamedTuple``, for classes with fields."""

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True) -> Any:
        """As ``dataclasses.dataclass``, for classes whose fields are all given to ``__init__``."""

        def make(cls: Any) -> Any:
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
            methods = {"__init__": _first_init(cls, _frozen_init if frozen else _init)}
            if repr:
                methods["__repr__"] = _repr
            if eq:
                methods["__eq__"] = _later(cls, "__eq__", _eq)
                methods["__hash__"] = _later(cls, "__hash__", _hash) if frozen else None
            if frozen:
                methods |= _FROZEN
            for name in methods.keys() - vars(cls).keys():
                setattr(cls, name, methods[name])
            return cls

        return make


Names = dict[str, Any]
Source = Callable[[Any, Names], str]
_SELDOM = 30  # calls that take less than compiling


def _later(cls: Any, name: str, source: Source) -> Callable[..., Any]:
    """A method that is compiled when it is first called."""
    return lambda self, *args: _compiled(cls, name, source)(self, *args)


def _compiled(cls: Any, name: str, source: Source) -> Callable[..., Any]:
    """The method that is compiled from its source, put into the class."""
    names: Names = {}
    exec(source(cls, names), names)
    method: Callable[..., Any] = names[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    setattr(cls, name, method)
    return method


def _first_init(cls: Any, source: Source) -> Callable[..., None]:
    """An ``__init__`` that is compiled when it has been called often, or wrongly, so that it says what is wrong."""
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    calls = 0

    def first(self: Any, /, *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        values = args if len(args) == len(names) and not kwargs else _values(fields, args, kwargs)
        if values is None or calls > _SELDOM:
            _compiled(cls, "__init__", source)(self, *args, **kwargs)
            return
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)
        if hasattr(cls, "__post_init__"):
            self.__post_init__()

    return first


def _values(fields: Sequence[Any], args: Sequence[Any], kwargs: Names) -> Sequence[Any] | None:
    """Of all fields; None where a call gives one twice or not at all, or what is none."""
    rest = fields[len(args) :]
    given = [field.name for field in rest if field.name in kwargs]
    if len(args) > len(fields) or len(given) < len(kwargs):
        return None
    made = [kwargs[field.name] if field.name in kwargs else _default(field) for field in rest]
    return None if any(value is dataclasses.MISSING for value in made) else (*args, *made)


def _default(field: Any) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _init(cls: Any, names: Names) -> str:
    return _init_by(cls, names, lambda name, value: f"self.{name} = {value}")


def _frozen_init(cls: Any, names: Names) -> str:
    """Slots are set by their descriptors, in half of the time that ``object.__setattr__`` takes to look for them."""

    def put(name: str, value: str) -> str:
        slot = vars(cls).get(name)
        if not isinstance(slot, MemberDescriptorType):
            return f"put(self, {name!r}, {value})"
        names[f"put_{name}"] = slot.__set__
        return f"put_{name}(self, {value})"

    names["put"] = object.__setattr__
    return _init_by(cls, names, put)


def _init_by(cls: Any, names: Names, put: Callable[[str, str], str]) -> str:
    names["unset"] = object()
    given, lines = ["self"], []
    for field in dataclasses.fields(cls):
        name = value = field.name
        if field.default is not dataclasses.MISSING:
            names[f"default_{name}"] = field.default
            given.append(f"{name}=default_{name}")
        elif field.default_factory is not dataclasses.MISSING:
            names[f"make_{name}"] = field.default_factory
            given.append(f"{name}=unset")
            value = f"make_{name}() if {name} is unset else {name}"
        else:
            given.append(name)
        lines.append(put(name, value))
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    return "\n ".join((f"def __init__({', '.join(given)}):", *lines, "return"))


def _eq(cls: Any, names: Names) -> str:
    compared = f"{_compared(cls, 'self')} == {_compared(cls, 'other')}"
    return f"def __eq__(self, other):\n return {compared} if other.__class__ is self.__class__ else NotImplemented"


def _hash(cls: Any, names: Names) -> str:
    return f"def __hash__(self):\n return hash({_compared(cls, 'self')})"


def _compared(cls: Any, owner: str) -> str:
    return f"({''.join([f'{owner}.{field.name},' for field in dataclasses.fields(cls) if field.compare])})"


@recursive_repr()
def _repr(self: Any) -> str:
    parts = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _refuse(self: Any, name: str, value: object = None) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change {type(self).__qualname__}.{name}: it is frozen")


def _set_state(self: Any, state: Any) -> None:
    """For copies and pickles: attributes in the dictionary, and slots."""
    for attributes in state if isinstance(state, tuple) else (state,):
        for name, value in (attributes or {}).items():
            object.__setattr__(self, name, value)


_FROZEN = {"__setattr__": _refuse, "__delattr__": _refuse, "__setstate__": _set_state}
