"""Python functions as ops: py_func."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.errors import DTypeError, layout
from jitgrad.given import check_function
from jitgrad.graph import apply
from jitgrad.opdef import Interpreted, Params, Specs, define
from jitgrad.ops.common import as_tensor
from jitgrad.sources import function_name
from jitgrad.spec import DType, TensorSpec
from jitgrad.trace import graph_in


def _infer_py_func(specs: Specs, params: Params) -> Specs:
    return tuple(
        TensorSpec(shape, dtype) for shape, dtype in zip(params["shapes"], params["dtypes"], strict=True)
    )


def _run_python(*arrays: Any, fn: Callable[..., Any], dtypes: tuple[DType, ...], shapes: Any = None) -> Any:
    """What ``fn`` gives for copies of the arrays, which it may change, checked to be of ``dtypes``."""
    result = fn(*map(np.array, arrays))
    results = result if isinstance(result, tuple | list) and len(dtypes) != 1 else (result,)
    if len(results) != len(dtypes):
        raise ValueError(f"py_func {function_name(fn)} gave {len(results)} results for {len(dtypes)} dtypes")
    made = tuple(_of_dtype(value, dtype, fn) for value, dtype in zip(results, dtypes, strict=True))
    return made if len(made) != 1 else made[0]


def _of_dtype(value: Any, dtype: DType, fn: Callable[..., Any]) -> Any:
    """The result as an array. Python numbers, and lists of them, take the declared dtype where it is of their kind."""
    array = np.asarray(value)
    if not isinstance(value, np.ndarray | np.generic):
        is_integer = array.dtype.kind in "iu" and dtype.kind in "iu"
        if is_integer or np.can_cast(array.dtype, dtype, "same_kind"):
            return np.asarray(value, dtype)
    if array.dtype != dtype:
        raise DTypeError(
            layout(f"py_func {function_name(fn)} gave another dtype than was declared", expected=dtype, got=array.dtype,
                   hint="convert the result with astype, or declare its dtype in py_func(fn, inputs, dtypes)")
        )  # fmt: skip
    return array


py_func_op = define(
    "py_func",
    infer=_infer_py_func,
    impl=_run_python,
    kind=Interpreted("py_func calls Python"),
    stateful=True,
)


def _declared(fn: Any, inputs: Any, dtypes: Any) -> tuple[bool, tuple[DType, ...], Sequence[Any]]:
    check_function("py_func", fn)
    is_single = isinstance(dtypes, str | type | np.dtype)
    types = tuple(np.dtype(dtype) for dtype in ([dtypes] if is_single else dtypes))
    return is_single, types, inputs if isinstance(inputs, list | tuple) else [inputs]


def call_python(fn: Callable[..., Any], inputs: Any, dtypes: Any) -> Any:
    """What ``py_func`` gives for arrays, now."""
    is_single, types, values = _declared(fn, inputs, dtypes)
    made = _run_python(*map(np.asarray, values), fn=fn, dtypes=types)
    return made if is_single else [made] if len(types) == 1 else list(made)


def py_func(fn: Callable[..., Any], inputs: Any, dtypes: Any, name: str | None = None) -> Any:
    """``fn`` called on the arrays of ``inputs`` when the graph runs: any Python, never compiled, no gradient.

    ``dtypes`` is one dtype, which gives one tensor, or a sequence of them, which gives a list of tensors.
    Shapes are not known before it runs. What ``fn`` raises arrives as it is, with a note of the operation and the line
    that made it; DTypeError when it gives another dtype, ValueError another number of results. A gradient can be given
    to all such ops with ``register_gradient("py_func")``, or to this one with ``custom_gradient`` around it.
    """
    is_single, types, values = _declared(fn, inputs, dtypes)
    graph = graph_in(list(values))
    tensors = [as_tensor(value, graph=graph) for value in values]
    outputs = apply(py_func_op, *tensors, name=name, fn=fn, dtypes=types, shapes=(None,) * len(types))
    if len(types) != 1:
        return list(outputs)
    return outputs if is_single else [outputs]
