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
