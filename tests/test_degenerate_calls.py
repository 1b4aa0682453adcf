"""NumPy's functions at the edges of what they take: no elements, no degrees of freedom, singular matrices, ends and
edges that coincide. Compiled and interpreted, they give NumPy's values and dtypes, and its gradients where it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

import jitgrad as jg
import jitgrad.scipy.linalg
from jitgrad.testing import check_gradients

Array = npt.NDArray[Any]
inf, nan = np.inf, np.nan
rng = np.random.default_rng(3)

X = rng.normal(size=(2, 3))
LINE = np.array([0.1, 0.5, 0.7, 2.0, 2.5, 9.0])
SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
MATRICES = np.stack([SINGULAR, np.eye(2), np.zeros((2, 2)), SINGULAR + np.eye(2)])
PAIRS = np.array([1 + 2j, 1 + 1j, nan, 3 - 1j, complex(3, nan)])
ROWS = np.array([[1 + 2j, nan], [3, 3 + 1j], [complex(nan, 1), complex(-inf, -inf)]])
ORDERS: tuple[Any, ...] = (1, -1, inf, -inf, "fro")


def floats(*values: Any) -> Array:
    return np.array(values, np.float32)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{f"cov, ddof={n}": (lambda x, n=n: np.cov(x, ddof=n), (X,)) for n in (0, 1, 2, 3, 4)},
    "cov of one observation": (lambda x: np.cov(x), (X[:, :1],)),
    "cov of none": (lambda x: np.cov(x), (X[:, :0],)),
    "cov, weights": (lambda x: np.cov(x, ddof=9, fweights=[1, 2, 1]), (X,)),
    "cov, more weights": (lambda x: np.cov(x, ddof=9, aweights=[1.0, 2, 1]), (X,)),
    "cov in float32": (lambda x: np.cov(x, ddof=4, dtype=np.float32), (X,)),
    **{
        f"{fn.__name__} of {x.dtype}, axis {axis}": (lambda x, fn=fn, axis=axis: fn(x, axis), (x,))
        for fn in (np.nanargmax, np.nanargmin, np.nanmax, np.nanmin)
        for x, axis in ((PAIRS, None), (ROWS, 1), (PAIRS.astype(np.complex64), 0))
    },
    **{
        f"cond in {p} of {x.shape} {x.dtype}, largest {x.max(initial=0)}": (
            lambda x, p=p: np.linalg.cond(x, p), (x,)
        )
        for p in (None, 2, -2, *ORDERS)
        for x in (
            np.zeros((2, 2)), MATRICES[1:3], floats([1, 3], [2, 4]), np.zeros((0, 2, 2)), np.zeros((70, 70)),
            *((MATRICES, SINGULAR.astype(int)) if p in ORDERS else ()),  # a smallest singular value of 0 is rounded
        )
    },
    "cond of zeros, more columns": (lambda x: np.linalg.cond(x), (np.zeros((2, 3)),)),
    "cond of NaN": (lambda x: np.linalg.cond(x, 1), (SINGULAR * [1, nan],)),
    **{
        f"{fn.__name__} of {x.shape} {x.dtype}, {options}": (lambda x, fn=fn, o=options: fn(x, **o), (x,))
        for fn in (np.median, np.nanmedian)
        for x, options in (
            (np.zeros(0), {}), (floats(), {}), (np.zeros(0, int), {}), (np.zeros((0, 3)), {"axis": 0}),
            (np.zeros((0, 3)), {"axis": 1}), (np.zeros((0, 3)), {"axis": 0, "keepdims": True}),
            (np.zeros((2, 0, 3)), {"axis": (0, 1)}),
        )
    },
    **{
        f"{fn.__name__} by {method} of {x.dtype}, {options}": (
            lambda x, fn=fn, m=method, o=options: fn(x, 0.5, method=m, **o), (x,)
        )
        for fn in (np.quantile, np.nanquantile, np.percentile, np.nanpercentile)
        for method in ("linear", "lower", "hazen")
        for x, options in (
            (np.zeros((0, 3)), {"axis": 1}), (np.zeros((0, 3), np.float32), {"axis": 1, "keepdims": True}),
            (np.zeros((0, 3)), {"axis": 0}), (np.zeros(0, int), {}),
        )
        if fn.__name__.startswith("nan") or options.get("axis") == 1
    },
    "quantiles of no lines": (lambda x: np.quantile(x, [0.1, 0.5], axis=1), (np.zeros((0, 3)),)),
    "nanquantiles of nothing": (lambda x: np.nanquantile(x, [0.1, 0.5, 0.9], axis=0), (np.zeros((0, 2)),)),
    **{
        f"lstsq of {a} and {b}": (lambda a, b: tuple(np.linalg.lstsq(a, b)), (rng.normal(size=a), rng.normal(size=b)))
        for a, b in (
            ((0, 3), (0,)), ((0, 3), (0, 2)), ((3, 0), (3,)), ((0, 0), (0,)), ((3, 2), (3, 0)), ((0, 3), (0, 0)),
        )
    },
    "edges that coincide": (lambda x: np.histogram(x, [0, 1, 1, 2.0]), (LINE,)),
    "infinite edges": (lambda x: np.histogram(x, [-inf, 1, inf]), (LINE,)),
    "one edge": (lambda x: np.histogram(x, [1.0]), (LINE,)),
    "one edge, density": (lambda x: np.histogram(x, [1.0], density=True), (LINE,)),
    "no edge": (lambda x: np.histogram(x, np.zeros(0)), (LINE,)),
    "float32 edges": (lambda x: np.histogram(x, floats(0, 1, 2.5)), (LINE,)),
    "float32 data": (lambda x: np.histogram(x, 4), (LINE.astype(np.float32),)),
    "float32 data, range": (lambda x: np.histogram(x, 4, (0, 3)), (LINE.astype(np.float32),)),
    "float32 data, float64 range": (
        lambda x: np.histogram(x, 4, (np.float64(0), np.float64(3))), (LINE.astype(np.float32),)
    ),
    "integers, range": (lambda x: np.histogram(x, 3, (2, 5)), (LINE.astype(int),)),
    "range of one number": (lambda x: np.histogram(x, 3, (2, 2)), (LINE,)),
    "weights of bool": (lambda x: np.histogram(x, 4, weights=np.arange(6) > 2), (LINE,)),
    "polyfit of degree 0": (lambda x: np.polyfit(x, x * x, 0), (LINE,)),
    **{
        f"geomspace from {low} to {high}": (lambda x, y: np.geomspace(x, y, 4), (np.array(low), np.array(high)))
        for low, high in ((nan, 3.0), (3.0, nan), (-1.0, 3.0), (-1.0, -9.0), (1.0, inf), (1e-300, 1e300))
    },
    **{
        f"isclose of {x.dtype}": (lambda x, y: np.isclose(x, y, atol=2), (x, x[::-1].copy()))
        for x in (np.array([0, 1, 3, 255], np.uint8), np.array([True, False]), np.array([2**62, 2**62 + 1]))
    },
    "allclose of masks": (lambda x, y: np.allclose(x, y), (LINE > 1, LINE > 1)),
    "mean in integers": (lambda x: np.mean(x, axis=0, dtype=int), (X * 9,)),
    "median along no axis": (lambda x: np.median(x, axis=()), (X,)),
    "medians along no axis": (lambda x: np.median(x, axis=(), keepdims=True), (X.astype(np.float32),)),
    "rank of nothing": (lambda x: np.linalg.matrix_rank(x), (np.zeros((0, 3)),)),
    "ranks of nothing": (lambda x: np.linalg.matrix_rank(x, hermitian=True), (np.zeros((2, 0, 0)),)),
    "positions that are known": (lambda x: np.bincount([0, 1, 1, 3, 0, 2], weights=x), (LINE,)),
    "more positions than minlength": (lambda x: np.bincount([0, 1, 1, 3, 0, 2], weights=x, minlength=2), (LINE,)),
    "no position": (lambda x: np.bincount(np.zeros(0, int), minlength=3) + x[:3], (LINE,)),
    **{
        f"roll by {shift!r} along {axis}": (lambda x, n, axis=axis: np.roll(x, n, axis), (X, shift))
        for shift, axis in ((1, None), (-5, None), (4, 1), (np.uint8(3), 0), (np.array([1, 2]), (0, 1)), (2, (1, 1, 0)))
    },
    "roll by one that is traced": (lambda x, n: np.roll(x, (n, 1), (0, 1)), (X, 1)),
    "roll of nothing": (lambda x, n: np.roll(x, n, 1), (X[:, :0], 1)),
    "values with more axes": (lambda x: np.insert(x, [1, 2], [[7.0, 8.0]]), (LINE,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_and_dtypes_are_numpys(name: str) -> None:
    fn, arrays = CALLS[name]
    expected = fn(*arrays)
    compiled = jg.compile(fn)
    for found in (compiled(*arrays), compiled.interpret(*arrays)):
        for ours, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
            assert (np.shape(ours), np.asarray(ours).dtype) == (np.shape(theirs), np.asarray(theirs).dtype)
            tolerance = 1e-5 if np.asarray(theirs).dtype.itemsize < 8 else 1e-11
            np.testing.assert_allclose(ours, theirs, tolerance, 1e-14)


REGULAR = np.array([[2.0, 0.5], [-0.3, 1.0]])


@pytest.mark.parametrize(
    ("fn", "arrays"),
    [
        *((lambda x, p=p: np.linalg.cond(x, p), (REGULAR,)) for p in (None, -2, *ORDERS)),
        (lambda x: np.linalg.cond(np.concatenate([x[None], MATRICES]), "fro")[0], (REGULAR,)),
        (lambda x: np.cov(x, ddof=2), (X,)),
        (lambda x: np.cov(x, fweights=[1, 2, 1], ddof=0), (X,)),
        (lambda x, y: np.geomspace(x, y, 4), (np.array(-0.5), np.array(-9.0))),
        (lambda x, y: np.geomspace(x, y, 5, endpoint=False), (np.array(0.5), np.array([2.0, 7.0]))),
        (lambda x: np.insert(x, [0, 6, -2], 2.0 * x[1:4]), (LINE,)),
        (lambda x: np.bincount([0, 1, 1, 3, 0, 2], weights=x), (LINE,)),
        (lambda x, n: np.roll(x, n), (X, np.array(2))),
        (lambda x: np.histogram(LINE, floats(0, 1, 2.5), weights=x)[0], (LINE,)),
        (lambda x: jitgrad.scipy.linalg.solve_triangular(np.stack([x, x + np.eye(2)]), x, lower=True), (REGULAR,)),
    ],
)
def test_gradients_are_those_of_numerical_derivatives(fn: Callable[..., Any], arrays: tuple[Array, ...]) -> None:
    check_gradients(fn, *arrays)


@pytest.mark.parametrize("p", [None, *ORDERS])
def test_a_regular_matrix_among_singular_ones_keeps_its_gradient(p: Any) -> None:
    def total(x: Any) -> Any:
        conditions = np.linalg.cond(x, p)
        return np.sum(np.where(np.isfinite(conditions), conditions, 0.0))

    found = jg.grad(total)(np.stack([np.zeros((2, 2)), REGULAR]))
    np.testing.assert_allclose(found[1], jg.grad(lambda x: np.linalg.cond(x, p))(REGULAR), rtol=1e-12)
    np.testing.assert_array_equal(found[0], 0)


@pytest.mark.parametrize("positions", [[0, -1, 2], [0, 5, 2]])
def test_values_that_have_no_bin_are_refused(positions: list[int]) -> None:
    """A negative value counts in no bin, not from the end; one beyond minlength would make NumPy's result longer."""
    with pytest.raises(IndexError, match="a position is out of bounds"):
        jg.compile(lambda i, w: np.bincount(i, w, minlength=4))(np.array(positions), np.ones(3))


