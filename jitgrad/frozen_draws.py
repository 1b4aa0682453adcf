"""Random numbers of NumPy's and Python's generators that a function draws while it is traced: each later call gets the
same ones, which is said once. It draws nothing.

A draw by such a generator leaves no trace in a graph. So the generators that a function can reach by the names in its
code are looked for before it is traced, and whether one has moved on afterwards: but those that it seeds.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from jitgrad.errors import layout
from jitgrad.hints import DRAW
from jitgrad.sources import source_text, user_source
from jitgrad.trace import describe

_MOST = 1000  # values are looked at
_FIRST = 50  # of a list
_HELD = ("fn", "_call", "__wrapped__")
_LIBRARIES = sys.stdlib_module_names | {"jitgrad", "llvmlite", "numba", "numpy", "optree", "scipy"}


class Watch:
    """The generators within a function's reach, and where each of them was."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._found = [(generator, _state(generator)) for generator, is_seeded in generators_of(fn) if not is_seeded]

    def tell(self) -> bool:
        """Whether the function has drawn since then; if so it is warned of, where the user called it."""
        moved = [generator for generator, state in self._found if _state(generator) != state]
        if not moved:
            return False
        whose = "Python's module random" if hasattr(moved[0], "getstate") else "numpy.random"
        place = user_source()
        text = layout(
            f"{describe(self._fn)} draws from {whose} while it is traced: all later calls get the same numbers",
            needed=f"at {source_text(place)}",
            hint=DRAW,
        )
        warnings.warn_explicit(text, UserWarning, *(place or ("<unknown>", 1)))
        return True


def generators_of(fn: Callable[..., Any]) -> list[tuple[Any, bool]]:
    """The generators that the code of a function, and of the user's functions that it names, can reach by names; with
    each, whether code that reaches it names ``seed``: such code draws the same numbers at each call by itself.
    """
    found: dict[int, tuple[Any, bool]] = {}
    pending: list[tuple[Any, frozenset[str]]] = [(fn, frozenset())]
    seen: dict[Any, Any] = {}
    while pending and len(seen) < _MOST:
        value, names = pending.pop()
        key = (id(value), names) if type(value) is ModuleType else id(value)  # other code names others in a module
        if _is_generator(value):
            found[id(value)] = value, "seed" in names or found.get(id(value), (value, False))[1]
        if key in seen:
            continue
        seen[key] = value
        pending += _within(value, names)
    return list(found.values())


def _within(value: Any, names: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """What is reached from a value by code that has these names, and the names in that code."""
    kind = type(value)
    if kind is FunctionType:
        inner = frozenset() if _is_of_library(value.__module__) else _names(value.__code__)
        globals_ = value.__globals__
        yield from ((globals_[name], inner) for name in inner if name in globals_)
        yield from ((content, inner | names) for content in _contents(value))
        yield from ((default, inner) for default in value.__defaults__ or ())
    elif kind is MethodType:
        yield from ((x, names) for x in (value.__self__, value.__func__))
    elif kind is functools.partial:
        yield from ((x, names) for x in (value.func, *value.args, *value.keywords.values()))
    elif kind is ModuleType:
        yield from ((x, names) for x in _in_module(value, names))
    elif kind in (tuple, list):
        yield from ((x, names) for x in value[:_FIRST])
    elif kind is dict:
        yield from ((x, names) for x in list(value.values())[:_FIRST])
    elif kind is BuiltinMethodType:
        yield value.__self__, names
    elif kind.__module__.startswith("jitgrad."):  # a compiled function, or a transform of one
        yield from ((x, names) for name, x in _own(value).items() if name in _HELD)
    elif not _is_of_library(kind.__module__):
        named = names.union(*(_names(x.__code__) for x in _of_classes(value) if type(x) is FunctionType))
        yield from ((x, named) for x in _attributes(value, named))


def _in_module(module: ModuleType, names: frozenset[str]) -> Iterator[Any]:
    if module.__name__ == "random" and hasattr(module, "_inst"):
        yield module._inst
    elif module.__name__ == "numpy.random":
        yield module.mtrand._rand
    elif module.__name__ == "numpy" and "random" in names:
        yield module.random
    elif not _is_of_library(module.__name__):
        yield from (vars(module)[name] for name in names if name in vars(module))


def _attributes(value: Any, names: frozenset[str]) -> Iterator[Any]:
    """Attributes of a user's object that code with these names reaches, as its class or it itself holds them."""
    own = _own(value)
    yield from (own[name] for name in names if name in own)
    yield from (x.fget if isinstance(x, property) else x for x in _of_classes(value))


def _own(value: Any) -> dict[str, Any]:
    """Attributes that an object itself holds, without asking its class."""
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots
        return {}
    return found


def _of_classes(value: Any) -> Iterator[Any]:
    """What the user's classes of an object hold, as methods."""
    for cls in type(value).__mro__:
        if not _is_of_library(cls.__module__):
            yield from vars(cls).values()


def _is_of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> frozenset[str]:
    """The names in some code and in the functions inside."""
    inner = [_names(value) for value in code.co_consts if isinstance(value, CodeType)]
    return frozenset(code.co_names).union(*inner)


def _contents(fn: FunctionType) -> Iterator[Any]:
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty
            continue


def _is_generator(value: Any) -> bool:
    numpys, pythons = sys.modules.get("numpy.random"), sys.modules.get("random")
    if pythons is not None and issubclass(type(value), pythons.Random):
        return not issubclass(type(value), pythons.SystemRandom)
    return numpys is not None and issubclass(type(value), numpys.Generator | numpys.RandomState)


def _state(generator: Any) -> Any:
    """Where a generator is, to be compared."""
    if hasattr(generator, "getstate"):
        return generator.getstate()
    bits = generator.bit_generator if hasattr(generator, "bit_generator") else generator._bit_generator
    return _plain(bits.state)


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state
