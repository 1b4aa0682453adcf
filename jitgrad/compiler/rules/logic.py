"""Rules for conditions and choices; with NaN, not(a < b) is not a >= b, so only exact opposites are used."""

from __future__ import annotations

import math

from jitgrad.compiler.constants import splat
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction

_OPPOSITES = {"equal": "not_equal", "not_equal": "equal"}
_INTEGER_OPPOSITES = {
    "less": "greater_equal", "greater_equal": "less", "greater": "less_equal", "less_equal": "greater",
}  # fmt: skip


def of_same(rw: Rewriter, ins: Instruction) -> int | None:
    """p and p = p or p = p"""
    x, y = ins.inputs
    return rw.same(ins, x) if x == y else None


def double_not(rw: Rewriter, ins: Instruction) -> int | None:
    """not not p = p"""
    inner = rw.producer(ins.inputs[0], "logical_not")
    return None if inner is None else rw.same(ins, inner.inputs[0])


def not_of_comparison(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """not(a = b) is a ≠ b; for integers also not(a < b) is a ≥ b"""
    inner = rw.maker(ins.inputs[0])
    if inner is None:
        return None
    opposite = _OPPOSITES.get(inner.op.name)
    if opposite is None and all(rw.dtype(v).kind in "biu" for v in inner.inputs):
        opposite = _INTEGER_OPPOSITES.get(inner.op.name)
    return None if opposite is None else rw.replace(ins, opposite, *inner.inputs)


def integer_equals_itself(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """n = n for integers"""
    x, y = ins.inputs
    if x != y or rw.dtype(x).kind not in "biu":
        return None
    return rw.constant(ins, splat(True, rw.shape(x), rw.dtype(ins.outputs[0])))


def infinite_number(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """x = c and isinf(x) is false for a finite c"""
    for p, q in (ins.inputs, ins.inputs[::-1]):
        is_equal, is_infinite = rw.producer(p, "equal"), rw.producer(q, "isinf")
        if is_equal is None or is_infinite is None:
            continue
        x, y = is_equal.inputs
        x, c = (x, rw.numbers.get(y)) if y in rw.numbers else (y, rw.numbers.get(x))
        if is_infinite.inputs == (x,) and isinstance(c, float) and math.isfinite(c):
            spec = rw.specs[ins.outputs[0]]
            return rw.constant(ins, splat(False, spec.known_shape, spec.dtype))
    return None


def choice_of_same(rw: Rewriter, ins: Instruction) -> int | None:
    """where(p, x, x) = x"""
    _, x, y = ins.inputs
    return rw.same(ins, x) if x == y else None


def choice_by_constant(rw: Rewriter, ins: Instruction) -> int | None:
    """where(true, x, y) = x, where(false, x, y) = y"""
    p, x, y = ins.inputs
    number = rw.numbers.get(p)
    return None if number is None else rw.same(ins, x if number else y)


def choice_by_negation(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """where(not p, x, y) = where(p, y, x)"""
    p, x, y = ins.inputs
    inner = rw.producer(p, "logical_not")
    if inner is None or rw.dtype(inner.inputs[0]) != rw.dtype(p):
        return None
    return rw.replace(ins, "where", inner.inputs[0], y, x)


def choice_within_choice(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """where(p, where(p, x, _), y) = where(p, x, y); where(p, x, where(p, _, y)) = where(p, x, y)"""
    p, x, y = ins.inputs
    first, second = rw.producer(x, "where"), rw.producer(y, "where")
    a = first.inputs[1] if first is not None and first.inputs[0] == p else x
    b = second.inputs[2] if second is not None and second.inputs[0] == p else y
    if (a, b) == (x, y) or rw.dtype(a) != rw.dtype(x) or rw.dtype(b) != rw.dtype(y):
        return None
    return rw.replace(ins, "where", p, a, b)
