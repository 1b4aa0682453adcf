"""The cost of eager operations on small arrays: ``python -m benchmarks.eager``; NumPy, HIPS autograd and torch beside
it.

Each row is one operation on ten float64 numbers, recorded by a tape; the last ones are the gradient of a thousand small
operations, and the memory that a tape of ten thousand of them keeps. Medians of runs made in turns.
"""

from __future__ import annotations

import gc
import importlib
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import jitgrad as jg

_LOOPS, _TURNS = 300, 25
Call = Callable[[], Any]

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x + x": lambda np, x: x + x,
    "x * 2.0": lambda np, x: x * 2.0,
    "tanh(x)": lambda np, x: np.tanh(x),
    "x.sum()": lambda np, x: x.sum(),
    "x @ x": lambda np, x: x @ x,
    "x[2:5]": lambda np, x: x[2:5],
}


def main() -> None:
    """Print the table."""
    rows = [(name, *_row(fn)) for name, fn in OPERATIONS.items()]
    print(f"{'us per operation':<12} {'NumPy':>8} {'jitgrad':>8} {'autograd':>9} {'torch':>8} {'jitgrad / NumPy':>16}")
    for name, numpy_us, ours, autograd, torch in rows:
        print(f"{name:<16} {numpy_us:8.2f} {ours:8.2f} {_text(autograd):>9} {_text(torch):>8} {ours / numpy_us:16.1f}")
    seconds, nbytes = _thousand(), _kept_bytes()
    print(f"gradient of 1,000 operations x = sin(x) * 1.01: {seconds * 1e3:.1f} ms")
    print(f"10,000 operations on 1,000 float64: the tape keeps {nbytes / 1e6:.1f} MB, the values are 80 MB")


def _row(fn: Callable[[Any, Any], Any]) -> tuple[float, float, float | None, float | None]:
    x = np.linspace(0.1, 1.0, 10)
    tape = jg.GradientTape(persistent=True)
    tensor = jg.asarray(x)

    def ours() -> None:
        with tape:
            tape.reset()
            tape.watch(tensor)
            for _ in range(_LOOPS):
                fn(np, tensor)

    calls: list[Call | None] = [lambda: [fn(np, x) for _ in range(_LOOPS)], ours, _autograd(fn, x), _torch(fn, x)]
    found: list[list[float]] = [[] for _ in calls]
    gc.disable()
    for _ in range(_TURNS):
        for times, call in zip(found, calls, strict=True):
            if call is not None:
                start = time.perf_counter()
                call()
                times.append((time.perf_counter() - start) / _LOOPS * 1e6)
    gc.enable()
    medians = [float(np.median(times)) if times else None for times in found]
    assert medians[0] is not None and medians[1] is not None
    return medians[0], medians[1], medians[2], medians[3]


def _autograd(fn: Callable[[Any, Any], Any], x: Any) -> Call | None:
    """HIPS autograd, tracing the same operations; None when it is not installed."""
    try:
        module: Any = importlib.import_module("autograd.numpy")
        tracer: Any = importlib.import_module("autograd.tracer")
    except ImportError:
        return None
    node: Any = importlib.import_module("autograd.core").VJPNode

    def call() -> None:
        tracer.trace(node.new_root(), lambda box: [fn(module, box) for _ in range(_LOOPS)][-1], x)

    return call


def _torch(fn: Callable[[Any, Any], Any], x: Any) -> Call | None:
    """torch, eager, with gradients; None when it is not installed."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    tensor = torch.tensor(x, requires_grad=True)
    return lambda: [fn(torch, tensor) for _ in range(_LOOPS)]


def _thousand() -> float:
    """Seconds for the gradient of a thousand small operations, recording included, after one run."""
    x = jg.asarray(np.linspace(0.1, 1.0, 10))

    def run() -> None:
        with jg.GradientTape() as tape:
            tape.watch(x)
            y: Any = x
            for _ in range(500):
                y = np.sin(y) * 1.01
            y = y.sum()
        tape.gradient(y, x)

    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _kept_bytes() -> int:
    """What a tape of additions and sines keeps of 10,000 values of 8 kB: sin needs its argument, a sum nothing."""
    x = jg.asarray(np.ones(1000))
    tracemalloc.start()
    with jg.GradientTape() as tape:
        tape.watch(x)
        y: Any = x
        for k in range(10_000):
            y = np.sin(y) if k % 10 == 0 else y + 1.0
    del y
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert tape.entries
    return kept


def _text(us: float | None) -> str:
    return "-" if us is None else f"{us:.2f}"


if __name__ == "__main__":
    main()
