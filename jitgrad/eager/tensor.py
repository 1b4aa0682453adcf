"""EagerTensor: an array whose operations tapes can record. It is NumPy's array in all that tapes need not see.

An EagerTensor is a ``numpy.ndarray``: it prints, pickles, compares and exports its memory as one. Whatever computes
with it goes through ``run``, or one of its short ways in ``methods``: NumPy computes on the plain arrays, the results
become EagerTensors, and the tapes of this thread are told. Values do not change: ``x += y`` binds ``x`` anew, and
``x[0] = y`` is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jitgrad.compiler.eager_code.layout import MOST_RULES
from jitgrad.eager import recorder
from jitgrad.eager.keys import array_key, options_key
from jitgrad.eager.linear import linear
from jitgrad.eager.refusals import REFUSALS, Bound, refuse
from jitgrad.eagerness import Valued, has_value, is_eager, local
from jitgrad.errors import DTypeError, TracedValueError, layout
from jitgrad.operators import Operators, Selected
from jitgrad.sources import source_text, user_source
from jitgrad.spec import native

next_number = itertools.count(-1, -1).__next__  # machine code counts up from 1
_view = np.ndarray.view
KINDS = "fiubc"  # of dtypes that tensors have


def _fixed(name: str) -> property:
    """An attribute of arrays that is not set."""

    def refuse(self: Any, value: Any) -> None:
        raise unchangeable(f"assignment to {name}")

    return property(getattr(np.ndarray, name).__get__, refuse, doc=getattr(np.ndarray, name).__doc__)


class EagerTensor(np.ndarray[Any, Any], Valued):
    """An array with a value, made by ``jg.asarray`` and by every operation on EagerTensors.

    ``number`` tells tensors apart for tapes, which keep no tensor alive that no gradient rule needs; ``key`` stands for
    dtype and shape in the tables of gradient rules.
    """

    __slots__ = ("_plain", "key", "number")
    _plain: np.ndarray[Any, Any]
    number: int
    key: Any

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError(
            layout(f"{cls.__name__} cannot be a subclass of EagerTensor: every operation makes an EagerTensor",
                   hint="keep the tensor in an attribute of a class of your own")
        )  # fmt: skip

    def __new__(cls, *args: Any, **kwargs: Any) -> EagerTensor:
        raise TypeError(layout("a tensor is not made by its class", hint="use jg.asarray(values)"))

    def numpy(self) -> Any:
        """A copy of the value, as a plain array or, for a 0-d tensor, as a NumPy scalar."""
        return self._plain[()] if self._plain.ndim == 0 else self._plain.copy()

    def eager_value(self) -> EagerTensor:
        """The tensor itself."""
        return self

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs and local.collector is None and ufunc.nout == 1:
            table = ufunc_tables.get(ufunc)
            table = _table_of(ufunc) if table is None else table
            if table is not None and len(inputs) == 1:
                return one(ufunc, table, inputs[0])
            if table is not None and len(inputs) == 2 and type(inputs[0]) in _OPERANDS and type(inputs[1]) in _OPERANDS:
                return pair(ufunc, table, *inputs)
        if any(isinstance(x, Operators | Selected) for x in inputs):
            return NotImplemented
        refuse_out(ufunc, kwargs)
        if method == "at":
            if isinstance(inputs[0], EagerTensor):
                raise unchangeable(f"{ufunc.__name__}.at")
            if any(type(x) is EagerTensor for x in inputs[2:]):
                raise _unwritten(f"{ufunc.__name__}.at")
            return ufunc.at(*[plain(x) for x in inputs])
        return run(ufunc if method == "__call__" else getattr(ufunc, method), inputs, kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if any(issubclass(t, Operators | Selected) for t in types):
            return NotImplemented
        refuse_out(func, kwargs)
        if func in _WRITERS:
            _refuse_writing(func, tuple(args), kwargs)
        own = own_ways.get(func)
        if own is not None and local.collector is None:
            return own(*args, **kwargs)
        return run(func, tuple(args), dict(kwargs), functions.get(func) or functions.setdefault(func, {}))

    def __array_namespace__(self, *, api_version: Any = None) -> Any:
        """The functions of the Python array API standard. ValueError for a version that NumPy does not have."""
        import jitgrad.numpy

        np.empty(0).__array_namespace__(api_version=api_version)
        return jitgrad.numpy

    def __getattr__(self, name: str) -> Any:
        """What a tensor has not yet: its plain array and number where NumPy made it by itself; its key."""
        if name == "_plain":
            self._plain = _plain_of(self)
            self._plain.setflags(write=False)
        elif name == "number":
            self.number = next_number()
        elif name == "key":
            self.key = array_key(self)
        else:
            raise AttributeError(f"a tensor has no attribute {name!r}")
        return getattr(self, name)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array

    def __setitem__(self, index: Any, value: Any) -> None:
        raise unchangeable("assignment to elements")

    shape, dtype, strides = map(_fixed, ("shape", "dtype", "strides"))

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
        width = np.get_printoptions()["linewidth"] - 1
        return np.array_repr(self._plain, width).replace("array(", "tensor(", 1).replace("\n ", "\n  ")

    def __str__(self) -> str:
        return str(self._plain)

    def __format__(self, spec: str) -> str:
        return format(self._plain if self.ndim else self._plain[()], spec)

    def __round__(self, ndigits: int | None = None) -> Any:
        number: Any = self.numpy()
        return round(number) if ndigits is None else run(np.round, (self, ndigits), {})

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    @property
    def flat(self) -> Any:
        """The elements one by one, as NumPy scalars: values, of which no tape is told."""
        return self._plain.flat


def _plain_of(x: EagerTensor) -> np.ndarray[Any, Any]:
    """The array that a tensor has not yet: over its memory where an array owns that, which machine code has seen to;
    else a copy, since the base of a view would be the tensor, a cycle.
    """
    found: np.ndarray[Any, Any] = _view(x, np.ndarray)
    return np.array(x, subok=False) if x.flags.writeable or isinstance(found.base, EagerTensor) else found


def wrap(value: Any) -> EagerTensor:
    """A new tensor of an array's value, in the array's memory."""
    if type(value) is not np.ndarray:
        value = np.asarray(value)
    value.setflags(False)
    made: EagerTensor = _view(value, EagerTensor)
    made._plain = value
    made.number = next_number()
    return made


def asarray(value: Any, dtype: Any = None) -> EagerTensor:
    """A tensor with the value of an array, a list of numbers, a Variable or another tensor, converted to ``dtype``.

    A tensor of that dtype is given back itself; an array is copied. DTypeError for objects, text and dates.
    """
    if type(value) is EagerTensor and (dtype is None or value.dtype == dtype):
        return value
    if type(value) is EagerTensor:
        return value.astype(dtype)  # type: ignore[return-value]
    if has_value(value):
        return asarray(value.eager_value(), dtype)
    if isinstance(value, list | tuple) and is_eager(value):
        return asarray(run(np.stack, ([asarray(item) for item in value],), {}), dtype)
    array = native(np.array(value, dtype))
    if array.dtype.kind not in KINDS:
        raise DTypeError(f"a tensor cannot hold values of dtype {array.dtype}")
    return wrap(array)


def plain(value: Any) -> Any:
    """The NumPy array of a tensor; anything else as it is."""
    return value._plain if type(value) is EagerTensor else value


def is_told() -> bool:
    """Whether a tape or a scope hears of what is computed now."""
    return bool(local.tapes) or local.collector is not None


def run(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], bound: dict[Any, Known] | None = None
) -> Any:
    """Call ``fn`` on plain arrays; the arrays that it gives become tensors, of which the tapes are told. ``bound`` is
    what is known of ``fn`` by its arguments but the first, if it keeps that itself.
    """
    if local.collector is not None:
        return local.collector.add(fn, args, kwargs)
    is_bound = type(args[0] if args else None) is EagerTensor and fn is not _BY_RANK
    key = options_key(args, kwargs) if is_bound else None
    if key is None:
        return run_any(fn, args, kwargs)
    if bound is None:
        bound, key = _bound, (fn, key)
    known = bound.get(key)
    if known is not None:
        return one(known[0], known[1], args[0])
    out = run_any(fn, args, kwargs)
    if type(out) is EagerTensor and fn not in linear:
        if len(bound) >= MOST_RULES:
            bound.clear()
        bound[key] = (Bound(fn, args[1:], kwargs), {}, getattr(fn, "__wrapped__", fn))
    return out


Known = tuple[Bound, recorder.Table, Callable[..., Any]]
"""The function of the first argument alone, what the recorder knows of it, and for machine code what computes: a
function of NumPy's without the question whether a class answers for it.
"""
functions: dict[Callable[..., Any], dict[Any, Known]] = {}
"""What is known of NumPy's own functions, by key of options."""
_BY_RANK = np.gradient  # an array or a tuple of them, by what no key of options tells
_bound: dict[Any, Known] = {}  # by function and key of options
ufunc_tables: dict[np.ufunc, recorder.Table] = {}  # of ufuncs that give one array
_MOST_UFUNCS = 512  # users make ufuncs too, of functions that are not to be kept for ever


