"""EagerTensor: an array whose operations tapes can record. It is NumPy's array in all that tapes need not see.

An EagerTensor is a ``numpy.ndarray``: it prints, pickles, compares and exports its memory as one. Whatever computes
with it goes through ``run``: NumPy computes on the plain arrays, the results become EagerTensors, and the tapes of this
thread are told. Values do not change: ``x += y`` binds ``x`` anew, and ``x[0] = y`` is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jitgrad.eager import recorder
from jitgrad.eagerness import is_eager, local
from jitgrad.errors import DTypeError, TracedValueError, layout
from jitgrad.operators import Operators
from jitgrad.sources import source_text, user_source

_next_number = itertools.count().__next__
_view = np.ndarray.view


class EagerTensor(np.ndarray[Any, Any]):
    """An array with a value, made by ``jg.asarray`` and by every operation on EagerTensors.

    ``number`` tells tensors apart for tapes, which keep no tensor alive that no gradient rule needs.
    """

    __slots__ = ("_plain", "key", "number")
    _plain: np.ndarray[Any, Any]
    number: int
    key: Any

    def numpy(self) -> Any:
        """A copy of the value, as a plain array or, for a 0-d tensor, as a NumPy scalar."""
        return self._plain[()] if self._plain.ndim == 0 else self._plain.copy()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Operators) for x in inputs):
            return NotImplemented
        if any(isinstance(x, EagerTensor) for x in kwargs.get("out", ())):
            raise _unchangeable(f"{ufunc.__name__} with out=")
        if method == "at" and isinstance(inputs[0], EagerTensor):
            raise _unchangeable(f"{ufunc.__name__}.at")
        return run(ufunc if method == "__call__" else getattr(ufunc, method), inputs, kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if any(issubclass(t, Operators) for t in types):
            return NotImplemented
        if kwargs.get("out") is not None:
            raise _unchangeable(f"{func.__name__} with out=")
        return run(func, tuple(args), dict(kwargs))

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions of the Python array API standard."""
        import jitgrad.numpy

        return jitgrad.numpy

    def __getattr__(self, name: str) -> Any:
        """What a tensor that NumPy made by itself has not yet: its plain array, number and key."""
        if name not in ("_plain", "number", "key"):
            raise AttributeError(f"a tensor has no attribute {name!r}")
        self._plain, self.number, self.key = _view(self, np.ndarray), _next_number(), None
        return getattr(self, name)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array

    def __getitem__(self, index: Any) -> Any:
        return run(item_of, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _unchangeable("assignment to elements")

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(len(self)))

    def __reduce__(self) -> Any:
        return wrap, (self._plain,)

    def __copy__(self) -> EagerTensor:
        return run(np.copy, (self,), {})  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: Any) -> EagerTensor:
        return wrap(self._plain.copy())

    def __repr__(self) -> str:
        return np.array_repr(self._plain).replace("array(", "tensor(", 1)

    def __str__(self) -> str:
        return str(self._plain)

    def __format__(self, spec: str) -> str:
        return format(self._plain if self.ndim else self._plain[()], spec)

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    @property
    def T(self) -> Any:
        """The transpose: all axes reversed."""
        return run(np.transpose, (self,), {})

    @property
    def mT(self) -> Any:
        """The last two axes swapped."""
        return run(np.matrix_transpose, (self,), {})

    @property  # type: ignore[misc]
    def real(self) -> Any:
        """Real part."""
        return run(np.real, (self,), {})

    @property  # type: ignore[misc]
    def imag(self) -> Any:
        """Imaginary part."""
        return run(np.imag, (self,), {})

    @property
    def flat(self) -> Any:
        """The elements one by one, as NumPy scalars: values, of which no tape is told."""
        return self._plain.flat


def wrap(value: Any) -> EagerTensor:
    """A new tensor of an array's value, in the array's memory."""
    if type(value) is not np.ndarray:
        value = np.asarray(value)
    value.flags.writeable = False
    made: EagerTensor = _view(value, EagerTensor)
    made._plain = value
    made.number = _next_number()
    made.key = None
    return made


def asarray(value: Any, dtype: Any = None) -> EagerTensor:
    """A tensor with the value of an array, a list of numbers, a Variable or another tensor, converted to ``dtype``.

    A tensor of that dtype is given back itself; an array is copied. DTypeError for objects, text and dates.
    """
    if type(value) is EagerTensor and (dtype is None or value.dtype == dtype):
        return value
    if type(value) is EagerTensor:
        return value.astype(dtype)  # type: ignore[return-value]
    if hasattr(value, "eager_value"):
        return asarray(value.eager_value(), dtype)
    if isinstance(value, list | tuple) and is_eager(value):
        return asarray(run(np.stack, ([asarray(item) for item in value],), {}), dtype)
    array = np.array(value, dtype)
    if array.dtype.kind not in "fiubc":
        raise DTypeError(f"a tensor cannot hold values of dtype {array.dtype}")
    return wrap(array)


def settled(value: Any) -> Any:
    """The tensor that a Variable or a pending tensor stands for now; anything else as it is."""
    return value.eager_value() if hasattr(value, "eager_value") else value


def plain(value: Any) -> Any:
    """The NumPy array of a tensor; anything else as it is."""
    return value._plain if type(value) is EagerTensor else value


