"""Where the time of a first call goes: `python -m benchmarks.first_call [--only gelu_1e3,huber] [--repeat 3]`.

Each row is run in a process of its own with an empty cache, after something small was compiled, as the column
"first" of the table is. Functions are timed from outside, each without the others that it calls, so that the
phases add up to the whole. It compares with nothing; `python -m benchmarks` does.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.prime import PRIME

# Phase, module, and the name in it of a function or method that takes the time.
PHASES = (
    ("trace", "jitgrad.calls", "trace"),
    ("gradients", "jitgrad.tangents", "gradients"),
    ("slice", "jitgrad.run_stages", "slice_graph"),
    ("simplify", "jitgrad.compiler.stages", "simplify_and_watch"),
    ("clusters", "jitgrad.compiler.stages", "find_clusters"),
    ("nodes", "jitgrad.compiler.stages", "build_nodes"),
    ("fusion", "jitgrad.compiler.stages", "plan_fusion"),
    ("order", "jitgrad.compiler.freezing.freeze", "order_steps"),
    ("lower", "jitgrad.compiler.stages", "lower_group"),
    ("freeze", "jitgrad.compiler.stages", "freeze_program"),
    ("template", "jitgrad.compiler.stages", "make_template"),
    ("bind", "jitgrad.compiler.freezing.plans", "bind_cluster"),
    ("key", "jitgrad.compiler.machine.compilation", "kernel_key"),
    ("emit", "jitgrad.compiler.machine.compilation", "kernel_module"),
    ("compile", "jitgrad.compiler.machine.ahead", "take"),
    ("compile", "jitgrad.compiler.machine.ahead", "compile_all"),
    ("load", "jitgrad.compiler.machine.native", "load_object"),
    ("cache", "jitgrad.compiler.machine.cache", "KernelCache.get"),
    ("cache", "jitgrad.compiler.machine.cache", "KernelCache.put"),
    ("products", "jitgrad.compiler.products.blas", "matmul_step"),
    ("run", "jitgrad.executable", "Executable.__call__"),
)
BLAS_SPINS = 0.5  # seconds; its threads wait busily for more after the arguments are made


class Stopwatch:
    """Milliseconds by phase; the time of a phase within another is not the other's."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = defaultdict(float)
        self._stack = ["other"]
        self._thread = threading.get_ident()
        self._since = time.perf_counter()

    def timed(self, phase: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time taken in the thread that made the stopwatch."""

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return fn(*args, **kwargs)
            self._turn()
            self._stack.append(phase)
            try:
                return fn(*args, **kwargs)
            finally:
                self._turn()
                self._stack.pop()

        return call

    def watch(self, phases: Iterable[tuple[str, str, str]]) -> None:
        """Have the functions timed that phases name, with their modules."""
        for phase, module, path in phases:
            owner = importlib.import_module(module)
            *classes, attribute = path.split(".")
            for part in classes:
                owner = getattr(owner, part)
            setattr(owner, attribute, self.timed(phase, getattr(owner, attribute)))

    def _turn(self) -> None:
        now = time.perf_counter()
        self.ms[self._stack[-1]] += 1e3 * (now - self._since)
        self._since = now

    def start(self) -> None:
        """Begin anew."""
        self.ms.clear()
        self._since = time.perf_counter()

    def stop(self) -> dict[str, float]:
        """The phases so far, and their sum."""
        self._turn()
        return {"all": sum(self.ms.values()), **self.ms}


def first_call(name: str) -> dict[str, float]:
    """Milliseconds by phase of the first call of a row in this process."""
    import scipy.special  # noqa: F401  losses import it where they use it, users at the top

    import jitgrad as jg

    workload, watch = WORKLOADS[name], Stopwatch()
    arrays = workload.make(1.0)
    time.sleep(BLAS_SPINS)
    jg.compile(jg.value_and_grad(PRIME.losses["numpy"], PRIME.argnums))(*PRIME.make(1.0))
    watch.watch(PHASES)
    compiled = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))
    gc.collect()  # what has been imported is not looked through in the middle of a measurement
    watch.start()
    compiled(*arrays)
    return watch.stop()


def _in_process(name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "JITGRAD_CACHE_DIR": folder}
        command = [sys.executable, "-m", "benchmarks.first_call", "--here", name]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print one line per row, one column per phase, medians in ms."""
    parser = argparse.ArgumentParser("python -m benchmarks.first_call", description=__doc__)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="rows, by name")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(first_call(options.here)))
        return
    phases = list(dict.fromkeys(["all", *(phase for phase, _, _ in PHASES), "other"]))
    print(" ".join([f"{'':14}", *(f"{phase:>9}" for phase in phases)]))
    for name in options.only.split(","):
        runs = [_in_process(name) for _ in range(options.repeat)]
        medians = [median(run.get(phase, 0.0) for run in runs) for phase in phases]
        print(" ".join([f"{name:14}", *(f"{ms:9.1f}" for ms in medians)]), flush=True)


if __name__ == "__main__":
    main()
