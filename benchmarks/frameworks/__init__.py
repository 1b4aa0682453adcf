"""How each framework runs a workload, one module each; a module imports its framework when it is imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from benchmarks.workload import Array, Loss, Workload

OURS = ("jitgrad", "interpreter")
PEERS = ("jax", "torch", "pytensor")


class Framework(Protocol):
    """``loss_of`` names the loss that it takes. ``prepare`` gives a call without arguments, which has finished
    when it returns; nothing is compiled before it is called. ``arrays_of`` gives the arrays of a result, the
    value first, then gradients, then what else comes out. ``describe`` tells what was compiled, or nothing.
    """

    loss_of: str
    version: str

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]: ...
    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]: ...
    def describe(self) -> dict[str, Any]: ...


def load(name: str) -> Framework:
    """The framework; ImportError where it is not installed."""
    module = importlib.import_module(f"benchmarks.frameworks.{name}_")
    return cast(Framework, module.framework())
