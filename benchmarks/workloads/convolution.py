"""A layer of a convolutional network: 3 by 3 windows, bias, relu, the largest of 2 by 2, and a mean of squares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.workload import Array, Contraction, Workload, normal32, rows

CHANNELS, SIDE, WINDOW = 16, 28, 3


def layer_loss(x: Any, w: Any, b: Any) -> Any:
    from jitgrad import nn

    hidden = nn.relu(nn.conv2d(x, w, b, padding=1))
    return np.mean(nn.max_pool2d(hidden, 2) ** 2)


def layer_jax(x: Any, w: Any, b: Any) -> Any:
    import jax
    import jax.numpy as jnp

    z = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
    hidden = jax.nn.relu(z + b[:, None, None])
    largest = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.mean(largest**2)


def layer_torch(x: Any, w: Any, b: Any) -> Any:
    import torch.nn.functional as functional

    hidden = functional.relu(functional.conv2d(x, w, b, padding=1))
    return (functional.max_pool2d(hidden, 2) ** 2).mean()


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    fan = np.float32(math.sqrt(CHANNELS * WINDOW * WINDOW))
    w = normal32(rng, CHANNELS, CHANNELS, WINDOW, WINDOW) / fan
    # A positive bias: where whole windows are 0 the frameworks share their gradient differently.
    return normal32(rng, rows(32, scale), CHANNELS, SIDE, SIDE), w, normal32(rng, CHANNELS) + np.float32(6)


def _products(x: Array, w: Array, b: Array) -> tuple[Contraction, ...]:
    return Contraction(CHANNELS, w[0].size, SIDE * SIDE, len(x)).with_gradients()


WORKLOADS = (
    Workload(
        "conv_layer",
        "convolution of 32×16×28×28 with 3×3, relu and pooling, float32",
        {"numpy": layer_loss, "jax": layer_jax, "torch": layer_torch},
        _arguments,
        (0, 1, 2),
        products=_products,
    ),
)
