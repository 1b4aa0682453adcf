"""Losses of neural networks, on predictions and targets of one shape, or logits and classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.errors import DTypeError, ShapeError, layout
from jitgrad.graph import Tensor
from jitgrad.lifting import of_arrays
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.sources import operation_text
from jitgrad.spec import Shape, is_compatible, is_inexact, normalize_axis, shape_text


def _float(x: Any) -> Tensor:
    t = as_tensor(x)
    return t if is_inexact(t.dtype) else as_tensor(t, np.dtype(np.float64))


def _reduced(loss: Tensor, reduction: str) -> Any:
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    return call(reduction, loss)


def _refuse_other_shape(name: str, first: Tensor, second: Tensor, needed: Shape | None, what: str) -> None:
    """ShapeError where the second argument of a loss, in words, has not the shape that the first one asks for."""
    if not is_compatible(second.shape, needed):
        raise ShapeError(
            layout(
                f"{name}: {what} do not fit {first.spec}",
                op=operation_text(first.op),
                expected=shape_text(needed),
                got=shape_text(second.shape),
                hint="reshape one of them: broadcasting a target is hardly ever meant",
            )
        )


def _difference(name: str, prediction: Any, target: Any) -> Tensor:
    a, b = as_tensor(prediction), as_tensor(target)
    _refuse_other_shape(name, a, b, a.shape, "targets")
    return a - b  # type: ignore[no-any-return]


def _of_classes(name: str, x: Tensor, labels: Tensor, axis: int) -> Tensor:
    """``x`` at an integer class per example, classes along ``axis``, which counts from the front or the end.

    No class is negative: the look-up says that such a position is out of bounds.
    """
    axis = normalize_axis(axis, x.ndim)
    if labels.dtype.kind not in "iu":
        raise DTypeError(
            layout(f"{name}: labels must be integer classes", op=operation_text(labels.op), got=labels.spec)
        )
    _refuse_other_shape(name, x, labels, (*x.shape[:axis], *x.shape[axis + 1 :]), "classes")
    places = call("astype", labels, np.int64)
    places = call("where", places < 0, np.iinfo(np.int64).max, places)
    chosen = call("take_along_axis", x, call("expand_dims", places, axis), axis=axis)
    return call("squeeze", chosen, axis)  # type: ignore[no-any-return]


@of_arrays(2)
def mse_loss(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """(prediction - target)², their "mean", "sum" or one by one ("none"). ShapeError when the shapes
    differ.
    """
    return _reduced(call("square", _difference("mse_loss", prediction, target)), reduction)


@of_arrays(2)
def huber_loss(prediction: Any, target: Any, delta: float = 1.0, reduction: str = "mean") -> Any:
    """d²/2 where abs(d) is at most ``delta``, else delta (abs(d) - delta/2), with d = prediction - target
    (Huber 1964). ShapeError when the shapes differ, ValueError unless delta is positive.
    """
    if not delta > 0:
        raise ValueError(f"delta must be positive, got {delta!r}")
    d = _difference("huber_loss", prediction, target)
    size = call("absolute", d)
    return _reduced(call("where", size <= delta, 0.5 * d * d, delta * (size - 0.5 * delta)), reduction)


@of_arrays(2)
def softmax_cross_entropy_with_logits(logits: Any, labels: Any, axis: int = -1) -> Any:
    """-sum(labels * log_softmax(logits)) along ``axis``: one loss per example, of the shape of logits without
    that axis.

    ``labels`` are probabilities in the shape of logits, or integer classes in the shape of the result; ShapeError
    otherwise, IndexingError for a class below 0 or past the last.
    """
    name = "softmax_cross_entropy_with_logits"
    z, given = _float(logits), as_tensor(labels)
    if is_inexact(given.dtype):
        _refuse_other_shape(name, z, given, z.shape, "labels that are probabilities")
        return -call("sum", given * call("log_softmax", z, axis=axis), axis=axis)
    return call("logsumexp", z, axis=axis) - _of_classes(name, z, given, axis)


@of_arrays(2)
def cross_entropy(logits: Any, labels: Any, axis: int = -1, reduction: str = "mean") -> Any:
    """``softmax_cross_entropy_with_logits``, its "mean" or "sum" over the examples, or one by one
    ("none").
    """
    return _reduced(softmax_cross_entropy_with_logits(logits, labels, axis), reduction)


@of_arrays(2)
def binary_cross_entropy_with_logits(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    """-labels log σ(logits) - (1 - labels) log σ(-logits), without overflow; labels are between 0 and 1."""
    z = _float(logits)
    y = as_tensor(labels, z.dtype)
    _refuse_other_shape("binary_cross_entropy_with_logits", z, y, z.shape, "labels")
    return _reduced(call("softplus", z) - y * z, reduction)


@of_arrays(2)
def l1_loss(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """abs(prediction - target), their "mean", "sum" or one by one ("none")."""
    return _reduced(call("absolute", _difference("l1_loss", prediction, target)), reduction)


@of_arrays(2)
def smooth_l1_loss(prediction: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """``huber_loss`` with delta = beta, divided by beta, as in torch. ValueError unless beta is positive."""
    if not beta > 0:
        raise ValueError(f"beta must be positive, got {beta!r}")
    return call("divide", huber_loss(prediction, target, beta, reduction), beta)


@of_arrays(2)
def nll_loss(log_probabilities: Any, labels: Any, axis: int = 1, reduction: str = "mean") -> Any:
    """-log_probabilities at the integer ``labels``, classes along ``axis``; the "mean", "sum" or one per example."""
    z = _float(log_probabilities)
    return _reduced(-_of_classes("nll_loss", z, as_tensor(labels), axis), reduction)


@of_arrays(2)
def binary_cross_entropy(probabilities: Any, labels: Any, reduction: str = "mean") -> Any:
    """-labels log(p) - (1 - labels) log(1 - p), with logarithms of at least -100, as in torch."""
    p = _float(probabilities)
    y = as_tensor(labels, p.dtype)
    _refuse_other_shape("binary_cross_entropy", p, y, p.shape, "labels")
    log_yes, log_no = (call("maximum", call(f, x), -100.0) for f, x in (("log", p), ("log1p", -p)))
    return _reduced(-(y * log_yes + (1.0 - y) * log_no), reduction)


@of_arrays(2)
def kl_div(log_probabilities: Any, target: Any, reduction: str = "mean") -> Any:
    """target (log(target) - log_probabilities), 0 where the target is 0: the divergence of one distribution from
    another, summed over classes, for "sum".
    """
    q = _float(log_probabilities)
    p = as_tensor(target, q.dtype)
    _refuse_other_shape("kl_div", q, p, q.shape, "targets")
    is_some = p > 0
    return _reduced(call("where", is_some, p * (call("log", call("where", is_some, p, 1.0)) - q), 0.0), reduction)


__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
    "softmax_cross_entropy_with_logits",
]
