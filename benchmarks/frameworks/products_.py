"""The limit of matrix products: those of the workload alone, by NumPy's BLAS into kept arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.workload import Array, Contraction, Loss, Workload


class Products:
    """Only the large products that a workload names."""

    loss_of = "numpy"
    version = np.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        dtype = next(a.dtype for a in arrays if a.dtype.kind == "f")
        operands = [_operands(product, dtype) for product in workload.products(*arrays)]

        def run() -> None:
            for a, b, out in operands:
                np.matmul(a, b, out=out)

        return run

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        return []

    def describe(self) -> dict[str, Any]:
        return {}


def _operands(product: Contraction, dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    batch = (product.batch,) if product.batch > 1 else ()
    shapes = ((product.m, product.k), (product.k, product.n), (product.m, product.n))
    a, b, out = (np.ones(batch + shape, dtype) for shape in shapes)
    return a, b, out


def framework() -> Products:
    return Products()
