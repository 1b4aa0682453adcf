"""Networks of three layers with relu and softmax cross-entropy; gradients of all weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.workload import Array, Contraction, Workload, normal32, rows, weight32


def loss(x: Any, labels: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    h = np.maximum(x @ w1 + b1, 0)
    h = np.maximum(h @ w2 + b2, 0)
    z = h @ w3 + b3
    z = z - np.max(z, axis=1, keepdims=True)
    of_label = np.take_along_axis(z, labels[:, None], axis=1)[:, 0]
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - of_label)


def jax_loss(x: Any, labels: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    import jax
    import jax.numpy as jnp

    h = jax.nn.relu(x @ w1 + b1)
    h = jax.nn.relu(h @ w2 + b2)
    log_p = jax.nn.log_softmax(h @ w3 + b3)
    return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], axis=1))


def torch_loss(x: Any, labels: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    import torch
    from torch.nn.functional import cross_entropy

    h = torch.relu(x @ w1 + b1)
    h = torch.relu(h @ w2 + b2)
    return cross_entropy(h @ w3 + b3, labels)


def pytensor_loss(x: Any, labels: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    import pytensor.tensor as pt

    h = pt.maximum(x @ w1 + b1, 0)
    h = pt.maximum(h @ w2 + b2, 0)
    log_p = pt.special.log_softmax(h @ w3 + b3, axis=1)
    return -pt.mean(log_p[pt.arange(labels.shape[0]), labels])


def _arguments(batch: int, sizes: Sequence[int]) -> Callable[[np.random.Generator, float], tuple[Array, ...]]:
    def make(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
        n = rows(batch, scale)
        weights: list[Array] = []
        for k, m in pairwise(sizes):
            weights += [weight32(rng, k, m), 0.1 * normal32(rng, m)]
        return (normal32(rng, n, sizes[0]), rng.integers(0, sizes[-1], n), *weights)

    return make


def _products(x: Array, labels: Array, *weights: Array) -> list[Contraction]:
    """The input takes no gradient, so the first layer has one product less."""
    layers = [Contraction(len(x), *w.shape) for w in weights[::2]]
    return [product for k, layer in enumerate(layers) for product in layer.with_gradients(2 if k else 1)]


LOSSES = {"numpy": loss, "jax": jax_loss, "torch": torch_loss, "pytensor": pytensor_loss}
SIZES = ((32, (20, 32, 32, 5)), (256, (784, 512, 512, 10)), (1024, (784, 1024, 1024, 10)))
WORKLOADS = tuple(
    Workload(
        f"mlp_{sizes[1]}",
        f"MLP {'-'.join(map(str, sizes))}, batch {batch} f32",
        LOSSES,
        _arguments(batch, sizes),
        (2, 3, 4, 5, 6, 7),
        products=_products,
    )
    for batch, sizes in SIZES
)
