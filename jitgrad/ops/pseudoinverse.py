"""Least squares, ranks and condition numbers, by singular values; solutions of square systems are in linalg."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from jitgrad import lapack
from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Library, Params, Specs, define
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, as_tensors, build, common_dtype, real_matrix, told_shape, unsupported, where
from jitgrad.spec import TensorSpec


def _turned(x: Tensor) -> Tensor:
    return build("matrix_transpose", x)


def _share(x: Tensor) -> float:
    """NumPy's bound for singular values that count as zero, as a share of the largest."""
    return max(told_shape(x)[-2:]) * float(np.finfo(x.dtype).eps)


def _infer_pinv(specs: Specs, params: Params) -> Specs:
    *batch, m, n = specs[0].known_shape
    return (TensorSpec((*batch, n, m), specs[0].dtype),)


def _pinv_vjp(g: Tensor, out: Tensor, a: Tensor, *, rcond: float) -> Any:
    """Where the rank stays the same (G. Golub and V. Pereyra, 1973):
    dP = -P dA P + P P' dA' (I - A P) + (I - P A) dA' P' P.
    """
    p, pt, gt = out, _turned(out), _turned(g)
    left, right = gt - a @ (p @ gt), gt - (gt @ p) @ a
    return left @ (p @ pt) + (pt @ p) @ right - pt @ g @ pt


pinv_op = define(
    "pinv",
    infer=_infer_pinv,
    impl=lambda a, rcond: lapack.pinv(a, rcond=rcond),
    vjp=_pinv_vjp,
    kind=Library("pinv"),
)


_left_out = object()


@function("linalg.pinv")
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = _left_out) -> Tensor:
    """As numpy.linalg.pinv, by singular values, for which ``rtol=None`` is another bound than none given; the gradient
    is that of matrices whose rank stays the same when they change a little.
    """
    if rcond is not None and rtol is not _left_out:
        raise ValueError("pinv takes rcond or rtol, got both")
    x = real_matrix("linalg.pinv", a)
    cutoff = rcond if rtol is _left_out else _share(x) if rtol is None else rtol
    if hermitian or np.ndim(cutoff):
        raise unsupported("linalg.pinv", " with hermitian=True, or a cutoff for each matrix,")
    if isinstance(cutoff, Tensor):
        raise unsupported("linalg.pinv", " with a traced cutoff")
    return apply_one(pinv_op, x, rcond=1e-15 if cutoff is None else float(cutoff))


@function("linalg.lstsq")
def lstsq(a: Any, b: Any, rcond: Any = None) -> tuple[Any, ...]:
    """As numpy.linalg.lstsq of matrices whose rank stays the same when they change a little. Residuals are given where
    there are more rows than columns, whatever the rank.
    """
    dtype = common_dtype(a, b)
    x, y = (real_matrix("linalg.lstsq", as_tensor(a, dtype)), as_tensor(b, dtype))
    y = y if y.dtype == x.dtype else as_tensor(y, x.dtype)
    (m, n), rows = x.spec.known_shape, y.spec.known_shape
    if len(rows) not in (1, 2) or rows[0] != m:
        raise ShapeError(f"lstsq needs one row on the right for each of {m}, got {y.spec}")
    cutoff = _share(x) if rcond is None else float(np.finfo(x.dtype).eps if rcond == -1 else rcond)
    solution = build("matmul", apply_one(pinv_op, x, rcond=cutoff), y)
    values = build("linalg.svdvals", x)
    rank = build("sum", build("astype", values > cutoff * values[:1], np.int32), 0, np.int32)
    rest = y - build("matmul", x, solution)
    squares = build("sum", build("reshape", rest * rest, (m, math.prod(rows[1:]))), 0)
    return solution, squares if m > n else squares[:0], rank, values


