"""`python -m benchmarks.threads`: how much faster two threads are than one, workload by workload, called in turns.

one, two      medians in ms over the turns, of the shortest call of each: what disturbs a turn counts less so
faster        one over two, the median over the turns
steps         the same from the sums of each step's shortest time: what is left when nothing else runs
serial        part of the time with two threads, in steps, that steps take which are not cut in chunks
processors    seconds of processors per second with two threads, waiting ones included
bits          whether results of 1, 2, 3, 4 and 7 threads are the same
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import jitgrad as jg
from benchmarks.steps import Steps
from benchmarks.tables import aligned, chosen_workloads
from benchmarks.workloads import WORKLOADS

TURN = 0.05
COUNTS = (1, 2, 3, 4, 7)
HEAD = ("ms", "one", "two", "faster", "steps", "serial", "processors")


@dataclass
class Turns:
    """The shortest call of each turn in seconds, and seconds of processors per second."""

    shortest: list[float] = field(default_factory=list)
    processors: list[float] = field(default_factory=list)


def measure(name: str, turns: int) -> list[str]:
    """The cells of a workload's row."""
    workload = WORKLOADS[name]
    arrays = workload.make(1.0)
    f = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))
    f(*arrays)
    found = {1: Turns(), 2: Turns()}
    for _ in range(turns):
        for threads, figures in found.items():
            jg.set_num_threads(threads)
            _turn(lambda: f(*arrays), figures)
    one, two = (found[k].shortest for k in (1, 2))
    faster = float(np.median(np.divide(one, two)))
    times = [f"{np.median(seconds) * 1e3:.3g}" for seconds in (one, two)]
    steps, serial = _step_by_step(f, arrays)
    used = f"{np.median(found[2].processors):.2f}"
    return [workload.title, *times, f"{faster:.2f}", steps, serial, used]


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
    shortest = {threads: [np.full(len(s.is_parallel), math.inf) for s in steps] for threads in (1, 2)}
    end = time.perf_counter() + 20 * TURN
    while time.perf_counter() < end:
        for threads, best in shortest.items():
            for _ in range(5):
                best[:] = [np.minimum(b, s.seconds(threads)) for b, s in zip(best, steps, strict=True)]
    one, two = (np.concatenate(shortest[k]) for k in (1, 2))
    serial = two[~np.concatenate([s.is_parallel for s in steps])].sum() / two.sum()
    return f"{one.sum() / two.sum():.2f}", f"{serial:.0%}"


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
    rows = [measure(name, options.turns) for name in names]
    bits = ["same" if same_bits(name) else "DIFFERENT" for name in names]
    print(aligned([[*HEAD, "bits"], *([*row, same] for row, same in zip(rows, bits, strict=True))]))
    return int("DIFFERENT" in bits)


if __name__ == "__main__":
    sys.exit(main())
