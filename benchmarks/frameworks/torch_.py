"""PyTorch: torch.compile(torch.func.grad_and_value(f)), on tensors that share the arrays' memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.workload import Array, Loss, Workload


class Torch:
    """Inductor, with its default mode."""

    loss_of = "torch"
    version = torch.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        held = [torch.from_numpy(a) for a in arrays]
        fn = torch.compile(torch.func.grad_and_value(loss, workload.argnums, has_aux=workload.has_aux))
        return lambda: fn(*held)

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        grads, value = result
        value, *aux = value if has_aux else (value,)
        return [np.asarray(t.detach().numpy()) for t in (value, *grads, *aux)]

    def describe(self) -> dict[str, Any]:
        return {}


def framework() -> Torch:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return Torch()
