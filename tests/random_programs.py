"""Random programs for compiler tests: tensors of small shapes under random ops, with gradients; pure functions
of a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import operators
from jitgrad.gradients import gradients
from jitgrad.graph import Graph, Tensor
from jitgrad.program import Program, slice_graph
from jitgrad.scopes import jit_scope
from jitgrad.spec import TensorSpec

F = operators.functions
SMALL = (1, 2, 3, 5, 17)
LARGE = (1, 3, 40, 67, 130, 300)  # several vectors, several chunks


def random_program(
    seed: int, ops: int = 14, orders: int = 1, extents: tuple[int, ...] = SMALL
) -> tuple[Program, list[Any]]:
    """A program with its gradients up to ``orders``, all in one jit scope, and arrays to run it on."""
    rng = np.random.default_rng(seed)
    graph = Graph()
    with graph.as_default(), jit_scope():
        inputs = [_input(rng, extents) for _ in range(int(rng.integers(1, 4)))]
        pool: list[Tensor] = list(inputs)
        for _ in range(int(rng.integers(2, ops))):
            made = _grow(rng, pool)
            if made is not None and made.size <= 1000 * max(extents):
                pool.append(made)
        fetches = list(dict.fromkeys([pool[-1], *(pool[int(k)] for k in rng.integers(0, len(pool), 2))]))
        loss = _loss(pool[-1])
        for _ in range(orders):
            found = [g for g in gradients(loss, inputs) if g is not None]
            fetches += found
            if not found:
                break
            loss = _loss(found[0])
    feeds = {x: x.spec for x in inputs}
    arrays = [_data(rng, x.spec) for x in inputs]
    return slice_graph(fetches, feeds), arrays


def _loss(x: Tensor) -> Tensor:
    if x.dtype.kind != "f":
        x = F["astype"](x, np.float64)
    return F["sum"](F["sin"](x))  # type: ignore[no-any-return]


def _input(rng: np.random.Generator, extents: tuple[int, ...]) -> Tensor:
    shape = tuple(int(n) for n in rng.choice(extents, int(rng.integers(0, 4))))
    return F["placeholder"](rng.choice([np.float64, np.float64, np.float32]), shape)  # type: ignore[no-any-return]


def _data(rng: np.random.Generator, spec: TensorSpec) -> Any:
    return np.asarray(rng.uniform(-2, 2, spec.known_shape), spec.dtype)


def _grow(rng: np.random.Generator, pool: list[Tensor]) -> Tensor | None:
    move = _MOVES[int(rng.integers(len(_MOVES)))]
    x = pool[int(rng.integers(max(0, len(pool) - 5), len(pool)))]
    return move(rng, x, pool)


def _unary(rng: np.random.Generator, x: Tensor, pool: list[Tensor]) -> Tensor:
    name = rng.choice(["tanh", "sin", "exp", "square", "negative", "abs", "sigmoid", "softplus", "cos", "arctan"])
    if name == "exp":
        x = F["tanh"](x)
    return F[name if name != "abs" else "absolute"](x)  # type: ignore[no-any-return]


def _binary(rng: np.random.Generator, x: Tensor, pool: list[Tensor]) -> Tensor | None:
    y = pool[int(rng.integers(len(pool)))]
    name = rng.choice(["add", "subtract", "multiply", "maximum", "where", "divide"])
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return None
    if name == "where":
        return F["where"](F["greater"](x, y), x, y)  # type: ignore[no-any-return]
    if name == "divide":
        return F["divide"](x, F["add"](F["square"](y), 1.5))  # type: ignore[no-any-return]
    return F[name](x, y)  # type: ignore[no-any-return]


def _reduce(rng: np.random.Generator, x: Tensor, pool: list[Tensor]) -> Tensor:
    name = rng.choice(["sum", "mean", "max", "logsumexp", "var", "min"])
    axis: Any = None if x.ndim == 0 or rng.random() < 0.2 else int(rng.integers(x.ndim))
    if axis is not None and x.ndim > 1 and rng.random() < 0.3:
        axis = tuple(int(a) for a in rng.choice(x.ndim, 2, replace=False))
    return F[name](x, axis=axis, keepdims=bool(rng.random() < 0.5))  # type: ignore[no-any-return]


def _move(rng: np.random.Generator, x: Tensor, pool: list[Tensor]) -> Tensor:
    choice = int(rng.integers(7))
    if choice == 0 or x.ndim == 0:
        return F["expand_dims"](x, 0)  # type: ignore[no-any-return]
    axis = int(rng.integers(x.ndim))
    if choice == 1:
        return F["transpose"](x, tuple(int(a) for a in rng.permutation(x.ndim)))  # type: ignore[no-any-return]
    if choice == 2:
        return F["reshape"](x, (-1, x.shape[-1]))  # type: ignore[no-any-return]
    if choice == 3:
        return F["flip"](x, axis)  # type: ignore[no-any-return]
    if choice == 4:
        width = [(0, 0)] * x.ndim
        width[axis] = (int(rng.integers(3)), int(rng.integers(3)))
        return F["pad"](x, width)  # type: ignore[no-any-return]
    if choice == 5:
        return F["concatenate"]([x, F["sin"](x)], axis=axis)  # type: ignore[no-any-return]
    start, step = int(rng.integers(x.shape[axis])), int(rng.choice([1, 1, 2, -1]))
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = slice(start, None, step)
    return x[tuple(index)]  # type: ignore[no-any-return]


def _product(rng: np.random.Generator, x: Tensor, pool: list[Tensor]) -> Tensor | None:
    if x.ndim < 2:
        return None
    return F["matmul"](x, F["swapaxes"](F["tanh"](x), -1, -2))  # type: ignore[no-any-return]


def _index(rng: np.random.Generator, x: Tensor, pool: list[Tensor]) -> Tensor | None:
    if x.ndim == 0:
        return None
    axis = int(rng.integers(x.ndim))
    n = x.shape[axis]
    choice = int(rng.integers(3))
    if choice == 0:
        return F["take"](x, rng.integers(-n, n, int(rng.integers(1, 5))), axis=axis)  # type: ignore[no-any-return]
    if choice == 1:
        return F["cumsum"](x, axis=axis)  # type: ignore[no-any-return]
    return F["astype"](F["argmax"](x, axis=axis), x.dtype)  # type: ignore[no-any-return]


_MOVES: tuple[Callable[[np.random.Generator, Tensor, list[Tensor]], Tensor | None], ...] = (
    _unary, _unary, _unary, _binary, _binary, _binary, _reduce, _reduce, _move, _move, _product, _index,
)  # fmt: skip
