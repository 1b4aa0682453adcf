"""NumPy's dispatch protocols: ufuncs and functions called on tensors become ops of the table; no op is
defined here.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jitgrad import hints
from jitgrad.advice import advise
from jitgrad.errors import DTypeError, IndexingError, ShapeError, TracedValueError, UnsupportedOpError, layout
from jitgrad.operators import Selected, call_open, functions, has_selection, is_open
from jitgrad.sources import source_text, user_source

# What reducing or accumulating with a ufunc is called in the table.
reductions = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
    "logaddexp": "logsumexp",
}
accumulations = {
    "add": "cumsum",
    "multiply": "cumprod",
    "maximum": "cummax",
    "minimum": "cummin",
    "logaddexp": "logcumsumexp",
}


def _in_place(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        graph = getattr(self, "graph", None)
        if graph is None or not graph.assigns_in_place or not (self.shape or self._view is not None):
            return NotImplemented
        return _call(ufunc, (self, other), {"out": (self,)})

    return operator


class NumpyProtocols:
    """Mixin: makes NumPy call jitgrad when a traced value is among the arguments.

    While a function is traced, ``x += y`` gives the object ``x`` another value, as it does to an array: all
    that hold the object see it. Scalars, and tensors of graphs that the user builds, are values: there ``x``
    is bound anew.
    """

    __slots__ = ()

    __iadd__, __isub__, __imul__ = _in_place(np.add), _in_place(np.subtract), _in_place(np.multiply)
    __itruediv__, __ifloordiv__ = _in_place(np.divide), _in_place(np.floor_divide)
    __imod__, __ipow__ = _in_place(np.remainder), _in_place(np.power)
    __iand__, __ior__, __ixor__ = (
        _in_place(np.bitwise_and),
        _in_place(np.bitwise_or),
        _in_place(np.bitwise_xor),
    )
    __imatmul__ = _in_place(np.matmul)
    __ilshift__, __irshift__ = _in_place(np.left_shift), _in_place(np.right_shift)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return call_function(func, args, kwargs)


def unsupported(what: str, hint: str | None = None) -> UnsupportedOpError:
    """The error for something of NumPy or SciPy that has no op: ``what`` names it in full."""
    return UnsupportedOpError(
        layout(
            f"{what} cannot be traced",
            needed=f"at {source_text(user_source())}",
            hint=hint
            or "wrap the code in jg.py_func(fn, inputs, dtypes), which runs it as it is, without a gradient",
        )
    )


# -- ufuncs --------------------------------------------------------------------------------------------------


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A ufunc, or one of its methods, on traced values. UnsupportedOpError where there is no op for it."""
    if (method != "__call__" or kwargs or ufunc.signature is not None) and is_open(inputs):
        return call_open(full_name(ufunc), functools.partial(_ufunc_called, ufunc, method), inputs, kwargs)
    try:
        return _ufunc_called(ufunc, method, *inputs, **kwargs)
    except Exception as error:
        advise(error, ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", inputs, kwargs)
        raise


def _ufunc_called(ufunc: np.ufunc, method: str, /, *inputs: Any, **kwargs: Any) -> Any:
    if has_selection(inputs) or (kwargs and has_selection(kwargs.get("out") or ())):
        return functions["ufunc_of_selections"](ufunc, method, inputs, kwargs)
    if method == "__call__":
        return _strong(_call(ufunc, inputs, kwargs) if kwargs else _function_of(ufunc)(*inputs))
    methods = {"reduce": _reduce, "accumulate": _accumulate, "outer": _outer, "at": _at, "reduceat": _reduceat}
    if method not in methods:
        raise unsupported(f"{full_name(ufunc)}.{method}")
    return methods[method](ufunc, inputs, kwargs)


def _strong(result: Any) -> Any:
    """The result of a function of NumPy on Python numbers is of a NumPy dtype, which does not give way."""
    for x in result if isinstance(result, tuple) else (result,):
        if getattr(x, "is_weak", False):
            x.is_weak = False
    return result


def full_name(func: Any) -> str:
    """``numpy.linalg.norm``, ``scipy.special.gammaln``: how the user would write it."""
    if isinstance(func, np.ufunc):
        special = getattr(sys.modules.get("scipy.special"), func.__name__, None)
        place = "numpy." if getattr(np, func.__name__, None) is func else "scipy.special." if special is func else ""
        return place + func.__name__
    return f"{getattr(func, '__module__', 'numpy')}.{func.__name__}"


_OF_ANOTHER_NAME = {"i0": "scipy.special.i0"}  # ufuncs, where NumPy has a function of that name that is none


def _function_of(ufunc: np.ufunc) -> Callable[..., Any]:
    name = ufunc.__name__
    found: Callable[..., Any] | None = functions.get(_OF_ANOTHER_NAME.get(name, name))
    if found is None:
        raise unsupported(full_name(ufunc))
    return found


def _call(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    options = dict(kwargs)
    out = options.pop("out", None)
    where = options.pop("where", True)
    dtype = options.pop("dtype", None)
    if dtype is not None:
        inputs = tuple(functions["astype"](_tensor(x), dtype) for x in inputs)
    along = {"axis": options.pop("axis")} if ufunc.__name__ == "vecdot" and "axis" in options else {}
    _refuse_options(ufunc, options)
    result = _function_of(ufunc)(*inputs, **along)
    if where is not True:
        if out is None:
            raise unsupported(
                f"{full_name(ufunc)} with where= and without out=",
                "use np.where(condition, result, otherwise)",
            )
        result = functions["where"](where, result, out[0])
    return result if out is None else _store(full_name(ufunc), result, out, is_wider=True)


def _refuse_options(ufunc: np.ufunc, options: Mapping[str, Any]) -> None:
    """Options that do not change the result pass; the others are refused by name."""
    harmless = {
        "order": "KCA",
        "subok": (True, False),
        "casting": ("same_kind", "unsafe"),
        "axes": (None,),
        "axis": (None,),
    }
    for name, value in options.items():
        if value not in harmless.get(name, ()):
            raise unsupported(f"{full_name(ufunc)} with {name}={value!r}")


def _store(name: str, result: Any, out: tuple[Any, ...], is_wider: bool = False) -> Any:
    """Write the result (or results) to the tensors given as ``out=``, and give them back. Only functions of elements
    fill what ``is_wider`` than their result.
    """
    results = result if isinstance(result, tuple) else (result,)
    if is_wider:
        shape = next(target.shape for target in out if target is not None)
        results = tuple([_as_wide(value, shape) for value in results])
    for value, target in zip(results, out, strict=True):
        if target is None:
            continue
        if isinstance(target, np.ndarray):
            raise _written_array(name)
        if isinstance(target, Selected):
            target.as_graph_element()  # which says why there is none
        if not np.can_cast(value.dtype, target.dtype, "same_kind"):
            raise DTypeError(
                f"{name} with out=: {value.dtype.name} cannot be stored as {target.dtype.name}"
            )
        if None not in (value.shape, target.shape) and value.shape != target.shape:
            raise _misfit(name, value, target)
        functions["setitem"](target, ..., value)
    stored = tuple(value if target is None else target for value, target in zip(results, out, strict=True))
    return stored if isinstance(result, tuple) else stored[0]


def _as_wide(value: Any, shape: Any) -> Any:
    """The value as wide as what is given for it, if that is wider."""
    is_wider = value.shape is not None and shape is not None and value.shape != shape and len(shape) >= len(value.shape)
    return functions["broadcast_to"](value, shape) if is_wider else value


def _misfit(name: str, value: Any, target: Any) -> ShapeError:
    return ShapeError(
        layout(
            f"{name} with out=: the result has another shape than what is given for it",
            expected=str(value.spec),
            got=str(target.spec),
            needed=f"at {source_text(user_source())}",
            hint="assign y[...] = result to fill a wider array",
        )
    )


def _written_array(name: str) -> TracedValueError:
    return TracedValueError(
        layout(
            f"{name} would write a traced value into a NumPy array",
            needed=f"at {source_text(user_source())}",
            hint=f"write a = a + b instead of a += b, or make a with {hints.ZEROS}",
        )
    )


def _reduce(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    own = f"{ufunc.__name__}.reduce"
    name = own if own in functions else reductions.get(ufunc.__name__)
    if name is None or name not in functions:
        raise unsupported(f"{full_name(ufunc)}.reduce")
    x, *rest = inputs
    options = dict(zip(("axis", "dtype", "out", "keepdims"), rest, strict=False)) | kwargs
    options.setdefault("axis", 0)
    out = options.pop("out", None)
    first = options.pop("initial", None) if name in ("any", "all") else None
    result = functions[name](
        x, **{key: value for key, value in options.items() if key == "axis" or value is not None}
    )
    result = result if first is None else functions[ufunc.__name__](result, first)
    return result if _is_absent(out) else _store(full_name(ufunc), result, _targets(out))


def _is_absent(out: Any) -> bool:
    return out is None or (isinstance(out, tuple) and all(target is None for target in out))


def _targets(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def _accumulate(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = accumulations.get(ufunc.__name__)
    if name is None or name not in functions:
        raise unsupported(f"{full_name(ufunc)}.accumulate")
    x, *rest = inputs
    options = dict(zip(("axis", "dtype", "out"), rest, strict=False)) | kwargs
    out = options.pop("out", None)
    options.setdefault("axis", 0)
    result = functions[name](x, **{key: value for key, value in options.items() if value is not None})
    return result if _is_absent(out) else _store(full_name(ufunc), result, _targets(out))


def _outer(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    a, b = map(_tensor, inputs)
    column = functions["reshape"](a, (*a.shape, *(1,) * b.ndim))
    return call_ufunc(ufunc, "__call__", (column, b), kwargs)


def _reduceat(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As the method of the ufunc at indices that are no tensors: of the elements from each to the next one, or of that
    one alone where the next is not behind it.
    """
    x, indices, *rest = inputs
    options = dict(zip(("axis", "dtype", "out"), rest, strict=False)) | kwargs
    if hasattr(indices, "as_graph_element") or any(options.get(name) is not None for name in ("dtype", "out")):
        raise unsupported(f"{full_name(ufunc)}.reduceat at traced indices, or with dtype= or out=")
    moved = functions["moveaxis"](_tensor(x), options.get("axis", 0), 0)
    places = np.asarray(indices)
    if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
        raise IndexingError(f"reduceat takes indices as a vector of integers, got {indices!r}")
    starts, count = places.tolist(), moved.shape[0]
    if any(not 0 <= start < count for start in starts):
        raise IndexingError(f"reduceat takes indices from 0 to {count - 1}, got {starts}")
    if not starts:
        return functions["moveaxis"](moved[:0], 0, options.get("axis", 0))
    ends = [*starts[1:], count]
    parts = [_reduce(ufunc, (moved[low : max(high, low + 1)],), {}) for low, high in zip(starts, ends, strict=True)]
    return functions["moveaxis"](functions["stack"](parts), 0, options.get("axis", 0))


def _at(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    found = functions.get(f"{ufunc.__name__}.at")
    if found is None:
        raise unsupported(f"{full_name(ufunc)}.at", hints.AT.format(name=ufunc.__name__))
    found(*inputs)


def _tensor(x: Any) -> Any:
    from jitgrad.ops.common import as_tensor

    return as_tensor(x)


# -- functions -----------------------------------------------------------------------------------------------


def table_name(func: Callable[..., Any]) -> str:
    """The name of a NumPy function in the table: ``sum``, ``linalg.norm``, ``fft.fft``."""
    module = getattr(func, "__module__", "numpy") or "numpy"
    parts = [part for part in module.split(".")[1:] if not part.startswith("_")]
    return ".".join([*parts, func.__name__])


_OF_ELEMENTS = ("clip", "fix", "isneginf", "isposinf", "outer")  # of NumPy's functions that are no ufuncs


def call_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A NumPy function on arguments among which are traced values. UnsupportedOpError where there is no op
    for it.
    """
    name = table_name(func)
    known = functions.get(name) or questions.get(name)
    if known is None:
        raise unsupported(full_name(func))
    if not _is_absent(kwargs.get("out")):
        options = dict(kwargs)
        out = options.pop("out")
        result = call_function(func, args, options)
        return _store(full_name(func), result, _targets(out), is_wider=name in _OF_ELEMENTS)
    if name not in questions and (is_open(args) or (kwargs and is_open(kwargs.values()))):
        return call_open(full_name(func), functools.partial(_called, name), args, dict(kwargs))
    try:
        if has_selection(args) or (kwargs and has_selection(kwargs.values())):
            return functions["function_of_selections"](name, args, kwargs)
        if name in questions:
            return known(*args, **kwargs)
        return _called(name, *args, **kwargs)
    except Exception as error:
        advise(error, name, args, kwargs)
        raise


def _called(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """The function of that name, its result as the user gets it."""
    result = functions[name](*args, **kwargs)
    given = (*args, *kwargs.values())
    if kwargs.get("copy") or (name == "nan_to_num" and any(x is result for x in given)):  # which it has changed
        return result
    return _strong(functions["as_users_see"](name, result, given))


def _shape(a: Any) -> Any:
    return _tensor(a).shape


def _size(a: Any, axis: Any = None) -> int:
    shape = _tensor(a).spec.known_shape
    return math.prod(shape if axis is None else (shape[i] for i in np.atleast_1d(axis)))


def _result_type(*values: Any) -> Any:
    from jitgrad.ops.common import joint_dtype, type_key

    is_type = (type, np.dtype, str)
    return joint_dtype(
        *(np.dtype(value) if isinstance(value, is_type) else type_key(value) for value in values)
    )


def _indices_from(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda arr, *args: make(np.broadcast_to(np.False_, _tensor(arr).spec.known_shape), *args)


# NumPy functions whose answer is known while tracing: no op is made for them.
questions: dict[str, Callable[..., Any]] = {
    "shape": _shape,
    "ndim": lambda a: _tensor(a).ndim,
    "size": _size,
    "result_type": _result_type,
    "iscomplexobj": lambda x: _tensor(x).dtype.kind == "c",
    "isrealobj": lambda x: _tensor(x).dtype.kind != "c",
    "may_share_memory": lambda a, b, max_work=None: False,
    "shares_memory": lambda a, b, max_work=None: False,
    "tril_indices_from": _indices_from(np.tril_indices_from),
    "triu_indices_from": _indices_from(np.triu_indices_from),
    "diag_indices_from": _indices_from(np.diag_indices_from),
    "common_type": lambda *values: (
        np.result_type(np.float16, *(_tensor(value).dtype for value in values)).type
    ),
}
