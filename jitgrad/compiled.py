"""The compiled function: signatures, static arguments and the cache of traces; what runs is the
executable's business.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from jitgrad import pytree
from jitgrad.config import config, log
from jitgrad.errors import layout
from jitgrad.forking import renew_when_forked
from jitgrad.graph import Tensor, default_graph, source_text, user_source
from jitgrad.keys import frozen, is_hashable
from jitgrad.running import Runner, Stage
from jitgrad.scopes import jit_scope
from jitgrad.spec import TensorSpec
from jitgrad.trace import (
    LeafKey,
    Results,
    Static,
    Traced,
    as_name,
    describe,
    detach,
    graph_in,
    is_tracing,
    leaf_names,
    parameter_names,
    read_leaf,
    trace,
)  # fmt: skip

max_traces = 64


@dataclass(frozen=True)
class CacheInfo:
    """What a compiled function has done: calls traced, kernels in use, kernels compiled, kernels read from
    disk.
    """

    traces: int
    kernels: int
    compiles: int
    disk_hits: int


# The static arguments of a call by name, or by number where the signature has no name for them.
Statics = dict[int | str, Any]


@dataclass(frozen=True, eq=False)
class _Entry:
    """A traced call: its place in the cache, what runs it, and how its results are put together."""

    key: tuple[Any, ...]
    runner: Runner
    results: Results


class _Call(NamedTuple):
    """A call taken apart: its place in the cache, its arrays, and what tracing it needs."""

    key: tuple[Any, ...]
    arrays: list[Any]
    structure: Any
    leaves: tuple[LeafKey, ...]
    statics: Statics


# A function and its arguments, as ``__reduce__`` gives them.
Recipe = tuple[Callable[..., Any], tuple[Any, ...]]


def global_name(fn: Any) -> str | None:
    """The name under which the module of ``fn`` holds it; None when it does not."""
    found: Any = sys.modules.get(fn.__module__)
    for part in fn.__qualname__.split("."):
        found = getattr(found, part, None)
    return fn.__qualname__ if found is fn else None


class Transformed:
    """A transform of a function that is not compiled, as a function; pickled by its recipe."""

    def __init__(self, fn: Callable[..., Any], call: Callable[..., Any], recipe: Recipe) -> None:
        self.__name__ = self.__qualname__ = type(fn).__name__
        functools.update_wrapper(self, fn)
        self._call = call
        self._recipe = recipe

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        return global_name(self) or self._recipe

    def __repr__(self) -> str:
        return f"<transform of {describe(self)}>"


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


class Compiled:
    """A function that is traced once per dtypes, shapes and static values of its arguments, and runs fused.

    An argument that the function assigns to (``x[0] = 1``) keeps its value in the caller.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self.__name__ = self.__qualname__ = type(fn).__name__
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.options = options
        self._parameters = parameter_names(fn)
        self._static_positions, self._static_names = _static_arguments(fn, self._parameters, options)
        self._signature = _own_signature(fn, options)
        self._static_defaults = _static_defaults(self._signature, self._static_names)
        # So many positional arguments and no others need no binding; -1 where others have static defaults.
        self._complete = len(self._parameters) if self._static_defaults.keys() <= {*self._parameters} else -1
        self._entries: OrderedDict[tuple[Any, ...], _Entry] = OrderedDict()
        self._plain: dict[tuple[Any, ...], _Entry] = {}
        self._latest: _Call | None = None
        self._derived: dict[Any, Compiled] = {}
        self._traces = 0
        self._recipe: Recipe | None = None
        self._lock = threading.RLock()
        renew_when_forked(self)

    # -- calling ---------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return self._inline(args, kwargs)
        plain = None if kwargs else _plain_key(args)
        entry = self._plain.get(plain)  # type: ignore[arg-type]
        if entry is not None and self._touch(entry.key):
            return entry.results.build(entry.runner.run(args))
        call = self._take_apart(args, kwargs)
        if call is None:
            return self._inline(args, kwargs)
        entry = self._entry(call)
        if plain is not None:
            self._remember(plain, entry)
        return entry.results.build(entry.runner.run(call.arrays))

    def _remember(self, plain: tuple[Any, ...], entry: _Entry) -> None:
        """Let the next call with such arrays, and nothing but arrays, find its entry without being taken
        apart.
        """
        if len(self._plain) >= max_traces:
            self._plain.clear()
        self._plain[plain] = entry

    def interpret(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the same program, run op by op in NumPy."""
        call = self._concrete_call(args, kwargs)
        entry = self._entry(call)
        return entry.results.build(entry.runner.interpret(call.arrays))

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """What happens to a call with these arguments: ``.text``, and one text per stage of the compiler."""
        call = self._concrete_call(args, kwargs)
        return self._entry(call).runner.explain(call.arrays)

    def stages(self, *args: Any, **kwargs: Any) -> list[tuple[Stage, list[Any]]]:
        """The programs that a call with these arguments runs, each with its arrays, for tools that
        measure.
        """
        call = self._concrete_call(args, kwargs)
        return self._entry(call).runner.stages(call.arrays)

    def cache_info(self) -> CacheInfo:
        """Counts of traces, kernels, compilations and kernels found on disk."""
        with self._lock:
            stats = [made.stats for entry in self._entries.values() for made in entry.runner.executables()]
        kernels = frozenset[str]().union(*(s.kernels for s in stats))
        return CacheInfo(self._traces, len(kernels), sum(s.compiles for s in stats), sum(s.disk_hits for s in stats))

    def derive(
        self, key: Any, transform: Callable[..., Any], own_arguments: bool = True, recipe: Recipe | None = None
    ) -> Compiled:
        """A transform of this function, cached as this one is; ``key`` tells transforms apart.

        ``own_arguments`` says that the transform takes this function's arguments, static ones among them.
        ``recipe`` is how a pickle makes it again.
        """
        with self._lock:
            if key not in self._derived:
                if own_arguments:
                    options = replace(self.options, name=None, scoped=False)
                    self._derived[key] = Compiled(functools.wraps(self.fn)(transform), options)
                    self._derived[key]._recipe = recipe
                else:
                    self._derived[key] = Compiled(transform, Options(scoped=False))
            return self._derived[key]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        return global_name(self) or self._recipe or (Compiled, (self.fn, self.options))

    def __repr__(self) -> str:
        return f"<compiled {describe(self.fn)}>"

    # -- inside another trace --------------------------------------------------------------------------------

    def _inline(self, args: Any, kwargs: Any) -> Any:
        graph = graph_in((args, kwargs))
        with (default_graph() if graph is None else graph).as_default(), self._scope():
            args, kwargs = detach((args, kwargs))
            return self.fn(*args, **kwargs)

    def _scope(self) -> Any:
        if not self.options.scoped:
            return default_graph().attr_scope()
        return jit_scope(separate_compiled_gradients=self.options.separate_compiled_gradients or None)

    # -- the cache of traces ---------------------------------------------------------------------------------

    def _take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """The call's arrays and key; None when a traced value is among its arguments."""
        statics: Statics = {}
        if self._static_positions or self._static_names:
            args, kwargs = self._bind(args, kwargs)
            statics = self._statics(args, kwargs)
            args = tuple(None if i in self._static_positions else x for i, x in enumerate(args))
            kwargs = {name: x for name, x in kwargs.items() if name not in self._static_names}
        leaves, structure = pytree.flatten((args, kwargs))
        keys: list[LeafKey] = []
        arrays: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                return None
            try:
                key, array = read_leaf(leaf, self.options.keeps_numbers)
            except TypeError as error:
                raise self._refusal(error, args, kwargs, len(keys)) from None
            keys.append(key)
            if array is not None:
                arrays.append(array)
        signature = tuple(keys)
        values = tuple([(where, frozen(value)) for where, value in statics.items()])
        return _Call((structure, signature, values), arrays, structure, signature, statics)

    def _refusal(self, error: TypeError, args: Any, kwargs: Any, number: int) -> TypeError:
        """The error of an argument that cannot be traced, with its name and the user's line."""
        name = leaf_names(self._parameters, args, kwargs)[number]
        what, *hints = str(error).split("\n")
        text = layout(f"argument {name} of {self.__name__}: {what}", needed=f"at {source_text(user_source())}")
        return type(error)("\n".join([text, *hints]))

    def _concrete_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        call = self._take_apart(args, kwargs)
        if call is None:
            raise TypeError(f"{self.__name__}: interpret and explain take arrays, not traced values")
        return call

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in the one way in which the signature writes them, static defaults included."""
        if self._signature is None or (not kwargs and len(args) == self._complete):
            return args, kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:  # the function itself says it better
            return args, kwargs
        for name, value in self._static_defaults.items():
            bound.arguments.setdefault(name, value)
        return bound.args, bound.kwargs

    def _statics(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Statics:
        found: Statics = {i: args[i] for i in sorted(self._static_positions) if i < len(args)}
        found |= {name: kwargs[name] for name in sorted(self._static_names) if name in kwargs}
        return {where: self._hashable(where, value) for where, value in found.items()}

    def _hashable(self, where: int | str, value: Any) -> Any:
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                layout(
                    f"static argument {self._argument_name(where)!r} of {self.__name__} is not hashable",
                    got=f"{value!r} of type {type(value).__name__}",
                    needed=f"at {source_text(user_source())}",
                    hint="pass a tuple in place of a list, or pass it as an argument that is not static",
                )
            ) from None
        return value

    def _argument_name(self, where: int | str) -> str:
        if isinstance(where, str):
            return where
        return self._parameters[where] if where < len(self._parameters) else f"args[{where}]"

    def _entry(self, call: _Call) -> _Entry:
        entry = self._entries.get(call.key)
        return entry if entry is not None and self._touch(call.key) else self._traced_entry(call)

    def _touch(self, key: tuple[Any, ...]) -> bool:
        """Make an entry the most recently used one; False when it has been dropped."""
        try:
            self._entries.move_to_end(key)
        except KeyError:
            return False
        return True

    def _traced_entry(self, call: _Call) -> _Entry:
        with self._lock:
            if call.key not in self._entries:
                self._say_why(call)
                traced = self._trace(call)
                name = as_name(self.options.name or self.__name__)
                entry = _Entry(
                    call.key, Runner(traced.outputs, traced.feeds, traced.effects, name), traced.results
                )
                self._entries[call.key] = entry
                self._latest = call._replace(arrays=[])
                self._traces += 1
                while len(self._entries) > max_traces:
                    self._entries.popitem(last=False)
            return self._entries[call.key]

    def _trace(self, call: _Call) -> Traced:
        def rebuild(args: Any, kwargs: Any) -> tuple[Any, Any]:
            args = tuple(call.statics.get(i, x) for i, x in enumerate(args))
            return args, kwargs | {name: value for name, value in call.statics.items() if isinstance(name, str)}

        names = [as_name(name) for name in self._leaf_names(call)]
        return trace(self.fn, call.structure, call.leaves, names, rebuild, self._scope)

    def _leaf_names(self, call: _Call) -> list[str]:
        return leaf_names(self._parameters, *pytree.unflatten(call.structure, range(len(call.leaves))))

    # -- why a call was traced again -------------------------------------------------------------------------

    def _say_why(self, call: _Call) -> None:
        if self._latest is not None and {"recompile", "all"} & set(config.settings.log):
            log("recompile", f"{describe(self.fn)}: {self._difference(self._latest, call)}")

    def _difference(self, old: _Call, new: _Call) -> str:
        if old.structure != new.structure:
            return "the structure of the arguments changed"
        texts = zip(map(_key_text, old.leaves), map(_key_text, new.leaves), strict=True)
        changes = [
            f"argument {name} changed from {a} to {b}"
            for name, (a, b) in zip(self._leaf_names(new), texts, strict=True)
            if a != b
        ]
        changes += [
            f"static argument {self._argument_name(where)} changed from {old.statics[where]!r} to {value!r}"
            for where, value in new.statics.items()
            if where in old.statics and frozen(old.statics[where]) != frozen(value)
        ]
        dropped = f"its trace was dropped (at most {max_traces} are kept)"
        return ", ".join(changes[:3]) if changes else dropped


def _plain_key(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Dtypes and shapes of arguments that are all plain arrays in C order and native byte order; else
    None.
    """
    key: list[Any] = []
    for x in args:
        if type(x) is not np.ndarray or not x.flags.c_contiguous or not x.dtype.isnative:
            return None
        key += (x.dtype, x.shape)
    return tuple(key)


def _key_text(key: LeafKey) -> str:
    if isinstance(key, Static):
        return repr(key.value)
    return key.__name__ if isinstance(key, type) else str(TensorSpec(key[1], key[0]))


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


def _own_signature(fn: Callable[..., Any], options: Options) -> inspect.Signature | None:
    """The signature by which a call may be written anew; None for a wrapper, which may look at how it was called."""
    if hasattr(fn, "__wrapped__") and options.scoped and not isinstance(fn, Compiled | Transformed):
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


def run_once(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Trace a call, interpret it and forget it. Python numbers among the arguments stay what they are."""
    return Compiled(fn, Options(scoped=False, keeps_numbers=True)).interpret(*args, **kwargs)
