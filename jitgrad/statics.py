"""Static arguments: which they are, the one way in which a call with them is written, and their values; it neither
traces nor runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jitgrad.errors import layout
from jitgrad.keys import is_hashable
from jitgrad.records import dataclass
from jitgrad.sources import source_text, user_source
from jitgrad.trace import collects_names, parameter_names

# The static arguments of a call by name, or by number where the signature has no name for them.
Statics = dict[int | str, Any]


@dataclass(frozen=True)
class Options:
    """How a function is compiled.

    ``scoped`` is False for a transform of a compiled function, which brings its own scope. ``keeps_numbers``:
    Python numbers are handed to the function as they are, for calls that are traced once and forgotten.
    """

    separate_compiled_gradients: bool = False
    static_argnums: int | tuple[int, ...] = ()
    static_argnames: str | tuple[str, ...] = ()
    name: str | None = None
    scoped: bool = True
    keeps_numbers: bool = False


@dataclass(frozen=True)
class _Place:
    """Stands for the argument at a position or of a name."""

    where: int | str


class Arguments:
    """The parameters of a compiled function, as far as its static arguments need them."""

    def __init__(self, fn: Callable[..., Any], options: Options, is_transform: bool) -> None:
        self.parameters = parameter_names(fn)
        self.positions, self.names = _static_arguments(fn, self.parameters, options)
        self.collects_names = collects_names(fn, is_transform)
        self._signature = _own_signature(fn, options, is_transform)
        self._defaults = _static_defaults(self._signature, self.names)
        # So many positional arguments and no others need no binding; -1 where others have static defaults.
        self._complete = len(self.parameters) if self._defaults.keys() <= {*self.parameters} else -1

    @property
    def any_static(self) -> bool:
        """Whether there are static arguments at all."""
        return bool(self.positions or self.names)

    def is_static(self, where: int | str) -> bool:
        """Whether the argument at a position, or by a name, is static."""
        return where in self.positions if isinstance(where, int) else where in self.names

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in the one way in which the signature writes them, static defaults included."""
        if self._signature is None or (not kwargs and len(args) == self._complete):
            return args, kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:  # the function itself says it better
            return args, kwargs
        for name, value in self._defaults.items():
            bound.arguments.setdefault(name, value)
        return bound.args, bound.kwargs

    def places(self, positional: int, names: Sequence[str]) -> dict[int | str, int | str]:
        """Where each argument of a call, by its position or name, stands once the call is bound."""
        args, kwargs = self.bind(tuple(map(_Place, range(positional))), {name: _Place(name) for name in names})
        bound: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        return {given.where: place for place, given in bound if isinstance(given, _Place)}

    def without_statics(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Bound arguments as they are traced: None in place of static positions, no static names."""
        args = tuple(None if i in self.positions else x for i, x in enumerate(args))
        return args, {name: x for name, x in kwargs.items() if name not in self.names}

    def statics(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Statics:
        """The static arguments among bound ones. TypeError, with the function's name, unless they are hashable."""
        found: Statics = {i: args[i] for i in sorted(self.positions) if i < len(args)}
        found |= {name: kwargs[name] for name in sorted(self.names) if name in kwargs}
        return {where: self._hashable(function, where, value) for where, value in found.items()}

    def _hashable(self, function: str, where: int | str, value: Any) -> Any:
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                layout(
                    f"static argument {self.argument_name(where)!r} of {function} is not hashable",
                    got=f"{value!r} of type {type(value).__name__}",
                    needed=f"at {source_text(user_source())}",
                    hint="pass a tuple in place of a list, or pass it as an argument that is not static",
                )
            ) from None
        return value

    def argument_name(self, where: int | str) -> str:
        """How a static argument is called in messages."""
        if isinstance(where, str):
            return where
        return self.parameters[where] if where < len(self.parameters) else f"args[{where}]"


def _static_arguments(
    fn: Callable[..., Any], parameters: Sequence[str], options: Options
) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and names of the static arguments: each given way implies the other where the signature
    tells.
    """
    numbers = _as_tuple(options.static_argnums)
    names = _as_tuple(options.static_argnames)
    signature = f"{getattr(fn, '__name__', fn)}({', '.join(parameters)})"
    for number in numbers:
        if parameters and not -len(parameters) <= number < len(parameters) and not _takes_more(fn):
            raise ValueError(
                f"static_argnums has {number}, but {signature} has {len(parameters)} positional parameters"
            )
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"static_argnames takes names, got {name!r}")
        if parameters and name not in parameters and not _takes_name(fn, name):
            raise ValueError(f"static_argnames has {name!r}, which is no parameter of {signature}")
    positions = {number % len(parameters) if number < 0 else number for number in numbers}
    positions |= {parameters.index(name) for name in names if name in parameters}
    by_position = {parameters[number] for number in positions if number < len(parameters)}
    return frozenset(positions), frozenset(by_position | set(names))


def _own_signature(fn: Callable[..., Any], options: Options, is_transform: bool) -> inspect.Signature | None:
    """The signature by which a call may be written anew; None for a wrapper, which may look at how it was called."""
    if hasattr(fn, "__wrapped__") and options.scoped and not is_transform:
        return None
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def _static_defaults(signature: inspect.Signature | None, names: Iterable[str]) -> dict[str, Any]:
    """Defaults of the static arguments, as far as they are hashable."""
    if signature is None:
        return {}
    parameters = [p for name, p in signature.parameters.items() if name in names]
    return {p.name: p.default for p in parameters if p.default is not p.empty and is_hashable(p.default)}


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _takes_more(fn: Callable[..., Any]) -> bool:
    return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(fn).parameters.values())


def _takes_name(fn: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(fn).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
