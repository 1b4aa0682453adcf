"""Functions of graphs that take eager tensors too: what graphs have and NumPy has not; it defines no op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import custom, pytree
from jitgrad.eager.tensor import EagerTensor, plain, run, settled, wrap
from jitgrad.eagerness import is_eager
from jitgrad.errors import GradientError
from jitgrad.graph import Tensor, in_graph
from jitgrad.ops import creation, gathering, selection
from jitgrad.ops.slices import segment_sum
from jitgrad.sources import source_text, user_source
from jitgrad.trace import graph_in
from jitgrad.transforms import stop_gradient as stop_traced


def _either(of_graphs: Callable[..., Any], of_values: Callable[..., Any]) -> Callable[..., Any]:
    """One function: of tensors of graphs, and, where only eager tensors are given, of their values."""

    @functools.wraps(of_graphs)
    def call(*args: Any, **kwargs: Any) -> Any:
        if in_graph() or graph_in((args, kwargs)) is not None or not is_eager((args, kwargs)):
            return of_graphs(*args, **kwargs)
        args, kwargs = pytree.tree_map(settled, (args, kwargs))
        return run(of_values, args, {key: value for key, value in kwargs.items() if key != "name"})

    return call


def _rows(params: Any, indices: Any) -> Any:
    return np.take(params, np.asarray(indices) if isinstance(indices, list) else indices, axis=0)


def _sum(xs: Sequence[Any]) -> Any:
    return functools.reduce(np.add, xs)


gather = _either(gathering.gather, _rows)
unsorted_segment_sum = _either(gathering.unsorted_segment_sum, segment_sum)
add_n = _either(selection.add_n, _sum)
accumulate_n = _either(selection.accumulate_n, _sum)
identity = _either(creation.identity, np.positive)


def stop_gradient(x: Any) -> Any:
    """``x`` (a pytree), which every gradient takes for a constant. Arrays are given back as they are."""

    def stopped(leaf: Any) -> Any:
        leaf = leaf if isinstance(leaf, Tensor) or in_graph() else settled(leaf)
        return wrap(plain(leaf)) if isinstance(leaf, EagerTensor) else stop_traced(leaf)

    return pytree.tree_map(stopped, x)


def prevent_gradient(x: Any, message: str = "", name: str | None = None) -> Any:
    """``x``; a gradient that reaches it, in a graph or on a tape, raises GradientError with the message."""
    x = x if isinstance(x, Tensor) or in_graph() else settled(x)
    if isinstance(x, Tensor) or in_graph():
        return custom.prevent_gradient(x, message, name)
    return _guarded(x, message) if isinstance(x, EagerTensor) else x


def _guarded(x: EagerTensor, message: str) -> Any:
    made = f"at {source_text(user_source())}"

    def refuse(g: Any) -> Any:
        raise custom.prevention(message, made=made)

    return custom.custom_gradient(lambda value: (value, refuse))(x)


def py_func(fn: Callable[..., Any], inputs: Any, dtypes: Any, name: str | None = None) -> Any:
    """``fn`` called on the arrays of ``inputs``: any Python, never compiled, no gradient.

    In a graph it is called when the graph runs, and the shapes are not known before; on eager tensors at once.
    ``dtypes`` is one dtype, which gives one tensor, or a sequence of them, which gives a list of tensors. A gradient
    can be given to all such operations of graphs with ``register_gradient("py_func")``, or to this one with
    ``custom_gradient`` around it. GradientError for a gradient that reaches it otherwise.
    """
    values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if in_graph() or graph_in(values) is not None or not is_eager(values):
        return custom.py_func(fn, inputs, dtypes, name)

    def refuse(*grads: Any) -> Any:
        raise GradientError(f"py_func {getattr(fn, '__name__', fn)} has no gradient: wrap it in custom_gradient")

    def called(*arrays: Any) -> Any:
        made = custom.call_python(*map(plain, arrays), fn=fn, dtypes=types)
        return (list(made) if len(types) != 1 else made if is_single else [made]), refuse

    is_single, types = custom.declared_dtypes(dtypes)
    return custom.custom_gradient(called)(*map(settled, values))
