"""map, foldl and foldr: scans that keep only the items, or only the last state; there is no op of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.control import states
from jitgrad.control.checks import check_takes
from jitgrad.control.functions import scan
from jitgrad.control.tracing import standing_for

Fn = Callable[..., Any]


def map(fn: Fn, xs: Any, *, length: int | None = None) -> Any:
    """``fn(x)`` for each item of ``xs`` along its first axis, the results stacked; ``xs`` and results are pytrees."""
    check_takes("map", fn, ["an item"], "an item of several arrays is one value: map(lambda pair: pair[0], (a, b))")
    return scan(standing_for(fn, lambda nothing, x: (nothing, fn(x))), (), xs, length)[1]


def foldl(fn: Fn, xs: Any, init: Any = None) -> Any:
    """``state = fn(state, x)`` for each item of ``xs``, the first one first; gives the last state.

    ``init`` is the first state; None: the first item. ValueError for no items without an ``init``.
    """
    return _fold("foldl", fn, xs, init, reverse=False)


def foldr(fn: Fn, xs: Any, init: Any = None) -> Any:
    """As ``foldl``, the last item first."""
    return _fold("foldr", fn, xs, init, reverse=True)


def _fold(name: str, fn: Fn, xs: Any, init: Any, reverse: bool) -> Any:
    check_takes(name, fn, ["the state", "an item"], "write lambda state, x: ...")
    if init is None:
        if any(x.shape is not None and x.shape[0] == 0 for x in states.flatten(xs)[0]):
            raise ValueError("a fold over no items needs an init")
        init = states.tree_map(lambda x: x[-1] if reverse else x[0], xs)
        xs = states.tree_map(lambda x: x[:-1] if reverse else x[1:], xs)
    return scan(standing_for(fn, lambda state, x: (fn(state, x), None)), init, xs, reverse=reverse)[0]
