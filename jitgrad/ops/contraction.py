"""Sums of products: matmul, and what is made of it: dot, inner, tensordot, kron, cross; not einsum."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.errors import MatrixShapeError, ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Contract, Params, Specs, define, find
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, as_tensors, build, common_dtype, refuse_options
from jitgrad.spec import Shape, TensorSpec, broadcast_shapes, is_compatible, normalize_axis, shape_text


def _infer_matmul(specs: Specs, params: Params) -> Specs:
    a, b = (
        _turned(spec.shape, params[key])
        for spec, key in zip(specs, ("transpose_a", "transpose_b"), strict=True)
    )
    if a is None or b is None:
        return (TensorSpec(None, specs[0].dtype),)
    if (
        len(a) < 2
        or len(a) != len(b)
        or not is_compatible(a[:-2], b[:-2])
        or not is_compatible(a[-1:], b[-2:-1])
    ):
        raise ShapeError(_unfit(a, b))
    batch = tuple(m if m is not None else n for m, n in zip(a[:-2], b[:-2], strict=True))
    return (TensorSpec((*batch, a[-2], b[-1]), specs[0].dtype),)


def _turned(shape: Shape | None, transposed: bool) -> Shape | None:
    return (*shape[:-2], *shape[:-3:-1]) if transposed and shape is not None else shape


def _matmul_impl(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    return np.matmul(
        np.swapaxes(a, -1, -2) if transpose_a else a, np.swapaxes(b, -1, -2) if transpose_b else b
    )


def _ready_matmul(transpose_a: bool, transpose_b: bool) -> Callable[[Any, Any], Any]:
    product = np.matmul
    if transpose_a and transpose_b:
        return lambda a, b: product(a.swapaxes(-1, -2), b.swapaxes(-1, -2))
    if transpose_a:
        return lambda a, b: product(a.swapaxes(-1, -2), b)
    return (lambda a, b: product(a, b.swapaxes(-1, -2))) if transpose_b else product


def product(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """The op itself: matrices on the last two axes, equal leading axes, equal dtypes."""
    return apply_one(matmul_op, a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def _matmul_vjp(
    g: Tensor, out: Tensor, a: Tensor, b: Tensor, *, transpose_a: bool, transpose_b: bool
) -> tuple[Tensor, Tensor]:
    da = product(b, g, transpose_b, True) if transpose_a else product(g, b, False, not transpose_b)
    db = product(g, a, True, transpose_a) if transpose_b else product(a, g, not transpose_a, False)
    return da, db


matmul_op = define(
    "matmul",
    infer=_infer_matmul,
    impl=_matmul_impl,
    bound=lambda params, specs: _ready_matmul(**params),
    vjp=_matmul_vjp,
    kind=Contract(),
    infers_partial=True,
)


def _operands(*values: Any) -> list[Tensor]:
    dtype = common_dtype(*values)
    return [as_tensor(x, dtype) for x in as_tensors(*values)]


def _unfit(a: Shape, b: Shape) -> str:
    return f"cannot multiply matrices of shapes {shape_text(a)} and {shape_text(b)}"


@function("matmul", "linalg.matmul")
def matmul(x1: Any, x2: Any, /) -> Tensor:
    """Matrix product on the last two axes; a vector is a row on the left, a column on the right.

    ShapeError for scalars and for inner extents that differ.
    """
    a, b = _operands(x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError("matmul does not take scalars: use multiply")
    if not is_compatible(a.shape[-1:], b.shape[-2:][:1]):  # said of what was given, before it is reshaped
        raise ShapeError(_unfit(a.shape, b.shape))
    row, column = a.ndim == 1, b.ndim == 1
    a = build("expand_dims", a, 0) if row else a
    b = build("expand_dims", b, 1) if column else b
    out = _matrix_product(a, b)
    dropped = ((-2,) if row else ()) + ((-1,) if column else ())
    return build("squeeze", out, dropped) if dropped else out


def _matrix_product(a: Tensor, b: Tensor) -> Tensor:
    batch_a, batch_b = a.shape[:-2], b.shape[:-2]
    if batch_a == batch_b and None not in batch_a:
        return product(a, b)
    if not batch_b and a.shape.count(None) <= 1:
        # One large product instead of one per matrix of the batch.
        rows: Tensor = build("reshape", a, _one_open(*_flat(batch_a, a.shape[-2]), a.shape[-1]))
        return build("reshape", product(rows, b), _one_open(*a.shape[:-1], b.shape[-1]))
    return product(*_same_batch(a, b))


def _flat(batch: Shape, rows: int | None) -> tuple[int | None]:
    extents = (*batch, rows)
    return (None,) if None in extents else (math.prod(n for n in extents if n is not None),)


def _one_open(*extents: int | None) -> tuple[int, ...]:
    return tuple(-1 if n is None else n for n in extents)


def _same_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if batch is None or None in batch:
        return _same_unknown_batch(a, b)
    wide = [
        x if x.shape[:-2] == batch else build("broadcast_to", x, (*batch, *x.spec.known_shape[-2:]))
        for x in (a, b)
    ]
    return wide[0], wide[1]


def _same_unknown_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Broadcast against the first element of each matrix of the other, which has its leading axes."""
    like = find("broadcast_like")
    return apply_one(like, a, b[..., :1, :1]), apply_one(like, b, a[..., :1, :1])


