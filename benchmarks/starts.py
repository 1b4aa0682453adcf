"""What the first call takes in a new process with a warm cache, by phase: ``python -m benchmarks.starts [row ...]``.

Each row is the fastest of several processes, in milliseconds, from after ``import jitgrad`` (and the making of the
arguments) to the first result, as they pass. Functions are timed from outside, each without the others that it calls,
so that the phases and ``other`` add up to ``total``; ``processor`` is what all threads of that process used meanwhile,
the least of all. ``run`` is the first run of the machine code, ``again`` the same run once all is there, the median of
the fastest process; ``beyond`` is the total without the latter: what starting takes. ``pages`` is none of ours: what
one thread takes there for the pages of as much new memory as the results have, in the pages that NumPy asks for (huge
ones from 4 MB on), the least of all. Rows are those with fewer than 100 operations, bodies of loops among them; others
by name.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import json
import mmap
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks.first_call import BLAS_SPINS, Stopwatch
from benchmarks.workloads import WORKLOADS

# Phase, module, and the name in it of a function or method that takes the time; modules that a first call imports are
# not among them, for that is a phase, too.
PHASES = (
    ("ask", "jitgrad.known", "Asker.ask"),
    ("trace", "jitgrad.calls", "trace"),
    ("gradient", "jitgrad.tangents", "gradients"),
    ("slice", "jitgrad.run_stages", "slice_graph"),
    ("stamp", "jitgrad.calls", "begin_stamp"),
    ("stamp", "jitgrad.compiler.machine.cache", "stamp"),
    ("stamp", "jitgrad.compiler.freezing.plankey", "stamp"),
    ("stamp", "jitgrad.known", "stamp"),
    ("key", "jitgrad.compiler", "plan_key"),
    ("read", "jitgrad.compiler.machine.cache", "_contents"),
    ("load", "jitgrad.compiler.machine.native", "load_object"),
    ("driver", "jitgrad.compiler.driver.runtime", "load_runtime"),
    ("bind", "jitgrad.compiler", "bind_frozen"),
    ("bind", "jitgrad.executable", "bind_frozen"),
    ("memory", "jitgrad.calls", "begin_outputs"),
    ("memory", "jitgrad.compiler", "begin_outputs"),
    ("memory", "jitgrad.compiler.driver.pools", "OutputPool._lay"),
    ("memory", "jitgrad.cluster_calls", "arena_for"),
    ("run", "jitgrad.cluster_calls", "ClusterCall.run"),
)
COLUMNS = (
    *dict.fromkeys(phase for phase, _, _ in PHASES), "import", "other", "total", "processor", "again", "beyond", "pages"
)  # fmt: skip
# Operations of a traced program with its gradient and the bodies of its loops, where these are not fewer than 100.
LARGE = {
    "gaussian_process": 108, "oscillators": 131, "waves": 188, "gmm": 193, "lstm": 307,
    "transformer": 504, "ode": 621, "chain": 8004,
}  # fmt: skip
ROWS = tuple(row for row in WORKLOADS if row not in LARGE)
REPEAT = 7
_MORE = 20


def start(row: str) -> dict[str, Any]:
    """Milliseconds of each phase of the first call in this process, and the heavy packages that it loaded."""
    import scipy.special  # noqa: F401  losses import it where they use it, users at the top

    import jitgrad as jg
    from jitgrad.pytree import flatten  # the package optree would be loaded before what loads it, or does without

    workload, watch = WORKLOADS[row], Stopwatch()
    arrays = workload.make(1.0)
    time.sleep(BLAS_SPINS)
    watch.watch(PHASES)
    compiled = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))
    gc.collect()  # what has been imported is not looked through in the middle of a measurement
    loaded, given = set(sys.modules), builtins.__import__
    builtins.__import__ = watch.timed("import", given)
    used = time.process_time()
    watch.start()
    result = compiled(*arrays)
    found = {"total": 0.0, **watch.stop(), "processor": 1e3 * (time.process_time() - used)}
    builtins.__import__ = given
    runs = []
    for _ in range(_MORE):
        watch.start()
        result = compiled(*arrays)
        runs.append(watch.stop())
    found["pages"] = _pages(sum(np.asarray(leaf).nbytes for leaf in flatten(result)[0]))
    return found | {"runs": [run["all"] for run in runs], "heavy": _heavy(set(sys.modules) - loaded)}


def _pages(nbytes: int) -> float:
    """Milliseconds until each page of so many new bytes has been written to."""
    memory = np.empty(nbytes, np.uint8)
    start = time.perf_counter()
    memory[:: mmap.PAGESIZE] = 0
    return 1e3 * (time.perf_counter() - start)


def _heavy(loaded: set[str]) -> list[str]:
    return sorted({"numba", "llvmlite", "scipy"} & {name.split(".")[0] for name in loaded})


def measure(row: str) -> tuple[dict[str, float], list[str]]:
    """Milliseconds of each column, and the heavy packages that were loaded."""
    command = [sys.executable, "-m", "benchmarks.starts", "--here", row]
    subprocess.run(command, check=True, capture_output=True)  # what is not on disk yet
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(REPEAT)]
    found = min(runs, key=lambda run: float(run["all"]))
    found["total"], found["processor"] = found["all"], min(run["processor"] for run in runs)
    found["pages"] = min(run["pages"] for run in runs)
    found["again"] = min(median(run["runs"]) for run in runs)
    found["beyond"] = found["total"] - found["again"]
    return {column: found.get(column, 0.0) for column in COLUMNS}, found["heavy"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.starts", description=__doc__)
    parser.add_argument("rows", nargs="*", default=ROWS, help="rows, by name")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(start(options.here)))
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{'ms':<17}" + "".join(f"{column:>10}" for column in COLUMNS))
    for row in options.rows:
        times, heavy = measure(row)
        print(f"{row:<17}" + "".join(f"{ms:10.2f}" for ms in times.values()), *heavy, flush=True)


if __name__ == "__main__":
    main()
