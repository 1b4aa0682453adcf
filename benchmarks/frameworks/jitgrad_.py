"""jitgrad: compile(value_and_grad(f)), called as users call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from typing import Any

import scipy.special  # noqa: F401  losses import it where they use it, users at the top

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
        """Counts of kernels, products and NumPy calls, the bytes that they move, and operations by size of element:
        products, divisions and others.
        """
        from jitgrad.profiler.operations import operations
        from jitgrad.profiler.planned import compiled_work

        executables = [stage.executable(arrays) for stage, arrays in self._compiled.stages(*self._arrays)]
        works = [compiled_work(executable) for executable in executables]
        names = ("kernels", "products", "numpy_calls", "launches", "bytes_moved", "peak_bytes")
        found = {name: sum(getattr(work, name) for work in works) for name in names}
        total = [operations(executable) for executable in executables]
        sizes = {size for counts in total for size in counts}
        return {**found, "operations": {size: _sum(counts.get(size) for counts in total) for size in sizes}}


def _sum(counts: Iterable[Any]) -> list[float]:
    return [sum(numbers) for numbers in zip(*(astuple(count) for count in counts if count), strict=True)]


def framework() -> Jitgrad:
    return Jitgrad()