def test_nothing_has_gradients_of_zeros() -> None:
    """Arrays without elements: the gradient has their shape, and what solves no equations does not depend on them."""
    a, b = np.zeros((0, 3)), np.zeros((0, 2))
    for fn in (lambda a, b: np.sum(np.linalg.lstsq(a, b)[0]), lambda a, b: np.sum(np.median(a, axis=1)) + np.sum(b)):
        assert [g.shape for g in jg.grad(fn, (0, 1))(a, b)] == [a.shape, b.shape]


def _spoiled(lower: bool, where: str, number: float, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """A triangle with one entry that is no finite number, and right sides of which some are 0."""
    a, b = rng.normal(size=(*shape, shape[-1])) + 3 * np.eye(shape[-1]), rng.normal(size=(*shape, 2))
    row, column = (1, 0) if lower else (0, 1)
    b[..., 0, 1] = 0.0
    if where == "right side":
        b[..., row, 0] = number
    else:
        a[(..., *{"triangle": (row, column), "diagonal": (-1, -1), "other": (column, row)}[where])] = number
    return a, b


@pytest.mark.parametrize("shape", [(2,), (5,), (3, 2), (3, 5), (2, 7)], ids=str)
@pytest.mark.parametrize("number", [nan, inf])
@pytest.mark.parametrize("where", ["triangle", "diagonal", "other", "right side"])
@pytest.mark.parametrize("lower", [False, True])
def test_what_is_no_number_stays_in_the_rows_that_depend_on_it(
    lower: bool, where: str, number: float, shape: tuple[int, ...]
) -> None:
    """A triangle is solved by substitution, compiled and interpreted; both give what SciPy gives."""
    a, b = _spoiled(lower, where, number, shape)
    compiled = jg.compile(lambda a, b: jitgrad.scipy.linalg.solve_triangular(a, b, lower=lower))
    each = [
        scipy.linalg.solve_triangular(matrix, right, lower=lower, check_finite=False)
        for matrix, right in zip(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), strict=True)
    ]
    for found in (compiled(a, b), compiled.interpret(a, b)):
        np.testing.assert_allclose(found, np.reshape(each, b.shape), rtol=1e-12)


