"""Hessians in graphs and their products with vectors, held against those of functions; Jacobians without a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.numpy as jnp
from jitgrad.opdef import Interpreted

quick = pytest.mark.quick
rng = np.random.default_rng(0)


def curved(x: Any, w: Any) -> Any:
    rows = np.take(x, np.array([0, 2, 0]), axis=0)
    return np.sum(np.tanh(x) ** 3 * np.sum(w**3)) + np.sum(rows**4) + np.sum(np.log(np.cosh(x @ w[:2])))


@pytest.mark.parametrize("scoped", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_hessians_of_graphs(known: bool, scoped: bool) -> None:
    x, w = rng.normal(size=(3, 2)), rng.normal(size=4)
    with jg.Graph().as_default():
        px = jg.placeholder(np.float64, (3, 2) if known else (None, 2))
        pw = jg.placeholder(np.float64, (4,) if known else (None,))
        with jg.jit_scope(scoped):
            ys = [curved(px, pw), np.sum(pw)]
        fetches = [jg.hessians(ys, [px, pw]), jg.hessian_vector_product(ys, [px, pw], [2.0 * px, pw])]
        (hx, hw), products = jg.Session().run(fetches, {px: x, pw: w})
    expected = jg.hessian(curved, (0, 1))(x, w)
    np.testing.assert_allclose(hx, expected[0][0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(hw, expected[1][1], rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(products, jg.hvp(curved, (x, w), (2 * x, w)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@quick
def test_zeros_where_linear() -> None:
    with jg.Graph().as_default():
        x, other = jg.placeholder(np.float32, (2, 3)), jg.placeholder(np.float64, (None,))
        y = np.sum(x * 3.0)
        h, none = jg.hessians(y, [x, other])
        (product,) = jg.hessian_vector_product(y, x, np.ones((2, 3)))
        assert h.dtype == np.float32 and none.dtype == np.float64
        got = jg.Session().run([h, none, product], {x: np.ones((2, 3)), other: np.ones(2)})
        assert [a.shape for a in got] == [(2, 3, 2, 3), (2, 2), (2, 3)]
        assert not any(a.any() for a in got)


@quick
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (1, 1)])
def test_small_extents(shape: tuple[int, ...]) -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, shape)
        (h,) = jg.hessians(np.sum(x**3), x)
        got = jg.Session().run(h, {x: np.full(shape, 2.0)})
        assert np.shape(got) == 2 * shape
        np.testing.assert_array_equal(got, np.full(2 * shape, 12.0))


@quick
def test_hessian_of_a_variable() -> None:
    with jg.Graph().as_default():
        v = jg.Variable(np.array([1.0, 2.0]))
        got = jg.Session().run([jg.hessians(np.sum(v**3), v), jg.hessian_vector_product(np.sum(v**3), [v], [[1, 1]])])
        np.testing.assert_array_equal(got[0][0], [[6, 0], [0, 12]])
        np.testing.assert_array_equal(got[1][0], [6, 12])


@quick
def test_names_and_scopes() -> None:
    with jg.Graph().as_default() as graph:
        x = jg.placeholder(np.float64, (3,))
        with jg.jit_scope():
            y = np.sum(np.sin(x))
        (h,) = jg.hessians(y, x, name="second")
        made = [op for op in graph.operations if op.name.startswith("second/")]
        assert h.op in made
        others = {op.type for op in made if op.attrs.get("_XlaScope") != "jit_scope_0"}
        assert others <= {"constant"}
        with pytest.raises(ValueError, match="aggregation"):
            jg.hessians(y, x, aggregation_method="none such")


@quick
def test_errors() -> None:
    with jg.Graph().as_default():
        x, n = jg.placeholder(np.float64, (3,)), jg.placeholder(np.int64, (3,))
        y = np.sum(x * n)
        with pytest.raises(ValueError, match="2 vectors v for 1 xs"):
            jg.hessian_vector_product(y, [x], [x, x])
        with pytest.raises(jg.DTypeError, match="int64 carries no gradient"):
            jg.hessians(y, [x, n])


# -- Jacobians whose operations all have machine code ------------------------------------------------------------------

A = rng.normal(size=(3, 3)) + 3 * np.eye(3)
index = np.array([[2, 0], [1, 1]])

functions: dict[str, Callable[[Any], Any]] = {
    "solve": lambda x: np.linalg.solve(A + np.diag(x), x * x),
    "solve with one matrix": lambda x: np.linalg.solve(A, np.sin(x)),
    "inv": lambda x: np.linalg.inv(A + np.diag(x)),
    "det": lambda x: np.linalg.det(A + np.diag(x)) * x,
    "cholesky": lambda x: np.linalg.cholesky(A @ A.T + np.diag(x * x)),
    "take": lambda x: np.take(np.sin(x), index),
    "chosen rows": lambda x: np.outer(x, x)[index, np.array([0, 1])],
    "take_along_axis": lambda x: np.take_along_axis(np.outer(x, x), np.vstack([index, index[:1]]), 1),
    "products": lambda x: (np.outer(x, np.sin(x)) @ A) @ x,
    "batch of products": lambda x: np.stack([A, A @ A]) @ np.stack([np.outer(x, x)] * 2),
    "moves": lambda x: np.concatenate([np.pad(x[::-1], 1), np.stack([x, x]).T.ravel()[1:4]]),
    "argmax": lambda x: x[np.argmax(x)] * np.outer(x, x),
    "loops": lambda x: np.cumsum(x * x) + np.prod(x),
    "softmax": lambda x: np.exp(x) / np.sum(np.exp(x)),
}


@pytest.mark.parametrize("name", functions)
def test_jacobians_are_compiled(name: str) -> None:
    f, x = functions[name], np.array([0.7, -0.4, 1.2])
    reverse, forward = jg.jacrev(jg.compile(f)), jg.jacfwd(jg.compile(f))
    numeric = np.stack([(f(x + h) - f(x - h)) / 2e-5 for h in 1e-5 * np.eye(3)], axis=-1)
    for jacobian in (reverse, forward):
        np.testing.assert_allclose(jacobian(x), numeric, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(jacobian.interpret(x), numeric, rtol=1e-6, atol=1e-8)
        ((stage, arrays),) = jacobian.stages(x)
        program = stage.executable(arrays).program
        left = {ins.op.name for ins in program.instructions if isinstance(ins.op.kind, Interpreted)}
        assert not left


def test_positions_of_each_example() -> None:
    """Positions that differ from example to example, as where each row is sorted."""

    def f(x: Any) -> Any:
        order = np.argsort(x, axis=1)
        return jnp.take_along_axis(np.sort(x, axis=1) * x, order, 1)

    x = rng.normal(size=(2, 3))
    numeric = np.stack([(f(x + h) - f(x - h)) / 2e-5 for h in 1e-5 * np.eye(6).reshape(6, 2, 3)], axis=-1)
    for jacobian in (jg.jacrev(f), jg.jacfwd(f)):
        np.testing.assert_allclose(jacobian(x).reshape(2, 3, 6), numeric, atol=1e-8)


def test_hessian_of_a_likelihood_is_one_product() -> None:
    """X.T @ diag(weight) @ X with the matrix read as it is, and no product with the unit directions."""
    with jg.Graph().as_default():
        x, w = jg.placeholder(np.float64, (50, 9)), jg.placeholder(np.float64, (9,))
        with jg.jit_scope():
            loss = np.sum(np.logaddexp(0.0, x @ w))
        (h,) = jg.hessians(loss, w)
        ((stage, arrays),) = jg.Session().stages(h, {x: rng.normal(size=(50, 9)), w: np.zeros(9)})
        program = stage.executable(arrays).program
        products = [ins for ins in program.instructions if ins.op.name == "matmul"]
        assert len(products) == 2, "the other one is the score"
        assert max(program.specs[v].rank or 0 for ins in program.instructions for v in ins.outputs) == 2
        np.testing.assert_allclose(stage.run(arrays)[0], arrays[0].T @ arrays[0] / 4, rtol=1e-12)
