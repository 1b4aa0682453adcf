"""The table of functions by NumPy name, and Python's operators and NumPy's methods in terms of it; no op is
defined here.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, TypeVar, cast

import numpy as np

from jitgrad import hints
from jitgrad.advice import advise
from jitgrad.askers import may_assign
from jitgrad.errors import ShapeError, layout
from jitgrad.refusals import (
    asked_array,
    asked_condition,
    needs_value,
    refused_method,
    traced_value_error,
    unsupported_method,
)
from jitgrad.sources import operation_text, place, source_text, user_source
from jitgrad.spec import TensorSpec, shape_text

F = TypeVar("F", bound=Callable[..., Any])

# NumPy name ("add", "sum", "linalg.norm") -> a function that builds ops from tensors. The op families fill it;
# operators, methods, NumPy's dispatch and jitgrad.numpy all read it.
# What few scripts ask for is entered when somebody does: seven modules less are imported with the package.
SELDOM = {
    "inserting": ("insert", "resize"),
    "padding": ("pad_by_values",),
    "polynomials": ("polyadd", "polyder", "polyfit", "polyint", "polymul", "polysub", "polyval"),
    "pseudoinverse": (
        "linalg.cond", "linalg.lstsq", "linalg.matrix_rank", "linalg.pinv", "linalg.tensorinv", "linalg.tensorsolve",
        "matvec", "vecmat",
    ),
    "quantiles": ("nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"),
    "questions": (
        "apply_along_axis", "apply_over_axes", "array_equiv", "isin", "lexsort", "nanargmax", "nanargmin",
        "ravel_multi_index", "real_if_close", "unravel_index",
    ),
    "selected_functions": ("elementwise_of_selections", "function_of_selections", "ufunc_of_selections"),
    "selections": ("selected", "selected_along", "selected_values"),
    "samples": (
        "geomspace", "histogram", "histogram_bin_edges", "lib.stride_tricks.sliding_window_view", "unwrap",
    ),
}  # fmt: skip
_module_of = {name: module for module, names in SELDOM.items() for name in names}


class _Functions(dict[str, Callable[..., Any]]):
    """The table, which loads a family when one of its functions is looked up."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        if name not in _module_of:
            raise KeyError(name)
        import_module(f"jitgrad.ops.{_module_of[name]}")
        return dict.__getitem__(self, name)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in _module_of

    def get(self, name: Any, default: Any = None) -> Any:
        """The function of that name, if there is one."""
        found = dict.get(self, name)
        return self[name] if found is None and name in _module_of else found or default


functions = _Functions()


def function(*names: str) -> Callable[[F], F]:
    """Decorator: enter a function in the table under these NumPy names."""

    def enter(fn: F) -> F:
        for name in names:
            functions[name] = fn
        return fn

    return enter


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call the function of that NumPy name."""
    return functions[name](*args, **kwargs)


def _binary(name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return functions[name](self, other) if is_operand(other) else NotImplemented

    return operator


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return functions[name](other, self) if is_operand(other) else NotImplemented

    return operator


def is_open(values: Iterable[Any]) -> bool:
    """Whether the shape of some tensor among the values, or in a list of them, is not fully known."""
    for value in values:
        if isinstance(value, Operators):
            shape = value.spec.shape
            if shape is None or None in shape:
                return True
        elif isinstance(value, list | tuple) and is_open(value):
            return True
    return False


def call_open(name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``fn(*args, **kwargs)``, for tensors whose shapes are not fully known: built now, or when the graph runs."""
    from jitgrad.control import deferred

    try:
        return deferred.call_open(name, fn, args, kwargs)
    except Exception as error:
        advise(error, name, args, kwargs)
        raise


def takes_open(name: str, fn: F) -> F:
    """``fn``, which may want to know extents, for tensors of unknown extents too."""
    of_known = advising(name, fn)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        if is_open(args) or (kwargs and is_open(kwargs.values())):
            return call_open(name, fn, args, kwargs)
        return of_known(*args, **kwargs)

    return cast(F, run)


def advising(name: str, fn: F) -> F:
    """``fn``, whose errors tell of the call and of what to do."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            advise(error, name, args, kwargs)
            raise

    return cast(F, run)


def _times(name: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A product, of which NumPy makes a repeated list where one side is an integer and no array."""

    def operator(self: Any, other: Any) -> Any:
        is_list = type(other) is list or type(other) is tuple
        if is_list and self.spec.shape == () and self.spec.dtype.kind in "iu" and _is_traced(self):
            raise traced_value_error(self, "repeating a list", hints.REPEAT)
        return name(self, other)

    return operator


def _is_traced(x: Any) -> bool:
    graph = getattr(x, "graph", None)
    return graph is not None and bool(graph.assigns_in_place)


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("out") is not None:
            return getattr(np, name)(self, *args, **kwargs)
        return functions["as_users_see"](name, functions[name](self, *args, **kwargs), (self,))

    method.__name__ = name
    return takes_open(name, method)


