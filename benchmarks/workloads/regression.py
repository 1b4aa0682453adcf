"""Regressions: logistic, small, and with Student-t and Huber losses, long; gradients of the parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, rows

# -- logistic -------------------------------------------------------------------------------------------------


def logistic_loss(w: Any, b: Any, x: Any, y: Any) -> Any:
    z = x @ w + b
    return np.mean(np.logaddexp(0.0, z) - y * z)


def logistic_jax(w: Any, b: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    z = x @ w + b
    return jnp.mean(jnp.logaddexp(0.0, z) - y * z)


def logistic_torch(w: Any, b: Any, x: Any, y: Any) -> Any:
    from torch.nn.functional import softplus

    z = x @ w + b
    return (softplus(z) - y * z).mean()


def logistic_pytensor(w: Any, b: Any, x: Any, y: Any) -> Any:
    import pytensor.tensor as pt

    z = x @ w + b
    return pt.mean(pt.softplus(z) - y * z)


def _logistic_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    x = rng.standard_normal((100, 10))
    return rng.standard_normal(10), np.array(0.3), x, (rng.random(100) < 0.5).astype(np.float64)


# -- Student-t: the log-likelihood of location, scale and degrees of freedom --------------------------------------


def student_loss(w: Any, b: Any, log_scale: Any, log_dof: Any, x: Any, y: Any) -> Any:
    from scipy.special import gammaln

    dof = np.exp(log_dof)
    r = (y - x @ w - b) * np.exp(-log_scale)
    constant = gammaln((dof + 1) / 2) - gammaln(dof / 2) - 0.5 * np.log(dof * np.pi) - log_scale
    return -np.mean(constant - (dof + 1) / 2 * np.log1p(r * r / dof))


def student_jax(w: Any, b: Any, log_scale: Any, log_dof: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp
    from jax.scipy.special import gammaln

    dof = jnp.exp(log_dof)
    r = (y - x @ w - b) * jnp.exp(-log_scale)
    constant = gammaln((dof + 1) / 2) - gammaln(dof / 2) - 0.5 * jnp.log(dof * jnp.pi) - log_scale
    return -jnp.mean(constant - (dof + 1) / 2 * jnp.log1p(r * r / dof))


def student_torch(w: Any, b: Any, log_scale: Any, log_dof: Any, x: Any, y: Any) -> Any:
    import torch

    dof = torch.exp(log_dof)
    r = (y - x @ w - b) * torch.exp(-log_scale)
    constant = torch.lgamma((dof + 1) / 2) - torch.lgamma(dof / 2) - 0.5 * torch.log(dof * torch.pi)
    return -(constant - log_scale - (dof + 1) / 2 * torch.log1p(r * r / dof)).mean()


def student_pytensor(w: Any, b: Any, log_scale: Any, log_dof: Any, x: Any, y: Any) -> Any:
    import pytensor.tensor as pt

    dof = pt.exp(log_dof)
    r = (y - x @ w - b) * pt.exp(-log_scale)
    constant = pt.gammaln((dof + 1) / 2) - pt.gammaln(dof / 2) - 0.5 * pt.log(dof * np.pi) - log_scale
    return -pt.mean(constant - (dof + 1) / 2 * pt.log1p(r * r / dof))


def _student_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    x, y = _data(rng, rows(200_000, scale), 10)
    return 0.1 * rng.standard_normal(10), np.array(0.1), np.array(0.2), np.array(1.5), x, y


def _data(rng: np.random.Generator, n: int, d: int) -> tuple[Array, Array]:
    x = rng.standard_normal((n, d))
    return x, x @ rng.standard_normal(d) + 0.3 * rng.standard_t(3, n)


# -- Huber --------------------------------------------------------------------------------------------------------


def huber_loss(w: Any, b: Any, x: Any, y: Any) -> Any:
    r = np.abs(x @ w + b - y)
    return np.mean(np.where(r < 1.0, 0.5 * r * r, r - 0.5))


def huber_jax(w: Any, b: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    r = jnp.abs(x @ w + b - y)
    return jnp.mean(jnp.where(r < 1.0, 0.5 * r * r, r - 0.5))


def huber_torch(w: Any, b: Any, x: Any, y: Any) -> Any:
    from torch.nn.functional import huber_loss as huber

    return huber(x @ w + b, y)


def huber_pytensor(w: Any, b: Any, x: Any, y: Any) -> Any:
    import pytensor.tensor as pt

    r = pt.abs(x @ w + b - y)
    return pt.mean(pt.where(r < 1.0, 0.5 * r * r, r - 0.5))


def _huber_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    x, y = _data(rng, rows(200_000, scale), 20)
    return 0.1 * rng.standard_normal(20), np.array(0.1), x, y


WORKLOADS = (
    Workload(
        "logistic",
        "logistic regression 100x10 f64",
        {
            "numpy": logistic_loss,
            "jax": logistic_jax,
            "torch": logistic_torch,
            "pytensor": logistic_pytensor,
        },
        _logistic_arguments,
        (0, 1),
    ),
    Workload(
        "student_t",
        "Student-t regression 200000x10 f64",
        {"numpy": student_loss, "jax": student_jax, "torch": student_torch, "pytensor": student_pytensor},
        _student_arguments,
        (0, 1, 2, 3),
    ),
    Workload(
        "huber",
        "Huber regression 200000x20 f64",
        {"numpy": huber_loss, "jax": huber_jax, "torch": huber_torch, "pytensor": huber_pytensor},
        _huber_arguments,
        (0, 1),
    ),
)
