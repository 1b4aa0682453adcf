"""Random programs with control flow nested at random, as functions of arrays; what they should give is not told here.

A program is a step: a function from a list of vectors to a vector, whose elements stay within -2 and 2. Steps are made
of steps: loops of them, branches of them, and NumPy's functions of their results.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import jitgrad as jg

Step = Callable[[list[Any]], Any]
EXTENT = 3


def random_program(seed: int, depth: int = 3) -> Callable[[Any, Any], Any]:
    """A function of two vectors that gives a number."""
    draw = random.Random(seed)
    step = _step(draw, depth)
    return lambda x, y: np.sum(step([x, y]) * np.arange(1.0, 1.0 + EXTENT))


def _step(draw: random.Random, depth: int) -> Step:
    makers = [_formula] if depth == 0 else [
        _counted, _conditional, _scanned, _branched, _switched, _mapped, _folded, _stored, _remade, _looked_up, _formula
    ]  # fmt: skip
    return draw.choice(makers)(draw, depth - 1)


def _formula(draw: random.Random, depth: int) -> Step:
    """A small formula of two of the vectors."""
    i, j, a = draw.randrange(100), draw.randrange(100), round(draw.uniform(-1, 1), 2)
    matrix = np.array([[draw.uniform(-1, 1) for _ in range(EXTENT)] for _ in range(EXTENT)])
    form = draw.choice((
        lambda p, q: np.tanh(p * q + a), lambda p, q: np.sin(p) * a + q / 2, lambda p, q: np.tanh(matrix @ p - q),
        lambda p, q: np.where(p > a, p, q), lambda p, q: np.exp(-p * p) * q[::-1],
        lambda p, q: np.cos(np.sum(p * q) + p), lambda p, q: p / (1 + q * q),
        lambda p, q: np.tanh(np.cumsum(p) - q[0]), lambda p, q: np.sqrt(p * p + q * q + 1) - 1,
    ))  # fmt: skip
    return lambda values: form(values[i % len(values)], values[j % len(values)])


def _counted(draw: random.Random, depth: int) -> Step:
    inner, start, count = _step(draw, depth), _formula(draw, 0), draw.randrange(4)
    return lambda v: jg.fori_loop(0, count, lambda i, s: np.tanh(inner([*v, s]) + i * 0.1 * s), start(v))


def _conditional(draw: random.Random, depth: int) -> Step:
    """A loop whose number of steps depends on values, with a counter beside its state."""
    inner, start, limit = _step(draw, depth), _formula(draw, 0), draw.uniform(0, 3)

    def goes_on(state: Any) -> Any:
        return np.logical_and(state[0] < 4, np.sum(state[1] ** 2) < limit)

    def step(v: list[Any]) -> Any:
        body = lambda s: (s[0] + 1, inner([*v, s[1]]) + 0.5)  # noqa: E731
        return np.tanh(jg.while_loop(goes_on, body, (0, start(v)))[1])

    return step


def _scanned(draw: random.Random, depth: int) -> Step:
    inner, every, backwards = _step(draw, depth), draw.choice((None, None, 2)), draw.random() < 0.5

    def step(v: list[Any]) -> Any:
        def body(c: Any, x: Any) -> Any:
            c = np.tanh(inner([*v, c]) + x)
            return c, c * x

        c, ys = jg.scan(body, v[0], np.stack([v[-1], v[0], v[1]]), reverse=backwards, checkpoint_every=every)
        return np.tanh(c + ys[1])

    return step


def _branched(draw: random.Random, depth: int) -> Step:
    one, other, at, k = _step(draw, depth), _step(draw, depth), draw.uniform(-1, 1), draw.randrange(EXTENT)
    return lambda v: jg.cond(v[-1][k] > at, lambda: one(v), lambda: other(v))


def _switched(draw: random.Random, depth: int) -> Step:
    steps = [_step(draw, depth) for _ in range(3)]

    def step(v: list[Any]) -> Any:
        index = np.floor(np.sum(v[-1]) * 2).astype(np.int64)
        return jg.switch(index, [lambda s, k=k: steps[k]([*v, s]) for k in range(3)], v[0])

    return step


def _mapped(draw: random.Random, depth: int) -> Step:
    inner = _step(draw, depth)
    return lambda v: np.mean(jg.map(lambda x: inner([*v, x]), np.stack([v[0], v[-1]])), axis=0)


def _folded(draw: random.Random, depth: int) -> Step:
    inner, fold = _step(draw, depth), draw.choice((jg.foldl, jg.foldr))
    return lambda v: fold(lambda a, x: np.tanh(inner([*v, a]) - x), np.stack([v[-1], v[0]]), v[1])


def _stored(draw: random.Random, depth: int) -> Step:
    """A loop that writes to a TensorArray and reads from it."""
    inner, count = _step(draw, depth), draw.randrange(1, 4)

    def step(v: list[Any]) -> Any:
        array = jg.TensorArray(np.float64, count + 1).write(0, v[-1])
        array = jg.fori_loop(0, count, lambda i, a: a.write(i + 1, np.tanh(inner([*v, a.read(i)]))), array)
        return np.mean(array.stack(), axis=0) + array.read(count) / 2

    return step


def _remade(draw: random.Random, depth: int) -> Step:
    inner = _step(draw, depth)
    return lambda v: jg.checkpoint(lambda x: inner([*v, x]))(v[0])


def _looked_up(draw: random.Random, depth: int) -> Step:
    """A loop that reads elements at its counter, and writes to them."""
    inner = _step(draw, depth)

    def step(v: list[Any]) -> Any:
        def body(i: Any, s: Any) -> Any:
            s = inner([*v, s])
            t = s * 1.0
            t[i] = np.tanh(v[1][i] * s[0])
            return t

        return jg.fori_loop(0, EXTENT, body, v[-1])

    return step
