"""Rules for linear systems: all that is asked of a larger matrix comes from one factorization of it.

``a.T`` has the factors of ``a``, so the gradient of a solution, which solves with ``a.T``, costs no factorization.
Small matrices are left to the kernels, which factor each for every question, and for every column where there are many.
A larger triangle is solved with as it lies in memory.
"""

from __future__ import annotations

import math
from typing import Any

from jitgrad.compiler.fusing.factors import is_decomposed, is_lu_step
from jitgrad.compiler.fusing.small import is_small_routine
from jitgrad.compiler.rewriter import Result, Rewriter
from jitgrad.compiler.rules.products import swaps_last_two
from jitgrad.lapack import DOUBLE, is_wide
from jitgrad.opdef import find
from jitgrad.program import Instruction

FACTORED_ROWS = 64
"""From so many rows on where factors are no step of a cluster: microseconds in float64 of one ``solve``, and of ``lu``
with two ``lu_solve``, which stand for ``solve`` and its gradient, by LAPACK: 11 and 50 with 32 rows, 90 and 112 with
100, 913 and 986 with 300.
"""

ROWS_PER_LANE = 8
"""Up to so many rows a kernel solves for a column in each lane. Microseconds in float64, by NumPy (13 of them for the
call between two clusters) and so (two Zen 4 cores):

                 20 columns     200 columns    2000 columns
    2 rows        17, 0.5         18, 3.1         69, 34
    4 rows        14, 0.7         23, 7.6        109, 49
    8 rows        20, 2.6         29, 13         186, 125
    12 rows       25, 5.3         42, 41         285, 310
"""

LANE_PRODUCTS = 2**17
"""The square of the rows times the columns, up to which a kernel does so. Beyond, a solution is made of factors, as all
are that are wide (`lapack.is_wide`): our own code solves for a block of columns. Microseconds of value and gradient of
sum(solve(a, b)**2), in a kernel and so:

                 300 columns     2000 columns    20000 columns
    4 rows        16, 161         103, 179         782, 360
    8 rows        30, 165         242, 229        1620, 578
"""

SMALLEST_SCALE = 2.0**-10
"""Numbers down to this one may be multiplied with solutions in place of right sides: what is near the ends of the range
of numbers stays within it.
"""


