"""Rules for reductions over nothing, over what is repeated, over another reduction; equal to rounding.

A sum starts from 0.0, so that the sum of one -0.0 is 0.0: where a sum is replaced, 0.0 is added to keep that.
"""

from __future__ import annotations

import math

from jitgrad.compiler.constants import splat
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.compiler.rules.moves import broadcast_axes, copies_of
from jitgrad.opdef import Reduce
from jitgrad.program import Instruction
from jitgrad.spec import normalize_axes

_COMBINES = frozenset(("add", "multiply", "maximum", "minimum", "logical_or", "logical_and"))


def _combine(rw: Rewriter, ins: Instruction) -> str | None:
    """How a reduction combines, when its result has the dtype of what it reduces."""
    kind = ins.op.kind
    if (
        not isinstance(kind, Reduce)
        or kind.combine not in _COMBINES
        or rw.dtype(ins.inputs[0]) != rw.dtype(ins.outputs[0])
    ):
        return None
    return kind.combine


def _axes(rw: Rewriter, ins: Instruction) -> tuple[int, ...]:
    return normalize_axes(ins.params["axis"], len(rw.shape(ins.inputs[0])))


def reduce_nothing(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """sum(x, axes of extent 1) = 0.0 + reshape(x); max, min, prod: reshape(x)"""
    combine = _combine(rw, ins)
    x = ins.inputs[0]
    if combine is None or any(rw.shape(x)[axis] != 1 for axis in _axes(rw, ins)):
        return None
    shape = rw.shape(ins.outputs[0])
    if combine != "add" or rw.dtype(x).kind not in "fc":
        return rw.replace(ins, "reshape", x, shape=shape)
    return _plus_zero(rw, ins, rw.emit(ins.origin, "reshape", x, shape=shape))


def _plus_zero(rw: Rewriter, ins: Instruction, x: int) -> Instruction:
    return rw.replace(ins, "add", x, rw.emit_splat(ins.origin, 0, rw.specs[x]))


def reduce_of_reduce(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """sum(sum(x, p), q) = sum(x, p and q), when the inner one is not needed itself; so for max, min, prod"""
    inner = rw.producer(ins.inputs[0], ins.op.name)
    if (
        inner is None
        or _combine(rw, ins) is None
        or _combine(rw, inner) is None
        or not rw.is_read_once(ins.inputs[0])
    ):
        return None
    x, first, second = inner.inputs[0], _axes(rw, inner), _axes(rw, ins)
    left = list(range(len(rw.shape(x))))
    if not inner.params["keepdims"]:
        left = [axis for axis in left if axis not in first]
    axes = tuple(sorted({*first, *(left[axis] for axis in second)}))
    total = rw.emit(ins.origin, ins.op.name, x, axis=axes, keepdims=False)
    return rw.replace(ins, "reshape", total, shape=rw.shape(ins.outputs[0]))


def reduce_of_broadcast(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """sum(broadcast(x), p) = broadcast(n sum(x, p)), n elements of p being copies; max and min need no n"""
    combine, outer = _combine(rw, ins), rw.shape(ins.inputs[0])
    x = None if combine in (None, "multiply") or 0 in outer else _repeated(rw, ins, ins.inputs[0])
    if x is None:
        return None
    axes, repeated = _axes(rw, ins), broadcast_axes(rw.shape(x), outer)
    grown = len(outer) - len(rw.shape(x))
    aligned = tuple(1 if axis in axes else n for axis, n in enumerate((1,) * grown + rw.shape(x)))
    kept = tuple(axis - grown for axis in axes if axis not in repeated)
    if kept:
        x = rw.emit(ins.origin, ins.op.name, x, axis=kept, keepdims=False)
    if combine == "add":
        count = math.prod(outer[axis] for axis in axes if axis in repeated)
        x = _copies_added(rw, ins, x, count, is_sum=bool(kept))
    x = rw.emit(ins.origin, "reshape", x, shape=aligned)
    wide = rw.emit(
        ins.origin, "broadcast_to", x, shape=tuple(1 if axis in axes else n for axis, n in enumerate(outer))
    )
    return rw.replace(ins, "reshape", wide, shape=rw.shape(ins.outputs[0]))


def reduce_all_of_copies(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """sum(reshape(broadcast(x))) = sum(broadcast(x)), over all axes"""
    copies = copies_of(rw, ins.inputs[0])
    if copies is None or _combine(rw, ins) is None or len(_axes(rw, ins)) != len(rw.shape(ins.inputs[0])):
        return None
    wide = copies.outputs[0]
    total = rw.emit(ins.origin, ins.op.name, wide, axis=tuple(range(len(rw.shape(wide)))), keepdims=False)
    return rw.replace(ins, "reshape", total, shape=rw.shape(ins.outputs[0]))


def _repeated(rw: Rewriter, ins: Instruction, v: int) -> int | None:
    """The value that ``v`` is a broadcast of."""
    if v in rw.numbers:
        return (
            rw.emit(ins.origin, "constant", value=splat(rw.numbers[v], (), rw.dtype(v)))
            if rw.shape(v)
            else None
        )
    inner = rw.producer(v, "broadcast_to")
    return None if inner is None else inner.inputs[0]


def _copies_added(rw: Rewriter, ins: Instruction, x: int, count: int, *, is_sum: bool) -> int:
    """The sum of ``count`` times ``x``; a ``x`` that is a sum is not -0.0."""
    if count > 1:
        x = rw.emit(ins.origin, "multiply", x, rw.emit_splat(ins.origin, count, rw.specs[x]))
    if is_sum or rw.dtype(x).kind not in "fc":
        return x
    return rw.emit(ins.origin, "add", x, rw.emit_splat(ins.origin, 0, rw.specs[x]))
