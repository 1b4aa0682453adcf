"""Learns to continue a text character by character: two LSTM layers (Hochreiter and Schmidhuber, Neural Computation 9,
1997), each a scan over time, trained on the licence of this project with Adam.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import jitgrad as jg

Array = np.ndarray[Any, np.dtype[Any]]
Parameters = dict[str, Any]

UNITS, STEPS, BATCH = 64, 50, 16


def read_text() -> tuple[Array, str]:
    """The licence as numbers of characters, and these characters."""
    text = (Path(__file__).parent.parent / "LICENSE").read_text().lower()
    characters = "".join(sorted(set(text)))
    return np.array([characters.index(c) for c in text]), characters


def initial(count: int, units: int, rng: np.random.Generator) -> Parameters:
    """Parameters for ``count`` characters; the gates are input, forget, output and candidate."""

    def weights(rows: int, columns: int) -> Array:
        return (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)

    bias = np.repeat(np.array([0, 1, 0, 0], np.float32), units)
    return {
        "w": [weights(count, 4 * units), weights(units, 4 * units)],
        "u": [weights(units, 4 * units), weights(units, 4 * units)],
        "b": [bias.copy(), bias.copy()],
        "out": weights(units, count),
        "out_b": np.zeros(count, np.float32),
    }


def sigmoid(x: Any) -> Any:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def layer(inputs: Any, u: Any) -> Any:
    """The states of an LSTM, (steps, batch, units), for what its gates get from below, (steps, batch, 4 units)."""
    start = np.zeros((inputs.shape[1], u.shape[0]), u.dtype)

    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, o, g = np.split(x + h @ u, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        return (h, c), h

    return jg.scan(step, (start, start), inputs)[1]


def scores(p: Parameters, characters: Any) -> Any:
    """For each place in (steps, batch) characters, the scores of what comes next."""
    inputs = p["w"][0][characters] + p["b"][0]
    hs = layer(inputs, p["u"][0])
    hs = layer(hs @ p["w"][1] + p["b"][1], p["u"][1])
    return hs @ p["out"] + p["out_b"]


def loss(p: Parameters, window: Any) -> Any:
    """Mean cross-entropy of the characters after the first, in nats; ``window`` is (steps + 1, batch)."""
    z = scores(p, window[:-1])
    z = z - np.max(z, axis=-1, keepdims=True)
    of_next = np.take_along_axis(z, window[1:, :, None], axis=-1)[..., 0]
    return np.mean(np.log(np.sum(np.exp(z), axis=-1)) - of_next)


step = jg.compile(jg.value_and_grad(loss))


def windows(text: Array, steps: int, batch: int, rng: np.random.Generator) -> Array:
    """Pieces of the text from random places, (steps + 1, batch)."""
    starts = rng.integers(0, len(text) - steps - 1, batch)
    return text[starts + np.arange(steps + 1)[:, None]]


def train(iterations: int, units: int = UNITS, steps: int = STEPS, batch: int = BATCH, seed: int = 0) -> Any:
    """The losses of all iterations, and the parameters at the end."""
    rng = np.random.default_rng(seed)
    text, characters = read_text()
    p = initial(len(characters), units, rng)
    adam = jg.optimize.Adam(learning_rate=0.01)
    state = adam.init(p)
    losses = []
    for _ in range(iterations):
        value, gradient = step(p, windows(text, steps, batch, rng))
        p, state = adam.update(gradient, state, p)
        losses.append(float(value))
    return losses, p


def example_args() -> tuple[Parameters, Array]:
    """Arguments for ``step``."""
    rng = np.random.default_rng(0)
    text, characters = read_text()
    return initial(len(characters), UNITS, rng), windows(text, STEPS, BATCH, rng)


def main() -> None:
    start = time.perf_counter()
    losses, _ = train(600)
    for k in range(0, len(losses), 100):
        print(f"iterations {k:3} to {k + 99}: {np.mean(losses[k : k + 100]):.3f} nats per character")
    print(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
