"""Maxima and means over sliding windows, in torch's arguments."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.convolution import is_channels_last
from jitgrad.graph import Tensor, apply_one
from jitgrad.lifting import of_arrays
from jitgrad.operators import call
from jitgrad.ops.holding import largest_op, total_op
from jitgrad.windows import Windows, as_batch, each_axis, padding_pairs, seen, stacked, windows_over

_MOST_TAPS = 32


def _prepared(
    name: str, rank: int, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
    data_format: str | None,
) -> tuple[Tensor, int, Windows, bool]:  # fmt: skip
    """The input with examples, the first axis of the windows, these, and whether the input had no axis of examples."""
    t, was_one = as_batch(name, x, rank + 2)
    first = 1 if is_channels_last(data_format, rank) else 2
    kernel = each_axis("kernel_size", kernel_size, rank, 1)
    steps = kernel if stride is None else stride
    if not isinstance(padding, str):
        _refuse_wide(padding, kernel)
    return t, first, windows_over(t, first, kernel, steps, padding, dilation, ceil_mode), was_one


def _refuse_wide(padding: Any, kernel: Sequence[int]) -> None:
    """ValueError for padding of more than half a window, as in torch: a window could lie in it as a whole."""
    pairs = padding_pairs(padding, kernel, kernel, kernel)
    if any(2 * max(pair) > k for pair, k in zip(pairs, kernel, strict=True)):
        raise ValueError(f"padding may be at most half of kernel_size, got padding={padding!r} for {tuple(kernel)}")


def _is_gathered(windows: Windows) -> bool:
    """Whether elements look at the windows that hold them: few, of few elements, which lie side by side."""
    return max(windows.dilation) == 1 and len(windows.taps) <= _MOST_TAPS


def _geometry(windows: Windows, first: int) -> dict[str, Any]:
    before = tuple(low for low, _ in windows.padding)
    return {"first": first, "extents": windows.extents, "kernel": windows.kernel, "stride": windows.stride,
            "before": before}  # fmt: skip


def _max_pool(name: str, rank: int, x: Any, *arguments: Any) -> Any:
    t, first, windows, was_one = _prepared(name, rank, x, *arguments)
    if _is_gathered(windows):
        seen_there = seen(t, first, windows, -math.inf)
        found = functools.reduce(lambda a, b: call("maximum", a, b), seen_there)
        out = apply_one(largest_op, found, t, *seen_there, **_geometry(windows, first))
    else:
        out = call("max", stacked(t, first, windows, -math.inf), axis=2 if first == 2 else -2)
    return call("squeeze", out, 0) if was_one else out


@of_arrays(1)
def max_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    data_format: str | None = None,
) -> Any:  # fmt: skip
    """The largest element of each window along one axis of (N, C, W) or (C, W); arguments as ``max_pool2d``."""
    return _max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, data_format)


@of_arrays(1)
def max_pool2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    data_format: str | None = None,
) -> Any:  # fmt: skip
    """The largest element of each window, as torch.nn.functional.max_pool2d; padding is smaller than any number.

    ``input`` is (N, C, H, W) or (C, H, W), with ``data_format="NHWC"`` (N, H, W, C) or (H, W, C). ``stride`` None is
    the window's size. ``padding`` as in ``conv2d``; ``ceil_mode`` adds windows that reach over the end. Equal largest
    elements share the gradient.
    """
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, data_format)


def _avg_pool(
    name: str, rank: int, x: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None, data_format: str | None,
) -> Any:  # fmt: skip
    t, first, windows, was_one = _prepared(name, rank, x, kernel_size, stride, padding, 1, ceil_mode, data_format)
    if divisor_override is not None and divisor_override < 1:
        raise ValueError(f"divisor_override must be at least 1, got {divisor_override}")
    if _is_gathered(windows):
        found = functools.reduce(operator.add, seen(t, first, windows))
        total = apply_one(total_op, found, t, **_geometry(windows, first))
    else:
        total = call("sum", stacked(t, first, windows), axis=2 if first == 2 else -2)
    counts = divisor_override or _counts(windows, _asked_padding(windows, padding, count_include_pad))
    if isinstance(counts, np.ndarray):
        counts = counts.reshape(*counts.shape, *[1] * (t.ndim - first - rank)).astype(t.dtype)
    out = total / counts
    return call("squeeze", out, 0) if was_one else out


def _asked_padding(windows: Windows, padding: Any, is_counted: bool) -> list[tuple[int, int]]:
    """The padding whose elements count: that asked for, not what ``ceil_mode`` adds."""
    if not is_counted:
        return [(0, 0)] * len(windows.kernel)
    return list(padding_pairs(padding, windows.extents, windows.kernel, windows.stride))


def _counts(windows: Windows, counted: list[tuple[int, int]]) -> Any:
    """How many elements of each window count: an array, or one number where it is the same for all."""
    counts: Any = np.ones((), int)
    for axis, n in enumerate(windows.extents):
        starts = np.arange(windows.counts[axis]) * windows.stride[axis] - windows.padding[axis][0]
        low, high = counted[axis]
        inside = np.minimum(starts + windows.kernel[axis], n + high) - np.maximum(starts, -low)
        counts = np.multiply.outer(counts, inside)
    return int(counts.flat[0]) if counts.size and np.all(counts == counts.flat[0]) else counts


@of_arrays(1)
def avg_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, data_format: str | None = None,
) -> Any:  # fmt: skip
    """The mean of each window along one axis of (N, C, W) or (C, W); arguments as ``avg_pool2d``."""
    return _avg_pool(
        "avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override,
        data_format,
    )  # fmt: skip


@of_arrays(1)
def avg_pool2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, data_format: str | None = None,
) -> Any:  # fmt: skip
    """The mean of each window, as torch.nn.functional.avg_pool2d; arguments as ``max_pool2d``.

    Zeros of the padding count unless ``count_include_pad`` is False; ``divisor_override`` divides in place of the
    count.
    """
    return _avg_pool(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override,
        data_format,
    )
