"""Discrete Fourier transforms: ops along one axis, and NumPy's functions made of them.

The matrix of a transform is symmetric, so its transpose is the transform itself, and so is its gradient. Those of real
numbers, which are half the work, are the gradients of one another, but for conjugates and weights: a frequency other
than 0 and n/2 stands for itself and for its negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import bare
from jitgrad.errors import DTypeError
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Interpreted, Library, Params, Specs, define
from jitgrad.operators import function, functions
from jitgrad.ops.common import as_tensor, build, same_spec
from jitgrad.spec import TensorSpec, normalize_axis

_NO_POINTS = "a Fourier transform needs at least 1 point, got {}"
_SINGLE = (np.float16, np.float32, np.complex64)


def _fft_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int, inverse: bool) -> Tensor:
    return apply_one(fft_op, g, axis=axis, inverse=inverse)


fft_op = define(
    "fft",
    infer=same_spec,
    impl=bare.fft,
    bound=lambda params, specs: bare.ready_fft(specs[0].dtype, specs[0].known_shape, **params),
    vjp=_fft_vjp,
    kind=Interpreted("Fourier transforms are NumPy's"),
)


def _halved(specs: Specs, params: Params) -> Specs:
    """The frequencies of so many real numbers, from 0 to n // 2."""
    (spec,), axis = specs, params["axis"]
    shape = list(spec.known_shape)
    shape[axis] = shape[axis] // 2 + 1
    return (TensorSpec(tuple(shape), np.result_type(spec.dtype, np.complex64)),)


def _doubled(specs: Specs, params: Params) -> Specs:
    """So many real numbers as a transform is asked for."""
    (spec,), axis = specs, params["axis"]
    shape = list(spec.known_shape)
    shape[axis] = params["n"]
    return (TensorSpec(tuple(shape), np.empty(0, spec.dtype).real.dtype),)


def _weights(n: int, of: Tensor, axis: int) -> Any:
    """How often each frequency from 0 to n // 2 stands in a transform of n points, along an axis."""
    weights = np.full(n // 2 + 1, 2.0, np.empty(0, of.dtype).real.dtype)
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    return weights.reshape(-1, *[1] * (-1 - axis))


def _rfft_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int, divided: bool) -> Any:
    n = x.spec.known_shape[axis]
    half = build("conjugate", g) * (1 / _weights(n, g, axis))
    return apply_one(irfft_op, half, n=n, axis=axis, divided=divided)


def _irfft_vjp(g: Tensor, out: Tensor, x: Tensor, *, n: int, axis: int, divided: bool) -> Any:
    half = apply_one(rfft_op, g, axis=axis, divided=divided)
    return build("conjugate", half) * _weights(n, half, axis)


rfft_op = define(
    "rfft",
    infer=_halved,
    impl=bare.rfft,
    bound=lambda params, specs: bare.ready_rfft(specs[0].dtype, specs[0].known_shape, **params),
    vjp=_rfft_vjp,
    kind=Interpreted("Fourier transforms are NumPy's"),
)

irfft_op = define(
    "irfft",
    infer=_doubled,
    impl=bare.irfft,
    bound=lambda params, specs: bare.ready_irfft(specs[0].dtype, specs[0].known_shape, **params),
    vjp=_irfft_vjp,
    kind=Interpreted("Fourier transforms are NumPy's"),
)
"""The sum over all frequencies, divided by the number of points where that is asked for, as with ``rfft``: the
transform does it with its last sums, where a multiplication behind it is a call of its own.
"""


# -- along the last axis, of pairs of real numbers, which compiled programs make of the ops above ----------------------


def _numbers(pairs: Any) -> Any:
    """The complex numbers that pairs along the last axis are."""
    return np.ascontiguousarray(pairs).view(np.result_type(pairs.dtype, np.complex64))[..., 0]


def _pairs(numbers: Any) -> Any:
    """The pairs of complex numbers."""
    return numbers[..., None].view(numbers.real.dtype)


