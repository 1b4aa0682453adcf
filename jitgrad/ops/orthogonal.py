"""The QR factorization. Its gradient: S. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra
functions with application in optimum experimental design", 2012.
"""

from __future__ import annotations

from typing import Any

from jitgrad import lapack
from jitgrad.graph import Tensor, apply
from jitgrad.opdef import Library, Params, Specs, define
from jitgrad.operators import function
from jitgrad.ops.common import build, real_matrix, told_shape, unsupported
from jitgrad.ops.linalg import named, solve_triangular, turned
from jitgrad.spec import TensorSpec


def _infer_qr(specs: Specs, params: Params) -> Specs:
    *batch, m, n = specs[0].known_shape
    k, dtype = min(m, n), specs[0].dtype
    return TensorSpec((*batch, m, k), dtype), TensorSpec((*batch, k, n), dtype)


def _qr_vjp(gs: Any, outs: Any, a: Tensor) -> Any:
    """``A = Q R``; of a matrix with more columns than rows ``A = [X Y] = Q [U V]``, where ``V = Q.T Y``."""
    (gq, gr), (q, r) = gs, outs
    m, n = told_shape(a)[-2:]
    if m >= n:
        return _tall_qr_gradient(gq, gr, q, r)
    gu, gv = gr[..., :m], gr[..., m:]
    gx = _tall_qr_gradient(gq + a[..., m:] @ turned(gv), gu, q, r[..., :m])
    return build("concatenate", [gx, q @ gv], -1)


def _tall_qr_gradient(gq: Any, gr: Any, q: Tensor, r: Any) -> Tensor:
    inner = r @ turned(gr) - turned(gq) @ q
    lower = build("tril", inner, -1)
    both = gq + q @ (build("tril", inner) + turned(lower))
    return turned(solve_triangular(r, turned(both)))


qr_op = define(
    "qr",
    infer=_infer_qr,
    impl=lambda a: tuple(lapack.qr(a)),
    bound=lambda params, specs: lapack.ready(lapack.qr, specs[0].known_shape),
    vjp=_qr_vjp,
    kind=Library("qr"),
)


@function("linalg.qr")
def qr(a: Any, mode: str = "reduced") -> Any:
    """The reduced QR factorization, or only R; the gradient needs full rank, of the first columns in a wide matrix."""
    if mode not in ("reduced", "r"):
        raise unsupported("linalg.qr", f" with mode={mode!r}")
    result = apply(qr_op, real_matrix("linalg.qr", a))
    return named("qr", result) if mode == "reduced" else result[1]
