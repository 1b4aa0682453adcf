"""Small kernels written as LLVM IR, run by jitgrad's threads: what the machine can do at its best."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.driver.runtime import StepRecord, pack_steps, runtime
from jitgrad.compiler.machine import native

KERNEL = "ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %chunk, i64 %worker"
CHUNKS = 64


def compiled(text: str, names: Sequence[str]) -> dict[str, int]:
    """Addresses of the functions of a module."""
    code = native.compile_module(text, list(names))
    return {name: code[name] for name in names}


class NativeCall:
    """Kernels, given as (address, extent), one after the other on some arrays."""

    def __init__(self, kernels: Sequence[tuple[int, int]], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self._kept = list(arrays)
        self._table = np.array([a.ctypes.data for a in arrays], np.int64)
        self._block = np.zeros(1, np.int64)
        records = [StepRecord(address, self._block.ctypes.data, extent, CHUNKS) for address, extent in kernels]
        self._steps = pack_steps(records)
        self.threads = len(os.sched_getaffinity(0))

    def __call__(self) -> None:
        addresses = (self._table.ctypes.data, self._steps.ctypes.data, len(self._steps))
        runtime().run_steps(*addresses, 0, self.threads, 1)

    def shortest(self, times: int) -> float:
        """Seconds of the shortest of some calls."""
        found = []
        for _ in range(times):
            start = time.perf_counter()
            self()
            found.append(time.perf_counter() - start)
        return min(found)
