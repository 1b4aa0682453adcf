"""Reading and assigning ``x[index]`` on traced tensors against NumPy, positions concrete and traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitgrad as jg
from jitgrad.errors import TracedValueError
from jitgrad.gradients import gradients
from jitgrad.graph import Graph, Tensor
from jitgrad.interpreter import interpret
from jitgrad.operators import call
from jitgrad.program import slice_graph, verify
from jitgrad.spec import spec_of
from jitgrad.testing import check_gradients

Array = npt.NDArray[Any]
Feeds = dict[Tensor, Array]

rng = np.random.default_rng(0)
X = rng.normal(size=(4, 5, 6))
i1, i2 = np.array([0, 2, -1]), np.array([[1], [3]])
m2, m1 = rng.random((4, 5)) > 0.5, rng.random(6) > 0.5
every = slice(None)

indices: list[Any] = [
    # integers, slices, Ellipsis, new axes
    0, -1, np.int64(2), np.array(1), (1, 2), (1, 2, 3), slice(1, 3), slice(None, None, -1),
    slice(None, None, 2),
    slice(3, None, -2), slice(5, 2), slice(-2, None),
    (slice(4, None, -1), slice(None, None, -3), slice(-1, 0, -2)),
    (), Ellipsis, (Ellipsis, 0), (0, Ellipsis, None), None, (None, slice(1, 4, 3), None, 2),
    (slice(-2, None), slice(None, -1)),
    # arrays
    i1, [0, 1], [[0, 1], [1, 0]], (every, []), (i1, i1), (every, i1, i2), (i1, every, i1), (i2, Ellipsis, i1),
    # arrays beside integers, which count for where the result's axes go
    (0, every, i1), (every, 0, i1), (0, i1, i1), (i1, 0, i1), (np.array(1), every, i1), (Ellipsis, i2, 0),
    # arrays beside slices and new axes
    (i1, None, i1), (i1, 2, slice(1, 5, 2)), (slice(1, 3), i1, slice(None, None, -2)), (None, i1, every, i2),
    # an Ellipsis of no axis, which parts its neighbours all the same
    (every, i1, Ellipsis, -1), (every, 1, Ellipsis, i1), (every, i1, Ellipsis, i1), (None, i1, i1, Ellipsis, 1),
    (i1, Ellipsis, i1, i1), (every, i1, i1, Ellipsis), (Ellipsis, every, i1, i1),
    # masks
    m2, (every, every, m1), (m2, 0), (m2, slice(1, 3)), (0, every, m1), [True, False, True, True],
]  # fmt: skip

each_index = pytest.mark.parametrize("index", indices, ids=lambda ix: str(ix).replace("\n", ""))


def traced(index: Any, feeds: Feeds) -> Any:
    """The index with its integer arrays as placeholders."""

    def one(item: Any) -> Any:
        if not isinstance(item, np.ndarray) or item.dtype.kind != "i":
            return item
        t = call("placeholder", item.dtype, item.shape)
        feeds[t] = item
        return t

    return tuple(map(one, index)) if isinstance(index, tuple) else one(index)


def run(fetches: list[Tensor], feeds: Feeds) -> list[Any]:
    """Values of the fetches in the interpreter."""
    program = verify(slice_graph(fetches, {t: spec_of(array) for t, array in feeds.items()}))
    return interpret(program, list(feeds.values()))


def placeholder(value: Array, feeds: Feeds, shape: Any = "same") -> Tensor:
    """A placeholder fed with ``value``."""
    t: Tensor = call("placeholder", value.dtype, value.shape if shape == "same" else shape)
    feeds[t] = value
    return t


@pytest.mark.quick
@pytest.mark.parametrize("is_traced", [False, True])
@each_index
def test_getitem_is_numpys(index: Any, is_traced: bool) -> None:
    feeds: Feeds = {}
    with Graph().as_default():
        x = placeholder(X, feeds)
        out = x[traced(index, feeds) if is_traced else index]
    assert out is not x
    assert out.shape == X[index].shape
    np.testing.assert_array_equal(run([out], feeds)[0], X[index])


@pytest.mark.quick
@pytest.mark.parametrize("is_traced", [False, True])
@each_index
def test_setitem_is_numpys_and_leaves_earlier_operations_alone(index: Any, is_traced: bool) -> None:
    shape = X[index].shape
    values: list[Any] = [7, rng.normal(size=shape), rng.normal(size=shape[-1:])]
    for value in [*values, rng.normal(size=(1, *shape))] if shape else values:
        expected = X.copy()
        expected[index] = value
        feeds: Feeds = {}
        with Graph().as_default():
            x = placeholder(X, feeds) * 1.0
            before = x + 1
            x[traced(index, feeds) if is_traced else index] = value
            after = x + 1
        results = run([x, before, after], feeds)
        for found, wanted in zip(results, (expected, X + 1, expected + 1), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.quick
@each_index
def test_gradients_through_reading_and_assigning(index: Any) -> None:
    def fn(x: Any, v: Any) -> Any:
        y = x * x
        y[index] = v * y[index]
        return np.sin(y)

    check_gradients(fn, X[:, :, :] * 0.5, rng.normal(size=X[index].shape))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("index", "mask", "value"),
    [
        (lambda m: m, X > 0, 3.0),
        (lambda m: m, m2, 3.0),
        (lambda m: m, m2, rng.normal(size=6)),
        (lambda m: m, m2, rng.normal(size=(1, 6))),
        (lambda m: (slice(None), slice(None), m), m1, -1.0),
        (lambda m: (Ellipsis, m), m1, rng.normal(size=(5, 1))),
        (lambda m: (slice(None), m), m2[0], rng.normal(size=(4, 1, 6))),
        (lambda m: (1, m), m2[0], rng.normal(size=6)),
        (lambda m: (slice(1, 3), m, slice(None, None, 2)), m2[0], 0.5),
        (lambda m: m, np.array(True), 3.0),
    ],
)
def test_setitem_through_a_traced_mask(index: Any, mask: Array, value: Any) -> None:
    expected = X.copy()
    expected[index(mask)] = value
    feeds: Feeds = {}
    with Graph().as_default():
        x = placeholder(X, feeds) * 1.0
        x[index(placeholder(mask, feeds))] = value
    np.testing.assert_array_equal(run([x], feeds)[0], expected)


@pytest.mark.quick
def test_the_last_of_several_values_for_one_element_stays() -> None:
    positions, values = np.array([1, 0, 1, 1]), np.arange(4.0)
    for is_traced in (False, True):
        feeds: Feeds = {}
        with Graph().as_default():
            x, v = placeholder(np.zeros(3), feeds), placeholder(values, feeds)
            y = x * 1.0
            y[placeholder(positions, feeds) if is_traced else positions] = v
            dv = gradients(y, v)[0]
        assert dv is not None
        np.testing.assert_array_equal(run([y], feeds)[0], [1, 3, 0])
        np.testing.assert_array_equal(run([dv], feeds)[0], [0, 1, 0, 1])


@pytest.mark.quick
def test_augmented_assignment_and_scalars_in_a_loop() -> None:
    feeds: Feeds = {}
    with Graph().as_default():
        x = placeholder(X, feeds)
        total = call("zeros", 4)
        for k in range(4):
            total[k] = x[k].sum()
            total[k] += 1
        x[0] *= 2
        x[i1, 0] -= 5
    expected = X.copy()
    expected[0] *= 2
    expected[i1, 0] -= 5
    feeds = {next(t for t in x.graph.operations[0].outputs): X}
    found = run([total, x], feeds)
    np.testing.assert_allclose(found[0], X.sum((1, 2)) + 1)
    np.testing.assert_array_equal(found[1], expected)


@pytest.mark.quick
def test_assignment_converts_to_the_dtype_of_the_array() -> None:
    with Graph().as_default():
        x = call("zeros", 3, np.int32)
        x[1] = 2.75
        y = call("zeros", 3, np.float32)
        y[:] = np.arange(3.0)
    assert x.dtype == np.int32 and y.dtype == np.float32
    np.testing.assert_array_equal(run([x], {})[0], [0, 2, 0])


@pytest.mark.quick
def test_assigning_a_tensor_as_a_whole_does_not_tie_the_two_together() -> None:
    feeds: Feeds = {}
    with Graph().as_default():
        x, v = placeholder(np.zeros(3), feeds) * 1.0, placeholder(np.ones(3), feeds) * 1.0
        x[:] = v
        x[0] = 5
        v[1] = 7
    found = run([x, v], feeds)
    np.testing.assert_array_equal(found[0], [5, 1, 1])
    np.testing.assert_array_equal(found[1], [1, 7, 1])


@pytest.mark.quick
def test_consumers_and_outputs_agree_after_an_assignment() -> None:
    with Graph().as_default() as graph:
        x = call("placeholder", np.dtype(float), (3,))
        first = x + x
        x[0] = 1.0
        second = x * 2
    for op in graph.operations:
        assert all(t.op is op and t.value_index == k for k, t in enumerate(op.outputs))
        assert all(op in t.consumers() and t.op.outputs[t.value_index] is t for t in op.inputs)
    assert first.op.inputs[0] is not x and second.op.inputs[0] is x
    assert first.op.inputs[0].op.type == "placeholder"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        (4, IndexError, "index 4 is out of bounds for axis 0 with size 4"),
        ((0, -6), IndexError, "index -6 is out of bounds for axis 1 with size 5"),
        (np.array([0, 9]), IndexError, "index 9 is out of bounds for axis 0 with size 4"),
        ((0, 0, 0, 0), IndexError, "too many indices"),
        ((Ellipsis, Ellipsis), IndexError, "single ellipsis"),
        (1.5, IndexError, "valid|indices"),
        (np.array([1.5]), IndexError, "indices"),
        (np.ones((4, 4), bool), IndexError, "boolean index did not match"),
        (slice(None, None, 0), ValueError, "step cannot be zero"),
    ],
)
def test_refused_indices(index: Any, error: type[Exception], words: str) -> None:
    with Graph().as_default():
        x = call("placeholder", np.dtype(float), X.shape)
        with pytest.raises(error, match=words):
            x[index]
        with pytest.raises(error, match=words):
            x[index] = 1.0


@pytest.mark.quick
def test_a_traced_mask_takes_no_array_of_values() -> None:
    with Graph().as_default():
        x = call("placeholder", np.dtype(float), (3,))
        with pytest.raises(TracedValueError, match=r"np\.where"):
            x[x > 0] = np.ones(2)
        with pytest.raises(TracedValueError, match=r"np\.where"):
            np.argwhere(x > 0)


@pytest.mark.quick
def test_traced_positions_out_of_range_raise_in_the_interpreter() -> None:
    feeds: Feeds = {}
    with Graph().as_default():
        x, i = placeholder(np.zeros(3), feeds), placeholder(np.array([0, 3]), feeds)
        out = x[i]
        x[i] = 1.0
    feeds = {out.op.inputs[0]: np.zeros(3), i: np.array([0, 3])}
    for fetch in (out, x):
        with pytest.raises(IndexError, match="out of bounds"):
            run([fetch], feeds)


@pytest.mark.quick
@pytest.mark.parametrize(
    "index", [0, -1, slice(None, 3), slice(-3, None), (slice(None), 2), (slice(None), slice(None, None, 2)),
              (slice(None, None, -2), 1), slice(None, None, 3), (None, slice(1, -1))]
)  # fmt: skip
def test_unknown_extents(index: Any) -> None:
    for array in (X, X[:3]):
        feeds: Feeds = {}
        with Graph().as_default():
            x = placeholder(array, feeds, (None, 5, 6))
            out = x[index]
            y = x * 1.0
            y[index] = 0.0
            dx = gradients(out * out, x)[0]
        assert dx is not None
        found = run([out, y, dx], feeds)
        expected, gradient = array.copy(), np.zeros_like(array)
        expected[index] = 0
        gradient[index] = 2 * array[index]
        for got, wanted in zip(found, (array[index], expected, gradient), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.quick
def test_functions_that_write() -> None:
    expected, other = X.copy(), X[0].copy()
    order = np.argsort(X, 1)[:, :2]
    np.put_along_axis(expected, order, 9.0, 1)
    np.put(other, [1, 29, 7], [5.0, 6.0])
    np.fill_diagonal(other, -1.0)
    np.copyto(other, 4.0, where=other > 1)
    np.add.at(other, ([0, 0, 1],), 1.0)
    for is_traced in (False, True):
        feeds: Feeds = {}
        with Graph().as_default():
            x = placeholder(X, feeds) * 1.0
            y = placeholder(X[0], feeds) * 1.0
            call("put_along_axis", x, placeholder(order, feeds) if is_traced else order, 9.0, 1)
            call("put", y, placeholder(np.array([1, 29, 7]), feeds) if is_traced else [1, 29, 7], [5.0, 6.0])
            call("fill_diagonal", y, -1.0)
            call("copyto", y, 4.0, where=y > 1)
            call("add.at", y, ([0, 0, 1],), 1.0)
        found = run([x, y], feeds)
        np.testing.assert_array_equal(found[0], expected)
        np.testing.assert_array_equal(found[1], other)


@pytest.mark.parametrize("name", ["add", "subtract", "maximum", "minimum"])
@pytest.mark.parametrize("window", [slice(None), slice(1, 5)])
def test_ufuncs_at_positions(name: str, window: slice) -> None:
    """As NumPy, in windows of the user's array too; a tie is shared by all values and by what was there before."""
    at, values, ids = getattr(np, name).at, np.array([1.0, 3.0, 3.0, 0.5, -2.0]), np.array([0, 2, 2, 1, 0])

    def f(v: Any, ids: Any) -> Any:
        out = np.zeros_like(v, shape=(6,)) + 0.5
        at(out[window], ids, v)
        return np.sum(out * np.arange(1.0, 7.0) ** 2)

    found, gradient = jg.compile(jg.value_and_grad(f))(values, ids)
    assert found == f(values, ids)
    weights = np.arange(1.0, 7.0)[window][ids] ** 2
    shares = {"maximum": [1, 0.5, 0.5, 0.5, 0], "minimum": [0, 0, 0, 0.5, 1]}
    np.testing.assert_allclose(gradient, weights * {"add": 1, "subtract": -1}.get(name, shares.get(name)))


