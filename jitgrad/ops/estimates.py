"""Quantiles and covariances, made of other ops; sums and moments are in statistics, and no op is defined here."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, build, refuse_options, unsupported, where
from jitgrad.spec import normalize_axes, promote


def _float(a: Any) -> Tensor:
    x = as_tensor(a)
    return x if x.dtype.kind in "fc" else build("astype", x, np.float64)


@function("quantile")
def quantile(
    a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """As numpy.quantile with linear interpolation; NaN where there is a NaN, and at a traced ``q`` beyond 0 and 1."""
    refuse_options("quantile", out=out, weights=weights)
    if method != "linear":
        raise unsupported("quantile", f" with method={method!r}")
    x, levels = _float(a), _levels(q)
    x = x if isinstance(q, int | float | np.float32) else build("astype", x, promote(x.dtype, levels.dtype))
    axes = normalize_axes(axis, x.ndim)
    kept = [k for k in range(x.ndim) if k not in axes]
    ordered = build("sort", _last_axis(x, kept, axes), -1)
    found = _between(ordered, levels.ravel())
    found = where(build("isnan", ordered[..., -1:]), np.full((), np.nan, x.dtype), found)
    shape = [1 if k in axes else n for k, n in enumerate(x.spec.known_shape)]
    front = build("moveaxis", found, -1, 0)
    return build("reshape", front, (*levels.shape, *(shape if keepdims else [shape[k] for k in kept])))


def _levels(q: Any) -> Any:
    """The levels in float64; of a tensor those that are levels, and NaN."""
    if isinstance(q, Tensor):
        t = build("astype", q, np.float64)
        return where((t >= 0) & (t <= 1), t, np.full((), np.nan))
    levels = np.asarray(q, dtype=np.float64)
    if not np.all((levels >= 0) & (levels <= 1)):
        raise ValueError("Quantiles must be in the range [0, 1]")
    return levels


def _last_axis(x: Tensor, kept: list[int], axes: tuple[int, ...]) -> Tensor:
    moved = build("transpose", x, (*kept, *axes))
    shape = moved.spec.known_shape
    if 0 in shape[len(kept) :]:
        raise ShapeError("a quantile of no elements has no value")
    return build("reshape", moved, (*shape[: len(kept)], -1))


def _between(ordered: Tensor, levels: Any) -> Any:
    """The elements at the places ``levels * (n - 1)`` of the last axis, in between by a straight line."""
    places = levels * (ordered.shape[-1] - 1)
    below = np.floor(np.nan_to_num(places)).astype(np.int64)
    above = np.minimum(below + 1, ordered.shape[-1] - 1)
    low, high = (build("take", ordered, at, -1) for at in (below, above))
    share = (places - below).astype(ordered.dtype)
    rise = high - low
    return where(share >= 0.5, high - rise * (1 - share), low + rise * share)


@function("percentile")
def percentile(a: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    """As numpy.percentile: the quantiles at ``q / 100``."""
    levels = q / 100 if isinstance(q, int | float | Tensor) else np.true_divide(q, 100)
    return quantile(a, levels, *args, **kwargs)


@function("cov")
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
    fweights: Any = None, aweights: Any = None, *, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """As numpy.cov without weights: the covariances of the rows (columns for ``rowvar=False``)."""
    refuse_options("cov", fweights=fweights, aweights=aweights)
    x = _variables(m, rowvar)
    x = x if y is None else build("concatenate", [x, _variables(y, rowvar)], 0)
    x = build("astype", x, promote(x.dtype, np.dtype(np.float64)) if dtype is None else dtype)
    freedom = x.shape[1] - (int(not bias) if ddof is None else ddof)
    centred = x - build("mean", x, axis=1, keepdims=True)
    return build("squeeze", build("matmul", centred, build("conjugate", build("transpose", centred))) / freedom)


def _variables(m: Any, rowvar: bool) -> Tensor:
    x = build("atleast_2d", _float(m))
    if x.ndim > 2:
        raise ShapeError(f"cov needs at most two dimensions, got {x.spec}")
    return x if rowvar or as_tensor(m).ndim == 1 else build("transpose", x)


@function("corrcoef")
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """As numpy.corrcoef: covariances divided by both standard deviations, kept within -1 and 1."""
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    deviation = build("sqrt", call("diagonal", c))
    return build("clip", c / deviation[:, None] / deviation[None, :], -1, 1)
