"""Rosenbrock's function of ten variables: what a small call costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload


def loss(x: Any) -> Any:
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def jax_loss(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def torch_loss(x: Any) -> Any:
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


def pytensor_loss(x: Any) -> Any:
    import pytensor.tensor as pt

    return pt.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    return (rng.uniform(-1.5, 1.5, 10),)


WORKLOADS = (
    Workload(
        "rosenbrock",
        "Rosenbrock, 10 variables f64",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss},
        _arguments,
        (0,),
    ),
)
