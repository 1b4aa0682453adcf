"""Gradients of functions run eagerly: gradients_function and its family, each a tape around a call."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.eager.tape import GradientTape
from jitgrad.eager.tensor import EagerTensor, asarray, run
from jitgrad.eagerness import settled
from jitgrad.errors import DTypeError, layout
from jitgrad.given import check_function
from jitgrad.graph import Tensor, in_graph
from jitgrad.ops.common import as_tensor
from jitgrad.sources import source_text, user_source
from jitgrad.sparse import gradients
from jitgrad.spec import is_inexact
from jitgrad.trace import is_dynamic_leaf, same

Params = Sequence[int] | Sequence[str] | int | str | None


def gradients_function(f: Callable[..., Any], params: Params = None) -> Callable[..., Any]:
    """A function of ``f``'s arguments that gives the gradients of ``f`` with respect to those in ``params``, as a list.

    ``params`` are names or positions of arguments, all of one kind, or a single one; None means all. ``dy=`` is the
    cotangent of the result (default: ones). A result that is no tensor has no gradients: None. DTypeError for arguments
    in ``params`` that hold integers (where all are meant, only if all do; else theirs is None); ValueError for unknown
    or mixed ``params``, for keyword arguments, and when ``f`` returns None.
    """
    check_function("gradients_function", f)
    both = val_and_grad_function(f, params)

    @functools.wraps(f)
    def gradient(*args: Any, dy: Any = None, **kwargs: Any) -> Any:
        return both(*args, dy=dy, **kwargs)[1]

    return gradient


def val_and_grad_function(f: Callable[..., Any], params: Params = None) -> Callable[..., Any]:
    """As ``gradients_function``, with the result of ``f``: ``(value, [gradients])``."""
    check_function("val_and_grad_function", f)
    vjp_of = make_vjp(f, params, persistent=False)

    @functools.wraps(f)
    def value_and_gradients(*args: Any, dy: Any = None, **kwargs: Any) -> Any:
        _refuse_keywords(f, kwargs)
        value, vjp = vjp_of(*args)
        return value, vjp(dy)

    return value_and_gradients


def make_vjp(f: Callable[..., Any], params: Params = None, persistent: bool = True) -> Callable[..., Any]:
    """A function of ``f``'s arguments that gives ``(value, vjp)``; ``vjp(dy)`` is the list of gradients for a cotangent
    of the value (default: ones). Unless it is ``persistent``, it may be called once, and frees what it read.
    """
    check_function("make_vjp", f)
    chosen = _positions(f, params)

    @functools.wraps(f)
    def value_and_vjp(*args: Any, **kwargs: Any) -> Any:
        _refuse_keywords(f, kwargs)
        wanted = range(len(args)) if chosen is None else chosen
        _check_count(f, wanted, args)
        wanted = [k % len(args) for k in wanted]
        if in_graph() or _has_tensor(args):
            return _in_graph(f, args, wanted)
        tape = GradientTape(persistent)
        with tape:
            given = _fresh_arguments(args, wanted)
            _check_dtypes(f, given, wanted, chosen is None)
            sources = [given[k] for k in wanted]
            tape.watch([x for x in pytree.flatten(sources)[0] if is_inexact(x.dtype)])
            value = _checked_value(f, f(*given))
        return value, functools.partial(_pull, tape, value, sources)

    return value_and_vjp


def _pull(tape: GradientTape, value: Any, sources: Any, dy: Any = None) -> Any:
    return tape.gradient(pytree.tree_map(_as_target, value), sources, output_gradients=dy)


def _as_target(leaf: Any) -> Any:
    """A result as a tensor: a number or an array depends on no source."""
    return asarray(leaf) if isinstance(leaf, np.ndarray | np.generic | int | float | complex) else leaf


def _in_graph(f: Callable[..., Any], args: tuple[Any, ...], wanted: Sequence[int]) -> Any:
    given = [pytree.tree_map(_fresh_in_graph, x) if k in wanted else x for k, x in enumerate(args)]
    sources = [given[k] for k in wanted]
    value = _checked_value(f, f(*given))

    def vjp(dy: Any = None) -> Any:
        leaves, structure = pytree.flatten(sources)
        results = pytree.flatten(value)[0]
        seeds = [None] * len(results) if dy is None else pytree.flatten(dy)[0]
        pairs = [(y, g) for y, g in zip(results, seeds, strict=True) if isinstance(y, Tensor)]
        ys, grad_ys = [y for y, _ in pairs], [g for _, g in pairs]
        return pytree.unflatten(structure, gradients(ys, leaves, grad_ys) if ys else [None] * len(leaves))

    return value, vjp


def _fresh_in_graph(leaf: Any) -> Any:
    """A tensor of its own for an argument: one given twice counts as two."""
    return same(as_tensor(leaf)) if is_dynamic_leaf(leaf) else leaf


def _fresh_arguments(args: tuple[Any, ...], wanted: Sequence[int]) -> list[Any]:
    """The arguments, those that are differentiated as new tensors: one given twice counts as two."""

    def fresh(number: int, leaf: Any) -> Any:
        leaf = settled(leaf)
        if isinstance(leaf, EagerTensor):
            return run(np.positive, (leaf,), {})
        try:
            return asarray(leaf)
        except DTypeError as error:
            raise DTypeError(layout(f"argument {number}: {error}", needed=f"at {source_text(user_source())}")) from None

    return [pytree.tree_map(functools.partial(fresh, k), x) if k in wanted else x for k, x in enumerate(args)]


def _check_dtypes(f: Callable[..., Any], given: Sequence[Any], wanted: Sequence[int], is_all: bool) -> None:
    """DTypeError for an argument without gradient that was asked for: by itself, or all of them where all are such."""
    without = [k for k in wanted if not any(is_inexact(x.dtype) for x in pytree.flatten(given[k])[0])]
    without = [k for k in without if pytree.flatten(given[k])[0]]
    if without and (not is_all or len(without) == len(wanted)):
        leaf = pytree.flatten(given[without[0]])[0][0]
        raise DTypeError(
            layout(f"argument {without[0]} of {_name(f)} is {leaf.dtype}, which has no gradient",
                   needed=f"at {source_text(user_source())}", hint="pass floating-point values: 3.0 in place of 3")
        )  # fmt: skip


def implicit_val_and_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``f``'s arguments that gives ``(value, [(gradient, variable), ...])`` for the trainable Variables
    that ``f`` reads, in the order in which they were created; the gradient is None for one that does not matter.

    ValueError when ``f`` returns None, and when it reads no trainable Variable.
    """
    check_function("implicit_val_and_grad", f)

    @functools.wraps(f)
    def value_and_gradients(*args: Any, **kwargs: Any) -> Any:
        with GradientTape() as tape:
            value = _checked_value(f, f(*args, **kwargs))
        variables = sorted(tape.watched_variables(), key=lambda v: v.creation)
        if not variables:
            raise ValueError(
                layout(f"{_name(f)} reads no trainable Variable", hint="make one with jg.Variable(value)")
            )
        return value, list(zip(_pull(tape, value, variables), variables, strict=True))

    return value_and_gradients


