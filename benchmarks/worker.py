"""A process with one framework: does what the driver writes to it, one line of JSON per command and answer.

    load       workload, path of its arrays, cast    the arrays, in float64 where "cast" says so
    prime                                            compile and run something small, to have all modules loaded
    first                                            the first call
    run        warm, samples, inner                  seconds of a call: `samples` means over `inner` calls;
                                                     and those that processors spent on it, all threads together
    results    path                                  write the arrays of a result
    describe                                         what was compiled
    memory                                           bytes: the peak, and the level after the import

An answer to a command that failed has "error".
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.frameworks import Framework, load
from benchmarks.workload import Workload
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.prime import PRIME


class Worker:
    """The state between commands."""

    def __init__(self, framework: Framework, import_seconds: float) -> None:
        self._framework = framework
        self._import_seconds = import_seconds
        self._level = memory("VmRSS")
        self._workload: Workload | None = None
        self._call: Callable[[], Any] = lambda: None
        self._result: Any = None

    def hello(self) -> dict[str, Any]:
        return {"version": self._framework.version, "import_seconds": self._import_seconds}

    def load(self, workload: str, path: str, cast: bool = False) -> dict[str, Any]:
        self._result = None
        self._workload = WORKLOADS[workload]
        count = len(os.listdir(path))
        arrays = [np.load(os.path.join(path, f"{k}.npy")) for k in range(count)]
        if cast:
            arrays = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        loss = self._workload.losses[self._framework.loss_of]
        self._call = self._framework.prepare(loss, self._workload, arrays)
        return {}

    def prime(self) -> dict[str, Any]:
        loss = PRIME.losses[self._framework.loss_of]
        start = time.perf_counter()
        self._framework.prepare(loss, PRIME, PRIME.make(1.0))()
        return {"seconds": time.perf_counter() - start}

    def first(self) -> dict[str, Any]:
        start = time.perf_counter()
        self._result = self._call()
        return {"seconds": time.perf_counter() - start}

    def run(self, warm: int, samples: int, inner: int) -> dict[str, Any]:
        for _ in range(warm):
            self._result = self._call()
        seconds = []
        used = time.process_time()
        for _ in range(samples):
            start = time.perf_counter()
            for _ in range(inner):
                self._result = self._call()
            seconds.append((time.perf_counter() - start) / inner)
        return {"seconds": seconds, "cpu": (time.process_time() - used) / (samples * inner)}

    def results(self, path: str) -> dict[str, Any]:
        assert self._workload is not None
        arrays = self._framework.arrays_of(self._result, self._workload.has_aux)
        np.savez(path, *arrays)
        return {}

    def describe(self) -> dict[str, Any]:
        return self._framework.describe()

    def memory(self) -> dict[str, Any]:
        return {"peak": memory("VmHWM"), "level": self._level}


def memory(field: str) -> int:
    """Bytes of this process by that name in /proc; 0 where there is none."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))
    except (OSError, StopIteration):
        return 0


def serve(name: str) -> None:
    """Answer commands until the input ends. Only answers go to standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start = time.perf_counter()
    try:
        framework = load(name)
    except ImportError as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return
    worker = Worker(framework, time.perf_counter() - start)
    gc.collect()
    print(json.dumps(worker.hello()), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(worker, command.pop("do"))(**command)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {lines[0]}"[:300]}
            traceback.print_exc()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
