"""The rules of jit scopes and of the scopes of gradient operations, as tables; what is done with them is
tested elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.scopes import COMPILE, SCOPE, SEPARATE

pytestmark = pytest.mark.quick


@pytest.fixture
def graph() -> Any:
    with jg.Graph().as_default() as graph:
        yield graph


def attrs(t: Any) -> tuple[Any, Any, Any]:
    """Compile, scope, separate of a tensor's operation; None where it has none."""
    return tuple(t.op.attrs.get(key) for key in (COMPILE, SCOPE, SEPARATE))  # type: ignore[return-value]


def scalar(name: str | None = None) -> Any:
    return jg.placeholder(np.float64, (), name=name)


# -- jit scopes ----------------------------------------------------------------------------------------------


def test_scopes_count_per_graph_from_zero(graph: jg.Graph) -> None:
    x = scalar()
    with jg.jit_scope():
        a = x + x
    with jg.jit_scope(False):
        b = x + x
    with jg.jit_scope():
        c = x + x
    assert [attrs(t)[:2] for t in (a, b, c)] == [
        (True, "jit_scope_0"),
        (False, "jit_scope_1"),
        (True, "jit_scope_2"),
    ]
    with jg.Graph().as_default(), jg.jit_scope():
        y = scalar()
        assert attrs(y + y)[1] == "jit_scope_0"


def test_operations_outside_have_no_attributes(graph: jg.Graph) -> None:
    x = scalar()
    with jg.jit_scope():
        pass
    assert attrs(x) == attrs(x * x) == (None, None, None)


def test_constants_of_python_numbers_are_inside(graph: jg.Graph) -> None:
    x = scalar()
    with jg.jit_scope():
        y = x + 1.0
    assert attrs(y.op.inputs[1])[1] == "jit_scope_0"


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ((True, False), (True, None), (True, False)),
        ((True, True), (True, None), (True, True)),
        ((True, True), (True, False), (True, False)),
        ((True, False), (True, True), (True, True)),
        ((True, False), (False, None), (False, False)),
        ((False, True), (True, None), (True, True)),
    ],
)
def test_nested_scope_keeps_the_roots_name(graph: jg.Graph, outer: Any, inner: Any, expected: Any) -> None:
    x = scalar()
    with jg.jit_scope(*outer):
        with jg.jit_scope(*inner):
            y = x * x
            with jg.jit_scope():
                z = x * x
        after = x * x
    assert attrs(y) == (expected[0], "jit_scope_0", expected[1])
    assert attrs(z) == (True, "jit_scope_0", expected[1])
    assert attrs(after) == (outer[0], "jit_scope_0", outer[1])


def test_an_operation_keeps_the_attributes_that_it_has(graph: jg.Graph) -> None:
    x = scalar()
    with jg.jit_scope():
        a = np.exp(x)
    b = a * 2.0
    b.op.attrs[COMPILE] = False
    before = attrs(a), attrs(b)
    with jg.jit_scope(separate_compiled_gradients=True):
        c = a * b
        jg.gradients(c, x)
    assert (attrs(a), attrs(b)) == before == ((True, "jit_scope_0", False), (False, None, None))
    assert attrs(c) == (True, "jit_scope_1", True)
    of_b = [op for op in graph.operations if op.original_op is b.op]
    assert of_b and all(op.attrs == {COMPILE: False} for op in of_b)
    with jg.jit_scope(), graph.attr_scope(**{COMPILE: False}):
        assert attrs(x + 1.0) == (False, "jit_scope_2", False)


def test_an_exception_restores_everything(graph: jg.Graph) -> None:
    x = scalar()
    with pytest.raises(ZeroDivisionError), jg.jit_scope(), jg.jit_scope(False):
        raise ZeroDivisionError
    assert attrs(x * x) == (None, None, None)
    with jg.jit_scope():
        assert attrs(x * x) == (True, "jit_scope_1", False)


def test_compile_ops_is_asked_once_per_operation(graph: jg.Graph) -> None:
    asked: list[tuple[str, int]] = []

    def only_tanh(op: jg.Operation) -> bool:
        asked.append((op.type, len(op.inputs)))
        return op.type == "tanh"

    x = scalar()
    with jg.jit_scope(only_tanh):
        y, z = np.tanh(x), x * x
    assert (attrs(y)[0], attrs(z)[0]) == (True, False)
    assert asked == [("tanh", 1), ("multiply", 2)]


@pytest.mark.parametrize("compile_ops", [1, "yes", None, lambda op: 1])
def test_compile_ops_must_be_a_bool(graph: jg.Graph, compile_ops: Any) -> None:
    x = scalar()
    with pytest.raises(TypeError, match="compile_ops"), jg.jit_scope(compile_ops):
        np.tanh(x)


# -- scopes of gradients -------------------------------------------------------------------------------------


def gradient_ops(graph: jg.Graph, before: int) -> list[Any]:
    return graph.operations[before:]


@pytest.mark.parametrize(
    ("separate", "names", "scopes"),
    [
        (False, ["GA"], ["jit_scope_0"]),
        (True, ["GA"], ["jit_scope_0_grad_GA"]),
        (False, ["GA", "GB"], ["jit_scope_0", "jit_scope_0"]),
        (True, ["GA", "GB"], ["jit_scope_0_grad_GA", "jit_scope_0_grad_GA_grad_GB"]),
        (True, ["GA", "GB", "GC"], [
            "jit_scope_0_grad_GA", "jit_scope_0_grad_GA_grad_GB", "jit_scope_0_grad_GA_grad_GB_grad_GC"]),
    ],
)  # fmt: skip
def test_scope_of_each_order_of_gradients(graph: jg.Graph, separate: bool, names: Any, scopes: Any) -> None:
    x = scalar()
    with jg.jit_scope(separate_compiled_gradients=separate):
        y = np.sin(x)
    for name, scope in zip(names, scopes, strict=True):
        before = len(graph)
        (y,) = jg.gradients(y, x, name=name)
        made = gradient_ops(graph, before)
        assert all(op.attrs[COMPILE] is True and op.attrs[SEPARATE] is separate for op in made)
        assert scope in {op.attrs[SCOPE] for op in made}


