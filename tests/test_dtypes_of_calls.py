"""Functions whose results have a dtype of their own, or are computed in another than the arguments have: as NumPy's,
compiled and interpreted, or refused where NumPy's would be another number.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import jitgrad as jg
import jitgrad.numpy as jnp

DTYPES = ("?", "i1", "u1", "i2", "u4", "i8", "f2", "f4", "f8")
Fn = Callable[..., Any]


def check(fn: Fn, *args: Any) -> None:
    """Dtypes and shapes are NumPy's, values to rounding in them."""
    expected, f = np.asarray(fn(*args)), jg.compile(fn)
    for found in map(np.asarray, (f(*args), f(*args), f.interpret(*args))):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind not in "fc":
            np.testing.assert_array_equal(found, expected)
        elif expected.size:
            eps, largest = np.finfo(expected.dtype).eps, np.max(np.abs(expected)).astype(np.float64)
            np.testing.assert_allclose(found, expected, rtol=0, atol=float(8 * eps * largest))


# -- points between two ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [x for x in DTYPES if x != "?"])
@pytest.mark.parametrize("end", [3, 2.5, np.uint8(200), np.float32(7)])
def test_points_between_ends_of_any_dtype(dtype: str, end: Any) -> None:
    x = np.array([9, 0, 100]).astype(dtype)  # unsigned integers wrap in their own dtype, and so do small ones
    check(lambda x: np.linspace(x, end, 5), x)
    check(lambda x: np.linspace(end, x, 4, endpoint=False), x)
    check(lambda x: np.linspace(x[2], -x[2] if x.dtype.kind == "i" else x[1], 6), x)


def test_whole_points_are_rounded_down() -> None:
    x = np.array([-3.3, -0.5])
    check(lambda x: np.linspace(x, 1.7, 9, dtype=int), x)
    check(lambda x: np.linspace(x, 1.7, 9, dtype=np.float32), x)


# -- sums of exponentials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_logaddexp_reduce_has_the_dtype_of_the_ufunc(dtype: str) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    check(lambda x: np.logaddexp.reduce(x), x)
    check(lambda x: np.logaddexp.reduce(x, axis=1, keepdims=True), x)
    check(lambda x: np.logaddexp.reduce(x, axis=None, initial=2, where=x > 1), x)
    check(lambda x: np.logaddexp.reduce(x, -1, np.float64), x)
    check(lambda x: np.logaddexp.reduce(x[:, :0], axis=1, initial=1.5), x)


# -- numbers that a dtype cannot hold ---------------------------------------------------------------------------------

TOO_LARGE: dict[str, Fn] = {
    "sum": lambda x: np.sum(x, initial=300, dtype=np.uint8), "prod": lambda x: np.prod(x, initial=-1, dtype=np.uint8),
    "max": lambda x: np.max(x, initial=-1), "array": lambda x: jnp.array([[x[0], 300], [x[1], 0]], dtype=np.uint8),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_numbers_that_a_dtype_cannot_hold(name: str) -> None:
    with pytest.raises(OverflowError, match="out of bounds for uint8"):
        jg.compile(TOO_LARGE[name])(np.array([1, 2], np.uint8))


def test_numbers_that_a_dtype_holds() -> None:
    x = np.array([1, 2], np.uint8)
    check(lambda x: np.sum(x, initial=200, dtype=np.uint8), x)
    check(lambda x: np.sum(x, initial=2.5, dtype=np.uint8), x)
    check(lambda x: np.max(x, initial=True), x)
    found = jg.compile(lambda x: jnp.array([[x[0], 255], [x[1], 2.0]], dtype=np.uint8))(x)
    np.testing.assert_array_equal(found, np.array([[1, 255], [2, 2]], np.uint8), strict=True)


# -- choices, correlations, transforms -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [3, 2.5, np.float64(3), np.array(3, np.int16)])
def test_numbers_among_choices_give_way(dtype: str, number: Any) -> None:
    x = np.array([1, 0, 1, 1]).astype(dtype)
    check(lambda x: np.choose(np.array([0, 1, 1, 0]), [x, number]), x)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_correlation_of_bools_is_of_bools(mode: Any) -> None:
    x = np.array([True, False, True])
    check(lambda x: np.correlate(x, x, mode), x)
    check(lambda x: np.correlate(x[:2], x, mode), x)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 5, 8])
def test_real_transforms_of_half_precision(n: int | None, norm: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float16)
    for transform in (np.fft.irfft, np.fft.hfft):
        for axis in (0, 1):
            check(lambda x, f=transform, axis=axis: f(x, n, axis, norm), x)


