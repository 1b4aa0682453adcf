"""Compiled functions where index arithmetic meets its edges: positions out of bounds, pads of different fills in one
loop nest, integer products, casts, signs of zeros. Against NumPy, or the interpreter where NumPy has no such function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.operators import call
from jitgrad.testing import assert_close, assert_same_results

X = np.arange(3.0)
M = np.arange(6).reshape(2, 3)
Fn = Callable[..., Any]

out_of_bounds: dict[str, tuple[str, Fn, list[Any]]] = {
    "past the end": ("take", lambda x, i: np.take(x, i), [X, np.array([0, 3])]),
    "before the start": ("take", lambda x, i: np.take(x, i), [X, np.array([2, -4])]),
    "of an axis in the middle": ("take", lambda x, i: np.take(x, i, axis=1), [np.zeros((2, 3, 4)), np.array([3])]),
    "of an empty table": ("take", lambda x, i: x[i], [np.zeros(0), np.array([0])]),
    "of a table without rows": ("take", lambda x, i: x[i] * 2, [np.zeros((0, 4)), np.array([0])]),
    "one of two": ("index", lambda x, i, j: x[i, j], [np.zeros((3, 4)), np.array([0, 2]), np.array([3, 4])]),
    "along an axis": (
        "take_along_axis",
        lambda x, i: np.take_along_axis(x, i, axis=1),
        [np.zeros((2, 3)), np.array([[0], [3]])],
    ),
    "where a row's one update goes": (
        "take_along_axis",  # the look-up itself, which comes first
        jg.grad(lambda x, i: np.sum(np.tanh(np.take_along_axis(x, i, axis=1)))),
        [np.zeros((2, 3)), np.array([[0], [-4]])],
    ),
    "of computed rows": (
        "take_along_axis",
        lambda x, i: np.sum(np.take_along_axis(np.exp(x) - np.max(x, axis=1, keepdims=True), i, axis=1)),
        [np.zeros((2, 3)), np.array([[0], [3]])],
    ),
    "of segments": ("scatter_take", lambda x, i: jg.unsorted_segment_sum(x, i, 2), [X, np.array([0, 1, 9])]),
    "of no segments": ("scatter_take", lambda x, i: jg.unsorted_segment_sum(x, i, 0), [X, np.zeros(3, int)]),
    "in a sum": ("take", lambda x, i: np.sum(x[i] ** 2), [np.ones(500), np.append(np.arange(499), 500)]),
}  # fmt: skip


@pytest.mark.parametrize("name", out_of_bounds)
def test_positions_out_of_bounds_are_errors_that_name_op_and_line(name: str) -> None:
    op, fn, args = out_of_bounds[name]
    with pytest.raises(IndexError, match=rf"(?s)op '{op}': a position is out of bounds.*test_compiled_edges\.py:\d+"):
        jg.compile(fn)(*args)


def test_a_call_after_one_out_of_bounds_is_right() -> None:
    f = jg.compile(lambda x, i: x[i] * 2)
    for _ in range(3):
        with pytest.raises(IndexError):
            f(X, np.array([0, 7]))
        np.testing.assert_array_equal(f(X, np.array([2, -3])), [4, 0])


def test_positions_out_of_bounds_in_a_gradient() -> None:
    f = jg.compile(jg.grad(lambda e, i: np.sum(e[i] ** 2)))
    with pytest.raises(IndexError, match="out of bounds"):
        f(np.ones((5, 3)), np.array([0, 5]))


integer_products: dict[str, tuple[Fn, list[Any]]] = {
    "reversed operand": (lambda a, b: a @ b[::-1], [M, M.T.copy()]),
    "reversed rows and columns": (lambda a, b: a[::-1, ::-1] @ b, [M, M.T.copy()]),
    "reshaped operand": (lambda a: a.reshape(3, 2) @ a, [M]),
    "merged operand": (lambda a, b: a.reshape(2, 4) @ b, [np.arange(8).reshape(2, 2, 2), np.arange(12).reshape(4, 3)]),
    "transposed operand": (lambda a: a @ a.T, [M]),
    "row times matrix": (lambda v: v[0] @ v, [np.arange(9).reshape(3, 3)]),
    "matrix times vector": (lambda a, v: a @ v, [M, np.arange(3)]),
    "vector times itself": (lambda v: v @ v, [np.arange(6)]),
    "vector times its reverse": (lambda v: v @ v[::-1], [np.arange(6)]),
    "small integers that overflow": (lambda a: a @ a.T, [(M * 40).astype(np.int8)]),
    "unsigned": (lambda a: a[:, ::-1] @ a.T, [M.astype(np.uint16)]),
    "batches": (lambda a: a @ np.swapaxes(a, 1, 2)[::-1], [np.arange(12).reshape(2, 2, 3)]),
}


@pytest.mark.parametrize("name", integer_products)
def test_integer_matrix_products(name: str) -> None:
    fn, args = integer_products[name]
    found, expected = jg.compile(fn)(*args), np.asarray(fn(*args))
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == expected.dtype


def _rolled(x: Any) -> Any:
    return np.concatenate([np.pad(x, (1, 0), constant_values=5)[:-1], np.pad(x, (0, 1), constant_values=7)[1:]])


def _pad_low(x: Any) -> Any:
    return np.pad(x, 1, constant_values=-np.inf)


fills: dict[str, Fn] = {
    "pad in a concatenation": lambda x: np.concatenate([np.pad(x, 1, constant_values=1.0), x]),
    "pad in a pad": lambda x: np.pad(np.pad(x, 1, constant_values=2.0), 1),
    "three pads": lambda x: np.pad(np.pad(np.pad(x, 1), (1, 2), constant_values=-1.0), (2, 0), constant_values=3.0),
    "pads in a stack": lambda x: np.stack([np.pad(x, 1, constant_values=-np.inf), np.pad(x, 1)]),
    "pads of both zeros": lambda x: np.stack([np.pad(x, 1, constant_values=-0.0), np.pad(x, 1)]),
    "sum of pads": lambda x: np.pad(x, 1, constant_values=2.0) + np.pad(x, 1, constant_values=3.0),
    "pad of a pad's slice": lambda x: np.pad(np.pad(x, 1, constant_values=4.0)[1:], 1, constant_values=6.0),
    "slice of a pad": lambda x: np.pad(x, (0, 1), constant_values=1.0)[1:] + x,
    "slice inside a pad": lambda x: np.pad(x, 2, constant_values=9.0)[2:-2] + x,
    "slice of only padding": lambda x: np.pad(x, (3, 0), constant_values=9.0)[:3] + x,
    "reversed pad": lambda x: np.pad(x, (2, 0), constant_values=1.0)[::-1][:3] * x,
    "slices of pads joined": _rolled,
    "slice over joints": lambda x: np.concatenate([x, x * 2, x * 3])[2:8] + np.sin(np.arange(6)),
    "maximum over pads": lambda x: np.max(np.stack([_pad_low(x)[k : k + 3] for k in range(3)]), axis=0),
    "pad of integers": lambda x: np.pad(np.pad(x.astype(np.int32), 1, constant_values=7), 1, constant_values=-2),
    "pad of bools": lambda x: np.pad(x > 1, 1, constant_values=True),
}  # fmt: skip


@pytest.mark.parametrize("name", fills)
def test_each_pad_keeps_its_fill(name: str) -> None:
    for x in (X + 5, X.astype(np.float32)):
        found, expected = jg.compile(fills[name])(x), fills[name](x)
        assert_close(found, expected)
        if expected.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("name", ["pad in a pad", "slice of a pad", "slices of pads joined", "slice over joints"])
def test_gradients_through_pads(name: str) -> None:
    assert_same_results(jg.grad(lambda x: np.sum(np.sin(fills[name](x)))), X)
    assert_same_results(jg.hessian(lambda x: np.sum(np.sin(fills[name](x)))), X)


rows = np.array([0, 1, 1, 3])
along = np.take_along_axis
SQUARE = np.arange(-8.0, 8).reshape(4, 4) / 7
CUBE = np.arange(16.0).reshape(2, 4, 2)
scatters: dict[str, tuple[Fn, list[Any]]] = {
    "of a cheap expression": (lambda x, i: jg.unsorted_segment_sum(x * 2, i, 5), [np.arange(4.0), rows]),
    "of a scalar": (lambda x, i: jg.unsorted_segment_sum(np.broadcast_to(x, (4,)), i, 5), [np.float64(2), rows]),
    "of a reversed table": (lambda x, i: jg.unsorted_segment_sum(x[::-1], i, 5), [np.arange(8.0).reshape(4, 2), rows]),
    "by computed rows": (lambda x, i: jg.unsorted_segment_sum(x, i % 3 - 1, 5), [np.arange(4.0), rows]),
    "embedding": (jg.grad(lambda e, i, w: np.sum(e[i] * w * 2)), [np.ones((5, 3)), rows, np.ones((4, 3))]),
    "embedding, squared": (jg.grad(lambda e, i: np.sum(np.tanh(e[i]) ** 2)), [np.full((5, 3), 0.3), rows]),
    "embedding, twice": (jg.grad(lambda e, i: np.sum(e[i] * e[i[::-1]])), [np.arange(15.0).reshape(5, 3), rows]),
    "one per row": (jg.grad(lambda x, i: np.sum(np.sin(along(x, i, 1)) * along(x, i, 1))), [SQUARE, rows[:, None]]),
    "one per row, from the end": (jg.grad(lambda x, i: np.sum(np.sin(along(x, i - 4, 1)))), [SQUARE, rows[:, None]]),
    "one per column": (jg.grad(lambda x, i: np.sum(np.sin(along(x, i, 0)) + x)), [SQUARE, rows[None]]),
    "one per row of a cube": (jg.grad(lambda x, i: np.sum(along(x, i, 1) ** 2)), [CUBE, rows.reshape(2, 1, 2)]),
    "one of one": (jg.grad(lambda x, i: np.sum(np.sin(along(x, i, 1)))), [SQUARE[:, :1], rows[:, None] * 0]),
    "one of a row of a slice": (
        jg.grad(lambda x, i: np.sum(np.sin(along(x, i[:, 1:2], 1) * np.arange(8.0).reshape(4, 2)[:, 1:]))),
        [SQUARE, np.stack([rows, rows], axis=1)],
    ),
    "one per row by small integers": (
        jg.grad(lambda x, i: np.sum(along(x, i, 1) ** 2)),
        [SQUARE, rows[:, None].astype(np.int8)],
    ),
    "of integers": (lambda x, i: jg.unsorted_segment_sum(x + 1, i, 5), [np.arange(4), rows]),
}


@pytest.mark.parametrize("name", scatters)
def test_scatters_of_expressions(name: str) -> None:
    fn, args = scatters[name]
    assert_same_results(fn, *args)


def test_a_negative_zero_that_is_scattered_is_a_zero() -> None:
    z = np.array([[-0.0], [0.0]])
    place = jg.vjp(lambda x: along(x, np.array([[1], [0]]), 1), np.ones((2, 3)))[1]
    assert not np.signbit(place(z)[0]).any()
    assert not np.signbit(jg.compile(place)(z)[0]).any()


def softmax_loss(z: Any, labels: Any) -> Any:
    z = z - np.max(z, axis=1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - along(z, labels[:, None], 1)[:, 0])


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("k", [1, 7, 33, 100])
def test_softmax_loss_and_gradient_in_one_nest(n: int, k: int) -> None:
    rng = np.random.default_rng(n * k)
    z, labels = rng.standard_normal((n, k)), rng.integers(-k, k, n)
    step = jg.value_and_grad(softmax_loss)
    assert_same_results(step, z, labels)
    if n > 1 and k > 1:  # logarithms of many short rows are made in lanes, in a kernel of their own
        kernels = 3 if (n, k) == (40, 7) else 2
        assert f"{kernels} kernels" in jg.compile(step).explain(z, labels).fusion


def test_a_scatter_is_the_sum_of_the_rows() -> None:
    found = jg.compile(lambda x, i: jg.unsorted_segment_sum(x * 2, i, 5))(np.arange(4.0), rows)
    np.testing.assert_array_equal(found, [0, 6, 0, 6, 0])


@pytest.mark.parametrize("shape", [(3, 3, 1), (1, 4, 1), (1, 1, 1), (2, 1, 3)])
@pytest.mark.parametrize("axis", [(0, 2), (2,), None])
def test_gradient_of_a_product_over_an_extent_of_one(shape: tuple[int, ...], axis: Any) -> None:
    x = np.linspace(0.2, 0.9, int(np.prod(shape))).reshape(shape)
    grad = jg.grad(lambda x: np.sum(np.sin(np.prod(np.tanh(x), axis=axis, keepdims=True))))
    assert_same_results(grad, x)
    if axis == (2,) and shape[2] == 1:
        np.testing.assert_allclose(jg.compile(grad)(x), np.cos(np.tanh(x)) * (1 - np.tanh(x) ** 2))


@pytest.mark.parametrize("source", [np.float64, np.float32])
@pytest.mark.parametrize("target", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
def test_floats_are_cast_to_integers_as_numpy_does(source: Any, target: str) -> None:
    values = [0.0, -0.0, 0.99, -0.99, 1.5, 7.9, 100.0, 127.0]
    values += [] if target[0] == "u" else [-1.5, -7.9, -100.0]
    x = np.array(values, source)
    found = jg.compile(lambda x: x.astype(np.dtype(target)))(x)
    np.testing.assert_array_equal(found, x.astype(target))
    assert found.dtype == np.dtype(target)


@pytest.mark.parametrize(
    ("value", "target"),
    [(1e19, "u8"), (2.0**63, "u8"), (3e9, "u4"), (3e9, "i8"), (-(2.0**31), "i4"), (-(2.0**63), "i8"), (65535.0, "u2")],
)  # fmt: skip
def test_large_floats_are_cast_to_integers_that_hold_them(value: float, target: str) -> None:
    x = np.array([value, 5.0, value] * 7)
    np.testing.assert_array_equal(jg.compile(lambda x: x.astype(np.dtype(target)))(x), x.astype(target))


@pytest.mark.parametrize("target", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_floats_no_integer_holds_are_cast_as_numpy_casts_one_element(target: str) -> None:
    """One by one: in an array, NumPy casts the same element to uint32 in two ways, by its place."""
    x = np.array([300.0, -1.5, 3e9, -3e9, 1e30, -1e30, np.nan, np.inf, -np.inf, 7.0] * 3)
    with np.errstate(all="ignore"):
        expected = np.concatenate([x[k : k + 1].astype(target) for k in range(x.size)])
    np.testing.assert_array_equal(jg.compile(lambda x: x.astype(np.dtype(target)))(x), expected)


zeros: dict[str, Fn] = {
    "cumsum": np.cumsum,
    "cumsum of rows": lambda x: np.cumsum(np.stack([x, x]), axis=1),
    "cumsum of columns": lambda x: np.cumsum(np.stack([x, x]), axis=0),
    "reversed cumsum": lambda x: np.cumsum(x[::-1])[::-1],
    "cumprod": np.cumprod,
    "pad": lambda x: np.pad(x, 1, constant_values=-0.0),
    "pad in a sum of pads": lambda x: np.pad(x, 1, constant_values=-0.0) + np.pad(x, 1, constant_values=-0.0),
    "concatenation": lambda x: np.concatenate([x, np.pad(x, 1, constant_values=-0.0)]),
    "gather": lambda x: x[np.array([1, 0])],
}


@pytest.mark.parametrize("name", zeros)
def test_negative_zeros_keep_their_sign(name: str) -> None:
    x = np.array([-0.0, -0.0])
    found, expected = jg.compile(zeros[name])(x), zeros[name](x)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    assert (found == expected).all()


@pytest.mark.parametrize(
    ("shape", "axis"), [((50,), 0), ((33, 17), 0), ((7, 33), 1), ((5, 6, 7), 1), ((4, 1), 1), ((0,), 0)]
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_recurrence_is_a_kernel_with_the_interpreters_bits_that_reads_no_first_factor(
    shape: tuple[int, ...], axis: int, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    x, factor = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    np.moveaxis(factor, axis, 0)[:1] = np.nan
    x.flat[:1] = -0.0
    run = jg.compile(lambda x, factor: call("linear_recurrence", x, factor, axis))
    found, expected = run(x, factor), run.interpret(x, factor)
    assert found.tobytes() == expected.tobytes()
    assert not np.isnan(found).any()
    assert "interpreter" not in str(run.explain(x, factor))


unsigned: dict[str, Fn] = {
    "absolute of negative": lambda x: np.abs(-x),
    "sum of absolute of negative": lambda x: np.sum(np.abs(-x)),
    "absolute of a negative product": lambda x: np.abs(-(x * x[::-1])),
    "square of negative": lambda x: np.square(-x),
    "maximum of negatives": lambda x: np.maximum(-x, -x[::-1]),
    "extreme of negative": lambda x: np.max(-x) - np.min(-x),
    "quotient of negative": lambda x: -x // 3,
    "float of negative": lambda x: (-x).astype(np.float64),
}


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i8"])
@pytest.mark.parametrize("name", unsigned)
def test_negative_integers_wrap_as_numpys(name: str, dtype: str) -> None:
    x = np.array([0, 3, 127, 100], dtype)
    np.testing.assert_array_equal(jg.compile(unsigned[name])(x), unsigned[name](x))


def test_the_interpreter_names_op_and_line_of_a_position_out_of_bounds() -> None:
    take = jg.compile(lambda x, i: np.take(x, i))
    for run in (take, take.interpret):
        with pytest.raises(jg.IndexingError, match=r"'take': a position is out of bounds(.|\n)*test_compiled_edges.py"):
            run(np.arange(3.0), np.array([7]))


@pytest.mark.parametrize("run", [jg.compile, lambda f: jg.compile(f).interpret], ids=["compiled", "interpreted"])
def test_rows_of_negative_segments_are_dropped(run: Any) -> None:
    rows, ids = np.array([[1.0, 2.0], [np.nan, 4.0], [5.0, 6.0]]), np.array([1, -1, 1])
    weights = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(run(lambda x: jg.unsorted_segment_sum(x, ids, 2))(rows), [[0, 0], [6, 8]])
    slope = jg.grad(lambda x: np.sum(jg.unsorted_segment_sum(x, ids, 2) * weights))
    np.testing.assert_array_equal(run(slope)(rows), [[3, 4], [0, 0], [3, 4]])


def test_what_is_made_again_for_a_reader_has_extents_that_are_stored() -> None:
    """The extent of the outer join's half is known of nothing but a sum that is made where it is read."""

    def twice(x: Any) -> Any:
        return np.concatenate([x, x])[: x.shape[0]]

    slope = jg.compile(jg.grad(lambda x: np.sum(np.sin(twice(twice(x)))) + np.sum(x * x)))
    for n in (203, 70, 3):
        x = np.linspace(-1, 1, n)
        np.testing.assert_allclose(slope(x), np.cos(x) + 2 * x, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("shape", [(6, 7, 7), (6, 40, 40)])
def test_what_is_read_in_place_and_transposed_is_not_made_again_for_both(shape: tuple[int, ...]) -> None:
    def f(a: Any, w: Any) -> Any:
        y = a / (np.abs(np.sum(a, axis=2, keepdims=True)) + 0.5)
        return np.sum(np.sin(0.3 * w @ (y - np.swapaxes(y, 1, 2)) ** 2)) + np.sum(np.sin(y))

    a, w = np.random.default_rng(0).standard_normal((2, *shape))
    slope = jg.compile(jg.grad(f))
    np.testing.assert_allclose(slope(a, w), slope.interpret(a, w), rtol=1e-9, atol=1e-9)
