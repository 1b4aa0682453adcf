"""Polynomials by their coefficients, that of the highest power first; no op is defined here.

Leading zeros stay where they are: how many there are is known by their values alone.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, as_tensors, build, common_dtype, unsupported
from jitgrad.spec import promote


@function("polyval")
def polyval(p: Any, x: Any) -> Any:
    """As numpy.polyval, by Horner's rule: the first coefficient is that of the highest power."""
    if isinstance(p, Tensor):
        coefficients = list(build("atleast_1d", p))
    else:
        is_traced = isinstance(p, list | tuple) and any(isinstance(c, Tensor) for c in p)
        coefficients = list(p if is_traced else np.atleast_1d(p))
    out: Any = build("zeros_like", as_tensor(x))
    for c in coefficients:
        out = call("add", call("multiply", out, x), c)
    return out


def _of_one_length(*polynomials: Any) -> list[Tensor]:
    dtype = common_dtype(*polynomials)
    given = [build("atleast_1d", as_tensor(p, dtype)) for p in as_tensors(*polynomials)]
    length = max(p.spec.size for p in given)
    return [build("pad", p, ((length - p.spec.size, 0),)) for p in given]


@function("polyadd")
def polyadd(a1: Any, a2: Any) -> Any:
    """As numpy.polyadd."""
    return call("add", *_of_one_length(a1, a2))


@function("polysub")
def polysub(a1: Any, a2: Any) -> Any:
    """As numpy.polysub."""
    return call("subtract", *_of_one_length(a1, a2))


@function("polymul")
def polymul(a1: Any, a2: Any) -> Tensor:
    """As numpy.polymul, with as many coefficients as there are without leading zeros."""
    return build("convolve", a1, a2)


@function("polyder")
def polyder(p: Any, m: int = 1) -> Tensor:
    """As numpy.polyder: the coefficients of the m-th derivative."""
    x = as_tensor(p)
    if operator.index(m) < 0:
        raise ValueError(f"polyder takes an order from 0 on, got {m}: polyint integrates")
    for _ in range(m):
        x = x[:-1] * np.arange(x.spec.size - 1, 0, -1)
    return x


@function("polyint")
def polyint(p: Any, m: int = 1, k: Any = None) -> Tensor:
    """As numpy.polyint: the coefficients of the m-th integral, ``k`` the constants of integration."""
    x = as_tensor(p)
    constants = build("atleast_1d", as_tensors(0.0 if k is None else k, x)[0])
    if operator.index(m) < 0:
        raise ValueError(f"polyint takes an order from 0 on, got {m}: polyder differentiates")
    if constants.spec.size not in (1, m):
        raise ValueError(f"polyint takes one constant of integration or m = {m}, got {constants.spec.size}")
    for step in range(m):
        x = x / np.arange(x.spec.size, 0, -1)
        x = build("concatenate", [x, constants[step : step + 1] if constants.spec.size > 1 else constants])
    return x


@function("polyfit")
def polyfit(
    x: Any, y: Any, deg: Any, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False
) -> Any:
    """As numpy.polyfit, the coefficients alone: least squares of powers of ``x``, scaled to one length."""
    if full or cov or np.ndim(deg):
        raise unsupported("polyfit", " with full=, cov= or several degrees")
    order = operator.index(deg) + 1
    if order < 1:
        raise ValueError(f"polyfit takes a degree from 0 on, got {deg}")
    dtype = promote(common_dtype(x, y), np.dtype(np.float64))
    places, values = (as_tensor(t, dtype) for t in as_tensors(x, y))
    if places.ndim != 1 or values.ndim not in (1, 2) or values.shape[0] != places.shape[0]:
        raise ShapeError(f"polyfit needs a vector x and as many values y, got {places.spec} and {values.spec}")
    if not places.spec.size:
        raise ShapeError("polyfit of no points has no value")
    powers = build("vander", places, order)
    if w is not None:
        weights = as_tensor(w, dtype, places.graph)
        if weights.shape != places.shape:
            raise ShapeError(f"polyfit takes one weight for each of {places.shape[0]} points, got {weights.spec}")
        powers = powers * weights[:, None]
        values = values * (weights[:, None] if values.ndim == 2 else weights)
    scale = build("sqrt", build("sum", powers * powers, 0))
    cutoff = places.spec.size * np.finfo(dtype).eps if rcond is None else rcond
    found: Any = call("linalg.lstsq", powers / scale, values, cutoff)[0]
    return found / (scale[:, None] if values.ndim == 2 else scale)
