"""What the machine can do, measured: memory and BLAS rates, which a profile's rates are held against."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad import recording
from jitgrad.records import dataclass

_BYTES = 48 << 20
_SIZE = 1024
_TURNS = 7


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes per second to and from memory, and operations per second in float32 and float64 matrix products."""

    bytes_per_second: float
    float32_flops: float
    float64_flops: float

    def flops_per_second(self, dtype: str) -> float:
        """The rate of BLAS for a dtype."""
        return self.float64_flops if dtype == "float64" else self.float32_flops


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits that a run is held against, and a sentence where the run itself showed more than was measured."""

    limits: Limits
    note: str = ""


def limits_of_run(threads: int, rates: Mapping[str, float]) -> RunLimits:
    """The machine's limits, raised to the fastest products of the run, whose rates are given by dtype.

    A machine that is busy while its limits are measured shows too little, and a run may be luckier.
    """
    measured = machine_limits(threads)
    raised = replace(
        measured,
        float32_flops=max(measured.float32_flops, rates.get("float32", 0.0)),
        float64_flops=max(measured.float64_flops, rates.get("float64", 0.0)),
    )
    changes = [
        f"{dtype} products of this run reached {raised.flops_per_second(dtype) / 1e9:.3g} GFLOP/s, which is taken for "
        f"the limit: {measured.flops_per_second(dtype) / 1e9:.3g} were measured"
        for dtype in ("float32", "float64")
        if raised.flops_per_second(dtype) > measured.flops_per_second(dtype)
    ]
    return RunLimits(raised, "; ".join(changes) + (", on a busy machine perhaps" if changes else ""))


@functools.cache
def machine_limits(threads: int) -> Limits:
    """Measured once per process and number of threads, in about a third of a second: the best of seven runs each.

    The memory rate is that of a compiled ``a + 0.5 * b`` over arrays of 48 MiB, two read and one written.
    """
    from jitgrad.compiled import Compiled, Options

    triad = Compiled(lambda a, b: a + 0.5 * b, Options(name="triad"))
    a, b = np.ones(_BYTES // 4, np.float32), np.ones(_BYTES // 4, np.float32)
    with recording.muted():
        moved = 3 * a.nbytes / _best(lambda: triad(a, b))
    rates = []
    for dtype in (np.float32, np.float64):
        x = np.ones((_SIZE, _SIZE), dtype)
        out = np.empty_like(x)
        rates.append(2 * _SIZE**3 / _best(lambda x=x, out=out: np.matmul(x, x, out=out)))  # type: ignore[misc]
    return Limits(moved, rates[0], rates[1])


def _best(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of several calls, after one that counts for nothing."""
    call()
    found = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)
