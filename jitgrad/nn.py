"""Functions of neural networks that neither NumPy nor SciPy has: activations, normalisation, embeddings, convolutions,
pooling, losses; no layers. The last three are in modules of their own.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np

from jitgrad.convolution import conv1d, conv2d, conv_transpose, conv_transpose1d, conv_transpose2d
from jitgrad.draws import random_uniform
from jitgrad.eagerness import is_eager
from jitgrad.errors import ShapeError, layout
from jitgrad.graph import Tensor
from jitgrad.lifting import of_arrays
from jitgrad.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
    softmax_cross_entropy_with_logits,
)  # fmt: skip
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.pooling import avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from jitgrad.sources import operation_text
from jitgrad.spec import is_compatible, is_inexact
from jitgrad.trace import graph_in


def _float(x: Any) -> Tensor:
    t = as_tensor(x)
    return t if is_inexact(t.dtype) else as_tensor(t, np.dtype(np.float64))


# -- activations ---------------------------------------------------------------------------------------------


@of_arrays(1)
def relu(x: Any) -> Any:
    """max(x, 0), elementwise; its derivative at 0 is 0."""
    return call("relu", x)


@of_arrays(1)
def gelu(x: Any, approximate: str | bool = "none") -> Any:
    """x Φ(x), elementwise, with Φ the normal distribution function (Hendrycks and Gimpel, arXiv:1606.08415).

    ``approximate="tanh"`` (or True): their approximation by a tanh. ValueError for anything but "none" and
    "tanh".
    """
    t = _float(x)
    if approximate in ("none", False):
        return 0.5 * t * (1.0 + call("erf", t * math.sqrt(0.5)))
    if approximate in ("tanh", True):
        return 0.5 * t * (1.0 + call("tanh", math.sqrt(2.0 / math.pi) * (t + 0.044715 * t * t * t)))
    raise ValueError(f'approximate must be "none" or "tanh", got {approximate!r}')


@of_arrays(1)
def silu(x: Any) -> Any:
    """x / (1 + exp(-x)), elementwise; also called swish."""
    t = _float(x)
    return t * call("sigmoid", t)


@of_arrays(1)
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), elementwise."""
    return call("sigmoid", x)


@of_arrays(1)
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), elementwise, without overflow."""
    return call("softplus", x)


@of_arrays(1)
def softmax(x: Any, axis: int | tuple[int, ...] | None = -1) -> Any:
    """exp(x) / sum(exp(x)) along ``axis``."""
    return call("softmax", x, axis=axis)


@of_arrays(1)
def log_softmax(x: Any, axis: int | tuple[int, ...] | None = -1) -> Any:
    """x - log(sum(exp(x))) along ``axis``."""
    return call("log_softmax", x, axis=axis)


@of_arrays(1)
def logsumexp(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) along ``axis``, without overflow."""
    return call("logsumexp", x, axis=axis, keepdims=keepdims)


# -- normalisation, look-up ----------------------------------------------------------------------------------


@of_arrays(3)
def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, axis: int | tuple[int, ...] = -1
) -> Any:
    """(x - mean) / sqrt(variance + eps) along ``axis``, times ``weight`` plus ``bias`` where they are given.

    The variance is the mean of squares, as in the original (Ba, Kiros and Hinton, arXiv:1607.06450).
    """
    t = _float(x)
    centred = t - call("mean", t, axis=axis, keepdims=True)
    variance = call("mean", centred * centred, axis=axis, keepdims=True)
    out = centred / call("sqrt", variance + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


@of_arrays(1)
def one_hot(indices: Any, depth: int, dtype: Any = np.float32) -> Any:
    """Ones where a new last axis of extent ``depth`` has the value of the integer ``indices``, else zeros."""
    return call("one_hot", indices, depth, dtype)


@of_arrays(2)
def embedding(indices: Any, weight: Any) -> Any:
    """Rows of ``weight`` [n, d] at the integer ``indices``: shape ``indices.shape + (d,)``. IndexError out
    of range.
    """
    return call("take", weight, indices, axis=0)


@of_arrays(2)
def bias_add(value: Any, bias: Any, data_format: str | None = None) -> Any:
    """``value`` plus a vector along its last axis, or along axis 1 for a ``data_format`` with channels there ("NCHW",
    "NCW"). ShapeError when the vector has another extent.
    """
    x, b = _float(value), as_tensor(bias)
    axis = 1 if data_format is not None and data_format[1] == "C" and len(data_format) > 2 else x.ndim - 1
    if b.ndim != 1 or not is_compatible(b.shape, (x.shape[axis],)):
        raise ShapeError(
            layout("a bias has an element per channel", op=operation_text(x.op), expected=x.spec, got=b.spec)
        )
    return x + call("reshape", as_tensor(b, x.dtype), tuple(-1 if k == axis else 1 for k in range(x.ndim)))


def dropout(x: Any, p: float = 0.5, training: bool = True, seed: int | None = None) -> Any:
    """``x`` with each element 0 with probability ``p``, else divided by 1 - p, anew in each run; ``x`` itself unless
    ``training``. ValueError for p outside [0, 1]. The shape must be known; seeds are told in docs/random.md.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be between 0 and 1, got {p!r}")
    if not training or p == 0:
        return x
    graph = graph_in((x,))
    with nullcontext() if graph is None else graph.as_default():
        u = random_uniform(np.shape(x), dtype=np.float32, seed=seed)
    return _kept(x, u if graph is not None or is_eager((x,)) else np.asarray(u), p)


@of_arrays(2)
def _kept(x: Any, u: Any, p: float) -> Any:
    t = _float(x)
    return call("where", u >= p, t / (1 - p), 0.0) if p < 1 else call("zeros_like", t)


__all__ = [
    "avg_pool1d",
    "avg_pool2d",
    "bias_add",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "max_pool1d",
    "max_pool2d",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "relu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softplus",
]


def __dir__() -> list[str]:
    return __all__
