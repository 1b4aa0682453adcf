"""Log marginal likelihood of a Gaussian process with a squared-exponential kernel (Rasmussen and Williams, "Gaussian
Processes for Machine Learning", 2006, algorithm 2.1); gradient of the logarithms of amplitude, length and noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, rows


def loss(theta: Any, x: Any, y: Any) -> Any:
    from jitgrad.scipy.linalg import cho_solve

    d = x[:, None, :] - x[None, :, :]
    near = np.exp(-0.5 * np.sum(d * d, axis=-1) * np.exp(-2 * theta[1]))
    covariance = np.exp(theta[0]) * near + np.exp(theta[2]) * np.eye(x.shape[0])
    factor = np.linalg.cholesky(covariance)
    return 0.5 * np.dot(y, cho_solve((factor, True), y)) + np.sum(np.log(np.diagonal(factor)))


def jax_loss(theta: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp
    from jax.scipy.linalg import cho_solve

    d = x[:, None, :] - x[None, :, :]
    near = jnp.exp(-0.5 * jnp.sum(d * d, axis=-1) * jnp.exp(-2 * theta[1]))
    covariance = jnp.exp(theta[0]) * near + jnp.exp(theta[2]) * jnp.eye(x.shape[0])
    factor = jnp.linalg.cholesky(covariance)
    return 0.5 * jnp.dot(y, cho_solve((factor, True), y)) + jnp.sum(jnp.log(jnp.diagonal(factor)))


def torch_loss(theta: Any, x: Any, y: Any) -> Any:
    import torch

    d = x[:, None, :] - x[None, :, :]
    near = torch.exp(-0.5 * torch.sum(d * d, -1) * torch.exp(-2 * theta[1]))
    covariance = torch.exp(theta[0]) * near + torch.exp(theta[2]) * torch.eye(x.shape[0], dtype=x.dtype)
    factor = torch.linalg.cholesky(covariance)
    solved = torch.cholesky_solve(y[:, None], factor)[:, 0]
    return 0.5 * torch.dot(y, solved) + torch.sum(torch.log(torch.diagonal(factor)))


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n = rows(300, scale)
    return np.array([0.1, 0.2, -1.0]), rng.standard_normal((n, 3)), rng.standard_normal(n)


WORKLOADS = (
    Workload(
        "gaussian_process",
        "Gaussian process, 300 points f64",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss},
        _arguments,
        (0,),
    ),
)
