"""Our own convolutions as steps; how they are cut is decided elsewhere (conv.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jitgrad.compiler.products.blas import BlasStep
from jitgrad.compiler.products.product_code import (
    SUFFIXES,
    Functions,
    Module,
    code_modules,
    convolution_tile_names,
    product_address,
)

_GEOMETRY = (
    "scratches_slot", "scratch_bytes", "image_at", "channels", "height", "width", "outputs", "out_height", "out_width",
    "kernel_y", "kernel_x", "gap_y", "gap_x", "top", "left", "reach", "pitch", "plane", "halo", "band", "bands",
    "at_once", "ldc",
)  # fmt: skip
WINDOWS_BLOCK = ("x_slot", "w_slot", "out_slot", *_GEOMETRY, "flat_at")
FILTERS_BLOCK = ("x_slot", "g_slot", "parts_slot", *_GEOMETRY, "part_elements")
GATHER_BLOCK = ("parts_slot", "out_slot", "channels", "taps", "ldc", "part_elements", "count")
"""The words of the blocks, in elements; `image_at`, `flat_at` and `scratch_bytes` in bytes."""

WINDOWS_STUBS = {"float32": "jitgrad_windows_f32", "float64": "jitgrad_windows_f64"}
FILTERS_STUBS = {"float32": "jitgrad_filters_f32", "float64": "jitgrad_filters_f64"}
GATHER_STUBS = {"float32": "jitgrad_gather_f32", "float64": "jitgrad_gather_f64"}


def convolution_steps(
    dtype: np.dtype[Any], form: str, words: Mapping[str, int], cells: int, chunks: int, slots: Sequence[int]
) -> list[BlasStep]:
    """The steps of a convolution, cut as a `ConvPlan` says.

    ``slots`` are those of the two operands, the result and the workers' memory; for "filters" also of the parts.
    """
    tiles = _tiles(dtype, form)
    if form == "windows":
        given = {**words, **dict(zip(("x_slot", "w_slot", "out_slot", "scratches_slot"), slots, strict=True))}
        return [_step(WINDOWS_STUBS[dtype.name], WINDOWS_BLOCK, given, cells, chunks, tiles)]
    names = ("x_slot", "g_slot", "out_slot", "scratches_slot", "parts_slot")
    given = {**words, **dict(zip(names, slots, strict=True)), "count": chunks}
    given["taps"] = words["kernel_y"] * words["kernel_x"]
    return [
        _step(FILTERS_STUBS[dtype.name], FILTERS_BLOCK, given, cells, chunks, tiles),
        _step(GATHER_STUBS[dtype.name], GATHER_BLOCK, given, words["outputs"], 1),
    ]


def convolution_modules(dtype: np.dtype[Any], form: str) -> dict[str, Module]:
    """The modules that `convolution_steps` refers to."""
    stub = _stub(dtype, form)
    gather = code_modules(GATHER_STUBS[dtype.name], _text) if form == "filters" else {}
    return code_modules(stub, _text, _tiles(dtype, form)) | gather


def _stub(dtype: np.dtype[Any], form: str) -> str:
    return (WINDOWS_STUBS if form == "windows" else FILTERS_STUBS)[dtype.name]


def _tiles(dtype: np.dtype[Any], form: str) -> Functions:
    stub = _stub(dtype, form)
    return Functions(f"{stub}_tiles", partial(_tiles_text, stub), convolution_tile_names(SUFFIXES[dtype.name], form))


def _step(
    stub: str, block: Sequence[str], given: Mapping[str, int], extent: int, chunks: int, tiles: Functions | None = None
) -> BlasStep:
    address = product_address(stub, _text, tiles)
    return BlasStep(stub, address, tuple(given[word] for word in block), extent, chunks)


def _text(stub: str) -> str:
    from jitgrad.compiler.products.conv_code import stub_ir

    return stub_ir(stub)


def _tiles_text(stub: str) -> str:
    from jitgrad.compiler.products.conv_code import tiles_of_stub_ir

    return tiles_of_stub_ir(stub)
