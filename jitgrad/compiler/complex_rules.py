"""What operations on complex numbers become of real and imaginary parts; which do is said in complex_pairs.py.

The formulas are those of NumPy's own loops, so that infinities, NaN and zeros come out as there: products as they are
written, quotients by R. L. Smith's algorithm (Communications of the ACM 5, 1962), which does not overflow on the way.
Where NumPy's loops have products and sums in one instruction, products that overflow may differ; and so does the sign
of exp(-inf - inf j), which C leaves open.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jitgrad.bare import transform_loops
from jitgrad.compiler.constants import is_splat, splat, splat_number
from jitgrad.compiler.remaking import Splitting
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple
from jitgrad.spec import DType

_LARGE_EXPONENT = 700.0
"""Half of the way to where the square of exp overflows; beyond it, exp is made in two factors."""


class Pair(NamedTuple):
    """The values that are the real and the imaginary part of one."""

    re: int
    im: int


class PairWriter(Splitting[Pair], ABC):
    """A program of complex numbers, written anew by parts: arithmetic, and parts in memory."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._paired: dict[int, int] = {}  # values in memory as pairs already

    def paired(self, v: int) -> int:
        """A complex value as pairs along a new last axis, in memory."""
        if v not in self._paired:
            pair = self._parts.get(v)
            if pair is None:
                self._paired[v] = self.emit("pair_of", self.whole(v))
            else:
                self._paired[v] = self.emit("stack", *pair, axis=len(self.specs[pair.re].known_shape))
        return self._paired[v]

    def out_of_pairs(self, v: int, pair: int) -> Pair:
        """Both parts of a value that lies in memory as pairs."""
        self._paired[v] = pair
        *shape, _ = self.specs[pair].known_shape
        rank = len(shape)

        def part(k: int) -> int:
            start, stop, step = (0,) * rank + (k,), (*shape, k + 1), (1,) * (rank + 1)
            return self.emit("getslice", pair, start=start, stop=stop, step=step, drop=(rank,))

        return Pair(part(0), part(1))

    def number(self, value: float, like: int) -> int:
        """A constant of one number with shape and dtype of a value."""
        spec = self.specs[like]
        return self.emit("constant", value=splat(value, spec.known_shape, spec.dtype))

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def plus(self, x: int, y: int) -> int:
        """x + y"""
        return self.emit("add", x, y)

    def minus(self, x: int, y: int) -> int:
        """x - y"""
        return self.emit("subtract", x, y)

    def times(self, x: int, y: int) -> int:
        """x y"""
        return self.emit("multiply", x, y)

    def product(self, x: Pair, y: Pair, times: Callable[[int, int], int]) -> Pair:
        """The product of two complex numbers, by what multiplies real ones."""
        re = self.minus(times(x.re, y.re), times(x.im, y.im))
        return Pair(re, self.plus(times(x.re, y.im), times(x.im, y.re)))

    def choice(self, where: int, x: int, y: int) -> int:
        """x where it holds, y elsewhere"""
        return self.emit("where", where, x, y)


def real_dtype(dtype: DType) -> DType:
    """The dtype of the parts of complex numbers."""
    return np.empty(0, dtype).real.dtype


Rule = Callable[[PairWriter, Instruction], Pair | int]


def _constant(s: PairWriter, ins: Instruction) -> Pair:
    value = ins.params["value"]

    def part(x: Any) -> int:
        array = splat(splat_number(x), x.shape, x.dtype) if is_splat(x) else np.ascontiguousarray(x)
        return s.emit("constant", value=array)

    return Pair(part(value.real), part(value.imag))


def _each(s: PairWriter, ins: Instruction) -> Pair:
    """The op itself on all real parts and on all imaginary ones; other inputs, positions, are for both."""
    sides = []
    for side in (0, 1):
        inputs = [s.parts(v)[side] if s.program.specs[v].dtype.kind == "c" else s.whole(v) for v in ins.inputs]
        sides.append(s.emit(ins.op.name, *inputs, **ins.params))
    return Pair(*sides)


