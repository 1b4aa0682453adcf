"""jitgrad.nn against its formulas in NumPy and SciPy, on arrays and on traced values, with numerical
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special as sp
import scipy.stats

import jitgrad as jg
from jitgrad import nn
from jitgrad.testing import check_gradients

pytestmark = pytest.mark.quick

rng = np.random.default_rng(3)
X = rng.normal(size=(5, 3))
Y = rng.normal(size=(5, 3))
LABELS = np.array([0, 2, 1, 1, 0])
ONE_HOT = np.eye(3)[LABELS]
LOG_P = sp.log_softmax(X, axis=-1)

formulas: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "relu": (nn.relu, (X,), np.maximum(X, 0)),
    "gelu": (nn.gelu, (X,), X * scipy.stats.norm.cdf(X)),
    "gelu tanh": (
        lambda x: nn.gelu(x, approximate="tanh"),
        (X,),
        0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
    ),
    "silu": (nn.silu, (X,), X * sp.expit(X)),
    "sigmoid": (nn.sigmoid, (X,), sp.expit(X)),
    "softplus": (nn.softplus, (X,), np.logaddexp(0, X)),
    "softmax": (nn.softmax, (X,), sp.softmax(X, axis=-1)),
    "softmax axis": (lambda x: nn.softmax(x, 0), (X,), sp.softmax(X, axis=0)),
    "log_softmax": (nn.log_softmax, (X,), LOG_P),
    "logsumexp": (lambda x: nn.logsumexp(x, axis=1), (X,), sp.logsumexp(X, axis=1)),
    "layer_norm": (
        nn.layer_norm,
        (X, Y[0], Y[1]),
        (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5) * Y[0] + Y[1],
    ),
    "layer_norm plain": (lambda x: nn.layer_norm(x, eps=0.0), (X,), scipy.stats.zscore(X, axis=1)),
    "embedding": (lambda w: nn.embedding(LABELS, w), (X,), X[LABELS]),
    "mse": (nn.mse_loss, (X, Y), np.mean((X - Y) ** 2)),
    "mse sum": (lambda x, y: nn.mse_loss(x, y, reduction="sum"), (X, Y), np.sum((X - Y) ** 2)),
    "huber": (
        lambda x, y: nn.huber_loss(x, y, delta=0.7, reduction="none"),
        (X, Y),
        sp.huber(0.7, X - Y),
    ),
    "cross entropy": (lambda x: nn.cross_entropy(x, LABELS), (X,), -np.mean(np.sum(ONE_HOT * LOG_P, 1))),
    "cross entropy dense": (nn.cross_entropy, (X, ONE_HOT), -np.mean(np.sum(ONE_HOT * LOG_P, 1))),
    "per example": (
        lambda x: nn.softmax_cross_entropy_with_logits(x, LABELS),
        (X,),
        -LOG_P[np.arange(5), LABELS],
    ),
    "axis 0": (
        lambda x: nn.softmax_cross_entropy_with_logits(x.T, LABELS, axis=0),
        (X,),
        -LOG_P[np.arange(5), LABELS],
    ),
    "binary": (
        lambda x: nn.binary_cross_entropy_with_logits(x, ONE_HOT),
        (X,),
        -np.mean(ONE_HOT * np.log(sp.expit(X)) + (1 - ONE_HOT) * np.log(sp.expit(-X))),
    ),
}


@pytest.mark.parametrize("name", formulas)
def test_formula(name: str) -> None:
    fn, args, expected = formulas[name]
    at_once, traced = fn(*args), jg.compile(fn).interpret(*args)
    np.testing.assert_allclose(at_once, expected, rtol=1e-10)
    np.testing.assert_array_equal(at_once, traced)
    single = [a.astype(np.float32) for a in args]
    assert fn(*single).dtype == jg.compile(fn).interpret(*single).dtype == np.float32


@pytest.mark.parametrize("name", formulas)
def test_gradients(name: str) -> None:
    fn, args, _ = formulas[name]
    check_gradients(fn, *args)


def test_no_overflow() -> None:
    x = np.array([[-1000.0, 0.0, 1000.0]])
    for fn in (nn.softplus, nn.softmax, nn.log_softmax, nn.silu, nn.gelu):
        value, pull = jg.vjp(fn, x)
        assert np.isfinite(value).all() and np.isfinite(pull(np.ones_like(x))[0]).all()
    assert nn.cross_entropy(x, np.array([0])) == 2000.0


def test_one_hot() -> None:
    out = nn.one_hot(LABELS, 3)
    assert out.dtype == np.float32 and (out == ONE_HOT).all()
    assert nn.one_hot(np.array(5), 3, dtype=np.int8).tolist() == [0, 0, 0]


def test_refusals() -> None:
    with pytest.raises(jg.ShapeError, match=r"differ in shape(.|\n)*f64\[5,3\](.|\n)*f64\[3\]"):
        nn.mse_loss(X, X[0])
    with pytest.raises(ValueError, match="reduction must be"):
        nn.mse_loss(X, Y, reduction="average")
    with pytest.raises(ValueError, match="approximate must be"):
        nn.gelu(X, approximate="erf")
    with pytest.raises(jg.DTypeError, match="integer classes"):
        nn.cross_entropy(X, LABELS[:, None])
