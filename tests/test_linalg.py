"""Linear algebra: gradients of what the table of cases cannot hold, symmetric arguments and functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitgrad as jg
from jitgrad.errors import ShapeError
from jitgrad.gradients import gradients
from jitgrad.graph import Graph
from jitgrad.operators import call
from jitgrad.testing import check_gradients

Array = npt.NDArray[Any]


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def gram(x: Any) -> Any:
    """A symmetric positive definite matrix."""
    return np.matmul(x, np.matrix_transpose(x)) + np.eye(x.shape[-1])


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3)], ids=str)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.linalg.cholesky(gram(x)),
        lambda x: np.linalg.cholesky(gram(x), upper=True),
        lambda x: np.linalg.eigh(gram(x))[0],
        lambda x: np.linalg.eigh(gram(x))[1] ** 2,
        lambda x: np.linalg.eigvalsh(gram(x)),
        lambda x: np.linalg.slogdet(gram(x))[1],
        lambda x: np.linalg.inv(gram(x)),
        lambda x: np.linalg.solve(gram(x), x),
        lambda x: np.linalg.pinv(gram(x)[..., :2]),
        lambda x: np.linalg.matrix_power(x, 3),
        lambda x: np.linalg.matrix_power(gram(x), -2),
        lambda x: np.linalg.norm(x, "nuc", (-2, -1)),
        lambda x: np.linalg.norm(x, 2, (-2, -1)),
        lambda x: np.linalg.svd(gram(x), full_matrices=False)[1],
    ],
)
def test_gradients_of_compositions(fn: Any, shape: tuple[int, ...]) -> None:
    check_gradients(fn, normal(*shape), rtol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("fn", [np.linalg.cholesky, lambda a: np.linalg.eigh(a)[0]])
def test_gradients_of_symmetric_functions_are_symmetric(fn: Any) -> None:
    from jitgrad.transforms import grad

    slope = grad(lambda a: np.sum(fn(a) ** 3))(gram(normal(3, 3)))
    np.testing.assert_allclose(slope, slope.T)


def hermitian(x: Any) -> Any:
    """Hermitian matrices of real and imaginary parts, (2, ..., n, n)."""
    whole = x[0] + 1j * x[1]
    return whole + np.conj(np.matrix_transpose(whole))


def both_parts(a: Any) -> Any:
    """What the phases of the vectors do not change."""
    values, vectors = np.linalg.eigh(a, "U")
    return values[..., None, :] ** 2 * np.abs(vectors) ** 2


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("fn", [np.linalg.eigvalsh, both_parts])
def test_eigenvalues_of_hermitian_matrices(fn: Any, shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    np.testing.assert_allclose(jg.compile(lambda x: fn(hermitian(x)))(x), fn(hermitian(x)), rtol=1e-12)
    check_gradients(lambda x: fn(hermitian(x)), x, rtol=1e-5)
    slope = jg.grad(lambda a: np.sum(fn(a) ** 2))(hermitian(x))
    np.testing.assert_allclose(slope, np.conj(np.matrix_transpose(slope)), atol=1e-12)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((5, 1, 3, 4), (7, 4, 5)), ((4,), (4, 5)),
     ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5))],
    ids=str,
)  # fmt: skip
def test_gradients_of_matmul_in_all_forms(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_gradients(np.matmul, normal(*a), normal(*b))


@pytest.mark.quick
def test_the_gradient_of_a_matmul_is_two_matmuls_with_flags() -> None:
    with Graph().as_default() as graph:
        x = call("placeholder", np.dtype(float), (3, 4))
        w = call("placeholder", np.dtype(float), (4, 5))
        y = call("matmul", x, w)
        before = len(graph.operations)
        dx, dw = gradients(y, [x, w])
        made = [op for op in graph.operations[before:] if op.type != "constant"]
    assert y.op.type == "matmul" and dx is not None and dw is not None
    assert {op.type for op in made} == {"matmul"}
    assert (dx.op.get_attr("transpose_a"), dx.op.get_attr("transpose_b")) == (False, True)
    assert (dw.op.get_attr("transpose_a"), dw.op.get_attr("transpose_b")) == (True, False)


@pytest.mark.quick
@pytest.mark.parametrize("second", [False, True])
def test_matmul_of_unknown_extents(second: bool) -> None:
    with Graph().as_default():
        x = call("placeholder", np.dtype(float), (None, 7, 4) if second else (None, 4))
        y = call("matmul", x, call("placeholder", np.dtype(float), (4, 5)))
        z = call("matmul", call("placeholder", np.dtype(float), (None, None)), y)
    assert y.shape == ((None, 7, 5) if second else (None, 5))
    assert z.shape[-1] == 5


@pytest.mark.quick
def test_shapes_that_do_not_fit_name_the_op_and_the_line() -> None:
    with Graph().as_default():
        x = call("placeholder", np.dtype(float), (3, 4))
        with pytest.raises(ShapeError, match=r"(?s)matmul.*test_linalg\.py"):
            x @ x
        with pytest.raises(ShapeError, match="einsum label 'j'"):
            call("einsum", "ij,jk", x, x)
        with pytest.raises(ShapeError, match="square"):
            call("linalg.inv", x)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("iij,jkk->ik", [(3, 3, 4), (4, 5, 5)]),
        ("...ij,...jk", [(2, 1, 3, 4), (6, 4, 5)]),
        ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 2)]),
        ("ij,ij->i", [(3, 4), (3, 4)]),
        ("ijk,ijk->kj", [(2, 3, 4), (2, 3, 4)]),
        ("k,ijk->ji", [(4,), (2, 3, 4)]),
        ("ii", [(3, 3)]),
    ],
)
def test_gradients_of_einsum(subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    check_gradients(lambda *xs: np.einsum(subscripts, *xs), *(normal(*shape) for shape in shapes))


@pytest.mark.parametrize("degree", [3, 9, 15])
def test_pseudoinverses_of_ill_conditioned_matrices_are_numpys(degree: int) -> None:
    a = np.vander(np.linspace(0.0, 1.0, 30), degree + 1)
    expected = np.linalg.pinv(a)
    for found in (jg.compile(np.linalg.pinv)(a), jg.compile(np.linalg.pinv)(a.T).T):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_of_pseudoinverses(dtype: type[np.floating[Any]]) -> None:
    eps = float(np.finfo(dtype).eps)
    a = np.zeros((4, 3), dtype)
    a[range(3), range(3)] = 1.0, 8 * eps, 2 * eps
    for options in ({}, {"rtol": None}, {"rcond": None}, {"rtol": 3 * eps}, {"rcond": 10 * eps}):
        found = jg.compile(lambda a, options=options: np.linalg.pinv(a, **options))(a)
        np.testing.assert_allclose(found, np.linalg.pinv(a, **options), rtol=4 * eps)
    for rtol in (None, 1e-4):
        with pytest.raises(ValueError, match="pinv takes rcond or rtol, got both"):
            jg.compile(lambda a, rtol=rtol: np.linalg.pinv(a, 1e-3, rtol=rtol))(a)


def test_pseudoinverses_of_a_matrix_of_less_than_full_rank() -> None:
    a = np.outer([1.0, 2.0, 2.0], [3.0, 4.0])
    np.testing.assert_allclose(jg.compile(np.linalg.pinv)(a), np.linalg.pinv(a))
    np.testing.assert_allclose(jg.compile(np.linalg.pinv)(np.ones((3, 3))), np.full((3, 3), 1 / 9))


def test_einsum_sums_over_rows_as_a_sum_does() -> None:
    """And not over columns of transposes, each of which reads a line per element (1500 x 1500 floats: ten times)."""
    x = normal(30, 40)
    contracted, summed = (
        jg.compile(fn).explain(x, x).kernels
        for fn in (lambda x, y: np.einsum("ij,ij->j", x, y), lambda x, y: np.sum(x * y, axis=0))
    )
    assert contracted == summed
