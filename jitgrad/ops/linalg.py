"""Factorizations, solutions and determinants of matrices on the last two axes; products are in contraction.

Matrix functions of a symmetric argument (cholesky, eigh) read one triangle, as NumPy does, and give the
gradient of the symmetric problem: a symmetric matrix. Formulas: M. Giles, "Collected matrix derivative
results for forward and reverse mode algorithmic differentiation", 2008.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import lapack
from jitgrad.errors import MatrixShapeError, ShapeError
from jitgrad.graph import Tensor, apply, apply_one
from jitgrad.opdef import Library, Params, Specs, define
from jitgrad.operators import function
from jitgrad.ops.common import (
    as_inexact,
    as_tensor,
    as_tensors,
    build,
    common_dtype,
    real_matrix,
    told_shape,
    unsupported,
)
from jitgrad.spec import TensorSpec, shape_text


def turned(x: Tensor) -> Tensor:
    """The matrices transposed."""
    return build("matrix_transpose", x)


def _square(specs: Specs, params: Params) -> Specs:
    shape = specs[0].known_shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise MatrixShapeError(f"square matrices are needed, got {specs[0]}")
    return (specs[0],)


# -- inverse and solutions -----------------------------------------------------------------------------------


def _inv_vjp(g: Tensor, out: Tensor, a: Tensor) -> Any:
    return -(turned(out) @ g @ turned(out))


inv_op = define("inv", infer=_square, impl=lapack.inv, vjp=_inv_vjp, kind=Library("inv"))


@function("linalg.inv")
def inv(a: Any) -> Tensor:
    """The inverse; LinAlgError when a matrix is singular."""
    return apply_one(inv_op, as_inexact(a))


def _infer_solve(specs: Specs, params: Params) -> Specs:
    a, b = _square(specs, params)[0].known_shape, specs[1].known_shape
    if a[:-1] != b[:-1]:
        raise ShapeError(
            f"cannot solve with matrices of shape {shape_text(a)} and right sides of shape {shape_text(b)}"
        )
    return (TensorSpec(b, specs[1].dtype),)


def _solve_vjp(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Any, Any]:
    gb = apply_one(solve_op, turned(a), g)
    return -(gb @ turned(out)), gb


solve_op = define("solve", infer=_infer_solve, impl=lapack.solve, vjp=_solve_vjp, kind=Library("solve"))


def _solve_triangular_vjp(g: Tensor, out: Tensor, a: Tensor, b: Tensor, *, lower: bool) -> tuple[Any, Any]:
    gb = apply_one(solve_triangular_op, turned(a), g, lower=not lower)
    return build("tril" if lower else "triu", -(gb @ turned(out))), gb


solve_triangular_op = define(
    "solve_triangular",
    infer=_infer_solve,
    impl=lapack.solve_triangular,
    vjp=_solve_triangular_vjp,
    kind=Library("solve_triangular"),
)


def _with_columns(a: Any, b: Any, solved: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """``solved`` of matrices with equal leading axes; a vector ``b`` is one column."""
    dtype = common_dtype(a, b)
    dtype = dtype if dtype.kind in "fc" else np.dtype(np.float64)
    x, y = (as_tensor(t, dtype) for t in as_tensors(a, b))
    if y.ndim == 1:
        return build("squeeze", _with_columns(x, build("expand_dims", y, 1), solved), -1)
    batch = np.broadcast_shapes(x.spec.known_shape[:-2], y.spec.known_shape[:-2])
    return solved(
        *(t if t.shape[:-2] == batch else build("broadcast_to", t, (*batch, *t.shape[-2:])) for t in (x, y))
    )


@function("linalg.solve")
def solve(a: Any, b: Any) -> Tensor:
    """``x`` with ``a @ x == b``; only a one-dimensional ``b`` is a vector. LinAlgError if singular."""
    return _with_columns(a, b, lambda x, y: apply_one(solve_op, x, y))


@function("linalg.solve_triangular")
def solve_triangular(a: Any, b: Any, *, lower: bool = False) -> Tensor:
    """As ``solve`` for triangular matrices; the other triangle is not read."""
    return _with_columns(a, b, lambda x, y: apply_one(solve_triangular_op, x, y, lower=lower))


# -- determinants --------------------------------------------------------------------------------------------


def _infer_det(specs: Specs, params: Params) -> Specs:
    return (TensorSpec(_square(specs, params)[0].known_shape[:-2], specs[0].dtype),)


def _scaled(g: Tensor, matrix: Tensor) -> Any:
    return build("expand_dims", g, (-2, -1)) * matrix


det_op = define(
    "det",
    infer=_infer_det,
    impl=lambda a: np.asarray(lapack.det(a)),
    vjp=lambda g, out, a: _scaled(g * out, turned(inv(a))),
    kind=Library("det"),
)


@function("linalg.det")
def det(a: Any) -> Tensor:
    """The determinant. Its gradient needs the inverse: LinAlgError for a singular matrix."""
    return apply_one(det_op, as_inexact(a))


def _infer_slogdet(specs: Specs, params: Params) -> Specs:
    shape = _infer_det(specs, params)[0].shape
    dtype = specs[0].dtype
    return TensorSpec(shape, dtype), TensorSpec(shape, np.empty(0, dtype).real.dtype)


slogdet_op = define(
    "slogdet",
    infer=_infer_slogdet,
    impl=lambda a: tuple(map(np.asarray, lapack.slogdet(a))),
    vjp=lambda gs, outs, a: _scaled(gs[1], turned(inv(a))),
    kind=Library("slogdet"),
)


@function("linalg.slogdet")
def slogdet(a: Any) -> Any:
    """Sign and logarithm of the absolute value of the determinant."""
    x = real_matrix("linalg.slogdet", a)
    return named("slogdet", apply(slogdet_op, x))


def named(name: str, values: Any) -> Any:
    """NumPy's named tuple of results."""
    probe = getattr(np.linalg, name)(np.eye(1))
    return type(probe)(*values)