def _padded(s: PairWriter, ins: Instruction) -> Pair:
    x, fill = s.parts(ins.inputs[0]), complex(ins.params["fill"])
    width = ins.params["pad_width"]
    re = s.emit("pad", x.re, pad_width=width, fill=fill.real)
    return Pair(re, s.emit("pad", x.im, pad_width=width, fill=fill.imag))


def _cast(s: PairWriter, ins: Instruction) -> Pair | int:
    dtype = ins.params["dtype"]
    x = s.parts(ins.inputs[0])
    to = real_dtype(dtype)
    re = s.emit("astype", x.re, dtype=to)
    if dtype.kind == "c":
        im = s.emit("astype", x.im, dtype=to) if s.program.specs[ins.inputs[0]].dtype.kind == "c" else s.number(0.0, re)
        return Pair(re, im)
    return re


def _multiplied(s: PairWriter, ins: Instruction) -> Pair:
    return s.product(s.parts(ins.inputs[0]), s.parts(ins.inputs[-1]), s.times)  # a square has one input


def _multiplied_matrices(s: PairWriter, ins: Instruction) -> Pair:
    a, b = (s.parts(v) for v in ins.inputs)
    return s.product(a, b, lambda x, y: s.emit("matmul", x, y, **ins.params))


def _divided(s: PairWriter, ins: Instruction) -> Pair:
    a, b = (s.parts(v) for v in ins.inputs)
    size_re, size_im = s.emit("absolute", b.re), s.emit("absolute", b.im)
    by_re = s.emit("greater_equal", size_re, size_im)
    large, small = s.choice(by_re, b.re, b.im), s.choice(by_re, b.im, b.re)
    ratio = s.emit("divide", small, large)
    scale = s.emit("divide", s.number(1.0, ratio), s.plus(large, s.times(small, ratio)))
    first, second = s.choice(by_re, a.re, a.im), s.choice(by_re, a.im, a.re)
    re = s.times(s.plus(first, s.times(second, ratio)), scale)
    part = s.times(first, ratio)
    im = s.times(s.minus(s.choice(by_re, second, part), s.choice(by_re, part, second)), scale)
    is_zero = s.emit("equal", s.choice(by_re, size_re, size_im), s.number(0.0, ratio))
    return Pair(
        s.choice(is_zero, s.emit("divide", a.re, size_re), re), s.choice(is_zero, s.emit("divide", a.im, size_re), im)
    )


def _exponential(s: PairWriter, ins: Instruction) -> Pair:
    """exp(x + iy) = exp(x) (cos y + i sin y), as C has it where x or y is not finite, and y where that is 0."""
    x, y = s.parts(ins.inputs[0])
    limit = s.number(_LARGE_EXPONENT if s.specs[x].dtype.itemsize == 8 else _LARGE_EXPONENT / 8, x)
    is_large = s.emit("greater", x, limit)
    rest = s.choice(is_large, s.minus(x, limit), x)
    factor = s.choice(is_large, s.emit("exp", limit), s.number(1.0, x))

    def scaled(part: int) -> int:
        return s.times(s.times(s.emit("exp", rest), part), factor)

    zero = s.number(0.0, x)
    wild = s.emit("logical_and", s.emit("isinf", x), s.emit("logical_not", s.emit("isfinite", y)))
    re, im = scaled(s.emit("cos", y)), scaled(s.emit("sin", y))
    falls = s.emit("less", x, zero)
    re = s.choice(wild, s.choice(falls, zero, s.emit("absolute", x)), re)
    im = s.choice(s.emit("logical_and", wild, falls), zero, im)
    return Pair(re, s.choice(s.emit("equal", y, zero), y, im))


