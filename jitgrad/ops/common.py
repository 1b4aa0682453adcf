"""What op families share: values to tensors, common dtypes, explicit broadcasting; it defines no op."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad import operators
from jitgrad.advice import advised
from jitgrad.errors import DTypeError, MatrixShapeError, OpenExtentError, ShapeError, UnsupportedOpError, layout
from jitgrad.graph import Graph, Tensor, apply, graph_of
from jitgrad.keys import frozen
from jitgrad.opdef import OpDef, Params, Specs, find
from jitgrad.sources import operation_text, place, source_text, user_source
from jitgrad.spec import DType, Shape, TensorSpec, broadcast_shapes, spec_of

if TYPE_CHECKING:
    import numpy.typing as npt

PYTHON_SCALARS = (bool, int, float, complex)
_weak_types = {"i": int, "u": int, "f": float, "c": complex}


def unwrap(value: Any) -> Any:
    """The tensor that ``value`` stands for (a Variable, say), else ``value`` itself."""
    if type(value) is Tensor or not hasattr(value, "as_graph_element"):
        return value
    return value.as_graph_element()


def as_tensor(value: Any, dtype: DType | None = None, graph: Graph | None = None) -> Tensor:
    """``value`` itself, with its present value, when it is a tensor (or stands for one), else a constant; converted to
    ``dtype`` when given.
    """
    value = unwrap(value)
    if not isinstance(value, Tensor):
        return operators.call("constant", value, dtype, graph=graph)  # type: ignore[no-any-return]
    if value._view is not None:
        value._view.renew(value)
    return value if dtype is None or value.spec.dtype == dtype else operators.call("astype", value, dtype)


def build(name: str, *args: Any, **kwargs: Any) -> Tensor:
    """Call the function of that NumPy name, one that gives a single tensor."""
    out: Tensor = operators.call(name, *args, **kwargs)
    return out


def as_tensors(*values: Any) -> tuple[Tensor, ...]:
    """All values as tensors of the graph of the first tensor among them."""
    unwrapped = tuple(map(unwrap, values))
    graph = graph_of(unwrapped)
    return tuple(as_tensor(value, graph=graph) for value in unwrapped)


# -- dtypes --------------------------------------------------------------------------------------------------


def type_key(value: Any) -> Any:
    """What NumPy's promotion looks at: a dtype, or the Python type of a scalar that gives way (NEP 50)."""
    if type(value) in PYTHON_SCALARS:
        return np.dtype(bool) if type(value) is bool else type(value)
    value = unwrap(value)
    if isinstance(value, Tensor):
        dtype = value.spec.dtype
        return _weak_types.get(dtype.kind, dtype) if value.is_weak else dtype
    return np.asarray(value).dtype


def is_weak_key(key: Any) -> bool:
    """Whether ``type_key`` gave the type of a Python scalar."""
    return isinstance(key, type)


def common_dtype(*values: Any) -> DType:
    """NumPy's result type of the values as arrays, as functions that join or multiply arrays see them: Python
    numbers do not give way.
    """
    return joint_dtype(*(np.dtype(key) if is_weak_key(key) else key for key in map(type_key, values)))


@functools.lru_cache(maxsize=1024)
def joint_dtype(*keys: Any) -> DType:
    """NumPy's result type of what ``type_key`` gave; DTypeError when there is none."""
    try:
        return np.result_type(*(key(0) if is_weak_key(key) else key for key in keys))
    except TypeError as error:
        names = " and ".join(getattr(key, "name", getattr(key, "__name__", str(key))) for key in keys)
        raise DTypeError(layout(f"no common dtype for {names}", hint="convert one with astype")) from error


def dtype_refusal(reason: str, values: Sequence[Any]) -> DTypeError:
    """The error of a function that does not take values of such dtypes, with the operations that made them."""
    tensors = [value for value in map(unwrap, values) if isinstance(value, Tensor)]
    return DTypeError(
        layout(reason, inputs="; ".join(dict.fromkeys(operation_text(x.op) for x in tensors)) or None,
               needed=f"at {source_text(user_source())}", hint="convert with astype")
    )  # fmt: skip


# -- shapes --------------------------------------------------------------------------------------------------


def known_extents(shape: Any, name: str, what: str = "the shape") -> tuple[int, ...]:
    """What the function ``name`` was given for a shape, as Python ints; ShapeError where one is known only when fed."""
    refuse_open(shape, name, what)
    return tuple(map(operator.index, shape if isinstance(shape, list | tuple | np.ndarray) else (shape,)))


