"""What compiled programs make of solutions, inverses and determinants: one factorization, and what takes its factors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import lapack
from jitgrad.opdef import Library, Params, Specs, define
from jitgrad.spec import TensorSpec


def _infer_lu(specs: Specs, params: Params) -> Specs:
    """Both factors in one matrix, in double precision, and the rows exchanged, int64: as `lapack.factor` has them."""
    shape = specs[0].known_shape
    return TensorSpec(shape, lapack.DOUBLE[specs[0].dtype.char]), TensorSpec(shape[:-1], np.dtype(np.int64))


def _infer_lu_det(specs: Specs, params: Params) -> Specs:
    return (TensorSpec(specs[1].known_shape[:-1], params["dtype"]),)


def _infer_lu_slogdet(specs: Specs, params: Params) -> Specs:
    (spec,) = _infer_lu_det(specs, params)
    return spec, TensorSpec(spec.shape, np.empty(0, spec.dtype).real.dtype)


def _like_right_sides(specs: Specs, params: Params) -> Specs:
    return (specs[-1],)


def _define_factored(name: str, infer: Callable[[Specs, Params], Specs], impl: Callable[..., Any]) -> None:
    define(name, infer=infer, impl=impl, kind=Library(name))


_define_factored("lu", _infer_lu, lapack.factor)
_define_factored("lu_solve", _like_right_sides, lapack.solve_factored)
_define_factored(
    "lu_inv", lambda specs, params: (TensorSpec(specs[0].shape, params["dtype"]),), lapack.inverse_of_factors
)
_define_factored("lu_det", _infer_lu_det, lapack.det_of_factors)
_define_factored("lu_slogdet", _infer_lu_slogdet, lapack.slogdet_of_factors)
_define_factored("solve_turned", _like_right_sides, functools.partial(lapack.solve_triangular, transposed=True))
