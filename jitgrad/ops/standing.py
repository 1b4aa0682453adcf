"""What stands for a tensor without being one: of a graph where it meets one, else an eager one; it defines no op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from jitgrad.dispatch import NumpyProtocols, call_function, call_ufunc
from jitgrad.eagerness import Valued
from jitgrad.graph import Graph, Tensor
from jitgrad.operators import Operators


class Standing(Operators, NumpyProtocols, Valued):
    """Base of Variables and IndexedSlices: operators, methods and NumPy's functions work on what they stand for."""

    __slots__ = ()

    def as_graph_element(self, graph: Graph | None = None) -> Tensor:
        """The tensor of a graph that it stands for."""
        raise NotImplementedError

    def stands_for_symbol(self) -> bool:
        """Whether it stands for a tensor of a graph here and now."""
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if _is_symbolic((inputs, kwargs)):
            return call_ufunc(ufunc, method, inputs, kwargs)
        return getattr(ufunc, method)(*_eager(inputs), **_eager(kwargs))

    def __array_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if _is_symbolic((args, kwargs)):
            return call_function(func, args, kwargs)
        return func(*_eager(args), **_eager(dict(kwargs)))


def _is_symbolic(value: Any) -> bool:
    """Whether a tensor of a graph is among the values, or what stands for one."""
    if isinstance(value, Standing):
        return value.stands_for_symbol()
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return isinstance(value, Tensor)
    return any(map(_is_symbolic, value))


def _eager(value: Any) -> Any:
    """The value with eager tensors in place of what stands for them, in tuples, lists and dicts too."""
    if isinstance(value, Standing):
        return value.eager_value()
    if type(value) in (tuple, list):
        return type(value)(map(_eager, value))
    return {key: _eager(item) for key, item in value.items()} if type(value) is dict else value


def _method_of_both(name: str) -> Callable[..., Any]:
    of_graphs = getattr(Operators, name)

    def method(self: Standing, *args: Any, **kwargs: Any) -> Any:
        if _is_symbolic((self, args, kwargs)):
            return of_graphs(self.as_graph_element(), *args, **kwargs)
        return getattr(self.eager_value(), name)(*_eager(args), **_eager(kwargs))

    method.__name__ = name
    return method


def _property_of_both(name: str) -> property:
    of_graphs = getattr(Operators, name)

    def read(self: Standing) -> Any:
        if self.stands_for_symbol():
            return of_graphs.__get__(self.as_graph_element())
        return getattr(self.eager_value(), name)

    return property(read, doc=of_graphs.__doc__)


# What is the same for both, or what no eager tensor has.
_KEPT = frozenset(("__hash__", "__setitem__", "__slots__", "__array_priority__", "__doc__", "__module__"))


def _enter_methods() -> None:
    for name, member in vars(Operators).items():
        if isinstance(member, property):
            setattr(Standing, name, _property_of_both(name))
        elif callable(member) and name not in _KEPT:
            setattr(Standing, name, _method_of_both(name))


_enter_methods()
