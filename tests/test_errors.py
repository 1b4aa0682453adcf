"""What the user reads when something is wrong: each message names what, where, expected and got, and the
next step.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

pytestmark = pytest.mark.quick

X = np.arange(4.0)
kept: list[Any] = []


def traced(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return jg.compile(fn, **options).interpret(*args)


def loss(x: Any, w: Any = 1.0) -> Any:
    return np.sum(x * w)


def leak(x: Any) -> Any:
    kept[:] = [x * 2.0]
    return x


def use_leaked() -> Any:
    traced(leak, X)
    return kept[0] + 1.0


@dataclass(frozen=True)
class Case:
    """Code that fails, the classes of its error, and what the text must contain."""

    run: Callable[[], Any]
    error: type[Exception]
    builtin: type[Exception]
    texts: tuple[str, ...]


here = "test_errors.py:"

cases = {
    "shapes": Case(
        lambda: traced(lambda x, y: x + y, X, X[:3]), jg.ShapeError, ValueError, ("[4]", "[3]", "x", here)
    ),
    "matmul shapes": Case(
        lambda: traced(lambda x, y: x @ y, np.ones((2, 3)), np.ones((2, 3))),
        jg.ShapeError,
        ValueError,
        ("matmul", "[2,3]", here),
    ),
    "axis": Case(lambda: traced(lambda x: np.sum(x, axis=1), X), jg.ShapeError, ValueError, ("axis 1",)),
    "dtypes": Case(
        lambda: traced(lambda x: np.bitwise_and(x, 1), X),
        jg.DTypeError,
        TypeError,
        ("bitwise_and", "float64", "astype"),
    ),
    "no rule": Case(
        lambda: jg.grad(lambda x: np.sum(jg.py_func(np.sort, [x], x.dtype)))(X),
        jg.GradientError,
        LookupError,
        (
            "op 'py_func' has no gradient rule",
            "made at " + here,
            "stop_gradient",
            "register_gradient('py_func')",
        ),
    ),
    "integer argument": Case(
        lambda: jg.grad(loss)({"a": [X, 3]}),
        jg.DTypeError,
        TypeError,
        ("argument x['a'][1] of loss", "int64", "2.0 in place of 2", here),
    ),
    "integer loss": Case(
        lambda: jg.grad(lambda x: np.sum(x > 0))(X),
        jg.DTypeError,
        TypeError,
        ("must return a float", "int64", here),
    ),
    "complex loss": Case(
        lambda: jg.grad(lambda x: np.sum(x * 1j))(X), jg.DTypeError, TypeError, ("complex128", ".real")
    ),
    "vector loss": Case(
        lambda: jg.grad(lambda x: x * 2.0)(X),
        jg.ShapeError,
        ValueError,
        ("scalar", "[4]", "jg.jacobian", "np.sum", here),
    ),
    "no loss": Case(
        lambda: jg.grad(lambda x: None)(X), TypeError, TypeError, ("NoneType", "return the loss", here)
    ),
    "two losses": Case(
        lambda: jg.grad(lambda x: (np.sum(x), 1.0))(X), TypeError, TypeError, ("tuple", "has_aux=True", here)
    ),
    "no aux": Case(
        lambda: jg.grad(loss, has_aux=True)(X), TypeError, TypeError, ("has_aux=True", "(value, aux)", "loss")
    ),
    "argnums out of range": Case(
        lambda: jg.grad(loss, argnums=2)(X),
        ValueError,
        ValueError,
        ("argnums=2", "loss(x", "1 positional", here),
    ),
    "argnums of a wrong type": Case(
        lambda: jg.grad(loss, argnums="x")(X), TypeError, TypeError, ("argnums", "'x'")
    ),
    "argnums twice": Case(lambda: jg.grad(loss, argnums=(0, -2))(X, X), ValueError, ValueError, ("twice",)),
    "text as an argument": Case(
        lambda: jg.grad(loss)({"a": "b"}), jg.DTypeError, TypeError, ("x['a']", "'b'", "no derivative")
    ),
    "if": Case(
        lambda: traced(lambda x: 1 if x > 0 else 2, 1.0),
        jg.TracedValueError,
        TypeError,
        ("greater", "np.where", "static_argnames", here),
    ),
    "float": Case(
        lambda: traced(lambda x: float(x), 1.0),
        jg.TracedValueError,
        TypeError,
        ("float()", "'x:0'", "static_argnames", here),
    ),
    "range": Case(
        lambda: traced(lambda x, n: [x for _ in range(n)], X, 3),
        jg.TracedValueError,
        TypeError,
        ("'n:0'", "static_argnames", here),
    ),
    "np.array": Case(
        lambda: traced(lambda x: np.array([x[0], 1.0]), X),
        jg.TracedValueError,
        TypeError,
        ("jitgrad.numpy", here),
    ),
    "store into an array": Case(
        lambda: traced(lambda x: np.zeros(4).__iadd__(x), X),
        jg.TracedValueError,
        TypeError,
        ("numpy.add would write", "np.zeros_like", here),
    ),
    "unsupported": Case(
        lambda: traced(lambda x: np.roots(x), X),
        jg.UnsupportedOpError,
        NotImplementedError,
        ("numpy.roots", "jg.py_func", here),
    ),
    "leaked": Case(
        use_leaked,
        jg.LeakedTracerError,
        RuntimeError,
        ("'multiply:0'", "leak at " + here, "made at " + here, "return the value"),
    ),
    "another graph": Case(
        lambda: jg.compile(lambda x: x + jg.constant(1.0) * _other_graphs_tensor())(X),
        jg.LeakedTracerError,
        RuntimeError,
        ("'foreign:0' belongs to another graph", here),
    ),
    "objects": Case(
        lambda: traced(loss, np.array([None, 1.0])), jg.DTypeError, TypeError, ("object", "astype")
    ),
    "text": Case(lambda: traced(loss, np.array(["a"])), jg.DTypeError, TypeError, ("<U1",)),
    "masked": Case(
        lambda: traced(loss, np.ma.masked_array(X, X > 1)), jg.DTypeError, TypeError, ("masked", "np.where")
    ),
    "large integer": Case(lambda: traced(loss, 2**70), jg.DTypeError, TypeError, (str(2**70), "int64")),
    "unhashable static": Case(
        lambda: traced(lambda x, n: x, X, [1], static_argnames="n"),
        TypeError,
        TypeError,
        ("static argument 'n'", "[1] of type list", "tuple", here),
    ),
    "unhashable leaf": Case(
        lambda: traced(lambda x, n: x, X, {1}), TypeError, TypeError, ("{1} of type set", "hashable")
    ),
}


def _other_graphs_tensor() -> Any:
    with jg.Graph().as_default():
        return jg.constant(1.0, name="foreign")


@pytest.mark.parametrize("name", cases)
def test_message(name: str) -> None:
    case = cases[name]
    with pytest.raises(case.error) as caught:
        case.run()
    assert isinstance(caught.value, case.builtin)
    text = str(caught.value)
    missing = [part for part in case.texts if part not in text]
    assert not missing, f"{missing} not in:\n{text}"
    assert not re.search(r"(made at|needed: +at) (?!test_errors\.py)", text), text


def test_every_error_has_the_root_as_its_base() -> None:
    classes = [getattr(jg, name) for name in jg.__all__ if name.endswith("Error")]
    assert len(classes) == 14 and all(issubclass(cls, jg.JitgradError) for cls in classes)


def test_messages_line_up() -> None:
    text = jg.errors.layout("what", op="a", needed="b", hint=None)
    assert text == "what\n  op:     a\n  needed: b"


def test_importing_is_light() -> None:
    code = "import sys, jitgrad; print([m for m in ('numba', 'llvmlite', 'scipy') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_layers_of_another_rank_say_what_they_take() -> None:
    image, weights = np.ones((1, 3, 8, 8)), np.ones((2, 3, 3, 3))
    cases: list[tuple[Any, Any, str]] = [
        (image[0, 0], weights, r"expected: 4 axes: examples(.|\n)*got: +f64\[8,8\], of 2"),
        (image, weights[0], r"expected: 4 axes: two of channels(.|\n)*got: +f64\[3,3,3\]"),
        (image[:, :2], weights, r"expected: 3 channels(.|\n)*got: +2 in f64\[1,2,8,8\]"),
    ]
    for x, w, text in cases:
        with pytest.raises(jg.ShapeError, match=text):
            jg.nn.conv2d(x, w)


@pytest.mark.quick
@pytest.mark.parametrize("count", [1, 2])
def test_how_many_arguments_there_were_is_said_in_the_right_number(count: int) -> None:
    said = {1: r"called with 1 positional argument\n", 2: r"called with 2 positional arguments\n"}[count]
    with pytest.raises(ValueError, match=said):
        jg.grad(lambda *xs: xs[0], argnums=5)(*[1.0] * count)
