"""Tapes and their family where operations go into a graph: in traced functions, and in graphs of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import pytree

X = np.arange(6.0).reshape(3, 2)
Fn = Callable[..., Any]


def in_eager_mode(fn: Fn, *args: Any) -> Any:
    return fn(*[jg.asarray(a) for a in args])


def compiled(fn: Fn, *args: Any) -> Any:
    return jg.compile(fn)(*args)


def in_a_graph(fn: Fn, *args: Any) -> Any:
    with jg.Graph().as_default():
        feeds = [jg.placeholder(np.asarray(a).dtype, np.shape(a)) for a in args]
        return jg.Session().run(fn(*feeds), dict(zip(feeds, args, strict=True)))


WAYS = pytest.mark.parametrize("way", [in_eager_mode, compiled, in_a_graph])


@WAYS
def test_variables_are_noted_and_differentiated(way: Fn) -> None:
    v, u, fixed = jg.Variable([1.0, 2.0]), jg.Variable(3.0), jg.Variable(1.0, trainable=False)

    def fn(s: Any) -> Any:
        with jg.GradientTape() as tape:
            y = np.sum(v * v * u) * s * fixed
        assert tape.watched_variables() == (v, u)
        return tape.gradient(y, [v, u])

    first, second = way(fn, 2.0)
    np.testing.assert_allclose(first, [12.0, 24.0])
    assert second == 10.0


@WAYS
def test_implicit_gradients(way: Fn) -> None:
    v, u = jg.Variable([1.0, 2.0]), jg.Variable(3.0)

    def fn(s: Any) -> Any:
        pairs = jg.implicit_grad(lambda: np.sum(u * v * v) * s)()
        assert [variable for _, variable in pairs] == [v, u]
        return [g for g, _ in pairs]

    first, second = way(fn, 2.0)
    np.testing.assert_allclose(first, [12.0, 24.0])
    assert second == 10.0


@WAYS
def test_a_tensor_passed_twice_counts_as_two(way: Fn) -> None:
    def fn(x: Any) -> Any:
        return jg.gradients_function(lambda a, b: a * a * b)(x, x)

    assert [float(g) for g in way(fn, 3.0)] == [18.0, 9.0]


@WAYS
def test_nothing_is_recorded_while_recording_is_stopped(way: Fn) -> None:
    def fn(x: Any) -> Any:
        with jg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            with tape.stop_recording():
                hidden = x * x
            y = hidden * x
        assert tape.gradient(hidden, x) is None
        return tape.gradient(y, x)

    assert way(fn, 3.0) == 9.0


@WAYS
def test_jacobians(way: Fn) -> None:
    def fn(x: Any) -> Any:
        with jg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = np.sin(x) * x[:, :1]
        return tape.jacobian(y, x), tape.batch_jacobian(y, x)

    whole, rows = way(fn, X)
    np.testing.assert_allclose(whole, jg.jacobian(lambda x: np.sin(x) * x[:, :1])(X), rtol=1e-13)
    np.testing.assert_allclose(rows, np.asarray(whole)[np.arange(3), :, np.arange(3)], rtol=1e-13)


@WAYS
def test_jacobians_of_variables_and_of_what_does_not_depend(way: Fn) -> None:
    v = jg.Variable([1.0, 2.0])

    def fn(x: Any) -> Any:
        with jg.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = v * v
        assert tape.jacobian(y, x) is None
        return tape.jacobian(y, v)

    np.testing.assert_allclose(way(fn, 1.0), [[2, 0], [0, 4]])


@WAYS
def test_a_tape_is_spent_by_its_gradient(way: Fn) -> None:
    def fn(x: Any) -> Any:
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        tape.gradient(y, x)
        return tape.gradient(y, x)

    with pytest.raises(RuntimeError, match="persistent=True"):
        way(fn, 2.0)


@WAYS
def test_custom_gradients_with_variables(way: Fn) -> None:
    u = jg.Variable(3.0)

    @jg.custom_gradient
    def cube(x: Any) -> Any:
        return x**3 * u, lambda dy, variables=None: (dy * 3 * x**2 * u, [dy * x**3 for _ in variables])

    def fn(x: Any) -> Any:
        with jg.GradientTape() as outer:
            outer.watch(x)
            with jg.GradientTape() as inner:
                inner.watch(x)
                y = cube(x)
            g = inner.gradient(y, [x, u])
            s = g[0] + g[1]
        return [*g, *outer.gradient(s, [x, u])]

    assert [float(g) for g in way(fn, 2.0)] == [36.0, 8.0, 48.0, 12.0]


@WAYS
def test_custom_rules_that_forget_variables(way: Fn) -> None:
    u = jg.Variable(3.0)

    @jg.custom_gradient
    def careless(x: Any) -> Any:
        return x * u, lambda dy: dy

    @jg.custom_gradient
    def short(x: Any) -> Any:
        return x * u, lambda dy, variables=None: (dy, [])

    def gradient(of: Fn) -> Fn:
        return lambda x: jg.gradients_function(of)(x)

    with pytest.raises(TypeError, match=r"careless.*reads 'Variable"):
        way(gradient(careless), 2.0)
    with pytest.raises(ValueError, match="0 gradients for 1 variables"):
        way(gradient(short), 2.0)


def test_gradients_function_of_numbers_in_a_graph() -> None:
    with jg.Graph().as_default():
        (g,) = jg.gradients_function(lambda a: a * a)(2.0)
        assert isinstance(g, jg.Tensor) and jg.Session().run(g) == 4.0


# -- compiled functions on tapes -----------------------------------------------------------------------------


def test_look_ups_in_compiled_functions_give_slices() -> None:
    table, ids = jg.Variable(np.ones((1000, 4))), np.array([3, 5, 3])
    loss = jg.compile(lambda ids: np.sum(np.take(table, ids, axis=0) ** 2))
    with jg.GradientTape() as tape:
        y = loss(ids)
    g = tape.gradient(y, table)
    assert isinstance(g, jg.IndexedSlices) and g.values.shape == (3, 4)
    expected = np.zeros((1000, 4))
    np.add.at(expected, ids, 2.0)
    np.testing.assert_array_equal(np.asarray(g), expected)
    jg.optimize.SGD(0.5).apply_gradients([(g, table)])
    np.testing.assert_array_equal(table.numpy(), 1.0 - 0.5 * expected)


def test_second_order_through_a_look_up() -> None:
    w, ids = jg.asarray(np.ones((10, 4))), np.array([3, 5, 3])
    loss = jg.compile(lambda w, ids: np.sum(w[ids] ** 2))
    with jg.GradientTape() as outer:
        outer.watch(w)
        with jg.GradientTape() as tape:
            tape.watch(w)
            y = loss(w, ids)
        g = tape.gradient(y, w)
        s = np.sum(g * g)
    expected = np.zeros((10, 4))
    expected[3], expected[5] = 32.0, 8.0
    np.testing.assert_array_equal(np.asarray(outer.gradient(s, w)), expected)


def test_a_row_that_is_also_used_densely() -> None:
    w = jg.asarray(np.ones((4, 2)))
    loss = jg.compile(lambda w: np.sum(w[np.array([1, 1])]) + np.sum(w * 3.0))
    with jg.GradientTape() as tape:
        tape.watch(w)
        y = loss(w)
    g = tape.gradient(y, w)
    assert isinstance(g, jg.EagerTensor)
    np.testing.assert_array_equal(g, [[3, 3], [5, 5], [3, 3], [3, 3]])


def cubes(x: Any) -> Any:
    return np.sum(x**3)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda x: np.sum(jg.grad(cubes)(x)), lambda x: 6 * x),
        (lambda x: np.sum(jg.value_and_grad(cubes)(x)[1]), lambda x: 6 * x),
        (lambda x: jg.value_and_grad(cubes)(x)[0], lambda x: 3 * x**2),
        (lambda x: np.sum(jg.jacrev(np.sin)(x)), lambda x: -np.sin(x)),
        (lambda x: np.sum(jg.jacfwd(np.sin)(x)), lambda x: -np.sin(x)),
        (lambda x: np.sum(jg.hessian(cubes)(x)), lambda x: 6 + 0 * x),
        (lambda x: np.sum(jg.hvp(cubes, x, np.ones(3))), lambda x: 6 + 0 * x),
        (lambda x: jg.jvp(cubes, (x,), (np.ones(3),))[1], lambda x: 6 * x),
        (lambda x: np.sum(jg.vjp(cubes, x)[1](2.0)[0]), lambda x: 12 * x),
        (lambda x: np.sum(jg.grad(jg.compile(cubes))(x)), lambda x: 6 * x),
        (lambda x: jg.jvp(jg.compile(cubes), (x,), (np.ones(3),))[1], lambda x: 6 * x),
    ],
)
def test_transforms_of_eager_tensors_stay_on_the_tape(transform: Fn, expected: Fn) -> None:
    x = np.array([1.0, 2.0, 3.0])
    t = jg.asarray(x)
    with jg.GradientTape() as tape:
        tape.watch(t)
        y = transform(t)
    assert isinstance(y, jg.EagerTensor)
    np.testing.assert_allclose(tape.gradient(y, t), expected(x), rtol=1e-12, atol=1e-15)


def test_transforms_give_eager_tensors_for_eager_tensors_alone() -> None:
    x = np.array([1.0, 2.0])
    assert isinstance(jg.grad(cubes)(jg.asarray(x)), jg.EagerTensor)
    with jg.GradientTape():
        assert type(jg.grad(cubes)(x)) is np.ndarray


def test_variables_read_in_a_transform_of_arrays() -> None:
    v = jg.Variable([1.0, 2.0])
    with jg.GradientTape() as tape:
        y = np.sum(jg.grad(lambda x: np.sum(x * v * v))(np.ones(2)))
    np.testing.assert_array_equal(tape.gradient(y, v), [2.0, 4.0])


# -- a tape records the same with values and traced ----------------------------------------------------------


def made_before(x: Any, tape: Any) -> Any:
    y = x * x
    with tape:
        tape.watch(x)
        z = y * x
    return tape.gradient(z, x)


def made_after(x: Any, tape: Any) -> Any:
    with tape:
        tape.watch(x)
        y = x * x
    return tape.gradient(y * x, x)


def made_of_what_was_made_after(x: Any, tape: Any) -> Any:
    with tape:
        tape.watch(x)
        y = x * x
    late = y * x
    with tape:
        z = late * x
    return tape.gradient(z, x)


def watched_late(x: Any, tape: Any) -> Any:
    with tape:
        y = x * x
        tape.watch(x)
        z = y * x
    return tape.gradient(z, x)


def not_watched(x: Any, tape: Any) -> Any:
    u = x * 2.0
    with tape:
        tape.watch(u)
        y = x * u
    return tape.gradient(y, x)


def watched_between(x: Any, tape: Any) -> Any:
    u = x * 2.0
    with tape:
        tape.watch([x, u])
        y = x * u
    return tape.gradient(y, [x, u])


def reset(x: Any, tape: Any) -> Any:
    with tape:
        tape.watch(x)
        y = x * x
        tape.reset()
        tape.watch(x)
        z = y * x
    return tape.gradient(z, x)


def reset_and_asked_for_more(x: Any, tape: Any) -> Any:
    with tape:
        tape.watch(x)
        tape.gradient(x * x, x)
        tape.reset()
        tape.watch(x)
        y = x * x * x
    return tape.gradient(y, x)


def the_target_itself(x: Any, tape: Any) -> Any:
    with tape:
        y = x * x
    return tape.gradient(x, x), tape.gradient(y, x) if tape._persistent else None


def jacobians(x: Any, tape: Any) -> Any:
    y = np.stack([x, x])
    with tape:
        tape.watch(x)
        z = y * x
    return tape.jacobian(z, [x, y])


def an_inner_tape(x: Any, tape: Any) -> Any:
    y = x * x
    with tape:
        tape.watch(x)
        with jg.GradientTape() as inner:
            inner.watch([x, y])
            z = y * x * x
        u, v = inner.gradient(z, [x, y])
        s = u * v
    return tape.gradient(s, x)


COURSES = [
    made_before, made_after, made_of_what_was_made_after, watched_late, not_watched, watched_between, reset,
    reset_and_asked_for_more, the_target_itself, jacobians, an_inner_tape,
]  # fmt: skip


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("course", COURSES, ids=lambda fn: fn.__name__)
def test_a_tape_records_the_same_traced(course: Fn, persistent: bool) -> None:
    def fn(x: Any) -> Any:
        return course(x, jg.GradientTape(persistent))

    expected = fn(jg.asarray(3.0))
    found = jg.compile(fn)(3.0)
    as_numbers = [None if x is None else np.asarray(x).tolist() for x in pytree.flatten([expected])[0]]
    assert [None if x is None else np.asarray(x).tolist() for x in pytree.flatten([found])[0]] == as_numbers
    assert pytree.flatten([found])[1] == pytree.flatten([expected])[1]


@WAYS
def test_variables_are_watched_as_they_are_with_values(way: Fn) -> None:
    v = jg.Variable(2.0)

    def unwatched(x: Any) -> Any:
        early = v * x
        with jg.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(x)
            y = v * x
        assert tape.gradient(y, v) is None
        with jg.GradientTape() as tape:
            z = early + v * v * x
        return tape.gradient(z, v)

    assert way(unwatched, 3.0) == 12.0


def test_assignments_between_reads_and_the_tape() -> None:
    v = jg.Variable(2.0)

    @jg.compile
    def fn(x: Any) -> Any:
        v.assign(v * 2.0)
        before = v * 1.0
        with jg.GradientTape() as tape:
            y = v * v * x + before
        return tape.gradient(y, v)

    assert fn(3.0) == 24.0 and fn(3.0) == 48.0
