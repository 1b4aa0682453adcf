"""Operations on ten numbers, as NumPy and as others run them: what ``benchmarks.eager`` measures, for any environment.

``python -m benchmarks.eager_rows torch`` prints the times of NumPy and torch, measured in turns, as JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LOOPS, TURNS = 300, 25
Call = Callable[[], Any]
Operation = Callable[[Any, Any], Any]

OPERATIONS: dict[str, Operation] = {
    "x + x": lambda np, x: x + x,
    "x * 2.0": lambda np, x: x * 2.0,
    "2.0 * x": lambda np, x: 2.0 * x,
    "x ** 2": lambda np, x: x**2,
    "tanh(x)": lambda np, x: np.tanh(x),
    "multiply(x, x)": lambda np, x: np.multiply(x, x),
    "x.sum()": lambda np, x: x.sum(),
    "sum(x, 0)": lambda np, x: np.sum(x, 0),
    "x @ x": lambda np, x: x @ x,
    "x.reshape(5, 2)": lambda np, x: x.reshape(5, 2),
    "x.ravel()": lambda np, x: x.ravel(),
    "x[2:5]": lambda np, x: x[2:5],
    "x[1:, None]": lambda np, x: x[1:, None],
    "x[3]": lambda np, x: x[3],
}


def value() -> Any:
    """The ten numbers."""
    return np.linspace(0.1, 1.0, 10)


def in_turns(calls: Sequence[Call]) -> list[float]:
    """The median seconds of each call, made in turns without collections."""
    found: list[list[float]] = [[] for _ in calls]
    gc.collect()
    gc.disable()
    for _ in range(TURNS):
        for times, call in zip(found, calls, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    gc.enable()
    return [float(np.median(times)) for times in found]


def repeated(fn: Operation, module: Any, x: Any) -> Call:
    """An operation many times."""
    return lambda: [fn(module, x) for _ in range(LOOPS)]


def autograd_call(fn: Operation) -> Call:
    """HIPS autograd, tracing an operation many times. ImportError where it is not installed."""
    module: Any = importlib.import_module("autograd.numpy")
    tracer: Any = importlib.import_module("autograd.tracer")
    node: Any = importlib.import_module("autograd.core").VJPNode
    x = value()
    return lambda: tracer.trace(node.new_root(), lambda box: [fn(module, box) for _ in range(LOOPS)][-1], x)


def torch_call(fn: Operation) -> Call:
    """torch, eager, with gradients. ImportError where it is not installed."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    return repeated(fn, torch, torch.tensor(value(), requires_grad=True))


def thousand(sin: Any, x: Any) -> Any:
    """A thousand small operations and a sum."""
    y = x
    for _ in range(500):
        y = sin(y) * 1.01
    return y.sum()


def torch_thousand() -> Call:
    """Its gradient in torch, recording included."""
    torch: Any = importlib.import_module("torch")
    x = torch.tensor(value(), requires_grad=True)
    return lambda: torch.autograd.grad(thousand(torch.sin, x), x)


def autograd_thousand() -> Call:
    """Its gradient in HIPS autograd, recording included."""
    grad: Any = importlib.import_module("autograd").grad
    sin: Any = importlib.import_module("autograd.numpy").sin
    gradient = grad(lambda x: thousand(sin, x))
    return lambda: gradient(value())


def measured(call: Callable[[Operation], Call]) -> dict[str, list[float]]:
    """Per operation the microseconds that NumPy and another take."""
    rows = {}
    for name, fn in OPERATIONS.items():
        times = in_turns([repeated(fn, np, value()), call(fn)])
        rows[name] = [seconds / LOOPS * 1e6 for seconds in times]
    return rows


def main() -> None:
    """Print the rows of torch or autograd."""
    name = sys.argv[1]
    call, gradient = {"torch": (torch_call, torch_thousand), "autograd": (autograd_call, autograd_thousand)}[name]
    rows = measured(call)
    rows["gradient of 1,000"] = [s * 1e3 for s in in_turns([lambda: thousand(np.sin, value()), gradient()])]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
