"""The evidence lower bound of Bayesian logistic regression under a mean-field normal (Kingma and Welling,
arXiv:1312.6114), with given noise; gradients of means and scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Contraction, Workload, normal32, rows


def loss(mean: Any, rho: Any, noise: Any, x: Any, y: Any) -> Any:
    scale = np.log1p(np.exp(rho))
    z = (mean + scale * noise) @ x.T
    likelihood = np.sum(y * z - np.logaddexp(0.0, z)) / noise.shape[0]
    divergence = 0.5 * np.sum(scale**2 + mean**2 - 1.0 - 2.0 * np.log(scale))
    return divergence - likelihood


def jax_loss(mean: Any, rho: Any, noise: Any, x: Any, y: Any) -> Any:
    import jax
    import jax.numpy as jnp

    scale = jax.nn.softplus(rho)
    z = (mean + scale * noise) @ x.T
    likelihood = jnp.sum(y * z - jax.nn.softplus(z)) / noise.shape[0]
    divergence = 0.5 * jnp.sum(scale**2 + mean**2 - 1.0 - 2.0 * jnp.log(scale))
    return divergence - likelihood


def torch_loss(mean: Any, rho: Any, noise: Any, x: Any, y: Any) -> Any:
    import torch
    from torch.nn.functional import softplus

    scale = softplus(rho)
    z = (mean + scale * noise) @ x.T
    likelihood = (y * z - softplus(z)).sum() / noise.shape[0]
    divergence = 0.5 * (scale**2 + mean**2 - 1.0 - 2.0 * torch.log(scale)).sum()
    return divergence - likelihood


def pytensor_loss(mean: Any, rho: Any, noise: Any, x: Any, y: Any) -> Any:
    import pytensor.tensor as pt

    scale = pt.softplus(rho)
    z = (mean + scale * noise) @ x.T
    likelihood = pt.sum(y * z - pt.softplus(z)) / np.float32(SAMPLES)
    divergence = 0.5 * pt.sum(scale**2 + mean**2 - 1.0 - 2.0 * pt.log(scale))
    return divergence - likelihood


SAMPLES = 16


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n, d = rows(10_000, scale), 50
    labels = (rng.random(n) < 0.5).astype(np.float32)
    x = normal32(rng, n, d)
    return 0.1 * normal32(rng, d), normal32(rng, d) - 2, normal32(rng, SAMPLES, d), x, labels


def _products(mean: Array, rho: Array, noise: Array, x: Array, y: Array) -> tuple[Contraction, ...]:
    return Contraction(len(noise), len(mean), len(x)).with_gradients(1)


WORKLOADS = (
    Workload(
        "elbo",
        "ELBO, logistic 10000x50, 16 samples f32",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss},
        _arguments,
        (0, 1),
        products=_products,
    ),
)
