"""The squared residual of Poisson's equation on a grid, five points; gradient of the field."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, normal32, rows


def loss(u: Any, f: Any) -> Any:
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return 0.5 * np.sum((around - 4.0 * u[1:-1, 1:-1] - f) ** 2)


def jax_loss(u: Any, f: Any) -> Any:
    import jax.numpy as jnp

    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return 0.5 * jnp.sum((around - 4.0 * u[1:-1, 1:-1] - f) ** 2)


def torch_loss(u: Any, f: Any) -> Any:
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return 0.5 * ((around - 4.0 * u[1:-1, 1:-1] - f) ** 2).sum()


def pytensor_loss(u: Any, f: Any) -> Any:
    import pytensor.tensor as pt

    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return 0.5 * pt.sum((around - 4.0 * u[1:-1, 1:-1] - f) ** 2)


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n = rows(2048, scale)
    return normal32(rng, n + 2, 2050), normal32(rng, n, 2048)


WORKLOADS = (
    Workload(
        "stencil",
        "Poisson residual 2048x2048 f32",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss},
        _arguments,
        (0,),
    ),
)
