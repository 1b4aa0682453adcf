"""Cotangents that a walk begins with: grad_ys, ones where there are none, and zeros for outputs that have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad import operators
from jitgrad.errors import DTypeError, JitgradError, ShapeError, layout
from jitgrad.graph import Tensor
from jitgrad.opdef import Control
from jitgrad.sources import operation_text
from jitgrad.spec import DType, is_compatible, is_inexact


def listed_seeds(targets: Sequence[Tensor], grad_ys: Any) -> list[Any]:
    """An entry per target, None where there is none. ValueError for another number."""
    if grad_ys is None:
        return [None] * len(targets)
    seeds = list(grad_ys if isinstance(grad_ys, list | tuple) else [grad_ys])
    if len(seeds) != len(targets):
        raise ValueError(f"grad_ys has {len(seeds)} entries for {len(targets)} ys")
    return seeds


def seed_of(y: Tensor, g: Any) -> Tensor:
    """What is given as the cotangent of ``y``, a tensor of its dtype; ones for None.

    DTypeError and ShapeError where it does not fit, where ``y`` carries no gradient, and for a complex ``y`` without.
    """
    if not is_inexact(y.dtype):
        raise DTypeError(
            layout(f"{y.name!r} of dtype {y.dtype.name} carries no gradient", op=operation_text(y.op),
                   hint="convert it to a float dtype, or leave it out")
        )  # fmt: skip
    if g is None:
        return _ones(y)
    return fitting("grad_ys", as_symbol(g, y), y)


def _ones(y: Tensor) -> Tensor:
    if y.dtype.kind == "c":
        raise DTypeError(layout(f"{y.name!r} is {y.dtype.name}: gradients of complex ys need grad_ys",
                                op=operation_text(y.op), hint="give grad_ys, or take .real of it"))  # fmt: skip
    return operators.call("ones_like", y)  # type: ignore[no-any-return]


def as_symbol(g: Any, y: Tensor) -> Tensor:
    """What is given for ``y``, as a tensor of the same graph."""
    g = g.as_graph_element() if hasattr(g, "as_graph_element") else g
    is_symbol = isinstance(g, Tensor)
    if not is_symbol and (dtype := np.asarray(g).dtype).kind not in "biufc":
        raise DTypeError(layout(f"grad_ys of {y.name!r} does not fit: {dtype} for {y.dtype.name}", expected=y.spec,
                                got=repr(g), op=operation_text(y.op)))  # fmt: skip
    found: Any = y.graph.as_graph_element(g) if is_symbol else operators.call("constant", g, graph=y.graph)
    return found  # type: ignore[no-any-return]


def fitting(what: str, tensor: Tensor, y: Tensor) -> Tensor:
    """The tensor in the dtype of ``y``; an error that names ``what`` it is given as where it does not fit."""
    error = _misfit(tensor, y)
    if error is not None:
        fields = {"expected": y.spec, "got": tensor.spec, "op": operation_text(y.op)}
        why = "another shape" if error is ShapeError else f"{tensor.dtype.name} for {y.dtype.name}"
        raise error(layout(f"{what} of {y.name!r} does not fit: {why}", **fields))
    return tensor if tensor.dtype == y.dtype else operators.call("astype", tensor, y.dtype)


def _misfit(seed: Tensor, y: Tensor) -> type[JitgradError] | None:
    """What is wrong with a seed: its dtype or another shape; None: nothing."""
    if not is_number_for(seed.dtype, y.dtype):
        return DTypeError
    return None if is_compatible(seed.shape, y.shape) else ShapeError


def is_number_for(dtype: DType, of: DType) -> bool:
    """Whether values of a dtype can be cotangents or tangents of those of another: numbers, real ones for real ones."""
    return dtype.kind in ("fiuc" if of.kind == "c" else "fiu")


def missing_seed(t: Tensor) -> Tensor | None:
    """Zeros for an output that no y depends on; None when its dtype carries none, and for a graph function, whose
    gradient is that of the other outputs alone.
    """
    kind = t.op.opdef.kind
    is_function = isinstance(kind, Control) and kind.form == "function"
    return operators.call("zeros_like", t) if is_inexact(t.dtype) and not is_function else None