def _table_of(ufunc: np.ufunc) -> recorder.Table | None:
    """What the recorder knows of a ufunc: that of the operator, or one of its own; None for one that calls Python for
    every element.
    """
    if ufunc.types and all("O" in signature for signature in ufunc.types):
        return None
    if len(ufunc_tables) >= _MOST_UFUNCS:
        ufunc_tables.clear()
    table = ufunc_tables[ufunc] = recorder.tables.get(ufunc, {})
    return table


def run_any(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``run`` for arguments and results of any kind."""
    if list in map(type, args):
        args = tuple([_numbers(x) if type(x) is list else x for x in args])
    if kwargs and list in map(type, kwargs.values()):
        kwargs = {key: _numbers(x) if type(x) is list else x for key, x in kwargs.items()}
    values = [x._plain if type(x) is EagerTensor else _deep(x) for x in args]
    options = {key: _deep(x) for key, x in kwargs.items()} if kwargs else kwargs
    try:
        result = _apart(fn(*values, **options), args)
    except REFUSALS as error:
        refuse(error, fn, *args, **kwargs)
        raise
    result = np.asarray(result)[()] if type(result) in (float, complex) else result  # of SciPy's functions
    kind: Any = type(result)
    if kind is np.ndarray or isinstance(result, np.generic):
        if result.dtype.kind not in KINDS:
            refuse_watched(fn, args, f"gives {result.dtype} values, of which no tape is told")
            return result
        out = wrap(result)
        if local.tapes:
            recorder.record(fn, args, kwargs, (out,))
        return out
    if kind not in (tuple, list) and not hasattr(result, "_fields"):
        return result
    outs = [wrap(x) if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in KINDS else x for x in result]
    if local.tapes and any(type(x) is EagerTensor for x in outs):
        recorder.record(fn, args, kwargs, tuple(outs))
    return kind(*outs) if hasattr(result, "_fields") else kind(outs)


def _numbers(values: list[Any]) -> Any:
    """A list of floating-point numbers as an array, which gradient rules depend on as a whole; any other as it is."""
    kinds = set(map(type, values))
    return np.array(values) if float in kinds and kinds <= {float, int} else values


def _apart(result: Any, args: tuple[Any, ...]) -> Any:
    """The result, copied where it lies in the memory of an array that the user has: a tensor's value does not change,
    nor does an array's being writeable.
    """
    arrays = [x for x in args if type(x) is np.ndarray]
    if not arrays:
        return result
    if type(result) in (tuple, list):
        return type(result)([_apart(x, args) for x in result])
    is_shared = isinstance(result, np.ndarray) and any(np.may_share_memory(result, x) for x in arrays)
    return result.copy() if is_shared else result


def _deep(value: Any) -> Any:
    """The value with plain arrays in place of the tensors in its lists and tuples."""
    kind = type(value)
    if kind is EagerTensor:
        return value._plain
    if kind in (list, tuple):
        return kind(map(_deep, value))
    return value


own_ways: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Functions of NumPy whose results depend on values in ways that no trace follows, made of operations here."""


_WRITERS = frozenset((np.copyto, np.fill_diagonal, np.place, np.put, np.put_along_axis, np.putmask))


def refuse_out(fn: Any, kwargs: Mapping[str, Any]) -> None:
    """TracedValueError for calls that would write into an array."""
    out = kwargs.get("out")
    written = [x for x in (out if isinstance(out, tuple) else (out,)) if x is not None]
    if written and type(written[0]) is np.ndarray:
        raise _unwritten(getattr(fn, "__name__", fn))
    if written:
        raise unchangeable(f"{getattr(fn, '__name__', fn)} with out=")


def _refuse_writing(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """TracedValueError for a function that writes into its first argument, where that or what it writes is a tensor."""
    into, *rest = (*args, *kwargs.values())
    if type(into) is EagerTensor:
        raise unchangeable(f"{fn.__name__} into one")
    if any(type(x) is EagerTensor for x in rest):
        raise _unwritten(fn.__name__)


def refuse_watched(fn: Any, args: Iterable[Any], why: str) -> None:
    """TracedValueError for a call that no tape can follow, where one watches an argument; or might: NumPy has turned a
    tensor into objects, whose number is not known.
    """
    tensors = [x for x in args if type(x) is EagerTensor]
    numbers = {x.number for x in tensors}
    is_lost = any(x.dtype.kind not in KINDS for x in tensors)
    if any(tape.watched if is_lost else not tape.watched.isdisjoint(numbers) for tape in local.tapes):
        name = getattr(fn, "__name__", str(fn))
        raise TracedValueError(
            layout(f"a tape watches what is given to {name}, which {why}", needed=f"at {source_text(user_source())}",
                   hint="use NumPy's functions of whole arrays, or jg.stop_gradient(x) for the value alone")
        )  # fmt: skip


def _unwritten(name: str) -> TracedValueError:
    """The error for what would write into an array what tensors give: no tape follows it there."""
    return TracedValueError(
        layout(f"an array does not take what tensors give: {name} into an array (a += x, or out=) is refused",
               needed=f"at {source_text(user_source())}",
               hint="a = a + x is a tensor; a += x.numpy() changes the array by values alone")
    )  # fmt: skip


def unchangeable(what: str) -> TracedValueError:
    """The error for what would write into a tensor, or the value of tensors into an array."""
    return TracedValueError(
        layout(f"a tensor's value does not change: {what} is refused", needed=f"at {source_text(user_source())}",
               hint="use np.where, np.concatenate or x = x + y, or x.numpy(), an array of its own; a function under "
                    "jg.compile or jg.grad may change what it is given")
    )  # fmt: skip


# -- short ways ----------------------------------------------------------------------------------------------

NUMBERS = frozenset((float, int, np.ndarray, np.float64, np.float32, bool, complex))
_OPERANDS = NUMBERS | {EagerTensor}


def one(fn: Callable[[Any], Any], table: recorder.Table, x: EagerTensor) -> EagerTensor:
    """The tensor that ``fn`` gives for one tensor; ``table`` is the recorder's of ``fn``."""
    try:
        out = wrap(fn(x._plain))
    except REFUSALS as error:
        refuse(error, fn, x)
        raise
    if local.tapes:
        recorder.record_one(fn, table, x, out)
    return out


def pair(fn: Callable[[Any, Any], Any], table: recorder.Table, x: Any, y: Any) -> EagerTensor:
    """The tensor that ``fn`` gives for two arrays or numbers, one of them a tensor."""
    try:
        out = wrap(fn(x._plain if type(x) is EagerTensor else x, y._plain if type(y) is EagerTensor else y))
    except REFUSALS as error:
        refuse(error, fn, x, y)
        raise
    if local.tapes:
        recorder.record_pair(fn, table, x, y, out)
    return out
