"""`python -m benchmarks.profiles`: what a profile costs a call, and how much of the call its kernels make up.

Calls are timed in turns without a profile and within one, after some that count for nothing: the medians of batches,
in microseconds. "more" is the median of their differences; none is given where batches without a profile differ by as
much. "of the call" and "of the native call" are sums of the kernels' times over these, medians of all calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import jitgrad as jg
from benchmarks.tables import aligned
from benchmarks.workloads import WORKLOADS
from jitgrad.profiler import Event
from jitgrad.profiler.events import WORK

ROWS = {"gelu_1e3": 300, "rosenbrock": 300, "mlp_32": 200, "logistic": 300, "elbo": 30, "layer_norm": 10}
TURNS, WARM = 15, 30
HEAD = ("us", "off", "on", "events", "more", "per event", "of the call", "of the native call")


def seconds(call: Callable[[], Any], calls: int) -> float:
    """The median of so many calls."""
    found = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def shares(events: Sequence[Event], kind: str) -> list[float]:
    """Per call, or native call: the sum of the times of the kernels, BLAS and NumPy calls in it, over its own."""
    work = dict.fromkeys((k for k, e in enumerate(events) if e.kind == kind), 0)
    for e in events:
        if e.kind in WORK:
            around = e.parent
            while around is not None and around not in work:
                around = events[around].parent
            if around is not None:
                work[around] += e.duration
    return [time / events[k].duration for k, time in work.items() if time]


def measured(name: str, calls: int) -> tuple[str, ...]:
    """A row of the table."""
    workload = WORKLOADS[name]
    step = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))
    arrays = workload.make(1.0)
    for _ in range(WARM):
        step(*arrays)
    off, on, count, of_call, of_native = [], [], [], [], []
    for _ in range(TURNS):
        off.append(seconds(lambda: step(*arrays), calls))
        with jg.profile() as prof:
            on.append(seconds(lambda: step(*arrays), calls))
        events = prof.events
        count.append(len(events) / sum(e.kind == "call" for e in events))
        of_call += shares(events, "call")
        of_native += shares(events, "native")
    more = statistics.median(np.array(on) - np.array(off))
    number = statistics.mean(count)
    low, middle, high = statistics.quantiles(off)
    cost = (f"{1e6 * more:.3g}", f"{1e6 * more / number:.3f}") if more > high - low else ("-", "-")
    parts = (f"{100 * statistics.median(found):.0f}%" for found in (of_call, of_native))
    times = (f"{1e6 * x:.3g}" for x in (middle, statistics.median(on)))
    return (workload.title, *times, f"{number:.1f}", *cost, *parts)


def table(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All rows, the head first."""
    yield HEAD
    for name in names:
        yield measured(name, ROWS[name])


def main() -> None:
    argparse.ArgumentParser("python -m benchmarks.profiles", description=__doc__).parse_args()
    print(aligned(list(table(list(ROWS)))))


if __name__ == "__main__":
    main()
