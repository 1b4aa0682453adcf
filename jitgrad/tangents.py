"""Derivatives along tangents in a graph: the transpose of the transpose; built of gradients(), it runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.gradients import gradients
from jitgrad.graph import Tensor
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