# -- numbers added at positions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [2, True, 2.0, np.float32(1), [1.0, 2.0, 3.0], np.array([1, 2, 3], np.int16)])
def test_whole_numbers_are_added_to_integers(values: Any) -> None:
    def added(x: Any) -> Any:
        y = x.copy()
        np.add.at(y, [-1, 0, 0], values)
        np.subtract.at(y, [1, 1, 0], values)
        return y

    check(added, np.array([3, 4, 5]))


@pytest.mark.parametrize("ufunc", [np.add, np.subtract])
def test_fractions_are_not_added_to_integers(ufunc: np.ufunc) -> None:
    """NumPy drops the fraction of each sum: 3 - 0.5 - 0.5 is 1."""

    def changed(x: Any, values: Any) -> Any:
        y = x.copy()
        ufunc.at(y, [-1, 0, 0], values)
        return y

    x = np.array([3, 3, 3])
    for fn in (lambda x: changed(x, 0.5), lambda x: changed(x, [1.0, 2.5, 0.0])):
        with pytest.raises(jg.DTypeError, match=r"(?s)\.at: float64 cannot be stored as int64.*astype"):
            jg.compile(fn)(x)
    with pytest.raises(jg.DTypeError, match=r"cannot be stored as int64"):
        jg.compile(changed)(x, np.ones(3))
    np.testing.assert_array_equal(jg.compile(changed)(x * 1.0, np.ones(3)), changed(x * 1.0, np.ones(3)))


# -- matrices that are none ------------------------------------------------------------------------------------------

MATRIX_FUNCTIONS: dict[str, Fn] = {
    "inv": np.linalg.inv, "det": np.linalg.det, "slogdet": np.linalg.slogdet, "cholesky": np.linalg.cholesky,
    "eigh": np.linalg.eigh, "eigvalsh": np.linalg.eigvalsh, "solve": lambda x: np.linalg.solve(x, x),
    "matrix_power": lambda x: np.linalg.matrix_power(x, 2), "matrix_power 0": lambda x: np.linalg.matrix_power(x, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MATRIX_FUNCTIONS)
@pytest.mark.parametrize("shape", [(2, 3), (3,), (4, 3, 2)])
def test_other_than_square_matrices_are_numpys_error(name: str, shape: tuple[int, ...]) -> None:
    fn = MATRIX_FUNCTIONS[name]
    with pytest.raises(np.linalg.LinAlgError):
        fn(np.ones(shape))
    with pytest.raises(np.linalg.LinAlgError, match="hint:") as caught:
        jg.compile(fn)(np.ones(shape))
    assert isinstance(caught.value, jg.ShapeError)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((), r"x\[None, None\]"), ((3,), r"np\.diag\(x\).*np\.outer\(x, x\)"), ((2, 3), r"x\.T @ x"),
        ((4, 3, 2), r"x\.mT @ x"),
    ],
)
def test_hints_for_what_is_no_square_matrix_make_one(shape: tuple[int, ...], hint: str) -> None:
    for fn in (np.linalg.inv, np.linalg.det, np.linalg.eigvalsh):
        with pytest.raises(np.linalg.LinAlgError, match=f"(?s)square.*hint: .*{hint}"):
            jg.compile(fn)(np.ones(shape))


@pytest.mark.parametrize("fn", [np.linalg.svd, np.linalg.qr, np.linalg.pinv])
def test_a_vector_is_no_matrix(fn: Fn) -> None:
    with pytest.raises(np.linalg.LinAlgError):
        jg.compile(fn)(np.ones(3))


# -- assignments by another name -------------------------------------------------------------------------------------


def test_assignments_by_another_name() -> None:
    def assigned(x: Any) -> Any:
        y = x.copy()
        y.__setitem__(2, x[0])
        operator.setitem(y, 1, x[3])
        return y

    check(assigned, np.arange(4.0))
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        jg.compile(lambda x: x.copy().__setitem__(7, x[0]))(np.arange(4.0))


# -- draws -----------------------------------------------------------------------------------------------------------


def test_a_function_that_seeds_the_generator_is_not_warned_of() -> None:
    def noisy(x: Any) -> Any:
        np.random.seed(3)
        return x + np.random.normal(size=3)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(jg.compile(noisy)(np.ones(3)), noisy(np.ones(3)))


def _drawn(x: Any) -> Any:
    return np.random.normal(size=3) * x


def test_draws_of_a_function_that_the_function_calls() -> None:
    """Both name numpy, and only one of them what draws."""
    with pytest.warns(UserWarning, match=r"draws from numpy\.random"):
        jg.compile(lambda x: np.sum(x) + _drawn(x))(np.ones(3))


# -- counts in explanations ------------------------------------------------------------------------------------------


def test_one_of_a_kind_is_counted_as_one() -> None:
    fusion = jg.compile(np.fft.fft).explain(np.ones(6)).fusion
    assert "cluster 0: 1 kernel, 0 matrix products, 1 Fourier transform\n" in fusion


