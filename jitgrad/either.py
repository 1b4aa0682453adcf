"""Functions of graphs that take eager tensors too: what graphs have and NumPy has not; it defines no op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import building, preventing, python_calls, pytree
from jitgrad.advice import named
from jitgrad.eagerness import has_value, is_eager, settled
from jitgrad.graph import Tensor, in_graph
from jitgrad.operators import takes_open
from jitgrad.ops import creation, gathering, selection
from jitgrad.ops.slices import segment_sum
from jitgrad.trace import graph_in
from jitgrad.transforms import stop_gradient as stop_traced


def _either(of_graphs: Callable[..., Any], of_values: Callable[..., Any]) -> Callable[..., Any]:
    """One function: of tensors of graphs, and, where only eager tensors are given, of their values."""
    of_graphs = takes_open(of_graphs.__name__, of_graphs)

    @functools.wraps(of_graphs)
    def call(*args: Any, **kwargs: Any) -> Any:
        if in_graph() or graph_in((args, kwargs)) is not None or not is_eager((args, kwargs)):
            return of_graphs(*args, **kwargs)
        from jitgrad.eager.tensor import run

        args, kwargs = pytree.tree_map(settled, (args, kwargs))
        return run(of_values, args, {key: value for key, value in kwargs.items() if key != "name"})

    return call


def _rows(params: Any, indices: Any) -> Any:
    return np.take(params, np.asarray(indices) if isinstance(indices, list) else indices, axis=0)


def _segments(data: Any, ids: Any, n: Any) -> Any:
    if isinstance(data, Tensor) or isinstance(ids, Tensor):
        return gathering.unsorted_segment_sum(data, ids, n)
    is_in = np.asarray(ids) >= 0
    return segment_sum(np.asarray(data)[is_in], np.asarray(ids)[is_in], n)


def _sum(xs: Sequence[Any]) -> Any:
    return functools.reduce(np.add, xs)


def _prevented(x: Any, message: str = "") -> Any:
    return preventing.prevent_gradient(x, message) if isinstance(x, Tensor) else np.array(x)


def _called(fn: Callable[..., Any], inputs: Any, dtypes: Any) -> Any:
    is_traced = any(isinstance(x, Tensor) for x in pytree.flatten(inputs)[0])
    return python_calls.py_func(fn, inputs, dtypes) if is_traced else python_calls.call_python(fn, inputs, dtypes)


named.update({_rows: "gather", _segments: "unsorted_segment_sum", _sum: "add_n"})
gather = _either(gathering.gather, _rows)
unsorted_segment_sum = _either(gathering.unsorted_segment_sum, _segments)
add_n = _either(selection.add_n, _sum)
accumulate_n = _either(selection.accumulate_n, _sum)
identity = _either(creation.identity, np.positive)
_guarded = _either(preventing.prevent_gradient, _prevented)
py_func = _either(python_calls.py_func, _called)


def prevent_gradient(x: Any, message: str = "", name: str | None = None) -> Any:
    """``x``; a gradient that reaches it, in a graph or on a tape, raises GradientError with the message. Arrays are
    given back as they are.
    """
    is_value = not in_graph() and graph_in(x) is None and not is_eager(x)
    return x if is_value else _guarded(x, message, name=name)


@functools.wraps(building.tie)
def tie(tensors: Sequence[Any], name: str | None = None) -> list[Any]:
    """The tensors again, each available only when all of them are, as eager tensors always are; None stays None."""
    if in_graph() or graph_in(list(tensors)) is not None or not is_eager(list(tensors)):
        return building.tie(tensors, name)
    return [None if x is None else identity(x) for x in tensors]


def stop_gradient(x: Any) -> Any:
    """``x`` (a pytree), which every gradient takes for a constant. Arrays are given back as they are."""

    def stopped(leaf: Any) -> Any:
        leaf = leaf if isinstance(leaf, Tensor) or in_graph() else settled(leaf)
        if not (isinstance(leaf, np.ndarray) and has_value(leaf)):
            return stop_traced(leaf)
        from jitgrad.eager.tensor import plain, wrap

        return wrap(plain(leaf))

    return pytree.tree_map(stopped, x)
