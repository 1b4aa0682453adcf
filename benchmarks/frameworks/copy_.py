"""The limit of memory: reads the bytes of all arguments once and writes those of all gradients, at the rate of
this machine at that size; it computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from benchmarks.workload import Array, Loss, Workload

_SERIAL = 1 << 18  # bytes below which a second thread does not pay


def _move(source: Any, target: Any, begin: int, end: int) -> float:
    """Copy what the target has room for, add up the rest."""
    middle = max(begin, min(end, len(target)))
    target[begin:middle] = source[begin:middle]
    total = 0.0
    for k in range(middle, end):
        total += source[k]
    return total


class Copy:
    """Moves bytes on all threads."""

    loss_of = "numpy"
    version = numba.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        read = sum(a.nbytes for a in arrays) // 8
        written = sum(arrays[k].nbytes for k in workload.argnums) // 8
        source, target = np.ones(max(read, written, 1)), np.ones(max(written, 1))
        parts = numba.get_num_threads() if source.nbytes + target.nbytes > _SERIAL else 1
        move = numba.njit(fastmath={"reassoc"})(_move)

        @numba.njit(parallel=True)  # type: ignore[untyped-decorator]
        def in_parallel(source: Any, target: Any, parts: int) -> float:
            total, n = 0.0, len(source)
            for part in numba.prange(parts):
                total += move(source, target, part * n // parts, (part + 1) * n // parts)
            return total

        if parts == 1:
            return lambda: move(source, target, 0, len(source))
        return lambda: in_parallel(source, target, parts)

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        return []

    def describe(self) -> dict[str, Any]:
        return {}


def framework() -> Copy:
    return Copy()
