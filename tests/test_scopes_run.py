"""Scopes proved by running: how many native calls and NumPy calls a run makes, merged with the gradients and apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg

AT = np.linspace(0.1, 0.9, 24)


@pytest.fixture
def graph() -> Any:
    with jg.Graph().as_default() as graph:
        yield graph


def launches(fetches: Any, feeds: Any) -> tuple[int, int]:
    """Native calls and NumPy calls of a run that is not the first."""
    session = jg.Session()
    session.run(fetches, feeds)
    with jg.profile() as profile:
        session.run(fetches, feeds)
    kinds = [event.kind for event in profile.events]
    return kinds.count("native"), kinds.count("numpy")


def scope(separate: bool | None) -> Any:
    """Compiled, with gradients merged or apart; None: not compiled."""
    return jg.jit_scope(separate is not None, separate_compiled_gradients=bool(separate))


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize(("separate", "calls"), [(False, [1, 1, 1, 1]), (True, [1, 2, 4, 8])])
def test_each_order_of_gradients_is_one_scope_or_doubles_them(
    graph: jg.Graph, separate: bool, calls: list[int], gate: bool
) -> None:
    """Apart, each gradients() gives every scope there is one of its own: 2 to the order. Sums (x has three readers),
    seeds and gates are in them, so that NumPy has nothing to do.
    """
    x = jg.placeholder(np.float64, (24,))
    with scope(separate):
        found = [np.tanh(x) * np.exp(-x) + np.sin(x)]
    for _ in range(3):
        found += jg.gradients(found[-1], x, gate_gradients=gate)
    assert [launches(found[: order + 1], {x: AT}) for order in range(4)] == [(count, 0) for count in calls]


def in_two_parts(graph: jg.Graph, separate: bool, used_twice: bool) -> tuple[Any, Any, Any]:
    """A compiled part, a bare operation, another compiled part that reads the first one's value once or twice."""
    x = jg.placeholder(np.float64, (24,))
    with scope(separate):
        a = np.tanh(x) * 2.0
    bare = np.sin(a)
    with scope(separate):
        b = np.exp(bare) * (a if used_twice else bare)
    (g,) = jg.gradients(b, x)
    return x, b, g


@pytest.mark.parametrize("used_twice", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_compiled_parts_with_and_without_a_sum_between_them(
    graph: jg.Graph, separate: bool, used_twice: bool
) -> None:
    """Forward, bare, forward with its gradient (or apart), bare gradient, gradient of the first part. Where the first
    part's value is read by both, the sum of its gradients is bare as well: one of its addends is.
    """
    x, b, g = in_two_parts(graph, separate, used_twice)
    assert launches([b, g], {x: AT}) == (4 if separate else 3, 4 if used_twice else 3)
    sums = [op for op in graph.operations if op.type == "add_n" and op.name == "gradients/add_n"]
    assert [op.attrs for op in sums if used_twice] == [{}] * used_twice


def test_a_sum_of_the_gradients_of_two_scopes(graph: jg.Graph) -> None:
    """Three compiled parts, the first read by the others: 3 forward, 3 backward, and no call for the sum."""
    for separate in (False, True):
        x = jg.placeholder(np.float64, (24,))
        with scope(separate):
            a = np.tanh(x)
        with scope(separate):
            b = np.exp(a)
        with scope(separate):
            c = np.sin(a)
        grads = jg.gradients([b, c], [x])
        native, numpy = launches([b, c, *grads], {x: AT})
        assert (native, numpy) == ((6, 0) if separate else (4, 0))


def test_nested_scopes_and_functions_of_operations_run_as_they_say(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, (24,))
    with jg.jit_scope(lambda op: op.type != "sin"):
        y = np.exp(np.sin(np.exp(x)))
        with jg.jit_scope(False):
            y = np.cos(y)
        with jg.jit_scope(True):
            y = np.tanh(y)
    (g,) = jg.gradients(y, x)
    assert launches(y, {x: AT}) == (3, 2)
    types = [op.original_op.type for op in graph.operations if op.original_op and not op.attrs["_XlaCompile"]]
    assert set(types) == {"sin", "cos"}
    np.testing.assert_allclose(jg.Session().run(g, {x: AT}), jg.grad(lambda x: np.sum(
        np.tanh(np.cos(np.exp(np.sin(np.exp(x)))))))(AT), rtol=1e-13)  # fmt: skip


def test_scopes_left_by_exceptions_compile_no_less_afterwards(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, (24,))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), jg.jit_scope(), jg.jit_scope():
            raise ZeroDivisionError
    with jg.jit_scope():
        y = np.tanh(x) * x
    assert launches([y, *jg.gradients(y, x)], {x: AT}) == (1, 0)


@pytest.mark.parametrize("method", list(jg.AggregationMethod))
def test_sums_by_each_method_stay_in_one_call(graph: jg.Graph, method: Any) -> None:
    x = jg.placeholder(np.float64, (24,))
    with jg.jit_scope():
        y = sum(np.sin(x * (1.0 + k)) for k in range(6))
    assert launches(jg.gradients(y, x, aggregation_method=method), {x: AT}) == (1, 0)
