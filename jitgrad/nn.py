"""Functions of neural networks that neither NumPy nor SciPy has: activations, normalisation, embeddings,
losses; no layers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from jitgrad import pytree
from jitgrad.compiled import run_once
from jitgrad.eager.tensor import run as eager
from jitgrad.eager.tensor import settled
from jitgrad.eagerness import is_eager
from jitgrad.errors import DTypeError, ShapeError, layout
from jitgrad.graph import Tensor
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.sources import operation_text
from jitgrad.spec import is_inexact
from jitgrad.trace import graph_in

F = TypeVar("F", bound=Callable[..., Any])


def _of_arrays(count: int) -> Callable[[F], F]:
    """Decorator: a function written on tensors also takes arrays in its first ``count`` arguments, and
    runs at once.
    """

    def wrap(fn: F) -> F:
        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            graph = graph_in((args, kwargs))
            if graph is not None:
                with graph.as_default():
                    return fn(*args, **kwargs)
            if is_eager((args, kwargs)):
                args, kwargs = pytree.tree_map(settled, (args, kwargs))
                return eager(run, args, kwargs)
            rest = args[count:]
            return run_once(lambda *arrays: fn(*arrays, *rest, **kwargs), *args[:count])

        return cast(F, run)

    return wrap


def _float(x: Any) -> Tensor:
    t = as_tensor(x)
    return t if is_inexact(t.dtype) else as_tensor(t, np.dtype(np.float64))


# -- activations ---------------------------------------------------------------------------------------------


@_of_arrays(1)
def relu(x: Any) -> Any:
    """max(x, 0), elementwise; its derivative at 0 is 0."""
    return call("relu", x)


@_of_arrays(1)
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


@_of_arrays(1)
def silu(x: Any) -> Any:
    """x / (1 + exp(-x)), elementwise; also called swish."""
    t = _float(x)
    return t * call("sigmoid", t)


@_of_arrays(1)
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), elementwise."""
    return call("sigmoid", x)


@_of_arrays(1)
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), elementwise, without overflow."""
    return call("softplus", x)


@_of_arrays(1)
def softmax(x: Any, axis: int | tuple[int, ...] | None = -1) -> Any:
    """exp(x) / sum(exp(x)) along ``axis``."""
    return call("softmax", x, axis=axis)


@_of_arrays(1)
def log_softmax(x: Any, axis: int | tuple[int, ...] | None = -1) -> Any:
    """x - log(sum(exp(x))) along ``axis``."""
    return call("log_softmax", x, axis=axis)


@_of_arrays(1)
def logsumexp(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) along ``axis``, without overflow."""
    return call("logsumexp", x, axis=axis, keepdims=keepdims)


# -- normalisation, look-up ----------------------------------------------------------------------------------


@_of_arrays(3)
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


@_of_arrays(1)
def one_hot(indices: Any, depth: int, dtype: Any = np.float32) -> Any:
    """Ones where a new last axis of extent ``depth`` has the value of the integer ``indices``, else zeros."""
    return call("one_hot", indices, depth, dtype)


@_of_arrays(2)
def embedding(indices: Any, weight: Any) -> Any:
    """Rows of ``weight`` [n, d] at the integer ``indices``: shape ``indices.shape + (d,)``. IndexError out
    of range.
    """
    return call("take", weight, indices, axis=0)


# -- losses --------------------------------------------------------------------------------------------------


def _reduced(loss: Tensor, reduction: str) -> Any:
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    return call(reduction, loss)


def _difference(prediction: Any, target: Any) -> Tensor:
    a, b = as_tensor(prediction), as_tensor(target)
    if a.shape != b.shape:
        raise ShapeError(
            layout(
                "prediction and target differ in shape",
                op=operation_text(a.op),
                expected=a.spec,
                got=b.spec,
                hint="reshape one of them: broadcasting a target is hardly ever meant",
            )
        )
    return a - b  # type: ignore[no-any-return]


@_of_arrays(2)
def mse_loss(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """(prediction - target)², their "mean", "sum" or one by one ("none"). ShapeError when the shapes
    differ.
    """
    return _reduced(call("square", _difference(prediction, target)), reduction)


@_of_arrays(2)
def huber_loss(prediction: Any, target: Any, delta: float = 1.0, reduction: str = "mean") -> Any:
    """d²/2 where abs(d) is at most ``delta``, else delta (abs(d) - delta/2), with d = prediction - target
    (Huber 1964).
    """
    d = _difference(prediction, target)
    size = call("absolute", d)
    return _reduced(call("where", size <= delta, 0.5 * d * d, delta * (size - 0.5 * delta)), reduction)


@_of_arrays(2)
def softmax_cross_entropy_with_logits(logits: Any, labels: Any, axis: int = -1) -> Any:
    """-sum(labels * log_softmax(logits)) along ``axis``: one loss per example, of the shape of logits without
    that axis.

    ``labels`` are probabilities in the shape of logits, or integer classes in the shape of the result.
    """
    z, given = _float(logits), as_tensor(labels)
    if is_inexact(given.dtype):
        return -call("sum", given * call("log_softmax", z, axis=axis), axis=axis)
    if given.dtype.kind not in "iu" or given.ndim != z.ndim - 1:
        raise DTypeError(
            layout(
                "labels must be probabilities like the logits, or integer classes with one dimension less",
                op=operation_text(z.op),
                expected=z.spec,
                got=given.spec,
            )
        )
    chosen = call("take_along_axis", z, call("expand_dims", given, axis), axis=axis)
    return call("logsumexp", z, axis=axis) - call("squeeze", chosen, axis)


@_of_arrays(2)
def cross_entropy(logits: Any, labels: Any, axis: int = -1, reduction: str = "mean") -> Any:
    """``softmax_cross_entropy_with_logits``, its "mean" or "sum" over the examples, or one by one
    ("none").
    """
    return _reduced(softmax_cross_entropy_with_logits(logits, labels, axis), reduction)


@_of_arrays(2)
def binary_cross_entropy_with_logits(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    """-labels log σ(logits) - (1 - labels) log σ(-logits), without overflow; labels are between 0 and 1."""
    z = _float(logits)
    y = as_tensor(labels, z.dtype)
    return _reduced(call("softplus", z) - y * z, reduction)


__all__ = [
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "embedding",
    "gelu",
    "huber_loss",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "mse_loss",
    "one_hot",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softplus",
]