def _conjugate(s: PairWriter, ins: Instruction) -> Pair:
    x = s.parts(ins.inputs[0])
    return Pair(x.re, s.emit("negative", x.im))


def _absolute(s: PairWriter, ins: Instruction) -> int:
    return s.emit("hypot", *s.parts(ins.inputs[0]))


def _compared(s: PairWriter, ins: Instruction) -> int:
    a, b = (s.parts(v) for v in ins.inputs)
    both = "logical_and" if ins.op.name == "equal" else "logical_or"
    return s.emit(both, s.emit(ins.op.name, a.re, b.re), s.emit(ins.op.name, a.im, b.im))


def _tested(s: PairWriter, ins: Instruction) -> int:
    x = s.parts(ins.inputs[0])
    both = "logical_and" if ins.op.name == "isfinite" else "logical_or"
    return s.emit(both, s.emit(ins.op.name, x.re), s.emit(ins.op.name, x.im))


def _transformed(s: PairWriter, ins: Instruction) -> Pair | int:
    """NumPy transforms numbers of single precision in double precision, where it does not divide the result."""
    (x,), (out,) = ins.inputs, ins.outputs
    given = s.whole(x) if ins.op.name == "rfft" else s.paired(x)
    real, is_divided = s.specs[given].dtype, ins.params.get("divided", ins.params.get("inverse"))
    computed = real if is_divided else np.dtype(np.float64)
    given = given if real == computed else s.emit("astype", given, dtype=computed)
    if ins.op.name == "fft":
        made = s.emit("pairs_fft", given, inverse=is_divided)
    elif ins.op.name == "rfft":
        made = s.emit("pairs_rfft", given, divided=is_divided)
    else:
        made = s.emit("pairs_irfft", given, shape=s.program.specs[out].known_shape, divided=is_divided)
    made = made if real == computed else s.emit("astype", made, dtype=real)
    return made if ins.op.name == "irfft" else s.out_of_pairs(out, made)


def is_transform_step(program: Program, ins: Instruction) -> bool:
    """Whether a Fourier transform is a step of a cluster: along the last axis, by NumPy's loop."""
    specs = [program.specs[v] for v in (*ins.inputs, *ins.outputs)]
    chars = {spec.dtype.char.lower() for spec in specs}
    if chars not in ({"d"}, {"f"}) or any(0 in spec.known_shape for spec in specs) or ins.params["axis"] != -1:
        return False
    name, is_divided = ins.op.name, ins.params.get("divided", ins.params.get("inverse"))
    loop = "ifft" if name == "fft" and is_divided else name
    return bool(transform_loops(loop, chars.pop() if is_divided else "d"))


TRANSFORMS: Mapping[str, Rule] = dict.fromkeys(("fft", "rfft", "irfft"), _transformed)
RULES: Mapping[str, Rule] = {
    **TRANSFORMS,
    "constant": _constant,
    "pad": _padded,
    "astype": _cast,
    "multiply": _multiplied,
    "square": _multiplied,
    "matmul": _multiplied_matrices,
    "divide": _divided,
    "exp": _exponential,
    "conjugate": _conjugate,
    "absolute": _absolute,
    "real": lambda s, ins: s.parts(ins.inputs[0]).re,
    "imag": lambda s, ins: s.parts(ins.inputs[0]).im,
    "equal": _compared,
    "not_equal": _compared,
    "isnan": _tested,
    "isinf": _tested,
    "isfinite": _tested,
    **dict.fromkeys(
        (
            "add", "subtract", "negative", "positive", "add_n", "identity", "stop_gradient", "where", "sum", "cumsum",
            "reshape", "merge_axes", "getslice", "unslice", "broadcast_to", "diagonal", "concatenate", "stack",
            "transpose", "expand_dims", "squeeze", "flip", "take", "index", "take_along_axis", "scatter_take",
            "scatter_index", "scatter_take_along_axis",
        ),
        _each,
    ),
}  # fmt: skip
