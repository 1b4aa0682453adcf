"""Many small matrices: a product of three, and the log-density of normals by solve and determinant."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, rows

# -- products -------------------------------------------------------------------------------------------------


def product_loss(a: Any, b: Any, c: Any) -> Any:
    return np.sum((a @ b @ c) ** 2)


def product_jax(a: Any, b: Any, c: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sum((a @ b @ c) ** 2)


def product_torch(a: Any, b: Any, c: Any) -> Any:
    return ((a @ b @ c) ** 2).sum()


def product_pytensor(a: Any, b: Any, c: Any) -> Any:
    import pytensor.tensor as pt

    return pt.sum((a @ b @ c) ** 2)


def _product_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n = rows(20_000, scale)
    return tuple(rng.standard_normal((n, 4, 4)) for _ in range(3))


# -- normal log-densities -----------------------------------------------------------------------------------------


def density_loss(root: Any, x: Any) -> Any:
    covariance = root @ np.swapaxes(root, -1, -2) + np.eye(x.shape[-1])
    solved = np.linalg.solve(covariance, x[..., None])[..., 0]
    constant = x.shape[-1] * math.log(2 * math.pi)
    return 0.5 * np.mean(np.sum(x * solved, axis=-1) + np.linalg.slogdet(covariance)[1] + constant)


def density_jax(root: Any, x: Any) -> Any:
    import jax.numpy as jnp

    covariance = root @ jnp.swapaxes(root, -1, -2) + jnp.eye(x.shape[-1])
    solved = jnp.linalg.solve(covariance, x[..., None])[..., 0]
    constant = x.shape[-1] * math.log(2 * math.pi)
    return 0.5 * jnp.mean(jnp.sum(x * solved, axis=-1) + jnp.linalg.slogdet(covariance)[1] + constant)


def density_torch(root: Any, x: Any) -> Any:
    import torch

    covariance = root @ root.transpose(-1, -2) + torch.eye(x.shape[-1], dtype=x.dtype)
    solved = torch.linalg.solve(covariance, x[..., None])[..., 0]
    constant = x.shape[-1] * math.log(2 * math.pi)
    return 0.5 * ((x * solved).sum(-1) + torch.linalg.slogdet(covariance)[1] + constant).mean()


def density_pytensor(root: Any, x: Any) -> Any:
    import pytensor.tensor as pt

    covariance = root @ root.swapaxes(-1, -2) + pt.eye(DIMENSION)
    solved = pt.linalg.solve(covariance, x, b_ndim=1)
    log_det = pt.log(pt.linalg.det(covariance))
    constant = DIMENSION * math.log(2 * math.pi)
    return 0.5 * pt.mean(pt.sum(x * solved, axis=-1) + log_det + constant)


DIMENSION = 8


def _density_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n = rows(1_000, scale)
    return rng.standard_normal((n, DIMENSION, DIMENSION)), rng.standard_normal((n, DIMENSION))


WORKLOADS = (
    Workload(
        "batched_products",
        "20000 products of three 4x4 f64",
        {
            "numpy": product_loss,
            "jax": product_jax,
            "torch": product_torch,
            "pytensor": product_pytensor,
        },
        _product_arguments,
        (0, 1, 2),
    ),
    Workload(
        "batched_densities",
        "1000 normal densities 8x8 f64",
        {
            "numpy": density_loss,
            "jax": density_jax,
            "torch": density_torch,
            "pytensor": density_pytensor,
        },
        _density_arguments,
        (0, 1),
    ),
)