# -- booleans and half precision -------------------------------------------------------------------------------------


def test_conj_the_method_leaves_booleans() -> None:
    """The function makes int8 of them."""
    for dtype in ("?", "i2", "f4", "c8"):
        x = np.array([1, 0, 2], dtype)
        check(lambda x: x.conj(), x)
        check(lambda x: x.conjugate(), x)
        check(np.conj, x)


def test_bessel_function_of_half_precision() -> None:
    """NumPy's stays in it, SciPy's does not."""
    x = np.array([-0.5, 0.0, 1.5, 9.0])
    for dtype in ("f2", "f4", "f8"):
        check(np.i0, x.astype(dtype))
    for dtype in ("f4", "f8"):
        check(scipy.special.i0, x.astype(dtype))
    assert jg.compile(scipy.special.i0)(x.astype("f2")).dtype == np.float32
    check(lambda x: np.i0(x[1]), x.astype("f2"))
    np.testing.assert_allclose(jg.compile(jg.grad(lambda x: np.sum(np.i0(x))))(x), scipy.special.i1(x))


def test_rounding_of_booleans_and_integers() -> None:
    b = np.array([True, False])
    check(np.round, b)
    check(lambda x: x.round(), b)
    for dtype in ("i1", "u1", "i2", "i8"):
        x = np.array([0, 4, 5, 15, 25, 124, 125]).astype(dtype)
        for decimals in (-3, -2, -1, 0, 2):
            check(lambda x, d=decimals: np.round(x, d), x)
    check(lambda x: np.round(x, -1), np.array([-5, -15, -25]))
    for decimals in (1, -1):
        with pytest.raises(TypeError):
            np.round(b, decimals)
        with pytest.raises(TypeError, match=r"round.*bool"):
            jg.compile(lambda x, d=decimals: np.round(x, d))(b)


@pytest.mark.parametrize("condition", [np.array([0, 1]), np.array([0.0, 1.0]), np.True_ + 0])
def test_select_takes_booleans_only(condition: Any) -> None:
    def chosen(c: Any, x: Any) -> Any:
        return np.select([x > 5, c], [x, -x], 0.5)

    x = np.array([3.0, 7.0])
    for fn in (chosen, lambda c, x: chosen(condition, x)):
        with pytest.raises(TypeError, match="invalid entry 1 in condlist"):
            fn(condition, x)
        with pytest.raises(TypeError, match="invalid entry 1 in condlist"):
            jg.compile(fn)(condition, x)
    check(chosen, condition == 1, x)
    check(lambda x: np.select([True, x > 5], [x, -x]), x)
    check(lambda x: np.select([[True, False], x > 5], [x, -x]), x)


def test_quantiles_between_booleans_are_refused() -> None:
    b = np.array([True, False, True])
    for fn in (np.quantile, np.nanquantile):
        with pytest.raises(TypeError):
            fn(b, 0.3)
        with pytest.raises(TypeError, match=r"quantiles.*bool"):
            jg.compile(lambda x, fn=fn: fn(x, 0.3))(b)
        check(lambda x, fn=fn: fn(x, 0.3, method="lower"), b)
    check(np.median, b)
    check(np.nanmedian, b)


# -- moments in a dtype ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("x", [np.array([[1, 2, 100], [4, 5, 250]]), np.array([[1.5, 2, 100], [4, 5, 250]], "f4")])
def test_moments_in_a_dtype(x: Any, dtype: str, axis: int | None) -> None:
    """Means are of sums in the dtype, which wrap where it is of integers; there are no variances in such."""
    check(lambda x: np.mean(x, axis=axis, dtype=dtype), x)
    for fn in (np.var, np.std):
        if np.dtype(dtype).kind in "fc":
            check(lambda x, fn=fn: fn(x, axis=axis, dtype=dtype, ddof=1), x)
        else:
            with pytest.raises(TypeError, match="variances are no"):
                jg.compile(lambda x, fn=fn: fn(x, axis=axis, dtype=dtype))(x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: x * (s + 0.1),
        lambda x, s: x * (s * 2.5),
        lambda x, s: x + 2.0 * (s > 0.5),
        lambda x, s: x * (s / 2),
        lambda x, s: x * (s + 0.1) ** 2 + s,
    ],
)
@pytest.mark.parametrize("s", [True, False, 1, 0.75, np.True_, np.float64(0.75)])
@pytest.mark.parametrize("dtype", ["f4", "f2", "i2"])
def test_booleans_of_python_give_way_as_its_numbers_do(fn: Fn, s: Any, dtype: str) -> None:
    check(fn, np.arange(3).astype(dtype), s)
