"""sin(x) 1.01 + 0.1, a thousand times: how a compiler bears long programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, rows

LENGTH = 1000


def loss(x: Any) -> Any:
    for _ in range(LENGTH):
        x = np.sin(x) * 1.01 + 0.1
    return np.sum(x)


def jax_loss(x: Any) -> Any:
    import jax.numpy as jnp

    for _ in range(LENGTH):
        x = jnp.sin(x) * 1.01 + 0.1
    return jnp.sum(x)


def torch_loss(x: Any) -> Any:
    import torch

    for _ in range(LENGTH):
        x = torch.sin(x) * 1.01 + 0.1
    return x.sum()


def pytensor_loss(x: Any) -> Any:
    import pytensor.tensor as pt

    for _ in range(LENGTH):
        x = pt.sin(x) * 1.01 + 0.1
    return pt.sum(x)


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    return (rng.standard_normal(rows(1_000, scale)),)


WORKLOADS = (
    Workload(
        "chain",
        "sin(x)*1.01+0.1, 1000 times, 1e3 f64",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss},
        _arguments,
        (0,),
    ),
)
