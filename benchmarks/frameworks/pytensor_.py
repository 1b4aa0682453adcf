"""PyTensor: function(inputs, [value, *gradients]) in Numba mode, its inputs trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from benchmarks.workload import Array, Loss, Workload


class PyTensor:
    """Shapes are given, so that its rewrites may use them."""

    loss_of = "pytensor"
    version = pytensor.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        pytensor.config.floatX = next(str(a.dtype) for a in arrays if a.dtype.kind == "f")
        made: list[Any] = []

        def run() -> Any:
            if not made:
                made.append(_function(loss, workload, arrays))
            return made[0](*arrays)

        return run

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        return [np.asarray(a) for a in result]

    def describe(self) -> dict[str, Any]:
        return {}


def _function(loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Any:
    inputs = [pt.tensor(f"in{k}", dtype=str(a.dtype), shape=a.shape) for k, a in enumerate(arrays)]
    result = loss(*inputs)
    value, *aux = result if workload.has_aux else (result,)
    grads = pytensor.grad(value, [inputs[k] for k in workload.argnums])
    compiled = pytensor.function(inputs, [value, *grads, *aux], mode="NUMBA", on_unused_input="ignore")
    compiled.trust_input = True
    return compiled


def framework() -> PyTensor:
    return PyTensor()
