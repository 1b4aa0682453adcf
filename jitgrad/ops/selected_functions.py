"""What NumPy's functions make of selections, in terms of what they make of all places; how selections are made, and how
a place that is not chosen is kept out, is in selections.py.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from jitgrad.dispatch import call_ufunc, reductions
from jitgrad.graph import Tensor, graph_of
from jitgrad.operators import call, function, functions
from jitgrad.ops.common import as_tensor, build
from jitgrad.ops.selections import Selection
from jitgrad.spec import normalize_axes

# Of NumPy's functions that are no ufuncs, those that are computed element by element.
_OF_ELEMENTS = frozenset((
    "angle", "around", "astype", "clip", "conjugate", "copy", "empty_like", "fix", "full_like", "imag", "isclose",
    "isneginf", "isposinf", "nan_to_num", "ones_like", "operator_power", "real", "round", "sinc", "where", "zeros_like",
))  # fmt: skip
_VIEWS = frozenset(("imag", "real"))  # what NumPy gives as views, and what is told to make no copy
# Those that take where=, and those for which there is a number that changes nothing.
_BY_WHERE = frozenset((
    "all", "any", "mean", "nanmean", "nanstd", "nansum", "nanprod", "nanvar", "prod", "std", "sum", "var",
))  # fmt: skip
_NEUTRAL = {"count_nonzero": 0, "logsumexp": -np.inf}
_EXTREMES = {"max": "max", "amax": "max", "min": "min", "amin": "min"}
# Those that are computed along other axes than that of the chosen elements.
_ALONG_OTHERS = frozenset(("argmax", "argmin", "median"))


def _first(values: Iterable[Any]) -> Selection | None:
    """The first selection among values, or in lists of them."""
    for value in values:
        found = _first(value) if isinstance(value, list | tuple) else value
        if isinstance(found, Selection):
            return found
    return None


def _one(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Selection:
    found = _first((*args, *kwargs.values()))
    assert found is not None
    return found


@function("ufunc_of_selections")
def of_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A ufunc, or its method reduce, where a selection is among the inputs."""
    options = dict(kwargs)
    if method == "reduce" and ufunc.__name__ in reductions:
        x, *rest = inputs
        given = {"axis": 0} | dict(zip(("axis", "dtype", "out", "keepdims"), rest, strict=False)) | options
        named = {key: value for key, value in given.items() if key == "axis" or value is not None}
        return of_function(reductions[ufunc.__name__], (x,), named)
    if method != "__call__":
        raise _one(inputs, kwargs).refusal(f"np.{ufunc.__name__}.{method} of x[mask]")
    if ufunc.signature is not None:
        if options:
            raise _one(inputs, {}).refusal(f"np.{ufunc.__name__} of x[mask] with {', '.join(options)}=")
        return of_function(ufunc.__name__, inputs, options)
    out = options.pop("out", None)
    if out is not None:
        return _stored(ufunc, inputs, options, out)
    return _of_elements(lambda *dense: call_ufunc(ufunc, method, dense, options), inputs, {})


def _stored(ufunc: np.ufunc, inputs: tuple[Any, ...], options: dict[str, Any], out: tuple[Any, ...]) -> Any:
    """``y = x[mask]; y += z``, where all that hold ``y`` see it as an array's: but in a graph that the user builds."""
    target = out[0]
    if not isinstance(target, Selection) or len(out) > 1:
        raise _one(inputs, {}).refusal(f"np.{ufunc.__name__} of x[mask] with out=")
    if target.is_shared:
        raise target.refusal("a change in place beside a view of x[mask]", "y = y + 1 in place of y += 1")
    places = build("identity_tensor", target.places)
    entered = {key: target.entered(value) for key, value in options.items()}
    call_ufunc(ufunc, "__call__", tuple(map(target.entered, inputs)), {**entered, "out": (places,)})
    if not graph_of((places,)).assigns_in_place:
        return target.with_places(places)
    target.places = places
    return target


