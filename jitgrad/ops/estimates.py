"""Covariances and correlations, made of other ops; sums and moments are in statistics, and no op is defined here."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, at_least_zero, build
from jitgrad.spec import promote


def _float(a: Any) -> Tensor:
    x = as_tensor(a)
    return x if x.dtype.kind in "fc" else build("astype", x, np.float64)


@function("cov")
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
    fweights: Any = None, aweights: Any = None, *, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """As numpy.cov: the covariances of the rows (columns for ``rowvar=False``). Weights are counts or numbers per
    observation.
    """
    x = _variables(m, rowvar)
    x = x if y is None else build("concatenate", [x, _variables(y, rowvar)], 0)
    x = build("astype", x, promote(x.dtype, np.dtype(np.float64)) if dtype is None else dtype)
    lost = _degrees(bias, ddof)
    weights = _weights(x, fweights, aweights)
    mean, freedom = _moments(x, weights, aweights, lost)
    centred = x - mean
    other = build("conjugate", build("transpose", centred if weights is None else centred * weights))
    return build("squeeze", build("matmul", centred, other) / at_least_zero(freedom))


def _degrees(bias: bool, ddof: Any) -> int:
    """How many degrees of freedom are lost; where none is left, covariances are infinite or NaN."""
    if ddof is not None and ddof != int(ddof):
        raise ValueError(f"cov takes an integer for ddof, got {ddof!r}")
    return int(not bias) if ddof is None else int(ddof)


def _weights(x: Tensor, fweights: Any, aweights: Any) -> Any:
    """The weight of each observation; None where all count alike."""
    given = [build("astype", as_tensor(w), x.dtype) for w in (fweights, aweights) if w is not None]
    for w in given:
        if w.shape != x.shape[1:]:
            raise ShapeError(f"cov takes one weight for each of {x.shape[1]} observations, got {w.spec}")
    return given[0] * given[1] if len(given) == 2 else given[0] if given else None


def _moments(x: Tensor, weights: Any, aweights: Any, lost: Any) -> tuple[Any, Any]:
    """The mean, and what the sum of products is divided by: the weights less the degrees ``lost``."""
    if weights is None:
        return build("mean", x, axis=1, keepdims=True), x.shape[1] - lost
    total = build("sum", weights)
    mean = build("sum", x * weights, axis=1, keepdims=True) / total
    if aweights is None or lost == 0:
        return mean, total - lost
    return mean, total - lost * build("sum", weights * as_tensor(aweights)) / total


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
