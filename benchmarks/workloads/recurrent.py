"""Recurrent layers over time: tanh(x w + h u + b), and two LSTM layers that predict characters; gradients of all
weights. A framework that compiles no loop over time is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.workload import Array, Contraction, Workload, normal32, rows, weight32

# -- one layer ---------------------------------------------------------------------------------------------------------


def rnn_loss(xs: Any, w: Any, u: Any, b: Any) -> Any:
    import jitgrad as jg

    def step(h: Any, x: Any) -> Any:
        h = np.tanh(x @ w + h @ u + b)
        return h, h

    _, hs = jg.scan(step, np.zeros((xs.shape[1], len(b)), xs.dtype), xs)
    return np.mean(hs**2)


def rnn_jax_loss(xs: Any, w: Any, u: Any, b: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ w + h @ u + b)
        return h, h

    _, hs = jax.lax.scan(step, jnp.zeros((xs.shape[1], len(b)), xs.dtype), xs)
    return jnp.mean(hs**2)


def _rnn_arguments(steps: int, batch: int, units: int) -> Callable[[np.random.Generator, float], tuple[Array, ...]]:
    def make(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
        xs = normal32(rng, rows(steps, scale), batch, units)
        return xs, weight32(rng, units, units), weight32(rng, units, units), 0.1 * normal32(rng, units)

    return make


def _rnn_products(xs: Array, w: Array, u: Array, b: Array) -> Sequence[Contraction]:
    """The products with the inputs can be one for all steps, and so can those for the gradients of weights."""
    steps, batch, units = xs.shape
    small = Contraction(batch, units, units)
    large = Contraction(steps * batch, units, units)
    return [large, large, large, *[small] * (2 * steps)]


# -- two LSTM layers ---------------------------------------------------------------------------------------------------


def lstm_loss(window: Any, embedding: Any, u1: Any, w2: Any, u2: Any, b: Any, out: Any) -> Any:
    import jitgrad as jg

    def sigmoid(x: Any) -> Any:
        return 0.5 * np.tanh(0.5 * x) + 0.5

    def layer(inputs: Any, u: Any) -> Any:
        start = np.zeros((inputs.shape[1], u.shape[0]), u.dtype)

        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, o, g = np.split(x + h @ u, 4, axis=-1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            return (h, c), h

        return jg.scan(step, (start, start), inputs)[1]

    z = layer(layer(embedding[window[:-1]], u1) @ w2 + b, u2) @ out
    z = z - np.max(z, axis=-1, keepdims=True)
    of_next = np.take_along_axis(z, window[1:, :, None], axis=-1)[..., 0]
    return np.mean(np.log(np.sum(np.exp(z), axis=-1)) - of_next)


def lstm_jax_loss(window: Any, embedding: Any, u1: Any, w2: Any, u2: Any, b: Any, out: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def layer(inputs: Any, u: Any) -> Any:
        start = jnp.zeros((inputs.shape[1], u.shape[0]), u.dtype)

        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, o, g = jnp.split(x + h @ u, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        return jax.lax.scan(step, (start, start), inputs)[1]

    log_p = jax.nn.log_softmax(layer(layer(embedding[window[:-1]], u1) @ w2 + b, u2) @ out)
    return -jnp.mean(jnp.take_along_axis(log_p, window[1:, :, None], axis=-1))


CHARACTERS = 64


def _lstm_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    steps, batch, units = rows(100, scale), 32, 128
    window = rng.integers(0, CHARACTERS, (steps + 1, batch))
    weights = [weight32(rng, n, 4 * units) for n in (CHARACTERS, units, units, units)]
    return window, *weights, 0.1 * normal32(rng, 4 * units), weight32(rng, units, CHARACTERS)


def _lstm_products(window: Array, embedding: Array, u1: Array, w2: Array, *rest: Array) -> Sequence[Contraction]:
    steps, batch, units = len(window) - 1, window.shape[1], len(u1)
    small, between = Contraction(batch, units, 4 * units), Contraction(steps * batch, units, 4 * units)
    back = Contraction(units, steps * batch, 4 * units)
    last = Contraction(steps * batch, units, CHARACTERS)
    return [*[small] * (4 * steps), back, back, *between.with_gradients(), *last.with_gradients()]


WORKLOADS = (
    *(
        Workload(
            f"rnn_{batch}x{units}",
            f"RNN, 200 steps, batch {batch}, {units} units f32",
            {"numpy": rnn_loss, "jax": rnn_jax_loss},
            _rnn_arguments(200, batch, units),
            (1, 2, 3),
            products=_rnn_products if batch > 1 else lambda *arrays: (),
        )
        for batch, units in ((1, 16), (32, 64))
    ),
    Workload(
        "lstm",
        "two LSTM layers, 100 steps, batch 32, 128 units f32",
        {"numpy": lstm_loss, "jax": lstm_jax_loss},
        _lstm_arguments,
        (1, 2, 3, 4, 5, 6),
        products=_lstm_products,
    ),
)
