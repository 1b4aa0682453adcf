"""Elementwise ops that convert: astype, and the parts of complex numbers (gradients as JAX's)."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Elementwise, Interpreted, Pairs, Params, Specs, define
from jitgrad.operators import call, function
from jitgrad.ops.common import as_tensor, build, shaped_like
from jitgrad.ops.ufunc import from_ufunc
from jitgrad.spec import DType, TensorSpec


def _cast_vjp(g: Tensor, out: Tensor, x: Tensor, *, dtype: DType) -> Any:
    return astype(real(g) if g.dtype.kind == "c" and x.dtype.kind == "f" else g, x.dtype)


cast_op = define(
    "astype",
    infer=lambda specs, params: (TensorSpec(specs[0].shape, params["dtype"]),),
    impl=lambda x, dtype: x.astype(dtype),
    vjp=_cast_vjp,
    kind=Elementwise("cast"),
    infers_partial=True,
)


@function("astype")
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """``x`` converted to ``dtype``, floats to integers towards zero; ``x`` itself when it has that dtype.

    The gradient is converted back; integers and bools carry none.
    """
    t, wanted = as_tensor(x), np.dtype(dtype).newbyteorder("=")
    return t if t.dtype == wanted and not t.is_weak else shaped_like(apply_one(cast_op, t, dtype=wanted), t)


# -- parts of complex numbers --------------------------------------------------------------------------------


def _real_dtype(dtype: DType) -> DType:
    return np.empty(0, dtype).real.dtype


def _infer_part(specs: Specs, params: Params) -> Specs:
    return (TensorSpec(specs[0].shape, _real_dtype(specs[0].dtype)),)


def _real_vjp(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    return astype(g, x.dtype)


def _imag_vjp(g: Tensor, out: Tensor, x: Tensor) -> Any:
    return -1j * g if x.dtype.kind == "c" else None


no_loops = Interpreted("complex numbers have no native form", is_elementwise=True)
real_op = define("real", infer=_infer_part, impl=np.real, vjp=_real_vjp, kind=no_loops, infers_partial=True)
imag_op = define("imag", infer=_infer_part, impl=np.imag, vjp=_imag_vjp, kind=no_loops, infers_partial=True)
conjugate_op = from_ufunc(
    np.conjugate,
    lambda g, out, x: call("conjugate", g) if x.dtype.kind == "c" else g,
    interpreted="complex numbers have no native form",
)


# -- pairs of real numbers, which compiled programs make of complex ones ------------------------------------------


def _infer_pair(specs: Specs, params: Params) -> Specs:
    """Real and imaginary part of each number along a new last axis."""
    return (TensorSpec((*specs[0].known_shape, 2), _real_dtype(specs[0].dtype)),)


def _infer_complex(specs: Specs, params: Params) -> Specs:
    """The complex numbers that pairs along the last axis are."""
    return (TensorSpec(specs[0].known_shape[:-1], np.result_type(specs[0].dtype, np.complex64)),)


def _complex_of(pairs: Any) -> Any:
    return np.ascontiguousarray(pairs).view(np.result_type(pairs.dtype, np.complex64))[..., 0]


define(
    "pair_of",
    infer=_infer_pair,
    impl=lambda x: np.ascontiguousarray(x[..., None]).view(_real_dtype(x.dtype)),
    kind=Pairs(),
)
def _complex_vjp(g: Tensor, out: Tensor, pairs: Tensor) -> Tensor:
    return build("stack", [real(g), -imag(g)], -1)


complex_of_op = define(
    "complex_of", infer=_infer_complex, impl=_complex_of, vjp=_complex_vjp, kind=Pairs()
)


@function("complex_of_parts")
def complex_of_parts(real: Tensor, imag: Tensor) -> Tensor:
    """The complex numbers of two real tensors of one shape: ``real + 1j * imag``, which would give NaN for infinite
    parts, and lose signs of zeros.
    """
    return apply_one(complex_of_op, build("stack", [real, imag], -1))


@function("conjugate")
def conjugate(x: Any) -> Tensor:
    """As numpy.conjugate; a copy of a real tensor, of a bool one in int8."""
    t = as_tensor(x)
    if t.dtype.kind == "b":
        return call("astype", t, np.int8)  # type: ignore[no-any-return]
    return apply_one(conjugate_op, t) if t.dtype.kind == "c" else call("copy", t)


@function("ndarray.conj")
def conj(x: Any) -> Tensor:
    """As the method numpy.ndarray.conj, to which real is what is not complex, booleans too; but a copy."""
    return call("copy", x) if as_tensor(x).dtype.kind == "b" else conjugate(x)


@function("real")
def real(val: Any) -> Tensor:
    """As numpy.real; a real tensor itself."""
    x = as_tensor(val)
    return apply_one(real_op, x) if x.dtype.kind == "c" else x


@function("imag")
def imag(val: Any) -> Tensor:
    """As numpy.imag; zeros for a real tensor."""
    x = as_tensor(val)
    return apply_one(imag_op, x) if x.dtype.kind == "c" else call("zeros_like", x)


@function("angle")
def angle(z: Any, deg: bool = False) -> Any:
    """As numpy.angle: the argument of a complex number, pi or 0 for a real one."""
    x = as_tensor(z)
    x = call("astype", x, np.float64) if x.dtype.kind == "b" else x
    radians = call("arctan2", imag(x), real(x))
    return call("rad2deg", radians) if deg else radians


@function("iscomplex")
def iscomplex(x: Any) -> Any:
    """As numpy.iscomplex."""
    return imag(x) != 0


@function("isreal")
def isreal(x: Any) -> Any:
    """As numpy.isreal."""
    return imag(x) == 0
