"""jitgrad's interpreter: the same program, op by op in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jitgrad as jg
from benchmarks.frameworks.jitgrad_ import Jitgrad
from benchmarks.workload import Array, Loss, Workload


class Interpreter(Jitgrad):
    """Runs unfused; compiles nothing."""

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        compiled = jg.compile(jg.value_and_grad(loss, workload.argnums, workload.has_aux))
        return lambda: compiled.interpret(*arrays)

    def describe(self) -> dict[str, Any]:
        return {}


def framework() -> Interpreter:
    return Interpreter()
