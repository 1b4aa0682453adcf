"""Rules for convolutions: where our own code does not serve, matrix products with what windows see."""

from __future__ import annotations

import itertools
import math

from jitgrad.compiler.products.conv import Geometry, is_own
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction


def windows_as_products(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """out[n] = w @ seen[n]"""
    x, w = ins.inputs
    out = ins.outputs[0]
    if _is_own(rw, ins, x, w, out):
        return None
    seen = _seen(rw, ins, rw.shape(w)[2:], rw.shape(out)[2:])
    n, terms, _ = rw.shape(seen)
    flat = rw.emit(ins.origin, "reshape", w, shape=(1, rw.shape(w)[0], terms))
    each = rw.emit(ins.origin, "broadcast_to", flat, shape=(n, rw.shape(w)[0], terms))
    made = rw.emit(ins.origin, "matmul", each, seen, transpose_a=False, transpose_b=False)
    return rw.replace(ins, "reshape", made, shape=rw.shape(out))


def filters_as_products(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """dw = sum over n of g[n] @ seen[n]ᵀ"""
    x, g = ins.inputs
    out = ins.outputs[0]
    if _is_own(rw, ins, x, out, g):
        return None
    n, o, *counts = rw.shape(g)
    seen = _seen(rw, ins, ins.params["kernel"], tuple(counts))
    flat = rw.emit(ins.origin, "reshape", g, shape=(n, o, math.prod(counts)))
    each = rw.emit(ins.origin, "matmul", flat, seen, transpose_a=False, transpose_b=True)
    total = rw.emit(ins.origin, "sum", each, axis=(0,), keepdims=False)
    return rw.replace(ins, "reshape", total, shape=rw.shape(out))


def _is_own(rw: Rewriter, ins: Instruction, image: int, weights: int, places: int) -> bool:
    (n, c, *size), (_, _, *kernel), (_, o, *out) = (rw.shape(v) for v in (image, weights, places))
    (top, _), (left, _) = ins.params["padding"]
    pairs = ((size[0], size[1]), (out[0], out[1]), (kernel[0], kernel[1]), ins.params["dilation"], (top, left))
    return is_own(rw.dtype(image), ins.op.kind.form, Geometry(n, c, o, *pairs))  # type: ignore[union-attr]


def _seen(rw: Rewriter, ins: Instruction, kernel: tuple[int, ...], counts: tuple[int, ...]) -> int:
    """What windows see: slices of the padded image, [n, c i j, windows]."""
    x, origin, dilation = ins.inputs[0], ins.origin, ins.params["dilation"]
    n, c = rw.shape(x)[:2]
    wide = rw.emit(origin, "pad", x, pad_width=((0, 0), (0, 0), *ins.params["padding"]), fill=0.0)
    slices = []
    for tap in itertools.product(*map(range, kernel)):
        start = tuple(t * gap for t, gap in zip(tap, dilation, strict=True))
        stop = tuple(first + count for first, count in zip(start, counts, strict=True))
        slices.append(
            rw.emit(
                origin, "getslice", wide, start=(0, 0, *start), stop=(n, c, *stop), step=(1, 1, 1, 1), drop=()
            )
        )
    stacked = rw.emit(origin, "stack", *slices, axis=2)
    return rw.emit(origin, "reshape", stacked, shape=(n, c * len(slices), math.prod(counts)))
