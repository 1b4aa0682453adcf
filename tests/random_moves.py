"""The moves that random programs are made of: each makes a tensor from one in the pool, or None where it does not
apply. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from jitgrad.graph import Tensor
from tests.random_draws import DTYPES, Draw, are_compatible, as_float, op, tame

Move = Callable[[Draw, Tensor], Tensor | None]


# elementwise


def unary(d: Draw, x: Tensor) -> Tensor:
    if x.dtype.kind == "f":
        name = d.one("tanh", "sin", "cos", "exp", "square", "negative", "absolute", "sigmoid", "softplus", "arctan",
                     "relu", "floor", "ceil", "rint", "sign")  # fmt: skip
        return op(name, tame(x) if name == "exp" else x)
    if x.dtype.kind == "b":
        return op(d.one("logical_not", "invert"), x)
    return op(d.one("negative", "absolute", "square", "invert", "sign", "logical_not", "rint"), x)


def binary(d: Draw, x: Tensor) -> Tensor:
    y = d.other(lambda y: are_compatible(x, y))
    kinds = {x.dtype.kind, y.dtype.kind}
    if kinds == {"b"}:
        return op(d.one("logical_and", "logical_or", "bitwise_xor", "equal", "maximum", "add", "multiply"), x, y)
    if "f" not in kinds:
        if d.chance(0.3):
            return op(d.one("bitwise_and", "bitwise_or", "left_shift", "right_shift"), x, op("astype", y, x.dtype))
        name = d.one("add", "multiply", "maximum", "minimum", "floor_divide", "remainder", "fmod", "equal", "divide")
        return op(name, x, y)
    name = d.one("add", "subtract", "multiply", "multiply", "maximum", "fmin", "where", "divide", "greater")
    if name == "where":
        return op("where", op("less", x, y), x, y)
    if name == "divide":
        return op("divide", x, op("add", op("square", as_float(d, y)), 1.5))
    return op(name, x, y)


def cast_to(d: Draw, x: Tensor) -> Tensor:
    return op("astype", x, np.dtype(d.one("f4", "f8", "?", "i4", "i8") if x.dtype.kind == "f" else d.one(*DTYPES)))


def compare_along(d: Draw, x: Tensor) -> Tensor | None:
    """A one-hot mask, or a choice by a running sum."""
    if not x.ndim:
        return None
    axis = d.axis(x)
    if d.chance(0.5):
        last = op("equal", op("expand_dims", op("astype", x, np.dtype("i8")), x.ndim), np.arange(4))
        return op("multiply", last, d.one(2.0, 3)) if x.ndim < 4 else None
    total = op("cumsum", op("astype", x, np.dtype("i8")), axis=axis)
    return op("where", op("greater", total, 0), x, op("flip", x, axis))


# reductions, scans, products


def reduce(d: Draw, x: Tensor) -> Tensor | None:
    name = d.one("sum", "sum", "max", "min", "prod", "any", "all", "mean", "logsumexp", "var")
    axis: Any = None
    if x.ndim and d.chance(0.85):
        axis = tuple(int(a) for a in d.rng.choice(x.ndim, d.between(1, x.ndim + 1), replace=False))
    if x.size == 0 and name in ("max", "min", "mean", "logsumexp", "var"):
        return None
    if name in ("mean", "logsumexp", "var"):
        x = as_float(d, x)
    return op(name, tame(x) if name == "prod" else x, axis=axis, keepdims=d.chance(0.5))


def find_extreme(d: Draw, x: Tensor) -> Tensor | None:
    if x.size == 0:
        return None
    if x.ndim and d.chance(0.5):
        axis = d.axis(x)
        return op("take_along_axis", x, op(d.one("argmax", "argmin"), x, axis=axis, keepdims=True), axis=axis)
    axis_or_all = d.axis(x) if x.ndim and d.chance(0.7) else None
    return op(d.one("argmax", "argmin"), x, axis=axis_or_all, keepdims=d.chance(0.5))


def scan(d: Draw, x: Tensor) -> Tensor | None:
    if not x.ndim:
        return None
    axis = d.axis(x)
    if d.chance(0.25):
        return op("cumprod", tame(x), axis=axis)
    if d.chance(0.3):
        return op("flip", op("cumsum", op("flip", x, axis), axis=axis), axis)
    return op("cumsum", x, axis=axis)


def normalize(d: Draw, x: Tensor) -> Tensor | None:
    if not x.ndim or x.size == 0:
        return None
    x, axis = as_float(d, x), d.axis(x)
    if d.chance(0.6):
        return op(d.one("softmax", "log_softmax"), x, axis=axis)
    centred = op("subtract", x, op("mean", x, axis=axis, keepdims=True))
    return op("divide", centred, op("sqrt", op("add", op("var", x, axis=axis, keepdims=True), 0.01)))


def product(d: Draw, x: Tensor) -> Tensor | None:
    if x.ndim < 2 or x.dtype.kind == "b":
        return None
    if x.ndim == 2 and d.chance(0.4):
        formula = d.one("ij,ij->i", "ij,kj->ik", "ij,ij->j", "ij,kj->ijk", "ij,ik->jk")
        return op("einsum", formula, tame(x), x)
    y = op("swapaxes", tame(x), -1, -2)
    return op("matmul", x, op("flip", y, -1) if d.chance(0.5) else y)


def with_its_transpose(d: Draw, x: Tensor) -> Tensor | None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        return None
    y = op("swapaxes", x, -1, -2)
    move = d.one("add", "choose", "tril", "diagonal")
    if move == "add":
        return op("logical_or" if x.dtype.kind == "b" else d.one("add", "multiply"), x, y)
    if move == "choose":
        return op("where", op("less", op("flip", x, -1), y), x, y)
    if move == "tril":
        return op(d.one("tril", "triu"), x, d.between(-2, 3))
    return op("diagonal", x, 0, x.ndim - 2, x.ndim - 1)


# movement


def reshape(d: Draw, x: Tensor) -> Tensor | None:
    move = d.one("expand", "broadcast", "transpose", "rows", "flat", "swap")
    if move == "expand":
        return op("expand_dims", x, d.between(0, x.ndim + 1))
    if move == "broadcast":
        return op("broadcast_to", x, (d.between(1, 4), *x.shape))
    if not x.ndim:
        return None
    if move == "transpose":
        return op("transpose", x, tuple(int(a) for a in d.rng.permutation(x.ndim)))
    if move == "flat" or not x.size:
        return op("reshape", x, (x.size,))
    if move == "rows":
        return op("reshape", x, (-1, x.shape[-1]))
    return op("swapaxes", op("reshape", x, (x.shape[0], -1)), 0, 1)


def flip(d: Draw, x: Tensor) -> Tensor | None:
    if not x.ndim:
        return None
    axis = d.axis(x)
    y = op("flip", x, axis) if d.chance(0.5) else op("roll", x, d.between(-3, 4), axis)
    if d.chance(0.3):
        return y
    return op("logical_and" if x.dtype.kind == "b" else d.one("add", "multiply"), x, y)


def pad(d: Draw, x: Tensor) -> Tensor | None:
    if not x.ndim:
        return None
    widths = [(d.between(0, 3), d.between(0, 3)) for _ in x.shape]
    return op("pad", x, widths, constant_values=d.one(0, 0, 1, 3))


def slice_out(d: Draw, x: Tensor) -> Tensor | None:
    index = _any_slices(d, x, may_drop=True)
    return x[index] if x.ndim else None


def _any_slices(d: Draw, x: Tensor, may_drop: bool) -> tuple[Any, ...]:
    def bound(n: int) -> int | None:
        return None if d.chance(0.5) else d.between(-n - 1, n + 2)

    def along(n: int) -> Any:
        if d.chance(0.4):
            return slice(None)
        if may_drop and n and d.chance(0.2):
            return d.between(-n, n)
        return slice(bound(n), bound(n), d.one(1, 1, 2, -1, -2, 3))

    return tuple(along(n) for n in x.shape)


def join(d: Draw, x: Tensor) -> Tensor | None:
    if not x.ndim or d.chance(0.4):
        y = d.other(lambda y: y.shape == x.shape)
        return op("stack", [x, y], axis=d.between(0, x.ndim + 1)) if x.ndim < 4 else None
    axis = d.axis(x)

    def fits(y: Tensor) -> bool:
        return y.ndim == x.ndim and all(x.shape[k] == y.shape[k] for k in range(x.ndim) if k != axis)

    y = d.other(fits)
    return op("concatenate", [x, y, op("flip", x, axis)] if d.chance(0.4) else [y, x], axis=axis)


def repeat(d: Draw, x: Tensor) -> Tensor | None:
    if not x.ndim:
        return None
    if d.chance(0.5):
        return op("repeat", x, d.between(1, 4), axis=d.axis(x))
    return op("tile", x, tuple(d.between(1, 3) for _ in x.shape))


# positions


def gather(d: Draw, x: Tensor) -> Tensor | None:
    """Rows by positions that are constants, or computed and then brought into range."""
    if not x.ndim:
        return None
    axis = d.axis(x)
    n = x.shape[axis]
    computed = [t for t in d.pool if t.dtype.kind == "i" and t.ndim <= 2]
    if not n:
        return None
    if computed and d.chance(0.5):
        return op("take", x, op("remainder", d.one(*computed), np.int64(n) if n > 127 else n), axis=axis)
    if x.ndim >= 2 and x.shape[0] and x.shape[1] and d.chance(0.5):
        m = d.between(1, 5)
        rows, columns = (d.rng.integers(-k, k, m) for k in x.shape[:2])
        return cast(Tensor, x[rows, columns] if d.chance(0.5) else x[rows[:, None], columns])
    return op("take", x, d.rng.integers(-n, n, d.between(1, 5)), axis=axis)


def scatter(d: Draw, x: Tensor) -> Tensor | None:
    """Sums of the rows that share a number, of x itself or of something cheap."""
    if not x.ndim or x.dtype.kind == "b":
        return None
    n = x.shape[0]
    rows = op("arange", n) if d.chance(0.5) else d.rng.integers(0, 99, n)
    data = op("multiply", x, 2) if d.chance(0.5) else x
    return op("unsorted_segment_sum", data, op("remainder", rows, 3), d.between(3, 5))


def assign(d: Draw, x: Tensor) -> Tensor | None:
    """A part overwritten, by a number, by a multiple of itself, or at positions."""
    if not x.ndim:
        return None
    y = op("identity_tensor", x)
    if x.shape[0] and d.chance(0.3):
        y[d.rng.integers(-x.shape[0], x.shape[0], 2)] = d.one(0, 1)
        return y
    index = _any_slices(d, x, may_drop=False)
    y[index] = d.one(0, 1) if x.dtype.kind == "b" or d.chance(0.5) else x[index] * 2
    return y


FLOAT_MOVES: tuple[Move, ...] = (
    *(unary,) * 3, *(binary,) * 4, *(reduce,) * 3, *(reshape,) * 2, flip, pad, *(slice_out,) * 2, join, product,
    scan, gather, scatter, assign, normalize, with_its_transpose, find_extreme,
)  # fmt: skip
MIXED_MOVES: tuple[Move, ...] = (*FLOAT_MOVES, *(cast_to,) * 2, compare_along, repeat)
