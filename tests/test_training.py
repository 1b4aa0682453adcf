"""A small model trained in each way there is, to the same losses; and a notebook from first look to profile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 5)), RNG.normal(size=(32, 2))
W1, W2 = RNG.normal(size=(5, 8)) * 0.5, RNG.normal(size=(8, 2)) * 0.5
STEPS = 20


def predict(p: Any, x: Any) -> Any:
    return np.tanh(x @ p["w1"]) @ p["w2"]


def loss(p: Any, x: Any, y: Any) -> Any:
    return np.mean((predict(p, x) - y) ** 2)


def by_tape(model: Any) -> list[float]:
    """Variables, a tape, and an optimiser that assigns; ``model`` may be compiled."""
    p = {"w1": jg.Variable(W1), "w2": jg.Variable(W2)}
    optimizer = jg.optimize.SGD(0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        with jg.GradientTape() as tape:
            value = model(p, X, Y)
        grads = tape.gradient(value, p)
        optimizer.apply_gradients([(grads[key], p[key]) for key in p])
        losses.append(float(value))
    return losses


def by_compiled_step() -> list[float]:
    """One compiled function of pytrees: loss, gradient and step."""
    optimizer = jg.optimize.SGD(0.1, momentum=0.9)

    @jg.compile
    def step(p: Any, v: Any) -> Any:
        value, grads = jg.value_and_grad(loss)(p, X, Y)
        made = {key: optimizer.step(p[key], grads[key], 1.0, v[key]) for key in p}
        return value, {key: p for key, (p, _) in made.items()}, {key: v for key, (_, (v,)) in made.items()}

    p = {"w1": W1, "w2": W2}
    v = {key: np.zeros_like(w) for key, w in p.items()}
    losses = []
    for _ in range(STEPS):
        value, p, v = step(p, v)
        losses.append(float(value))
    return losses


def by_session() -> list[float]:
    """A graph with Variables, gradients() and assignments, run by a session."""
    with jg.Graph().as_default():
        p = {"w1": jg.Variable(W1), "w2": jg.Variable(W2)}
        v = {key: jg.Variable(np.zeros(w.shape)) for key, w in p.items()}
        with jg.jit_scope():
            value = loss(p, X, Y)
            grads = jg.gradients(value, [p["w1"].value(), p["w2"].value()])
            new_v = {key: 0.9 * v[key] + g for key, g in zip(p, grads, strict=True)}
            new_p = {key: p[key] - 0.1 * new_v[key] for key in p}
        with jg.control_dependencies([value, *new_v.values(), *new_p.values()]):
            train = jg.group(*[p[key].assign(new_p[key]) for key in p], *[v[key].assign(new_v[key]) for key in v])
        session = jg.Session()
        return [float(session.run([value, train])[0]) for _ in range(STEPS)]


def test_all_ways_give_the_same_losses() -> None:
    expected = by_tape(loss)
    assert expected[-1] < 0.75 * expected[0]
    for losses in (by_tape(jg.compile(loss)), by_compiled_step(), by_session()):
        np.testing.assert_allclose(losses, expected, rtol=1e-11)


def test_a_notebook(tmp_path: Any) -> None:
    """Explore, differentiate, decorate, profile."""
    x = jg.asarray(X)
    hidden = np.tanh(x @ W1)
    assert hidden.shape == (32, 8) and float(hidden.max()) <= 1.0 and "tensor" in repr(hidden[:2, :2])

    w = jg.asarray(W1)
    with jg.GradientTape() as tape:
        tape.watch(w)
        value = loss({"w1": w, "w2": W2}, X, Y)
    g = tape.gradient(value, w)
    h = 1e-6 * np.eye(5, 8)
    slope = (loss({"w1": W1 + h, "w2": W2}, X, Y) - loss({"w1": W1 - h, "w2": W2}, X, Y)) / 2e-6
    assert np.sum(g * np.eye(5, 8)) == pytest.approx(slope, rel=1e-6)

    @jg.compile
    def gradient(p: Any) -> Any:
        return jg.grad(loss)(p, X, Y)

    fast = gradient({"w1": W1, "w2": W2})
    np.testing.assert_allclose(fast["w1"], g, rtol=1e-12)

    with jg.profile() as prof:
        gradient({"w1": W1, "w2": W2})
    assert "matmul" in prof.table() and any("test_training.py" in line for e in prof.events for line in e.lines)
    prof.save_html(tmp_path / "page.html")
    assert "step" not in prof.findings and (tmp_path / "page.html").stat().st_size > 1000
