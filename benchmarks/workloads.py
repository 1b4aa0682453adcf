"""The workloads: functions with their gradients, and random arguments for them; nothing is measured here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erfc

import jitgrad as jg

Array = np.ndarray[Any, np.dtype[Any]]
Arguments = tuple[Array, ...]


@dataclass(frozen=True)
class Workload:
    """``fn`` is run; ``arguments(scale)`` makes its arguments, with ``scale`` times as many rows as usual."""

    name: str
    fn: Callable[..., Any]
    arguments: Callable[[float], Arguments]


def _normal(*shapes: tuple[int, ...]) -> Arguments:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


def _rows(count: int, scale: float) -> int:
    return max(2, round(count * scale))


# -- one pass over many numbers ------------------------------------------------------------------------------


def gelu_sum(x: Any, w: Any, b: Any) -> Any:
    """sum(gelu(x w + b)²), with the tanh form of gelu (Hendrycks and Gimpel, arXiv:1606.08415)."""
    t = x * w + b
    y = 0.5 * t * (1 + np.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t * t * t)))
    return np.sum(y**2)


def _gelu_arguments(scale: float) -> Arguments:
    n = _rows(1_000_000, scale)
    return _normal((n,), (n,), (n,))


def _cdf(x: Any) -> Any:
    return erfc(-x / math.sqrt(2)) / 2


def option_prices(spot: Any, strike: Any, years: Any, rate: Any, sigma: Any) -> Any:
    """The sum of the prices of European calls (Black and Scholes 1973)."""
    spread = sigma * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + sigma**2 / 2) * years) / spread
    return np.sum(spot * _cdf(d1) - strike * np.exp(-rate * years) * _cdf(d1 - spread))


def _option_arguments(scale: float) -> Arguments:
    rng = np.random.default_rng(0)
    bounds = ((80.0, 120.0), (80.0, 120.0), (0.1, 2.0), (0.0, 0.05), (0.1, 0.5))
    return tuple(rng.uniform(lo, hi, _rows(1_000_000, scale)) for lo, hi in bounds)


# -- rows ----------------------------------------------------------------------------------------------------


def layer_norm(x: Any, gain: Any, bias: Any, cotangent: Any) -> Any:
    """Layer norm over the last axis (Ba, Kiros and Hinton, arXiv:1607.06450), weighted and summed."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return np.sum((centred / np.sqrt(variance + 1e-5) * gain + bias) * cotangent)


def _layer_norm_arguments(scale: float) -> Arguments:
    rows = _rows(4096, scale)
    return _normal((rows, 768), (768,), (768,), (rows, 768))


def cross_entropy(z: Any, labels: Any) -> Any:
    """Softmax cross-entropy of logits, the mean over the rows."""
    z = z - np.max(z, axis=1, keepdims=True)
    of_label = np.take_along_axis(z, labels[:, None], axis=1)[:, 0]
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - of_label)


def _cross_entropy_arguments(scale: float) -> Arguments:
    rows = _rows(4096, scale)
    labels = np.random.default_rng(1).integers(0, 1000, rows)
    return (*_normal((rows, 1000)), labels)


# -- a network, and a call that does nothing -----------------------------------------------------------------


def network(x: Any, labels: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    """The loss of the network of examples/digits.py."""
    x = np.maximum(x @ w1 + b1, 0)
    x = np.maximum(x @ w2 + b2, 0)
    return cross_entropy(x @ w3 + b3, labels)


def _network_arguments(scale: float) -> Arguments:
    rows = _rows(128, scale)
    x, *weights = _normal((rows, 64), (64, 128), (128,), (128, 64), (64,), (64, 10), (10,))
    return (x, np.random.default_rng(1).integers(0, 10, rows), *(0.1 * w for w in weights))


def square_sum(x: Any) -> Any:
    """sum(x²), of four numbers: what a call costs."""
    return np.sum(x**2)


WORKLOADS = (
    Workload("sum(gelu(x*w+b)**2), 1e6 f32", jg.value_and_grad(gelu_sum, (0, 1, 2)), _gelu_arguments),
    Workload("Black-Scholes, 1e6 f64", jg.value_and_grad(option_prices, (0, 1, 2, 3, 4)), _option_arguments),
    Workload("layer norm, 4096x768 f32", jg.value_and_grad(layer_norm, (0, 1, 2)), _layer_norm_arguments),
    Workload("cross-entropy, 4096x1000 f32", jg.value_and_grad(cross_entropy), _cross_entropy_arguments),
    Workload(
        "digits network, batch 128 f32", jg.value_and_grad(network, (2, 3, 4, 5, 6, 7)), _network_arguments
    ),
    Workload("sum(x**2), 4 f64", jg.value_and_grad(square_sum), lambda scale: (np.arange(4.0),)),
)