# -- functions of it -----------------------------------------------------------------------------------------


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """The sum of ``a * b`` over the last axis, in the dtype of both."""
    if a.dtype.kind == "b":
        return build("any", build("logical_and", a, b), axis=-1)
    return build("sum", build("multiply", a, b), axis=-1, dtype=a.dtype)


@function("dot")
def dot(a: Any, b: Any, out: Any = None) -> Tensor:
    """As numpy.dot: a product for scalars, else summed over a's last and b's last but one axis."""
    refuse_options("dot", out=out)
    x, y = _operands(a, b)
    if x.ndim == 0 or y.ndim == 0:
        return build("multiply", x, y)
    if x.ndim == y.ndim == 1:
        _check_extents(x, y, 0, 0)
        return inner_product(x, y)
    if y.ndim <= 2:
        return matmul(x, y)
    return tensordot(x, y, ([-1], [-2]))


def _check_extents(x: Tensor, y: Tensor, axis_x: int, axis_y: int) -> None:
    m, n = x.shape[axis_x], y.shape[axis_y]
    if None not in (m, n) and m != n:
        raise ShapeError(f"shapes {shape_text(x.shape)} and {shape_text(y.shape)} not aligned: {m} and {n}")


@function("vdot")
def vdot(a: Any, b: Any, /) -> Tensor:
    """The inner product of the flattened arrays, the first one conjugated."""
    x, y = _operands(a, b)
    x = build("conjugate", x) if x.dtype.kind == "c" else x
    return dot(build("ravel", x), build("ravel", y))


@function("vecdot", "linalg.vecdot")
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """Inner products along ``axis``, the first array conjugated, other axes broadcast."""
    x, y = _operands(x1, x2)
    x = build("conjugate", x) if x.dtype.kind == "c" else x
    x, y = (t if axis == -1 else build("moveaxis", t, axis, -1) for t in (x, y))
    _check_extents(x, y, -1, -1)
    return inner_product(x, y)


@function("inner")
def inner(a: Any, b: Any, /) -> Tensor:
    """Summed over the last axes of both."""
    x, y = _operands(a, b)
    if x.ndim == 0 or y.ndim == 0:
        return build("multiply", x, y)
    return tensordot(x, y, ([-1], [-1]))


@function("outer", "linalg.outer")
def outer(a: Any, b: Any, out: Any = None) -> Tensor:
    """All products of an element of one with an element of the other, both flattened."""
    refuse_options("outer", out=out)
    x, y = as_tensors(a, b)
    return build("multiply", build("reshape", x, (-1, 1)), build("reshape", y, (1, -1)))


@function("tensordot", "linalg.tensordot")
def tensordot(a: Any, b: Any, axes: Any = 2) -> Tensor:
    """Summed over pairs of axes: the last ``axes`` of ``a`` with the first of ``b``, or two lists."""
    x, y = _operands(a, b)
    if np.ndim(axes) == 0:
        count = int(axes)
        axes = (list(range(x.ndim - count, x.ndim)), list(range(count)))
    summed_x, summed_y = (
        [normalize_axis(int(k), t.ndim) for k in np.atleast_1d(ks)]
        for ks, t in zip(axes, (x, y), strict=True)
    )
    if (
        len(summed_x) != len(summed_y)
        or len(set(summed_x)) != len(summed_x)
        or len(set(summed_y)) != len(summed_y)
    ):
        raise ShapeError(f"tensordot needs as many different axes of one as of the other, got {axes}")
    for i, j in zip(summed_x, summed_y, strict=True):
        _check_extents(x, y, i, j)
    free_x = [k for k in range(x.ndim) if k not in summed_x]
    free_y = [k for k in range(y.ndim) if k not in summed_y]
    return contract(x, y, ([], free_x, summed_x), ([], free_y, summed_y))