class Selected:
    """Base of selections (ops/selections.py): tensors beside one leave operators and functions to it."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        _kinds_of_selections.add(cls)

    def as_graph_element(self, graph: Any = None) -> Any:
        """There is no tensor of the elements: whoever asks for one is refused."""
        raise NotImplementedError


_kinds_of_selections: set[type] = set()  # none before the first is made


def has_selection(values: Iterable[Any]) -> bool:
    """Whether a selection is among the values."""
    return not _kinds_of_selections.isdisjoint(map(type, values))


_NO_OPERANDS = (str, bytes, dict, set, type(None), Selected)


def is_operand(x: Any) -> bool:
    """Whether an operator accepts ``x`` beside a tensor: not strings, None, containers of objects and selections."""
    return not isinstance(x, _NO_OPERANDS)


_reshape, _transpose, _matrix_transpose = _method("reshape"), _method("transpose"), _method("matrix_transpose")
_real, _imag = _method("real"), _method("imag")


def _converted(x: Any, dtype: Any) -> Any:
    return functions["astype"](x, dtype)


_astype = takes_open("astype", _converted)


def _whole(x: Any, name: str) -> Any:
    """A number made a whole one, which gives way to dtypes as an int of Python's does."""
    if x.spec.shape != () or x.spec.dtype.kind == "c":
        return float(x)
    whole = _astype(x if x.spec.dtype.kind in "iu" else functions[name](x), np.int64)
    whole.is_weak = True
    return whole


def _known_shape(x: Any, what: str) -> tuple[int, ...]:
    """The shape of ``x``; ShapeError where it is not known, of which ``what`` was asked for."""
    shape: tuple[int, ...] | None = x.spec.shape
    if shape is None or None in shape:
        raise ShapeError(
            layout(f"{what} is not known before the graph runs: the shape {shape_text(shape)} is not fully known here",
                   op=operation_text(x.op) if hasattr(x, "op") else None, needed=f"at {source_text(user_source())}",
                   hint="give the placeholder a shape, or use a function that needs no number: np.mean, reshape to -1")
        )  # fmt: skip
    return shape


def _item(x: Any, index: Any) -> Any:
    return functions["item_as_users_see"](functions["getitem"](x, index), x, index)


