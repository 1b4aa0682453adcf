"""jitgrad.nn against its formulas in NumPy and SciPy, on arrays and on traced values, with numerical
derivatives.
"""

from __future__ import annotations

import inspect
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


def test_names_are_those_that_are_promised() -> None:
    assert dir(nn) == nn.__all__ and not {"np", "Any", "call", "of_arrays"} & set(dir(nn))
    assert dir(jg) == jg.__all__ and {"nn", "scipy", "grad"} <= set(dir(jg))
    taken = list(inspect.signature(nn.conv_transpose).parameters)
    assert taken == list(inspect.signature(nn.conv_transpose2d).parameters)
    x, w = np.ones((1, 2, 5, 5)), np.ones((2, 3, 3, 3))
    out = nn.conv_transpose(x, w, stride=2, output_padding=1)
    np.testing.assert_array_equal(out, nn.conv_transpose2d(x, w, stride=2, output_padding=1))


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
    with pytest.raises(IndexError, match="positions must be integers, got float64"):
        nn.one_hot(np.array([0.5]), 3)
    with pytest.raises(ValueError, match="a number of classes from 0 on, got -3"):
        nn.one_hot(LABELS, -3)


def test_refusals() -> None:
    with pytest.raises(jg.ShapeError, match=r"targets do not fit f64\[5,3\](.|\n)*\[5,3\](.|\n)*\[3\]"):
        nn.mse_loss(X, X[0])
    with pytest.raises(ValueError, match="reduction must be"):
        nn.mse_loss(X, Y, reduction="average")
    with pytest.raises(ValueError, match="approximate must be"):
        nn.gelu(X, approximate="erf")
    with pytest.raises(jg.DTypeError, match="integer classes"):
        nn.cross_entropy(X, LABELS != 0)
    classes, one_hot = np.array([0, 1, 2, 1, 0]), np.eye(3)[[0, 1, 2, 1, 0]]
    losses = nn.cross_entropy, nn.nll_loss, nn.binary_cross_entropy, nn.binary_cross_entropy_with_logits, nn.kl_div
    for loss in losses:
        for labels in (classes[:1], one_hot[:1], one_hot[0], one_hot[None]):
            with pytest.raises(jg.DTypeError if loss is nn.nll_loss and labels.ndim > 1 else ValueError):
                loss(X, labels.astype(np.int64) if loss is nn.nll_loss and labels.ndim == 1 else labels)
    for run in (jg.compile, lambda f: f):
        with pytest.raises(jg.IndexingError, match="out of bounds"):
            run(nn.cross_entropy)(X, classes - 1)
    with pytest.raises(ValueError, match="delta must be positive"):
        nn.huber_loss(X, Y, delta=-1)


# -- further losses, bias_add, dropout ---------------------------------------------------------------------------------


def test_further_losses() -> None:
    rng = np.random.default_rng(3)
    p, y = rng.uniform(0.05, 0.95, (4, 3)), rng.uniform(0, 1, (4, 3))
    np.testing.assert_allclose(nn.l1_loss(p, y), np.mean(abs(p - y)))
    np.testing.assert_allclose(nn.smooth_l1_loss(p, y, beta=0.5), nn.huber_loss(p, y, 0.5) / 0.5)
    by_hand = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    np.testing.assert_allclose(nn.binary_cross_entropy(p, y, "none"), by_hand)
    assert nn.binary_cross_entropy(np.array([0.0]), np.array([1.0])) == 100
    logits, labels = rng.normal(size=(4, 3)), np.array([0, 2, 1, 1])
    log_p = nn.log_softmax(logits)
    np.testing.assert_allclose(nn.nll_loss(log_p, labels), nn.cross_entropy(logits, labels))
    np.testing.assert_allclose(nn.kl_div(log_p, nn.softmax(logits), "sum"), 0, atol=1e-15)
    one_hot = nn.one_hot(labels, 3, np.float64)
    np.testing.assert_allclose(nn.kl_div(log_p, one_hot, "sum"), nn.nll_loss(log_p, labels, reduction="sum"))
    for loss in (nn.l1_loss, nn.smooth_l1_loss, nn.binary_cross_entropy):
        check_gradients(lambda p, loss=loss: loss(p, y), p, order=1)
    check_gradients(lambda z: nn.kl_div(nn.log_softmax(z), one_hot), logits, order=2)
    with pytest.raises(ValueError, match="beta"):
        nn.smooth_l1_loss(p, y, beta=0)


def test_bias_add() -> None:
    x, b = np.zeros((2, 3, 4, 3)), np.arange(3.0)
    np.testing.assert_array_equal(nn.bias_add(x, b), x + b)
    np.testing.assert_array_equal(nn.bias_add(x, b, "NCHW"), x + b[:, None, None])
    np.testing.assert_array_equal(nn.bias_add(x, b, "NHWC"), x + b)
    slopes = jg.grad(lambda x, b: np.sum(nn.bias_add(x, b, "NCHW") ** 2 / 2), (0, 1))(x, b)
    np.testing.assert_array_equal(slopes[1], 24 * b)
    with pytest.raises(ValueError, match="an element per channel"):
        nn.bias_add(x, np.zeros(4))


@pytest.mark.parametrize("how", ["arrays", "eager", "compiled", "graph"])
def test_dropout(how: str) -> None:
    x = np.ones((100, 100))
    if how == "graph":
        with jg.Graph().as_default():
            dropped = nn.dropout(jg.constant(x), 0.25)
            session = jg.Session()
            a, b = session.run(dropped), session.run(dropped)
    else:
        f = jg.compile(lambda x: nn.dropout(x, 0.25)) if how == "compiled" else lambda x: nn.dropout(x, 0.25)
        given = jg.asarray(x) if how == "eager" else x
        a, b = np.asarray(f(given)), np.asarray(f(given))
    for found in (a, b):
        assert set(np.unique(found)) == {0, 1 / 0.75}
        assert abs(np.mean(found) - 1) < 0.03
    assert 0.3 < np.mean(a != b) < 0.45


def test_dropout_at_its_ends() -> None:
    x = np.arange(3.0)
    assert nn.dropout(x, 0.5, training=False) is x and nn.dropout(x, 0.0) is x
    np.testing.assert_array_equal(nn.dropout(x, 1.0), np.zeros(3))
    with pytest.raises(ValueError, match="between 0 and 1"):
        nn.dropout(x, 1.5)
