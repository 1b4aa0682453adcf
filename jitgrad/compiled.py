"""The compiled function as the user holds it: its transforms, its counts, its pickle; calls.py takes its calls."""

from __future__ import annotations

import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jitgrad.calls import Calls, max_traces
from jitgrad.eagerness import is_eager, local
from jitgrad.forking import renew_when_forked
from jitgrad.records import dataclass
from jitgrad.run_stages import Stage
from jitgrad.running import Runner
from jitgrad.statics import Options
from jitgrad.streams import current
from jitgrad.trace import describe

__all__ = ["CacheInfo", "Compiled", "Options", "Transformed", "global_name", "max_traces", "run_once"]


@dataclass(frozen=True)
class CacheInfo:
    """What a compiled function has done: kinds of calls that it has met, for which it was traced or which followed from
    other shapes or from disk; kernels in use, kernels compiled, kernels read from disk.
    """

    traces: int
    kernels: int
    compiles: int
    disk_hits: int


# A function and its arguments, as ``__reduce__`` gives them.
Recipe = tuple[Callable[..., Any], tuple[Any, ...]]


def _gradients_of(recipe: Recipe | None) -> tuple[int, ...]:
    """The positions of the arguments whose gradients a transform gives; none where it gives something else."""
    if recipe is None or recipe[1][0] not in ("grad", "value_and_grad"):
        return ()
    argnums = recipe[1][2]
    return argnums if isinstance(argnums, tuple) else (argnums,)


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


class _FirstCalls:
    """The calls of a compiled function until machine code can take some."""

    def __init__(self, owner: Compiled, calls: Calls) -> None:
        self._owner = weakref.ref(owner)
        self._calls = calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = self._calls.take(*args, **kwargs)
        entrance, owner = self._calls.entrance(), self._owner()
        if entrance is not None and owner is not None:
            owner.__call__ = entrance
        return results


class Compiled:
    """A function that is traced once per dtypes, shapes and static values of its arguments, and runs fused.

    An argument that the function assigns to (``x[0] = 1``) keeps its value in the caller.
    """

    # A call of the object calls what lies in this slot: no frame of Python stands between the two.
    __slots__ = ("__call__", "__dict__", "__weakref__")
    __call__: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any], options: Options, recipe: Recipe | None = None) -> None:
        self.__name__ = self.__qualname__ = type(fn).__name__
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.options = options
        self._recipe: Recipe | None = recipe
        is_transform = isinstance(fn, Compiled | Transformed)
        self._calls = Calls(fn, options, is_transform, _gradients_of(getattr(fn, "_recipe", recipe)))
        self.__call__ = _FirstCalls(self, self._calls)
        self._derived: dict[Any, Compiled] = {}
        self._lock = threading.RLock()
        renew_when_forked(self)

    def interpret(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the same program, run op by op in NumPy."""
        return self._calls.interpret(args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """What happens to a call with these arguments: ``.text``, and one text per stage of the compiler."""
        entry, arrays = self._calls.concrete_call(args, kwargs)
        return entry.runner.explain(arrays)

    def stages(self, *args: Any, **kwargs: Any) -> list[tuple[Stage, list[Any]]]:
        """The programs that a call with these arguments runs, each with its arrays, for tools that
        measure.
        """
        runner, arrays = self.prepared(*args, **kwargs)
        return runner.stages(arrays)

    def prepared(self, *args: Any, **kwargs: Any) -> tuple[Runner, list[Any]]:
        """What runs a call with these arguments, and its arrays, for tools that measure."""
        entry, arrays = self._calls.concrete_call(args, kwargs)
        return entry.runner, arrays

    def cache_info(self) -> CacheInfo:
        """Counts of traces, kernels, compilations and kernels found on disk."""
        stats = self._calls.stats()
        return CacheInfo(self._calls.traces, len(stats.kernels), stats.compiles, stats.disk_hits)

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
                    self._derived[key] = Compiled(functools.wraps(self.fn)(transform), options, recipe)
                else:
                    self._derived[key] = Compiled(transform, Options(scoped=False))
            return self._derived[key]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        return global_name(self) or self._recipe or (Compiled, (self.fn, self.options))

    def __repr__(self) -> str:
        return f"<compiled {describe(self.fn)}>"


def run_once(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Trace a call, interpret it and forget it. Python numbers among the arguments stay what they are.

    Random numbers go on from call to call in the streams that are read here. A call with eager tensors gives eager
    tensors, and tapes record it as one op.
    """
    made = Compiled(fn, Options(scoped=False, keeps_numbers=True))
    made._calls.streams = current()
    return made(*args, **kwargs) if local.tapes or is_eager((args, kwargs)) else made.interpret(*args, **kwargs)
