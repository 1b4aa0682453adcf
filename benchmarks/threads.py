"""`python -m benchmarks.threads`: how much faster two threads are than one, workload by workload, called in turns.

one, two      medians in ms over the turns, of the shortest call of each: what disturbs a turn counts less so. One
              thread runs on each of two processors in turn, since those of a virtual machine may be twice as fast as
              one another: one is the time at their mean speed, and two of them give 2.0 times that
faster        one over two, the median over the turns
steps         the same from the sums of each step's shortest time: what is left when nothing else runs
serial        part of the time with two threads, in steps, that steps take which are not cut in chunks
processors    seconds of processors per second with two threads, waiting ones included
bits          whether results of 1, 2, 3, 4 and 7 threads are the same

The first rows are what the processors give: multiply-adds on registers, and reading so many bytes.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import jitgrad as jg
from benchmarks.frameworks.arithmetic_ import multiply_adds
from benchmarks.frameworks.stream_ import reading
from benchmarks.native import NativeCall
from benchmarks.steps import Steps
from benchmarks.tables import aligned, chosen_workloads
from benchmarks.workloads import WORKLOADS

TURN = 0.05
_ROUNDS = 12  # of five runs of all steps, until none of so many has made the sum of a way half a percent shorter
_SECONDS = 20.0  # at most, where they do not settle, as beside other people's work
COUNTS = (1, 2, 3, 4, 7)
HEAD = ("ms", "one", "two", "faster", "steps", "serial", "processors")


@dataclass
class Turns:
    """The shortest call of each turn in seconds, and seconds of processors per second."""

    shortest: list[float] = field(default_factory=list)
    processors: list[float] = field(default_factory=list)


Way = tuple[int, set[int]]
"""A number of threads, and the processors on which the caller may run."""


def _ways() -> list[Way]:
    """One thread on each of two processors, then two threads."""
    if not hasattr(os, "sched_setaffinity"):
        return [(1, set()), (2, set())]
    here = os.sched_getaffinity(0)
    return [*[(1, {processor}) for processor in sorted(here)[:2]], (2, here)]


@contextmanager
def _placed(way: Way) -> Iterator[int]:
    """The caller on its processors, and the number of threads."""
    threads, processors = way
    if not processors:
        yield threads
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield threads
    finally:
        os.sched_setaffinity(0, before)


def measure(name: str, turns: int) -> list[str]:
    """The cells of a workload's row."""
    workload = WORKLOADS[name]
    arrays = workload.make(1.0)
    f = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))
    jg.set_num_threads(2)
    f(*arrays)
    times, used = _in_turns(lambda: f(*arrays), jg.set_num_threads, turns)
    return [workload.title, *times, *_step_by_step(f, arrays), used]


def measure_processors(title: str, call: NativeCall, turns: int) -> list[str]:
    """The cells of a row of what the processors give."""

    def set_threads(threads: int) -> None:
        call.threads = threads

    times, used = _in_turns(call, set_threads, turns)
    return [title, *times, "-", "-", used]


def _in_turns(call: Callable[[], Any], set_threads: Callable[[int], None], turns: int) -> tuple[list[str], str]:
    """The cells of times, and that of processors."""
    found = [(way, Turns()) for way in _ways()]
    for _ in range(turns):
        for way, figures in found:
            with _placed(way) as threads:
                set_threads(threads)
                _turn(call, figures)
    *alone, together = (figures.shortest for _, figures in found)
    one, two = _at_mean_speed(alone), np.array(together)
    times = [*(f"{np.median(seconds) * 1e3:.3g}" for seconds in (one, two)), f"{np.median(one / two):.2f}"]
    return times, f"{np.median(found[-1][1].processors):.2f}"


def _at_mean_speed(times: Sequence[Any]) -> Any:
    """The harmonic mean, element by element."""
    return len(times) / np.sum(np.divide(1, times), axis=0)


def _turn(call: Callable[[], Any], found: Turns) -> None:
    """Call for a while, after once without the clock."""
    call()
    samples: list[float] = []
    begin, used = time.perf_counter(), time.process_time()
    while len(samples) < 3 or time.perf_counter() - begin < TURN:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    found.shortest.append(min(samples))
    found.processors.append((time.process_time() - used) / (time.perf_counter() - begin))


def _step_by_step(f: Any, arrays: Sequence[Any]) -> tuple[str, str]:
    """One over two from shortest times of steps, and the serial part with two; dashes for more than one cluster."""
    stages = list(f.stages(*arrays))
    executables = [(stage.executable(given), given) for stage, given in stages]
    try:
        steps = [Steps(executable, given) for executable, given in executables]
    except ValueError:
        return "-", "-"
    found = [(way, [np.full(len(s.is_parallel), math.inf) for s in steps]) for way in _ways()]
    start, passed = time.perf_counter(), 0.0
    since, settled = 0, np.full(len(found), math.inf)  # rounds since the sums became shorter than these
    while passed < 20 * TURN or (since < _ROUNDS and passed < _SECONDS):
        for way, best in found:
            with _placed(way) as threads:
                for _ in range(5):
                    best[:] = [np.minimum(b, s.seconds(threads)) for b, s in zip(best, steps, strict=True)]
        sums = np.array([sum(map(np.sum, best)) for _, best in found])
        since += 1
        if np.any(sums < 0.995 * settled):
            since, settled = 0, sums
        passed = time.perf_counter() - start
    *alone, two = (np.concatenate(best) for _, best in found)
    serial = two[~np.concatenate([s.is_parallel for s in steps])].sum() / two.sum()
    return f"{_at_mean_speed([each.sum() for each in alone]) / two.sum():.2f}", f"{serial:.0%}"


def same_bits(name: str) -> bool:
    """whether results are the same for any number of threads; the workers that it starts disturb later timings."""
    workload = WORKLOADS[name]
    arrays = workload.make(1.0)
    jg.set_num_threads(max(COUNTS))  # compiled for the most threads
    f = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))
    f(*arrays)
    results = set()
    for threads in COUNTS:
        jg.set_num_threads(threads)
        results.add(b"".join(_bytes(f(*arrays))))
    return len(results) == 1


def _bytes(result: Any) -> list[bytes]:
    if isinstance(result, tuple | list):
        return [b for part in result for b in _bytes(part)]
    return [np.asarray(result).tobytes()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.threads", description=__doc__)
    parser.add_argument("--only", metavar="NAME,...", default="", help="workloads with these words in their names")
    parser.add_argument("--turns", type=int, default=10, metavar="N", help="of each number of threads (default: 10)")
    options = parser.parse_args(arguments)
    names = chosen_workloads(options.only, parser)
    given = {"multiply-adds": multiply_adds(), **{f"reading {n} MB": reading(n << 20) for n in (4, 64)}}
    rows = [measure_processors(title, call, options.turns) for title, call in given.items()]
    rows += [measure(name, options.turns) for name in names]
    bits = ["-"] * len(given) + ["same" if same_bits(name) else "DIFFERENT" for name in names]
    print(aligned([[*HEAD, "bits"], *([*row, same] for row, same in zip(rows, bits, strict=True))]))
    return int("DIFFERENT" in bits)


if __name__ == "__main__":
    sys.exit(main())
