"""scipy.fft: discrete Fourier transforms of traced values by the ops of NumPy's names; cosine transforms are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.operators import functions
from jitgrad.scipy.lifting import like_scipy, rest_of

_ALONG_ONE = ("fft", "hfft", "ifft", "ihfft", "irfft", "rfft")
_ALONG_SEVERAL = ("fft2", "fftn", "ifft2", "ifftn", "irfft2", "irfftn", "rfft2", "rfftn")
_SHIFTS = ("fftshift", "ifftshift")
__all__ = [*_ALONG_ONE, *_ALONG_SEVERAL, *_SHIFTS]


def _along_one(name: str) -> Callable[..., Any]:
    def transform(
        x: Any, n: int | None = None, axis: int = -1, norm: str | None = None, overwrite_x: bool = False,
        workers: int | None = None,
    ) -> Any:  # fmt: skip
        return functions[f"fft.{name}"](x, n, axis, norm)

    return _named(transform, name)


def _along_several(name: str) -> Callable[..., Any]:
    default = (-2, -1) if name.endswith("2") else None

    def transform(
        x: Any, s: Any = None, axes: Any = default, norm: str | None = None,
        overwrite_x: bool = False, workers: int | None = None,
    ) -> Any:  # fmt: skip
        return functions[f"fft.{name}"](x, s, axes, norm)

    return _named(transform, name)


def _shift(name: str) -> Callable[..., Any]:
    def shift(x: Any, axes: Any = None) -> Any:
        return functions[f"fft.{name}"](x, axes)

    return _named(shift, name)


def _named(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"As scipy.fft.{name}."
    return like_scipy("fft")(fn)


fft, hfft, ifft, ihfft, irfft, rfft = map(_along_one, _ALONG_ONE)
fft2, fftn, ifft2, ifftn, irfft2, irfftn, rfft2, rfftn = map(_along_several, _ALONG_SEVERAL)
fftshift, ifftshift = map(_shift, _SHIFTS)

__getattr__, __dir__ = rest_of("fft", globals())
