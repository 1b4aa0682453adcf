"""Dataclasses and named tuples that cost a start little; for readers and type checkers, the standard library's.

``dataclasses.dataclass`` compiles the source of up to six methods when it makes a class, 0.8 ms (Zen 3), and an import
makes fifty. Here methods are functions that all classes share, but for those that are called often, which are made when
they are first called, of code that classes with as many fields share: 0.1 ms.
``typing.NamedTuple`` compiles the annotation of each field, to see whether it is one, and ``collections.namedtuple`` a
``__new__``: 0.15 to 0.2 ms together, here 0.02. The rest, like fields of dataclasses, ``replace()`` and patterns, is
left to the standard library.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable
from reprlib import recursive_repr
from types import CodeType, FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTupleType(type):
        def __new__(meta, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> Any:
            if not bases:
                return super().__new__(meta, name, bases, namespace)
            fields = tuple(namespace["__annotations__"])
            defaults = {field: namespace.pop(field) for field in fields if field in namespace}
            return type(name, (tuple,), {**_TUPLE, **_parts_of_tuple(fields, defaults), **namespace})

    class NamedTuple(metaclass=_NamedTupleType):
        """As ``typing.NamedTuple``, for classes with fields."""

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True) -> Any:
        """As ``dataclasses.dataclass``, for classes whose fields are all given to ``__init__``."""

        def make(cls: Any) -> Any:
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
            methods = {"__init__": _later(cls, "__init__", _frozen_init if frozen else _init, _shared_init)}
            if repr:
                methods["__repr__"] = _repr
            if eq:
                methods["__eq__"] = _later(cls, "__eq__", _eq, _shared_eq)
                methods["__hash__"] = _later(cls, "__hash__", _hash, _shared_hash) if frozen else None
            if frozen:
                methods |= _FROZEN
            for name in methods.keys() - vars(cls).keys():
                setattr(cls, name, methods[name])
            return cls

        return make


def _parts_of_tuple(fields: tuple[str, ...], defaults: dict[str, Any]) -> dict[str, Any]:
    """What a class of named tuples has of its own."""
    code = _new_of(len(fields)).replace(co_varnames=("_cls", *fields))
    own = {"_fields": fields, "__match_args__": fields, "_field_defaults": defaults}
    places = {field: vars(_Places)[f"f{k}"] for k, field in enumerate(fields)}
    new = FunctionType(code, {"new": tuple.__new__}, "__new__", tuple(defaults.values()))
    return {**own, **places, "__new__": new}


@functools.cache
def _new_of(count: int) -> CodeType:
    given = ", ".join([f"f{k}" for k in range(count)])
    code: CodeType = eval(f"lambda _cls, {given}: new(_cls, ({given},))").__code__
    return code.replace(co_name="__new__")


_Places = collections.namedtuple("_Places", [f"f{k}" for k in range(40)])  # type: ignore[misc]
"""Of which all classes of named tuples have what gives the item at a place."""


def _make(cls: Any, iterable: Iterable[Any]) -> Any:
    made = tuple.__new__(cls, iterable)
    if len(made) != len(cls._fields):
        raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
    return made


def _replace(self: Any, /, **changes: Any) -> Any:
    made = self._make(map(changes.pop, self._fields, self))
    if changes:
        raise ValueError(f"Got unexpected field names: {list(changes)!r}")
    return made


def _tuple_repr(self: Any) -> str:
    parts = [f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True)]
    return f"{type(self).__name__}({', '.join(parts)})"


def _as_dict(self: Any) -> dict[str, Any]:
    return dict(zip(self._fields, self, strict=True))


_TUPLE: dict[str, Any] = {
    "__slots__": (), "_make": classmethod(_make), "_replace": _replace, "__replace__": _replace, "_asdict": _as_dict,
    "__repr__": _tuple_repr, "__getnewargs__": lambda self: tuple(self),
}  # fmt: skip


Names = dict[str, Any]
Source = Callable[[Any, Names], str]


def _later(cls: Any, name: str, source: Source, shared: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is made when it is called more than a few times; until then ``shared`` takes the calls."""
    calls = 0

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = shared(cls, self, *args, **kwargs) if calls <= _FEW else _UNTAKEN
        return _made(cls, name, source)(self, *args, **kwargs) if result is _UNTAKEN else result

    return method


_FEW = 4
"""A call of a shared method takes some microseconds, to make that of a class 25, and 100 more where its code has to be
compiled. Of most classes a process that finds its plans on disk has fewer instances.
"""
_UNTAKEN = object()


