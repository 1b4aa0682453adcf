"""Convolutions and their transposes, in torch's arguments: a stack of what windows see, times a matrix of weights.

So a convolution is a kernel that copies and one BLAS product per example (or one for all, for "NHWC"), its gradients
are two products and a sum of windows. Where each channel has weights of its own (``groups`` of one channel) it is a sum
over the window without a stack.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError, layout
from jitgrad.graph import Tensor
from jitgrad.lifting import of_arrays
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.ops.convolving import convolve_windows, weights_turned
from jitgrad.sources import operation_text
from jitgrad.spec import is_compatible, shape_text
from jitgrad.windows import (
    Windows,
    as_batch,
    each_axis,
    known_extents,
    open_shape,
    padding_pairs,
    seen,
    stacked,
    summed,
    windows_over,
)  # fmt: skip

_LAYOUTS = {1: ("NCW", "NWC", "NCL", "NLC"), 2: ("NCHW", "NHWC")}


def is_channels_last(data_format: str | None, rank: int) -> bool:
    """Whether channels are the last axis. ValueError for a layout of another rank."""
    if data_format is None:
        return False
    if data_format not in _LAYOUTS[rank]:
        raise ValueError(f"data_format must be one of {', '.join(_LAYOUTS[rank])}, got {data_format!r}")
    return data_format[-1] == "C"


def _arguments(name: str, x: Any, weight: Any, rank: int) -> tuple[Tensor, Tensor, bool]:
    """The input with examples, the weights in its dtype, and whether the input had no axis of examples."""
    t, was_one = as_batch(name, x, rank + 2)
    w = as_tensor(weight, t.dtype)
    if w.ndim != rank + 2 or not w.spec.is_known:
        raise ShapeError(
            layout(
                f"{name} takes weights of {rank + 2} known extents",
                op=operation_text(w.op),
                expected=f"{rank + 2} axes: two of channels, and {rank} of the window",
                got=w.spec,
            )
        )
    return t, w, was_one


def _refuse_channels(x: Tensor, w: Tensor, channels: Any, groups: int, inputs: int, outputs: int) -> None:
    if channels == inputs and outputs % groups == 0 and inputs % groups == 0 and groups > 0:
        return
    raise ShapeError(
        layout(
            f"weights of {w.spec} in {groups} groups take {inputs} channels, got {channels}",
            op=operation_text(x.op),
            expected=f"{inputs} channels",
            got=f"{channels} in {x.spec}",
            hint="weights are (out, in / groups, *window); of a transposed convolution (in, out / groups, *window)",
        )
    )


def _finished(out: Tensor, bias: Any, channel: int, was_one: bool) -> Any:
    if bias is not None:
        b = as_tensor(bias, out.dtype)
        if not is_compatible(b.shape, (out.shape[channel],)):
            raise ShapeError(
                layout("the bias is one number per channel of the result", op=operation_text(b.op),
                       expected=shape_text((out.shape[channel],)), got=shape_text(b.shape))
            )  # fmt: skip
        out = out + call("reshape", b, tuple(-1 if axis == channel else 1 for axis in range(out.ndim)))
    return call("squeeze", out, 0) if was_one else out


# -- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(
    name: str, rank: int, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int,
    data_format: str | None,
) -> Any:  # fmt: skip
    t, w, was_one = _arguments(name, x, weight, rank)
    last, groups = is_channels_last(data_format, rank), operator.index(groups)
    channel = rank + 1 if last else 1
    outputs, inputs, *kernel = w.spec.known_shape
    _refuse_channels(t, w, t.shape[channel], groups, inputs * groups, outputs)
    windows = windows_over(t, 1 if last else 2, kernel, stride, padding, dilation)
    if groups == t.shape[channel] == outputs and groups > 1:
        out = _channel_by_channel(t, w, windows, last)
    elif groups == 1 and not last and _moves_by_one(t, windows):
        out = _by_windows(t, w, windows)
    else:
        out = (_channels_last if last else _channels_first)(t, w, windows, groups)
    return _finished(out, bias, channel, was_one)


def _moves_by_one(x: Tensor, windows: Windows) -> bool:
    """Whether there is an op for it: windows of some elements that move by one, padded no further than they reach."""
    spans = zip(windows.kernel, windows.dilation, windows.padding, strict=True)
    is_plain = max(windows.stride) == 1 and len(windows.taps) > 1 and x.dtype.name in ("float32", "float64")
    return is_plain and all(max(pair) <= gap * (k - 1) for k, gap, pair in spans)


def _by_windows(x: Tensor, w: Tensor, windows: Windows) -> Tensor:
    """The op itself; of images of one row where there is one axis."""
    if len(windows.kernel) == 2:
        return convolve_windows(x, w, windows.padding, windows.dilation)  # type: ignore[arg-type]
    images, weights = (call("expand_dims", t, 2) for t in (x, w))
    padding, dilation = ((0, 0), *windows.padding), (1, *windows.dilation)
    return call("squeeze", convolve_windows(images, weights, padding, dilation), 2)  # type: ignore[no-any-return,arg-type]


def _channels_first(x: Tensor, w: Tensor, windows: Windows, groups: int) -> Tensor:
    """``w[g, o, c k] @ seen[n, g, c k, places]``: one product per example and group."""
    n, channels = x.shape[0], x.shape[1]
    terms, outputs = channels // groups * len(windows.taps), w.shape[0]
    columns = call("reshape", stacked(x, 2, windows), open_shape(n, groups, terms, math.prod(windows.counts)))
    out = call("reshape", w, (groups, outputs // groups, terms)) @ columns
    return call("reshape", out, open_shape(n, outputs, *windows.counts))  # type: ignore[no-any-return]


def _channels_last(x: Tensor, w: Tensor, windows: Windows, groups: int) -> Tensor:
    """``seen[places, k c] @ w[k c, o]``: one product, per group where there are several."""
    n, channels, outputs = x.shape[0], x.shape[-1], w.shape[0]
    each, taps = channels // groups, len(windows.taps)
    flat = call("reshape", w, (groups, outputs // groups, each, taps))
    matrices = call("reshape", call("transpose", flat, (0, 3, 2, 1)), (groups, taps * each, outputs // groups))
    rows = None if n is None else n * math.prod(windows.counts)
    parts = [
        call("reshape", stacked(part, 1, windows), open_shape(rows, taps * each)) @ matrices[g]
        for g, part in enumerate(call("split", x, groups, axis=-1) if groups > 1 else [x])
    ]
    out = parts[0] if groups == 1 else call("concatenate", parts, -1)
    return call("reshape", out, open_shape(n, *windows.counts, outputs))  # type: ignore[no-any-return]


def _channel_by_channel(x: Tensor, w: Tensor, windows: Windows, last: bool) -> Tensor:
    """The sum over a window of what is seen, each channel times its own weights."""
    channels, rank = w.shape[0], len(windows.kernel)
    shape = (channels,) if last else (channels, *[1] * rank)
    if max(windows.stride) > 1:
        table = call("reshape", w, (channels, len(windows.taps)))
        table = call("transpose", table) if last else call("reshape", table, (*table.shape, *[1] * rank))
        return call("sum", stacked(x, 1 if last else 2, windows) * table, -2 if last else 2)  # type: ignore[no-any-return]
    weights = [call("reshape", w[(slice(None), 0, *tap)], shape) for tap in windows.taps]
    terms = [t * weight for t, weight in zip(seen(x, 1 if last else 2, windows), weights, strict=True)]
    return functools.reduce(operator.add, terms)  # type: ignore[no-any-return]


@of_arrays(3)
def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    data_format: str | None = None,
) -> Any:  # fmt: skip
    """Cross-correlation along one axis: input (N, C, W) or (C, W), weight (out, C / groups, window); as ``conv2d``."""
    return _convolution("conv1d", 1, input, weight, bias, stride, padding, dilation, groups, data_format)


@of_arrays(3)
def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    data_format: str | None = None,
) -> Any:  # fmt: skip
    """Cross-correlation along two axes, as torch.nn.functional.conv2d: ``out[n, o, y, x] = bias[o] +
    sum_cij weight[o, c, i, j] input[n, c, y stride + i dilation - padding, x stride + j dilation - padding]``.

    ``input`` is (N, C, H, W) or (C, H, W), for ``data_format="NHWC"`` (N, H, W, C) or (H, W, C), as the result then is;
    ``weight`` is (out, C / groups, height, width) for both. ``stride`` and ``dilation`` are an integer or one per axis.
    ``padding`` with zeros is "valid", "same" (as many results as strides fit into the input, also for strides above 1),
    an integer, or per axis an integer or a pair (before, after). ShapeError for channels that do not agree and windows
    that do not fit; ValueError for other arguments.
    """
    return _convolution("conv2d", 2, input, weight, bias, stride, padding, dilation, groups, data_format)


# -- their transposes ------------------------------------------------------------------------------------------------


def _transposed(
    name: str, rank: int, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int,
    dilation: Any, data_format: str | None,
) -> Any:  # fmt: skip
    t, w, was_one = _arguments(name, x, weight, rank)
    last, groups = is_channels_last(data_format, rank), operator.index(groups)
    channel = rank + 1 if last else 1
    inputs, each, *kernel = w.spec.known_shape
    _refuse_channels(t, w, t.shape[channel], groups, inputs, each * groups)
    first = call("moveaxis", t, -1, 1) if last else t
    counts = known_extents(first, 2, rank)
    steps, gaps = each_axis("stride", stride, rank, 1), each_axis("dilation", dilation, rank, 1)
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, gaps, strict=True))
    more = each_axis("output_padding", output_padding, rank, 0)
    full = tuple((n - 1) * s + span for n, s, span in zip(counts, steps, spans, strict=True))
    pairs = _transposed_padding(padding, counts, full, spans, steps)
    windows = Windows(full, tuple(kernel), steps, gaps, ((0, 0),) * rank, counts)
    reach = tuple((span - 1, span - 1) for span in spans)
    turned = windows._replace(extents=counts, padding=reach, counts=full)
    if groups == 1 and _moves_by_one(first, turned):
        whole = _by_windows(first, weights_turned(w), turned)
    else:
        whole = _scattered(first, w, windows, groups)
    out = _cropped(whole, pairs, more)
    return _finished(call("moveaxis", out, 1, -1) if last else out, bias, channel, was_one)


def _transposed_padding(
    padding: Any, counts: Sequence[int], full: Sequence[int], spans: Sequence[int], steps: Sequence[int]
) -> Sequence[tuple[int, int]]:
    """What is cut off the full result; "same" leaves stride times the input."""
    if padding == "same":
        totals = [max(0, n - c * s) for n, c, s in zip(full, counts, steps, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return padding_pairs(padding, counts, spans, steps)


def _scattered(x: Tensor, w: Tensor, windows: Windows, groups: int) -> Tensor:
    """Each input times the weights of its channel, added where its window lies."""
    n, inputs, each, places = x.shape[0], w.shape[0], w.shape[1], math.prod(windows.counts)
    taps = windows.taps
    matrices = call("reshape", w, (groups, inputs // groups, each * len(taps)))
    rows = call("reshape", x, open_shape(n, groups, inputs // groups, places))
    columns = call("matrix_transpose", matrices) @ rows
    return summed(call("reshape", columns, open_shape(n, groups * each, len(taps), *windows.counts)), windows)


def _cropped(x: Tensor, pairs: Sequence[tuple[int, int]], more: Sequence[int]) -> Tensor:
    """``x`` without ``pairs`` elements at its ends, and with ``more`` zeros behind it."""
    extents = x.shape[2:]
    widths = [(0, 0), (0, 0), *((0, max(0, extra - high)) for (_, high), extra in zip(pairs, more, strict=True))]
    wide = call("pad", x, widths) if any(map(any, widths)) else x
    ends = [n - high + extra for n, (_, high), extra in zip(extents, pairs, more, strict=True)]
    kept = [slice(low, end) for (low, _), end in zip(pairs, ends, strict=True)]
    return wide[(slice(None), slice(None), *kept)]  # type: ignore[no-any-return]


@of_arrays(3)
def conv_transpose1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1, data_format: str | None = None,
) -> Any:  # fmt: skip
    """The transpose of ``conv1d`` as a map of its input; arguments as ``conv_transpose2d``."""
    return _transposed(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation, data_format
    )


@of_arrays(3)
def conv_transpose2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1, data_format: str | None = None,
) -> Any:  # fmt: skip
    """The transpose of ``conv2d`` as a map of its input, as torch.nn.functional.conv_transpose2d.

    ``weight`` is (in, out / groups, height, width). Results have ``(n - 1) stride + dilation (window - 1) + 1``
    elements along an axis, less ``padding`` at both ends (or a pair; "same" leaves n stride), and ``output_padding``
    more behind.
    """
    return _transposed(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation, data_format
    )


def conv_transpose(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1, data_format: str | None = None,
) -> Any:  # fmt: skip
    """``conv_transpose1d`` or ``conv_transpose2d``, by the dimensions of ``weight``. ValueError for other weights."""
    rank = np.ndim(weight) - 2
    if rank not in (1, 2):
        raise ValueError(f"conv_transpose takes weights of 3 or 4 dimensions, got {rank + 2}")
    transposed = conv_transpose1d if rank == 1 else conv_transpose2d
    return transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, data_format)
