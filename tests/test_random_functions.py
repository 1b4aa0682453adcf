"""Random NumPy functions of points and small matrices: compiled values and gradients are the interpreter's, for one
shape after the other. Short axes last, batches of which one is read by all, transposes beside what they are made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from tests.tolerances import assert_same_up_to_rounding

EXTENTS = ((9, 3), (120, 5), (20, 12), (70, 4), (6, 7))
BLOCK = 4


def _moved(rng: np.random.Generator, x: Any) -> Any:
    """An array of [n, d, d], of one of that shape."""
    turned, axis = np.swapaxes(x, 1, 2), int(rng.integers(3))
    sums = np.sum(x, axis=axis, keepdims=True)
    match int(rng.integers(12)):
        case 0:
            return x - turned
        case 1:
            return x / (np.abs(sums) + 0.5)
        case 2:
            return np.tanh(0.3 * x @ turned)
        case 3:
            return np.tanh(0.3 * x[-1] @ turned)
        case 4:
            return np.sin(x[0]) * x
        case 5:
            return np.cumsum(x, axis=axis) * 0.1
        case 6:
            return np.take_along_axis(x, np.argsort(x, axis=axis), axis=axis)
        case 7:
            return np.fft.irfft(np.fft.rfft(x, axis=0) * (1 - 0.5j), n=x.shape[0], axis=0)
        case 8:
            return x + np.diagonal(x, 0, 1, 2)[:, None, :]
        case 9:
            return np.concatenate([x, x * x], axis=axis)[tuple(slice(n) for n in x.shape)]
        case 10:
            return np.linalg.inv(0.1 * x + 2 * np.eye(x.shape[1]))
    distances = np.sum((x[:, 0, None, :] - x[0, None]) ** 2, axis=2)
    return np.exp(-distances)[:, :, None] * x


def random_loss(seed: int, x: Any) -> Any:
    """A number; the same function for the same seed."""
    rng = np.random.default_rng(seed)
    pool = [x]
    for _ in range(int(rng.integers(3, 7))):
        pool.append(_moved(rng, pool[int(rng.integers(max(0, len(pool) - 2), len(pool)))]))
    return sum(np.sum(np.sin(y)) for y in pool[-2:])


@pytest.mark.parametrize("block", range(5))
def test_random_functions_are_the_interpreters(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        step = jg.compile(jg.value_and_grad(lambda x, seed=seed: random_loss(seed, x)))
        for n, d in np.random.default_rng(seed).permutation(EXTENTS)[:2]:
            x = np.random.default_rng(n).uniform(-1.2, 1.2, (n, d, d))
            (stage, taken), *_ = step.stages(x)
            program = stage.executable(taken).source
            assert_same_up_to_rounding([np.asarray(a) for a in step(x)], program, taken, f"seed {seed}, {n}, {d}")
