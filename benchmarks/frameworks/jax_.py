"""JAX: jit(value_and_grad(f)) with 64-bit types enabled, on arrays that it holds already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special  # losses import it where they use it, users at the top
import numpy as np

from benchmarks.workload import Array, Loss, Workload


class Jax:
    """Waits for all results of a call."""

    loss_of = "jax"
    version = jax.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        held = [jnp.array(a) for a in arrays]
        fn = jax.jit(jax.value_and_grad(loss, workload.argnums, workload.has_aux))
        return lambda: jax.block_until_ready(fn(*held))

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        value, grads = result
        value, *aux = value if has_aux else (value,)
        return [np.asarray(a) for a in (value, *grads, *aux)]

    def describe(self) -> dict[str, Any]:
        return {}


def framework() -> Jax:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    return Jax()
