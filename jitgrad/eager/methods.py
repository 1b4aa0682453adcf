"""Operators and methods of eager tensors, and the short ways that the most frequent of them take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.advice import named
from jitgrad.eager import recorder
from jitgrad.eager.items import item
from jitgrad.eager.tensor import (
    NUMBERS,
    EagerTensor,
    Known,
    one,
    pair,
    refuse_out,
    refuse_watched,
    run,
    unchangeable,
    wrap,
)
from jitgrad.eagerness import local
from jitgrad.operators import Operators

_NO_OPERANDS = (type(None), str, dict)


def _is_foreign(other: Any) -> bool:
    """Whether the other operand answers for the operation, or nobody does. As NumPy decides for an array: of classes
    that know of no ufuncs, those of a higher priority answer.
    """
    kind = type(other)
    if isinstance(other, Operators) or kind in _NO_OPERANDS:
        return True
    if hasattr(kind, "__array_ufunc__"):
        return kind.__array_ufunc__ is None
    return bool(getattr(other, "__array_priority__", -1.0) > 0.0)


def _unusual(ufunc: Any, self: EagerTensor, other: Any, mirrored: str) -> Any:
    """``ufunc(self, other)`` for any other operand. A subclass of arrays with an operator of its own, as matrices have,
    is asked first, as Python does for an array.
    """
    if _is_foreign(other):
        return NotImplemented
    if type(other) is not EagerTensor and _has_own(type(other), mirrored):
        answer = getattr(other, mirrored)(self._plain)
        if answer is not NotImplemented:
            return answer
    return run(ufunc, (self, other), {})


def _has_own(kind: type, name: str) -> bool:
    """Whether a class is one of arrays, with a method of its own."""
    return issubclass(kind, np.ndarray) and getattr(kind, name) is not getattr(np.ndarray, name)


def _binary(ufunc: Any, mirrored: str) -> Callable[[EagerTensor, Any], Any]:
    table = recorder.tables[ufunc]

    def operator(self: EagerTensor, other: Any) -> Any:
        if local.collector is None and (type(other) is EagerTensor or type(other) in NUMBERS):
            return pair(ufunc, table, self, other)
        return _unusual(ufunc, self, other, mirrored)

    return operator


def _equality(ufunc: Any, name: str) -> Callable[[EagerTensor, Any], Any]:
    """What is no operand is equal to no element, as NumPy has it."""
    usual, of_arrays = _binary(ufunc, name), getattr(np.ndarray, name)

    def operator(self: EagerTensor, other: Any) -> Any:
        if type(other) in _NO_OPERANDS or (isinstance(other, np.ndarray | np.generic) and other.dtype.kind in "SUMm"):
            return wrap(of_arrays(self._plain, other))
        return usual(self, other)

    return operator


def _reflected(ufunc: Any) -> Callable[[EagerTensor, Any], Any]:
    table = recorder.tables[ufunc]

    def operator(self: EagerTensor, other: Any) -> Any:
        if type(other) in NUMBERS and ufunc.nout == 1 and local.collector is None:
            return pair(ufunc, table, other, self)
        return NotImplemented if _is_foreign(other) else run(ufunc, (other, self), {})

    return operator


def _unary(ufunc: Any) -> Callable[[EagerTensor], Any]:
    table = recorder.tables[ufunc]

    def operator(self: EagerTensor) -> Any:
        return one(ufunc, table, self) if local.collector is None else run(ufunc, (self,), {})

    return operator


class Method:
    """A method of arrays as a function of them, on plain arrays and on traced values alike; ``bound`` is what is known
    of it by its other arguments.
    """

    __slots__ = ("bound", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bound: dict[Any, Known] = {}

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, self.name)(*args, **kwargs)

    def __repr__(self) -> str:
        return self.name


methods: dict[str, Method] = {}


def _method(name: str) -> Callable[..., Any]:
    fn = methods[name] = Method(name)
    named[fn] = name
    table = recorder.tables[fn]

    def method(self: EagerTensor, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs and local.collector is None and name != "nonzero":
            return one(fn, table, self)
        refuse_out(fn, kwargs)
        return run(fn, (self, *args), kwargs, fn.bound)

    method.__name__ = name
    return method


class Attribute:
    """An attribute of arrays as a function of them, on plain arrays and on traced values alike."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, x: Any) -> Any:
        return getattr(x, self.name)

    def __repr__(self) -> str:
        return self.name