# -- factorizations ------------------------------------------------------------------------------------------


def _symmetric(x: Tensor) -> Any:
    return (x + turned(x)) * 0.5


def _lower_half(x: Tensor) -> Any:
    """The lower triangle with half the diagonal."""
    return (build("tril", x) + build("tril", x, -1)) * 0.5


_LARGE = 32
"""From more rows on the gradient of a Cholesky factor is one operation; up to so many, kernels solve with a matrix per
lane (compiler/fusing/small.py), and have no such operation. Traces that follow one another have equal extents up to 64
(compiler/likeness.py), so nobody need be told that this is asked.
"""


def _cholesky_vjp(g: Tensor, out: Tensor, a: Tensor) -> Any:
    if out.shape[-1] is not None and out.shape[-1] > _LARGE:
        return apply_one(cholesky_cotangent_op, out, g)
    upper = turned(out)
    inner = _lower_half(upper @ g)
    left = solve_triangular(upper, inner)
    return _symmetric(turned(solve_triangular(upper, turned(left))))


def _cholesky_cotangent_vjp(h: Tensor, out: Tensor, factor: Tensor, g: Tensor) -> tuple[Any, Any]:
    """With out = sym(inv(L)' P inv(L)) and P = half(L' g): 2 sym(dP) = half(inv(L) sym(h) inv(L)') is its cotangent."""
    right = solve_triangular(factor, _symmetric(h), lower=True)
    inner = _lower_half(solve_triangular(factor, turned(right), lower=True))
    outer = build("tril", g) @ turned(inner) - 2 * (out @ turned(right))
    return build("tril", outer), build("tril", factor) @ inner


cholesky_cotangent_op = define(
    "cholesky_cotangent",
    infer=lambda specs, params: (_square(specs, params)[0],),
    impl=lapack.cholesky_cotangent,
    vjp=_cholesky_cotangent_vjp,
    kind=Library("cholesky_cotangent"),
)

