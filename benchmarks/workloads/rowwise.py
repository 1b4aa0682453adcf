"""Layer norm and softmax cross-entropy: reductions along rows, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, normal32, rows

# -- layer norm (Ba, Kiros and Hinton, arXiv:1607.06450), weighted and summed ----------------------------------


def norm_loss(x: Any, gain: Any, bias: Any, cotangent: Any) -> Any:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return np.sum((centred / np.sqrt(variance + 1e-5) * gain + bias) * cotangent)


def norm_jax(x: Any, gain: Any, bias: Any, cotangent: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.var(x, axis=-1, keepdims=True)
    return jnp.sum(((x - mean) * lax.rsqrt(variance + 1e-5) * gain + bias) * cotangent)


def norm_torch(x: Any, gain: Any, bias: Any, cotangent: Any) -> Any:
    from torch.nn.functional import layer_norm

    return (layer_norm(x, (x.shape[-1],), gain, bias, 1e-5) * cotangent).sum()


def norm_pytensor(x: Any, gain: Any, bias: Any, cotangent: Any) -> Any:
    import pytensor.tensor as pt

    centred = x - pt.mean(x, axis=-1, keepdims=True)
    variance = pt.mean(centred**2, axis=-1, keepdims=True)
    return pt.sum((centred / pt.sqrt(variance + 1e-5) * gain + bias) * cotangent)


def _norm_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n = rows(4096, scale)
    return normal32(rng, n, 768), normal32(rng, 768), normal32(rng, 768), normal32(rng, n, 768)


# -- softmax cross-entropy ------------------------------------------------------------------------------------


def entropy_loss(z: Any, labels: Any) -> Any:
    z = z - np.max(z, axis=1, keepdims=True)
    of_label = np.take_along_axis(z, labels[:, None], axis=1)[:, 0]
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - of_label)


def entropy_jax(z: Any, labels: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), labels[:, None], axis=1))


def entropy_torch(z: Any, labels: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(z, labels)


def entropy_pytensor(z: Any, labels: Any) -> Any:
    import pytensor.tensor as pt

    log_p = pt.special.log_softmax(z, axis=1)
    return -pt.mean(log_p[pt.arange(labels.shape[0]), labels])


def _entropy_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    n = rows(4096, scale)
    return normal32(rng, n, 1000), rng.integers(0, 1000, n)


WORKLOADS = (
    Workload(
        "layer_norm",
        "layer norm 4096x768 f32",
        {"numpy": norm_loss, "jax": norm_jax, "torch": norm_torch, "pytensor": norm_pytensor},
        _norm_arguments,
        (0, 1, 2),
    ),
    Workload(
        "cross_entropy",
        "softmax cross-entropy 4096x1000 f32",
        {"numpy": entropy_loss, "jax": entropy_jax, "torch": entropy_torch, "pytensor": entropy_pytensor},
        _entropy_arguments,
        (0,),
    ),
)
