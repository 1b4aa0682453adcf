"""A small causal transformer that predicts the next token, with the norm in front of each part and a gelu by tanh
(Radford et al., "Language Models are Unsupervised Multitask Learners", 2019); gradients of all weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.workload import Array, Contraction, Workload, normal32, rows, weight32

LAYERS, WIDTH, HEADS, LENGTH, BATCH, TOKENS = 2, 128, 4, 128, 16, 96
OF_A_LAYER = 10
OUTER = 3  # embeddings of tokens and of places, and what makes scores of a row
CAUSAL = np.tril(np.ones((LENGTH, LENGTH), bool))

Norm = Callable[[Any, Any], Any]
Attention = Callable[[Any, Any, Any], Any]


def _layers(weights: Sequence[Any]) -> Iterator[Sequence[Any]]:
    inner = weights[OUTER:]
    yield from (inner[k : k + OF_A_LAYER] for k in range(0, len(inner), OF_A_LAYER))


def _scores(tokens: Any, weights: Sequence[Any], norm: Norm, attention: Attention, gelu: Callable[[Any], Any]) -> Any:
    """Scores of the next tokens, written once for all frameworks: operators and what is given alone."""
    h = weights[0][tokens] + weights[1]
    for gain1, wq, wk, wv, wo, gain2, w1, b1, w2, b2 in _layers(weights):
        a = norm(h, gain1)
        h = h + attention(a @ wq, a @ wk, a @ wv) @ wo
        h = h + gelu(norm(h, gain2) @ w1 + b1) @ w2 + b2
    return h @ weights[2]


def _by_heads(t: Any) -> Any:
    """[sequence, place, width] as [sequence, head, place, width of a head]."""
    return t.reshape(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)


def _written_out(xp: Any) -> tuple[Norm, Attention, Callable[[Any], Any]]:
    """Norm, attention and gelu by a module of NumPy's names."""

    def norm(x: Any, gain: Any) -> Any:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        return centred / xp.sqrt(xp.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * gain

    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = map(_by_heads, (q, k, v))
        scores = xp.where(CAUSAL, q @ xp.swapaxes(k, -1, -2) / math.sqrt(WIDTH // HEADS), np.float32(-1e9))
        weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        weights = weights / xp.sum(weights, axis=-1, keepdims=True)
        return (weights @ v).transpose(0, 2, 1, 3).reshape(-1, LENGTH, WIDTH)

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    return norm, attention, gelu


def loss(tokens: Any, following: Any, *weights: Any) -> Any:
    z = _scores(tokens, weights, *_written_out(np))
    z = z - np.max(z, axis=-1, keepdims=True)
    of_label = np.take_along_axis(z, following[..., None], axis=-1)[..., 0]
    return np.mean(np.log(np.sum(np.exp(z), axis=-1)) - of_label)


def jax_loss(tokens: Any, following: Any, *weights: Any) -> Any:
    import jax
    import jax.numpy as jnp

    log_p = jax.nn.log_softmax(_scores(tokens, weights, *_written_out(jnp)))
    return -jnp.mean(jnp.take_along_axis(log_p, following[..., None], axis=-1))


def torch_loss(tokens: Any, following: Any, *weights: Any) -> Any:
    from torch.nn import functional as f

    def norm(x: Any, gain: Any) -> Any:
        return f.layer_norm(x, (WIDTH,), gain, None, 1e-5)

    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (t.reshape(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2) for t in (q, k, v))
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(-1, LENGTH, WIDTH)

    z = _scores(tokens, weights, norm, attention, lambda x: f.gelu(x, approximate="tanh"))
    return f.cross_entropy(z.reshape(-1, TOKENS), following.reshape(-1))


def _arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    text = rng.integers(0, TOKENS, (rows(BATCH, scale), LENGTH + 1))
    weights = [normal32(rng, TOKENS, WIDTH), normal32(rng, LENGTH, WIDTH), weight32(rng, WIDTH, TOKENS)]
    for _ in range(LAYERS):
        weights += [1 + 0.1 * normal32(rng, WIDTH), *(weight32(rng, WIDTH, WIDTH) for _ in range(4))]
        weights += [1 + 0.1 * normal32(rng, WIDTH)]
        weights += [weight32(rng, WIDTH, 4 * WIDTH), 0.1 * normal32(rng, 4 * WIDTH)]
        weights += [weight32(rng, 4 * WIDTH, WIDTH), 0.1 * normal32(rng, WIDTH)]
    return (text[:, :-1].copy(), text[:, 1:].copy(), *weights)


def _products(tokens: Array, following: Array, *weights: Array) -> list[Contraction]:
    """Half of what attention's two products give is masked; it is counted, as NumPy's BLAS would make it."""
    n, head = tokens.size, WIDTH // HEADS
    of_layers = [w for layer in _layers(weights) for w in layer if w.ndim == 2]
    found = [p for w in (*of_layers, weights[2]) for p in Contraction(n, *w.shape).with_gradients()]
    for m, k in ((head, LENGTH), (LENGTH, head)):
        found += LAYERS * Contraction(LENGTH, m, k, len(tokens) * HEADS).with_gradients()
    return found


WORKLOADS = (
    Workload(
        "transformer",
        f"transformer, {LAYERS} layers of {WIDTH}, {BATCH} texts of {LENGTH} f32",
        {"numpy": loss, "jax": jax_loss, "torch": torch_loss},
        _arguments,
        tuple(range(2, 2 + OUTER + OF_A_LAYER * LAYERS)),
        products=_products,
    ),
)