@function("linalg.matrix_rank")
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """As numpy.linalg.matrix_rank: how many singular values are above a share of the largest."""
    x = as_tensor(A)
    if x.ndim < 2:
        return build("astype", build("any", x != 0), np.int64)
    x = real_matrix("linalg.matrix_rank", x)
    values = call("absolute", call("linalg.eigvalsh", x)) if hermitian else call("linalg.svdvals", x)
    if tol is None:
        share = _share(x) if rtol is None else as_tensor(rtol)[..., None]
        limit = build("max", values, -1, keepdims=True, initial=0.0) * share
    else:
        limit = as_tensor(tol)[..., None]
    return build("count_nonzero", values > limit, -1)


@function("linalg.cond")
def cond(x: Any, p: Any = None) -> Any:
    """As numpy.linalg.cond, in the norm of order ``p``; spectral: the largest singular value over the smallest.
    Infinite where a matrix is singular; ShapeError of matrices without elements.
    """
    t = real_matrix("linalg.cond", x)
    if 0 in t.spec.known_shape[-2:]:
        raise ShapeError(f"cond of no elements has no value, got {t.spec}")
    if p in (None, 2, -2):
        values = build("linalg.svdvals", t)
        largest, smallest = values[..., 0], values[..., -1]
        return where(largest == 0, np.inf, smallest / largest if p == -2 else largest / smallest)
    is_singular = call("linalg.slogdet", t)[0] == 0
    identity = np.eye(t.shape[-1], dtype=t.dtype)
    regular = where(build("expand_dims", is_singular, (-2, -1)), identity, t)
    axes = (-2, -1)
    found = call("linalg.norm", t, p, axes) * call("linalg.norm", build("linalg.inv", regular), p, axes)
    return where(is_singular, np.inf, found)


# -- systems of tensors --------------------------------------------------------------------------------------


@function("linalg.tensorinv")
def tensorinv(a: Any, ind: int = 2) -> Any:
    """As numpy.linalg.tensorinv: the inverse for a tensordot over the first ``ind`` axes."""
    x = as_tensor(a)
    if ind <= 0:
        raise ValueError(f"tensorinv takes ind from 1 on, how many axes come first, got {ind}")
    shape = x.spec.known_shape
    first, others = math.prod(shape[:ind]), math.prod(shape[ind:])
    if first != others:
        raise ShapeError(f"tensorinv needs as many elements in the first {ind} axes as in the others, got {x.spec}")
    matrix = build("reshape", x, (first, others))
    return build("reshape", build("linalg.inv", matrix), (*shape[ind:], *shape[:ind]))


@function("linalg.tensorsolve")
def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """As numpy.linalg.tensorsolve: x with tensordot(a, x, x.ndim) == b."""
    x, y = as_tensors(a, b)
    rank = x.ndim
    if axes is not None:
        moved = [operator.index(k) % rank for k in axes]
        x = build("transpose", x, (*(k for k in range(rank) if k not in moved), *moved))
    shape, count = x.spec.known_shape[y.ndim :], y.spec.size
    if math.prod(shape) != count or x.spec.size != count * count:
        raise ShapeError(f"tensorsolve needs as many unknowns as equations, got {x.spec} and {y.spec}")
    solved = build("linalg.solve", build("reshape", x, (count, count)), build("ravel", y))
    return build("reshape", solved, shape)


# -- a matrix and a vector in each place ---------------------------------------------------------------------


@function("matvec")
def matvec(x1: Any, x2: Any, /) -> Any:
    """As numpy.matvec: each matrix times the vector in its place."""
    return build("matmul", x1, as_tensors(x2, x1)[0][..., None])[..., 0]


@function("vecmat")
def vecmat(x1: Any, x2: Any, /) -> Any:
    """As numpy.vecmat: each vector, conjugated, times the matrix in its place."""
    x, y = as_tensors(x1, x2)
    row = build("conjugate", x) if x.dtype.kind == "c" else x
    return build("matmul", row[..., None, :], y)[..., 0, :]
