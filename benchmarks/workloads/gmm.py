"""ADBench's objective (Šrajer, Kukelová and Fitzgibbon, arXiv:1807.10129): the log-posterior of a mixture of
normals with full covariances under a Wishart prior; gradients of weights, means and inverse factors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.workload import Array, Contraction, Workload, rows

GAMMA, EXTRA = 1.0, 0  # the prior


def _constant(n: int, d: int, k: int) -> float:
    """The terms that depend on the sizes alone."""
    freedom = d + EXTRA + 1
    log_gamma = 0.25 * d * (d - 1) * math.log(math.pi)
    log_gamma += sum(math.lgamma(0.5 * freedom - 0.5 * j) for j in range(d))
    wishart = freedom * d * (math.log(GAMMA) - 0.5 * math.log(2)) - log_gamma
    return -n * d * 0.5 * math.log(2 * math.pi) - k * wishart


def _below(d: int) -> tuple[Array, Array]:
    """Rows and columns of the entries below the diagonal, column by column."""
    columns, places = np.triu_indices(d, 1)
    return places, columns


def loss(alphas: Any, means: Any, factors: Any, x: Any) -> Any:
    import jitgrad.numpy as jnp
    from jitgrad.nn import logsumexp

    k, d = means.shape
    logs, diagonals = np.sum(factors[:, :d], axis=1), np.exp(factors[:, :d])
    lower = jnp.zeros((k, d, d))
    lower[:, *_below(d)] = factors[:, d:]
    centred = x[:, None, :] - means
    scaled = diagonals * centred + np.einsum("kij,nkj->nki", lower, centred)
    terms = alphas + logs - 0.5 * np.sum(scaled**2, axis=2)
    likelihood = np.sum(logsumexp(terms, axis=1)) - len(x) * logsumexp(alphas)
    prior = 0.5 * GAMMA**2 * (np.sum(diagonals**2) + np.sum(factors[:, d:] ** 2)) - EXTRA * np.sum(logs)
    return likelihood + prior + _constant(len(x), d, k)


def jax_loss(alphas: Any, means: Any, factors: Any, x: Any) -> Any:
    import jax.numpy as jnp
    from jax.scipy.special import logsumexp

    k, d = means.shape
    logs, diagonals = jnp.sum(factors[:, :d], axis=1), jnp.exp(factors[:, :d])
    lower = jnp.zeros((k, d, d)).at[:, *_below(d)].set(factors[:, d:])
    centred = x[:, None, :] - means
    scaled = diagonals * centred + jnp.einsum("kij,nkj->nki", lower, centred)
    terms = alphas + logs - 0.5 * jnp.sum(scaled**2, axis=2)
    likelihood = jnp.sum(logsumexp(terms, axis=1)) - len(x) * logsumexp(alphas)
    prior = 0.5 * GAMMA**2 * (jnp.sum(diagonals**2) + jnp.sum(factors[:, d:] ** 2)) - EXTRA * jnp.sum(logs)
    return likelihood + prior + _constant(len(x), d, k)


def torch_loss(alphas: Any, means: Any, factors: Any, x: Any) -> Any:
    import torch

    k, d = means.shape
    logs, diagonals = factors[:, :d].sum(1), torch.exp(factors[:, :d])
    places, columns = map(torch.as_tensor, _below(d))
    lower = torch.zeros((k, d * d), dtype=x.dtype).index_copy(1, places * d + columns, factors[:, d:])
    centred = x[:, None, :] - means
    scaled = diagonals * centred + torch.einsum("kij,nkj->nki", lower.reshape(k, d, d), centred)
    terms = alphas + logs - 0.5 * (scaled**2).sum(2)
    likelihood = torch.logsumexp(terms, 1).sum() - len(x) * torch.logsumexp(alphas, 0)
    prior = 0.5 * GAMMA**2 * ((diagonals**2).sum() + (factors[:, d:] ** 2).sum()) - EXTRA * logs.sum()
    return likelihood + prior + _constant(len(x), d, k)


def pytensor_loss(alphas: Any, means: Any, factors: Any, x: Any) -> Any:
    import pytensor.tensor as pt

    (k, d), n = means.type.shape, x.type.shape[0]
    logs, diagonals = pt.sum(factors[:, :d], axis=1), pt.exp(factors[:, :d])
    places, columns = _below(d)
    lower = pt.zeros((k, d, d))[:, places, columns].set(factors[:, d:])
    centred = x[:, None, :] - means
    scaled = diagonals * centred + pt.einsum("kij,nkj->nki", lower, centred)
    terms = alphas + logs - 0.5 * pt.sum(scaled**2, axis=2)
    likelihood = pt.sum(pt.logsumexp(terms, axis=1)) - n * pt.logsumexp(alphas)
    prior = 0.5 * GAMMA**2 * (pt.sum(diagonals**2) + pt.sum(factors[:, d:] ** 2)) - EXTRA * pt.sum(logs)
    return likelihood + prior + _constant(n, d, k)


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n, d, k = rows(1_000, scale), 10, 25
    factors = 0.3 * rng.standard_normal((k, d * (d + 1) // 2))
    return rng.standard_normal(k), rng.standard_normal((k, d)), factors, rng.standard_normal((n, d))


def _products(alphas: Array, means: Array, factors: Array, x: Array) -> tuple[Contraction, ...]:
    """Each factor with all centred points."""
    k, d = means.shape
    return Contraction(len(x), d, d, k).with_gradients()


WORKLOADS = (
    Workload(
        "gmm",
        "GMM, full covariance, n=1000 d=10 k=25 f64",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss},
        _arguments,
        (0, 1, 2),
        products=_products,
    ),
)
