"""Batches of small matrices: kernels with a matrix per lane against the interpreter, and what they fuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitgrad as jg
from jitgrad.compiler.loopir.routines import python_routines
from jitgrad.executable import make_executable
from jitgrad.gradients import gradients
from jitgrad.graph import Graph
from jitgrad.interpreter import interpret
from jitgrad.operators import functions
from jitgrad.program import Program, slice_graph
from jitgrad.scopes import jit_scope
from tests.oracles import python_results
from tests.processors import needs_registers

Array = npt.NDArray[Any]


def _program(f: Any, arrays: list[Array]) -> Program:
    with Graph().as_default(), jit_scope():
        xs = [functions["placeholder"](a.dtype, a.shape) for a in arrays]
        y = f(*xs)
        return slice_graph([y, *(g for g in gradients(np.sum(y), xs) if g is not None)], {x: x.spec for x in xs})


def _normal(*shapes: tuple[int, ...], dtype: Any = np.float64) -> list[Array]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def _turned(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _chain(a: Any, b: Any, c: Any) -> Any:
    return (a @ b @ c) ** 2


def _sorted(a: Any) -> Any:
    """A matrix, and matrices as many as it has rows."""
    rows = np.sort(a, axis=0)
    products = rows[:, :, None] * a[:, None, :]
    return rows.T @ np.transpose(products, (1, 0, 2))


_cases: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "chain": (_chain, [(37, 4, 4), (37, 4, 4), (37, 4, 4)]),
    "unequal extents": (_chain, [(19, 2, 5), (19, 5, 3), (19, 3, 7)]),
    "several columns at once": (_chain, [(17, 9, 10), (17, 10, 12), (17, 12, 11)]),
    "extents of one": (_chain, [(18, 1, 3), (18, 3, 1), (18, 1, 4)]),
    "fewer matrices than lanes": (_chain, [(3, 4, 2), (3, 2, 3), (3, 3, 4)]),
    "two axes of matrices": (_chain, [(3, 7, 4, 4), (3, 7, 4, 2), (3, 7, 2, 4)]),
    "an axis of one matrix": (_chain, [(1, 21, 4, 4), (1, 21, 4, 2), (1, 21, 2, 4)]),
    "one factor for all": (lambda a, b: np.tanh(a @ b), [(40, 4, 3), (3, 5)]),
    "a broadcast factor": (lambda a, b: np.tanh(a @ b), [(5, 8, 4, 3), (8, 3, 5)]),
    "transposed": (lambda a, b: _turned(a) @ _turned(b), [(33, 4, 3), (33, 5, 4)]),
    "symmetric": (lambda a: a @ _turned(a) + np.eye(4), [(33, 4, 4)]),
    "slices of matrices": (lambda a, b: a[:, 1:, :2] @ b[:, ::-1, :][:, :2], [(20, 4, 4), (20, 3, 5)]),
    "slices of the batch": (lambda a, b: a[1:] @ b[:-1], [(20, 3, 3), (20, 3, 3)]),
    "one matrix for all": (lambda a: np.exp(a)[-1] @ _turned(np.exp(a)), [(20, 4, 4)]),
    "one product for all": (lambda a: (a @ a)[1] @ (a @ a), [(20, 4, 4)]),
    "one beside each": (lambda a: np.tanh((a @ a)[1] + a @ a) @ a, [(20, 4, 4)]),
    "an element of one for all": (lambda a: (np.exp(a)[-1, 0][:, None] * np.exp(a)) @ a, [(300, 3, 3)]),
    "one in routines": (lambda a: np.linalg.inv(np.exp(a)[-1] + np.exp(a) + 9 * np.eye(4)), [(20, 4, 4)]),
    "outer products of rows": (lambda a: a @ (np.sin(a)[:, :, None] * np.sin(a)[:, None, :]), [(4, 4)]),
    "one whose rows count the others": (_sorted, [(4, 4)]),
    "matrices last": (lambda a, b: np.moveaxis(a * 2, -1, 0) @ b, [(3, 3, 20), (20, 3, 3)]),
    "padded": (lambda a, b: np.pad(a @ b, ((0, 0), (1, 0), (0, 2))) @ np.ones((5, 2)), [(20, 3, 3), (20, 3, 3)]),
    "rows normalised": (lambda a, b: np.exp(a @ b) / np.sum(np.exp(a @ b), axis=-1, keepdims=True),
                        [(20, 3, 4), (20, 4, 6)]),
    "summed over matrices": (lambda a, b: np.tanh(np.sum(a @ b, axis=0)), [(50, 3, 4), (50, 4, 6)]),
    "the largest of all": (lambda a, b: np.max(np.maximum(a @ b, 0)), [(50, 3, 4), (50, 4, 6)]),
    "a row with matrices": (lambda a, b, c: a @ b * c[:, None, None], [(50, 3, 4), (50, 4, 6), (50,)]),
    "elementwise before": (lambda a, b: (np.tanh(a) * 2 + 1) @ np.exp(_turned(b)), [(50, 3, 4), (50, 6, 4)]),
    "compared": (lambda a, b: np.where(a @ b > 0, a @ b, 0.5), [(50, 3, 4), (50, 4, 6)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", _cases)
def test_small_products_equal_the_interpreter(name: str, dtype: Any) -> None:
    f, shapes = _cases[name]
    arrays = _normal(*shapes, dtype=dtype)
    program = _program(f, arrays)
    rtol = 1e-11 if dtype == np.float64 else 1e-4
    expected = interpret(program, arrays)
    for results in (make_executable(program)(arrays), python_results(program, arrays)):
        for ours, theirs in zip(results, expected, strict=True):
            scale = np.abs(theirs).max(initial=1.0)
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * scale)


def test_a_chain_of_products_with_its_gradients_is_one_kernel() -> None:
    program = _program(_chain, _normal((200, 4, 4), (200, 4, 4), (200, 4, 4)))
    assert "1 kernel, 0 matrix products" in make_executable(program).explanation.fusion


def test_what_a_product_reads_is_computed_in_its_kernel() -> None:
    program = _program(lambda a, b: np.tanh(a) @ np.exp(_turned(b)), _normal((50, 3, 4), (50, 6, 4)))
    fusion = make_executable(program).explanation.fusion
    assert "(parallel, a matrix per lane): tanh exp" in fusion


def test_few_large_or_single_matrices_are_left_to_blas() -> None:
    for shapes in [[(40, 17, 4), (40, 4, 4)], [(3, 8, 8), (3, 8, 8)], [(4, 4), (4, 4)]]:
        program = _program(np.matmul, _normal(*shapes))  # type: ignore[arg-type]
        assert "3 matrix products" in make_executable(program).explanation.fusion


def test_nan_and_infinities_stay_in_their_matrix() -> None:
    a, b = _normal((29, 4, 4), (29, 4, 4))
    a[5, 1, 2], a[11, 0, 0] = np.nan, np.inf
    program = _program(lambda x, y: x @ y, [a, b])
    for ours, theirs in zip(make_executable(program)([a, b]), interpret(program, [a, b]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    arrays = _normal((3001, 4, 4), (3001, 4, 4), (3001, 4, 4))
    call = jg.compile(jg.value_and_grad(lambda a, b, c: np.sum(_chain(a, b, c)), argnums=(0, 1, 2)))
    before, found = jg.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            jg.set_num_threads(threads)
            value, slopes = call(*arrays)
            found.append(b"".join(np.asarray(x).tobytes() for x in (value, *slopes)))
    finally:
        jg.set_num_threads(before)
    assert len(set(found)) == 1


def test_another_number_of_matrices_needs_no_compilation() -> None:
    first, second = ([(n, 4, 4)] * 3 for n in (100, 77))
    kernels = [make_executable(_program(_chain, _normal(*shapes))).stats for shapes in (first, second)]
    assert kernels[1].kernels == kernels[0].kernels
    assert kernels[1].compiles == 0


# -- factorizations and solutions -----------------------------------------------------------------------------------


def _positive(a: Any) -> Any:
    return a @ _turned(a) + 0.5 * np.eye(a.shape[-1])


def _density(a: Any, b: Any) -> Any:
    covariance = _positive(a)
    return np.sum(b * np.linalg.solve(covariance, b)) + np.sum(np.linalg.slogdet(covariance)[1])


_routines: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "solve": (np.linalg.solve, [(37, 5, 5), (37, 5, 2)]),
    "solve with one column": (np.linalg.solve, [(37, 4, 4), (37, 4, 1)]),
    "solve transposed": (lambda a, b: np.linalg.solve(_turned(a), b), [(18, 5, 5), (18, 5, 3)]),
    "solve with one matrix for all": (np.linalg.solve, [(3, 3), (20, 3, 2)]),
    "solve of extent one": (np.linalg.solve, [(20, 1, 1), (20, 1, 3)]),
    "solve of sixteen": (np.linalg.solve, [(20, 16, 16), (20, 16, 16)]),
    "inv": (np.linalg.inv, [(37, 5, 5)]),
    "inv on two axes": (np.linalg.inv, [(3, 4, 5, 5)]),
    "det": (np.linalg.det, [(37, 5, 5)]),
    "slogdet": (lambda a: np.linalg.slogdet(a)[0] * np.linalg.slogdet(a)[1], [(37, 5, 5)]),
    "cholesky": (lambda a: np.linalg.cholesky(_positive(a)), [(37, 5, 5)]),
    "upper cholesky": (lambda a: np.linalg.cholesky(_positive(a), upper=True), [(37, 5, 5)]),
    "triangular": (lambda a, b: functions["linalg.solve_triangular"](a + 4 * np.eye(4), b, lower=True),
                   [(20, 4, 4), (20, 4, 3)]),
    "other triangle": (lambda a, b: functions["linalg.solve_triangular"](a + 4 * np.eye(4), b),
                       [(20, 4, 4), (20, 4, 3)]),
    "blocks": (lambda a, b: np.linalg.solve(np.block([[a, b], [b, -a]]), np.concatenate([a, b], 1)),
               [(20, 2, 2), (20, 2, 2)]),
    "a single matrix": (lambda a, b: np.linalg.solve(a, b) * np.linalg.det(a) + 1, [(4, 4), (4, 2)]),
    "a single matrix and a vector": (lambda a, b: np.linalg.inv(_positive(a)) @ b, [(4, 4), (4,)]),
    "a batch of one": (lambda a: np.linalg.cholesky(_positive(a)), [(1, 4, 4)]),
    "a single chain": (lambda a, b: np.sum(np.tanh(np.linalg.solve(np.linalg.inv(a), b)), axis=0), [(4, 4), (4, 2)]),
    "many columns": (np.linalg.solve, [(5, 5), (5, 40)]),
    "many columns, transposed": (lambda a, b: np.linalg.solve(_turned(a), b) @ _turned(b), [(8, 8), (8, 70)]),
    "many columns of a triangle": (lambda a, b: functions["linalg.solve_triangular"](a + 4 * np.eye(4), b, lower=True),
                                   [(4, 4), (4, 33)]),
    "thirty-two": (np.linalg.inv, [(9, 32, 32)]),
    "normal densities": (_density, [(40, 6, 6), (40, 6, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", _routines)
def test_routines_equal_the_interpreter(name: str, dtype: Any) -> None:
    f, shapes = _routines[name]
    arrays = _normal(*shapes, dtype=dtype)
    program = _program(f, arrays)
    executable = make_executable(program)
    rtol = 1e-8 if dtype == np.float64 else 2e-2
    expected = interpret(program, arrays)
    for results in (executable(arrays), python_results(program, arrays)):
        for ours, theirs in zip(results, expected, strict=True):
            scale = np.abs(theirs).max(initial=1.0)
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("columns", [17, 40, 65, 300, 3, 0])
def test_many_columns_with_gradients_are_solved_in_kernels(columns: int) -> None:
    f = jg.compile(jg.value_and_grad(lambda a, b: np.sum(np.linalg.solve(_positive(a), b) ** 2), argnums=(0, 1)))
    a, b = _normal((6, 6), (6, columns))
    for ours, theirs in zip(f(a, b)[1], f.interpret(a, b)[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)
    assert columns == 0 or "not compiled" not in f.explain(a, b).clusters
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        jg.compile(np.linalg.solve)(np.ones((6, 6)), np.ones((6, max(columns, 17))))


def test_densities_with_their_gradients_factor_each_matrix_once_in_one_kernel() -> None:
    explanation = make_executable(_program(_density, _normal((40, 6, 6), (40, 6, 1)))).explanation
    assert explanation.kernels.count(" lu(tile") == 1
    assert explanation.kernels.count("in lanes(") == 1
    assert "0 matrix products" in explanation.fusion


def test_an_exchange_of_rows_differs_from_matrix_to_matrix() -> None:
    orders = np.array([np.random.default_rng(k).permutation(6) for k in range(50)])
    a = np.eye(6)[orders] * np.arange(1.0, 7.0)
    for f in (np.linalg.inv, np.linalg.det, lambda x: np.linalg.solve(_turned(x), x)):
        np.testing.assert_allclose(jg.compile(f)(a), f(a), rtol=1e-12)


@pytest.mark.parametrize("f", [np.linalg.inv, lambda a: np.linalg.solve(a, a), np.linalg.cholesky])
def test_a_singular_matrix_among_many_is_the_interpreters_error(f: Any) -> None:
    a = np.broadcast_to(np.eye(3), (21, 3, 3)).copy()
    call = jg.compile(f)
    np.testing.assert_array_equal(call(a), a)
    a[17] = np.ones((3, 3))
    with pytest.raises(np.linalg.LinAlgError) as theirs:
        f(a)
    with pytest.raises(np.linalg.LinAlgError) as ours:
        call(a)
    with pytest.raises(np.linalg.LinAlgError) as interpreted:
        call.interpret(a)
    assert str(ours.value) == str(interpreted.value)
    lines = str(ours.value).splitlines()
    assert lines[0] == str(theirs.value) and "f64[21,3,3]" in lines[1] and "test_small_matrices.py" in lines[1]
    a[17] = np.eye(3)
    np.testing.assert_array_equal(call(a), a)


def test_determinants_of_singular_and_of_extreme_matrices() -> None:
    a = np.broadcast_to(np.eye(4), (9, 4, 4)).copy()
    a[1] = 0
    a[2] = np.ones((4, 4))
    a[3], a[4] = np.diag([1e200, 1e200, 1e-200, -1e-200]), np.eye(4) * 1e-100
    a[5, 2, 2], a[6, 1, 1], a[7, 0, 0] = np.nan, np.inf, -3
    sign, logarithm = jg.compile(lambda x: tuple(np.linalg.slogdet(x)))(a)
    with np.errstate(all="ignore"):
        expected, product = np.linalg.slogdet(a), np.linalg.det(a)
    np.testing.assert_array_equal(sign, expected.sign)
    np.testing.assert_allclose(logarithm, expected.logabsdet, rtol=1e-12)
    np.testing.assert_allclose(jg.compile(np.linalg.det)(a), product, rtol=1e-11)


def test_nan_in_one_matrix_gives_nan_there_and_no_error() -> None:
    a, b = _normal((20, 4, 4), (20, 4, 2))
    a[7, 2, 1] = np.nan
    solved = jg.compile(np.linalg.solve)(a, b)
    expected = np.linalg.solve(a, b)
    np.testing.assert_array_equal(np.isnan(solved).any(axis=(1, 2)), np.isnan(expected).any(axis=(1, 2)))
    np.testing.assert_allclose(np.delete(solved, 7, 0), np.delete(expected, 7, 0), rtol=1e-9)
    positive = _positive(_normal((20, 4, 4))[0])
    positive[3, 1, 0] = np.nan
    np.testing.assert_array_equal(
        np.isnan(jg.compile(np.linalg.cholesky)(positive)), np.isnan(np.linalg.cholesky(positive))
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_what_is_not_finite_goes_where_it_goes_in_numpy(n: int, value: float) -> None:
    """At each place in turn; of a stack, whose lanes have other pivots, and of matrices that are alone."""
    (a,) = _normal((2, n, n, n, n))
    a[1] += n * np.eye(n)
    for i, j in np.ndindex(n, n):
        a[:, i, j, i, j] = value
    a = a.reshape(-1, n, n)
    b = np.ones((len(a), n, 1))
    with np.errstate(all="ignore"):
        solutions, inverses, determinants = np.linalg.solve(a, b), np.linalg.inv(a), np.linalg.det(a)
    assert np.isfinite(solutions).any(axis=(1, 2)).any()
    solve, inv = jg.compile(np.linalg.solve), jg.compile(np.linalg.inv)
    np.testing.assert_allclose(solve(a, b), solutions, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(inv(a), inverses, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(jg.compile(np.linalg.det)(a), determinants, rtol=1e-8)
    for k in range(len(a)):
        np.testing.assert_allclose(solve(a[k], b[k]), solutions[k], rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(inv(a[k]), inverses[k], rtol=1e-8, atol=1e-9)


def test_factors_of_what_is_not_finite_mean_the_same_in_python() -> None:
    (a,) = _normal((4, 5, 5))
    a[0, 0, 0] = a[1, 3, 0] = np.nan
    a[2, 0, 1], a[3, 2, 2] = np.inf, -np.inf
    program = _program(np.linalg.inv, [a])
    for matrix, expected in zip(a, interpret(program, [a])[0], strict=True):
        factors, pivots, inverse = matrix.ravel().copy(), np.zeros(5, np.int64), np.eye(5).ravel()
        with np.errstate(all="ignore"):
            python_routines()["lu"](factors, pivots, 5)
            python_routines()["lu_solve"](factors, pivots, inverse, 5, 5)
        np.testing.assert_allclose(inverse.reshape(5, 5), expected, rtol=1e-8, atol=1e-9)


@needs_registers
def test_large_matrices_are_left_to_the_library() -> None:
    """In stacks; one alone is a step."""
    for shape in [(20, 33, 33), (7, 33, 33), (40, 40)]:
        explanation = make_executable(_program(np.linalg.inv, _normal(shape))).explanation
        assert ("there are kernels for small matrices only" in explanation.clusters) == (len(shape) == 3)


def _asked(a: Any, b: Any) -> Any:
    """All that kernels do with a matrix, and a right side."""
    solved = np.linalg.solve(a, b) + np.linalg.solve(a.T, b)
    return solved + np.linalg.inv(a) @ b + np.linalg.slogdet(a)[1] + np.linalg.cholesky(a @ a.T)[:, :1]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("columns", [1, 3, 9])
@pytest.mark.parametrize("n", [1, 3, 4, 8, 13, 16, 17, 25, 32])
def test_a_matrix_that_is_alone_has_no_lanes_and_equals_the_interpreter(n: int, columns: int, dtype: Any) -> None:
    a, b = _normal((n, n), (n, columns), dtype=dtype)
    arrays = [(a / 4 + np.eye(n, dtype=dtype)[::-1] * (2 + n)).astype(dtype), b]  # pivots stand in other rows
    program = _program(_asked, arrays)
    executable = make_executable(program)
    assert n == 1 or "in alone(" in executable.explanation.kernels
    assert "not compiled" not in executable.explanation.clusters
    tolerance = 1e-10 if dtype == np.float64 else 2e-4
    for found, expected in zip(executable(arrays), interpret(program, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("n", [17, 25, 32])
def test_a_singular_matrix_that_is_alone_is_an_error_and_a_nan_is_not(n: int) -> None:
    a, b = _normal((n, n), (n, 1))
    executable = make_executable(_program(np.linalg.solve, [a, b]))
    a[:, 5] = 0
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        executable([a, b])
    a[3, 4] = a[:, 5] = np.nan
    assert np.isnan(executable([a, b])[0]).any()
