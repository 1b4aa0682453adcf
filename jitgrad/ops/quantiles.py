"""Quantiles, with NaN or without: elements of sorted lines and what lies between them; no op is defined
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.errors import DTypeError, ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, build, dtype_refusal, refuse_options, where
from jitgrad.spec import normalize_axes

Places = Callable[[Any, Any], Any]


def _with_plotting_positions(alpha: float, beta: float) -> Places:
    return lambda n, q: n * q + (alpha + q * (1 - alpha - beta)) - 1


# Where a level lies among n sorted elements, by Hyndman and Fan (1996): between two of them,
_BETWEEN: dict[str, Places] = {
    "linear": lambda n, q: (n - 1) * q,
    "interpolated_inverted_cdf": _with_plotting_positions(0, 1),
    "hazen": _with_plotting_positions(0.5, 0.5),
    "weibull": _with_plotting_positions(0, 0),
    "median_unbiased": _with_plotting_positions(1 / 3.0, 1 / 3.0),
    "normal_unbiased": _with_plotting_positions(3 / 8.0, 3 / 8.0),
    "averaged_inverted_cdf": lambda n, q: n * q - 1,
    "midpoint": lambda n, q: (n - 1) * q,
}
# or at one.
_AT: dict[str, Places] = {
    "lower": lambda n, q: np.floor((n - 1) * q),
    "higher": lambda n, q: np.ceil((n - 1) * q),
    "nearest": lambda n, q: np.round((n - 1) * q),
    "inverted_cdf": lambda n, q: np.ceil(n * q - 1),
    "closest_observation": lambda n, q: _nearest_odd(n * q - 1.5),
}
# What becomes of the share of the upper neighbour where it is not as far as the place is from the lower one.
_SHARES: dict[str, Callable[[Any], Any]] = {
    "averaged_inverted_cdf": lambda share: np.where(share == 0, 0.5, 1.0),
    "midpoint": lambda share: np.where(share == 0, 0.0, 0.5),
}


def _nearest_odd(place: Any) -> Any:
    below = np.floor(place)
    return np.where((place == below) & (below % 2 == 1), below, below + 1)


@function("quantile")
def quantile(
    a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """As numpy.quantile without weights; NaN where there is a NaN, and at a traced ``q`` beyond 0 and 1."""
    refuse_options("quantile", out=out, weights=weights)
    return _quantiles(a, q, axis, method, keepdims, counts_nan=True)


@function("nanquantile")
def nanquantile(
    a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """As numpy.nanquantile without weights; NaN, without a warning, where there is nothing else. Of an empty array
    NumPy gives means, as many for many levels as for one.
    """
    refuse_options("nanquantile", out=out, weights=weights)
    if as_tensor(a).spec.size == 0:
        return build("mean", a, axis, keepdims=bool(keepdims))
    return _quantiles(a, q, axis, method, keepdims, counts_nan=False)


@function("percentile")
def percentile(a: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    """As numpy.percentile: the quantiles at ``q / 100``."""
    return quantile(a, _hundredths(q), *args, **kwargs)


@function("nanpercentile")
def nanpercentile(a: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    """As numpy.nanpercentile: the quantiles at ``q / 100`` of what is a number."""
    return nanquantile(a, _hundredths(q), *args, **kwargs)


def _hundredths(q: Any) -> Any:
    return q / 100 if isinstance(q, int | float | Tensor) else np.true_divide(q, 100)


@function("nanmedian")
def nanmedian(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    """As numpy.nanmedian: the middle of what is a number; NaN, without a warning, where there is nothing else."""
    refuse_options("nanmedian", out=out)
    if as_tensor(a).spec.size == 0:
        return build("mean", a, axis, keepdims=bool(keepdims))
    lower, upper = (nanquantile(_float(a), 0.5, axis, method=m, keepdims=bool(keepdims)) for m in ("lower", "higher"))
    return 0.5 * lower + 0.5 * upper


def _float(a: Any) -> Tensor:
    x = as_tensor(a)
    return x if x.dtype.kind in "fc" else build("astype", x, np.float64)


def _quantiles(a: Any, q: Any, axis: Any, method: str, keepdims: bool, counts_nan: bool) -> Any:
    if method not in _BETWEEN and method not in _AT:
        raise ValueError(f"method must be one of {', '.join((*_BETWEEN, *_AT))}, got {method!r}")
    x = as_tensor(a)
    if method in _BETWEEN and x.dtype.kind == "b":
        raise dtype_refusal(f"quantiles by the method {method!r} do not take bool", (x,))
    x = x if method in _AT else _float(x)
    if x.dtype.kind == "c":
        raise DTypeError(f"quantiles are of real numbers, got {x.spec}")
    levels = _levels(q)
    axes = normalize_axes(axis, x.ndim)
    kept = [k for k in range(x.ndim) if k not in axes]
    ordered = build("sort", _last_axis(x, kept, axes), -1)
    found = _of_sorted(ordered, levels.ravel(), method, isinstance(q, int | float), counts_nan)
    shape = [1 if k in axes else n for k, n in enumerate(x.spec.known_shape)]
    front = build("moveaxis", found, -1, 0)
    return build("reshape", front, (*levels.shape, *(shape if keepdims else [shape[k] for k in kept])))


def _levels(q: Any) -> Any:
    """The levels as floats; of a tensor those that are levels, and NaN."""
    if isinstance(q, Tensor):
        t = _float(q)
        return where((t >= 0) & (t <= 1), t, np.full((), np.nan, t.dtype))
    levels = np.asarray(q)
    levels = levels if levels.dtype.kind == "f" else levels.astype(np.float64)
    if not np.all((levels >= 0) & (levels <= 1)):
        raise ValueError("Quantiles must be in the range [0, 1]")
    return levels


def _last_axis(x: Tensor, kept: list[int], axes: tuple[int, ...]) -> Tensor:
    moved = build("transpose", x, (*kept, *axes))
    shape = moved.spec.known_shape
    lines, count = shape[: len(kept)], math.prod(shape[len(kept) :])
    if not count:
        raise ShapeError("a quantile of no elements has no value")
    return build("reshape", moved, (*lines, count))


def _of_sorted(ordered: Tensor, levels: Any, method: str, is_weak: bool, counts_nan: bool) -> Any:
    """The quantiles of lines that are sorted, NaN last, along a new last axis. Levels that are ``is_weak``, Python's,
    give way to the dtype of the elements.
    """
    has_nan = ordered.dtype.kind == "f"
    n: Any = ordered.shape[-1]
    if not counts_nan and has_nan:
        n = build("sum", build("astype", ordered == ordered, levels.dtype), -1, keepdims=True)
    if method in _AT:
        found = _taken(ordered, _AT[method](n, levels), n)
    else:
        found = _between(ordered, _BETWEEN[method](n, levels), n, _SHARES.get(method), is_weak)
    if not has_nan:
        return found
    nan = np.full((), np.nan, found.dtype)
    if isinstance(levels, Tensor):
        found = where(build("isnan", levels), nan, found)
    return where(build("isnan", ordered[..., -1:]), nan, found) if counts_nan else found


def _between(ordered: Tensor, places: Any, n: Any, share_of: Callable[[Any], Any] | None, is_weak: bool) -> Any:
    """The elements at places among ``n``, in between by a straight line."""
    below = np.floor(places)
    share = places - below if share_of is None else share_of(places - below)
    share = share.astype(ordered.dtype) if is_weak else share
    low, high = _taken(ordered, below, n), _taken(ordered, np.where(places < 0, below, below + 1), n)
    rise = high - low
    return where(share >= 0.5, high - rise * (1 - share), low + rise * share)


def _taken(ordered: Tensor, places: Any, n: Any) -> Tensor:
    """The elements at whole places among the first ``n`` of the last axis, or the nearest that there is."""
    at = np.minimum(np.maximum(np.nan_to_num(places), 0), n - 1).astype(np.int64)
    return build("take_along_axis" if isinstance(n, Tensor) else "take", ordered, at, -1)
