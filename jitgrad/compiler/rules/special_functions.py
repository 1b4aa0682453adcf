"""Special functions without a routine of their own, made of those that have one; to rounding, at the edges too."""

from __future__ import annotations

import math

import numpy as np

from jitgrad import normal_tail
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction

_ROOT_HALF = math.sqrt(0.5)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_TAIL = -30.0  # where log_ndtr passes to its series, whose next term is below rounding; erfc is normal until there
_DOUBLE = np.dtype(np.float64)
# log(-x sqrt(2 pi) exp(x**2 / 2) ndtr(x)) in 1 / x**2, from the highest power down.
_SERIES = (-4081 / 5, 353 / 4, -37 / 3, 5 / 2, -1.0)


class _Emitter:
    """Emits element-wise instructions in place of one, on values and numbers of its dtype and shape."""

    def __init__(self, rw: Rewriter, ins: Instruction) -> None:
        self._rw, self._ins = rw, ins
        self._spec = rw.specs[ins.outputs[0]]

    def __call__(self, name: str, *operands: int | float) -> int:
        return self._rw.emit(self._ins.origin, name, *self._values(operands))

    def last(self, name: str, *operands: int | float) -> Instruction:
        return self._rw.replace(self._ins, name, *self._values(operands))

    def _values(self, operands: tuple[int | float, ...]) -> list[int]:
        """Values by their numbers, which are integers; constants for floats."""
        emit = self._rw.emit_splat
        return [emit(self._ins.origin, x, self._spec) if isinstance(x, float) else x for x in operands]


def in_double(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """ndtr and log_ndtr of single precision are computed in double, as SciPy does

    A tail near 0 changes by x² times what x does: single precision's rounding of x sqrt(1/2) is 120 ulp of ndtr(-12).
    """
    if rw.dtype(ins.inputs[0]) == _DOUBLE:
        return None
    x = rw.emit(ins.origin, "astype", ins.inputs[0], dtype=_DOUBLE)
    return rw.replace(ins, "astype", rw.emit_op(ins.origin, ins.op, (x,), ins.params), dtype=rw.dtype(ins.outputs[0]))


def normal_distribution(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """ndtr(x) = erfc(-x sqrt(1/2)) / 2, as SciPy computes it"""
    op = _Emitter(rw, ins)
    return op.last("multiply", 0.5, op("erfc", op("multiply", -_ROOT_HALF, ins.inputs[0])))


def log_of_normal_distribution(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """log_ndtr(x) = log1p(-e) for x > 0 and log(e) below, for e = erfc(|x| sqrt(1/2)) / 2, and its series far below"""
    (x,), op = ins.inputs, _Emitter(rw, ins)
    e = op("multiply", 0.5, op("erfc", op("multiply", _ROOT_HALF, op("absolute", x))))
    near = op("where", op("greater", x, 0.0), op("log1p", op("negative", e)), op("log", e))
    far = op("minimum", x, _TAIL)
    r = op("reciprocal", op("square", far))
    series = op("multiply", _SERIES[0], r)
    for factor in _SERIES[1:]:
        series = op("multiply", op("add", series, factor), r)
    size = op("add", op("log", op("negative", far)), _HALF_LOG_2PI)
    log = op("subtract", op("multiply", op("multiply", -0.5, far), far), size)
    return op.last("where", op("less", x, _TAIL), op("add", log, series), near)


def excess_of_normal_tail(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """the excess of the hazard over -x is a polynomial in (t - 3) / (t + 3) over t + 3, for t = -x"""
    (x,), op = ins.inputs, _Emitter(rw, ins)
    shifted = op("subtract", normal_tail.MIDDLE, x)
    u = op("subtract", 1.0, op("divide", 2 * normal_tail.MIDDLE, shifted))
    first, *rest = normal_tail.COEFFICIENTS
    total = op("multiply", first, u)
    for factor in rest[:-1]:
        total = op("multiply", op("add", total, factor), u)
    return op.last("divide", op("add", total, rest[-1]), shifted)


def product_with_log(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """xlogy(x, y) = x log(y), and 0 where x is 0 and y a number; xlog1py likewise"""
    (x, y), op = ins.inputs, _Emitter(rw, ins)
    product = op("multiply", x, op("log" if ins.op.name == "xlogy" else "log1p", y))
    is_zero = op("logical_and", op("equal", x, 0.0), op("equal", y, y))
    return op.last("where", is_zero, 0.0, product)
