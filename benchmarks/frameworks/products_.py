"""The limit of matrix products: a processor's share of those that a workload names, by NumPy's BLAS on one thread,
into kept arrays. Threads of BLAS are left out, because they lose most of their speed on a busy machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.workload import Array, Contraction, Loss, Workload


class Products:
    """Takes as long as all of them would take if they were shared out without loss."""

    loss_of = "numpy"
    version = np.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        dtype = next(a.dtype for a in arrays if a.dtype.kind == "f")
        threads = len(os.sched_getaffinity(0))
        operands = [_operands(product, dtype, threads) for product in workload.products(*arrays)]
        threadpool_limits(limits=1)

        def run() -> None:
            for a, b, out in operands:
                np.matmul(a, b, out=out)

        return run

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        return []

    def describe(self) -> dict[str, Any]:
        return {}


def _operands(product: Contraction, dtype: np.dtype[Any], threads: int) -> tuple[Array, Array, Array]:
    """The share of one thread: some of the batch or, without one, of the longer side of the result."""
    batch, m, k, n = product.batch, product.m, product.k, product.n
    if batch > 1:
        batch = -(-batch // threads)
    elif m >= n:
        m = -(-m // threads)
    else:
        n = -(-n // threads)
    lead = (batch,) if batch > 1 else ()
    a, b, out = (np.ones(lead + shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    return a, b, out


def framework() -> Products:
    return Products()