def refuse_open(shape: Any, name: str, what: str = "the shape") -> None:
    """ShapeError where an extent is None, as in the shape of a placeholder."""
    if shape is None or (isinstance(shape, list | tuple) and any(n is None for n in shape)):
        raise OpenExtentError(
            layout(f"{name}: {what} {shape} is not fully known before the graph runs", needed=place(),
                   hint="zeros_like(x), full_like(x, value) and broadcast_arrays(x, y) take extents from a tensor")
        )  # fmt: skip


def _pattern(x: Tensor) -> Tensor:
    return x if x.shaped_like is None else x.shaped_like


def has_shape_of(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are known to have the same shape, even where extents are not known."""
    return x is y or (x.spec.is_known and x.spec.shape == y.spec.shape) or _pattern(x) is _pattern(y)


def shaped_like(x: Tensor, y: Tensor) -> Tensor:
    """``x``, remembered to have the shape of ``y`` where its own extents are not known."""
    if x is not y and not x.spec.is_known:
        x.shaped_like = _pattern(y)
    return x


def broadcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors broadcast against each other by explicit ops: the only place where elementwise inputs are
    broadcast.
    """
    if all(has_shape_of(x, tensors[0]) for x in tensors[1:]):
        return tensors
    shapes = [x.spec.shape for x in tensors]
    try:
        out = broadcast_shapes(*shapes)
    except ShapeError as error:
        inputs = "; ".join(operation_text(x.op) for x in tensors)
        raise ShapeError(advised(layout(str(error), inputs=inputs, needed=place()))) from None
    grown = tuple(_broadcast_one(x, out, tensors) for x in tensors)
    return tuple(shaped_like(x, grown[0]) for x in grown)


def _broadcast_one(x: Tensor, out: Shape | None, tensors: Sequence[Tensor]) -> Tensor:
    if out is not None and None not in out:
        if x.spec.shape == out:
            return x
        if x.op.type == "constant" and not x.spec.shape:
            return as_tensor(np.broadcast_to(x.op.params["value"], out), graph=x.graph)  # type: ignore[arg-type]
        if x.spec.is_known:
            return operators.call("broadcast_to", x, out)  # type: ignore[no-any-return]
    others = [t for t in tensors if t is not x]
    return apply(find("broadcast_like"), x, *others) if others else x


def filled_like(x: Tensor, value: Any, dtype: DType) -> Tensor:
    """A tensor of the shape of ``x`` that holds ``value`` everywhere: a constant where the shape is known."""
    if x.spec.is_known:
        array = filled(x.spec.known_shape, value, dtype)
        return x.op.graph.add(find("constant"), (), {"value": array}, (spec_of(array),)).outputs[0]
    return shaped_like(apply(find("broadcast_like"), as_tensor(value, dtype, x.graph), x), x)


def filled(shape: tuple[int, ...], value: Any, dtype: DType | None = None) -> npt.NDArray[Any]:
    """A read-only array that holds ``value`` everywhere, in the memory of one element."""
    return _filled(shape, value, dtype) if type(value) not in PYTHON_SCALARS else _splat(
        shape, value, dtype, frozen(value)
    )


def _filled(shape: tuple[int, ...], value: Any, dtype: DType | None) -> npt.NDArray[Any]:
    number = np.array(value, dtype=dtype)
    number.flags.writeable = False
    if number.ndim or None in shape:
        return np.broadcast_to(number, shape)
    return np.ndarray(shape, number.dtype, number, 0, (0,) * len(shape))  # a tenth of what broadcast_to takes


@functools.lru_cache(maxsize=1024)
def _splat(shape: tuple[int, ...], value: Any, dtype: DType | None, stand_in: Any) -> npt.NDArray[Any]:
    """An array of a Python number, which ``stand_in`` tells from those that compare equal."""
    return _filled(shape, value, dtype)


def same_shape(specs: Specs) -> Shape | None:
    """The shape that all elementwise inputs have, as far as it is known; ShapeError when they differ."""
    try:
        return functools.reduce(_merged, [spec.shape for spec in specs])
    except ShapeError:
        raise ShapeError(f"inputs of different shapes: {', '.join(map(str, specs))}") from None


def _merged(a: Shape | None, b: Shape | None) -> Shape | None:
    if a == b or b is None:
        return a
    if a is None:
        return b
    if len(a) != len(b) or any(m != n and None not in (m, n) for m, n in zip(a, b, strict=True)):
        raise ShapeError("different shapes")
    return tuple(n if m is None else m for m, n in zip(a, b, strict=True))


def same_spec(specs: Specs, params: Params) -> Specs:
    """Inference of ops whose output looks like their first input."""
    return (TensorSpec(same_shape(specs), specs[0].dtype),)


# -- building ------------------------------------------------------------------------------------------------


def elementwise(opdef: OpDef, *values: Any, dtypes: Sequence[DType], **params: Any) -> Any:
    """Apply an elementwise op to values converted to ``dtypes`` and broadcast; weak when all the values are.

    Python numbers become constants of the broadcast shape.
    """
    values = tuple(map(unwrap, values))
    inputs = _broadcast_values(values, dtypes)
    outputs = apply(opdef, *inputs, **params)
    is_weak = _are_weak(values)
    for out in outputs if isinstance(outputs, tuple) else (outputs,):
        shaped_like(out, inputs[0]).is_weak = is_weak
    return outputs


def _are_weak(values: Sequence[Any]) -> bool:
    """Whether all values are Python scalars, or made of such; bools too: ``True + 0.1`` gives way as 1.1 does."""
    return all(type(v) in PYTHON_SCALARS or (isinstance(v, Tensor) and v.is_weak) for v in values)


def _broadcast_values(values: Sequence[Any], dtypes: Sequence[DType]) -> Sequence[Tensor]:
    graph = graph_of(values)
    pairs = list(zip(values, dtypes, strict=True))
    arrays = [as_tensor(value, dtype, graph) for value, dtype in pairs if type(value) not in PYTHON_SCALARS]
    if not arrays:
        return [as_tensor(value, dtype, graph) for value, dtype in pairs]
    wide = broadcast(*arrays) if len(arrays) > 1 else tuple(arrays)
    if len(wide) == len(pairs):
        return wide
    pending = iter(wide)
    return [
        filled_like(wide[0], value, dtype) if type(value) in PYTHON_SCALARS else next(pending) for value, dtype in pairs
    ]


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """``numpy.where``, for gradient rules: what is not taken passes neither values nor NaN."""
    return operators.call("where", condition, x, y)  # type: ignore[no-any-return]


def at_least_zero(n: Any) -> Any:
    """The count, 0 where there are less than none."""
    return operators.call("maximum", n, 0) if isinstance(n, Tensor) else max(n, 0)


def ratio(x: Any, y: Any) -> Any:
    """``x / y``, with 0 for 0/0."""
    return x / where((x == 0) & (y == 0), 1, y)


_ASSIGN = "assign the result, as in y[...] = np.cumsum(x), or give out=y by name"
_NOT_TRACED = "wrap the code in jg.py_func(fn, inputs, dtypes): it runs as it is, without a gradient"


def unsupported(name: str, detail: str = "", hint: str = _NOT_TRACED) -> UnsupportedOpError:
    """The error for a NumPy function, or an option of one, that cannot be traced."""
    return UnsupportedOpError(
        layout(
            f"numpy.{name}{detail} cannot be traced",
            needed=f"at {source_text(user_source())}",
            hint=hint,
        )
    )


def as_inexact(x: Any) -> Tensor:
    """A float or complex tensor: what NumPy's linear algebra makes of integers is float64."""
    t = as_tensor(x)
    return t if t.dtype.kind in "fc" else as_tensor(t, np.dtype(np.float64))


def real_matrix(name: str, a: Any) -> Tensor:
    """A float tensor; UnsupportedOpError for complex numbers, MatrixShapeError for vectors."""
    x = as_inexact(a)
    if x.dtype.kind == "c":
        raise unsupported(name, " of complex matrices")
    if x.ndim < 2:
        raise MatrixShapeError(f"matrices of two dimensions are needed, got {x.spec}")
    return x


def refuse_options(name: str, **options: Any) -> None:
    """UnsupportedOpError for the first option that is not None (or "K", NumPy's default order)."""
    for key, value in options.items():
        if value is not None and not (key == "order" and value == "K"):
            raise unsupported(name, f" with {key}={value!r}", _ASSIGN if key == "out" else _NOT_TRACED)


def told_shape(x: Any) -> tuple[int, ...]:
    """The known shape of a tensor or an array, for code that chooses operations by its extents: the function that is
    traced is then called for every shape.
    """
    if isinstance(x, Tensor):
        x.op.graph.tells_extents = True
        return x.spec.known_shape
    return np.shape(x)
