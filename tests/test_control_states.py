"""Control flow and all that is around it: states of any structure, Variables, views, slices, shapes that change, Python
functions in bodies, tapes and eager tensors, scopes.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

Fn = Callable[..., Any]
WAYS = [pytest.param(lambda f: f, id="values"), pytest.param(jg.compile, id="compiled")]


@dataclass
class Pair:
    """A state with a counter."""

    total: Any
    count: Any


Point = collections.namedtuple("Point", "here there")


@pytest.mark.parametrize("way", WAYS)
def test_states_of_any_structure(way: Any) -> None:
    def power(x: Any) -> Any:
        return jg.while_loop(lambda s: s.count < 5, lambda s: Pair(s.total * x, s.count + 1), Pair(x, 0)).total

    def nested(x: Any) -> Any:
        step = lambda i, s: Point({"z": s.here["z"] * x}, [s.there[0] + i])  # noqa: E731
        return jg.fori_loop(0, 3, step, Point({"z": x}, [0])).here["z"]

    assert way(power)(2.0) == 64.0 and way(jg.grad(power))(2.0) == 192.0
    assert way(nested)(2.0) == 16.0 and way(jg.grad(nested))(2.0) == 32.0


@pytest.mark.parametrize("way", WAYS)
def test_variables_in_bodies(way: Any) -> None:
    v = jg.Variable(3.0)
    f = lambda x: jg.fori_loop(0, 3, lambda i, s: s * v, x)  # noqa: E731
    assert way(f)(2.0) == 54.0 and way(jg.grad(f))(2.0) == 27.0
    with jg.GradientTape() as tape:
        y = way(f)(2.0)
    assert tape.gradient(y, v) == 54.0
    graph = jg.Graph()
    with graph.as_default():
        x = jg.placeholder(np.float64, ())
        g = jg.gradients(f(x), [v, x])
    assert jg.Session(graph).run(g, {x: 2.0}) == [54.0, 27.0]


def test_assignments_to_variables_in_bodies_are_refused() -> None:
    v = jg.Variable(3.0)
    with pytest.raises(NotImplementedError, match="return the new value from the body"):
        jg.compile(lambda x: jg.fori_loop(0, 3, lambda i, s: s * v.assign(s), x))(2.0)


@pytest.mark.parametrize("way", WAYS)
def test_bodies_assign_to_their_own_state(way: Any) -> None:
    def f(x: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            tail = c[1:]
            tail[0] = c[0] + x[1]
            c.reshape(3, 1)[i, 0] *= 2.0
            return c

        return np.sum(jg.fori_loop(0, 3, step, x))

    x = np.arange(1.0, 4.0)
    assert way(f)(x) == 12.0
    np.testing.assert_array_equal(x, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(way(jg.grad(f))(x), [4.0, 1.0, 2.0])


@pytest.mark.parametrize("write", ["array", "view", "view inside", "in place"])
def test_assignments_to_arrays_from_outside_are_refused(write: str) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        tail = y[1:]
        held = [y]

        def step(i: Any, c: Any) -> Any:
            if write == "array":
                y[0] = c
            elif write == "view":
                tail[0] = c
            elif write == "view inside":
                y[1:][0] = c
            else:
                held[0] += c
            return c + y[1]

        return jg.fori_loop(0, 3, step, x[0]) + np.sum(y)

    with pytest.raises(NotImplementedError, match="assigns to an array that it reads from outside"):
        jg.compile(f)(np.arange(3.0))


@pytest.mark.parametrize("way", WAYS)
def test_shapes_that_change(way: Any) -> None:
    def f(x: Any) -> Any:
        def step(state: Any) -> Any:
            i, y = state
            return i + 1, np.concatenate([y, y[-1:] * x])

        _, y = jg.while_loop(lambda s: s[0] < 4, step, (0, np.ones(1) * x), shape_invariants=((), (None,)))
        return np.sum(y * y)

    powers = np.arange(1, 6)
    assert way(f)(2.0) == np.sum(4.0**powers)
    assert way(jg.grad(f))(2.0) == pytest.approx(np.sum(powers * 4.0**powers))
    assert way(jg.grad(jg.grad(f)))(2.0) == pytest.approx(np.sum(2 * powers * (2 * powers - 1) * 4.0 ** (powers - 1)))
    assert jg.jvp(f, (2.0,), (1.0,))[1] == pytest.approx(np.sum(powers * 4.0**powers))


def test_python_functions_in_bodies() -> None:
    seen: list[float] = []

    def spy(value: Any) -> Any:
        seen.append(float(value))
        return value

    def f(x: Any) -> Any:
        def step(i: Any, s: Any) -> Any:
            return s * 2 + 0 * jg.stop_gradient(np.reshape(jg.py_func(spy, [s], np.float64), ()))

        return jg.fori_loop(0, 3, step, x)

    assert jg.compile(f)(2.0) == 16.0 and seen == [2.0, 4.0, 8.0]
    assert jg.grad(f)(2.0) == 8.0
    with pytest.raises(LookupError, match="no gradient rule"):
        jg.grad(lambda x: jg.fori_loop(0, 3, lambda i, s: np.reshape(jg.py_func(spy, [s], np.float64), ()), x))(2.0)

    @jg.custom_gradient
    def double(s: Any) -> Any:
        return np.reshape(jg.py_func(lambda v: v * 2, [s], np.float64), ()), lambda g: 2 * g

    cubic = lambda x: jg.fori_loop(0, 3, lambda i, s: double(s) * x, x)  # noqa: E731
    assert jg.compile(jg.grad(jg.grad(cubic)))(2.0) == 8 * 12 * 4.0


def test_calls_of_python_are_neither_merged_nor_lost() -> None:
    calls: list[float] = []

    def count(value: Any) -> Any:
        calls.append(float(value))
        return value

    def f(x: Any) -> Any:
        loop = lambda: jg.fori_loop(  # noqa: E731
            0, 2, lambda i, s: s + np.reshape(jg.py_func(count, [x], np.float64), ()), x
        )
        return loop() + loop()

    assert jg.compile(f)(1.0) == 6.0 and len(calls) == 4


@pytest.mark.parametrize("way", WAYS)
def test_slices_stay_slices_in_loops(way: Any) -> None:
    def f(x: Any) -> Any:
        rows = jg.IndexedSlices(np.ones((2, 3)) * x, np.array([0, 2]), (4, 3))
        step = lambda i, s: jg.IndexedSlices(s.values * x, s.indices, s.dense_shape)  # noqa: E731
        rows = jg.fori_loop(0, 3, step, rows)
        assert isinstance(rows, jg.IndexedSlices) and rows.values.shape == (2, 3)
        return np.sum(rows * 1.0)

    assert way(f)(2.0) == 96.0 and way(jg.grad(f))(2.0) == 192.0


def test_eager_tensors_and_tapes() -> None:
    x = jg.asarray(2.0)
    with jg.GradientTape() as outer:
        outer.watch(x)
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = jg.while_loop(lambda v: v < 100, lambda v: v * v, x)
            z, ys = jg.scan(lambda c, a: (c * a, c + x), y, np.arange(1.0, 4.0))
            w = jg.cond(x > 1, lambda: z * 2, lambda: x)
        first = tape.gradient([w, ys], x)
    assert isinstance(ys, jg.EagerTensor) and w == 12 * 256.0
    assert first == 12 * 1024.0 + (1 + 1 + 2) * 1024.0 + 3
    assert outer.gradient(first, x) == 16 * 3584.0


def test_the_graph_of_the_process() -> None:
    x = jg.placeholder(np.float64, ())
    y = jg.while_loop(lambda v: v < 100, lambda v: v * v, x)
    z = jg.fori_loop(0, 3, lambda i, s: s * x, 1.0)
    w = jg.cond(x > 0, lambda: x, lambda: -x)
    c, ys = jg.scan(lambda c, a: (c * x, a), 1.0, np.arange(3.0))
    (g,) = jg.gradients([y, z, w, c], x)
    got = jg.Session().run([y, z, w, c, g], {x: 2.0})
    assert got == [256.0, 8.0, 2.0, 8.0, 1024.0 + 12.0 + 1.0 + 12.0] and ys.shape == (3,)


def test_scopes_names_and_places_of_gradients() -> None:
    graph = jg.Graph()
    with graph.as_default():
        x = jg.placeholder(np.float64, (), name="x")
        with jg.jit_scope(), jg.device("/cpu:1"):
            y = jg.fori_loop(0, 3, lambda i, s: s * np.sin(x), x)
        with jg.name_scope("outer"):
            z = jg.while_loop(lambda s: s < 100, lambda s: s * 2 + x, y)
        (g,) = jg.gradients([z], [x], name="G", colocate_gradients_with_ops=True, gate_gradients=True)
    ops = {op.name: op for op in graph.operations}
    back, again = ops["G/outer/while_loop_grad/while_gradient"], ops["G/scan_grad/scan_1"]
    assert back.original_op is z.op and again.original_op is y.op
    assert again.device == "/cpu:1" and again.colocation_groups == ["loc:@scan"]
    assert again.get_attr("_XlaScope") == "jit_scope_0" and "_XlaScope" not in back.attrs
    h = 1e-6
    session = jg.Session(graph)
    ends = [session.run(z, {x: 0.9 + d}) for d in (h, -h)]
    assert session.run(g, {x: 0.9}) == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6)


def test_transforms_and_rules_inside_bodies() -> None:
    def f(x: Any) -> Any:
        def step(i: Any, s: Any) -> Any:
            bent = jg.hvp(lambda t: np.sum(np.sin(t) * x), s, s) + jg.jacobian(lambda t: t * t)(s) @ s
            return s - 0.1 * bent + jg.jvp(lambda t: t * x, (s,), (s,))[1] + jg.vjp(np.tanh, s)[1](x)[0]

        return np.sum(jg.fori_loop(0, 2, step, x))

    x, h = np.array([0.3, 0.4]), 1e-6
    expected = [(f(x + d) - f(x - d)) / (2 * h) for d in h * np.eye(2)]
    for way in (jg.grad(f), jg.compile(jg.grad(f))):
        np.testing.assert_allclose(way(x), expected, rtol=1e-6)

    @jg.custom_gradient
    def square(x: Any) -> Any:
        return x * x, lambda g: g * 10 * x

    twice = lambda x: jg.fori_loop(0, 2, lambda i, s: square(s), x)  # noqa: E731
    assert jg.grad(twice)(2.0) == 40 * 20.0
    kept = lambda x: jg.fori_loop(0, 2, lambda i, s: jg.prevent_gradient(s * x, "not this way"), x)  # noqa: E731
    assert jg.compile(kept)(2.0) == 8.0
    with pytest.raises(LookupError, match="not this way"):
        jg.grad(kept)(2.0)
    halted = lambda x: jg.fori_loop(0, 3, lambda i, s: s * jg.stop_gradient(s) + x, x)  # noqa: E731
    assert jg.grad(halted)(2.0) == 1 + 38 * (1 + 6 * (1 + 2))


def test_conditions_say_what_to_use() -> None:
    def loop(x: Any) -> Any:
        while x < 10:
            x = x * 2
        return x

    for fn in (loop, lambda x: jg.fori_loop(0, 3, lambda i, s: s if s > 0 else x, x)):
        with pytest.raises(TypeError, match=r"jg\.cond\(condition, f, g\) for if, jg\.while_loop for while"):
            jg.compile(fn)(1.0)
    unrolled = jg.compile(lambda x, n: sum(x * k for k in range(n)), static_argnums=1)
    assert unrolled(2.0, 4) == 12.0


def doubled(x: Any) -> Any:
    """Each step puts another row of as many numbers behind: a state that changes its shape."""
    body = lambda s: (s[0] + 1, np.concatenate([s[1], np.sin(2.0 * s[1])]))  # noqa: E731
    return jg.while_loop(lambda s: s[0] < 4, body, (0, x), shape_invariants=((), (None,)))[1]


def test_all_derivatives_of_states_that_change_their_shape() -> None:
    pair = lambda x: np.stack([np.sum(doubled(x) ** 2), np.sum(doubled(x * x[0]))])  # noqa: E731
    total = lambda x: np.sum(doubled(x) ** 2)  # noqa: E731
    x, steps = np.array([0.3, 0.5]), 1e-6 * np.eye(2)
    columns = [(pair(x + d) - pair(x - d)) / 2e-6 for d in steps]
    rows = [(jg.grad(total)(x + d) - jg.grad(total)(x - d)) / 2e-6 for d in steps]
    for way in (lambda f: f, jg.compile):
        for jacobian in (jg.jacrev, jg.jacfwd):
            np.testing.assert_allclose(way(jacobian(pair))(x), np.transpose(columns), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(way(jg.hessian(total))(x), rows, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(way(lambda x: jg.hvp(total, (x,), (x,)))(x), rows @ x, rtol=1e-6)
        moved = way(lambda x: jg.jvp(doubled, (x,), (x,)))(x)
        np.testing.assert_allclose(moved[1], jg.jacfwd(lambda t: doubled(t * x).reshape(32))(1.0), rtol=1e-9)
    with pytest.raises(jg.ShapeError, match=r"(?s)returns f64\[\?\].*its Jacobian.*jg.jvp or jg.vjp"):
        jg.jacobian(doubled)(x)


REFUSED: list[tuple[type[Exception], str, Any]] = [
    (jg.ShapeError, r"one bool(?s:.*)bool\[3\](?s:.*)np.any", lambda x: jg.while_loop(lambda s: s < 3, np.exp, x)),
    (jg.DTypeError, r"one bool(?s:.*)got: +f64\[\]", lambda x: jg.while_loop(lambda s: np.sum(s), np.exp, x)),
    (TypeError, r"the state is empty(?s:.*)jg.scan and jg.fori_loop", lambda x: jg.while_loop(bool, lambda s: s, ())),
    (TypeError, r"expected: +\(\(\*,\)\)(?s:.*)got: +\(\[\*\]\)",
     lambda x: jg.while_loop(lambda s: np.sum(s[0]) < 9, lambda s: [s[0] + 1], (x,))),
    (TypeError, r"a pair \(carry, y\)(?s:.*)\(carry, None\)", lambda x: jg.scan(lambda c, t: c, 0.0, x)),
    (jg.ShapeError, r"one bool, got bool\[3\](?s:.*)np.where", lambda x: jg.cond(x > 0, lambda: x, lambda: -x)),
    (jg.DTypeError, r"one integer, got f64\[\](?s:.*)astype", lambda x: jg.switch(np.sum(x), [lambda: x])),
]  # fmt: skip


@pytest.mark.parametrize(("error", "text", "fn"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_is_refused_of_values_too(error: Any, text: str, fn: Any) -> None:
    """On arrays, on eager tensors and traced: the same error with what to do, and the user's line."""
    for way in (fn, lambda x: fn(jg.asarray(x)), jg.compile(fn)):
        with pytest.raises(error, match=text) as raised:
            way(np.ones(3))
        assert isinstance(raised.value, jg.JitgradError) and "at test_control_states.py:" in str(raised.value)


