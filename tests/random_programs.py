"""Random programs for compiler tests, with gradients, in and out of jit scopes; pure functions of a seed.

What one op adds is in random_moves.py; how results are compared, in tolerances.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from jitgrad.gradients import gradients
from jitgrad.graph import Graph, Tensor
from jitgrad.program import Program, slice_graph
from jitgrad.scopes import jit_scope
from jitgrad.spec import TensorSpec
from tests.random_draws import DTYPES, Draw, op
from tests.random_moves import FLOAT_MOVES, MIXED_MOVES, Move

SMALL = (0, 1, 1, 2, 3, 5, 5, 17)
LARGE = (1, 3, 40, 67, 130, 300)  # several vectors, several chunks


def random_program(
    seed: int, ops: int = 14, orders: int = 1, extents: tuple[int, ...] = SMALL
) -> tuple[Program, list[Any]]:
    """A program with its gradients up to ``orders``, and arrays to run it on.

    Even seeds give floats only and one jit scope, odd ones all dtypes and several scopes with bare ops between; one
    in eight feeds NaN, infinities and the largest integers too.
    """
    rng = np.random.default_rng(seed)
    is_mixed = seed % 2 == 1
    with Graph().as_default():
        inputs = [_input(rng, extents, is_mixed) for _ in range(int(rng.integers(1, 4)))]
        pool = list(inputs)
        moves, left = MIXED_MOVES if is_mixed else FLOAT_MOVES, int(rng.integers(2, ops))
        while left > 0:
            length = int(rng.integers(1, 6)) if is_mixed else left
            with nullcontext() if is_mixed and rng.random() < 0.2 else jit_scope():
                for _ in range(length):
                    _grow(Draw(rng, pool), moves, pool, 1000 * max(extents))
            left -= length
        with jit_scope():
            chosen = [pool[-1], *(pool[int(k)] for k in rng.integers(0, len(pool), 2))]
            fetches = list(dict.fromkeys([*chosen, *_derivatives(pool, inputs, orders)]))
    arrays = [_data(rng, x.spec, seed % 8 == 3) for x in inputs]
    return slice_graph(fetches, {x: x.spec for x in inputs}), arrays


def _input(rng: np.random.Generator, extents: tuple[int, ...], is_mixed: bool) -> Tensor:
    dtype = np.dtype(str(rng.choice(["f4", "f8", *DTYPES] if is_mixed else ["f8", "f8", "f4"])))
    if rng.random() < 0.25:
        shape = (int(rng.choice(extents)),) * int(rng.integers(1, 4))
    else:
        shape = tuple(int(n) for n in rng.choice(extents, int(rng.integers(0, 4))))
    return op("placeholder", dtype, shape if np.prod(shape) <= 1000 * max(extents) else shape[:2])


def _data(rng: np.random.Generator, spec: TensorSpec, is_special: bool) -> Any:
    """Small numbers, one in five of them an extreme of the dtype if ``is_special``."""
    shape, kind = spec.known_shape, spec.dtype.kind
    if kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if kind == "f":
        data = np.asarray(rng.uniform(-2, 2, shape), spec.dtype)
        extremes = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, np.finfo(spec.dtype).smallest_subnormal]
    else:
        data = np.asarray(rng.integers(-9 if kind == "i" else 0, 10, shape), spec.dtype)
        extremes = [np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max, 0, 1]
    if is_special:
        chosen = rng.random(shape) < 0.2
        data[chosen] = rng.choice(np.array(extremes, spec.dtype), int(chosen.sum()))
    return data


def _grow(d: Draw, moves: tuple[Move, ...], pool: list[Tensor], largest: int) -> None:
    x = pool[d.between(max(0, len(pool) - 5), len(pool))]
    made = d.one(*moves)(d, x)
    if made is not None and made.size <= largest and made.ndim <= 5:
        pool.append(made)


def _derivatives(pool: list[Tensor], inputs: list[Tensor], orders: int) -> list[Tensor]:
    """Gradients of the last float, then of their first, and so on."""
    found: list[Tensor] = []
    floats = [x for x in inputs if x.dtype.kind == "f"]
    current = next((t for t in reversed(pool) if t.dtype.kind == "f"), None)
    for _ in range(orders):
        if current is None or not floats:
            break
        grads = [g for g in gradients(op("sum", op("sin", current)), floats) if g is not None]
        found += grads
        current = grads[0] if grads else None
    return found
