"""Random graphs with gradients in which sparse, dense, integer, Python and gated parts mix; pure functions of a seed.

The same seed makes the same operations whatever the scopes do: in none, merged with their gradients, or apart from
them. What one operation adds is in random_moves.py; graphs cut by Python functions run in several stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.run_stages import Stage
from jitgrad.running import Runner
from jitgrad.spec import spec_of
from tests.random_draws import Draw, as_float, op, tame
from tests.random_moves import MIXED_MOVES, Move
from tests.tolerances import assert_near, coarsest, moved_results

SCOPES = ("none", "merged", "separate")
EXTENTS = (1, 2, 3, 5, 5)
LARGEST = 400


@dataclass(frozen=True)
class RandomGraph:
    """A graph, what is fetched from it, and what is fed."""

    graph: jg.Graph
    fetches: list[Any]
    feeds: dict[Any, Any]

    def run(self) -> list[Any]:
        """Results of a session."""
        found: list[Any] = jg.Session(self.graph).run(self.fetches, self.feeds)
        return found

    def runner(self) -> tuple[Runner, list[Any]]:
        """What runs the fetches, and its arrays."""
        return jg.Session(self.graph).prepared(self.fetches, self.feeds)


def check_random_graph(seed: int) -> tuple[str, ...]:
    """Run the graph of a seed in no scope, merged and separate; AssertionError where results differ by more than what
    rounding makes of them. Gives the types of operations that it has.
    """
    built = {scopes: random_graph(seed, scopes) for scopes in SCOPES}
    plain = built["none"]
    expected = _by_stages(plain, lambda stage, values: stage.interpret(values))
    eps = max(coarsest(stage.program([spec_of(v) for v in values])) for stage, values in _stages(plain))

    def moved(perturbation: int) -> list[Any]:
        def run(stage: Stage, values: Sequence[Any]) -> list[Any]:
            return list(moved_results(stage.program([spec_of(v) for v in values]), values, perturbation))

        return _by_stages(plain, run)

    for scopes, one in built.items():
        assert_near(one.run(), expected, eps, moved, f"seed {seed}, {scopes}")
    return tuple({operation.type for operation in plain.graph.operations})


def _stages(built: RandomGraph) -> list[tuple[Stage, list[Any]]]:
    runner, arrays = built.runner()
    return runner.stages(arrays)


def _by_stages(built: RandomGraph, run: Callable[[Stage, Sequence[Any]], list[Any]]) -> list[Any]:
    """Results of the fetches where each stage is run so."""
    runner, arrays = built.runner()
    values = run(runner._only, arrays) if runner._only is not None else runner._run_steps(arrays, run)
    places = {t: number for number, t in enumerate(runner.fetches)}
    return [values[places[t]] for t in built.fetches]


# building


def random_graph(seed: int, scopes: str, ops: int = 14) -> RandomGraph:
    """The graph of a seed, its scopes not compiled at all, compiled with their gradients, or apart from them."""
    rng = np.random.default_rng(seed)
    with jg.Graph().as_default() as graph:
        inputs = _inputs(rng)
        pool = [*inputs]
        left = int(rng.integers(4, ops))
        while left > 0:
            length = int(rng.integers(1, 6))
            with _scope(rng, scopes):
                for _ in range(length):
                    _grow(Draw(rng, pool), pool)
            left -= length
        with _scope(rng, scopes, always=True):
            found = _derivatives(Draw(rng, pool), inputs)
        fetches = list(dict.fromkeys([*found, pool[-1], *(pool[int(k)] for k in rng.integers(0, len(pool), 2))]))
    return RandomGraph(graph, fetches, {x: _data(rng, x) for x in inputs})


def _scope(rng: np.random.Generator, scopes: str, always: bool = False) -> AbstractContextManager[Any]:
    """A scope, one in another, or none; the choices are the same whether they are compiled or not."""
    kind = rng.random()
    if kind < 0.2 and not always:
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(jg.jit_scope(scopes != "none", separate_compiled_gradients=scopes == "separate"))
    if kind > 0.8:
        stack.enter_context(jg.jit_scope(lambda operation: scopes != "none" and operation.type != "sin"))
    return stack


def _inputs(rng: np.random.Generator) -> list[Any]:
    """Floats of some shapes, a table, and positions of its rows."""
    floats = [_float(rng) for _ in range(int(rng.integers(1, 3)))]
    rows = jg.placeholder(np.float64, (int(rng.integers(2, 8)), int(rng.choice(EXTENTS))), name="table")
    positions = jg.placeholder(str(rng.choice(["i4", "i8"])), (int(rng.integers(1, 6)),), name="positions")
    return [*floats, rows, positions]


def _float(rng: np.random.Generator) -> Any:
    shape = tuple(int(n) for n in rng.choice(EXTENTS, int(rng.integers(0, 3))))
    return jg.placeholder(str(rng.choice(["f8", "f8", "f4"])), shape)


def _data(rng: np.random.Generator, x: Any) -> Any:
    if x.dtype.kind == "i":
        return rng.integers(0, 2, x.shape).astype(x.dtype)
    return np.asarray(rng.uniform(-2, 2, x.shape), x.dtype)


def _grow(d: Draw, pool: list[Any]) -> None:
    x = pool[d.between(max(0, len(pool) - 5), len(pool))]
    move = d.one(*OWN_MOVES) if d.chance(0.35) else d.one(*MIXED_MOVES)
    made = move(d, x)
    if made is not None and made.size <= LARGEST and made.ndim <= 5:
        pool.append(made)


# moves


def look_up(d: Draw, x: Any) -> Any:
    """Rows of the table, at positions that are fed or computed, once or in two steps."""
    table, positions = (next(t for t in d.pool if t.op.name == name) for name in ("table", "positions"))
    rows = jg.gather(table, d.one(positions, (positions + 1) % np.asarray(2, positions.dtype)))
    return jg.gather(rows, d.rng.integers(0, rows.shape[0], 3)) if d.chance(0.3) else rows


def python(d: Draw, x: Any) -> Any:
    """A Python function, with a gradient of its own or a stopped argument."""
    x = tame(as_float(d, x))
    shape, dtype = x.shape, x.dtype

    def doubled(value: Any) -> Any:
        return np.reshape(jg.py_func(lambda a: a * 2, [value], dtype), shape)

    @jg.custom_gradient
    def differentiable(value: Any) -> Any:
        return doubled(value), lambda g: g * 2

    return differentiable(x) if d.chance(0.7) else doubled(jg.stop_gradient(x)) + x


def custom(d: Draw, x: Any) -> Any:
    """A function whose gradient is scaled, and differentiable again."""
    x = tame(as_float(d, x))

    @jg.custom_gradient
    def scaled(value: Any) -> Any:
        return np.sin(value), lambda g: g * np.cos(value) * np.asarray(0.5, value.dtype)

    return scaled(x)


def wait(d: Draw, x: Any) -> Any:
    """The value again, after another operation, or together with another value."""
    y = d.one(*d.pool)
    if d.chance(0.5):
        return jg.tuple([x, y])[0]
    with jg.control_dependencies([y]):
        return jg.identity(x)


def stop(d: Draw, x: Any) -> Any:
    """Half of the value counts as a constant."""
    return op("multiply", x, jg.stop_gradient(as_float(d, x)))


def override(d: Draw, x: Any) -> Any:
    """Rounding that lets the gradient pass."""
    with jg.default_graph().gradient_override_map({"rint": "identity"}):
        return op("rint", op("multiply", as_float(d, x), 1.5))


OWN_MOVES: tuple[Move, ...] = (*(look_up,) * 3, python, custom, wait, stop, override)


# gradients


def _derivatives(d: Draw, inputs: Sequence[Any]) -> list[Any]:
    """Gradients of some floats by all sorts of options, and one time in three those of their first."""
    floats = [t for t in d.pool if t.dtype.kind == "f"]
    ys = [op("sin", d.one(*floats[-4:])) for _ in range(d.between(1, 4))]
    xs = [*(x for x in inputs if x.dtype.kind == "f"), d.one(*floats)]
    found = _gradients(d, ys, xs)
    dense = [g for g in found if isinstance(g, jg.Tensor)]
    if dense and d.chance(0.3):
        found += _gradients(d, [op("sin", d.one(*dense))], xs)
    return [t for g in found for t in ((g.values, g.indices, g * 1.0) if isinstance(g, jg.IndexedSlices) else (g,))]


def _gradients(d: Draw, ys: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
    seeds = [d.one(None, np.full(y.shape, 0.5), op("multiply", y, 2)) for y in ys]
    stopped = [d.one(*d.pool)] if d.chance(0.2) else None
    method = d.one(*jg.AggregationMethod)
    is_placed, is_gated = d.chance(0.5), d.chance(0.4)
    found = jg.gradients(list(ys), list(xs), seeds, "gradients", is_placed, is_gated, method, stopped)
    return [g for g in found if g is not None]
