"""Prices of European calls (Black and Scholes 1973), with the five first derivatives of each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, rows


def loss(spot: Any, strike: Any, years: Any, rate: Any, sigma: Any) -> Any:
    from scipy.special import erfc

    spread = sigma * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + sigma**2 / 2) * years) / spread
    cdf1, cdf2 = erfc(-d1 / math.sqrt(2)) / 2, erfc(-(d1 - spread) / math.sqrt(2)) / 2
    price = spot * cdf1 - strike * np.exp(-rate * years) * cdf2
    return np.sum(price), price


def jax_loss(spot: Any, strike: Any, years: Any, rate: Any, sigma: Any) -> Any:
    import jax.numpy as jnp
    from jax.scipy.special import erfc

    spread = sigma * jnp.sqrt(years)
    d1 = (jnp.log(spot / strike) + (rate + sigma**2 / 2) * years) / spread
    cdf1, cdf2 = erfc(-d1 / math.sqrt(2)) / 2, erfc(-(d1 - spread) / math.sqrt(2)) / 2
    price = spot * cdf1 - strike * jnp.exp(-rate * years) * cdf2
    return jnp.sum(price), price


def torch_loss(spot: Any, strike: Any, years: Any, rate: Any, sigma: Any) -> Any:
    import torch

    spread = sigma * torch.sqrt(years)
    d1 = (torch.log(spot / strike) + (rate + sigma**2 / 2) * years) / spread
    cdf1, cdf2 = torch.erfc(-d1 / math.sqrt(2)) / 2, torch.erfc(-(d1 - spread) / math.sqrt(2)) / 2
    price = spot * cdf1 - strike * torch.exp(-rate * years) * cdf2
    return price.sum(), price


def pytensor_loss(spot: Any, strike: Any, years: Any, rate: Any, sigma: Any) -> Any:
    import pytensor.tensor as pt

    spread = sigma * pt.sqrt(years)
    d1 = (pt.log(spot / strike) + (rate + sigma**2 / 2) * years) / spread
    cdf1, cdf2 = pt.erfc(-d1 / math.sqrt(2)) / 2, pt.erfc(-(d1 - spread) / math.sqrt(2)) / 2
    price = spot * cdf1 - strike * pt.exp(-rate * years) * cdf2
    return pt.sum(price), price


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    bounds = ((80.0, 120.0), (80.0, 120.0), (0.1, 2.0), (0.0, 0.05), (0.1, 0.5))
    return tuple(rng.uniform(lo, hi, rows(1_000_000, scale)) for lo, hi in bounds)


LOSSES = {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss}
WORKLOADS = (
    Workload(
        "black_scholes",
        "Black-Scholes price, 5 Greeks, 1e6 f64",
        LOSSES,
        _arguments,
        (0, 1, 2, 3, 4),
        has_aux=True,
    ),
)
