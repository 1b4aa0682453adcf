"""`python -m benchmarks`: value and gradient of each workload, compiled and interpreted, as a table.

Times are medians of calls made in turns, with quartiles; the interpreter gets as many threads of BLAS as suit it.

`first call` holds tracing and compiling with an empty cache; `other shape` is the first call with fewer rows,
and `compiled` the kernels that it had to compile. `--smoke` runs a hundredth of the rows, once or twice, to
see that all works.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jitgrad as jg
from benchmarks.workloads import WORKLOADS, Workload
from jitgrad.profiler.baseline import best_blas_threads
from jitgrad.profiler.comparing import difference
from jitgrad.profiler.tables import machine_text, text_table
from jitgrad.profiler.timing import time_in_turns

COLUMNS = (
    "value and gradient of",
    "fused",
    "interpreted",
    "speed",
    "kernels",
    "first call",
    "other shape",
    "compiled",
    "difference",
)


def measure(workload: Workload, scale: float, repeat: int | None) -> tuple[str, ...]:
    """A row of the table."""
    compiled = jg.compile(workload.fn)
    args, other = workload.arguments(scale), workload.arguments(scale * 0.75)
    first, result = _timed(lambda: compiled(*args))
    before = compiled.cache_info()
    again, _ = _timed(lambda: compiled(*other))
    error = difference(result, compiled.interpret(*args))
    calls = [partial(compiled, *args), partial(compiled.interpret, *args)]
    _, limited = best_blas_threads(calls[1], repeat)
    fused, interpreted = time_in_turns(calls, repeat, [contextlib.nullcontext, limited])
    return (
        workload.name,
        str(fused),
        str(interpreted),
        f"{interpreted.median / fused.median:.1f}x",
        str(before.kernels),
        f"{1e3 * first:.0f} ms",
        f"{1e3 * again:.1f} ms",
        str(compiled.cache_info().compiles - before.compiles),
        f"{error:.0e}",
    )


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a hundredth of the work, to see that it runs")
    parser.add_argument("--repeat", type=int, metavar="N", help="calls of each (default: as many as take two seconds)")
    parser.add_argument("--only", metavar="WORD", default="", help="workloads whose name contains this word")
    options = parser.parse_args(arguments)
    scale, repeat = (0.01, 2) if options.smoke else (1.0, options.repeat)
    print(machine_text())
    chosen = [workload for workload in WORKLOADS if options.only in workload.name]
    with tempfile.TemporaryDirectory() as directory, jg.config(cache_dir=directory):
        rows = [COLUMNS, *(measure(workload, scale, repeat) for workload in chosen)]
    print(text_table(rows))


if __name__ == "__main__":
    main()