cholesky_op = define(
    "cholesky", infer=_square, impl=lapack.cholesky, vjp=_cholesky_vjp, kind=Library("cholesky")
)


@function("linalg.cholesky")
def cholesky(a: Any, /, *, upper: bool = False) -> Tensor:
    """The lower (or upper) triangular factor; LinAlgError unless positive definite."""
    x = real_matrix("linalg.cholesky", a)
    return turned(apply_one(cholesky_op, turned(x))) if upper else apply_one(cholesky_op, x)


def _infer_eigh(specs: Specs, params: Params) -> Specs:
    spec = _square(specs, params)[0]
    return TensorSpec(spec.known_shape[:-1], np.empty(0, spec.dtype).real.dtype), spec


def _eigh_vjp(gs: Any, outs: Any, a: Tensor, *, UPLO: str) -> Any:
    (gw, gv), (w, v) = gs, outs
    gaps = build("expand_dims", w, -2) - build("expand_dims", w, -1)
    inner = (turned(v) @ gv) * _reciprocal_off_diagonal(gaps)
    return _hermitian(build("conjugate", v) @ (inner + _diagonal_matrix(gw)) @ turned(v))


def _hermitian(x: Tensor) -> Any:
    return (x + build("conjugate", turned(x))) * 0.5


def _reciprocal_off_diagonal(gaps: Tensor) -> Any:
    """``1 / gaps``, and 0 on the diagonal and between equal values."""
    equal = build("equal", gaps, 0)
    return build(
        "where", equal, np.zeros((), gaps.dtype), 1 / build("where", equal, np.ones((), gaps.dtype), gaps)
    )


def _diagonal_matrix(v: Tensor) -> Any:
    eye = np.eye(v.spec.known_shape[-1], dtype=v.dtype)
    return build("expand_dims", v, -1) * eye


eigh_op = define(
    "eigh",
    infer=_infer_eigh,
    impl=lambda a, UPLO: tuple(lapack.eigh(a, UPLO)),
    bound=lambda params, specs: functools.partial(lapack.ready(lapack.eigh, specs[0].known_shape), **params),
    vjp=_eigh_vjp,
    kind=Library("eigh"),
)


@function("linalg.eigh")
def eigh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues, rising, and eigenvectors of symmetric or Hermitian matrices.

    Gradients of eigenvectors need distinct values: between equal ones the rule puts 0 where the formula has 1/0. That
    is right for what depends on the values alone; nearly equal values give large gradients.
    """
    return named("eigh", apply(eigh_op, as_inexact(a), UPLO=_triangle(UPLO)))


def _triangle(UPLO: str) -> str:
    """Which triangle is read, "L" or "U"; ValueError for another one."""
    if UPLO.upper() not in ("L", "U"):
        raise ValueError(f"UPLO argument must be 'L' or 'U', got {UPLO!r}")
    return UPLO.upper()


def _infer_eigvalsh(specs: Specs, params: Params) -> Specs:
    return _infer_eigh(specs, params)[:1]


def _eigvalsh_vjp(g: Tensor, out: Tensor, a: Tensor, *, UPLO: str) -> Any:
    v = apply(eigh_op, a, UPLO=UPLO)[1]
    return _hermitian((build("conjugate", v) * build("expand_dims", g, -2)) @ turned(v))


eigvalsh_op = define(
    "eigvalsh",
    infer=_infer_eigvalsh,
    impl=lapack.eigvalsh,
    bound=lambda params, specs: functools.partial(lapack.ready(lapack.eigvalsh, specs[0].known_shape), **params),
    vjp=_eigvalsh_vjp,
    kind=Library("eigvalsh"),
)


@function("linalg.eigvalsh")
def eigvalsh(a: Any, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric or Hermitian matrices, in rising order; vectors are found for a gradient only."""
    return apply_one(eigvalsh_op, as_inexact(a), UPLO=_triangle(UPLO))


