"""What compiled functions cannot do as NumPy does it: each is refused, or warned of, with a sentence, the user's line
and what to do instead.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.scipy.special as like_special

pytestmark = pytest.mark.quick

X = np.arange(6.0)


# -- writes that nobody sees -------------------------------------------------------------------------------------------


def test_a_function_that_only_writes_to_its_argument_is_refused() -> None:
    def clear(a: Any, b: Any) -> None:
        b[0] = 3.0

    x = X.copy()
    with pytest.raises(jg.UnsupportedOpError, match=r"(?s)clear at .*writes to its argument 'b'.*hint: +return"):
        jg.compile(clear)(x, x)
    assert x[0] == 0

    def step(params: Any, rate: Any) -> None:
        params["w"] = params["w"] - rate * params["w"]

    with pytest.raises(jg.UnsupportedOpError, match=r"step at .*writes to its argument, of which"):
        jg.compile(step)({"w": x}, 0.1)


def test_a_function_that_returns_nothing_else_is_called() -> None:
    """One without results, one that writes to what it made itself, one that assigns to a Variable."""
    total = jg.Variable(0.0)

    def count(x: Any) -> None:
        x[0] = 1.0
        total.assign_add(np.sum(x))

    def scratch(x: Any) -> None:
        y = x * 2
        y[0] = 1.0

    assert jg.compile(lambda x: None)(X) is None and jg.compile(scratch)(X) is None
    assert jg.compile(count)(X) is None and float(total) == 16.0


# -- random numbers ----------------------------------------------------------------------------------------------------

rng = np.random.default_rng(0)
normal = np.random.normal


class Noise:
    """Adds noise by a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)

    def draw(self, n: int) -> Any:
        return self.rng.normal(size=n)

    def __call__(self, x: Any) -> Any:
        return x + self.draw(6)

    def method(self, x: Any) -> Any:
        return self(x)


def helper(x: Any) -> Any:
    return x * rng.random()


own = np.random.default_rng(2)
noise = Noise()
legacy = np.random.RandomState(3)
DRAWN: dict[str, Callable[[Any], Any]] = {
    "the module's": lambda x: x + np.random.normal(size=6),
    "a permutation": lambda x: x[np.random.permutation(6)],
    "by name": lambda x: x + normal(),
    "a generator": lambda x: x + rng.normal(size=6),
    "of before": lambda x: x + legacy.rand(),
    "by a closure": (lambda g: lambda x: x + g.normal())(own),
    "by a default": lambda x, g=own: x + g.normal(),
    "by a helper": lambda x: helper(x) + 1.0,
    "in a list": (lambda gs: lambda x: x + sum(g.normal() for g in gs))([own]),
    "an object": noise,
    "a method": noise.method,
    "a partial": functools.partial(lambda g, x: x + g.normal(), own),
    "a compiled function": jg.compile(lambda x: x + own.normal()),
    "in a gradient": jg.grad(lambda x: np.sum(x * rng.normal(size=6))),
    "Python's": lambda x: x * random.random(),
    "Python's by a method": lambda x: x * random.uniform(0, 1),
}


@pytest.mark.parametrize("name", DRAWN)
def test_numbers_that_are_drawn_while_tracing_are_warned_of_once(name: str) -> None:
    f = jg.compile(lambda x: DRAWN[name](x)) if name == "an object" else jg.compile(DRAWN[name])
    with pytest.warns(UserWarning, match=r"(?s)draws from .*all later calls get the same.*test_written.*jg\.random_n"):
        first = f(X)
    np.testing.assert_array_equal(f(X), first)
    f(X[:0] + 1.0 if name == "by name" else X.astype(np.float32))  # traced again: said once


def test_no_draw_no_warning() -> None:
    """A generator that is not used, draws of jitgrad's, by py_func, before the call, by functions traced each time."""
    named = rng
    drawn = rng.normal(size=6)
    functions: list[Callable[[Any], Any]] = [
        lambda x: x if x.ndim else x + named.normal(),
        lambda x: x + jg.random_normal((6,)),
        lambda x: x + jg.py_func(lambda: rng.normal(size=6), [], np.float64),
        lambda x: x + drawn,
        lambda x: x + np.random.default_rng(5).normal(size=6),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for f in functions:
            jg.compile(f)(X)
        slopes = [jg.grad(lambda x: np.sum(x * rng.normal(size=6)))(X) for _ in range(2)]
    assert not np.array_equal(*slopes)


# -- what arrays have and tensors have not -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["strides", "data", "flags", "base", "ctypes", "device", "setflags", "at", "getfield"])
def test_an_attribute_of_arrays_that_tensors_have_not(name: str) -> None:
    pattern = rf"(?s)a traced array has no \.{name}\n.*made at test_written.*needed: +at test_written.*hint: "
    with pytest.raises(AttributeError, match=pattern):
        jg.compile(lambda x: getattr(x, name))(X)


def test_other_attributes_are_missing_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match=r"^'Tensor' object has no attribute 'colour'$"):
        jg.compile(lambda x: x.colour)(X)
    assert jg.compile(lambda x: x + hasattr(x, "__array_interface__"))(1.0) == 1.0


