"""Rules that move a change of sign to where it is free; rounding to nearest is symmetric, so all are exact.

Not exact, and left alone: -(a - b) = b - a and (-a) - b = -(a + b), which differ in the sign of a zero.
"""

from __future__ import annotations

from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction


def _negated(rw: Rewriter, v: int) -> int | None:
    """The ``a`` of ``v = -a``."""
    ins = rw.producer(v, "negative")
    return None if ins is None else ins.inputs[0]


def double_negative(rw: Rewriter, ins: Instruction) -> int | None:
    """-(-x) = x"""
    return _negated(rw, ins.inputs[0])


def plus_negative(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """a + (-b) = a - b, (-b) + a = a - b"""
    x, y = ins.inputs
    if (b := _negated(rw, y)) is not None:
        return rw.replace(ins, "subtract", x, b)
    return rw.replace(ins, "subtract", y, b) if (b := _negated(rw, x)) is not None else None


def minus_negative(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """a - (-b) = a + b"""
    b = _negated(rw, ins.inputs[1])
    return None if b is None else rw.replace(ins, "add", ins.inputs[0], b)


def times_minus_one(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """x * (-1) = -x"""
    x, y = ins.inputs
    if rw.numbers.get(y) == -1:
        return rw.replace(ins, "negative", x)
    return rw.replace(ins, "negative", y) if rw.numbers.get(x) == -1 else None


def over_minus_one(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """x / (-1) = -x"""
    x, y = ins.inputs
    return rw.replace(ins, "negative", x) if rw.numbers.get(y) == -1 else None


def product_of_negatives(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """(-a) (-b) = a b, (-a) / (-b) = a / b"""
    a, b = (_negated(rw, v) for v in ins.inputs)
    return None if a is None or b is None else rw.replace(ins, ins.op.name, a, b)


def sign_out_of_product(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """(-a) b = -(a b), or (-a) c = a (-c) with a constant c; also for quotients"""
    for place in (0, 1):
        v, other = ins.inputs[place], ins.inputs[1 - place]
        a = _negated(rw, v)
        if a is None:
            continue
        if other in rw.constants:
            other = rw.emit(ins.origin, "negative", other)
        elif not rw.is_read_once(v):
            continue
        factors = (a, other) if place == 0 else (other, a)
        if ins.inputs[1 - place] in rw.constants:
            return rw.replace(ins, ins.op.name, *factors)
        return rw.replace(ins, "negative", rw.emit(ins.origin, ins.op.name, *factors))
    return None


def negative_of_scaled(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """-(x c) = x (-c) with a constant c"""
    product = rw.producer(ins.inputs[0], "multiply")
    if product is None or not rw.is_read_once(ins.inputs[0]):
        return None
    x, y = product.inputs
    x, c = (x, y) if y in rw.numbers else (y, x)
    if c not in rw.numbers:
        return None
    return rw.replace(ins, "multiply", x, rw.emit(ins.origin, "negative", c))


def even_of_negative(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """(-x)² = x², |-x| = |x|; unsigned integers wrap: there |-x| is not |x|"""
    x = _negated(rw, ins.inputs[0])
    if x is None or (ins.op.name == "absolute" and rw.dtype(x).kind == "u"):
        return None
    return rw.replace(ins, ins.op.name, x)


def square_of_absolute(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """|x|² = x²"""
    inner = rw.producer(ins.inputs[0], "absolute")
    if inner is None or rw.dtype(inner.inputs[0]).kind == "c":
        return None
    return rw.replace(ins, "square", inner.inputs[0])
