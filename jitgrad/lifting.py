"""Functions written on tensors that also take arrays, which they are then traced with and run on at once. Eager mode is
loaded already where it is called, and not here, where first calls would wait for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from jitgrad import pytree
from jitgrad.compiled import run_once
from jitgrad.eagerness import is_eager, settled
from jitgrad.operators import takes_open
from jitgrad.trace import graph_in

F = TypeVar("F", bound=Callable[..., Any])


def of_arrays(count: int) -> Callable[[F], F]:
    """Decorator: a function written on tensors also takes arrays in its first ``count`` arguments, and
    runs at once.
    """

    def wrap(fn: F) -> F:
        of_tensors = takes_open(fn.__name__, fn)

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            graph = graph_in((args, kwargs))
            if graph is not None:
                with graph.as_default():
                    return of_tensors(*args, **kwargs)
            if is_eager((args, kwargs)):
                from jitgrad.eager.tensor import run as eager

                args, kwargs = pytree.tree_map(settled, (args, kwargs))
                return eager(run, args, kwargs)
            rest = args[count:]
            return run_once(lambda *arrays: fn(*arrays, *rest, **kwargs), *args[:count])

        return cast(F, run)

    return wrap
