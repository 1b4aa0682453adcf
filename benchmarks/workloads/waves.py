"""Intensity of a sum of complex waves at many places; gradients of places and wave numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, rows

WAVES = 8


def loss(x: Any, k: Any) -> Any:
    total = sum(np.exp(1j * (k[n] * x + n)) / (1 + n) for n in range(WAVES))
    return np.mean(np.abs(total) ** 2)


def jax_loss(x: Any, k: Any) -> Any:
    import jax.numpy as jnp

    total = sum(jnp.exp(1j * (k[n] * x + n)) / (1 + n) for n in range(WAVES))
    return jnp.mean(jnp.abs(total) ** 2)


def torch_loss(x: Any, k: Any) -> Any:
    import torch

    total = sum(torch.exp(1j * (k[n] * x + n)) / (1 + n) for n in range(WAVES))
    return torch.mean(torch.abs(total) ** 2)


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    return rng.standard_normal(rows(100_000, scale)), rng.standard_normal(WAVES)


WORKLOADS = (
    Workload(
        "waves",
        "intensity of 8 complex waves, 1e5 places c128",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss},
        _arguments,
        (0, 1),
    ),
)
