"""Functions of SciPy's names: of traced tensors made of ops, of eager ones recorded, of arrays SciPy's own."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

from jitgrad import pytree
from jitgrad.eagerness import is_eager, settled
from jitgrad.operators import advising
from jitgrad.trace import graph_in

F = TypeVar("F", bound=Callable[..., Any])


def like_scipy(path: str, name: str | None = None) -> Callable[[F], F]:
    """Decorator: a function written on traced values is called for these alone; ``path`` is where SciPy's own is
    found, ``"linalg"`` or ``"stats.norm"``, under the same name if none is given.
    """

    def wrap(fn: F) -> F:
        of_tensors = advising(fn.__name__, fn)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            graph = graph_in((args, kwargs))
            if graph is not None:
                with graph.as_default():
                    return of_tensors(*args, **kwargs)
            if is_eager((args, kwargs)):
                from jitgrad.eager.tensor import run as eager

                args, kwargs = pytree.tree_map(settled, (args, kwargs))
                return eager(call, args, kwargs)
            return of_scipy(path, name or fn.__name__)(*args, **kwargs)

        return cast(F, call)

    return wrap


def of_scipy(path: str, name: str) -> Any:
    """What SciPy has under a name, imported now."""
    module, *owners = path.split(".")
    return functools.reduce(getattr, (*owners, name), importlib.import_module(f"scipy.{module}"))


def rest_of(module: str, own: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module that has SciPy's functions beside those of its own ``__all__``."""

    def lookup(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'jitgrad.scipy.{module}' has no attribute {name!r}")
        return of_scipy(module, name)

    def listed() -> list[str]:
        return sorted({*own["__all__"], *importlib.import_module(f"scipy.{module}").__all__})

    return lookup, listed
