"""grad and its kin: values, structures, nesting in any order and to any order; single rules are tested
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import jitgrad as jg

pytestmark = pytest.mark.quick

X = np.linspace(-1.0, 2.0, 4)


def f(x: Any) -> Any:
    return np.sum(np.sin(x) * x**2)


def df(x: Any) -> Any:
    return np.cos(x) * x**2 + 2 * x * np.sin(x)


def ddf(x: Any) -> Any:
    return -np.sin(x) * x**2 + 4 * x * np.cos(x) + 2 * np.sin(x)


# -- grad ----------------------------------------------------------------------------------------------------


def test_grad_and_value() -> None:
    value, g = jg.value_and_grad(f)(X)
    np.testing.assert_allclose(g, df(X))
    np.testing.assert_allclose(value, f(X))
    assert isinstance(value, np.float64) and isinstance(g, np.ndarray)
    np.testing.assert_allclose(jg.grad(f)(X), df(X))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_of_gradients_are_those_of_the_arguments(dtype: Any) -> None:
    g, h = jg.grad(lambda x, y: np.sum(x * y.astype(x.dtype)), argnums=(0, 1))(
        X.astype(dtype), X.astype(np.float32)
    )
    assert (g.dtype, h.dtype) == (dtype, np.float32)


def test_python_floats_have_float64_gradients_and_do_not_promote() -> None:
    value, (g, h) = jg.value_and_grad(lambda x, s: np.sum(x * s), argnums=(0, 1))(X.astype(np.float32), 2.0)
    assert (value.dtype, g.dtype, type(h)) == (np.float32, np.float32, np.float64)
    np.testing.assert_allclose(h, X.sum(), rtol=1e-6)


@dataclass(frozen=True)
class Params:
    w: Any
    b: Any
    name: str = "layer"


class Point(NamedTuple):
    x: Any
    y: Any


def test_gradients_have_the_structure_of_the_arguments() -> None:
    def loss(p: Any, q: Any) -> Any:
        return np.sum(p["a"][0] * p["a"][1]) + q.x * q.y

    grads = jg.grad(loss, argnums=(0, 1))({"a": [X, 2.0], "unused": (X,)}, Point(3.0, 4.0))
    assert grads[0]["a"][0].tolist() == [2.0] * 4 and grads[0]["a"][1] == X.sum()
    assert grads[0]["unused"][0].tolist() == [0.0] * 4 and grads[1] == Point(4.0, 3.0)


def test_dataclasses_are_containers() -> None:
    out = jg.compile(lambda p: Params(p.w * 2.0, p.b, p.name + "!"))(Params(X, 1.0))
    assert isinstance(out, Params) and out.name == "layer!" and out.b == 1.0
    np.testing.assert_array_equal(out.w, X * 2)


def test_what_is_no_array_stays_in_the_gradient() -> None:
    def loss(p: Any) -> Any:
        return np.sum(p.w * p.b) if p.name == "layer" else 0.0

    g = jg.grad(loss)(Params(X, 2.0))
    assert g.name == "layer" and g.w.tolist() == [2.0] * 4 and g.b == X.sum()
    product = jg.hvp(loss, Params(X, 2.0), Params(np.zeros(4), 1.0))
    assert product.w.tolist() == [1.0] * 4 and product.b == 0.0
    assert jg.grad(jg.compile(loss))(Params(X, 2.0)).name == "layer"


def test_argnums() -> None:
    def g(x: float, y: float) -> float:
        return x * y * y

    assert jg.grad(g)(2.0, 3.0) == 9.0
    assert jg.grad(g, argnums=1)(2.0, 3.0) == jg.grad(g, argnums=-1)(2.0, 3.0) == 12.0
    assert jg.grad(g, argnums=(1, 0))(2.0, 3.0) == (12.0, 9.0)
    assert jg.grad(g, argnums=(0,))(2.0, 3.0) == (9.0,)


def test_has_aux() -> None:
    def g(x: Any) -> Any:
        return np.sum(x * x), {"double": x * 2, "text": "t"}

    grads, aux = jg.grad(g, has_aux=True)(X)
    np.testing.assert_allclose(grads, 2 * X)
    np.testing.assert_allclose(aux["double"], 2 * X)
    (value, aux), grads = jg.value_and_grad(g, has_aux=True)(X)
    assert value == np.sum(X * X) and aux["text"] == "t"


def test_an_argument_that_does_not_matter_has_zeros() -> None:
    assert jg.grad(lambda x, y: np.sum(x), argnums=1)(X, X.astype(np.float32)).tolist() == [0.0] * 4
    assert jg.grad(lambda x: 3.0)(1.0) == 0.0


def test_keyword_arguments_and_defaults() -> None:
    def g(x: Any, *, scale: Any = 2.0) -> Any:
        return np.sum(x * scale)

    assert jg.grad(g)(X).tolist() == [2.0] * 4
    assert jg.grad(g)(X, scale=3.0).tolist() == [3.0] * 4


def test_python_numbers_stay_what_they_are_unless_compiled() -> None:
    def power(x: Any, n: int, flip: bool = False) -> Any:
        for _ in range(n):
            x = x * 2.0
        return -np.sum(x) if flip else np.sum(x)

    assert jg.grad(power)(X, 3).tolist() == [8.0] * 4
    assert jg.grad(power)(X, n=1, flip=True).tolist() == [-2.0] * 4
    assert jg.compile(jg.grad(power), static_argnums=(1, 2))(X, 3).tolist() == [8.0] * 4
    with pytest.raises(jg.TracedValueError, match="static_argnames"):
        jg.compile(jg.grad(power))(X, 3)


def test_an_assignment_in_the_function_does_not_reach_the_caller() -> None:
    def g(x: Any, y: Any) -> Any:
        x[0] = x[1] * 10.0
        y[1] = 5.0
        return np.sum(x * y)

    x, y = X.copy(), np.ones(4)
    np.testing.assert_allclose(jg.grad(g)(x, y), [0.0, 15.0, 1.0, 1.0])
    np.testing.assert_array_equal(x, X)
    assert y.tolist() == [1.0] * 4


def test_complex_arguments_follow_the_stated_convention() -> None:
    z = np.array([1.0 + 2.0j])
    np.testing.assert_allclose(jg.grad(lambda z: np.sum((z * z).real))(z), 2 * z)


# -- forward, reverse, second order --------------------------------------------------------------------------


def test_jvp() -> None:
    def g(p: Any, s: Any) -> Any:
        return {"a": p[0] * p[1] * s, "n": np.argmax(p[0])}

    primals, tangents = ((X, X + 1), 2.0), ((np.ones(4), np.zeros(4)), 1.0)
    out, moved = jg.jvp(g, primals, tangents)
    np.testing.assert_allclose(out["a"], X * (X + 1) * 2)
    np.testing.assert_allclose(moved["a"], (X + 1) * 2 + X * (X + 1))
    assert moved["n"] == 0


def test_jvp_needs_fitting_tangents() -> None:
    with pytest.raises(TypeError, match="tangents"):
        jg.jvp(f, (X,), X)
    with pytest.raises(TypeError, match=r"tangents of f\(x.*structure"):
        jg.jvp(f, (X,), (X, X))
    with pytest.raises(jg.ShapeError, match=r"tangent of x of f(.|\n)*expected: f64\[4\](.|\n)*got: +f64\[3\]"):
        jg.jvp(f, (X,), (X[:3],))


def test_vjp() -> None:
    out, pull = jg.vjp(lambda x, y: (x * y, np.sum(y)), X, X + 1)
    np.testing.assert_allclose(out[0], X * (X + 1))
    a, b = pull((np.ones(4), 10.0))
    np.testing.assert_allclose(a, X + 1)
    np.testing.assert_allclose(b, X + 10)
    assert isinstance(jg.vjp(f, X)[1](1.0), tuple)


def test_vjp_keeps_the_primals_it_was_given() -> None:
    x = X.copy()
    _, pull = jg.vjp(f, x)
    x[:] = 0.0
    np.testing.assert_allclose(pull(1.0)[0], df(X))


def test_vjp_needs_a_fitting_cotangent() -> None:
    _, pull = jg.vjp(lambda x: x * 2, X)
    with pytest.raises(jg.ShapeError, match=r"cotangent of <lambda>(.|\n)*needed: +at test_transforms.py"):
        pull(np.ones(3))
    with pytest.raises(jg.ShapeError, match=r"cotangent(.|\n)*hint: +np\.full_like"):
        pull(1.0)
    with pytest.raises(TypeError, match=r"structure(.|\n)*hint: +one array for each array of the value"):
        pull((X, X))
    _, pull = jg.vjp(lambda x: {"a": x, "b": [x * 2]}, X)
    with pytest.raises(jg.ShapeError, match=r"the cotangent \['b'\]\[0\] of"):
        pull({"a": X, "b": [X[:3]]})
    with pytest.raises(TypeError, match="vjp_fn"):
        pull()  # type: ignore[call-arg]


@pytest.mark.parametrize("jacobian", [jg.jacobian, jg.jacrev, jg.jacfwd])
def test_jacobians(jacobian: Any) -> None:
    def g(x: Any, w: Any) -> Any:
        return w @ x

    w = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(jacobian(g)(X, w), w)
    by_x, by_w = jacobian(g, argnums=(0, 1))(X, w)
    assert by_x.shape == (3, 4) and by_w.shape == (3, 3, 4)
    np.testing.assert_allclose(by_w, np.einsum("ij,k->ijk", np.eye(3), X))


@pytest.mark.parametrize("jacobian", [jg.jacrev, jg.jacfwd])
def test_jacobians_of_structures(jacobian: Any) -> None:
    out = jacobian(lambda p: {"s": np.sum(p["x"] ** 2), "v": p["x"] * p["y"]})({"x": X, "y": 2.0})
    np.testing.assert_allclose(out["s"]["x"], 2 * X)
    assert out["s"]["y"] == 0.0
    np.testing.assert_allclose(out["v"]["x"], 2 * np.eye(4))
    np.testing.assert_allclose(out["v"]["y"], X)


@pytest.mark.parametrize("jacobian", [jg.jacrev, jg.jacfwd])
def test_jacobians_of_nothing(jacobian: Any) -> None:
    assert jacobian(lambda x: x * 2.0)(np.zeros((0,))).shape == (0, 0)
    assert jacobian(lambda x: np.sum(x))(np.zeros((0, 2))).shape == (0, 2)
    assert jacobian(lambda x: np.ones(3))(X).tolist() == np.zeros((3, 4)).tolist()


def test_hessian() -> None:
    np.testing.assert_allclose(jg.hessian(f)(X), np.diag(ddf(X)), atol=1e-15)
    blocks = jg.hessian(lambda x, y: np.sum(x) * y, argnums=(0, 1))(X, 2.0)
    np.testing.assert_allclose(blocks[0][1], np.ones(4))
    np.testing.assert_allclose(blocks[1][0], np.ones(4))
    assert blocks[1][1] == 0.0 and not blocks[0][0].any()


def test_hvp() -> None:
    v = np.arange(4.0)
    np.testing.assert_allclose(jg.hvp(f, (X,), (v,)), ddf(X) * v)
    np.testing.assert_allclose(jg.hvp(f, X, v), ddf(X) * v)
    a, b = jg.hvp(lambda x, y: np.sum(x) * y, (X, 2.0), (v, 3.0))
    np.testing.assert_allclose(a, np.full(4, 3.0))
    assert b == 6.0


def test_hvp_needs_fitting_tangents() -> None:
    def g(p: Any, y: Any) -> Any:
        return np.sum(p["w"] ** 3) * y

    point = ({"w": X}, 2.0)
    with pytest.raises(TypeError, match=r"hvp takes tangents as a tuple(.|\n)*test_transforms.py(.|\n)*\(v,\)"):
        jg.hvp(f, (X,), X)
    with pytest.raises(jg.ShapeError, match=r"the tangent of p\['w'\] of g\((.|\n)*needed: +at test_transforms.py"):
        jg.hvp(g, point, ({"w": X[:3]}, 1.0))
    with pytest.raises(jg.DTypeError, match=r"the tangent of y of g\("):
        jg.hvp(g, point, ({"w": X}, 1j))
    with pytest.raises(TypeError, match=r"structure of the primals(.|\n)*one entry per argument"):
        jg.hvp(g, point, ({"w": X},))


# -- nesting -------------------------------------------------------------------------------------------------


def cube(x: Any) -> Any:
    return x**3 * np.exp(x)


def nth(n: int, wrap: Callable[..., Any]) -> Any:
    g = wrap(cube)
    for _ in range(n):
        g = wrap(jg.grad(g))
    return g


@pytest.mark.parametrize("wrap", [lambda g: g, jg.compile], ids=["plain", "compiled"])
def test_any_order_of_derivative(wrap: Any) -> None:
    x = 0.7
    exact = [1, 3 / x + 1, 6 / x**2 + 6 / x + 1, 6 / x**3 + 18 / x**2 + 9 / x + 1]
    for n, factor in enumerate(exact):
        np.testing.assert_allclose(nth(n, wrap)(x), factor * cube(x), rtol=1e-12)


second_order = {
    "grad of grad": lambda g: lambda x: jg.grad(lambda t: np.sum(jg.grad(g)(t)))(x),
    "compiled grad of grad": lambda g: jg.compile(jg.grad(lambda t: np.sum(jg.grad(jg.compile(g))(t)))),
    "jvp of grad": lambda g: lambda x: jg.jvp(jg.grad(g), (x,), (np.ones(4),))[1],
    "vjp of grad": lambda g: lambda x: jg.vjp(jg.grad(g), x)[1](np.ones(4))[0],
    "grad of jvp": lambda g: jg.grad(lambda x: jg.jvp(g, (x,), (np.ones(4),))[1]),
    "hvp": lambda g: lambda x: jg.hvp(g, x, np.ones(4)),
    "compiled hvp": lambda g: jg.compile(lambda x: jg.hvp(jg.compile(g), (x,), (np.ones(4),))),
    "hessian": lambda g: lambda x: jg.hessian(g)(x).sum(axis=1),
    "hessian of compiled": lambda g: (
        lambda x: jg.hessian(jg.compile(lambda t: jg.compile(g)(t)))(x).sum(axis=1)
    ),
    "jacfwd of grad": lambda g: lambda x: jg.jacfwd(jg.grad(g))(x).sum(axis=1),
    "jacobian of compiled grad": lambda g: lambda x: jg.jacobian(jg.compile(jg.grad(g)))(x).sum(axis=1),
}


@pytest.mark.parametrize("name", second_order)
def test_second_order_every_way(name: str) -> None:
    np.testing.assert_allclose(second_order[name](f)(X), ddf(X), rtol=1e-12, atol=1e-14)


def test_perturbations_are_not_confused() -> None:
    assert jg.grad(lambda x: x * jg.grad(lambda y: x + y)(1.0))(1.0) == 1.0
    assert jg.grad(lambda x: jg.grad(lambda y: x * y)(x))(3.0) == 1.0
    assert jg.grad(lambda x: x * jg.jvp(lambda y: x * y, (1.0,), (1.0,))[1])(3.0) == 6.0


def test_a_vjp_function_can_be_differentiated() -> None:
    out = jg.grad(lambda x: np.sum(jg.vjp(lambda y: y**3, x)[1](x)[0]))(X)
    np.testing.assert_allclose(out, 9 * X**2)
    _, pull = jg.vjp(lambda y: y**3, X)
    np.testing.assert_allclose(jg.grad(lambda g: np.sum(pull(g)[0] ** 2))(np.ones(4)), 2 * (3 * X**2) ** 2)


def test_closures_over_traced_values() -> None:
    out = jg.grad(lambda a: jg.grad(jg.compile(lambda x: a * x * x))(3.0))(2.0)
    assert out == 6.0


# -- stop_gradient, custom_gradient --------------------------------------------------------------------------


def test_stop_gradient() -> None:
    np.testing.assert_allclose(jg.grad(lambda x: np.sum(x * jg.stop_gradient(x)))(X), X)
    assert jg.stop_gradient({"a": 1.0}) == {"a": 1.0}
    assert jg.grad(lambda p: np.sum(jg.stop_gradient(p)["a"]))({"a": 2.0})["a"] == 0.0


@jg.custom_gradient
def log1pexp(x: Any) -> Any:
    e = np.exp(x)
    return np.log(1 + e), lambda g: g * (1 - 1 / (1 + e))


def test_custom_gradient() -> None:
    assert jg.grad(log1pexp)(100.0) == 1.0
    assert np.isnan(jg.grad(lambda x: np.log(1 + np.exp(x)))(1000.0))
    np.testing.assert_allclose(log1pexp(X), np.log1p(np.exp(X)))
    assert isinstance(log1pexp(X), np.ndarray)


def test_custom_gradient_can_be_differentiated_again() -> None:
    s = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(jg.grad(jg.grad(log1pexp))(1.0), s * (1 - s))
    np.testing.assert_allclose(
        jg.compile(jg.grad(jg.grad(jg.grad(log1pexp))))(1.0), s * (1 - s) * (1 - 2 * s)
    )


def test_custom_gradient_of_several_arguments_and_values() -> None:
    @jg.custom_gradient
    def g(x: Any, p: Any) -> Any:
        return (x * p["a"], p["b"]), lambda gx, gb: (gx * 10.0, {"a": gb, "b": None})

    grads = jg.grad(lambda x, p: np.sum(g(x, p)[0]) + 3.0 * g(x, p)[1], argnums=(0, 1))(
        X, {"a": 2.0, "b": 5.0}
    )
    assert grads[0].tolist() == [10.0] * 4 and grads[1] == {"a": 3.0, "b": 0.0}


def test_custom_gradient_counts_arguments_where_a_rule_gives_a_wrong_shape() -> None:
    @jg.custom_gradient
    def product(x: Any, y: Any) -> Any:
        return x * y, lambda g: (g * y, np.ones(5))

    with pytest.raises(ValueError, match=r"(?s)the rule of product.*input 1.*y.*expected: f64\[3\].*got: +f64\[5\]"):
        jg.grad(lambda x, y: np.sum(product(x, y)), (0, 1))(np.ones(3), np.ones(3))


def test_custom_gradient_takes_cotangents_as_a_tree_too() -> None:
    @jg.custom_gradient
    def g(x: Any) -> Any:
        return {"u": x, "v": 2.0 * x}, lambda c: c["u"] + 100.0 * c["v"]

    assert jg.grad(lambda x: g(x)["u"] + g(x)["v"])(1.0) == 101.0


def test_custom_gradient_errors() -> None:
    @jg.custom_gradient
    def bare(x: Any) -> Any:
        return x

    with pytest.raises(TypeError, match=r"bare.*must return \(value, vjp\)"):
        jg.grad(bare)(1.0)

    @jg.custom_gradient
    def failing(x: Any) -> Any:
        def rule(g: Any) -> Any:
            raise ZeroDivisionError("in the rule")

        return x * 1.0, rule

    assert failing(2.0) == 2.0
    with pytest.raises(ZeroDivisionError, match="in the rule"):
        jg.grad(failing)(1.0)

    @jg.custom_gradient
    def short(x: Any, y: Any) -> Any:
        return x * y, lambda g: (g,)

    with pytest.raises(ValueError, match="rule of short gave 1 gradients for 2 arguments"):
        jg.grad(short)(1.0, 2.0)


def test_py_func_with_a_custom_gradient() -> None:
    @jg.custom_gradient
    def table(x: Any) -> Any:
        return jg.py_func(np.sin, [x], x.dtype), lambda g: g * np.cos(x)

    np.testing.assert_allclose(jg.grad(lambda x: np.sum(table(x)))(X), np.cos(X))