# -- hints -------------------------------------------------------------------------------------------------------------

HINTS: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a transform of no points": (lambda x: np.fft.fft(x, n=0), ValueError, "a number of points from 1 on by n="),
    "of an empty axis": (lambda x: np.fft.rfft(x[:0]), ValueError, "or an axis that is not empty"),
    "a mode of padding": (lambda x: np.pad(x, 2, mode="relfect"), ValueError, "give one of these names"),
    "products at positions": (lambda x: np.multiply.at(x * 1, [0], 2.0), jg.UnsupportedOpError, "jg.scan"),
    "quotients at positions": (lambda x: np.divide.at(x * 1, [0], 2.0), jg.UnsupportedOpError, r"np\.divide\(x\[i\]"),
    "a count beyond the end": (lambda x: np.bincount(x.astype(int), minlength=3), IndexError, "minlength= of np.binc"),
    "where of two": (lambda x: np.where(x > 0, x), ValueError, ""),
}


@pytest.mark.parametrize("name", HINTS)
def test_the_hint_fits(name: str) -> None:
    fn, kind, hint = HINTS[name]
    with pytest.raises(kind, match=f"(?s)test_written_wrongly.*{hint}" if hint else "either both or neither"):
        jg.compile(fn)(X)


@pytest.mark.parametrize("index", ["mask", "arrays", "traced"])
def test_index_arrays_that_do_not_broadcast_are_numpys_error(index: str) -> None:
    m = np.arange(12.0).reshape(3, 4)
    rows = {"mask": np.array([True, False, True])}.get(index, np.array([0, 1]))
    columns = np.array([0, 1, 2])
    with pytest.raises(IndexError):
        m[rows, columns]
    with pytest.raises(IndexError, match=r"(?s)shape mismatch: .*\[2\] \[3\].*test_written_wrongly.*np\.ix_"):
        if index == "traced":
            jg.compile(lambda x, i: x[i, columns])(m, rows)
        else:
            jg.compile(lambda x: x[rows, columns])(m)


# -- values ------------------------------------------------------------------------------------------------------------


def test_betaln_at_its_poles_is_scipys() -> None:
    a, b = np.array([0.0, 0.0, 1.0, -0.0, 2.0, 0.5]), np.array([0.0, 1.0, 0.0, 0.0, 3.0, 0.5])
    expected = [np.inf, np.inf, np.inf, np.inf, np.log(1 / 12), np.log(np.pi)]
    np.testing.assert_allclose(jg.compile(lambda a, b: like_special.betaln(a, b))(a, b), expected, 1e-14)


@pytest.mark.parametrize("ufunc", [np.logical_or, np.logical_and])
@pytest.mark.parametrize("first", [True, False, -3, 0.0])
def test_logical_reductions_begin_with_initial(ufunc: Any, first: Any) -> None:
    x = np.array([[0, 1], [0, 0], [1, 1]])
    f = jg.compile(lambda x: ufunc.reduce(x, axis=1, initial=first))
    np.testing.assert_array_equal(f(x), ufunc.reduce(x, axis=1, initial=first))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_sums_of_no_exponentials_are_numpys(shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        f = jg.compile(lambda x: np.logaddexp.reduce(x, axis=axis))  # noqa: B023
        np.testing.assert_array_equal(f(np.ones(shape)), np.logaddexp.reduce(np.ones(shape), axis=axis))


@pytest.mark.filterwarnings("ignore:Degrees of freedom")
@pytest.mark.parametrize("function", [np.nanvar, np.nanstd])
@pytest.mark.parametrize("options", [{"ddof": 2}, {"ddof": 1}, {"correction": 2}, {"ddof": 1, "keepdims": True}])
def test_variances_without_degrees_of_freedom_are_numpys(function: Any, options: dict[str, Any]) -> None:
    x = np.array([[1.0, 2.0, np.nan], [np.nan, 2.0, np.nan], [1.0, 2.0, 4.0], [np.nan] * 3])
    for data in (x, x + 1j):
        f = jg.compile(lambda x: function(x, axis=1, **options))
        np.testing.assert_allclose(f(data), function(data, axis=1, **options))