@function("elementwise_of_selections")
def _of_elements(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``fn``, which computes element by element, of arguments of which some are selections."""
    like = _one(args, kwargs)
    out = fn(*map(like.entered, args), **{key: like.entered(value) for key, value in kwargs.items()})
    return tuple(map(like.with_places, out)) if isinstance(out, tuple) else like.with_places(out)


@function("function_of_selections")
def of_function(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The function of that name where a selection is among the arguments."""
    if name in _OF_ELEMENTS:
        made = _of_elements(functions[name], args, kwargs)
        is_view = name in _VIEWS or kwargs.get("copy") is False
        return args[0].shared(made.places, made.axis) if is_view else made
    own = _own.get(name)
    if own is not None:
        return own(*args, **kwargs)
    along = _BY_WHERE | _NEUTRAL.keys() | _EXTREMES.keys() | _ALONG_OTHERS
    if name in along and isinstance(args[0] if args else None, Selection):
        return _combined(name, args, kwargs)
    raise _one(args, kwargs).refusal(f"np.{name} of x[mask]")


# -- along axes --------------------------------------------------------------------------------------------------------


def _combined(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A function that combines elements along axes."""
    s = args[0]
    bound = inspect.signature(functions[name]).bind(*args, **kwargs)
    given = bound.arguments
    if given.get("where", True) is not True or "where" in given.get("options", {}):
        raise s.refusal(f"np.{name} of x[mask] with where=", "join the masks: x[mask & other]")
    array, axes = next(iter(given)), normalize_axes(given.get("axis"), s.ndim)
    places = _of_places(s, axes)
    given["axis"] = places[0] if name in _ALONG_OTHERS and len(places) == 1 else places
    if s.axis not in axes:
        given[array] = s.places
        return _along_others(s, functions[name](*bound.args, **bound.kwargs), axes, given.get("keepdims"))
    if name in _ALONG_OTHERS:
        raise s.refusal(f"np.{name} of x[mask]", _ACROSS[name])
    if name in _EXTREMES:
        return _as_one_axis(s, _extreme(_EXTREMES[name], s, places, given), given.get("keepdims"))
    given[array] = s.filled(_NEUTRAL.get(name, 1))
    if name in _BY_WHERE:
        options = given if "where" in bound.signature.parameters else given.setdefault("options", {})
        options["where"] = s.wide_mask
    return _as_one_axis(s, functions[name](*bound.args, **bound.kwargs), given.get("keepdims"))


def _of_places(s: Selection, axes: Iterable[int]) -> tuple[int, ...]:
    """The axes of the places that axes of the selection are."""
    more = s.mask.ndim - 1
    wide = [s.block if axis == s.axis else (axis + more * (axis > s.axis),) for axis in axes]
    return tuple(k for block in wide for k in block)


def _along_others(s: Selection, out: Any, axes: tuple[int, ...], keepdims: Any) -> Selection:
    """What is combined along other axes than that of the chosen elements, which are gone if they are not kept."""
    return Selection(out, s.mask, s.axis - (0 if keepdims else sum(axis < s.axis for axis in axes)))


def _as_one_axis(s: Selection, out: Any, keepdims: Any) -> Any:
    """What is combined along the axis of chosen elements, which is one if it is kept."""
    return build("squeeze", out, s.block[1:]) if keepdims and s.mask.ndim > 1 else out


_ACROSS = {
    "argmax": "np.argmax(np.where(mask, x, -np.inf)) is the position in x",
    "argmin": "np.argmin(np.where(mask, x, np.inf)) is the position in x",
    "median": "np.nanmedian(np.where(mask, x, np.nan)) leaves out what is not chosen",
}


def _extreme(name: str, s: Selection, axes: tuple[int, ...], given: Mapping[str, Any]) -> Any:
    """The extreme of the chosen elements; of none it is NaN, since no code can raise NumPy's error where it runs, and
    of integers the other end of their range. With ``initial`` it is that.
    """
    options = {key: given[key] for key in ("out", "keepdims", "initial") if key in given}
    found = call(name, s.filled(_end(s.dtype, name)), axes, **options)
    if s.dtype.kind not in "fc" or options.get("initial") is not None:
        return found
    return call("where", call("any", s.mask), found, np.asarray(np.nan, s.dtype)[()])


def _end(dtype: np.dtype[Any], name: str) -> Any:
    """What every number of the dtype is an extreme beside."""
    sign = -1 if name == "max" else 1
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if sign < 0 else np.iinfo(dtype).max
    if dtype.kind == "b":
        return sign > 0
    return complex(sign * np.inf, sign * np.inf) if dtype.kind == "c" else sign * np.inf


def _ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    sides = [of_function(name, (a, axis, out, keepdims), {}) for name in ("max", "min")]
    return sides[0] - sides[1]


def _average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    if weights is None and not returned:
        return a.mean(axis, keepdims=keepdims)
    like = _one((a, weights), {})
    if returned or not (isinstance(weights, Selection) and isinstance(a, Selection) and weights.ndim == a.ndim):
        raise like.refusal("np.average of x[mask] with such weights", "np.sum(x[mask] * w[mask]) / np.sum(w[mask])")
    return (a * weights).sum(axis, keepdims=keepdims) / weights.sum(axis, keepdims=keepdims)


def _norm(x: Selection, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Norms of vectors, and that of Frobenius: zeros change none of an order from 0 to infinity."""
    axes = normalize_axes(axis, x.ndim)
    order = 2 if ord is None else ord
    if len(axes) > 1 and ord is not None:
        raise x.refusal("a matrix norm of x[mask]")
    if x.axis not in axes:
        out = call("linalg.vector_norm", x.places, axis=_of_places(x, axes), ord=order, keepdims=keepdims)
        return _along_others(x, out, axes, keepdims)
    if not isinstance(order, int | float) or order < 0:
        raise x.refusal(f"a norm of order {order!r} of x[mask]")
    out = call("linalg.vector_norm", x.filled(0), axis=_of_places(x, axes), ord=order, keepdims=keepdims)
    return _as_one_axis(x, out, keepdims)


# -- axes and products -------------------------------------------------------------------------------------------------


def _transpose(a: Any, axes: Any = None) -> Any:
    if axes is not None:
        raise _one((a, axes), {}).refusal("np.transpose of x[mask] with axes=", "x[mask].T reverses all axes")
    return a.shared(build("transpose", a.places, _of_places(a, reversed(range(a.ndim)))), a.after)


def _factors(a: Any, b: Any) -> tuple[Any, Any, Selection]:
    """Both as tensors or selections, and one that is a selection."""
    like = _one((a, b), {})
    graph = graph_of((like.mask,))
    left, right = (x if isinstance(x, Selection) else as_tensor(x, graph=graph) for x in (a, b))
    return left, right, like


def _matmul(a: Any, b: Any) -> Any:
    """Products of vectors and matrices: over the chosen elements of both, or over another axis of one."""
    a, b, like = _factors(a, b)
    if a.ndim not in (1, 2) or b.ndim not in (1, 2):
        raise like.refusal("a product of x[mask] that is not of vectors and matrices")
    over_a = isinstance(a, Selection) and a.axis == a.ndim - 1
    over_b = isinstance(b, Selection) and b.axis == 0
    if over_a and over_b:
        return _over_chosen(a, b)
    if over_a or over_b or (isinstance(a, Selection) and isinstance(b, Selection)):
        raise like.refusal("such a product of x[mask]", "chosen elements meet chosen ones: x[mask].T @ y[mask]")
    return _rows_times(a, b) if isinstance(a, Selection) else _times_columns(a, b)


def _over_chosen(a: Selection, b: Selection) -> Any:
    """The product over chosen elements; of vectors a sum, which fuses with what it reads."""
    a.check_mask(b.mask)
    if a.ndim == b.ndim == 1:
        product = a * b
        return product.sum(dtype=product.dtype)
    return call("matmul", *[build("reshape", x.filled(0), _flat_shape(x)) for x in (a, b)])


def _flat_shape(s: Selection) -> tuple[int, ...]:
    shape, behind = s.places.spec.known_shape, s.axis + s.mask.ndim
    return (*shape[: s.axis], math.prod(shape[s.axis : behind]), *shape[behind:])


def _rows_times(a: Selection, b: Tensor) -> Selection:
    """``x[mask] @ w``: what is not chosen is 0 there, and so is what its gradient adds to that of ``w``."""
    out = call("matmul", a.filled(0), b)
    return _gated(Selection(out, a.mask, 0))


def _times_columns(a: Tensor, b: Selection) -> Selection:
    flat = call("matmul", a, build("reshape", b.filled(0), _flat_shape(b)))
    out = build("reshape", flat, (*a.spec.known_shape[:-1], *b.mask.spec.known_shape))
    return _gated(Selection(out, b.mask, a.ndim - 1))


def _gated(s: Selection) -> Selection:
    return Selection(s.filled(1), s.mask, s.axis)


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    left, right, like = _factors(a, b)
    if out is not None:
        raise like.refusal("np.dot of x[mask] with out=")
    return left * right if 0 in (left.ndim, right.ndim) else _matmul(left, right)


def _vdot(a: Any, b: Any) -> Any:
    left, right, like = _factors(a, b)
    if (left.ndim, right.ndim) != (1, 1):
        raise like.refusal("np.vdot or np.vecdot of x[mask] that is no vector")
    return _matmul(np.conjugate(left) if left.dtype.kind == "c" else left, right)


def _inner(a: Any, b: Any) -> Any:
    return _matmul(a, b if np.ndim(b) < 2 else np.transpose(b))


_own: dict[str, Callable[..., Any]] = {
    "ptp": _ptp,
    "average": _average,
    "linalg.norm": _norm,
    "transpose": _transpose,
    "matmul": _matmul,
    "dot": _dot,
    "inner": _inner,
    "vdot": _vdot,
    "vecdot": _vdot,
    "shape": lambda a: a.shape,
    "size": lambda a: a.size,
    "ndim": lambda a: a.ndim,
    "iscomplexobj": lambda x: x.dtype.kind == "c",
    "isrealobj": lambda x: x.dtype.kind != "c",
}