def test_an_array_that_is_not_traced_is_not_written() -> None:
    def f(ids: Any) -> Any:
        count = np.zeros(3)
        np.add.at(count, ids, 1.0)
        return count

    with pytest.raises(jg.errors.UnsupportedOpError, match=r"(?s)numpy\.add\.at.*not traced.*np\.zeros_like"):
        jg.compile(f)(np.array([0, 2]))


BOUNDS = [None, 0, 1, -1, -2, 5]


@pytest.mark.parametrize("step", [-3, -2, -1, 2, 3])
def test_slices_with_steps_are_filled_in_their_direction(step: int) -> None:
    """Gradients, assignments and writes to views, for slices that run through an axis, too."""
    for n in range(1, 7):
        for start in BOUNDS:
            for stop in BOUNDS:
                window = slice(start, stop, step)
                x = np.arange(1.0, n + 1)
                weights = np.exp(x[window])
                expected = np.zeros(n)
                expected[window] = weights
                if weights.size:
                    found = jg.grad(lambda x, window=window, weights=weights: np.sum(x[window] * weights))(x)
                    np.testing.assert_array_equal(found, expected)


def test_views_with_steps_are_written_in_their_direction() -> None:
    def fn(x: Array) -> Any:
        a, b, c = x * 1, x * 1, x * 1
        a[::-2] = x[:2]
        view = b[::-1, ::2]
        view[0] *= 3
        c[::-2, ::-3][1] += 5
        return a, b, c

    x = np.arange(12.0).reshape(3, 4)
    f = jg.compile(fn)
    for found in (f(x), f.interpret(x)):
        for ours, numpys in zip(found, fn(x), strict=True):
            np.testing.assert_array_equal(ours, numpys)


def test_gradients_of_turned_slices_compiled() -> None:
    x = np.arange(24.0).reshape(4, 6)
    weights = np.exp(x[:2, :3] / 10)
    f = jg.compile(jg.grad(lambda x: np.sum(x[::-2, ::-2] * weights)))
    expected = np.zeros_like(x)
    expected[::-2, ::-2] = weights
    np.testing.assert_allclose(f(x), expected)
    check_gradients(lambda x: np.sin(x[::-2, 1::2]) * x[::-2, ::-2], x / 24)