def test_gradient_operations_are_named_after_their_forward_operation(graph: jg.Graph) -> None:
    x = scalar()
    with graph.name_scope("p"):
        y = np.tanh(x)
    op = y.op
    before = len(graph)
    jg.gradients(y, x)
    jg.gradients(y, x)
    made = [o for o in gradient_ops(graph, before) if "_grad/" in o.name]
    assert {o.name.rsplit("/", 1)[0] for o in made} == {
        f"gradients/{op.name}_grad",
        f"gradients_1/{op.name}_grad",
    }
    assert all(o.original_op is op and o.source == op.source for o in made)


def test_slashes_of_a_nested_name_become_underscores(graph: jg.Graph) -> None:
    x = scalar()
    with jg.jit_scope(separate_compiled_gradients=True):
        y = np.exp(x)
    with graph.name_scope("outer"):
        (g,) = jg.gradients(y, x, name="GA")
    assert g.op.attrs[SCOPE] == "jit_scope_0_grad_outer_GA"


def test_gradient_scope_wins_over_the_scope_around_the_call(graph: jg.Graph) -> None:
    x = scalar()
    with jg.jit_scope():
        y = np.exp(x)
    z = np.exp(x)
    with jg.jit_scope(separate_compiled_gradients=True):
        (g,) = jg.gradients(y, x)
        (h,) = jg.gradients(z, x)
    assert attrs(g) == (True, "jit_scope_0", False)
    assert attrs(h) == (None, None, None)


def test_gradient_of_an_operation_kept_out_is_kept_out(graph: jg.Graph) -> None:
    x = scalar()
    with jg.jit_scope(False, separate_compiled_gradients=True):
        y = np.exp(x)
    (g,) = jg.gradients(y, x)
    assert attrs(g) == (False, "jit_scope_0", True)


@pytest.mark.parametrize("separate", [False, True])
def test_what_the_driver_makes_belongs_to_the_scope(graph: jg.Graph, separate: bool) -> None:
    x = scalar()
    with jg.jit_scope(separate_compiled_gradients=separate):
        y = np.tanh(x) * np.exp(x) + np.sin(x)
    before = len(graph)
    jg.gradients(y, x)
    made = gradient_ops(graph, before)
    sums = [op for op in made if op.type == "add_n"]
    scope = "jit_scope_0_grad_gradients" if separate else "jit_scope_0"
    assert len(sums) == 1 and len(sums[0].inputs) == 3
    assert {op.attrs.get(SCOPE) for op in made} == {scope}
    assert sums[0].name.count("/") == 1
    assert all(op.is_gradient for op in made) and not any(op.is_gradient for op in graph.operations[:before])


@pytest.mark.parametrize("method", list(jg.AggregationMethod))
def test_all_that_gradients_adds_is_a_gradient(graph: jg.Graph, method: jg.AggregationMethod) -> None:
    """Sums by each method, seeds, zeros, gates, and slices put together; of them only rules have an original."""
    table, x = jg.placeholder(np.float64, (5, 2)), scalar()
    y = np.sum(jg.gather(table, [0, 1]) * np.exp(x) + jg.gather(table, [1, 1]) * np.sin(x) + np.tanh(x) * x)
    before = len(graph)
    by_table, by_x = jg.gradients(y, [table, x], gate_gradients=True, aggregation_method=method)
    assert isinstance(by_table, jg.IndexedSlices)
    made = graph.operations[before:]
    sums = [op for op in made if op.type in ("add_n", "add", "concatenate") and op.original_op is None]
    assert len(sums) > 1 and all(op.is_gradient for op in made if op.type != "constant")
    after = len(graph)
    assert not (by_x * 2).op.is_gradient and len(graph) > after


def test_a_sum_over_two_scopes_is_in_the_scope_of_its_last_addend(graph: jg.Graph) -> None:
    x = scalar()
    with jg.jit_scope():
        a = np.exp(x)
    with jg.jit_scope():
        b = np.sin(x)
    (g,) = jg.gradients([a, b], x)
    last = max((x.op for x in g.op.inputs), key=lambda op: op.id)
    assert g.op.type == "add_n" and attrs(g) == attrs(last.outputs[0])


def test_a_callable_is_not_asked_for_gradient_operations(graph: jg.Graph) -> None:
    asked = []

    def compile_exp(op: jg.Operation) -> bool:
        asked.append(op.type)
        return op.type == "exp"

    x = scalar()
    with jg.jit_scope(compile_exp):
        y = np.sin(np.exp(x))
        count = len(asked)
        before = len(graph)
        jg.gradients(y, x)  # inside the scope, whose function would be asked for other operations
    assert len(asked) == count
    answers = {op.original_op.type: op.attrs[COMPILE] for op in gradient_ops(graph, before) if op.original_op}
    assert answers["exp"] is True and answers["sin"] is False


def test_compile_runs_inside_a_scope_of_its_own() -> None:
    seen = []

    @jg.compile(separate_compiled_gradients=True)
    def f(x: Any) -> Any:
        y = np.exp(x)
        seen.append(attrs(y))
        return y

    f(1.0)
    jg.compile(lambda x: f(x) + 1.0)(1.0)
    assert seen[0] == (True, "jit_scope_0", True)
    assert seen[1][:2] == (True, "jit_scope_0")
