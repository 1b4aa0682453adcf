"""A table of embeddings: rows looked up, summed per example and projected; gradients of table and weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, normal32, rows, weight32


def loss(table: Any, tokens: Any, w: Any, target: Any) -> Any:
    bag = np.mean(table[tokens], axis=1)
    return np.mean((np.tanh(bag) @ w - target) ** 2)


def jax_loss(table: Any, tokens: Any, w: Any, target: Any) -> Any:
    import jax.numpy as jnp

    bag = jnp.mean(table[tokens], axis=1)
    return jnp.mean((jnp.tanh(bag) @ w - target) ** 2)


def torch_loss(table: Any, tokens: Any, w: Any, target: Any) -> Any:
    import torch

    bag = torch.nn.functional.embedding(tokens, table).mean(1)
    return ((torch.tanh(bag) @ w - target) ** 2).mean()


def pytensor_loss(table: Any, tokens: Any, w: Any, target: Any) -> Any:
    import pytensor.tensor as pt

    bag = pt.mean(table[tokens], axis=1)
    return pt.mean((pt.tanh(bag) @ w - target) ** 2)


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n, words = rows(1024, scale), rows(20_000, scale)
    tokens = rng.integers(0, words, (n, 32))
    return normal32(rng, words, 64), tokens, weight32(rng, 64, 16), normal32(rng, n, 16)


WORKLOADS = (
    Workload(
        "embedding",
        "embedding bag, 20000x64, 1024x32 tokens f32",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss},
        _arguments,
        (0, 2),
    ),
)
