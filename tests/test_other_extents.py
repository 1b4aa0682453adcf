"""Other extents compile nothing: functions of a dozen kinds, each traced again for further extents, with the numbers of
machine code compiled and read from disk. How fast they run is in the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler.machine.kernels import statistics
from tests.cases import Array

FIRST, FURTHER, SPECIAL = 100, (200, 50, 8, 1000, 1025), (1, 0)
WIDTH = 8  # one of the further extents equals it
SHORT = ("stack", "classifier")  # rows of less than that: up to eight of them are a small array, not points

rng = np.random.default_rng(0)
weights = rng.standard_normal((WIDTH, 5))
Fn = Callable[..., Any]


def _matrix(n: int) -> list[Any]:
    return [np.random.default_rng(n).standard_normal((n, WIDTH))]


def _vector(n: int) -> list[Any]:
    return [np.random.default_rng(n).standard_normal(n)]


def _tokens(n: int) -> list[Any]:
    table, target = np.random.default_rng(n).standard_normal((2, WIDTH, WIDTH))
    return [table, np.arange(n) % WIDTH, target[0]]


def _labels(n: int) -> list[Any]:
    return [np.arange(n) * 3 % WIDTH, rng.standard_normal(WIDTH)]


def _scaled_tail(y: Any) -> Any:
    y = y * 1.0
    y[1:] = y[1:] * 2
    return y


def _smoothed(x: Any) -> Any:
    return x[2:] - 2 * x[1:-1] + x[:-2]


def _last_extreme(x: Any) -> Any:
    return np.take_along_axis(x, np.argmax(x, axis=1)[:, None], axis=1)


functions: dict[str, tuple[Fn, Callable[[int], list[Any]]]] = {
    "elementwise": (lambda x: np.tanh(x) * x, _matrix),
    "conv-like slices": (_smoothed, _vector),
    "rows and their sum": (lambda x: x / (1 + np.sum(x * x, axis=1, keepdims=True)), _matrix),
    "columns and their mean": (lambda x: x - np.mean(x, axis=0), _matrix),
    "concatenation": (lambda x: np.concatenate([x, np.sin(x), x[:3]]), _vector),
    "concatenation of columns": (lambda x: np.concatenate([x, x * 2], axis=1), _matrix),
    "stack": (lambda x: np.stack([x, np.cos(x)], axis=1), _vector),
    "softmax": (lambda x: nn.softmax(x, axis=1), _matrix),
    "softmax of columns": (lambda x: nn.log_softmax(x, axis=0), _matrix),
    "embedding": (lambda table, i, b: np.tanh(table[i] + b), _tokens),
    "cumsum": (np.cumsum, _vector),
    "cumsum of columns": (lambda x: np.cumsum(x, axis=0), _matrix),
    "argmax": (_last_extreme, _matrix),
    "masked products": (lambda x: np.tril(x @ x.T) * 0.1, _matrix),
    "assignment": (_scaled_tail, _vector),
    "one-hot": (lambda y, w: (y[:, None] == np.arange(WIDTH)) * w, _labels),
    "numbers of the elements": (lambda x: x * np.arange(x.shape[0]) * 2 + 1.0, _vector),
    "reversed": (lambda x: x[::-1] * x, _vector),
    "pad": (lambda x: np.pad(x, (1, 2), constant_values=3.0) ** 2, _vector),
    "classifier": (lambda x: nn.softmax(np.tanh(x @ weights), axis=1), _matrix),
}


def _value_and_gradient(fn: Fn) -> Fn:
    def loss(*args: Any) -> Any:
        return np.sum(np.sin(fn(*args)))

    return jg.compile(jg.value_and_grad(loss, argnums=0))


def _values(fn: Fn) -> Fn:
    return jg.compile(fn)


def _compiled() -> int:
    return statistics.compiles + statistics.disk_hits


def _assert_right(f: Any, args: list[Array]) -> None:
    ours, expected = f(*args), f.interpret(*args)
    ours, expected = (x if isinstance(x, tuple) else (x,) for x in (ours, expected))
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max(initial=1.0))


@pytest.mark.parametrize("order", [_values, _value_and_gradient])
@pytest.mark.parametrize("name", functions)
def test_further_extents_compile_nothing(name: str, order: Callable[[Fn], Fn]) -> None:
    fn, make = functions[name]
    if order is _value_and_gradient and make is _labels:
        fn, make = (lambda w, y, fn=fn: fn(y, w)), lambda n: _labels(n)[::-1]
    f = order(fn)
    _assert_right(f, make(FIRST))
    before = _compiled()
    for n in FURTHER:
        _assert_right(f, make(n))
        if name in SHORT and n <= WIDTH:
            before = _compiled()
        assert _compiled() == before, f"{n} rows compiled something that {FIRST} rows had not"


@pytest.mark.parametrize("name", functions)
@pytest.mark.parametrize("n", SPECIAL)
def test_empty_and_unit_extents_are_right(name: str, n: int) -> None:
    fn, make = functions[name]
    args = make(n)
    try:
        with np.errstate(all="ignore"):
            expected = jg.compile(fn).interpret(*args)
    except ValueError:
        with pytest.raises(ValueError):
            jg.compile(fn)(*args)
    else:
        np.testing.assert_allclose(jg.compile(fn)(*args), expected, rtol=1e-9)
