"""The limit of memory: reads the bytes of all arguments once and writes those of all gradients, at the rate of
this machine at that size; it computes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.workload import Array, Loss, Workload

_SERIAL = 4 << 20  # bytes below which handing work to another thread takes longer than doing it


class Copy:
    """Copies and reads by NumPy, which uses stores past the caches where that pays; large amounts in threads."""

    loss_of = "numpy"
    version = np.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        read = sum(a.nbytes for a in arrays) // 8
        written = sum(arrays[k].nbytes for k in workload.argnums) // 8
        source, target = np.ones(max(read, written, 1)), np.ones(max(written, 1))
        parts = len(os.sched_getaffinity(0)) if source.nbytes + target.nbytes > _SERIAL else 1
        pieces = [
            (
                np.array_split(target, parts)[k],
                *(np.array_split(s, parts)[k] for s in _halves(source, written)),
            )
            for k in range(parts)
        ]
        pool = ThreadPoolExecutor(max(1, parts - 1))

        def run() -> None:
            others = [pool.submit(_move, *piece) for piece in pieces[1:]]
            _move(*pieces[0])
            for other in others:
                other.result()

        return run

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        return []

    def describe(self) -> dict[str, Any]:
        return {}


def _halves(source: Array, written: int) -> tuple[Array, Array]:
    """What is copied, and what is only read."""
    return source[: max(written, 1)], source[max(written, 1) :]


def _move(target: Array, copied: Array, read: Array) -> None:
    np.copyto(target, copied)
    if len(read):
        np.maximum.reduce(read)


def framework() -> Copy:
    return Copy()
