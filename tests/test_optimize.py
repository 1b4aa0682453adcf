"""Optimisers against their formulas: on pytrees, on Variables, and SciPy's with our gradients."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import optimize
from jitgrad.ops.slices import IndexedSlices

P = {"w": np.array([1.0, -2.0, 3.0]), "b": (np.array(0.5),)}
GRADS = [{"w": np.array([0.1, 0.2, -0.3]) * k, "b": (np.array(1.0 / k),)} for k in (1, 2, 3)]


def steps(optimizer: optimize.Optimizer) -> dict[str, Any]:
    params, state = P, optimizer.init(P)
    for grads in GRADS:
        params, state = optimizer.update(grads, state, params)
    return params


def reference(rule: Any) -> dict[str, Any]:
    """The parameters after the same steps of a rule written for one array with a dict of memory."""
    found = {}
    for key, of in (("w", lambda tree: tree["w"]), ("b", lambda tree: tree["b"][0])):
        p, memory = of(P), {}
        for t, grads in enumerate(GRADS, 1):
            p = rule(p, of(grads), t, memory)
        found[key] = p
    return found


def sgd(p: Any, g: Any, t: int, memory: Any) -> Any:
    return p - 0.1 * g


def momentum(p: Any, g: Any, t: int, memory: Any) -> Any:
    memory["v"] = 0.9 * memory.get("v", 0) + g
    return p - 0.1 * memory["v"]


def nesterov(p: Any, g: Any, t: int, memory: Any) -> Any:
    memory["v"] = 0.9 * memory.get("v", 0) + g
    return p - 0.1 * (g + 0.9 * memory["v"])


def adam(p: Any, g: Any, t: int, memory: Any, decay: float = 0.0) -> Any:
    memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * g
    memory["v"] = 0.999 * memory.get("v", 0) + 0.001 * g * g
    return p - 0.1 * (memory["m"] / (1 - 0.9**t) / (np.sqrt(memory["v"] / (1 - 0.999**t)) + 1e-8) + decay * p)


def rmsprop(p: Any, g: Any, t: int, memory: Any) -> Any:
    memory["s"] = 0.9 * memory.get("s", 0) + 0.1 * g * g
    return p - 0.1 * g / (np.sqrt(memory["s"]) + 1e-8)


CASES = [
    (optimize.SGD(0.1), sgd),
    (optimize.SGD(0.1, momentum=0.9), momentum),
    (optimize.SGD(0.1, momentum=0.9, nesterov=True), nesterov),
    (optimize.Adam(0.1), adam),
    (optimize.AdamW(0.1), lambda *a: adam(*a, decay=0.01)),
    (optimize.RMSProp(0.1), rmsprop),
]


@pytest.mark.parametrize(("optimizer", "rule"), CASES, ids=lambda x: type(x).__name__)
def test_rules(optimizer: optimize.Optimizer, rule: Any) -> None:
    params, expected = steps(optimizer), reference(rule)
    np.testing.assert_allclose(params["w"], expected["w"], rtol=1e-12)
    np.testing.assert_allclose(params["b"][0], expected["b"], rtol=1e-12)


@pytest.mark.parametrize(("optimizer", "rule"), CASES, ids=lambda x: type(x).__name__)
def test_variables_take_the_same_steps(optimizer: optimize.Optimizer, rule: Any) -> None:
    w, b, unused = jg.Variable(P["w"]), jg.Variable(P["b"][0]), jg.Variable(1.0)
    for grads in GRADS:
        optimizer.apply_gradients([(grads["w"], w), (jg.asarray(grads["b"][0]), b), (None, unused)])
    expected = reference(rule)
    np.testing.assert_allclose(w.numpy(), expected["w"], rtol=1e-12)
    np.testing.assert_allclose(b.numpy(), expected["b"], rtol=1e-12)
    assert unused.numpy() == 1.0


def test_float32_stays_float32() -> None:
    p = np.ones(3, np.float32)
    for optimizer, _ in CASES:
        made, state = optimizer.update(p, optimizer.init(p), p)
        assert made.dtype == np.float32 and all(s.dtype == np.float32 for s in state[1])


def test_steps_compile_once() -> None:
    optimizer = optimize.Adam()
    steps(optimizer)
    assert optimizer._compiled.cache_info().traces == 1


def test_what_does_not_fit() -> None:
    optimizer = optimize.SGD(0.1)
    with pytest.raises(jg.ShapeError, match=r"a gradient of shape \(2,\) for a parameter of shape \(3,\)"):
        optimizer.update(np.ones(2), optimizer.init(np.ones(3)), np.ones(3))
    with pytest.raises(ValueError, match=r".+"):
        optimizer.update({"v": np.ones(2)}, optimizer.init(P), P)


@pytest.mark.parametrize(("optimizer", "rule"), CASES, ids=lambda x: type(x).__name__)
def test_steps_inside_compiled_functions(optimizer: optimize.Optimizer, rule: Any) -> None:
    call = jg.compile(lambda params, state, grads: optimizer.update(grads, state, params))
    params, state = P, optimizer.init(P)
    for grads in GRADS:
        params, state = call(params, state, grads)
    expected = reference(rule)
    np.testing.assert_allclose(params["w"], expected["w"], rtol=1e-12)
    np.testing.assert_allclose(params["b"][0], expected["b"], rtol=1e-12)
    assert state[0] == 3 and call.cache_info().traces == 1


def test_numbers_may_be_set_between_steps() -> None:
    optimizer, v = optimize.SGD(0.1), jg.Variable(np.zeros(2, np.float32))
    for rate in (0.1, 0.25, 1.0):
        optimizer.learning_rate = rate
        before = v.numpy()
        optimizer.apply_gradients([(np.ones(2), v)])
        np.testing.assert_array_equal(v.numpy(), before - np.float32(rate))
    assert v.dtype == np.float32 and optimizer._compiled.cache_info().traces == 1
    params, _ = optimizer.update(np.ones(2), optimizer.init(np.ones(2)), np.ones(2))
    np.testing.assert_array_equal(params, np.zeros(2))


def test_momentum_may_be_set_after_steps_without() -> None:
    late, twin = optimize.SGD(0.1), optimize.SGD(0.1, momentum=0.9, nesterov=True)
    v, w = jg.Variable(1.0), jg.Variable(1.0)
    late.apply_gradients([(0.0, v)])
    state = late.init(np.ones(2))
    late.momentum = 0.9
    late.apply_gradients([(0.0, v)])
    late.nesterov = True
    for _ in range(2):
        late.apply_gradients([(1.0, v)])
        twin.apply_gradients([(1.0, w)])
    assert v.numpy() == w.numpy()
    assert len(late.update(np.ones(2), state, np.ones(2))[1][1]) == 1


def test_apply_gradients_is_refused_where_functions_are_traced() -> None:
    optimizer, v = optimize.SGD(0.1), jg.Variable(1.0)
    with pytest.raises(jg.TracedValueError, match=r"use update\(\) with pytrees inside compiled functions"):
        jg.compile(lambda g: optimizer.apply_gradients([(g, v)]))(1.0)
    assert v.numpy() == 1.0


def test_optimisers_are_pickled_with_their_state() -> None:
    optimizer, v = optimize.Adam(0.1), jg.Variable(np.ones(2))
    optimizer.apply_gradients([(np.ones(2), v)])
    again, w = pickle.loads(pickle.dumps((optimizer, v)))
    for each, variable in ((optimizer, v), (again, w)):
        each.apply_gradients([(np.ones(2), variable)])
    np.testing.assert_array_equal(w.numpy(), v.numpy())


def test_gradients_of_variables_must_fit() -> None:
    optimizer, v = optimize.Adam(0.1), jg.Variable(np.ones((3, 2), np.float32))
    with pytest.raises(jg.ShapeError, match=r"a gradient of shape \(2,\), not \(3, 2\)"):
        optimizer.apply_gradients([(np.ones(2), v)])
    with pytest.raises(jg.ShapeError, match=r"a gradient of shape \(1, 3\), not \(1, 2\)"):
        optimizer.apply_gradients([(IndexedSlices(np.ones((1, 3)), np.array([0])), v)])
    with pytest.raises(jg.DTypeError, match="a gradient of dtype complex128"):
        optimizer.apply_gradients([(np.ones((3, 2), complex), v)])
    np.testing.assert_array_equal(v.numpy(), np.ones((3, 2)))
    optimizer.apply_gradients([(np.ones((3, 2)), v)])
    assert all(slot.dtype == np.float32 for slot in optimizer._kept.of(v))


def test_gradients_of_one_variable_are_added() -> None:
    optimizer, v = optimize.SGD(1.0), jg.Variable(np.zeros(3))
    rows = IndexedSlices(np.array([1.0, 1.0]), np.array([0, 2]))
    optimizer.apply_gradients([(np.ones(3), v), (np.ones(3), v)])
    np.testing.assert_array_equal(v.numpy(), [-2, -2, -2])
    optimizer.apply_gradients([(rows, v), (rows, v)])
    np.testing.assert_array_equal(v.numpy(), [-4, -2, -4])
    optimizer.apply_gradients([(rows, v), (jg.asarray(np.ones(3)), v)])
    np.testing.assert_array_equal(v.numpy(), [-6, -3, -6])


def rosenbrock(p: dict[str, Any], scale: float) -> Any:
    x, y = p["x"], p["y"]
    return np.sum((1 - x) ** 2 + scale * (y - x**2) ** 2)


def test_minimize_is_scipys() -> None:
    x0 = {"x": np.array([-1.2, 2.0]), "y": np.array([1.0, 1.0])}
    result = optimize.minimize(rosenbrock, x0, (100.0,), tol=1e-12)
    assert result.success and result.nit > 5 and result.fun < 1e-12
    np.testing.assert_allclose(result.x["x"], 1, rtol=1e-5)
    bounded = optimize.minimize(lambda x: np.sum((x - 2.0) ** 2), np.zeros(2), bounds=[(0, 1), (0, 3)])
    np.testing.assert_allclose(bounded.x, [1, 2])


def bowl(p: Any) -> Any:
    return np.sum((p["a"] - 2.0) ** 2) + np.sum((p["b"] - np.array([1.0, 3.0])) ** 2)


START = {"a": np.float32(0.0), "b": np.zeros(2)}


@pytest.mark.parametrize("method", ["BFGS", "CG", "SLSQP", "TNC", "Newton-CG", "trust-ncg", "trust-krylov"])
def test_minimisers_take_pytrees(method: str) -> None:
    result = optimize.minimize(bowl, START, method=method)
    assert type(result).__name__ == "OptimizeResult" and result.jac.shape == (3,)
    assert result.x["a"].dtype == np.float32 and result.x["a"].shape == ()
    np.testing.assert_allclose(result.x["a"], 2, atol=1e-4)
    np.testing.assert_allclose(result.x["b"], [1, 3], atol=1e-4)


def test_bounds_go_by_the_order_of_the_leaves() -> None:
    result = optimize.minimize(bowl, START, bounds=[(0, 1), (0, 0.5), (None, None)])
    np.testing.assert_allclose([result.x["a"], *result.x["b"]], [1, 0.5, 3], atol=1e-5)
    with pytest.raises(ValueError, match=r"bounds"):
        optimize.minimize(bowl, START, bounds=[(0, 1), (0, 1)])


def test_callbacks_get_the_structure_of_x0() -> None:
    seen: list[Any] = []

    def with_result(intermediate_result: Any) -> None:
        seen.append(intermediate_result)
        if len(seen) == 2:
            raise StopIteration

    optimize.minimize(bowl, START, callback=seen.append)
    assert seen and set(seen[-1]) == {"a", "b"}
    seen.clear()
    optimize.minimize(rosenbrock, {"x": np.array([-1.2]), "y": np.array([1.0])}, (100.0,), callback=with_result)
    assert len(seen) == 2 and set(seen[0].x) == {"x", "y"} and seen[1].fun < seen[0].fun


@pytest.mark.parametrize("x0", [[0.0, 0.0], (0, 1), [[0.0], [1.0]]], ids=str)
def test_a_list_of_numbers_is_an_array(x0: Any) -> None:
    found = optimize.minimize(lambda x: np.sum((x - 2.0) ** 2), x0).x
    np.testing.assert_allclose(found, np.full(np.shape(x0), 2.0), atol=1e-6)


@pytest.mark.parametrize("method", ["L-BFGS-B", "Newton-CG"])
def test_gradients_of_ones_own(method: str) -> None:
    seen: list[Any] = []

    def value(p: Any, scale: float) -> Any:
        return scale * np.sum((p["a"] - 2.0) ** 2)

    def gradient(p: Any, scale: float) -> Any:
        seen.append(p["a"])
        return {"a": 2.0 * scale * (p["a"] - 2.0)}

    def both(p: Any, scale: float) -> Any:
        return value(p, scale), gradient(p, scale)

    x0 = {"a": np.zeros(3)}
    differences = [(value, "2-point")] if method == "L-BFGS-B" else []  # SciPy has none for the other
    for fn, jac in ((value, gradient), (both, True), (value, None), *differences):
        before = len(seen)
        found = optimize.minimize(fn, x0, (3.0,), method=method, jac=jac)
        np.testing.assert_allclose(found.x["a"], 2.0, atol=1e-4)
        assert (len(seen) > before) == (jac is gradient or jac is True)


def test_a_gradient_that_is_none_is_named() -> None:
    params = {"a": np.ones(2), "b": np.ones(3)}
    rule = optimize.Adam()
    with pytest.raises(TypeError, match=r"(?s)the gradient of parameter 1 of 2, of shape \(3,\), is None.*hint:"):
        rule.update({"a": np.ones(2), "b": None}, rule.init(params), params)


def test_what_minimize_starts_from() -> None:
    for x0 in (np.array([3, 4]), [3.0, 4.0], jg.asarray([3.0, 4.0]), jg.Variable([3.0, 4.0]), 3.0, 3):
        found = optimize.minimize(lambda x: sum(np.sum((leaf - 0.5) ** 2) for leaf in jg.pytree.flatten(x)[0]), x0).x
        np.testing.assert_allclose(jg.pytree.flatten(found)[0], 0.5, atol=1e-6)
    with pytest.raises(jg.DTypeError, match="x0 must hold real numbers, got complex128"):
        optimize.minimize(lambda x: np.sum(np.abs(x)), np.array([1j]))
    with pytest.raises(jg.ShapeError, match="must return a scalar"):
        optimize.minimize(lambda x: x * 2.0, np.ones(2))
    with pytest.raises(ValueError, match="Unknown solver nope"):
        optimize.minimize(bowl, START, method="nope")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [([(jg.Variable, 1.0)], "got type, float"), ([np.ones(3)], "got ndarray"), ([(1.0,)], "got float")],
)
def test_what_is_no_pair(pairs: Any, message: str) -> None:
    with pytest.raises(TypeError, match=rf"takes pairs \(gradient, Variable\), .*{message}"):
        optimize.SGD(0.1).apply_gradients(pairs)


def test_an_optimizer_forgets_variables_that_are_gone() -> None:
    optimizer = optimize.Adam(0.1)
    v = jg.Variable(np.ones(2))
    optimizer.apply_gradients([(np.ones(2), v)])
    assert len(optimizer._kept._found) == 1
    del v
    assert not optimizer._kept._found