def _infer_pairs_rfft(specs: Specs, params: Params) -> Specs:
    *rows, n = specs[0].known_shape
    return (TensorSpec((*rows, n // 2 + 1, 2), specs[0].dtype),)


define(
    "pairs_fft",
    infer=same_spec,
    impl=lambda x, inverse: _pairs(bare.fft(_numbers(x), -1, inverse)),
    kind=Library("pairs_fft"),
)
define(
    "pairs_rfft",
    infer=_infer_pairs_rfft,
    impl=lambda x, divided: _pairs(bare.rfft(x, -1, divided)),
    kind=Library("pairs_rfft"),
)
define(
    "pairs_irfft",
    infer=lambda specs, params: (TensorSpec(params["shape"], specs[0].dtype),),
    impl=lambda x, shape, divided: bare.irfft(_numbers(x), shape[-1], -1, divided),
    kind=Library("pairs_irfft"),
)


def _complex(x: Any) -> Tensor:
    t = as_tensor(x)
    return as_tensor(t, np.dtype(np.complex64 if t.dtype in _SINGLE else np.complex128))


def _resized(x: Tensor, n: int | None, axis: int) -> Tensor:
    """Cut off, or with zeros behind, along an axis that counts from the end; as it is without a number of points."""
    have = x.spec.known_shape[axis]
    n = have if n is None else n
    if n < 1:
        raise ValueError(_NO_POINTS.format(n))
    if n < have:
        kept = [slice(None)] * x.ndim
        kept[axis] = slice(n)
        return x[tuple(kept)]  # type: ignore[no-any-return]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, n - have)
    return build("pad", x, widths) if n > have else x


def _factor(n: int, norm: str | None, inverse: bool) -> float:
    """What a transform of ``n`` points is multiplied with, beside the 1/n of an inverse one."""
    powers = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}
    if norm not in powers:
        raise ValueError(f'norm must be "backward", "ortho" or "forward", got {norm!r}')
    return float(n ** (powers[norm] if inverse else -powers[norm]))


def _transformed(x: Any, n: int | None, axis: int, norm: str | None, inverse: bool) -> Tensor:
    t = _complex(x)
    along = normalize_axis(axis, t.ndim) - t.ndim
    t = _resized(t, n, along)
    return _scaled(
        apply_one(fft_op, t, axis=along, inverse=inverse), _factor(t.spec.known_shape[along], norm, inverse)
    )


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else build("multiply", x, factor)


@function("fft.fft")
def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """``out[k] = sum_j a[j] exp(-2 pi i j k / n)``, complex."""
    return _transformed(a, n, axis, norm, False)


@function("fft.ifft")
def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ``fft``, which divides by n."""
    return _transformed(a, n, axis, norm, True)


@function("fft.rfft")
def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The first ``n // 2 + 1`` terms of ``fft``, of which the others follow for real ``a``."""
    t = as_tensor(a)
    if t.dtype.kind == "c":
        raise DTypeError(f"fft.rfft transforms real numbers, got {t.spec}")
    t = as_tensor(t, np.dtype(np.float32 if t.dtype in _SINGLE else np.float64))
    along = normalize_axis(axis, t.ndim) - t.ndim
    t = _resized(t, n, along)
    factor = _factor(t.spec.known_shape[along], norm, False)
    is_divided = norm == "forward"
    return _scaled(apply_one(rfft_op, t, axis=along, divided=is_divided), 1.0 if is_divided else factor)


@function("fft.irfft")
def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ``rfft``, ``n`` real numbers (as many as are even without it), of float16 such."""
    given = as_tensor(a)
    t = _complex(given)
    along = normalize_axis(axis, t.ndim) - t.ndim
    points = 2 * (t.spec.known_shape[along] - 1) if n is None else n
    if points < 1:
        raise ValueError(_NO_POINTS.format(points))
    factor, is_divided = _factor(points, norm, True), norm in (None, "backward")
    half = _resized(t, points // 2 + 1, along)
    result = apply_one(irfft_op, half, n=points, axis=along, divided=is_divided)
    result = _scaled(result, 1.0 if is_divided else factor / points)
    return as_tensor(result, given.dtype) if given.dtype == np.float16 else result


@function("fft.hfft")
def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """``fft`` of what is the conjugate of itself turned round, given by its first half: real."""
    return irfft(build("conjugate", as_tensor(a)), n, axis, _SWAPPED[norm])


@function("fft.ihfft")
def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of ``hfft``."""
    return build("conjugate", rfft(a, n, axis, _SWAPPED[norm]))


_SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


# -- several axes ----------------------------------------------------------------------------------------------------


def _axes(x: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None) -> list[tuple[int | None, int]]:
    """Pairs of points and axis, the last one first."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    points: Sequence[int | None] = [None] * len(axes) if s is None else [None if n == -1 else n for n in s]
    return list(zip(points, axes, strict=True))[::-1]


def _define_several(name: str, each: Callable[..., Tensor], default: tuple[int, int] | None) -> None:
    def transform(
        a: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = default, norm: str | None = None
    ) -> Tensor:
        out = as_tensor(a)
        for n, axis in _axes(out, s, axes):
            out = each(out, n, axis, norm)
        return out

    transform.__doc__ = f"As numpy.fft.{name}: along one axis after the other."
    functions[f"fft.{name}"] = transform


def _define_several_real(name: str, default: tuple[int, int] | None, inverse: bool) -> None:
    def transform(
        a: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = default, norm: str | None = None
    ) -> Tensor:
        out = as_tensor(a)
        (n, axis), *rest = _axes(out, s, axes)
        out = out if inverse else rfft(out, n, axis, norm)
        for m, other in rest:
            out = (ifft if inverse else fft)(out, m, other, norm)
        return irfft(out, n, axis, norm) if inverse else out

    transform.__doc__ = f"As numpy.fft.{name}: the last axis by half, the others in whole."
    functions[f"fft.{name}"] = transform


for _suffix, _default in (("2", (-2, -1)), ("n", None)):
    _define_several(f"fft{_suffix}", fft, _default)
    _define_several(f"ifft{_suffix}", ifft, _default)
    _define_several_real(f"rfft{_suffix}", _default, inverse=False)
    _define_several_real(f"irfft{_suffix}", _default, inverse=True)


@function("fft.fftshift")
def fftshift(x: Any, axes: int | Sequence[int] | None = None) -> Tensor:
    """The frequency 0 in the middle."""
    return _shifted(x, axes, lambda n: n // 2)


@function("fft.ifftshift")
def ifftshift(x: Any, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of ``fftshift``."""
    return _shifted(x, axes, lambda n: -(n // 2))


def _shifted(x: Any, axes: int | Sequence[int] | None, by: Callable[[int], int]) -> Tensor:
    t = as_tensor(x)
    along = tuple(range(t.ndim)) if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)
    return build("roll", t, tuple(by(t.spec.known_shape[axis]) for axis in along), along)
