"""Our own convolutions: which they are and how they are cut; not the steps, nor the code.

How all is cut follows from the sizes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jitgrad.compiler.products.registers import LINE, Numbers, kinds
from jitgrad.records import NamedTuple

_IMAGE_BYTES = 1 << 18  # of the copy of a band: it stays in the second cache, with as much of the result
_PANEL_BYTES = 1 << 14  # of the weights that a row of tiles reads again and again
_PARTS_BYTES = 1 << 23
_FEWEST_CELLS = 8
_MOST_CHUNKS = 64
_MOST_PARTS = 16
_CHUNK = 1_000_000  # multiplications of float32: 20 us
_LEAST_FILLED = 4  # one in so many places of a tile


class Geometry(NamedTuple):
    """Extents of a convolution: ``n`` examples of ``channels`` channels, ``outputs`` of them in the result, whose rows
    and columns are ``out``; ``size``, ``kernel``, distances of taps and padding in front, each down and across.
    """

    n: int
    channels: int
    outputs: int
    size: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    gaps: tuple[int, int]
    before: tuple[int, int]

    @property
    def taps(self) -> int:
        """The number of places in a window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def multiplications(self) -> int:
        """Of the result, and of each of the two gradients."""
        return self.n * self.channels * self.outputs * self.taps * self.out[0] * self.out[1]

    @property
    def halo(self) -> tuple[int, int]:
        """How many more rows and columns are read than made."""
        return (self.kernel[0] - 1) * self.gaps[0], (self.kernel[1] - 1) * self.gaps[1]

    @property
    def reach(self) -> int:
        """Elements of a row with its padding."""
        return self.out[1] + self.halo[1]

    @property
    def pitch(self) -> int:
        """How far rows of a copy lie apart: zeros behind a row are those in front of the next one, too."""
        behind = self.reach - self.size[1] - self.before[1]
        return min(self.reach, self.size[1] + max(self.before[1], behind))

    def plane(self, band: int) -> int:
        """Elements of a copy of what so many rows of a result read."""
        return (band + self.halo[0] - 1) * self.pitch + self.reach


class ConvPlan(NamedTuple):
    """The words of the block that are not slots, cells and chunks of them, and bytes: of each worker's memory, and of
    the parts of a sum.
    """

    words: tuple[tuple[str, int], ...]
    cells: int
    chunks: int
    worker_bytes: int
    parts_bytes: int


def tile_rows(kind: Numbers) -> int:
    """Rows of a tile: with three registers each, three quarters of all hold sums."""
    return kind.registers // 4


def is_own(dtype: np.dtype[Any], form: str, g: Geometry) -> bool:
    """Whether a convolution is done here: on registers of 32 bytes or more, of something; and filters where tiles are
    filled.

    Without the last, the weights' gradient for 3 channels in 16 lanes takes 1.36 ms in place of 0.41 by products (32
    images of 32 x 32, 16 results), for one channel in 8 lanes 1.25 in place of 0.66 (windows of 5 x 5; Zen 3); for 16
    channels and 2 results in 8 rows 0.57 in place of 1.43.
    """
    is_empty = 0 in (g.n, g.channels, g.outputs, g.taps, *g.out)
    kind = kinds().get(dtype.name)
    if kind is None or is_empty:
        return False
    places = _up(g.channels, kind.lanes) * _up(g.outputs, tile_rows(kind))
    return form == "windows" or g.channels * g.outputs * _LEAST_FILLED >= places


def plan_windows(dtype: np.dtype[Any], g: Geometry) -> ConvPlan:
    """How a convolution is cut: in bands of rows of an example, each done with some channels at a time."""
    kind = kinds()[dtype.name]
    most = max(1, _PANEL_BYTES // (tile_rows(kind) * g.taps * kind.size))
    for band in _bands(g):
        plane = _odd_lines(g.plane(band), kind.line)
        ldc = _odd_lines((band - 1) * g.pitch + g.out[1], kind.line)
        at_once = min(g.channels, most, max(1, _IMAGE_BYTES // (plane * kind.size)))
        flat = _up(g.outputs, tile_rows(kind)) * ldc * kind.size
        if band == 1 or (flat <= _IMAGE_BYTES and at_once * plane * kind.size <= _IMAGE_BYTES):
            break
    image_at = _up(at_once * g.taps * 8, LINE)
    flat_at = image_at + _up((at_once * plane + 4 * kind.lanes) * kind.size, LINE)
    words = _words(g, band, plane, at_once, ldc, image_at, flat_at + flat) | {"flat_at": flat_at}
    cells = g.n * words["bands"]
    chunks = max(1, min(cells, _MOST_CHUNKS, g.multiplications * kind.size // 4 // _CHUNK))
    return ConvPlan(tuple(words.items()), cells, chunks, flat_at + flat, 0)


def plan_filters(dtype: np.dtype[Any], g: Geometry) -> ConvPlan:
    """How the sums for weights are cut: bands of rows of an example, in as many parts as there are chunks."""
    kind = kinds()[dtype.name]
    blocks = -(-g.channels // kind.lanes)
    for band in _bands(g):
        plane = g.plane(band) | 1
        nbytes = plane * kind.lanes * kind.size
        at_once = min(blocks, max(1, _IMAGE_BYTES // nbytes))
        if band == 1 or nbytes <= _IMAGE_BYTES:
            break
    ldc = blocks * g.taps * kind.lanes
    part = _up(g.outputs, tile_rows(kind)) * ldc
    image_at = _up(at_once * g.taps * 8, LINE)
    worker = image_at + _up(at_once * nbytes + 2 * kind.lanes**2 * kind.size, LINE)
    words = _words(g, band, plane, at_once, ldc, image_at, worker) | {"part_elements": part}
    cells = g.n * words["bands"]
    wanted = g.multiplications * kind.size // 4 // (4 * _CHUNK)
    chunks = max(1, min(cells, _MOST_PARTS, wanted, max(2, _PARTS_BYTES // (part * kind.size))))
    return ConvPlan(tuple(words.items()), cells, chunks, worker, chunks * part * kind.size)


def _bands(g: Geometry) -> Iterator[int]:
    """Rows per band, ever fewer: all of them first, where there are examples enough to share out."""
    count = max(1, min(g.out[0], -(-_FEWEST_CELLS // g.n)))
    while True:
        band = -(-g.out[0] // count)
        yield band
        if band == 1:
            return
        count = -(-g.out[0] // (band - 1))


def _words(
    g: Geometry, band: int, plane: int, at_once: int, ldc: int, image_at: int, scratch: int
) -> dict[str, int]:
    return {
        "scratch_bytes": _up(scratch, LINE), "image_at": image_at, "channels": g.channels, "height": g.size[0],
        "width": g.size[1], "outputs": g.outputs, "out_height": g.out[0], "out_width": g.out[1],
        "kernel_y": g.kernel[0], "kernel_x": g.kernel[1], "gap_y": g.gaps[0], "gap_x": g.gaps[1], "top": g.before[0],
        "left": g.before[1], "reach": g.reach, "pitch": g.pitch, "plane": plane, "halo": g.halo[0], "band": band,
        "bands": -(-g.out[0] // band), "at_once": at_once, "ldc": ldc,
    }  # fmt: skip


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _odd_lines(count: int, line: int) -> int:
    """At least so many elements in an odd number of lines: rows of that length do not share places in the cache."""
    return (-(-count // line) | 1) * line