Groups = tuple[list[int], list[int], list[int]]


def contract(x: Tensor, y: Tensor, axes_x: Groups, axes_y: Groups) -> Tensor:
    """One matrix product: axes given as (batch, free, summed); gives batch, free of x, free of y.

    The summed axes may come before the free ones (a transposed operand) without a copy.
    """
    shape_x, shape_y = x.spec.known_shape, y.spec.known_shape
    left, turned_left = _as_matrix(x, axes_x)
    right, turned_right = _as_matrix(y, axes_y)
    out = product(left, right, turned_left, not turned_right)
    batch, free_x, _ = axes_x
    return build("reshape", out, [shape_x[k] for k in (*batch, *free_x)] + [shape_y[k] for k in axes_y[1]])


def _as_matrix(x: Tensor, axes: Groups) -> tuple[Tensor, bool]:
    """``x`` as a batch of matrices (free, summed), or of (summed, free) and True where that needs no copy."""
    batch, free, summed = axes
    shape = x.spec.known_shape
    turned = [*batch, *summed, *free] == list(range(x.ndim)) and bool(free)
    first, second = (summed, free) if turned else (free, summed)
    order = (*batch, *first, *second)
    x = x if list(order) == list(range(x.ndim)) else build("transpose", x, order)
    rows, columns = (math.prod(shape[k] for k in group) for group in (first, second))
    matrices = (*(shape[k] for k in batch), rows, columns)
    return (x if x.shape == matrices else build("reshape", x, matrices)), turned


@function("kron")
def kron(a: Any, b: Any) -> Tensor:
    """The Kronecker product: each element of ``a`` replaced by its product with ``b``."""
    x, y = as_tensors(a, b)
    rank = max(x.ndim, y.ndim)
    shape_x = (1,) * (rank - x.ndim) + x.spec.known_shape
    shape_y = (1,) * (rank - y.ndim) + y.spec.known_shape
    wide = build("reshape", x, [n for pair in zip(shape_x, (1,) * rank, strict=True) for n in pair])
    tall = build("reshape", y, [n for pair in zip((1,) * rank, shape_y, strict=True) for n in pair])
    return build(
        "reshape", build("multiply", wide, tall), [m * n for m, n in zip(shape_x, shape_y, strict=True)]
    )


@function("cross", "linalg.cross")
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Tensor:
    """The vector product of three-dimensional vectors."""
    if axis is not None:
        axisa, axisb, axisc = axis, axis, axis
    x, y = as_tensors(a, b)
    x, y = build("moveaxis", x, axisa, -1), build("moveaxis", y, axisb, -1)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise ShapeError(f"cross needs vectors of extent 3, got {x.spec} and {y.spec}")
    x0, x1, x2, y0, y1, y2 = (t[..., k] for t in (x, y) for k in range(3))
    parts = (x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0)
    return build("stack", parts, normalize_axis(axisc, parts[0].ndim + 1))


@function("linalg.multi_dot")
def multi_dot(arrays: Any, *, out: Any = None) -> Tensor:
    """The product of several matrices in the cheapest order; the first and the last may be vectors."""
    refuse_options("linalg.multi_dot", out=out)
    factors = list(as_tensors(*arrays))
    if len(factors) < 2:
        raise ValueError("Expecting at least two arrays.")
    labels = [chr(ord("a") + k) for k in range(len(factors) + 1)]
    terms = [labels[k] + labels[k + 1] for k in range(len(factors))]
    terms[0] = terms[0] if factors[0].ndim == 2 else labels[1]
    terms[-1] = terms[-1] if factors[-1].ndim == 2 else labels[-2]
    ends = (labels[0] if factors[0].ndim == 2 else "") + (labels[-1] if factors[-1].ndim == 2 else "")
    return build("einsum", f"{','.join(terms)}->{ends}", *factors)


@function("linalg.matrix_power")
def matrix_power(a: Any, n: int) -> Tensor:
    """``a`` multiplied by itself, by repeated squaring; the inverse for a negative ``n``."""
    x, n = as_tensor(a), operator.index(n)
    shape = x.spec.known_shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise MatrixShapeError(f"square matrices are needed, got {x.spec}")
    if n == 0:
        return build("broadcast_to", np.eye(shape[-1], dtype=x.dtype), shape)
    x, n = (build("linalg.inv", x), -n) if n < 0 else (x, n)
    result: Tensor | None = None
    while n:
        n, odd = divmod(n, 2)
        if odd:
            result = x if result is None else matmul(result, x)
        x = matmul(x, x) if n else x
    assert result is not None
    return result