def test_branches_that_differ_say_what_to_do() -> None:
    def differing(other: Any) -> Any:
        return jg.compile(lambda x: jg.cond(x[0] > 0, lambda: x, lambda: other(x)))(np.ones(3))

    with pytest.raises(TypeError, match=r"different structures(?s:.*)got: +one array(?s:.*)np.zeros_like"):
        differing(lambda x: (x, x))
    with pytest.raises(jg.ShapeError, match=r"different arrays(?s:.*)np.pad"):
        differing(lambda x: x[:2])
    with pytest.raises(jg.DTypeError, match=r"different arrays(?s:.*)astype"):
        differing(lambda x: x.astype(np.float32))


@pytest.mark.parametrize("way", WAYS)
def test_numbers_of_python_give_way_to_wider_ones(way: Any) -> None:
    assert way(lambda x: jg.while_loop(lambda s: s < 10, lambda s: s * x, 1))(2.5) == 15.625
    assert way(lambda x: jg.cond(x > 0, lambda: 1, lambda: 2.5))(-1.0) == 2.5
    assert way(lambda x: jg.fori_loop(0, 3, lambda i, s: s * x, 1))(np.float32(2.0)).dtype == np.float32


def test_integers_do_not_take_floats() -> None:
    for fn in (lambda x: jg.fori_loop(0, 3, lambda i, s: 0.5, x), lambda x: jg.cond(x > 0, lambda: x, lambda: 0.5)):
        with pytest.raises(TypeError, match=r"expected: i64\[\]"):
            jg.compile(fn)(np.int64(3))


