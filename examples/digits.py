"""Trains a 64-128-64-10 network on the 1,797 handwritten digits that ship with scikit-learn; all of it is
plain NumPy.

A training step (loss, gradient, Adam) is one compiled function. At the end the gradient step is run
interpreted, fused with separate gradients and fused merged, as `python -m jitgrad compare
examples/digits.py:step` does for any function.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jitgrad as jg

Array = np.ndarray[Any, np.dtype[Any]]
Params = dict[str, Array]
Moments = tuple[Params, Params]

SIZES = (64, 128, 64, 10)
BATCH = 128
EPOCHS = 40
SEED = 0


# -- the model: NumPy, and nothing else ----------------------------------------------------------------------


def logits(p: Params, x: Array) -> Array:
    """The network: two hidden layers with relu."""
    x = np.maximum(x @ p["w1"] + p["b1"], 0)
    x = np.maximum(x @ p["w2"] + p["b2"], 0)
    return x @ p["w3"] + p["b3"]


def loss(p: Params, x: Array, labels: Array) -> Array:
    """Softmax cross-entropy, the mean over the batch."""
    z = logits(p, x)
    z = z - np.max(z, axis=1, keepdims=True)
    of_label = np.take_along_axis(z, labels[:, None], axis=1)[:, 0]
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - of_label)


def adam(p: Params, grads: Params, moments: Moments, t: int, rate: float = 2e-3) -> tuple[Params, Moments]:
    """One step of Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1), counted by ``t`` from 1."""
    first = {k: 0.9 * m + 0.1 * grads[k] for k, m in moments[0].items()}
    second = {k: 0.999 * v + 0.001 * grads[k] ** 2 for k, v in moments[1].items()}
    a, b = 1 - 0.9**t, 1 - 0.999**t
    return {k: p[k] - rate * (first[k] / a) / (np.sqrt(second[k] / b) + 1e-8) for k in p}, (first, second)


# -- what jitgrad adds ---------------------------------------------------------------------------------------


@jg.compile
def step(p: Params, x: Array, labels: Array) -> tuple[Array, Params]:
    """The gradient step: the loss and its gradient with respect to all parameters."""
    return jg.value_and_grad(loss)(p, x, labels)  # type: ignore[no-any-return]


@jg.compile
def train_step(p: Params, moments: Moments, t: int, x: Array, labels: Array) -> tuple[Array, Params, Moments]:
    """The gradient step and Adam, in one native call."""
    value, grads = step(p, x, labels)
    return value, *adam(p, grads, moments, t)


predict = jg.compile(lambda p, x: np.argmax(logits(p, x), axis=1), name="predict")


# -- data and training ---------------------------------------------------------------------------------------


def load() -> tuple[Array, Array, Array, Array]:
    """Training and test images, float32 in [0, 1], and their labels; a quarter is held out for the test."""
    images, labels = load_digits(return_X_y=True)
    return tuple(  # type: ignore[return-value]
        train_test_split((images / 16).astype(np.float32), labels, test_size=0.25, random_state=SEED, stratify=labels)
    )


def new_params(rng: np.random.Generator) -> Params:
    """Normal weights of variance 2/inputs (He et al., arXiv:1502.01852), and zero biases."""
    p: Params = {}
    for k, (n, m) in enumerate(pairwise(SIZES), 1):
        p[f"w{k}"] = (rng.standard_normal((n, m)) * np.sqrt(2 / n)).astype(np.float32)
        p[f"b{k}"] = np.zeros(m, np.float32)
    return p


def batches(x: Array, labels: Array, rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    """All rows once, in random order; the last batch is smaller."""
    order = rng.permutation(len(x))
    for start in range(0, len(x), BATCH):
        rows = order[start : start + BATCH]
        yield x[rows], labels[rows]


def train(x: Array, labels: Array, epochs: int = EPOCHS) -> Params:
    """The parameters after ``epochs`` passes over the data."""
    rng = np.random.default_rng(SEED)
    p = new_params(rng)
    moments = tuple({k: np.zeros_like(w) for k, w in p.items()} for _ in range(2))
    t = 0
    for epoch in range(epochs):
        total = 0.0
        for rows, of_rows in batches(x, labels, rng):
            t += 1
            value, p, moments = train_step(p, moments, t, rows, of_rows)
            total += float(value) * len(rows)
        if epoch % 10 == 9:
            print(f"  epoch {epoch + 1:3}: training loss {total / len(x):.5f}")
    return p


def example_args() -> tuple[Params, Array, Array]:
    """Arguments for ``step``: new parameters, and the first batch of the training data."""
    x, _, labels, _ = load()
    return new_params(np.random.default_rng(SEED)), x[:BATCH], labels[:BATCH]


def main() -> None:
    x, x_test, labels, labels_test = load()
    print(f"training on {len(x)} digits in batches of {BATCH} (the last of {len(x) % BATCH}), {EPOCHS} epochs")
    start = time.perf_counter()
    p = train(x, labels)
    seconds = time.perf_counter() - start
    accuracy = np.mean(predict(p, x_test) == labels_test)
    info = train_step.cache_info()
    print(f"{seconds:.2f} s, with {info.compiles} kernels compiled and {info.disk_hits} loaded from disk")
    print(f"accuracy on {len(x_test)} digits not seen in training: {100 * accuracy:.2f} %\n")
    print("the gradient step for a batch of 128:")
    print(jg.compare(step, *example_args()).table())


if __name__ == "__main__":
    main()
