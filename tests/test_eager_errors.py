"""Errors of eager calls: the call, the user's line, what would fit, what was given."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

pytestmark = pytest.mark.usefixtures("machine_code_or_python")

X = np.ones((2, 3))
Case = tuple[Callable[[Any], Any], type[Exception], list[str]]

CASES: list[Case] = [
    (lambda x: x + np.ones(4), jg.ShapeError, ["[2,3] and [4]", "add(f64[2,3], f64[4])", "got:      3 and 4", "hint"]),
    (lambda x: np.hypot(x, np.ones(4)), jg.ShapeError, ["hypot(f64[2,3], f64[4])", "expected: extents that are equal"]),
    (lambda x: x ** np.ones(4), jg.ShapeError, ["power(f64[2,3], f64[4])"]),
    (lambda x: x @ np.ones(4), jg.ShapeError, ["expected: 3 rows", "got:      4"]),
    (lambda x: x @ x, jg.ShapeError, ["shapes [2,3] and [2,3]", "x @ y.T fits"]),
    (lambda x: x @ 2.0, jg.ShapeError, ["takes no numbers", "hint:     x * y"]),
    (lambda x: np.dot(x, x), jg.ShapeError, ["dot(f64[2,3], f64[2,3])", "expected: 3 rows"]),
    (lambda x: x.reshape(4, 4), jg.ShapeError, ["cannot reshape [2,3]", "expected: 6 elements", "got:      16"]),
    (lambda x: np.reshape(x, (4, -1)), jg.ShapeError, ["product divides 6", "got:      4"]),
    (lambda x: np.concatenate([x, np.ones((4, 4))]), jg.ShapeError, ["concatenate([f64[2,3], f64[4,4]])"]),
    (lambda x: np.stack([x, np.ones(3)]), jg.ShapeError, ["must have the same shape"]),
    (lambda x: x[5], IndexError, ["item(f64[2,3], 5)", "expected: from -2 to 1 along axis 0", "got:      5"]),
    (lambda x: x[0, -4], IndexError, ["from -3 to 2 along axis 1"]),
    (lambda x: x[[7]], IndexError, ["got:      7"]),
    (lambda x: x[0, 0, 0], IndexError, ["too many indices", "note: item(f64[2,3], (0, 0, 0))"]),
    (lambda x: np.sum(x, axis=3), np.exceptions.AxisError, ["axis 3 is out", "note: sum(f64[2,3], axis=3)"]),
    (lambda x: x.sum(3), np.exceptions.AxisError, ["axis 3 is out", "note: sum(f64[2,3], 3)"]),
    (lambda x: np.linalg.inv(x), np.linalg.LinAlgError, ["must be square", "note: linalg.inv(f64[2,3])"]),
    (lambda x: x.astype("nonsense"), TypeError, ["nonsense", "note: astype(f64[2,3], 'nonsense')"]),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_errors_say_what_would_fit(number: int) -> None:
    fn, kind, parts = CASES[number]
    x = jg.asarray(X)
    for _ in range(2):
        with pytest.raises(kind) as caught:
            fn(x)
        notes = [note.replace("  op:", "note:") for note in getattr(caught.value, "__notes__", ())]
        text = "\n".join([str(caught.value), *notes])
        assert all(part in text for part in [*parts, "at test_eager_errors.py:"]), text
        assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_errors_of_the_users_functions_are_theirs() -> None:
    x = jg.asarray(X)

    @jg.custom_gradient
    def broken(x: Any) -> Any:
        raise ValueError("a shape of the user's")

    with pytest.raises(ValueError, match="a shape of the user's") as caught:
        broken(x)
    assert type(caught.value) is ValueError and not hasattr(caught.value, "__notes__")


def test_other_exceptions_pass() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have told to ignore it
    x = jg.asarray([-1.0])
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError) as caught:
        np.sqrt(x)
    assert not hasattr(caught.value, "__notes__")

    def interrupt(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    with np.errstate(invalid="call", call=interrupt), pytest.raises(KeyboardInterrupt):
        np.sqrt(x) + x
