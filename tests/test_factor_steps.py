"""Factors of matrices, their gradients and triangular systems as steps of a cluster: results, errors and new shapes as
with the interpreter, the same bits for any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from benchmarks.workloads.gaussian_process import loss
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.products.cholesky_steps import BLOCK
from jitgrad.scipy.linalg import cho_solve, solve_triangular
from tests.processors import needs_registers

Array = np.ndarray[Any, np.dtype[Any]]


SIZES = (0, 1, 32, 33, 34, 79, 80, 131, 300)


def points(n: int, dtype: str = "f8") -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(n)
    arrays = np.array([0.1, 0.2, -1.0]), rng.standard_normal((n, 3)), rng.standard_normal(n)
    return arrays[0].astype(dtype), arrays[1].astype(dtype), arrays[2].astype(dtype)


def positive(n: int) -> Array:
    x = np.random.default_rng(n).standard_normal((n, n))
    made: Array = x @ x.T + n * np.eye(n)
    return made


def compare(f: Any, *args: Any, rtol: float = 1e-9) -> None:
    (value, slopes), (expected, wanted) = f(*args), f.interpret(*args)
    np.testing.assert_allclose(value, expected, rtol)
    for got, want in zip(slopes, wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol, rtol * np.max(np.abs(want), initial=0))


@needs_registers
@pytest.mark.quick
def test_a_function_is_one_native_call() -> None:
    f = jg.compile(jg.value_and_grad(loss))
    explained = f.explain(*points(90))
    assert "reason" not in explained.clusters and explained.clusters.count("\ncluster") == 1
    fusion = explained.fusion
    assert "4 factors" in fusion
    for routine in ("cholesky", "solve_triangular", "solve_turned", "cholesky_cotangent"):
        assert fusion.count(f" ({routine}): ") == 1


@pytest.mark.quick
@pytest.mark.parametrize("n", SIZES)
def test_sizes_around_those_of_steps(n: int) -> None:
    compare(jg.compile(jg.value_and_grad(loss, (0, 1, 2))), *points(n))


def bound(f: Any, *args: Any) -> list[BoundCluster]:
    """The clusters of a function."""
    (stage, given), *_ = f.stages(*args)
    return [step for step in stage.executable(given).bound.steps if isinstance(step, BoundCluster)]


def memories(cluster: BoundCluster, prefix: str) -> list[list[int]]:
    """Of each step with such a name the slots of its own memory, and of that in which a factor leaves its blocks."""
    places = [BLOCK.index("memory_slot"), BLOCK.index("kept_slot")]
    steps = [step for name, step in zip(cluster.names, cluster.steps, strict=True) if name.startswith(prefix)]
    return [cluster.words_at(int(step[1]))[places].tolist() for step in steps if step[3] > 1]


@needs_registers
@pytest.mark.quick
def test_a_gradient_reads_the_blocks_that_its_factor_has_left() -> None:
    (cluster,) = bound(jg.compile(jg.value_and_grad(loss)), *points(90))
    assert not any(name.startswith("fill") for name in cluster.names)
    (factor, kept), (own, read) = memories(cluster, "factor")
    assert factor == kept == read != own


@needs_registers
@pytest.mark.quick
def test_each_gradient_reads_those_of_its_own_factor() -> None:
    def both(a: Any, b: Any) -> Any:
        first, second = np.linalg.cholesky(a), np.linalg.cholesky(b)
        return np.sum(np.sin(first @ second)) + np.sum(np.log(np.diagonal(first)))

    f, args = jg.compile(jg.value_and_grad(both, (0, 1))), (positive(90), positive(91)[:90, :90])
    compare(f, *args)
    (cluster,) = bound(f, *args)
    found = memories(cluster, "factor")
    assert len({kept for _, kept in found}) == 2 and len({own for own, _ in found}) == 4


@pytest.mark.quick
def test_a_gradient_of_a_factor_that_is_given_makes_its_blocks() -> None:
    """Those of a scan are: its gradient is another loop."""

    def scanned(a: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return np.linalg.cholesky(c + x * np.eye(len(a))) + a, None

        return np.sum(np.sin(jg.scan(step, a, np.arange(3.0))[0]))

    compare(jg.compile(jg.value_and_grad(scanned, (0,))), positive(90))


@pytest.mark.quick
def test_float32_is_computed_in_double_precision() -> None:
    compare(jg.compile(jg.value_and_grad(loss, (0, 1, 2))), *points(100, "f4"), rtol=2e-3)


@needs_registers
@pytest.mark.quick
def test_bits_do_not_depend_on_threads() -> None:
    f, args = jg.compile(jg.value_and_grad(loss, (0, 1, 2))), points(300)
    made = set()
    for threads in (1, 2, 3, 7):
        with jg.config(num_threads=threads):
            for _ in range(20):
                value, slopes = f(*args)
                made.add((value.tobytes(), *(slope.tobytes() for slope in slopes)))
    assert len(made) == 1


@needs_registers
@pytest.mark.quick
def test_other_extents_take_steps_where_these_fit() -> None:
    """What the stages make of one size serves for others on the same side of the limits only; all is compared with what
    the stages make anew.
    """
    f = jg.compile(jg.value_and_grad(loss))
    with jg.config(verify=True):
        for n in (20, 70, 33, 100, 32, 31, 120):
            compare(f, *points(n))
            assert (" (cholesky): " in f.explain(*points(n)).fusion) == (n > 32)


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize(("n", "columns"), [(33, 2), (20, 40), (64, 64), (131, 70)])
def test_a_triangle_with_several_right_sides_is_a_step(n: int, columns: int, trans: int, lower: bool) -> None:
    """As is its gradient; one triangle is read, and bits do not depend on threads."""

    def solved(a: Any, b: Any) -> Any:
        return np.sum(np.sin(9 * solve_triangular(a * 2.0, b, trans, lower=lower)))

    f = jg.compile(jg.value_and_grad(solved, (0, 1)))
    a, b = positive(n), np.random.default_rng(n).standard_normal((n, columns))
    a[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
    compare(f, a, b)
    explained = f.explain(a, b)
    assert "interpreted %" not in explained.clusters.split("cluster 0")[1] and "2 factors" in explained.fusion
    made = set()
    for threads in (1, 2, 3):
        with jg.config(num_threads=threads):
            made.add(b"".join(x.tobytes() for x in f(a, b)[1]))
    assert len(made) == 1
    with pytest.raises(np.linalg.LinAlgError, match=r"Singular matrix\n(.*\n)?.*solve_t\w*\(.*test_factor"):
        f(a * (np.arange(n) != n // 2), b)


@pytest.mark.quick
def test_a_matrix_that_is_not_positive_definite_tells_the_line() -> None:
    f = jg.compile(lambda a: 2 * np.linalg.cholesky(a * 1.0))
    for ask in (f, f.interpret):
        with pytest.raises(np.linalg.LinAlgError, match=r"Matrix is not positive definite\n.*cholesky\(.*test_factor"):
            ask(-np.eye(100))
    np.testing.assert_array_equal(f(4 * np.eye(100)), 4 * np.eye(100))


@pytest.mark.quick
@pytest.mark.parametrize("lower", [False, True])
def test_a_zero_on_a_diagonal_tells_the_line(lower: bool) -> None:
    f = jg.compile(lambda a, b: 2 * solve_triangular(a, b, lower=lower))
    for place in (0, 50, 99):
        a = np.ones((100, 100))
        a[place, place] = 0
        for ask in (f, f.interpret):
            with pytest.raises(np.linalg.LinAlgError, match=r"Singular matrix\n.*solve_triangular\(.*test_factor"):
                ask(a, np.ones(100))
    np.testing.assert_array_equal(f(4 * np.eye(100), np.ones(100)), np.full(100, 0.5))


@pytest.mark.quick
def test_the_first_failure_is_told() -> None:
    def both(a: Any, t: Any, b: Any) -> Any:
        return np.linalg.cholesky(a), solve_triangular(t, b, lower=True)

    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        jg.compile(both)(-np.eye(100), np.zeros((100, 100)), np.ones(100))


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("shape", [(2, 90, 90), (1, 90, 90), (0, 90, 90)], ids=str)
def test_stacks(shape: tuple[int, ...]) -> None:
    f = jg.compile(jg.value_and_grad(lambda a: (np.sum(np.sin(np.linalg.cholesky(a)))), (0,)))
    a = np.zeros(shape) + positive(90)
    compare(f, a)
    assert ("is a step only for one float64 matrix" in f.explain(a).clusters) == (shape[0] != 1)


@needs_registers
@pytest.mark.quick
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("n", [32, 33, 39, 40, 41, 97])
def test_triangles(n: int, lower: bool) -> None:
    """With a matrix, and by the gradient its transpose; the other triangle is not read."""
    a = positive(n)
    a[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
    f = jg.compile(jg.value_and_grad(lambda a, b: np.sum(np.sin(solve_triangular(a, b, lower=lower))), (0, 1)))
    compare(f, a, a[:, 0] * 0 + 1.5 if lower else np.full(n, 1.5))
    assert "2 factors" in f.explain(a, np.ones(n)).fusion


@pytest.mark.quick
def test_a_hessian() -> None:
    f, args = jg.compile(jg.hessian(loss)), points(90)
    got, want = f(*args), f.interpret(*args)
    np.testing.assert_allclose(got, want, 1e-8, 1e-8 * np.max(np.abs(want)))


@needs_registers
@pytest.mark.quick
def test_in_a_loop() -> None:
    def scanned(a: Any, b: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            factor = np.linalg.cholesky(a + np.outer(c, c))
            return cho_solve((factor, True), c) + b, np.sum(np.log(np.diagonal(factor)))

        last, logarithms = jg.scan(step, b, np.arange(3.0))
        return np.sum(last) + np.sum(logarithms)

    f = jg.compile(jg.value_and_grad(scanned, (0, 1)))
    a, b = positive(90), np.random.default_rng(1).standard_normal(90)
    compare(f, a, b)
    assert "reason" not in f.explain(a, b).clusters
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        f(-a, b)


@needs_registers
@pytest.mark.quick
def test_a_profile_names_factors() -> None:
    f, args = jg.compile(jg.grad(loss)), points(90)
    f(*args)
    with jg.profile() as profile:
        f(*args)
    found = {event.name: event for event in profile.events}
    assert found["cholesky 90×90"].flops == 90**3 // 3
    assert found["cholesky_cotangent 90×90"].nbytes_written == 8 * 90**2
    assert not any(event.kind == "numpy" for event in profile.events)
