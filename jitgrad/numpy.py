"""NumPy's names, for what NumPy's own dispatch cannot reach: arrays made of traced values, and made anew
while tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as _np

from jitgrad import pytree as _pytree
from jitgrad.eagerness import has_value as _has_value
from jitgrad.eagerness import is_eager as _is_eager
from jitgrad.eagerness import settled as _settled
from jitgrad.graph import Tensor as _Tensor
from jitgrad.graph import in_graph as _in_graph
from jitgrad.operators import functions as _functions
from jitgrad.operators import takes_open as _takes_open
from jitgrad.ops import common as _common
from jitgrad.trace import graph_in as _graph_in

# Functions that make an array of nothing but numbers: tensors while a function is traced, so that they can be
# assigned to.
_makers = ("zeros", "ones", "empty", "full", "arange", "linspace", "logspace", "eye", "identity", "tri")


def array(object: Any, dtype: Any = None, *, copy: bool | None = True, ndmin: int = 0) -> Any:
    """As numpy.array, of nested lists and tuples in which some values are traced or eager tensors; a tensor while a
    function is traced, an eager one where there is one among the values.
    """
    graph = _graph_in(object)
    if graph is None:
        if _is_eager(object) and not _in_graph():
            return _eager_array(object, dtype, ndmin)
        return _np.array(object, dtype=dtype, copy=copy, ndmin=ndmin)
    with graph.as_default():
        made = _of_tensors(object, dtype, ndmin)
        if isinstance(object, _Tensor):
            if not copy:
                return made
            made = _functions["copy"](made)
        return _functions["as_users_see"]("array", made, ())


def _array(object: Any, dtype: Any, ndmin: int) -> Any:
    made = _build(object)
    if dtype is not None:
        _refuse_too_large(object, _np.dtype(dtype))
        made = _functions["astype"](made, _np.dtype(dtype))
    if not ndmin or made.ndim >= ndmin:
        return made
    return _functions["reshape"](made, (1,) * (ndmin - made.ndim) + tuple(made.shape))


_of_tensors = _takes_open("numpy.array", _array)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: bool | None = None, device: Any = None) -> Any:
    """As numpy.asarray; a tensor is given back as it is, or its copy if so wished."""
    if device not in (None, "cpu"):
        raise ValueError(f"device must be None or 'cpu', got {device!r}")
    if isinstance(a, _Tensor) and dtype is None and not copy:
        return a
    if _graph_in(a) is None and not _in_graph() and _has_value(_settled(a)):
        from jitgrad.eager.tensor import asarray as _as_eager

        made = _as_eager(a, dtype)
        if copy is False and made is not _settled(a):
            raise ValueError(f"a tensor of {a.dtype} is no tensor of {made.dtype} without a copy")
        return _np.copy(made) if copy and made is _settled(a) else made
    if _graph_in(a) is None and not _is_eager(a):
        return _np.asarray(a, dtype, order, copy=copy)
    return array(a, dtype, copy=copy)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """As numpy.ascontiguousarray, of one dimension at least; of a tensor, whose memory has the order it has."""
    if _graph_in(a) is None and not _is_eager(a):
        return _np.ascontiguousarray(a, dtype)
    made = asarray(a, dtype)
    return made if made.ndim else made.reshape(1)


def asfortranarray(a: Any, dtype: Any = None) -> Any:
    """As numpy.asfortranarray; of a tensor, whose memory has the order it has."""
    return asarray(a, dtype) if _graph_in(a) is not None or _is_eager(a) else _np.asfortranarray(a, dtype)


def asarray_chkfinite(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """As numpy.asarray_chkfinite: ValueError for a NaN or an infinity, but for those of traced values."""
    made = asarray(a, dtype, order)
    if _graph_in(made) is None:
        _np.asarray_chkfinite(_np.asarray(made))
    return made


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """As numpy.from_dlpack; a tensor is given back as it is, or its copy if so wished."""
    if _graph_in(x) is not None or _is_eager(x):
        return asarray(x, copy=copy, device=device)
    wishes = {"device": device, "copy": copy}  # of which NumPy 2.0 knows none
    return _np.from_dlpack(x, **{name: wish for name, wish in wishes.items() if wish is not None})


def _eager_array(value: Any, dtype: Any, ndmin: int) -> Any:
    made = _stacked(value) if isinstance(value, list | tuple) else _np.copy(_settled(value))
    if dtype is not None and made.dtype != dtype:
        made = made.astype(dtype)
    return made.reshape((1,) * (ndmin - made.ndim) + made.shape) if made.ndim < ndmin else made


def _stacked(value: Any) -> Any:
    """Nested sequences as one eager tensor, of which the tapes are told."""
    if not isinstance(value, list | tuple):
        return _settled(value)
    return _np.stack([_stacked(item) for item in value]) if _is_eager(value) else _np.asarray(value)


def _build(value: Any) -> _Tensor:
    """Nested sequences as one tensor: what is all concrete is handed to NumPy, the rest is stacked."""
    if not isinstance(value, list | tuple) or not _holds_tensor(value):
        return _common.as_tensor(value)
    parts = [_build(item) for item in value]
    dtype = _common.common_dtype(
        *(item if _is_scalar(item) else part for item, part in zip(value, parts, strict=True))
    )
    return _functions["stack"]([_common.as_tensor(part, dtype) for part in parts])  # type: ignore[no-any-return]


def _refuse_too_large(object: Any, dtype: _np.dtype[Any]) -> None:
    """NumPy's OverflowError for integers of Python's that a dtype of integers cannot hold."""
    if dtype.kind in "iu":
        for leaf in _pytree.flatten(object)[0]:
            if type(leaf) is int:
                dtype.type(leaf)


def _is_scalar(item: Any) -> bool:
    return type(item) in _common.PYTHON_SCALARS


def _holds_tensor(value: Any) -> bool:
    return any(
        isinstance(leaf, _Tensor) or hasattr(leaf, "as_graph_element") for leaf in _pytree.flatten(value)[0]
    )


def _made_by_numpy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What NumPy makes; ShapeError where it refuses the shape of a placeholder."""
    try:
        return getattr(_np, name)(*args, **kwargs)
    except TypeError:
        _common.refuse_open(args[0] if args else kwargs.get("shape", ()), name)
        raise


def _maker(name: str) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        graph = _graph_in((args, kwargs))
        if graph is None:
            return _made_by_numpy(name, args, kwargs)
        with graph.as_default():
            return _functions["as_users_see"](name, _common.as_tensor(_functions[name](*args, **kwargs)), ())

    make.__name__ = name
    make.__doc__ = f"As numpy.{name}; a tensor while a function is traced."
    return make


_made = {name: _maker(name) for name in _makers}


def __getattr__(name: str) -> Any:
    if name in _made:
        return _made[name]
    return getattr(_np, name)


def __dir__() -> list[str]:
    return sorted({*dir(_np), *_made, "array", "asarray"})
