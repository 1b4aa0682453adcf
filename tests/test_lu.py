"""LU factors of our own, and what is asked of them, as steps of a cluster: results, errors and new shapes as with the
interpreter, the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import lapack
from jitgrad.compiler import lu
from jitgrad.testing import check_gradients
from tests.processors import needs_registers

Array = np.ndarray[Any, np.dtype[Any]]


SIZES = (1, 2, 7, 8, 9, 33, 40, 64, 100, 131)


def matrix(n: int, dtype: str = "f8") -> Array:
    """One whose factorization exchanges rows."""
    a = np.random.default_rng(n).standard_normal((n, n)) + 3 * np.eye(n)[::-1]
    return a.astype(dtype)


def whole(factors: Array, exchanged: Array) -> Array:
    """The matrix of which there are factors, in extended precision."""
    both = factors.T.astype(np.longdouble)
    lower, upper = np.tril(both, -1) + np.eye(len(factors)), np.triu(both)
    made: Array = lower @ upper
    for i, row in reversed(list(enumerate(exchanged - 1))):
        made[[i, row]] = made[[row, i]]
    return made


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("n", SIZES)
def test_factors_are_those_of_lapack(n: int) -> None:
    a = matrix(n)
    factors, exchanged = lu.factor(a)
    wanted, rows = lapack._library_factor(a)
    np.testing.assert_array_equal(exchanged, rows)
    np.testing.assert_allclose(factors, wanted, 1e-9, 1e-12)
    np.testing.assert_allclose(whole(factors, exchanged).astype("f8"), a, 1e-12, 1e-12)
    assert exchanged.dtype == np.int64 and np.max(np.abs(np.triu(factors, 1)), initial=0) <= 1


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("condition", [1e2, 1e8])
@pytest.mark.parametrize("n", [33, 64, 100])
def test_the_product_of_factors_is_as_near_as_lapacks(n: int, condition: float) -> None:
    rng = np.random.default_rng(n)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    a = left * np.geomspace(1, 1 / condition, n) @ right
    errors = [
        np.linalg.norm((whole(*found) - a).astype(np.float64)) for found in (lu.factor(a), lapack._library_factor(a))
    ]
    assert errors[0] <= 1.5 * errors[1]


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("size", [1.0, 1e-320, 1e300])
def test_the_first_of_equal_elements_is_the_pivot_whatever_its_size(size: float) -> None:
    n = 40
    a = size * np.where(np.tri(n) > 0, 1.0, -1.0)
    factors, exchanged = lu.factor(a)
    np.testing.assert_array_equal(exchanged, np.arange(1, n + 1))
    np.testing.assert_array_equal(np.triu(factors, 1), np.triu(np.ones((n, n)), 1))


@needs_registers
@pytest.mark.quick
def test_a_column_of_zeros_is_left_alone() -> None:
    for empty in (0, 11, 39):
        a = matrix(40)
        a[:, empty] = 0
        factors, exchanged = lu.factor(a)
        assert factors[empty, empty] == 0 and np.isfinite(factors).all()
        np.testing.assert_allclose(whole(factors, exchanged).astype("f8"), a, 1e-12, 1e-12)


@pytest.mark.quick
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (20, 3), (39, 39)])
def test_no_solution_is_finite_where_numpys_is_not(value: float, place: tuple[int, int]) -> None:
    a, b = matrix(40), np.ones(40)
    a[place] = value
    solved = jg.compile(np.linalg.solve)(a, b)
    assert (np.isfinite(solved) <= np.isfinite(np.linalg.solve(a, b))).all()
    sign, logarithm = jg.compile(np.linalg.slogdet)(a)
    assert not np.isfinite(logarithm) or np.isnan(sign)
    b[7] = value
    assert not np.isfinite(jg.compile(np.linalg.solve)(matrix(40), b)).any()


def solved(a: Any, b: Any) -> Any:
    return np.sum(np.sin(np.linalg.solve(a, b)))


def solved_turned(a: Any, b: Any) -> Any:
    return np.sum(np.sin(np.linalg.solve(a.T, b)))


def inverse(a: Any, b: Any) -> Any:
    return np.sum(np.sin(np.linalg.inv(a) @ b))


def inverse_turned(a: Any, b: Any) -> Any:
    return np.sum(np.sin(np.linalg.inv(a.T) @ b) * b)


def density(a: Any, b: Any) -> Any:
    sign, logarithm = np.linalg.slogdet(a)
    return sign * logarithm + np.sum(b * np.linalg.solve(a, b))


def determinant(a: Any, b: Any) -> Any:
    return np.linalg.det(a / len(a)) + np.sum(b * b)


QUESTIONS = (solved, solved_turned, inverse, inverse_turned, density, determinant)


def compare(f: Any, *args: Any, rtol: float = 1e-8) -> None:
    (value, slopes), (expected, wanted) = f(*args), f.interpret(*args)
    np.testing.assert_allclose(value, expected, rtol)
    for got, want in zip(slopes, wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol, rtol * np.max(np.abs(want), initial=0))


def sides(n: int, k: int, dtype: str = "f8") -> Array:
    return np.random.default_rng(k).standard_normal((n, k)[: 1 + (k > 0)]).astype(dtype)


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("ask", QUESTIONS)
@pytest.mark.parametrize("k", [0, 1, 2, 33, 70])
def test_a_question_with_its_gradient_is_one_native_call(ask: Callable[..., Any], k: int) -> None:
    """Of a vector, and of any number of columns."""
    f = jg.compile(jg.value_and_grad(ask, (0, 1)))
    for n in (33, 65):
        compare(f, matrix(n), sides(n, k))
    explained = f.explain(matrix(65), sides(65, k))
    assert "interpreted" not in explained.clusters and explained.clusters.count("cluster ") == 1
    assert explained.fusion.count(" (lu): ") == 1


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("ask", QUESTIONS)
def test_float32_is_computed_in_double_precision(ask: Callable[..., Any]) -> None:
    a, b = matrix(40, "f4") + 20 * np.eye(40, dtype="f4"), sides(40, 3, "f4")
    f = jg.compile(jg.value_and_grad(ask, (0, 1)))
    compare(f, a, b, rtol=1e-5)
    assert "interpreted" not in f.explain(a, b).clusters
    np.testing.assert_allclose(f(a, b)[0], ask(a.astype("f8"), b.astype("f8")), 1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("ask", QUESTIONS)
def test_views(ask: Callable[..., Any]) -> None:
    """What is not contiguous, and cut in the function."""
    a, b = matrix(80), sides(80, 4)
    f = jg.compile(jg.value_and_grad(ask, (0, 1)))
    compare(f, a[::2, ::2], b[::2, ::-1])
    compare(jg.compile(jg.value_and_grad(lambda a, b: ask(a[1:41, 3:43] * 2, b[5:45, ::-1]), (0, 1))), a, b)


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("many", [0, 1, 3])
def test_stacks(many: int) -> None:
    """One matrix in a stack is a step, several are asked one by one, from Python."""
    a = np.array([matrix(40) + k * np.eye(40) for k in range(many)]).reshape(many, 40, 40)
    b = np.ones((many, 40, 2))
    asked = (
        lambda a, b: np.sum(np.sin(np.linalg.solve(a, b))),
        lambda a, b: np.sum(np.sin(np.linalg.inv(a) @ b)),
        lambda a, b: np.sum(np.linalg.slogdet(a)[1]) + np.sum(b * b),
        lambda a, b: np.sum(np.linalg.det(a / 20)) + np.sum(b * b),
    )
    for ask in asked:
        f = jg.compile(jg.value_and_grad(ask, (0, 1)))
        compare(f, a, b)
        assert ("(lu)" in f.explain(a, b).fusion) == (many == 1)


@pytest.mark.quick
@pytest.mark.parametrize("ask", QUESTIONS)
def test_gradients_of_second_order(ask: Callable[..., Any]) -> None:
    a, b = matrix(34) + 8 * np.eye(34), sides(34, 2)
    f = jg.compile(lambda a, b, v: jg.hvp(ask, (a, b), (v, b)))
    made, wanted = f(a, b, matrix(34)), f.interpret(a, b, matrix(34))
    for got, want in zip(made, wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-7, 1e-9)


@pytest.mark.quick
def test_gradients_are_differences() -> None:
    a, b = matrix(33) + 20 * np.eye(33), sides(33, 2)
    outer = np.outer(b[:, 0], b[:, 1])
    check_gradients(lambda t: density(a + t[0] * outer + t[1] * np.eye(33), b), np.array([0.1, 0.2]))


@pytest.mark.quick
@pytest.mark.parametrize("ask", QUESTIONS)
def test_bits_do_not_depend_on_threads(ask: Callable[..., Any]) -> None:
    f, args = jg.compile(jg.value_and_grad(ask, (0, 1))), (matrix(131), sides(131, 70))
    made = set()
    for threads in (1, 2, 3):
        with jg.config(num_threads=threads):
            for _ in range(5):
                value, slopes = f(*args)
                made.add((value.tobytes(), *(slope.tobytes() for slope in slopes)))
    assert len(made) == 1


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("k", [0, 5])
def test_other_extents_take_steps_where_these_fit(k: int) -> None:
    """What the stages make of one size serves for others on the same side of the limits only; all is compared with what
    the stages make anew.
    """
    f = jg.compile(jg.value_and_grad(density, (0, 1)))
    with jg.config(verify=True):
        for n in (70, 90, 33, 31, 100, 65, 20):
            compare(f, matrix(n), sides(n, k))
            assert ("(lu)" in f.explain(matrix(n), sides(n, k)).fusion) == (n > 32)


@pytest.mark.quick
@pytest.mark.parametrize(("ask", "call"), [(solved, "solve"), (inverse, "inv"), (solved_turned, "solve")])
@pytest.mark.parametrize("k", [0, 5])
def test_a_singular_matrix_tells_the_line(ask: Callable[..., Any], call: str, k: int) -> None:
    f = jg.compile(ask)
    for a in (np.zeros((40, 40)), np.ones((40, 40)), np.diag(np.arange(40.0))):
        for run in (f, f.interpret):
            with pytest.raises(np.linalg.LinAlgError, match=rf"Singular matrix\n(.*\n)*.*{call}.*(.*\n)*.*test_lu"):
                run(a, sides(40, k))
    np.testing.assert_allclose(f(np.eye(40), sides(40, k)), ask(np.eye(40), sides(40, k)))


@pytest.mark.quick
def test_determinants_of_singular_and_of_huge_matrices() -> None:
    n = 50
    zero, huge, odd = np.ones((n, n)), 1e10 * np.eye(n), np.eye(n)[[1, 0, *range(2, n)]]
    for dtype in ("f8", "f4"):
        for a in (zero, huge, -huge[:49, :49], 1e-10 * odd, odd):
            for f in (np.linalg.det, np.linalg.slogdet):
                with np.errstate(over="ignore"):
                    got, want = jg.compile(f)(a.astype(dtype)), f(a.astype(dtype))
                np.testing.assert_allclose(got, want, 1e-6)
                assert np.asarray(got[0] if f is np.linalg.slogdet else got).dtype == dtype


@pytest.mark.quick
def test_what_is_asked_from_python_is_our_own_for_stacks() -> None:
    a = np.stack([matrix(90), matrix(90).T])
    for b in (sides(90, 1), sides(90, 3), sides(90, 70)):
        for one, x in zip(a, lapack.solve(a, np.stack([b, b])), strict=True):
            np.testing.assert_allclose(one @ x, b, 1e-9, 1e-9)
    np.testing.assert_allclose(lapack.inv(a) @ a, np.broadcast_to(np.eye(90), a.shape), 1e-9, 1e-9)
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        lapack.inv(np.ones((90, 90)))
