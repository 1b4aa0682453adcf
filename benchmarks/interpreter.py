"""`python -m benchmarks.interpreter`: each workload's loss interpreted, against the same code called on NumPy's arrays.

The interpreter runs what cannot be compiled, and should take no longer than what the user wrote. Where a loss
calls functions of jitgrad, which are no NumPy (loops, convolutions), the code beside it has NumPy's in their place,
with loops in Python. Each workload has a process of its own, in which a large block of memory has been freed, so that
the C library keeps memory for both; they are called in turns, and the ratio is the median over the turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest import mock

import numpy as np
import scipy.special

import jitgrad as jg
from benchmarks.measure import difference
from benchmarks.tables import aligned, chosen_workloads
from benchmarks.workload import Array
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
HEAD = ("ms", "NumPy", "interpreted", "ratio", "quartiles")
RUNS = 40  # first ones, from which on a program that is interpreted again and again is one function
FIRST_SECONDS = 2.0
SAMPLE = 2e-3

# -- NumPy code for what a loss calls of jitgrad -----------------------------------------------------------------------


def _scan(fn: Callable[..., Any], init: Any, xs: Array) -> tuple[Any, Array]:
    ys = []
    for x in xs:
        init, y = fn(init, x)
        ys.append(y)
    return init, np.array(ys)


def _fori_loop(lower: int, upper: int, body: Callable[..., Any], init: Any) -> Any:
    for i in range(lower, upper):
        init = body(i, init)
    return init


def _while_loop(condition: Callable[..., Any], body: Callable[..., Any], init: Any) -> Any:
    while condition(init):
        init = body(init)
    return init


def _conv2d(x: Array, w: Array, b: Array, padding: int) -> Array:
    padded = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.tensordot(windows, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2) + b[:, None, None]


def _max_pool2d(x: Array, size: int) -> Array:
    n, c, h, w = x.shape
    largest: Array = np.max(x.reshape(n, c, h // size, size, w // size, size), axis=(3, 5))
    return largest


@contextmanager
def numpy_only() -> Iterator[None]:
    """Losses call NumPy and SciPy alone."""
    import jitgrad.nn
    import jitgrad.numpy

    loops = {"scan": _scan, "fori_loop": _fori_loop, "while_loop": _while_loop, "stop_gradient": lambda x: x}
    layers = {"conv2d": _conv2d, "max_pool2d": _max_pool2d, "relu": lambda x: np.maximum(x, 0)}
    layers["logsumexp"] = scipy.special.logsumexp
    with ExitStack() as stack:
        for module, functions in ((jg, loops), (jitgrad.nn, layers), (jitgrad.numpy, {"zeros": np.zeros})):
            for name, function in functions.items():
                stack.enter_context(mock.patch.object(module, name, function))
        yield


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(name: str, turns: int, turn: float) -> dict[str, Any]:
    """Seconds of a call, NumPy's and interpreted, turn by turn; in a process that has done nothing else."""
    workload = WORKLOADS[name]
    loss, arrays = workload.losses["numpy"], workload.make(1.0)
    compiled = jg.compile(loss)
    _ready(lambda: compiled.interpret(*arrays))
    calls: dict[str, Callable[[], Any]]
    with numpy_only():
        calls = {"NumPy": lambda: loss(*arrays), "interpreted": lambda: compiled.interpret(*arrays)}
        apart = _difference(*(call() for call in calls.values()))
        assert apart < 1e-3, f"{name}: results differ by {apart}"
        np.ones(31 << 20, np.uint8)
        seconds: dict[str, list[float]] = {kind: [] for kind in calls}
        for k in range(turns):
            for kind in sorted(calls, reverse=bool(k % 2)):
                seconds[kind].append(_turn(calls[kind], turn))
    return seconds


def _ready(call: Callable[[], Any]) -> None:
    """Call often enough, or for long enough."""
    end = time.perf_counter() + FIRST_SECONDS
    for _ in range(RUNS):
        call()
        if time.perf_counter() > end:
            return


def _difference(plain: Any, ours: Any) -> float:
    pairs = zip(_arrays(plain), _arrays(ours), strict=True)
    return max(difference(b, a.astype(np.float64)) for a, b in pairs)


def _arrays(result: Any) -> list[Array]:
    parts = result if isinstance(result, tuple | list) else (result,)
    return [np.asarray(part) for part in parts]


def _turn(call: Callable[[], Any], seconds: float) -> float:
    """The median over samples of about two milliseconds, for so long."""
    call()
    start = time.perf_counter()
    call()
    inner = max(1, int(SAMPLE / (time.perf_counter() - start)))
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(inner):
            call()
        samples.append((time.perf_counter() - start) / inner)
    return median(samples)


def _cells(title: str, seconds: dict[str, list[float]]) -> list[str]:
    ratios = [ours / plain for ours, plain in zip(seconds["interpreted"], seconds["NumPy"], strict=True)]
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    times = [f"{1e3 * median(seconds[kind]):.3g}" for kind in ("NumPy", "interpreted")]
    return [title, *times, f"{middle:.2f}", f"{low:.2f}-{high:.2f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.interpreter", description=__doc__)
    parser.add_argument("--only", metavar="NAME,...", default="", help="workloads with these words in their names")
    parser.add_argument("--turns", type=int, default=8, help="of each, in turns")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one, options.turns, options.seconds)))
        return
    rows: list[list[str]] = [list(HEAD)]
    for name in chosen_workloads(options.only, parser):
        command = [sys.executable, "-m", "benchmarks.interpreter", "--one", name]
        command += ["--turns", str(options.turns), "--seconds", str(options.seconds)]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(_cells(WORKLOADS[name].title, json.loads(done.stdout)))
        print(rows[-1], file=sys.stderr)
    print(aligned(rows))


if __name__ == "__main__":
    main()