def implicit_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """As ``implicit_val_and_grad``, without the value."""
    check_function("implicit_grad", f)
    both = implicit_val_and_grad(f)

    @functools.wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradient


# -- arguments -----------------------------------------------------------------------------------------------


def _name(f: Callable[..., Any]) -> str:
    name = getattr(f, "__name__", None) or getattr(getattr(f, "func", f), "__name__", type(f).__name__)
    return str(name)


def _positions(f: Callable[..., Any], params: Params) -> Sequence[int] | None:
    """The positions that ``params`` name; None for all."""
    if params is None:
        return None
    given: list[Any] = [params] if isinstance(params, str | int | np.integer) else list(params)
    if all(isinstance(p, str) for p in given):
        names = list(inspect.signature(f).parameters)
        unknown = [p for p in given if p not in names]
        if unknown:
            raise ValueError(f"params has {unknown[0]!r}, but {_name(f)} takes {', '.join(names)}")
        return [names.index(str(p)) for p in given]
    if all(isinstance(p, int | np.integer) and not isinstance(p, bool) for p in given):
        return [operator.index(p) for p in given]
    raise ValueError(f"params must be all names or all positions, got {given!r}")


def _check_count(f: Callable[..., Any], wanted: Sequence[int], args: tuple[Any, ...]) -> None:
    beyond = [k for k in wanted if not -len(args) <= k < len(args)]
    if beyond:
        raise ValueError(f"params asks for argument {beyond[0]} of {_name(f)}, which was called with {len(args)}")


def _refuse_keywords(f: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise ValueError(
            layout(f"the gradient of {_name(f)} takes no keyword arguments, got {', '.join(kwargs)}",
                   hint="pass them by position, or bind them with functools.partial")
        )  # fmt: skip


def _has_tensor(args: tuple[Any, ...]) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.flatten(args)[0])


def _checked_value(f: Callable[..., Any], value: Any) -> Any:
    if value is None:
        raise ValueError(layout(f"{_name(f)} returned None", hint="end it with: return value"))
    return value
