"""Something small to compile before the first call is timed, so that modules loaded late are not counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Workload


def loss(x: Any) -> Any:
    return np.sum(np.cos(x) * x)


def jax_loss(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sum(jnp.cos(x) * x)


def torch_loss(x: Any) -> Any:
    import torch

    return (torch.cos(x) * x).sum()


def pytensor_loss(x: Any) -> Any:
    import pytensor.tensor as pt

    return pt.sum(pt.cos(x) * x)


PRIME = Workload(
    "prime",
    "sum(x cos(x)), 3 f64",
    {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss},
    lambda rng, scale: (rng.standard_normal(3),),
    (0,),
)
