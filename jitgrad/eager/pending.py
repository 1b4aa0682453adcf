"""jit_scope around eager operations: they are collected, and run fused when a value of theirs is needed.

Inside the scope an operation gives a PendingTensor, which knows its shape and dtype. Looking at its value (printing it,
an ``if``, ``.numpy()``, an operation outside of the scope) runs all that was collected so far as one compiled call,
which tapes record as one op.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from jitgrad.again import make_again
from jitgrad.compiled import Compiled, Options
from jitgrad.eager.items import item_of
from jitgrad.eager.methods import Method
from jitgrad.eager.tensor import EagerTensor, asarray, refuse_out, unchangeable
from jitgrad.eagerness import Valued, is_listener, local, no_collecting, set_collector, settled
from jitgrad.graph import Tensor
from jitgrad.keys import frozen
from jitgrad.operators import Operators, Selected
from jitgrad.ops.creation import placeholder
from jitgrad.program import needed_operations
from jitgrad.scopes import jit_scope
from jitgrad.trace import Trace


class Collector:
    """The operations of a scope, as a graph whose placeholders stand for the arrays that came from outside."""

    def __init__(self, compile_ops: Any, separate_compiled_gradients: bool) -> None:
        self._compile_ops = compile_ops
        self._options = Options(separate_compiled_gradients, name="jit_scope")
        self._begin()

    def _begin(self) -> None:
        self._graph = Trace()
        self._inputs: dict[int, tuple[Any, Tensor]] = {}  # by identity: the array and its placeholder
        self._made: list[weakref.ref[PendingTensor]] = []

    def add(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The results of a call, to be computed later."""
        if not self._made:
            local.unfinished = (*local.unfinished, weakref.ref(self))
        with no_collecting(), self._graph.as_default():
            result = fn(*self._symbolic(args), **self._symbolic(dict(kwargs)))
            return self._pending(result)

    def _symbolic(self, value: Any) -> Any:
        kind = type(value)
        if kind in (tuple, list):
            return kind(map(self._symbolic, value))
        if kind is dict:
            return {key: self._symbolic(item) for key, item in value.items()}
        if kind is PendingTensor and value.collector is self and value.tensor.graph is self._graph:
            return value.tensor
        value = settled(value)
        if not isinstance(value, np.ndarray):
            return value
        if type(value) is not EagerTensor:  # the caller may change it before it is read
            value = asarray(value)
        if id(value) not in self._inputs:
            self._inputs[id(value)] = (value, placeholder(value.dtype, value.shape))
        return self._inputs[id(value)][1]

    def _pending(self, result: Any) -> Any:
        if isinstance(result, tuple | list):
            return type(result)(map(self._pending, result))
        if isinstance(result, Selected):
            result.as_graph_element()  # which says why there is none
        if not isinstance(result, Tensor):
            return result
        made = PendingTensor(self, result)
        self._made.append(weakref.ref(made))
        return made

    def flush(self) -> None:
        """Run what was collected, for the results that are still held; the next operation begins anew."""
        wanted = [made for ref in self._made if (made := ref()) is not None and made.value is None]
        inputs = list(self._inputs.values())
        self._begin()
        local.unfinished = tuple([ref for ref in local.unfinished if ref() is not self])
        if not wanted:
            return
        feeds, fetches = [t for _, t in inputs], [made.tensor for made in wanted]
        with no_collecting():
            collected = _compiled(Collected(feeds, fetches, self._compile_ops), self._options)
            results = collected(*[array for array, _ in inputs])
        for made, value in zip(wanted, results, strict=True):
            made.value = value if isinstance(value, EagerTensor) else asarray(value)


class Collected:
    """What a scope has collected, as a function of the arrays from outside; alike ones have the same ``key``."""

    __name__ = "jit_scope"

    def __init__(self, feeds: Sequence[Tensor], fetches: Sequence[Tensor], compile_ops: Any) -> None:
        self._feeds, self._fetches, self._compile_ops = feeds, fetches, compile_ops
        self._operations = needed_operations(fetches, (), feeds)

    def __call__(self, *arrays: Tensor) -> list[Tensor]:
        values: dict[Tensor, Any] = dict(zip(self._feeds, arrays, strict=True))
        with nullcontext() if self._compile_ops is True else jit_scope(self._compile_ops):
            make_again(self._operations, values)
        return [values[t] for t in self._fetches]

    @property
    def key(self) -> Any:
        """The operations with their params, tensors numbered as they come; two with one key compute the same."""
        number = {t: k for k, t in enumerate(self._feeds)}
        parts: list[Any] = [len(number), self._compile_ops]
        for op in self._operations:
            params = tuple([(name, frozen(value, _frozen_array)) for name, value in op.params.items()])
            parts.append((op.opdef.name, tuple([number[x] for x in op.inputs]), params))
            for t in op.outputs:
                number[t] = len(number)
        return (*parts, *[number[t] for t in self._fetches])