class _Factory(NamedTuple):
    """What makes a field's value for each instance."""

    make: Callable[[], Any]


@functools.cache
def _defaults_of(cls: Any) -> dict[str, Any]:
    """What fields are where they are not given: values, and what makes them."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = _Factory(field.default_factory)
    return defaults


def _shared_init(cls: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``__init__``, but where the arguments are not those of the fields: then its own code says so."""
    names = cls.__match_args__
    if kwargs or len(args) != len(names):
        values = _defaults_of(cls) | dict(zip(names, args, strict=False)) | kwargs
        if len(args) > len(names) or values.keys() != set(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
            return _UNTAKEN
        args = tuple([value.make() if (value := values[name]).__class__ is _Factory else value for name in names])
    put = object.__setattr__ if cls.__setattr__ is _refuse else setattr
    for name, value in zip(names, args, strict=True):
        put(self, name, value)
    if hasattr(cls, "__post_init__"):
        self.__post_init__()
    return None


def _shared_eq(cls: Any, self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    values_of = _compared_values(cls)
    return values_of(self) == values_of(other)


def _shared_hash(cls: Any, self: Any) -> int:
    return hash(_compared_values(cls)(self))


@functools.cache
def _compared_values(cls: Any) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the compared fields of an instance."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda owner: tuple([getattr(owner, name) for name in names])


def _made(cls: Any, name: str, source: Source) -> Callable[..., Any]:
    """The method that a source says, put into the class."""
    names: Names = {}
    code = _code(source(cls, names))
    own = {f"f{k}": field.name for k, field in enumerate(dataclasses.fields(cls))}
    code = code.replace(
        co_varnames=tuple([own.get(n, n) for n in code.co_varnames]),
        co_names=tuple([own.get(n, n) for n in code.co_names]),
        co_consts=tuple([own.get(c, c) if type(c) is str else c for c in code.co_consts]),
    )
    method = FunctionType(code, names, name, names.pop("defaults", None))
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    setattr(cls, name, method)
    return method


@functools.cache
def _code(source: str) -> CodeType:
    """The code of a method whose fields are f0, f1, ... Few sources serve all classes: to compile one takes 20 to 80
    µs, to give the fields of its code their names 1 or 2.
    """
    (code,) = [c for c in compile(source, "<record>", "exec").co_consts if isinstance(c, CodeType)]
    return code


def _init(cls: Any, names: Names) -> str:
    return _init_by(cls, names, lambda k, value: f"self.f{k} = {value}")


def _frozen_init(cls: Any, names: Names) -> str:
    """Slots are set by their descriptors, in half of the time that ``object.__setattr__`` takes to look for them."""
    slots = [vars(cls).get(field.name) for field in dataclasses.fields(cls)]

    def put(k: int, value: str) -> str:
        slot = slots[k]
        if not isinstance(slot, MemberDescriptorType):
            return f"put(self, 'f{k}', {value})"
        names[f"put_{k}"] = slot.__set__
        return f"put_{k}(self, {value})"

    names["put"] = object.__setattr__
    return _init_by(cls, names, put)


def _init_by(cls: Any, names: Names, put: Callable[[int, str], str]) -> str:
    fields = dataclasses.fields(cls)
    names["unset"] = unset = object()
    defaults, lines = [], []
    for k, field in enumerate(fields):
        value = f"f{k}"
        if field.default is not dataclasses.MISSING:
            defaults.append(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            defaults.append(unset)
            names[f"make_{k}"] = field.default_factory
            value = f"make_{k}() if {value} is unset else {value}"
        lines.append(put(k, value))
    names["defaults"] = tuple(defaults)
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    given = ["self", *[f"f{k}" for k in range(len(fields))]]
    return "\n ".join((f"def __init__({', '.join(given)}):", *lines, "return"))


def _eq(cls: Any, names: Names) -> str:
    compared = f"{_compared(cls, 'self')} == {_compared(cls, 'other')}"
    return f"def __eq__(self, other):\n return {compared} if other.__class__ is self.__class__ else NotImplemented"


def _hash(cls: Any, names: Names) -> str:
    return f"def __hash__(self):\n return hash({_compared(cls, 'self')})"


def _compared(cls: Any, owner: str) -> str:
    return f"({''.join([f'{owner}.f{k},' for k, field in enumerate(dataclasses.fields(cls)) if field.compare])})"


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
