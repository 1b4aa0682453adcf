"""Variables in traced functions: reads and assignments run in the order of the code, as they do eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.ops.slices import IndexedSlices

Body = Callable[[Any], Any]


def doubled(v: Any) -> Any:
    v.assign(v * 2)
    return v * 1.0


def twice_added(v: Any) -> Any:
    v.assign_add(np.ones(3))
    v.assign_add(np.ones(3))
    return v.value()


def read_between(v: Any) -> Any:
    before = v * 1.0
    v.assign(v + 1)
    between = v + 0.0
    v.assign(v * 3)
    return before, between, v.read(), v


def set_before_reading(v: Any) -> Any:
    v.assign(np.full(3, 7.0))
    return v.value() + v.read()


def overwritten(v: Any) -> Any:
    v.assign(np.zeros(3))
    v.assign(np.ones(3))
    return v * 2.0


def scattered(v: Any) -> Any:
    before = v * 1.0
    v.scatter_add(IndexedSlices(np.array([5.0, 5.0]), np.array([0, 0])))
    after = v * 1.0
    v.scatter_update(IndexedSlices(np.array([1.0]), np.array([2])))
    return before, after, v.value()


BODIES = (doubled, twice_added, read_between, set_before_reading, overwritten, scattered)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_compiled_functions_keep_the_order_of_reads_and_assignments(body: Body) -> None:
    eager, compiled = jg.Variable([1.0, 2.0, 3.0]), jg.Variable([1.0, 2.0, 3.0])
    call = jg.compile(lambda: body(compiled))
    for _ in range(3):
        expected, found = body(eager), call()
        for a, b in zip(jg.pytree.flatten(expected)[0], jg.pytree.flatten(found)[0], strict=True):
            if a is not eager:
                np.testing.assert_array_equal(b, a)
        np.testing.assert_array_equal(compiled.numpy(), eager.numpy())


def test_what_is_returned_of_a_variable_is_its_last_value() -> None:
    v = jg.Variable(2.0)

    @jg.compile
    def call() -> Any:
        v.assign(v * 2)
        return v

    assert call() == 4.0 and call() == 8.0


def test_gradients_reach_reads_after_an_assignment() -> None:
    v = jg.Variable(3.0)

    def body(x: Any) -> Any:
        before = v * 2.0
        v.assign(v + 1.0)
        return (before + v * v) * x

    def gradients(call: Any) -> Any:
        v.assign(3.0)
        x = jg.asarray(5.0)
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return y, tape.gradient(y, [x, v])

    (eager, (ex, ev)), (compiled, (cx, cv)) = gradients(body), gradients(jg.compile(body))
    assert (float(eager), float(ex), float(ev)) == (float(compiled), float(cx), float(cv)) == (110.0, 22.0, 50.0)


def test_gradients_inside_a_compiled_function_count_all_reads() -> None:
    v = jg.Variable(3.0)

    @jg.compile
    def call() -> Any:
        before = v * 2.0
        v.assign(v + 1.0)
        return jg.gradients(before + v * v, [v])[0]

    assert call() == 10.0


def test_graphs_read_once() -> None:
    with jg.Graph().as_default() as graph:
        v = jg.Variable(1.0)
        first = v.value()
        v.assign(v + 1.0)
        assert v.value() is first and graph.variables[v] is first


def test_scatters_refuse_what_assign_refuses() -> None:
    v = jg.Variable(np.arange(3))
    slices = IndexedSlices(np.array([1.5]), np.array([0]))
    with pytest.raises(jg.DTypeError, match="cannot take rows of dtype float64"):
        v.scatter_update(slices)
    with pytest.raises(jg.DTypeError, match="cannot take rows of dtype float64"):
        jg.compile(lambda: v.scatter_add(slices))()
    np.testing.assert_array_equal(v.numpy(), [0, 1, 2])


# -- eager functions ---------------------------------------------------------------------------------------------


def test_arrays_of_tensors_and_variables_keep_the_tape() -> None:
    x, v = jg.asarray(3.0), jg.Variable(2.0)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        a = jg.numpy.array([[x, 1.0], [v, x * v]], ndmin=3)
        b = jg.numpy.asarray((x, v), dtype=np.float32)
    assert a.shape == (1, 2, 2) and b.dtype == np.float32
    np.testing.assert_array_equal(a, [[[3, 1], [2, 6]]])
    assert [float(g) for g in tape.gradient(a, [x, v])] == [3.0, 4.0]
    assert [float(g) for g in tape.gradient(b, [x, v])] == [1.0, 1.0]
    assert jg.numpy.asarray(x) is x and jg.numpy.array(x) is not x


def test_custom_rules_give_tensors_of_the_arguments_shapes() -> None:
    @jg.custom_gradient
    def with_arrays(x: Any, y: Any) -> Any:
        return x * y, lambda g: ([1.0, 2.0], None)

    @jg.custom_gradient
    def wrong(x: Any) -> Any:
        return x * 2.0, lambda g: np.ones(3)

    assert [g if g is None else g.tolist() for g in jg.gradients_function(with_arrays)(np.ones(2), np.ones(2))] == [
        [1.0, 2.0], None,
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"the rule of wrong gave a wrong shape for input 0"):
        jg.gradients_function(wrong)(np.ones(2))


def product(x: Any, y: Any) -> Any:
    return x * y


@pytest.mark.parametrize(
    ("params", "expected"),
    [([-1], [2.0]), (1, [2.0]), ("y", [2.0]), ([np.int64(0)], [3.0]), ([], []), ([-1, 0], [2.0, 3.0])],
)
def test_params_of_gradient_functions(params: Any, expected: Any) -> None:
    assert [float(g) for g in jg.gradients_function(product, params)(2.0, 3.0)] == expected
    traced = jg.compile(lambda x, y: tuple(jg.gradients_function(product, params)(x, y)))
    assert [float(g) for g in traced(2.0, 3.0)] == expected


def test_results_that_are_no_tensors_have_no_gradients() -> None:
    assert jg.gradients_function(lambda x: 2.0)(1.0) == [None]
    assert jg.gradients_function(lambda x: np.ones(3))(1.0) == [None]
    v = jg.Variable(1.0)
    assert jg.implicit_grad(lambda: float(v * 2.0))() == [(None, v)]


def test_a_vjp_may_be_called_many_times() -> None:
    _, vjp = jg.make_vjp(product)(2.0, 3.0)
    assert [[float(g) for g in vjp(dy)] for dy in (1.0, 10.0)] == [[3.0, 2.0], [30.0, 20.0]]
    _, once = jg.make_vjp(product, persistent=False)(2.0, 3.0)
    once()
    with pytest.raises(RuntimeError, match="has given its gradient"):
        once()


def test_watched_variables_that_are_not_trainable_stay_watched() -> None:
    v, other = jg.Variable(2.0, trainable=False), jg.Variable(3.0, trainable=False)
    with jg.GradientTape() as tape:
        tape.watch(v)
        v.assign(5.0)
        y = v * v * other
    assert [None if g is None else float(g) for g in tape.gradient(y, [v, other])] == [30.0, None]
    assert tape.watched_variables() == (v,)


def test_gradients_read_a_variable_in_the_graph_of_ys_also_when_another_one_is_the_default():
    graph = jg.Graph()
    with graph.as_default():
        v = jg.Variable(np.array([1.0, 2.0]))
        y = np.sum(v * v * v)
    (slope,) = jg.gradients(y, [v])
    (stopped,) = jg.gradients(y, [y], stop_gradients=v)
    (curvature,) = jg.hessians(y, [v])
    (product,) = jg.hessian_vector_product(y, [v], [np.ones(2)])
    got = jg.Session(graph).run([slope, stopped, curvature, product])
    np.testing.assert_array_equal(got[0], [3.0, 12.0])
    assert got[1] == 1.0
    np.testing.assert_array_equal(got[2], [[6.0, 0.0], [0.0, 12.0]])
    np.testing.assert_array_equal(got[3], [6.0, 12.0])
