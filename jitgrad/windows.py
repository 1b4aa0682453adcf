"""Windows that slide over the last axes (or the middle ones) of a batch: their geometry, and stacks of what they see.

A stack has what all windows see at one position in them, position by position. Where windows move by one element it is
made of slices, of which a kernel reads the one that it needs, and pads nothing in memory; otherwise it is looked up by
position, which adds up faster on the way back. Shared by convolutions and pooling, which are elsewhere.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError, layout
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import find
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.ops.slicing import unslice
from jitgrad.records import NamedTuple
from jitgrad.sources import operation_text
from jitgrad.spec import is_inexact

Pairs = tuple[tuple[int, int], ...]


class Windows(NamedTuple):
    """Windows of ``kernel`` elements, ``dilation`` apart, that move by ``stride``, over ``extents`` with ``padding``
    elements before and after; ``counts`` of them.
    """

    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Pairs
    counts: tuple[int, ...]

    @property
    def taps(self) -> list[tuple[int, ...]]:
        """The positions in a window, in row-major order."""
        return list(itertools.product(*map(range, self.kernel)))

    def places(self, extents: Sequence[int]) -> Any:
        """Per position in a window and per window, where that is in the flattened padded input of these extents."""
        places = np.zeros((1, 1), np.int64)
        for n, k, step, gap, count in zip(extents, self.kernel, self.stride, self.dilation, self.counts, strict=True):
            here = gap * np.arange(k)[:, None] + step * np.arange(count)
            grown = n * places[:, None, :, None] + here[None, :, None, :]
            places = grown.reshape(places.shape[0] * k, places.shape[1] * count)
        return places

    def slices(self, tap: Sequence[int]) -> list[slice]:
        """What all windows see at one position, in the padded input."""
        firsts = (d * k for d, k in zip(self.dilation, tap, strict=True))
        return [
            slice(first, first + (count - 1) * step + 1, step)
            for first, count, step in zip(firsts, self.counts, self.stride, strict=True)
        ]


def each_axis(name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """An integer per axis, from one for all or a sequence. ValueError for a wrong count, or below ``least``."""
    values = tuple(value) if isinstance(value, list | tuple | np.ndarray) else (value,) * rank
    found = tuple(map(operator.index, values))
    if len(found) != rank or min(found, default=least) < least:
        raise ValueError(f"{name} must be an integer of at least {least} or {rank} of them, got {value!r}")
    return found


def windows_over(
    x: Tensor, first: int, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, ceil_mode: bool = False
) -> Windows:
    """The windows over the axes of ``x`` from ``first`` on. ShapeError for unknown extents, and where none fits."""
    rank = len(kernel)
    extents = known_extents(x, first, rank)
    steps, gaps = each_axis("stride", stride, rank, 1), each_axis("dilation", dilation, rank, 1)
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, gaps, strict=True))
    pairs = padding_pairs(padding, extents, spans, steps)
    counts = []
    for n, span, step, (low, high) in zip(extents, spans, steps, pairs, strict=True):
        room = n + low + high - span
        count = -(-room // step) + 1 if ceil_mode else room // step + 1
        if ceil_mode and (count - 1) * step >= n + low:
            count -= 1  # a window begins in the input or in front of it
        counts.append(count)
        if room < 0:
            raise ShapeError(
                layout(f"a window of {span} elements does not fit into {n + low + high}", op=operation_text(x.op))
            )
    ends = (
        (low, max(high, (count - 1) * step + span - n - low))
        for n, span, step, (low, high), count in zip(extents, spans, steps, pairs, counts, strict=True)
    )
    return Windows(extents, tuple(kernel), steps, gaps, tuple(ends), tuple(counts))


def known_extents(x: Tensor, first: int, rank: int) -> tuple[int, ...]:
    """The extents of ``rank`` axes from ``first`` on; ShapeError where one is not known."""
    shape = x.shape[first : first + rank]
    if None in shape:
        raise ShapeError(
            layout(
                "windows slide over known extents only",
                op=operation_text(x.op),
                hint="give the placeholder its height and width; the batch may be unknown",
            )
        )
    return shape  # type: ignore[no-any-return]


def padding_pairs(padding: Any, extents: Sequence[int], spans: Sequence[int], steps: Sequence[int]) -> Pairs:
    """Elements before and after, per axis.

    ``padding`` is "valid" (none), "same" (as many windows as strides fit into the input, the odd element behind it), an
    integer for all axes, or per axis an integer or a pair. ValueError for anything else.
    """
    rank = len(extents)
    if padding == "valid":
        return ((0, 0),) * rank
    if padding == "same":
        totals = (
            max(0, (-(-n // step) - 1) * step + span - n) for n, span, step in zip(extents, spans, steps, strict=True)
        )
        return tuple((total // 2, total - total // 2) for total in totals)
    if isinstance(padding, str):
        raise ValueError(f'padding must be "valid", "same", integers or pairs of them, got {padding!r}')
    entries = tuple(padding) if isinstance(padding, list | tuple | np.ndarray) else (padding,) * rank
    pairs = tuple(tuple(p) if isinstance(p, list | tuple | np.ndarray) else (p, p) for p in entries)
    if len(pairs) != rank or any(len(p) != 2 or min(map(operator.index, p)) < 0 for p in pairs):
        raise ValueError(f"padding must be an integer, or {rank} integers or pairs of at least 0, got {padding!r}")
    return tuple((operator.index(low), operator.index(high)) for low, high in pairs)


def padded(x: Tensor, first: int, pairs: Pairs, fill: float = 0.0) -> Tensor:
    """``x`` with ``fill`` around it along the axes from ``first`` on."""
    if not any(map(any, pairs)):
        return x
    behind = x.ndim - first - len(pairs)
    widths = [(0, 0)] * first + list(pairs) + [(0, 0)] * behind
    return call("pad", x, widths, constant_values=fill)  # type: ignore[no-any-return]


def stacked(x: Tensor, first: int, windows: Windows, fill: float = 0.0) -> Tensor:
    """What the windows see: windows along the axes from ``first`` on, positions in them in a new axis: in front of
    those where ``first`` is 2 (channels are axis 1), else behind them (channels are the last axis).
    """
    if max(windows.stride) == 1:
        return call("stack", seen(x, first, windows, fill), 2 if first == 2 else -2)  # type: ignore[no-any-return]
    wide, rank = padded(x, first, windows.padding, fill), len(windows.kernel)
    before, behind = wide.shape[:first], wide.shape[first + rank :]
    extents = tuple(n + low + high for n, (low, high) in zip(windows.extents, windows.padding, strict=True))
    places = windows.places(extents)
    flat = call("reshape", wide, open_shape(*before, math.prod(extents), *behind))
    found = call("take", flat, places if first == 2 else places.T, first)
    taps = (len(windows.taps),)
    inner = (*taps, *windows.counts) if first == 2 else (*windows.counts, *taps)
    return call("reshape", found, open_shape(*before, *inner, *behind))  # type: ignore[no-any-return]


def seen(x: Tensor, first: int, windows: Windows, fill: float = 0.0) -> list[Tensor]:
    """Per position in a window, what all windows see there."""
    wide = padded(x, first, windows.padding, fill)
    before = (slice(None),) * first
    return [wide[(*before, *windows.slices(tap))] for tap in windows.taps]


def summed(columns: Tensor, windows: Windows) -> Tensor:
    """The transpose of ``stacked`` for axes from 2 on, without padding: each element added where it was seen."""
    n, channels = columns.shape[:2]
    taps, extents = windows.taps, windows.extents
    if max(windows.stride) == 1:
        like = _zeros(columns, (n, channels, *extents))
        before = [slice(None), slice(None)]
        parts = [unslice(columns[:, :, k], like, [*before, *windows.slices(tap)]) for k, tap in enumerate(taps)]
        return call("add_n", parts) if len(parts) > 1 else parts[0]
    flat = call("reshape", columns, open_shape(n, channels, len(taps) * math.prod(windows.counts)))
    places = call("constant", windows.places(extents).reshape(-1), graph=columns.graph)
    like = _zeros(columns, (n, channels, math.prod(extents)))
    out = apply_one(find("scatter_take"), like, flat, places, axis=2)
    return call("reshape", out, open_shape(n, channels, *extents))  # type: ignore[no-any-return]


def _zeros(like: Tensor, shape: tuple[int | None, ...]) -> Tensor:
    """Something of that shape, whose first extent is that of ``like`` where it is not known."""
    known = tuple(1 if n is None else n for n in shape)
    zeros = call("constant", np.broadcast_to(np.zeros((), like.dtype), known), graph=like.graph)
    if None not in shape:
        return zeros  # type: ignore[no-any-return]
    lead = call("getitem", like, (slice(None), *[slice(0, 1)] * (like.ndim - 1)))
    pattern = call("reshape", lead, (-1, *[1] * (len(shape) - 1)))
    return apply_one(find("broadcast_like"), zeros, pattern)


def as_batch(name: str, x: Any, rank: int) -> tuple[Tensor, bool]:
    """A float tensor with an axis of examples, and whether that had to be added. ShapeError for another rank."""
    t = as_tensor(x)
    t = t if is_inexact(t.dtype) else as_tensor(t, np.dtype(np.float64))
    if t.ndim == rank - 1:
        return call("expand_dims", t, 0), True
    if t.ndim != rank:
        raise ShapeError(
            layout(
                f"{name} takes tensors of {rank - 1} or {rank} dimensions",
                op=operation_text(t.op),
                expected=f"{rank} axes: examples, channels and {rank - 2} of space; or {rank - 1}, without examples",
                got=f"{t.spec}, of {t.ndim}",
                hint="x[None] adds an axis of one",
            )
        )
    return t, False


def open_shape(*extents: int | None) -> tuple[int, ...]:
    """A shape for ``reshape``; one extent may be unknown."""
    return tuple(-1 if n is None else n for n in extents)