def _frozen_array(array: Any) -> Any:
    """A small array, as constants mostly are, by its value."""
    return (array.dtype, array.shape, array.tobytes()) if array.nbytes <= _SMALL_BYTES else (np.ndarray, id(array))


_SMALL_BYTES = 256
_MOST_SCOPES = 256
_known: dict[Any, Compiled] = {}


def _compiled(collected: Collected, options: Options) -> Compiled:
    """The compiled function of what was collected: that of an earlier scope which has collected the same."""
    key = (options, collected.key)
    found = _known.pop(key, None)
    while len(_known) >= _MOST_SCOPES:
        del _known[next(iter(_known))]
    made = _known[key] = Compiled(collected, options) if found is None else found
    return made


class PendingTensor(Operators, Valued):
    """A value that a jit_scope has collected; it becomes an EagerTensor when it is needed."""

    __slots__ = ("__weakref__", "collector", "spec", "tensor", "value")

    def __init__(self, collector: Collector, tensor: Tensor) -> None:
        self.collector = collector
        self.tensor = tensor
        self.spec = tensor.spec
        self.value: EagerTensor | None = None

    @property
    def shape(self) -> Any:
        """Tuple of extents."""
        return self.spec.shape

    @property
    def dtype(self) -> Any:
        """NumPy dtype."""
        return self.spec.dtype

    def eager_value(self) -> EagerTensor:
        """The tensor; what was collected is run if it has not been."""
        if self.value is None:
            self.collector.flush()
        assert self.value is not None
        return self.value

    def numpy(self) -> Any:
        """A copy of the value, as a plain array or a NumPy scalar."""
        return self.eager_value().numpy()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return self._run(ufunc if method == "__call__" else getattr(ufunc, method), inputs, kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return self._run(func, args, kwargs)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        refuse_out(fn, kwargs)
        if local.collector is self.collector:
            return self.collector.add(fn, args, kwargs)
        return fn(*_values(args), **_values(dict(kwargs)))

    def __getitem__(self, index: Any) -> Any:
        return self._run(item_of, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        raise unchangeable("assignment to elements")

    def __reduce__(self) -> Any:
        return self.eager_value().__reduce__()

    def __repr__(self) -> str:
        return repr(self.eager_value())

    def __hash__(self) -> int:
        return id(self)


def _values(value: Any) -> Any:
    """The value with eager tensors in place of pending ones, in tuples, lists and dicts too."""
    if isinstance(value, PendingTensor):
        return value.eager_value()
    if type(value) in (tuple, list):
        return type(value)(map(_values, value))
    return {key: _values(item) for key, item in value.items()} if type(value) is dict else value


def _collected(name: str) -> Callable[..., Any]:
    fn = Method(name)

    def method(self: PendingTensor, *args: Any, **kwargs: Any) -> Any:
        return self._run(fn, (self, *args), kwargs)

    return method


def _needing(name: str) -> Callable[..., Any]:
    def method(self: PendingTensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.eager_value(), name)(*args, **kwargs)

    return method


def _collected_property(name: str) -> property:
    def get(x: Any) -> Any:
        return getattr(x, name)

    return property(lambda self: self._run(get, (self,), {}))


_NEED_VALUE = frozenset((
    "__bool__", "__float__", "__int__", "__complex__", "__index__", "__array__", "__format__", "__len__", "__iter__",
    "item", "tolist", "tobytes", "tofile", "dump", "dumps", "sort", "fill", "put", "resize", "partition", "byteswap",
    "__deepcopy__", "__copy__", "view",
))  # fmt: skip
_COLLECTED = frozenset(("T", "mT", "real", "imag", "flat"))


def _enter_methods() -> None:
    own = vars(PendingTensor)
    for name, member in vars(Operators).items():
        if name in own and name != "__hash__":
            continue
        if name in _COLLECTED:
            setattr(PendingTensor, name, _collected_property(name))
        elif name in _NEED_VALUE:
            setattr(PendingTensor, name, _needing(name))
        elif callable(member) and name not in ("__hash__", "_leading_extent"):
            setattr(PendingTensor, name, _collected(name))


_enter_methods()


@contextlib.contextmanager
def collecting(compile_ops: Any, separate_compiled_gradients: bool) -> Iterator[None]:
    """Eager operations made inside are collected; a scope inside another belongs to it."""
    before = local.collector
    if before is None or is_listener(before):
        set_collector(Collector(compile_ops, separate_compiled_gradients))
    try:
        yield
    finally:
        set_collector(before)