class Operators:
    """Mixin: Python's operators and NumPy's array methods, each a look-up in the table of functions."""

    __slots__ = ()
    __array_priority__ = 1000.0

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _times(_binary("multiply")), _times(_reflected("multiply"))
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __pow__, __rpow__ = _binary("operator_power"), _reflected("operator_power")
    __matmul__, __rmatmul__ = takes_open("matmul", _binary("matmul")), takes_open("matmul", _reflected("matmul"))
    __and__, __rand__ = _binary("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _reflected("bitwise_xor")
    __lshift__, __rlshift__ = _binary("left_shift"), _reflected("left_shift")
    __rshift__, __rrshift__ = _binary("right_shift"), _reflected("right_shift")
    __divmod__, __rdivmod__ = _binary("divmod"), _reflected("divmod")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __eq__, __ne__ = _binary("equal"), _binary("not_equal")
    __hash__ = object.__hash__
    __neg__, __pos__ = _method("negative"), _method("positive")
    __abs__, __invert__ = _method("absolute"), _method("invert")

    __bool__ = asked_condition
    __float__ = needs_value("__float__", "float()", hints.FLOAT)
    __int__ = needs_value("__int__", "int()", hints.INT)
    __complex__ = needs_value("__complex__", "complex()", hints.SCALAR)
    __index__ = needs_value("__index__", "an index or a count", hints.INDEX)
    __array__ = asked_array
    item = needs_value("item", "item()", hints.SCALAR)
    tolist = needs_value("tolist", "tolist()", hints.SCALAR)

    sum, prod, mean, std, var = map(_method, ("sum", "prod", "mean", "std", "var"))
    max, min, any, all = map(_method, ("max", "min", "any", "all"))
    argmax, argmin, argsort = map(_method, ("argmax", "argmin", "argsort"))
    put, searchsorted, argpartition, choose = map(_method, ("put", "searchsorted", "argpartition", "choose"))
    cumsum, cumprod, clip, round = map(_method, ("cumsum", "cumprod", "clip", "round"))
    swapaxes, squeeze, ravel, diagonal = map(_method, ("swapaxes", "squeeze", "ravel", "diagonal"))
    repeat, take, dot, trace = map(_method, ("repeat", "take", "dot", "trace"))
    conj, conjugate, copy, nonzero = map(_method, ("ndarray.conj", "ndarray.conj", "copy", "nonzero"))

    resize, byteswap, dump, dumps, tobytes, tofile = map(
        refused_method, ("resize", "byteswap", "dump", "dumps", "tobytes", "tofile")
    )

    spec: TensorSpec

    def __copy__(self) -> Any:
        return functions["copy"](self)

    def __deepcopy__(self, memo: Any) -> Any:
        return functions["copy"](self)

    def __round__(self, ndigits: Any = None) -> Any:
        """As Python rounds NumPy's numbers: to an integer, unless a number of digits is given."""
        return _method("round")(self, ndigits) if ndigits is not None or self.ndim else _whole(self, "rint")

    def __floor__(self) -> Any:
        return _whole(self, "floor")

    def __ceil__(self) -> Any:
        return _whole(self, "ceil")

    def __trunc__(self) -> Any:
        return _whole(self, "trunc")

    def __format__(self, format_spec: str) -> str:
        if format_spec:
            raise traced_value_error(self, f"formatting with {format_spec!r}", hints.SCALAR)
        return str(self)

    def __len__(self) -> int:
        return self._leading_extent("len()")

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._leading_extent("iteration")))

    def _leading_extent(self, what: str) -> int:
        shape = self.spec.shape
        if shape == ():
            hint = "it is one number: use it as it is; x[None] and np.atleast_1d(x) have an axis"
            raise TypeError(layout(f"{what} of a 0-d tensor", needed=place(), hint=hint))
        if shape is None or shape[0] is None:
            hint = "give the shape, or use an operation on the whole array"
            raise traced_value_error(self, f"{what} over an unknown length", hint)
        return int(shape[0])

    def __getitem__(self, index: Any) -> Any:
        shape = self.spec.shape
        if shape is None or None in shape:
            return call_open("getitem", _item, (self, index), {})
        try:
            return functions["item_as_users_see"](functions["getitem"](self, index), self, index)
        except Exception as error:
            advise(error, "getitem", (self, index), {})
            raise

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is int and isinstance(value, Operators) and not may_assign(sys._getframe(1)):
            raise traced_value_error(self, "a shuffle, or another function that assigns item by item,", hints.SHUFFLE)
        if is_open((self, value)):
            call_open("setitem", functions["setitem"], (self, index, value), {})
        else:
            try:
                functions["setitem"](self, index, value)
            except Exception as error:
                advise(error, "setitem", (self, index, value), {})
                raise

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> None:
        """Sorted in place, as numpy.ndarray.sort; np.sort gives a sorted copy."""
        functions["setitem"](self, ..., functions["sort"](self, axis, kind, order))

    def partition(self, kth: Any, axis: int = -1, kind: Any = "introselect", order: Any = None) -> None:
        """Partitioned in place, as numpy.ndarray.partition."""
        self[...] = np.partition(cast(Any, self), kth, axis, kind, order)

    def compress(self, condition: Any, axis: Any = None) -> Any:
        """As numpy.ndarray.compress: the slices where a condition that is no tensor holds."""
        return np.compress(condition, cast(Any, self), axis)

    def fill(self, value: Any) -> None:
        """All elements set to ``value``."""
        functions["setitem"](self, ..., value)

    def flatten(self, order: str = "C") -> Any:
        """A copy in one dimension."""
        return functions["as_users_see"]("flatten", functions["ravel"](self, order), (self,))

    def view(self, dtype: Any = None) -> Any:
        """Another tensor on the same memory; another dtype for it is not supported."""
        if dtype is not None and np.dtype(dtype) != self.spec.dtype:
            raise unsupported_method("view", f" with dtype={dtype!r}")
        return functions["as_users_see"]("view", functions["identity_tensor"](self), (self,))

    @property
    def flat(self) -> Any:
        """The elements in one dimension: to be read, iterated over and assigned to."""
        return functions["as_users_see"]("flat", functions["ravel"](self), (self,))

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[...] = value

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """As numpy.ndarray.reshape: the shape as a tuple or as several integers."""
        return _reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def transpose(self, *axes: Any) -> Any:
        """As numpy.ndarray.transpose: no axes, a tuple, or several integers."""
        return _transpose(self, axes[0] if len(axes) == 1 else (axes or None))

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Converted to ``dtype``; float to integer truncates as NumPy does."""
        out = _astype(self, dtype)
        return functions["as_users_see"]("astype", out, (self,)) if copy else out

    @property
    def T(self) -> Any:
        """The transpose: all axes reversed."""
        return _transpose(self)

    @property
    def mT(self) -> Any:
        """The last two axes swapped."""
        return _matrix_transpose(self)

    @property
    def real(self) -> Any:
        """Real part."""
        return _real(self)

    @property
    def imag(self) -> Any:
        """Imaginary part."""
        return _imag(self)

    @property
    def ndim(self) -> int:
        """Number of dimensions; ShapeError when the rank is unknown."""
        shape = self.spec.shape
        return len(_known_shape(self, "the number of dimensions")) if shape is None else len(shape)

    @property
    def size(self) -> int:
        """Number of elements; ShapeError when it is unknown."""
        return math.prod(_known_shape(self, "the number of elements"))

    @property
    def nbytes(self) -> int:
        """Bytes of the value; ShapeError when the size is unknown."""
        return int(self.spec.nbytes)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.spec.dtype.itemsize)
