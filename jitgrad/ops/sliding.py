"""Sums of products of a vector and each stretch of another: what convolutions of vectors are made of."""

from __future__ import annotations

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Params, Specs, Sweep, define
from jitgrad.operators import call
from jitgrad.spec import TensorSpec


def _infer(specs: Specs, params: Params) -> Specs:
    n, k = (None if spec.shape is None else spec.shape[0] for spec in specs)
    if n is None or k is None:
        return (TensorSpec((None,), specs[0].dtype),)
    if k > n:
        raise ShapeError(f"a vector of {k} elements does not slide along one of {n}")
    return (TensorSpec((n - k + 1,), specs[0].dtype),)


def _slide_vjp(g: Tensor, out: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    reach = w.spec.known_shape[0] - 1
    wide = call("pad", g, ((reach, reach),)) if reach else g
    return slide(wide, call("flip", w)), slide(x, g)


slide_op = define(
    "slide",
    infer=_infer,
    impl=lambda x, w: np.convolve(x, w[::-1], "valid"),
    vjp=_slide_vjp,
    kind=Sweep("slide"),
    infers_partial=True,
)


def slide(x: Tensor, w: Tensor) -> Tensor:
    """``out[i] = sum_k x[i + k] w[k]`` [n - k + 1] of ``x`` [n] and ``w`` [k], of one dtype; ShapeError where k > n."""
    return apply_one(slide_op, x, w)
