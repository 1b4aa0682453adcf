"""Random functions with loops, branches and calls in any nesting, for tests of what the compiler makes of them.

States that stay, repeat, go nowhere or are numbers are as frequent as others, so that there is something to simplify.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jitgrad as jg

Fn = Callable[..., Any]
WIDTH = 4


class RandomFunction:
    """A function of a scalar, a vector and two arrays of items; the same for the same seed."""

    def __init__(self, seed: int, depth: int = 2) -> None:
        self._seed, self._depth = seed, depth

    def __call__(self, a: Any, v: Any, xs: Any, rows: Any) -> Any:
        writer = _Writer(np.random.default_rng(self._seed))
        pool = [a, v]
        for _ in range(int(writer.rng.integers(2, 4))):
            pool += writer.instruction(pool, xs, rows, self._depth)
        return writer.number(pool[-1]) + writer.number(pool[int(writer.rng.integers(len(pool)))])

    @staticmethod
    def arguments(length: int = 3) -> tuple[Any, ...]:
        """What it takes."""
        rng = np.random.default_rng(length)
        shapes = ((), (WIDTH,), (length,), (length, WIDTH))
        return tuple(np.asarray(rng.uniform(0.2, 0.9, shape)) for shape in shapes)


class _Writer:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def number(self, x: Any) -> Any:
        return np.sum(x) if np.ndim(x) else x

    def pick(self, pool: Sequence[Any]) -> Any:
        return pool[int(self.rng.integers(len(pool)))]

    def vector(self, x: Any) -> Any:
        return x if np.ndim(x) else x * np.ones(WIDTH)

    def instruction(self, pool: Sequence[Any], xs: Any, rows: Any, depth: int) -> list[Any]:
        """What is added to a pool of scalars and vectors."""
        makers: list[Fn] = [self.computed]
        if depth:
            makers += [self.scanned, self.scanned, self.looped, self.chosen, self.called]
        maker = makers[int(self.rng.integers(len(makers)))]
        return list(maker(pool, xs, rows, depth))

    def computed(self, pool: Sequence[Any], xs: Any = None, rows: Any = None, depth: int = 0) -> list[Any]:
        x, y = self.pick(pool), self.pick(pool)
        kind = int(self.rng.integers(11))
        match kind:
            case 0:
                return [np.tanh(x * y)]
            case 1:
                return [np.sin(x) + y]
            case 2:
                return [0.5 * x - y]
            case 3:
                return [x * y * 0.7]
            case 4:
                return [self.number(x) * 0.3]
            case 5:
                return [np.where(x > y, x, 0.4 * y)]
            case 6:
                return [np.exp(-x * x)]
            case 7:
                return [self.vector(x)[::-1] * y]
            case 8 if np.ndim(rows) == 2:
                return [self.vector(x) @ (np.transpose(rows) @ rows) * 0.3]
            case 9 if np.ndim(rows) == 2:
                return [np.tanh((rows @ self.vector(x)) @ rows * 0.2)]
        return [np.add(self.vector(x), 1.0) * 0.25]

    def like(self, x: Any, state: Any) -> Any:
        """``x`` in the shape of a part of a state."""
        if np.ndim(state) == np.ndim(x):
            return x
        return self.vector(x) if np.ndim(state) else self.number(x) * 0.3

    def start(self, pool: Sequence[Any]) -> list[Any]:
        starts = [self.pick(pool), self.pick(pool), 0.0 * self.number(self.pick(pool)), 0.5, np.zeros(WIDTH), 1.0]
        return [starts[int(self.rng.integers(len(starts)))] for _ in range(int(self.rng.integers(1, 4)))]

    def step(self, state: Sequence[Any], pool: list[Any], depth: int, xs: Any, rows: Any) -> tuple[Any, Any]:
        """The next state and what was made on the way."""
        pool = [*pool, *state]
        for _ in range(int(self.rng.integers(1, 4))):
            pool += self.instruction(pool, xs, rows, depth - 1)
        after = []
        for s in state:
            kind = int(self.rng.integers(6))
            after.append(s if kind == 0 else 0.5 * s if kind == 1 else self.like(self.pick(pool), s))
        if len(state) > 1 and self.rng.random() < 0.2:
            after[1] = after[0] if np.ndim(after[0]) == np.ndim(state[1]) else after[1]
        return after, pool

    def scanned(self, pool: Sequence[Any], xs: Any, rows: Any, depth: int) -> list[Any]:
        init, seed = self.start(pool), int(self.rng.integers(1 << 30))
        reverse, kind = bool(self.rng.integers(2)), int(self.rng.integers(5))
        items = [(xs,), (rows,), (xs, rows), (), (xs, np.ones_like(rows))][kind]
        stacks = int(self.rng.integers(3))
        length = int(self.rng.integers(4)) if not items else None

        def body(state: Any, item: Any) -> Any:
            writer = _Writer(np.random.default_rng(seed))
            after, made = writer.step(state, [*pool, *(item or ())], depth, xs, rows)
            return after, tuple(writer.pick(made) for _ in range(stacks))

        final, ys = jg.scan(body, init, items or None, length, reverse)
        return [*final, *(np.sum(y, axis=0) for y in ys)]

    def looped(self, pool: Sequence[Any], xs: Any, rows: Any, depth: int) -> list[Any]:
        init, seed = self.start(pool), int(self.rng.integers(1 << 30))
        steps = int(self.rng.integers(4))

        def body(state: Any) -> Any:
            writer = _Writer(np.random.default_rng(seed))
            after, _ = writer.step(state[1:], list(pool), depth, xs, rows)
            return [state[0] + 1, *after]

        final = jg.while_loop(lambda s: s[0] < steps, body, [np.asarray(0), *init])
        return list(final[1:])

    def chosen(self, pool: Sequence[Any], xs: Any, rows: Any, depth: int) -> list[Any]:
        seeds = [int(n) for n in self.rng.integers(1 << 30, size=2)]
        is_first = self.rng.random() < 0.2
        operands = [self.pick(pool) for _ in range(3)]

        def branch(seed: int) -> Fn:
            def run(*given: Any) -> Any:
                writer = _Writer(np.random.default_rng(seed))
                made = writer.instruction([*pool, *given], xs, rows, depth - 1)[-1]
                return [writer.vector(made), writer.number(given[0])]

            return run

        p = self.number(self.pick(pool)) > 0.5
        return list(jg.cond(p, branch(seeds[0]), branch(seeds[0 if is_first else 1]), *operands))

    def called(self, pool: Sequence[Any], xs: Any, rows: Any, depth: int) -> list[Any]:
        seed = int(self.rng.integers(1 << 30))

        def run(*given: Any) -> Any:
            return _Writer(np.random.default_rng(seed)).instruction(list(given), xs, rows, depth - 1)[-1]

        return [jg.checkpoint(run)(*pool)]