def run(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``fn`` on plain arrays; the arrays that it gives become tensors, of which the tapes are told."""
    if local.collector is not None:
        return local.collector.add(fn, args, kwargs)
    values = tuple([x._plain if type(x) is EagerTensor else _deep(x) for x in args])
    options = {key: _deep(x) for key, x in kwargs.items()} if kwargs else kwargs
    result = fn(*values, **options)
    kind = type(result)
    if kind is np.ndarray or isinstance(result, np.generic):
        out = wrap(result)
        if local.tapes:
            if not kwargs and are_flat(args):
                recorder.record_flat(fn, args, out)
            else:
                recorder.record(fn, args, kwargs, (out,))
        return out
    if kind not in (tuple, list) and not hasattr(result, "_fields"):
        return result
    outs = [wrap(x) if isinstance(x, np.ndarray | np.generic) else x for x in result]
    if local.tapes and any(type(x) is EagerTensor for x in outs):
        recorder.record(fn, args, kwargs, tuple(outs))
    return kind(*outs) if hasattr(result, "_fields") else kind(outs)


_NESTED = frozenset((type(None), list, tuple, dict))


def are_flat(args: tuple[Any, ...]) -> bool:
    """Whether the arguments are leaves."""
    return _NESTED.isdisjoint(map(type, args))


def _deep(value: Any) -> Any:
    """The value with plain arrays in place of the tensors in its lists and tuples."""
    kind = type(value)
    if kind is EagerTensor:
        return value._plain
    if kind in (list, tuple):
        return kind(map(_deep, value))
    return value


def _unchangeable(what: str) -> TracedValueError:
    return TracedValueError(
        layout(f"a tensor's value does not change: {what} is refused", needed=f"at {source_text(user_source())}",
               hint="use np.where, np.concatenate or x = x + y; or x.numpy(), which gives an array of its own")
    )  # fmt: skip


# -- operators and methods -----------------------------------------------------------------------------------

_NO_OPERANDS = (type(None), str, dict)
_NUMBERS = (float, int, np.ndarray, np.float64, np.float32, bool, complex)


def _is_foreign(other: Any) -> bool:
    """Whether the other operand answers for the operation, or nobody does."""
    kind = type(other)
    return isinstance(other, Operators) or kind in _NO_OPERANDS or getattr(kind, "__array_ufunc__", 0) is None


def _binary(ufunc: Any) -> Callable[[EagerTensor, Any], Any]:
    def operator(self: EagerTensor, other: Any) -> Any:
        kind = type(other)
        if local.collector is not None:
            return NotImplemented if _is_foreign(other) else run(ufunc, (self, other), {})
        if kind is EagerTensor:
            result = ufunc(self._plain, other._plain)
        elif kind in _NUMBERS:
            result = ufunc(self._plain, other)
        elif _is_foreign(other):
            return NotImplemented
        else:
            return run(ufunc, (self, other), {})
        if type(result) is not np.ndarray:
            result = np.asarray(result)
        result.flags.writeable = False
        out: EagerTensor = _view(result, EagerTensor)
        out._plain = result
        out.number = _next_number()
        out.key = None
        if local.tapes:
            recorder.record_pair(ufunc, self, other, out)
        return out

    return operator


def _reflected(ufunc: Any) -> Callable[[EagerTensor, Any], Any]:
    def operator(self: EagerTensor, other: Any) -> Any:
        return NotImplemented if _is_foreign(other) else run(ufunc, (other, self), {})

    return operator


def _unary(ufunc: Any) -> Callable[[EagerTensor], Any]:
    return lambda self: run(ufunc, (self,), {})


class Method:
    """A method of arrays as a function of them, on plain arrays and on traced values alike."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, self.name)(*args, **kwargs)

    def __repr__(self) -> str:
        return self.name


def _method(name: str) -> Callable[..., Any]:
    fn = Method(name)

    def method(self: EagerTensor, *args: Any, **kwargs: Any) -> Any:
        return run(fn, (self, *args), kwargs)

    method.__name__ = name
    return method


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: EagerTensor, *args: Any, **kwargs: Any) -> Any:
        raise _unchangeable(f"{name}()")

    return refuse


def item_of(x: Any, index: Any) -> Any:
    """``x[index]``."""
    return x[index]


_OPERATORS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift, "divmod": np.divmod,
}  # fmt: skip
_COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}

# Methods of arrays that compute: recorded under their own names.
_METHODS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "clip", "compress", "conj",
    "conjugate", "copy", "cumprod", "cumsum", "diagonal", "dot", "flatten", "max", "mean", "min", "nonzero", "prod",
    "ravel", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "trace",
    "transpose", "var",
)  # fmt: skip
_IN_PLACE = ("byteswap", "fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort")


def _power(self: EagerTensor, other: Any) -> Any:
    """``x ** y`` as NumPy's operator computes it, which has short ways for some exponents."""
    return NotImplemented if _is_foreign(other) else run(_power_of, (self, other), {})


def _power_of(x: Any, y: Any) -> Any:
    return x**y


def _enter_operators() -> None:
    for name, ufunc in _OPERATORS.items():
        setattr(EagerTensor, f"__{name}__", _binary(ufunc) if name != "divmod" else _pair(ufunc))
        setattr(EagerTensor, f"__r{name}__", _reflected(ufunc))
        setattr(EagerTensor, f"__i{name}__", getattr(EagerTensor, f"__{name}__"))
    for name, ufunc in _COMPARISONS.items():
        setattr(EagerTensor, f"__{name}__", _binary(ufunc))
    for name, ufunc in _UNARY.items():
        setattr(EagerTensor, f"__{name}__", _unary(ufunc))
    for name in _METHODS:
        setattr(EagerTensor, name, _method(name))
    for name in _IN_PLACE:
        setattr(EagerTensor, name, _refused(name))
    EagerTensor.__pow__ = EagerTensor.__ipow__ = _power  # type: ignore[method-assign,assignment]


def _pair(ufunc: Any) -> Callable[[EagerTensor, Any], Any]:
    return lambda self, other: run(ufunc, (self, other), {})


_enter_operators()