attributes: dict[str, Attribute] = {}


def _property(name: str, doc: str) -> property:
    fn = attributes[name] = Attribute(name)
    named[fn] = name
    return property(_unary(fn), doc=doc)


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: EagerTensor, *args: Any, **kwargs: Any) -> Any:
        raise unchangeable(f"{name}()")

    return refuse


OPERATORS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
EQUALITIES = {"eq": np.equal, "ne": np.not_equal}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}

# Methods of arrays that compute: recorded under their own names.
METHODS = {
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "clip", "compress", "conj",
    "conjugate", "copy", "cumprod", "cumsum", "diagonal", "dot", "flatten", "max", "mean", "min", "nonzero", "prod",
    "ravel", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "trace",
    "transpose", "var",
}  # fmt: skip
_PROPERTIES = {
    "T": "The transpose: all axes reversed.", "mT": "The last two axes swapped.", "real": "Real part.",
    "imag": "Imaginary part.",
}  # fmt: skip
_IN_PLACE = ("byteswap", "fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort")


def _power(self: EagerTensor, other: Any) -> Any:
    """``x ** y`` as NumPy's operator computes it, which has short ways for some exponents."""
    if (type(other) is EagerTensor or type(other) in NUMBERS) and local.collector is None:
        return pair(power_of, recorder.tables[power_of], self, other)
    return _unusual(power_of, self, other, "__rpow__")


def power_of(x: Any, y: Any) -> Any:
    """``x ** y``."""
    return x**y


named[power_of] = "power"


def _divmod(self: EagerTensor, other: Any) -> Any:
    return _unusual(np.divmod, self, other, "__rdivmod__")


def _view(self: EagerTensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``x.view()`` is ``x`` anew; of another dtype or class, what NumPy gives, where no tape watches ``x``."""
    if not args and not kwargs and (dtype is None or dtype is EagerTensor or dtype == self.dtype):
        return self.reshape(self.shape)
    return _reading("view")(self, dtype, *args, **kwargs)


def _reading(name: str) -> Callable[..., Any]:
    of_arrays = getattr(np.ndarray, name)

    def read(self: EagerTensor, *args: Any, **kwargs: Any) -> Any:
        refuse_watched(Method(name), (self,), "reads its memory as other values")
        made = of_arrays(self._plain, *args, **kwargs)
        return wrap(made) if type(made) is np.ndarray and np.ndarray not in args else made

    return read


def enter_methods() -> None:
    """Give EagerTensor its operators and methods."""
    for name, ufunc in OPERATORS.items():
        operator = _binary(ufunc, f"__r{name}__")
        setattr(EagerTensor, f"__{name}__", operator)
        setattr(EagerTensor, f"__r{name}__", _reflected(ufunc))
        setattr(EagerTensor, f"__i{name}__", operator)
    for name, ufunc in COMPARISONS.items():
        setattr(EagerTensor, f"__{name}__", _binary(ufunc, f"__{_MIRRORED[name]}__"))
    for name, ufunc in EQUALITIES.items():
        setattr(EagerTensor, f"__{name}__", _equality(ufunc, f"__{name}__"))
    for name, ufunc in UNARY.items():
        setattr(EagerTensor, f"__{name}__", _unary(ufunc))
    for name in METHODS:
        setattr(EagerTensor, name, _method(name))
    for name, doc in _PROPERTIES.items():
        setattr(EagerTensor, name, _property(name, doc))
    for name in _IN_PLACE:
        setattr(EagerTensor, name, _refused(name))
    EagerTensor.__pow__ = EagerTensor.__ipow__ = _power  # type: ignore[method-assign,assignment]
    EagerTensor.__divmod__ = _divmod  # type: ignore[method-assign,assignment]
    EagerTensor.__rdivmod__ = _reflected(np.divmod)  # type: ignore[method-assign,assignment]
    EagerTensor.view = _view  # type: ignore[method-assign,assignment]
    EagerTensor.getfield = _reading("getfield")  # type: ignore[method-assign]
    EagerTensor.__getitem__ = item  # type: ignore[method-assign,assignment]


enter_methods()
