"""jitgrad: compile(value_and_grad(f)), called as users call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jitgrad as jg
from benchmarks.workload import Array, Loss, Workload


class Jitgrad:
    """Runs fused, on the arrays themselves."""

    loss_of = "numpy"
    version = jg.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        self._compiled = jg.compile(jg.value_and_grad(loss, workload.argnums, workload.has_aux))
        self._arrays = arrays
        return lambda: self._compiled(*arrays)

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        value, grads = result
        value, *aux = value if has_aux else (value,)
        return [value, *grads, *aux]

    def describe(self) -> dict[str, Any]:
        """Counts of kernels, products and NumPy calls, and the bytes that they move."""
        from jitgrad.profiler.planned import compiled_work

        works = [
            compiled_work(stage.executable(arrays)) for stage, arrays in self._compiled.stages(*self._arrays)
        ]
        names = ("kernels", "products", "numpy_calls", "launches", "bytes_moved", "peak_bytes")
        return {name: sum(getattr(work, name) for work in works) for name in names}


def framework() -> Jitgrad:
    return Jitgrad()
