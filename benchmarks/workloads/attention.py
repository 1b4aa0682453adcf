"""Scaled dot-product attention (Vaswani et al., arXiv:1706.03762), weighted and summed; gradients of q, k, v."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.workload import Array, Contraction, Workload, normal32, rows


def loss(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    return np.sum(weights @ v * cotangent)


def jax_loss(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
    import jax
    import jax.numpy as jnp

    weights = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))
    return jnp.sum(weights @ v * cotangent)


def torch_loss(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
    import torch

    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
    return (weights @ v * cotangent).sum()


def pytensor_loss(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
    import pytensor.tensor as pt

    weights = pt.special.softmax(q @ k.swapaxes(-1, -2) / np.float32(math.sqrt(64)), axis=-1)
    return pt.sum(weights @ v * cotangent)


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n = rows(256, scale)
    return tuple(normal32(rng, 4, 8, n, 64) for _ in range(4))


def _products(q: Array, *others: Array) -> tuple[Contraction, ...]:
    *batch, n, d = q.shape
    first = Contraction(n, d, n, math.prod(batch))
    return first.with_gradients() + Contraction(n, n, d, first.batch).with_gradients()


WORKLOADS = (
    Workload(
        "attention",
        "attention 4x8x256x64 f32",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss},
        _arguments,
        (0, 1, 2),
        products=_products,
    ),
)
