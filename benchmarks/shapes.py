"""`python -m benchmarks.shapes`: what a call with a new shape costs, beyond a later call with the same shape: the
function runs again, its gradients and its plan are taken over from another shape. It compares nothing with other
frameworks.

Functions are compiled and called with a first shape; then each of further shapes is called three times, with new arrays
each time, but for the weights of layers. What the first of these calls takes longer than the last is the cost of the
shape; what the second does, in which the call is described to machine code, stands beside it. Both are medians: the few
shapes from which formulas are learned cost many times more. Operations are those of the program, gradients included.
The last column is what a loop of 1,000 additions in Python takes meanwhile: the costs are of Python, and processors of
virtual machines may be twice as slow in one minute as in the next. No kernel may be compiled for a further shape.

With ``--batches``, sizes of batches are drawn instead, evenly, or evenly by their logarithm, none of them twice: what a
session costs in which batches are of every size. There the lesser of the two later calls is taken off.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import jitgrad as jg
from jitgrad import nn
from jitgrad.config import config


class Case(NamedTuple):
    """A function of arrays, and its arguments for a batch of so many rows."""

    name: str
    fn: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]


_rng = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return _rng.standard_normal(shape).astype(np.float32)


def _gelu(w: Any, b: Any, x: Any) -> Any:
    return np.sum(nn.gelu(x * w + b) ** 2)


def _logistic(w: Any, x: Any, y: Any) -> Any:
    return np.mean(np.logaddexp(0.0, x @ w) - y * (x @ w))


def _layer_norm(x: Any, g: Any, b: Any) -> Any:
    mean = np.mean(x, axis=-1, keepdims=True)
    return np.sum(np.sin((x - mean) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5) * g + b))


def _classifier(layers: Any, x: Any, y: Any) -> Any:
    for w, b in layers[:-1]:
        x = np.tanh(x @ w + b)
    z = x @ layers[-1][0] + layers[-1][1]
    z = z - np.max(z, axis=1, keepdims=True)
    loss = np.mean(np.log(np.sum(np.exp(z), axis=1)) - np.sum(z * y, axis=1))
    return loss + 1e-4 * sum(np.sum(w * w) for w, _ in layers)


def _layers(*widths: int) -> list[tuple[Any, Any]]:
    return [(_normal(m, n) * 0.1, _normal(n)) for m, n in itertools.pairwise(widths)]


def _chain(x: Any) -> Any:
    for _ in range(100):
        x = np.sin(x) * 1.01 + 0.1
    return np.sum(x)


_small, _deep = _layers(100, 128, 128, 10), _layers(100, *[128] * 10, 10)
CASES = (
    Case("gelu", jg.value_and_grad(_gelu, (0, 1)), lambda n: (_normal(n), _normal(n), _normal(n))),
    Case("logistic regression", jg.value_and_grad(_logistic), lambda n: (_normal(10), _normal(n, 10), _normal(n))),
    Case("layer norm", jg.value_and_grad(_layer_norm, (0, 1, 2)), lambda n: (_normal(n, 96), _normal(96), _normal(96))),
    Case("MLP, 3 layers", jg.value_and_grad(_classifier), lambda n: (_small, _normal(n, 100), _normal(n, 10))),
    Case("MLP, 11 layers", jg.value_and_grad(_classifier), lambda n: (_deep, _normal(n, 100), _normal(n, 10))),
    Case("chain of 300", jg.value_and_grad(_chain), lambda n: (_normal(n),)),
)

COLUMNS = (
    "operations", "first call, ms", "a new shape, ms", "per 100 operations", "its second call, ms", "kernels compiled",
    "a loop, us",
)  # fmt: skip


def measure(case: Case, shapes: int) -> dict[str, float]:
    """Milliseconds of the first call, of a further shape and of its second call, operations, kernels compiled for
    further shapes, and microseconds of a loop in Python.
    """
    f = jg.compile(case.fn)
    args = case.arguments(200)
    start = time.perf_counter()
    f(*args)
    first = time.perf_counter() - start
    [(stage, arrays)] = f.stages(*args)
    count = len(stage.executable(arrays).source.instructions)
    time.sleep(0.5)  # the good code of the kernels is made by then
    compiles, spent, second, paces = f.cache_info().compiles, [], [], []
    for k in range(shapes):
        paces.append(_pace())
        times = [_seconds(f, case.arguments(300 + 7 * k)) for _ in range(3)]
        spent.append(times[0] - times[2])
        second.append(times[1] - times[2])
    late = f.cache_info().compiles - compiles
    return {
        "ops": count, "first": 1e3 * first, "further": 1e3 * statistics.median(spent),
        "second": 1e3 * statistics.median(second), "late": late, "pace": 1e6 * statistics.median(paces),
    }  # fmt: skip


MOST_ROWS = 5000


def session(case: Case, sizes: Sequence[int]) -> list[float]:
    """Milliseconds that each of these sizes of a batch costs, beyond the first shape of all."""
    f, spent = jg.compile(case.fn), []
    f(*case.arguments(200))
    time.sleep(0.5)
    for size in sizes:
        times = [_seconds(f, case.arguments(size)) for _ in range(3)]
        spent.append(1e3 * (times[0] - min(times[1:])))
    return spent


def drawn(by_logarithm: bool, count: int) -> list[int]:
    """So many different sizes of up to `MOST_ROWS`."""
    rng = np.random.default_rng(0)
    even = rng.uniform(0, 1, 10 * count)
    sizes = np.exp(even * np.log(MOST_ROWS)) if by_logarithm else 1 + even * MOST_ROWS
    return list(dict.fromkeys(sizes.astype(int).tolist()))[:count]


def batches(count: int) -> None:
    """Print what sessions cost."""
    print("| function | sizes drawn evenly | mean, ms | first third | last third | median | worst |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for case, by_logarithm in itertools.product(CASES[:4], (False, True)):
        spent = session(case, drawn(by_logarithm, count))
        third = max(1, count // 3)
        figures = [statistics.mean(part) for part in (spent, spent[:third], spent[-third:])]
        figures += [statistics.median(spent), max(spent)]
        row = " | ".join([f"{figure:.2f}" for figure in figures])
        print(f"| {case.name} | {'by their logarithm' if by_logarithm else 'as they are'} | {row} |")


def _seconds(f: Callable[..., Any], args: Sequence[Any]) -> float:
    start = time.perf_counter()
    f(*args)
    return time.perf_counter() - start


def _pace() -> float:
    start, total = time.perf_counter(), 0
    for k in range(1000):
        total += k
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.shapes", description=__doc__)
    parser.add_argument("--shapes", type=int, default=40, help="further shapes for each function")
    parser.add_argument("--batches", type=int, metavar="COUNT", help="draw so many sizes of a batch")
    options = parser.parse_args(arguments)
    config(cache=False)
    measure(CASES[0], 3)  # what is loaded once
    if options.batches:
        batches(options.batches)
        return 0
    print(f"| function | {' | '.join(COLUMNS)} |")
    print(f"|---|{'---:|' * len(COLUMNS)}")
    for case in CASES:
        f = measure(case, options.shapes)
        print(
            f"| {case.name} | {f['ops']:.0f} | {f['first']:.0f} | {f['further']:.2f} | "
            f"{100 * f['further'] / f['ops']:.2f} | {f['second']:.2f} | {f['late']:.0f} | {f['pace']:.0f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
