"""sum(gelu(x w + b)²) with the tanh form of gelu (Hendrycks and Gimpel, arXiv:1606.08415); gradients of w, b."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, normal32, rows

ROOT = math.sqrt(2 / math.pi)


def loss(x: Any, w: Any, b: Any) -> Any:
    t = x * w + b
    y = 0.5 * t * (1 + np.tanh(ROOT * (t + 0.044715 * t * t * t)))
    return np.sum(y**2)


def jax_loss(x: Any, w: Any, b: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jnp.sum(jax.nn.gelu(x * w + b, approximate=True) ** 2)


def torch_loss(x: Any, w: Any, b: Any) -> Any:
    from torch.nn.functional import gelu

    return (gelu(x * w + b, approximate="tanh") ** 2).sum()


def pytensor_loss(x: Any, w: Any, b: Any) -> Any:
    import pytensor.tensor as pt

    t = x * w + b
    y = 0.5 * t * (1 + pt.tanh(ROOT * (t + 0.044715 * t * t * t)))
    return pt.sum(y**2)


def _arguments(count: int) -> Callable[[np.random.Generator, float], tuple[Array, ...]]:
    def make(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
        n = rows(count, scale)
        return normal32(rng, n), normal32(rng, n), normal32(rng, n)

    return make


LOSSES = {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss}
WORKLOADS = tuple(
    Workload(f"gelu_{text}", f"gelu, {text} f32", LOSSES, _arguments(count), (1, 2))
    for text, count in (("1e3", 1_000), ("1e6", 1_000_000), ("1e7", 10_000_000))
)
