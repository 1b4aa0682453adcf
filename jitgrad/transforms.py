"""compile, grad and their kin: functions to functions; inside a trace they add to its graph, outside they
trace and run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from jitgrad import pytree
from jitgrad.compiled import Compiled, Options, Transformed, run_once
from jitgrad.differentiation import hessian_times, jacobian_of, pull_back, push_forward, value_and_gradients
from jitgrad.eagerness import settled
from jitgrad.errors import layout
from jitgrad.given import check_function, one_or_several
from jitgrad.graph import Tensor
from jitgrad.operators import call
from jitgrad.sources import source_text, user_source
from jitgrad.trace import graph_in

Fn = Callable[..., Any]
F = TypeVar("F", bound=Fn)
Argnums = int | Sequence[int]
_INTS = "an int or a tuple of ints"


@overload
def compile(
    fn: Fn,
    *,
    separate_compiled_gradients: bool = ...,
    static_argnums: int | Sequence[int] = ...,
    static_argnames: str | Sequence[str] = ...,
    name: str | None = ...,
) -> Compiled: ...


@overload
def compile(
    fn: None = ...,
    *,
    separate_compiled_gradients: bool = ...,
    static_argnums: int | Sequence[int] = ...,
    static_argnames: str | Sequence[str] = ...,
    name: str | None = ...,
) -> Callable[[Fn], Compiled]: ...


def compile(
    fn: Fn | None = None,
    *,
    separate_compiled_gradients: bool = False,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    name: str | None = None,
) -> Compiled | Callable[[Fn], Compiled]:
    """``fn`` compiled: traced once per dtypes, shapes and static values of its arguments, and run fused.

    A decorator, with or without arguments. Arguments and results are pytrees of arrays and numbers. Static
    arguments are hashable Python values that the function may branch on. ``separate_compiled_gradients``
    keeps the gradient of what is inside in clusters of its own. ValueError for static arguments that the
    function does not have.
    """
    if not isinstance(name, str | None):
        raise TypeError(f"name must be a string or None, got {name!r}")
    options = Options(
        separate_compiled_gradients=separate_compiled_gradients,
        static_argnums=one_or_several("static_argnums", static_argnums, int | np.integer, _INTS),
        static_argnames=one_or_several("static_argnames", static_argnames, str, "a string or a tuple of strings"),
        name=name,
    )
    if fn is None:
        return lambda wrapped: Compiled(wrapped, options)
    check_function("compile", fn)
    return Compiled(fn, options)


def _lift(key: Any, fn: Fn, in_graph: Fn) -> Fn:
    """A transform of ``fn`` as a function of arrays or tensors; cached and run fused when ``fn`` is compiled.

    ``key`` holds the transform's name and its arguments after ``fn``. TypeError for what cannot be called.
    """
    check_function(key[0], fn)
    recipe = (_made_again, (key[0], fn, *key[1:]))
    if isinstance(fn, Compiled):
        return fn.derive(key, in_graph, recipe=recipe)
    return Transformed(fn, lambda *args, **kwargs: _run(fn, in_graph, args, kwargs), recipe)


def _made_again(name: str, fn: Fn, *options: Any) -> Fn:
    """The transform of that name with its arguments, out of a pickle."""
    made: Fn = {"grad": grad, "value_and_grad": value_and_grad, "jacrev": jacrev, "jacfwd": jacfwd}[name](fn, *options)
    return made


def _run(fn: Fn, in_graph: Fn, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    graph = graph_in((args, kwargs))
    if graph is not None:
        with graph.as_default():
            return in_graph(*args, **kwargs)
    return run_once(functools.wraps(fn)(in_graph), *args, **kwargs)


def _apply(key: Any, fn: Fn, in_graph: Fn, *args: Any) -> Any:
    """Call a transform whose arguments are not those of ``fn``."""
    graph = graph_in(args)
    if graph is not None:
        with graph.as_default():
            return in_graph(*args)
    if isinstance(fn, Compiled):
        return fn.derive(key, in_graph, own_arguments=False)(*args)
    return run_once(in_graph, *args)


# -- gradients -----------------------------------------------------------------------------------------------


def _hashable(argnums: Argnums) -> Any:
    return one_or_several("argnums", argnums, int | np.integer, _INTS)


def grad(fn: Fn, argnums: Argnums = 0, has_aux: bool = False) -> Fn:
    """The function that gives the gradient of the scalar function ``fn`` with respect to the chosen
    positional arguments.

    Gradients have the structure, shapes and dtypes of the arguments: bare for an int ``argnums``, a tuple for
    a tuple; zeros for an argument that does not matter. With ``has_aux``, fn returns ``(value, aux)`` and the
    result is ``(gradient, aux)``. Complex arguments: the gradient of a real loss is dL/dRe - i dL/dIm. Raises
    ShapeError for a value that is no scalar, DTypeError for integers, ValueError for argnums out of range.
    """
    chosen = _hashable(argnums)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        _, aux, grads = value_and_gradients(fn, chosen, has_aux, args, kwargs)
        return (grads, aux) if has_aux else grads

    return _lift(("grad", chosen, has_aux), fn, gradient)


def value_and_grad(fn: Fn, argnums: Argnums = 0, has_aux: bool = False) -> Fn:
    """As ``grad``, with the value: ``(value, gradient)``, or ``((value, aux), gradient)`` with
    ``has_aux``.
    """
    chosen = _hashable(argnums)

    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        value, aux, grads = value_and_gradients(fn, chosen, has_aux, args, kwargs)
        return ((value, aux) if has_aux else value), grads

    return _lift(("value_and_grad", chosen, has_aux), fn, value_and_gradient)


def vjp(fn: Fn, *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """``(out, vjp_fn)``: the value at ``primals``, and the function from a cotangent of the value to a
    tuple, one entry per primal. The cotangent has the structure and shapes of the value: TypeError,
    ShapeError otherwise. Outside a trace ``vjp_fn`` computes the value again, from copies of the primals.
    """
    check_function("vjp", fn)
    graph = graph_in(primals)
    if graph is not None:
        with graph.as_default():
            return pull_back(fn, primals)
    kept = pytree.tree_map(lambda leaf: np.array(leaf) if type(leaf) is np.ndarray else settled(leaf), primals)

    def forward(args: tuple[Any, ...]) -> Any:
        return fn(*args)

    def backward(args: tuple[Any, ...], cotangent: Any) -> Any:
        return pull_back(fn, tuple(args))[1](cotangent)

    def vjp_fn(cotangent: Any) -> tuple[Any, ...]:
        pulled: tuple[Any, ...] = _apply("vjp", fn, backward, kept, cotangent)
        return pulled

    return _apply("forward", fn, forward, primals), vjp_fn


def _no_tuple(name: str, what: str, got: Any) -> TypeError:
    message = f"{name} takes {what} as a tuple with one entry per argument, got {type(got).__name__}"
    return TypeError(layout(message, needed=f"at {source_text(user_source())}", hint="(v,) is a tuple of one"))


def jvp(fn: Fn, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """``(out, tangents_out)``: the value at ``primals`` and its derivative along ``tangents``.

    Both are tuples or lists with one entry per argument. TypeError, ShapeError when the tangents do not fit.
    """
    check_function("jvp", fn)
    for what, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, tuple | list):
            raise _no_tuple("jvp", what, value)

    def forward(points: Any, directions: Any) -> Any:
        return push_forward(fn, tuple(points), tuple(directions))

    return _apply("jvp", fn, forward, tuple(primals), tuple(tangents))  # type: ignore[no-any-return]


def jacrev(fn: Fn, argnums: Argnums = 0) -> Fn:
    """The function that gives all derivatives of ``fn``, by reverse mode: best for few outputs.

    Arrays of shape ``out.shape + x.shape``, in the structure of the value, per leaf in that of the arguments.
    """
    return _jacobian("jacrev", fn, argnums, forward=False)


def jacfwd(fn: Fn, argnums: Argnums = 0) -> Fn:
    """The function that gives all derivatives of ``fn``, by forward mode: best for few inputs. Results as
    ``jacrev``.
    """
    return _jacobian("jacfwd", fn, argnums, forward=True)


def _jacobian(key: str, fn: Fn, argnums: Argnums, forward: bool) -> Fn:
    chosen = _hashable(argnums)

    def jacobian_in_graph(*args: Any, **kwargs: Any) -> Any:
        return jacobian_of(fn, chosen, forward, args, kwargs)

    return _lift((key, chosen), fn, jacobian_in_graph)


jacobian = jacrev


def hessian(fn: Fn, argnums: Argnums = 0) -> Fn:
    """The function that gives the second derivatives of the scalar function ``fn``, of shape ``x.shape +
    x.shape``.

    For several arguments, or arguments with structure: nested, rows outside and columns inside.
    """
    check_function("hessian", fn)
    return jacrev(grad(fn, argnums), argnums)


def hvp(fn: Fn, primals: Any, tangents: Any) -> Any:
    """The Hessian of the scalar function ``fn`` at ``primals`` times ``tangents``, at about the cost of two
    gradients.

    ``primals`` and ``tangents`` are tuples with one entry per argument, or the bare argument of a function of
    one. The result is a tuple like the primals, bare for one.
    """
    check_function("hvp", fn)
    is_bare = not isinstance(primals, tuple | list)
    points = (primals,) if is_bare else tuple(primals)
    if not is_bare and not isinstance(tangents, tuple | list):
        raise _no_tuple("hvp", "tangents", tangents)
    directions = (tangents,) if is_bare else tuple(tangents)

    def product(points: Any, directions: Any) -> Any:
        return hessian_times(fn, tuple(points), tuple(directions))

    result = _apply("hvp", fn, product, points, directions)
    return result[0] if len(points) == 1 else result


def stop_gradient(x: Any) -> Any:
    """``x`` (a pytree), which every gradient takes for a constant. Arrays are given back as they are."""
    return pytree.tree_map(lambda leaf: call("stop_gradient", leaf) if isinstance(leaf, Tensor) else leaf, x)