def _infer_svd(specs: Specs, params: Params) -> Specs:
    *batch, m, n = specs[0].known_shape
    k, dtype = min(m, n), specs[0].dtype
    return (
        TensorSpec((*batch, m, k), dtype),
        TensorSpec((*batch, k), dtype),
        TensorSpec((*batch, k, n), dtype),
    )


def _svd_vjp(gs: Any, outs: Any, a: Tensor) -> Any:
    (gu, gs_, gvh), (u, s, vh) = gs, outs
    ut = turned(u)
    row, column = build("expand_dims", s, -2), build("expand_dims", s, -1)
    gaps = _reciprocal_off_diagonal((row - column) * (row + column))
    inner_u, inner_v = ut @ gu, vh @ turned(gvh)
    middle = gaps * (inner_u - turned(inner_u)) * row + column * (gaps * (inner_v - turned(inner_v)))
    result = u @ (middle + _diagonal_matrix(gs_)) @ vh
    m, n = told_shape(a)[-2:]
    if m > n:
        result = result + ((gu - u @ inner_u) / row) @ vh
    if n > m:
        result = result + (u / row) @ (gvh - turned(inner_v) @ vh)
    return result


svd_op = define(
    "svd",
    infer=_infer_svd,
    impl=lambda a: tuple(lapack.reduced_svd(a)),
    bound=lambda params, specs: lapack.ready(lapack.reduced_svd, specs[0].known_shape),
    vjp=_svd_vjp,
    kind=Library("svd"),
)


def _infer_svd_full(specs: Specs, params: Params) -> Specs:
    *batch, m, n = specs[0].known_shape
    dtype = specs[0].dtype
    return (
        TensorSpec((*batch, m, m), dtype),
        TensorSpec((*batch, min(m, n)), dtype),
        TensorSpec((*batch, n, n), dtype),
    )


def _svd_full_vjp(gs: Any, outs: Any, a: Tensor) -> Any:
    """The vectors that span what the matrix does not reach follow the others, and do not turn among themselves."""
    (gu, gs_, gvh), (u, s, vh) = gs, outs
    m, n = told_shape(a)[-2:]
    k = min(m, n)
    left, right = u[..., :k] / build("expand_dims", s, -2), vh[..., :k, :]
    result = _svd_vjp((gu[..., :k], gs_, gvh[..., :k, :]), (u[..., :k], s, right), a)
    if m > n:
        result = result - u[..., k:] @ (turned(gu[..., k:]) @ left) @ right
    if n > m:
        result = result - left @ (right @ turned(gvh[..., k:, :])) @ vh[..., k:, :]
    return result


svd_full_op = define(
    "svd_full",
    infer=_infer_svd_full,
    impl=lambda a: tuple(lapack.svd(a)),
    vjp=_svd_full_vjp,
    kind=Library("svd_full"),
)


def _svdvals_vjp(g: Tensor, out: Tensor, a: Tensor) -> Any:
    u, _, vh = apply(svd_op, a)
    return (u * build("expand_dims", g, -2)) @ vh


svdvals_op = define(
    "svdvals",
    infer=lambda specs, params: _infer_svd(specs, params)[1:2],
    impl=lapack.svdvals,
    bound=lambda params, specs: lapack.ready(lapack.svdvals, specs[0].known_shape),
    vjp=_svdvals_vjp,
    kind=Library("svdvals"),
)


@function("linalg.svd")
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Singular values and vectors; gradients need distinct values."""
    x = real_matrix("linalg.svd", a)
    m, n = x.spec.known_shape[-2:]
    if hermitian:
        raise unsupported("linalg.svd", " with hermitian=True")
    if not compute_uv:
        return apply_one(svdvals_op, x)
    return named("svd", apply(svd_full_op if full_matrices and m != n else svd_op, x))


@function("linalg.svdvals")
def svdvals(x: Any, /) -> Tensor:
    """Singular values in falling order."""
    values: Tensor = svd(x, compute_uv=False)
    return values