def test_nothing_read_of_what_is_made_of_nothing() -> None:
    def f(x: Array) -> Array:
        y = np.zeros_like(x)
        y[3:3] = 2.0
        return y[-3:4:-3]

    assert jg.compile(f)(np.ones(5)).shape == (0,)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 0), (2, 0), (0, 2)])
def test_extremes_along_nothing_begin_with_what_is_given(name: str, shape: tuple[int, ...]) -> None:
    def f(x: Array) -> Array:
        return getattr(np, name)(x, axis=0, initial=0.25)  # type: ignore[no-any-return]

    x, compiled = np.zeros(shape), jg.compile(f)
    for found in (compiled(x), compiled.interpret(x)):
        np.testing.assert_array_equal(found, f(x), strict=True)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_extremes_along_nothing_are_refused_where_there_are_no_results_too(name: str) -> None:
    with pytest.raises(ValueError):
        getattr(np, name)(np.zeros((0, 0)), axis=0)
    with pytest.raises(jg.ShapeError, match="of no elements has no value"):
        jg.compile(lambda x: getattr(np, name)(x, axis=0))(np.zeros((0, 0)))


def test_a_cheap_value_runs_along_the_axes_of_what_its_kernel_makes() -> None:
    """where(v > 0, v, 0) is made by each reader, of v, which a kernel over two axes makes; not by one over the first
    and the third.
    """

    def f(x: Array, a: Array) -> Any:
        v = x * 2 + 1
        w = np.where(v > 0, v, 0.0)
        around = np.pad(v, [(1, 1), (1, 1)], mode="wrap")
        return np.sum(np.sin(around)), np.sum(w[:, None, :] * a, axis=2), np.sum(np.sin(x + x.T)), np.sum(np.sin(a + w))

    x, a = np.cos(np.arange(16.0)).reshape(4, 4), np.sin(np.arange(64.0)).reshape(4, 4, 4)
    compiled = jg.compile(f)
    for found, wanted in zip(compiled(x, a), compiled.interpret(x, a), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_one_place_of_a_cheap_value_is_not_read_beside_the_loop_that_makes_what_it_is_of() -> None:
    def f(x: Array) -> Any:
        v = x * 2 + 1
        w = np.sum(v, axis=-2, keepdims=True, where=v > 0)
        p = np.insert(np.pad(v, [(1, 1), (0, 1), (1, 1), (2, 1)], mode="mean"), 1, 0.5, axis=2)
        return np.sum(np.sin(np.max(w.T - w[..., :1].T, axis=0))) + np.sum(np.sin(p))

    compiled = jg.compile(jg.value_and_grad(f))
    x = np.sin(np.arange(100.0)).reshape(1, 1, 1, 100)
    for found, wanted in zip(compiled(x), compiled.interpret(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(0,), (1, 0), (3, 0), (0, 3), (0, 1)])
def test_nothing_is_partitioned_around_any_place(shape: tuple[int, ...]) -> None:
    def f(x: Array) -> Any:
        return np.partition(x, 5, axis=0), np.argpartition(x, [2, -7]), np.partition(x, 3, axis=None)

    x, compiled = np.zeros(shape), jg.compile(f)
    for found in (compiled(x), compiled.interpret(x)):
        for got, wanted in zip(found, f(x), strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("shape", [(1, 0), (1, 0, 3), (2, 1, 0)])
def test_rows_of_nothing_are_assigned_by_several_positions(shape: tuple[int, ...]) -> None:
    """Rows of all positions are put side by side: how many they are does not follow from their number of elements."""
    places = np.zeros((2, 3), dtype=int)

    def f(x: Array) -> Array:
        y = x.copy()
        y[places] += np.cos(x)[places]
        y[:, places[:, :0]] = 1.0
        return y

    x, compiled = np.zeros(shape), jg.compile(f)
    for found in (compiled(x), compiled.interpret(x)):
        np.testing.assert_array_equal(found, f(x), strict=True)