def solve_by_column(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """solve(a, b)ᵀ = solve([a, a, ...], bᵀ), a small matrix for each of many columns"""
    (a, b), origin = ins.inputs, ins.origin
    spec = rw.specs[ins.outputs[0]]
    if origin.scope is None or origin.is_refused or spec.dtype.char not in "fd" or len(rw.shape(a)) != 2:
        return None
    rows, columns = spec.known_shape
    is_small = is_small_routine((rows, rows), columns) or rows * columns == 0
    if rows > ROWS_PER_LANE or rows * rows * columns > LANE_PRODUCTS:
        return None
    if is_small or rw.dtype(a) != rw.dtype(b):
        return None
    each = rw.emit(origin, "broadcast_to", a, shape=(columns, rows, rows))
    turned = rw.emit(origin, "transpose", b, axes=(1, 0))
    right = rw.emit(origin, "reshape", turned, shape=(columns, rows, 1))
    found = rw.emit_op(origin, ins.op, (each, right), ins.params)
    flat = rw.emit(origin, "reshape", found, shape=(columns, rows))
    return rw.replace(ins, "transpose", flat, axes=(1, 0))


def solve_by_factors(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """solve(a, b) = lu_solve(*lu(a), b)"""
    b, dtype = ins.inputs[1], rw.dtype(ins.outputs[0])
    rows, columns = rw.shape(b)[-2:]
    found = _factored(rw, ins, 1 if is_wide(rows, columns) else FACTORED_ROWS, columns)
    if found is None:
        return None
    factors, transposed = found
    if dtype.char != "f" or not is_lu_step(ins, rw.specs[ins.inputs[0]]):
        return rw.replace(ins, "lu_solve", *factors, b, transposed=transposed)
    double = rw.emit(ins.origin, "astype", b, dtype=rw.dtype(factors[0]))
    solved = rw.emit(ins.origin, "lu_solve", *factors, double, transposed=transposed)
    return rw.replace(ins, "astype", solved, dtype=dtype)


def inverse_by_factors(rw: Rewriter, ins: Instruction) -> Result:
    """inv(a) = lu_inv(*lu(a))"""
    found = _factored(rw, ins)
    if found is None:
        return None
    factors, transposed = found
    dtype = rw.dtype(ins.outputs[0])
    is_cast = dtype.char == "f" and is_lu_step(ins, rw.specs[ins.inputs[0]])
    if not transposed and not is_cast:
        return rw.replace(ins, "lu_inv", *factors, dtype=dtype)
    rank = len(rw.shape(ins.outputs[0]))
    inverse = rw.emit(ins.origin, "lu_inv", *factors, dtype=rw.dtype(factors[0]) if is_cast else dtype)
    if is_cast:
        inverse = rw.emit(ins.origin, "astype", inverse, dtype=dtype)
    if not transposed:
        return inverse
    return rw.replace(ins, "transpose", inverse, axes=(*range(rank - 2), rank - 1, rank - 2))


def determinant_by_factors(rw: Rewriter, ins: Instruction) -> Result:
    """det(a) = lu_det(*lu(a)), and so for slogdet"""
    found = _factored(rw, ins)
    if found is None:
        return None
    if not is_lu_step(ins, rw.specs[ins.inputs[0]]):
        return rw.replace(ins, f"lu_{ins.op.name}", *found[0], dtype=rw.dtype(ins.outputs[0]))
    sign, logarithm = _sign_and_logarithm(rw, ins, *found[0])
    dtype = rw.dtype(ins.outputs[0])
    made = [sign, logarithm]
    if ins.op.name == "det":
        made = [rw.emit(ins.origin, "multiply", sign, rw.emit(ins.origin, "exp", logarithm))]
    return tuple([rw.emit(ins.origin, "astype", x, dtype=dtype) for x in made])


def _sign_and_logarithm(rw: Rewriter, ins: Instruction, factors: int, exchanged: int) -> tuple[int, int]:
    """Of the determinants, float64, in operations that kernels do: the determinant comes from them, so that no product
    overflows on the way.
    """
    origin, rank = ins.origin, len(rw.shape(exchanged))

    def op(name: str, *inputs: int, **params: Any) -> int:
        return rw.emit(origin, name, *inputs, **params)

    def number(value: float, like: int) -> int:
        return rw.emit_splat(origin, value, rw.specs[like])

    def reduced(name: str, x: int) -> int:
        return op(name, x, axis=(rank - 1,), keepdims=False)

    diagonal = op("diagonal", factors, offset=0, axis1=rank - 1, axis2=rank)
    size = op("absolute", diagonal)
    ones = number(1.0, diagonal)
    signs = op("where", op("less", diagonal, number(0.0, diagonal)), number(-1.0, diagonal), ones)
    places = op("iota", shape=rw.shape(exchanged), axis=rank - 1, dtype=rw.dtype(exchanged))
    moved = op("not_equal", exchanged, op("add", places, number(1, exchanged)))
    turned = op("where", moved, op("negative", signs), signs)
    zeroed = op("where", op("equal", size, number(0.0, size)), number(0.0, size), turned)
    return reduced("prod", zeroed), reduced("sum", op("log", size))


_WITH_VECTORS = {"eigvalsh": ("eigh", 0), "svdvals": ("svd", 1)}
"""The op that makes vectors and values, and which of its outputs these are."""


def values_with_vectors(rw: Rewriter, ins: Instruction) -> tuple[int, ...] | None:
    """eigvalsh(a) = eigh(a)[0] and svdvals(a) = svd(a)[1], where vectors of the same matrix are asked for, as by the
    gradient
    """
    name, place = _WITH_VECTORS[ins.op.name]
    for other in rw.instructions_of(name):
        if rw.new_inputs(other) == ins.inputs and other.params == ins.params:
            return (rw.emit_all(ins.origin, other.op, ins.inputs, ins.params)[place],)
    return None


def decomposed_in_double(rw: Rewriter, ins: Instruction) -> tuple[int, ...] | None:
    """svd(a) = svd(float64(a)), rounded, of float32 and where NumPy's loop is a step of a cluster; as NumPy does"""
    (a,), dtype = ins.inputs, rw.dtype(ins.inputs[0])
    if dtype.char != "f" or not _is_decomposed(rw, ins):
        return None
    double = rw.emit(ins.origin, "astype", a, dtype=DOUBLE["d"])
    made = rw.emit_all(ins.origin, ins.op, (double,), ins.params)
    return tuple([rw.emit(ins.origin, "astype", x, dtype=dtype) for x in made])


def inverse_by_singular_values(rw: Rewriter, ins: Instruction) -> int | None:
    """pinv(u s vᵀ) = v (1/s) uᵀ, with 0 for what is not above a share of the largest s, where these are a step"""
    (a,), origin = ins.inputs, ins.origin
    if rw.dtype(a).char not in "fd" or not _is_decomposed(rw, ins):
        return None
    u, s, vh = rw.emit_all(origin, find("svd"), (a,), {})
    rw.is_open = True  # singular values alone are these, too
    rank, shape = len(rw.shape(a)), rw.shape(s)

    def op(name: str, *inputs: int, **params: Any) -> int:
        return rw.emit(origin, name, *inputs, **params)

    def number(value: float, like: int) -> int:
        return rw.emit_splat(origin, value, rw.specs[like])

    def turned(x: int) -> int:
        return op("transpose", x, axes=(*range(rank - 2), rank - 1, rank - 2))

    exact = s if rw.dtype(s).char == "d" else op("astype", s, dtype=DOUBLE["d"])
    largest = op(
        "getslice", exact, start=(0,) * (rank - 1), stop=(*shape[:-1], 1), step=(1,) * (rank - 1), drop=(),
    )  # fmt: skip
    limit = op("multiply", largest, number(ins.params["rcond"], largest))
    counts = op("greater", exact, op("broadcast_to", limit, shape=shape))
    reciprocal = op("divide", number(1.0, s), op("where", counts, s, number(1.0, s)))
    kept = op("where", counts, reciprocal, number(0.0, s))
    rows = op("broadcast_to", op("expand_dims", kept, axes=(rank - 1,)), shape=rw.shape(turned(u)))
    return op("matmul", turned(vh), op("multiply", rows, turned(u)), transpose_a=False, transpose_b=False)


def _is_decomposed(rw: Rewriter, ins: Instruction) -> bool:
    is_compiled = ins.origin.scope is not None and not ins.origin.is_refused
    return is_compiled and is_decomposed(ins, rw.specs[ins.inputs[0]])


def solve_by_rows(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """solve_triangular(a.T, b) = solve_turned(a, b), without a.T"""
    a, b = ins.inputs
    turned = rw.producer(a, "transpose")
    if turned is None or not swaps_last_two(turned.params["axes"]) or is_small_routine(rw.shape(a), rw.shape(b)[-1]):
        return None
    return rw.replace(ins, "solve_turned", turned.inputs[0], b, lower=not ins.params["lower"])


def scale_after_solving(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """solve(a, c b) = c solve(a, b), to the bit where c is a power of two: the gradient of ½ bᵀ inv(a) b solves for ½ b
    what is solved for b
    """
    *a, b = ins.inputs
    spec = rw.specs[ins.outputs[0]]
    reshaped = rw.producer(b, "reshape")
    product = rw.producer(b if reshaped is None else reshaped.inputs[0], "multiply")
    if product is None or spec.dtype.kind != "f" or is_small_routine(rw.shape(a[0]), rw.shape(b)[-1]):
        return None
    number, whole = product.inputs if product.inputs[0] in rw.numbers else product.inputs[::-1]
    c = rw.numbers.get(number)
    if not isinstance(c, float) or not SMALLEST_SCALE <= abs(c) <= 1 or abs(math.frexp(c)[0]) != 0.5:
        return None
    if reshaped is not None:
        whole = rw.emit_op(reshaped.origin, reshaped.op, (whole,), reshaped.params)
    solved = rw.emit_op(ins.origin, ins.op, (*a, whole), ins.params)
    return rw.replace(ins, "multiply", rw.emit_splat(ins.origin, c, spec), solved)


def _factored(
    rw: Rewriter, ins: Instruction, least: int = FACTORED_ROWS, columns: int = 1
) -> tuple[tuple[int, ...], bool] | None:
    """The factors of the matrices that an instruction is about, or of their transposes; None for what has no need, with
    fewer rows than ``least``, or a kernel.
    """
    a = ins.inputs[0]
    shape, is_step = rw.shape(a), is_lu_step(ins, rw.specs[a])
    is_small = shape[-1] < least and not is_step
    if rw.dtype(a).char not in DOUBLE or is_small or 0 in shape or is_small_routine(shape, columns):
        return None
    turned = rw.producer(a, "transpose")
    transposed = turned is not None and swaps_last_two(turned.params["axes"])
    if turned is not None and transposed:
        a = turned.inputs[0]
    if is_step:
        a = rw.emit(ins.origin, "astype", a, dtype=DOUBLE[rw.dtype(a).char])
    return rw.emit_all(ins.origin, find("lu"), (a,), {}), transposed
