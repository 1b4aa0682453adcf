"""Algebra that is exact in IEEE arithmetic, with NaN, infinities and signed zeros; nothing else is here.

Not exact, and left alone: x + 0.0 (turns -0.0 into 0.0), 0 * x (NaN, infinities), x - x, 0 - x, x ** 0.5.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgrad.compiler.constants import splat
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction

LONGEST_SUM = 32  # addends of one instruction: a kernel of more arrays is slow to compile and to run


def identity(rw: Rewriter, ins: Instruction) -> int | None:
    """id(x) = x"""
    return rw.same(ins, ins.inputs[0])


def idempotent(rw: Rewriter, ins: Instruction) -> int | None:
    """f(f(x)) = f(x)"""
    return ins.inputs[0] if rw.producer(ins.inputs[0], ins.op.name) is not None else None


def extreme_of_same(rw: Rewriter, ins: Instruction) -> int | None:
    """max(x, x) = x"""
    x, y = ins.inputs
    return rw.same(ins, x) if x == y else None


def times_one(rw: Rewriter, ins: Instruction) -> int | None:
    """x * 1 = 1 * x = x"""
    x, y = ins.inputs
    if rw.numbers.get(y) == 1:
        return rw.same(ins, x)
    return rw.same(ins, y) if rw.numbers.get(x) == 1 else None


def over_one(rw: Rewriter, ins: Instruction) -> int | None:
    """x / 1 = x"""
    x, y = ins.inputs
    return rw.same(ins, x) if rw.numbers.get(y) == 1 else None


def plus_zero(rw: Rewriter, ins: Instruction) -> int | None:
    """x + (-0.0) = x; for integers x + 0 = x"""
    x, y = ins.inputs
    if _is_zero(rw.numbers.get(y), sign=-1):
        return rw.same(ins, x)
    return rw.same(ins, y) if _is_zero(rw.numbers.get(x), sign=-1) else None


def minus_zero(rw: Rewriter, ins: Instruction) -> int | None:
    """x - 0.0 = x"""
    x, y = ins.inputs
    return rw.same(ins, x) if _is_zero(rw.numbers.get(y), sign=1) else None


def _is_zero(number: Any, sign: int) -> bool:
    """Whether a number is the zero of that sign; integers and bools have only one."""
    if number is None or number != 0:
        return False
    return not isinstance(number, float) or math.copysign(1.0, number) == sign


def over_power_of_two(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """x / 2**-k = x * 2**k

    Larger numbers are left alone. They may be extents, as in a mean, and a program must not have another
    structure because an extent is a power of two: a kernel for one extent is to do for all.
    """
    x, y = ins.inputs
    c, dtype = rw.numbers.get(y), rw.dtype(y)
    if not isinstance(c, float) or not 0 < abs(c) < 1 or abs(math.frexp(c)[0]) != 0.5:
        return None
    info = np.finfo(dtype)
    if not float(info.tiny) <= abs(1 / c) <= float(info.max):
        return None
    return rw.replace(ins, "multiply", x, rw.emit_splat(ins.origin, 1 / c, rw.specs[y]))


def power_of_integer(rw: Rewriter, ins: Instruction) -> int | Instruction | None:
    """x**0 = 1, x**1 = x, x**2 = x x, x**3 = x² x, x**4 = (x²)², x**-1 = 1/x for floats"""
    x, y = ins.inputs
    n, spec = rw.numbers.get(y), rw.specs[ins.outputs[0]]
    if n is None or rw.specs[x] != spec or spec.dtype.kind not in "fiu":
        return None
    if n == 0:
        return rw.constant(ins, splat(1, spec.known_shape, spec.dtype))
    if n == 1:
        return x
    if n == 2:
        return rw.replace(ins, "square", x)
    if n == 3:
        return rw.replace(ins, "multiply", rw.emit(ins.origin, "square", x), x)
    if n == 4:
        return rw.replace(ins, "square", rw.emit(ins.origin, "square", x))
    return rw.replace(ins, "reciprocal", x) if n == -1 and spec.dtype.kind == "f" else None


def long_sum(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """add_n(x, y, ..., z) = add_n(add_n(x, y, ...), ..., z), from the left, for fusion cannot cut within one sum"""
    first, rest = ins.inputs[:LONGEST_SUM], ins.inputs[LONGEST_SUM:]
    if not rest:
        return None
    while len(rest) >= LONGEST_SUM:
        first, rest = (rw.emit(ins.origin, "add_n", *first), *rest[: LONGEST_SUM - 1]), rest[LONGEST_SUM - 1 :]
    return rw.replace(ins, "add_n", rw.emit(ins.origin, "add_n", *first), *rest)


def zeros_of_sum(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """add_n(x, 0, y, 0) = add_n(x, 0, y): one zero makes -0.0 of other addends 0.0, and more of them do nothing"""
    zeros = [v for v in ins.inputs if _is_zero(rw.numbers.get(v), sign=1)]
    if len(zeros) < 2:
        return None
    first = ins.inputs.index(zeros[0])
    kept = [v for place, v in enumerate(ins.inputs) if v not in zeros or place == first]
    return rw.replace(ins, "add_n", *kept)


def sum_of_sums_with_zero(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """add_n(x + 0, y + 0) = add_n(x, y, 0): a sum with one 0.0 is never -0.0, and no addend of it need be"""
    addends: list[int] = []
    for v in ins.inputs:
        inner = rw.producer(v, "add")
        parts = inner.inputs if inner is not None else ()
        is_kept = not any(_is_zero(rw.numbers.get(part), sign=1) for part in parts)
        addends += (v,) if is_kept else parts
    return rw.replace(ins, "add_n", *addends) if len(addends) > len(ins.inputs) else None


def log_of_one_and_exponential(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """log(exp(0) + exp(x)) = softplus(x), which shares its exponential with the sigmoid of its gradient; of half
    precision there is none
    """
    x, y = ins.inputs
    if rw.dtype(y) == np.float16:
        return None
    if rw.numbers.get(x) != 0:
        x, y = y, x
    return rw.replace(ins, "softplus", y) if rw.numbers.get(x) == 0 else None


def short_sum(rw: Rewriter, ins: Instruction) -> int | Instruction | None:
    """add_n(x) = x, add_n(x, y) = x + y"""
    if len(ins.inputs) == 1:
        return rw.same(ins, ins.inputs[0])
    return rw.replace(ins, "add", *ins.inputs) if len(ins.inputs) == 2 else None


def same_dtype(rw: Rewriter, ins: Instruction) -> int | None:
    """cast(x, dtype of x) = x"""
    return rw.same(ins, ins.inputs[0])


def cast_of_cast(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """cast(cast(x, wide), dtype) = cast(x, dtype), when the wide dtype holds every x exactly"""
    inner = rw.producer(ins.inputs[0], "astype")
    if inner is None:
        return None
    x = inner.inputs[0]
    source, wide, target = rw.dtype(x), rw.dtype(ins.inputs[0]), rw.dtype(ins.outputs[0])
    if not _holds_exactly(source, wide) or (source.kind == "f" and target.kind in "iu"):
        return None
    return rw.replace(ins, "astype", x, **ins.params)


def _holds_exactly(source: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    """Whether every number of one real dtype is a number of the other."""
    if source.kind not in "biuf" or wide.kind not in "biuf" or not np.can_cast(source, wide, "safe"):
        return False
    return wide.kind != "f" or source.kind not in "iu" or source.itemsize * 8 <= np.finfo(wide).nmant