def test_gradients_in_bodies_by_what_is_around() -> None:
    v = jg.Variable(3.0)
    graph = jg.Graph()
    with graph.as_default():
        x = jg.placeholder(np.float64, ())
        t = x * 2
        u = t * t

        def body(i: Any, q: Any) -> Any:
            return sum(jg.gradients(q * q * t * v, [q, t, v])) + jg.gradients(u, t)[0]

        y = jg.fori_loop(0, 1, body, x)
    assert jg.Session(graph).run(y, {x: 2.0}) == 2 * 2 * 4 * 3 + 4 * 3 + 4 * 4 + 2 * 4


@pytest.mark.parametrize("way", ["scan", "while"])
def test_states_that_become_what_others_were(way: str) -> None:
    """Lines of delays behind one another, two that share a source, a pair exchanged, one that stays."""
    rng = np.random.default_rng(1)
    arrays = tuple(rng.normal(size=30) for _ in range(9))

    def step(state: Any) -> Any:
        a, b, c, d, e, f, g, _, stays = state
        return np.sin(a) + 0.5 * c, a, b, a, f, e, np.cos(d) * stays, g, stays

    def after(*state: Any) -> Any:
        if way == "scan":
            return jg.scan(lambda s, _: (step(s), s[1]), state, np.zeros(5))[0]
        found = jg.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, *step(s[1:])), (0, *state))
        return tuple(found[1:])

    expected: Any = arrays
    for _ in range(5):
        expected = step(expected)
    f = jg.compile(after)
    for found in (f(*arrays), f.interpret(*arrays)):
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)

    def loss(*state: Any) -> Any:
        return sum(np.sum(x * (k + 1.0)) for k, x in enumerate(after(*state)))

    g = jg.compile(jg.grad(loss, tuple(range(9))))
    for x, y in zip(g(*arrays), g.interpret(*arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)
