"""How a NumPy ufunc becomes an op and a function of tensors, with NumPy's dtypes; it defines no op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.errors import DTypeError
from jitgrad.graph import Tensor, graph_of
from jitgrad.opdef import Elementwise, Interpreted, OpDef, Params, Specs, Vjp, define
from jitgrad.operators import functions
from jitgrad.ops.common import dtype_refusal, elementwise, filled_like, same_shape, type_key
from jitgrad.records import NamedTuple
from jitgrad.spec import DType, TensorSpec


@functools.lru_cache(maxsize=4096)
def resolve(ufunc: np.ufunc, keys: tuple[Any, ...]) -> tuple[DType, ...]:
    """NumPy's own loop for these dtypes and Python scalar types: the dtypes of the inputs, then of the
    outputs.
    """
    try:
        found = tuple(ufunc.resolve_dtypes((*keys, *(None,) * ufunc.nout)))
        if np.dtype(object) in found:  # NumPy compares Python integers as objects, since they know no bounds
            keys = tuple(np.dtype(key) if isinstance(key, type) else key for key in keys)
            found = tuple(ufunc.resolve_dtypes((*keys, *(None,) * ufunc.nout)))
    except TypeError as error:
        names = ", ".join(getattr(key, "name", getattr(key, "__name__", str(key))) for key in keys)
        raise DTypeError(f"{ufunc.__name__} does not take {names}") from error
    return found


def _all_fit(values: Sequence[Any], dtypes: Sequence[DType]) -> bool:
    """Whether the Python integers fit their dtypes; NumPy compares with those that do not, and refuses other
    ufuncs.
    """
    if int not in map(type, values):
        return True
    pairs = zip(values, dtypes, strict=False)
    infos = [(value, np.iinfo(dtype)) for value, dtype in pairs if type(value) is int and dtype.kind in "iu"]
    return all(info.min <= value <= info.max for value, info in infos)


class _ShortWay(NamedTuple):
    """For values that need no conversion and no broadcasting: the first tensor among them, dtypes of all and of the
    results.
    """

    first: int
    dtypes: tuple[DType, ...]
    results: tuple[DType, ...]


def _short_keys(values: tuple[Any, ...]) -> list[Any] | None:
    """The dtypes of tensors and the types of other values; None where the tensors are not of one known shape."""
    shape = None
    keys: list[Any] = []
    for x in values:
        if type(x) is Tensor and not x.is_weak:
            spec = x.spec
            if shape is None:
                shape = spec.shape
            if shape is None or spec.shape != shape:
                return None
            keys.append(spec.dtype)
        else:
            keys.append(type(x))
    return None if shape is None or None in shape else keys


@functools.lru_cache(maxsize=4096)
def _short_way(ufunc: np.ufunc, keys: tuple[Any, ...]) -> _ShortWay | None:
    """What to do with tensors of these dtypes and Python numbers of these types; None where it takes more care."""
    if len(keys) != ufunc.nin or any(key not in (int, float) for key in keys if not isinstance(key, np.dtype)):
        return None
    dtypes = resolve(ufunc, keys)
    for key, dtype in zip(keys, dtypes, strict=False):
        if dtype.kind in "iu" if key is int else isinstance(key, np.dtype) and dtype != key:
            return None
    first = next(k for k, key in enumerate(keys) if isinstance(key, np.dtype))
    return _ShortWay(first, dtypes[: ufunc.nin], dtypes[ufunc.nin :])


def _apply_directly(op: OpDef, short: _ShortWay, values: tuple[Any, ...]) -> Any:
    x = values[short.first]
    graph, spec = graph_of((x,)), x.spec
    inputs = tuple([
        y if type(y) is Tensor else filled_like(x, y, dtype) for y, dtype in zip(values, short.dtypes, strict=True)
    ])
    specs = tuple([spec if spec.dtype is dtype else TensorSpec(spec.shape, dtype) for dtype in short.results])
    outputs = graph.add(op, inputs, {}, specs).outputs
    return outputs[0] if len(outputs) == 1 else outputs


def from_ufunc(
    ufunc: np.ufunc,
    vjp: Vjp | None = None,
    *,
    differentiable: bool | None = None,
    interpreted: str | None = None,
) -> OpDef:
    """Define the op of a NumPy ufunc and enter its function under the ufunc's name.

    Without a ``vjp`` the op is piecewise constant: it passes no gradient, unless ``differentiable=True`` says
    that a rule is missing. ``interpreted`` is the reason why there is no scalar op of the loop IR for it.
    """

    def infer(specs: Specs, params: Params) -> Specs:
        shape = same_shape(specs)
        dtypes = resolve(ufunc, tuple([spec.dtype for spec in specs]))
        return tuple([TensorSpec(shape, dtype) for dtype in dtypes[ufunc.nin :]])

    op = define(
        ufunc.__name__,
        infer=infer,
        impl=ufunc,
        vjp=vjp,
        kind=Elementwise(ufunc.__name__) if interpreted is None else Interpreted(interpreted, is_elementwise=True),
        differentiable=vjp is not None if differentiable is None else differentiable,
        infers_partial=True,
    )
    functions[ufunc.__name__] = _function_of(ufunc, op)
    return op


def _function_of(ufunc: np.ufunc, op: OpDef) -> Callable[..., Any]:
    """What a call of the ufunc on tensors does: its operands as NumPy promotes them, then the op."""

    def build(*values: Any) -> Any:
        try:
            keys = _short_keys(values)
            short = _short_way(ufunc, tuple(keys)) if keys is not None else None
            if short is not None:
                return _apply_directly(op, short, values)
            if len(values) != ufunc.nin:
                raise TypeError(f"{ufunc.__name__} takes {ufunc.nin} arrays, got {len(values)}")
            dtypes = resolve(ufunc, tuple(map(type_key, values)))
        except DTypeError as error:
            raise dtype_refusal(str(error), values) from None
        if not _all_fit(values, dtypes) and dtypes[-1] == np.dtype(bool):
            values = tuple(np.asarray(value) if type(value) is int else value for value in values)
            dtypes = resolve(ufunc, tuple(map(type_key, values)))
        return elementwise(op, *values, dtypes=dtypes[: ufunc.nin])

    build.__name__ = build.__qualname__ = ufunc.__name__
    build.__doc__ = f"As numpy.{ufunc.__name__}."
    return build
