"""Functions that tests of plans compile in new processes."""

from __future__ import annotations

from typing import Any

import numpy as np

import jitgrad as jg


def elementwise(x: Any) -> Any:
    return np.sum(np.tanh(x) ** 2 * 1.125)


def products(x: Any) -> Any:
    return np.sum(np.tanh(x @ x.T) * 1.125)


def gathers(x: Any) -> Any:
    return np.sum(x[np.array([0, 2, 2])] ** 2 * 1.125)


def interpreted(x: Any) -> Any:
    return np.sum(np.sort(np.sin(x), axis=0) * np.arange(3.0))


def loops(x: Any) -> Any:
    """A scan whose body sorts, and a branch in it: the interpreter runs both."""

    def step(c: Any, row: Any) -> Any:
        c = np.sort(np.sin(c + row)) * jg.cond(c[0] > 0.5, lambda: np.arange(3.0), lambda: 2.0 * np.sort(c))
        return c, np.sum(c)

    return np.sum(jg.scan(step, x[0], x)[1] * 1.0625)


def wrappers(x: Any) -> Any:
    """Functions that take eager tensors too, and a state with a part that is missing."""

    def step(state: Any, row: Any) -> Any:
        return (state[0] + jg.numpy.asarray(row), None), None

    (total, _), _ = jg.scan(step, (jg.stop_gradient(x[0]), None), x)
    return np.sum(jg.nn.relu(total) * 1.0875)


def columns(x: Any) -> Any:
    return np.sum(np.sum(np.exp(-x * x) * 1.375, axis=0) ** 2)
