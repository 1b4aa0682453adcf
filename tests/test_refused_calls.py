"""Calls with shapes, axes and dtypes that do not fit: traced, in graphs and eagerly, each error tells the user's line
and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.special

import jitgrad as jg
import jitgrad.numpy as jnp
import jitgrad.scipy.linalg
from jitgrad import nn

pytestmark = pytest.mark.quick

ARRAYS = {
    "a": np.arange(12.0).reshape(3, 4), "b": np.ones((5, 4)), "v3": np.array([0.5, 1.5, 2.5]), "v5": np.arange(5.0),
    "s": np.eye(3) + 1.0,
}  # fmt: skip

CALLS: dict[str, Callable[[Any], Any]] = {
    "add": lambda e: e.a + e.b,
    "where": lambda e: np.where(e.a > 0, e.a, e.b),
    "maximum": lambda e: np.maximum(e.a, e.v5),
    "logaddexp.accumulate": lambda e: np.logaddexp.accumulate(e.v3 + 1j),
    "matmul": lambda e: e.a @ e.a,
    "matmul of a number": lambda e: e.a @ 2.0,
    "dot": lambda e: np.dot(e.a, e.a),
    "inner": lambda e: np.inner(e.a, e.v5),
    "tensordot": lambda e: np.tensordot(e.a, e.a, axes=1),
    "tensordot axes": lambda e: np.tensordot(e.a, e.b, axes=([7], [1])),
    "vdot": lambda e: np.vdot(e.a, e.v5),
    "einsum extents": lambda e: np.einsum("ij,jk->ik", e.a, e.a),
    "einsum rank": lambda e: np.einsum("ijk->i", e.a),
    "einsum count": lambda e: np.einsum("ij,jk->ik", e.a),
    "einsum output": lambda e: np.einsum("ij->ix", e.a),
    "einsum syntax": lambda e: np.einsum("i!->i", e.a),
    "sum axis": lambda e: np.sum(e.a, axis=2),
    "sum method": lambda e: e.a.sum(axis=2),
    "sum axis twice": lambda e: np.sum(e.a, axis=(0, 0)),
    "sum axis of a fraction": lambda e: np.sum(e.a, axis=1.5),  # type: ignore[call-overload]
    "add.reduce": lambda e: np.add.reduce(e.a, axis=4),
    "add.accumulate": lambda e: np.add.accumulate(e.a, axis=4),
    "argmax": lambda e: np.argmax(e.a, axis=2),
    "max of nothing": lambda e: np.max(e.a[:0], axis=0),
    "sort": lambda e: np.sort(e.a, axis=2),
    "quantile": lambda e: np.quantile(e.a, 1.5),
    "reshape": lambda e: np.reshape(e.a, (5, 5)),
    "reshape method": lambda e: e.a.reshape(-1, -1),
    "transpose": lambda e: np.transpose(e.a, (0, 0)),
    "moveaxis": lambda e: np.moveaxis(e.a, 0, 3),
    "squeeze": lambda e: np.squeeze(e.a, axis=0),
    "expand_dims": lambda e: np.expand_dims(e.a, 5),
    "broadcast_to": lambda e: np.broadcast_to(e.a, (5, 5)),
    "concatenate": lambda e: np.concatenate([e.a, e.v3[None]], axis=0),
    "concatenate ranks": lambda e: np.concatenate([e.a, e.v3]),
    "concatenate numbers": lambda e: np.concatenate([e.a[0, 0], e.a[0, 0]]),
    "stack": lambda e: np.stack([e.a, e.b]),
    "split": lambda e: np.split(e.a, 2),
    "array_split": lambda e: np.array_split(e.a, 0),
    "tile": lambda e: np.tile(e.a, -1),
    "repeat": lambda e: np.repeat(e.a, [1, 2], axis=0),
    "repeat less than never": lambda e: np.repeat(e.a, -1, axis=0),
    "roll": lambda e: np.roll(e.a, 1, axis=2),
    "pad": lambda e: np.pad(e.a, ((1, 1), (1, 1), (1, 1))),
    "pad inwards": lambda e: np.pad(e.a, -1),
    "item": lambda e: e.a[7],
    "items": lambda e: e.a[0, 0, 0],
    "item of a fraction": lambda e: e.a[1.5],
    "mask": lambda e: e.a[np.array([True, False])],
    "index arrays": lambda e: e.a[np.array([0, 1]), np.array([0, 1, 2])],
    "take": lambda e: np.take(e.a, [0], axis=3),
    "take_along_axis": lambda e: np.take_along_axis(e.a, np.zeros((2, 2, 2), int), axis=0),
    "diagonal": lambda e: np.diagonal(e.v3),
    "diag": lambda e: np.diag(e.a[None]),
    "vander": lambda e: np.vander(e.a),
    "solve": lambda e: np.linalg.solve(e.a, e.v3),
    "solve rows": lambda e: np.linalg.solve(e.s, e.v5),
    "solve_triangular": lambda e: jitgrad.scipy.linalg.solve_triangular(e.a, e.v3),
    "cholesky": lambda e: np.linalg.cholesky(e.a),
    "svd": lambda e: np.linalg.svd(e.v3),
    "pinv": lambda e: np.linalg.pinv(e.v3),
    "norm": lambda e: np.linalg.norm(e.a, axis=3),
    "norm order": lambda e: np.linalg.norm(e.a, ord="x"),  # type: ignore[call-overload]
    "convolve": lambda e: np.convolve(e.a, e.a),
    "diff": lambda e: np.diff(e.a, n=-1),
    "gradient": lambda e: np.gradient(e.a[:1], axis=0),
    "fft": lambda e: np.fft.fft(e.a, n=0),
    "average": lambda e: np.average(e.a, axis=0, weights=e.v5),
    "searchsorted": lambda e: np.searchsorted(e.a, e.v3),
    "invert": lambda e: ~e.a,
    "complex floor": lambda e: np.floor(e.a * 1j),
    "complex gammaln": lambda e: scipy.special.gammaln(e.a * 1j),
    "astype": lambda e: e.a.astype("nonsense"),
    "softmax": lambda e: nn.softmax(e.a, axis=3),
    "conv2d": lambda e: nn.conv2d(e.a, e.a),
    "gather": lambda e: jg.gather(e.a, e.v3),
    "unsorted_segment_sum": lambda e: jg.unsorted_segment_sum(e.a, np.arange(6), 3),
    "add_n": lambda e: jg.add_n([e.a, e.b]),
    "steps of a scan": lambda e: jg.scan(lambda c, x: (c, c), e.a[0], (e.a, e.b)),
    "linspace": lambda e: np.linspace(e.a[0, 0], e.v3[0], -1),
    "geomspace from 0": lambda e: np.geomspace(0.0, e.v3[0], 4),
    "lstsq": lambda e: np.linalg.lstsq(e.a, e.v5),
    "cond of nothing": lambda e: np.linalg.cond(e.s[:0, :0], 1),
    "tensorinv": lambda e: np.linalg.tensorinv(e.s, 0),
    "tensorinv extents": lambda e: np.linalg.tensorinv(e.a, 1),
    "tensorsolve": lambda e: np.linalg.tensorsolve(e.s, e.v5),
    "histogram bins": lambda e: np.histogram(e.v5, 0),
    "histogram edges": lambda e: np.histogram(e.v5, [0.0, 2.0, 1.0]),
    "histogram edges of a matrix": lambda e: np.histogram(e.v5, [[0.0, 2.0], [3.0, 4.0]]),
    "histogram range": lambda e: np.histogram(e.v5, 3, (0.0, np.inf)),
    "histogram range that falls": lambda e: np.histogram(e.v5, 3, (2, 1)),
    "histogram weights": lambda e: np.histogram(e.v5, 3, weights=e.v3),
    "bincount": lambda e: np.bincount(e.a.astype(int), minlength=12),
    "bincount weights": lambda e: np.bincount(e.v3.astype(int), e.v5, minlength=12),
    "bincount of complex weights": lambda e: np.bincount(e.v3.astype(int), e.v3 * 1j, minlength=12),
    "roll axes": lambda e: np.roll(e.a, (1, 2), (0, 1, 1)),
    "windows": lambda e: np.lib.stride_tricks.sliding_window_view(e.a, 2),
    "windows too large": lambda e: np.lib.stride_tricks.sliding_window_view(e.v5, 9),
    "insert": lambda e: np.insert(e.v5, [1, 8], 0.0),
    "polyfit degree": lambda e: np.polyfit(e.v5, e.v5, -1),
    "polyfit weights": lambda e: np.polyfit(e.v5, e.v5, 1, w=e.v3),
    "polyfit of nothing": lambda e: np.polyfit(e.v5[:0], e.v5[:0], 1),
    "polyder": lambda e: np.polyder(e.v5, -1),
    "quantile of nothing": lambda e: np.quantile(e.a[:0], 0.5, axis=0),
    "quantile method": lambda e: np.quantile(e.a, 0.5, method="x"),  # type: ignore[call-overload]
    "argmax of nothing": lambda e: np.argmax(e.a[:0], axis=0),
    "add.reduceat": lambda e: np.add.reduceat(e.v5, [0, 9]),
    "add.reduceat of fractions": lambda e: np.add.reduceat(e.v5, [0.5]),
}


def traced(call: Callable[[Any], Any]) -> None:
    jg.compile(lambda arrays: call(SimpleNamespace(**arrays)))(ARRAYS)


def in_graph(call: Callable[[Any], Any]) -> None:
    with jg.Graph().as_default():
        call(SimpleNamespace(**{name: jg.placeholder(x.dtype, x.shape) for name, x in ARRAYS.items()}))


def open_in_graph(call: Callable[[Any], Any]) -> None:
    with jg.Graph().as_default() as graph:
        fed = {name: jg.placeholder(x.dtype, (None,) * x.ndim) for name, x in ARRAYS.items()}
        made = call(SimpleNamespace(**fed))
        jg.Session(graph).run(made, {fed[name]: x for name, x in ARRAYS.items()})


def eager(call: Callable[[Any], Any]) -> None:
    call(SimpleNamespace(**{name: jg.asarray(x) for name, x in ARRAYS.items()}))


# Where a method of a ufunc fails on an argument with __array_ufunc__, NumPy holds on to the argument for ever.
RUNS = [
    pytest.param(name, run, id=f"{name}-{run.__name__}")
    for name in CALLS
    for run in (traced, in_graph, open_in_graph, eager)
    if run is not eager or not name.startswith(("add.", "logaddexp."))
]


@pytest.mark.parametrize(("name", "run"), RUNS)
def test_a_refused_call_tells_the_line_and_a_hint(name: str, run: Callable[..., None]) -> None:
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        run(CALLS[name])
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "at test_refused_calls.py:" in text, text
    assert "  hint:" in text, text


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda e: np.einsum("ij,jk->ik", e.a, e.a), "axes of one letter"),
        (lambda e: np.einsum("ij->ix", e.a), "leaving them out"),
        (lambda e: np.cross(e.a, e.a), "vectors have extent 3"),
        (lambda e: np.inner(e.a, e.v5), "summed together"),
        (lambda e: np.tensordot(e.a, e.a, axes=1), "summed together"),
        (lambda e: np.argmax(e.a[:0]), "test x.size first"),
        (lambda e: np.insert(e.v5, [1, 8], 0.0), "behind the last"),
    ],
)
@pytest.mark.parametrize("run", [traced, in_graph, eager])
def test_hints_fit_the_call(call: Callable[[Any], Any], hint: str, run: Callable[..., None]) -> None:
    """Words that several calls share have a hint that holds for all of them."""
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        run(call)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert hint in text.partition("hint:")[2], text


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.tile(x, x.shape),
        lambda x: np.tile(x, (x.shape[0], 1)),
        lambda x: np.repeat(x, x.shape[0], axis=0),
        lambda x: np.repeat(x, [x.shape[0], 2], axis=0),
        lambda x: x.repeat(x.shape[0]),
    ],
)
def test_an_unknown_extent_is_no_number_of_copies(call: Callable[[Any], Any]) -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, (None, 3))
        with pytest.raises(jg.ShapeError, match=r"(?s)number of copies.*None.*test_refused_calls.*hint:.*extents from"):
            call(x)


@pytest.mark.parametrize("run", [traced, in_graph, eager])
@pytest.mark.parametrize("places", [8, -6, [1, 8]])
def test_an_insertion_may_stand_behind_the_last(places: Any, run: Callable[..., None]) -> None:
    """There is one position more than there are elements."""
    with pytest.raises(IndexError, match=r"from -5 to 5, behind the last, got (8|-6|\[1, 8\])\n"):
        run(lambda e: np.insert(e.v5, places, 0.0))


def test_an_error_of_the_users_code_stays_as_it_is() -> None:
    def refused(row: Any) -> Any:
        raise ValueError("shape of mine")

    with pytest.raises(ValueError, match=r"^shape of mine$") as caught:
        np.apply_along_axis(refused, 0, jg.asarray(ARRAYS["a"]))
    assert type(caught.value) is ValueError


SQUARE = np.arange(9.0).reshape(3, 3)
ASKERS: list[tuple[str, Callable[[Any], Any], str, str]] = [
    ("a table's rows", lambda i: np.eye(3)[i], "an index into an array of NumPy", "jitgrad.numpy.asarray(table)[i]"),
    ("taken rows", lambda i: np.take(np.eye(3), i, axis=0), "np.take()", "jitgrad.numpy.asarray(table)[i]"),
    ("an item of a list", lambda i: [1.0, 2.0, 3.0][i], "an index or a count", "jitgrad.numpy.asarray(table)[i]"),
    ("two indices", lambda i: SQUARE[i, 1], "an index into an array of NumPy", "asarray(table)[i]"),
    ("how long", lambda i: np.arange(i), "np.arange()", "static_argnames"),
    ("a list", lambda i: np.array([i, 2 * i]), "np.array()", "use jitgrad.numpy.array,"),
    ("filled", lambda i: np.full(3, i), "np.full()", "use jitgrad.numpy.full,"),
    ("sum of a list", lambda i: np.sum([i, 2 * i]), "np.sum()", "np.stack([a, b])"),
    ("norm of a list", lambda i: np.linalg.norm([i, 2 * i]), "norm()", "np.stack([a, b])"),
    ("rows of numbers", lambda i: np.r_[i, 2 * i], "conversion to an array", "np.concatenate"),
    ("a product with a list", lambda i: SQUARE @ (i * np.ones(3)) @ [i, i, i], "conversion to", "np.stack([a, b])"),
    ("a method of a table", lambda i: SQUARE.dot(i * np.ones(3)), "SQUARE.dot()", "a @ x in place of a.dot(x)"),
    ("a draw", lambda i: np.random.normal(i, 1.0), "np.random.normal()", "jg.random_normal"),
    ("a permutation", lambda i: np.random.permutation(i), "np.random.permutation()", "x[permutation]"),
    ("larger of two", lambda i: max(i, 0), "max()", "np.maximum(a, b)"),
    ("a condition", lambda i: i if i > 0 else -i, "a condition", "jg.cond"),
]


@pytest.mark.parametrize(("call", "asker", "hint"), [case[1:] for case in ASKERS], ids=[case[0] for case in ASKERS])
def test_who_asks_for_a_value_is_named(call: Callable[[Any], Any], asker: str, hint: str) -> None:
    """NumPy does not say for what it makes an array; the user's line does."""
    with pytest.raises(jg.TracedValueError) as caught:
        jg.compile(call)(2)
    text = str(caught.value)
    assert text.startswith(f"{asker}") and hint in text.partition("hint:")[2], text


def test_what_the_hints_say_works() -> None:
    f = jg.compile(lambda i: (jnp.asarray(SQUARE)[i, 1], jnp.asarray([1.0, 2.0, 3.0])[i], jnp.full(2, i)))
    element, item, filled = f(2)
    assert element == 7 and item == 3 and filled.tolist() == [2, 2]


def test_code_without_its_text_is_refused_all_the_same() -> None:
    found: dict[str, Any] = {"np": np}
    exec("def f(x): return np.array([x, x])", found)
    with pytest.raises(jg.TracedValueError, match="conversion to an array needs the value"):
        jg.compile(found["f"])(2.0)
