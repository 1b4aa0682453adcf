"""Derivatives along tangents in a graph: the transpose of the transpose; built of gradients(), it runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.gradients import gradients, operations_between
from jitgrad.graph import Tensor
from jitgrad.opdef import Control
from jitgrad.operators import call
from jitgrad.ops.creation import identity
from jitgrad.spec import is_inexact


def dense_gradients(
    ys: Sequence[Tensor], xs: Sequence[Tensor], grad_ys: Sequence[Any] | None = None
) -> list[Tensor]:
    """``gradients(ys, xs, grad_ys)`` with zeros where ys do not depend on x."""
    found = (
        gradients(list(ys), list(xs), None if grad_ys is None else list(grad_ys)) if ys else [None] * len(xs)
    )
    return [call("zeros_like", x) if g is None else g for g, x in zip(found, xs, strict=True)]


def along(ys: Sequence[Tensor], xs: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor]:
    """Derivatives of each of ``ys`` along the tangents of ``xs``; zeros for those that carry no gradient."""
    smooth = [y for y in ys if is_inexact(y.dtype)]
    stand_ins = [identity(call("zeros_like", y)) for y in smooth]
    transposed = gradients(smooth, list(xs), list(stand_ins)) if smooth else []
    pairs = [(g, t) for g, t in zip(transposed, tangents, strict=False) if g is not None]
    found = iter(dense_gradients([g for g, _ in pairs], stand_ins, [t for _, t in pairs]))
    return [next(found) if is_inexact(y.dtype) else call("zeros_like", y) for y in ys]


def curvature_along(slopes: Sequence[Tensor | None], xs: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor]:
    """The Hessian times the tangents, of the gradients ``slopes`` with respect to ``xs``; zeros where there is none.

    The gradient of <slopes, tangents>, or, of a scan, whose steps back would go back once more, the derivative of
    the slopes along the tangents: that is carried along with them.
    """
    pairs = [(g, t) for g, t in zip(slopes, tangents, strict=True) if g is not None]
    found = [g for g, _ in pairs]
    if not any(isinstance(op.opdef.kind, Control) and op.type == "scan" for op in operations_between(xs, found)):
        return dense_gradients(found, xs, [t for _, t in pairs])
    products = iter(along(found, xs, tangents))
    return [call("zeros_like", x) if g is None else next(products) for g, x in zip(slopes, xs, strict=True)]
