"""Routines: what a kernel calls to work on whole tiles, and its meaning in Python; emission is in emit_routines.

    pack(tile, source, i, n)      the n elements of matrix i into a tile
    unpack(out, tile, i, n)       and back
    fill(sums, value, n)          one value in all places
    fold_<combine>(partial, sums, n)    what was combined per lane, combined
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

COMBINES = ("add", "multiply", "maximum", "minimum", "logical_or", "logical_and")


def _pack(tile: Any, source: Any, i: int, n: int) -> None:
    tile[:n] = source[i * n : (i + 1) * n]


def _unpack(out: Any, tile: Any, i: int, n: int) -> None:
    out[i * n : (i + 1) * n] = tile[:n]


def _fill(sums: Any, value: Any, n: int) -> None:
    sums[:n] = value


def _fold(partial: Any, sums: Any, n: int) -> None:
    partial[:n] = sums[:n]


def python_routines() -> dict[str, Callable[..., None]]:
    """Name of a routine → its meaning on flat arrays, where a tile holds the elements of one matrix."""
    table: dict[str, Callable[..., None]] = {f"fold_{combine}": _fold for combine in COMBINES}
    return table | {"pack": _pack, "unpack": _unpack, "fill": _fill}
