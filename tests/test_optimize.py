"""Optimisers against their formulas: on pytrees, on Variables, and SciPy's with our gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import optimize

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
