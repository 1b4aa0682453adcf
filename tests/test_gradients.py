"""gradients(): what it returns, what it costs, and how rules are found and checked; single rules are in
test_ops.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.gradient_rules import registered_rules
from tests.counting import assert_linear, count_calls

pytestmark = pytest.mark.quick


@pytest.fixture
def graph() -> Any:
    with jg.Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return jg.Session().run(fetches, feeds)


def variable(*shape: int) -> Any:
    return jg.placeholder(np.float64, shape)


# -- what is returned ----------------------------------------------------------------------------------------


def test_none_where_ys_do_not_depend_on_x(graph: jg.Graph) -> None:
    x, z = variable(), variable()
    assert jg.gradients(x * x, [z, x])[0] is None
    assert jg.gradients(x * x, z) == [None]
    assert jg.gradients([], [x]) == [None]


def test_sum_of_all_ys(graph: jg.Graph) -> None:
    x = variable(3)
    grads = jg.gradients([x * x, np.sum(x) * 3.0], x)
    assert run(grads, {x: [1.0, 2.0, 3.0]})[0].tolist() == [5.0, 7.0, 9.0]


def test_ys_that_feed_one_another_each_have_their_seed(graph: jg.Graph) -> None:
    x = variable()
    a = x * 2.0
    b = a * 5.0
    assert run(jg.gradients([a, b], x), {x: 1.0}) == [12.0]
    assert run(jg.gradients([a, b], a), {x: 1.0}) == [6.0]


def test_an_x_upstream_of_another_x_is_still_reached(graph: jg.Graph) -> None:
    x = variable()
    a = x * 2.0
    b = a * 5.0
    assert run(jg.gradients(b, [x, a, b]), {x: 1.0}) == [10.0, 5.0, 1.0]


def test_x_given_twice(graph: jg.Graph) -> None:
    x = variable()
    assert run(jg.gradients(x * x, [x, x]), {x: 3.0}) == [6.0, 6.0]


def test_addends_are_summed_in_the_order_of_the_consumers(graph: jg.Graph) -> None:
    x = variable()
    parts = [np.exp(x), np.sin(x), x * 2.0]
    (g,) = jg.gradients(parts[0] + parts[1] + parts[2], x)
    assert g.op.type == "add_n"
    assert [addend.op.original_op.type for addend in g.op.inputs] == ["exp", "sin", "multiply"]


def test_integers_carry_no_gradient(graph: jg.Graph) -> None:
    x, n = variable(), jg.placeholder(np.int64, ())
    assert jg.gradients(x * n, n) == [None]
    assert jg.gradients(x * np.floor(x).astype(np.int64), x) != [None]
    assert jg.gradients(np.sum(x.astype(np.int64)), [x, n]) == [None, None]
    assert jg.gradients(x > 0, [x]) == [None]
    assert run(jg.gradients([n + 1, x * 3.0], x), {x: 1.0}) == [3.0]
    with pytest.raises(jg.DTypeError, match=r"int64 carries no gradient"):
        jg.gradients(n + 1, x, [1.0])
    with pytest.raises(jg.DTypeError, match=r"<lambda>\(x\) must return a float to have a gradient, got int64"):
        jg.grad(lambda x: np.sum(x.astype(np.int64)))(np.ones(3))


def test_other_outputs_of_an_operation_count_as_zero(graph: jg.Graph) -> None:
    x = variable(4)
    left, _ = np.split(x, 2)
    assert run(jg.gradients(np.sum(left * 3.0), x), {x: np.ones(4)})[0].tolist() == [3.0, 3.0, 0.0, 0.0]


# -- seeds, stops --------------------------------------------------------------------------------------------


def test_grad_ys(graph: jg.Graph) -> None:
    x = variable(2)
    y, z = x * 3.0, x * x
    grads = jg.gradients([y, z], x, [np.array([1.0, 10.0]), None])
    assert run(grads, {x: [1.0, 1.0]})[0].tolist() == [5.0, 32.0]
    weighted = jg.gradients(y, x, z)
    assert run(weighted, {x: [1.0, 2.0]})[0].tolist() == [3.0, 12.0]


def test_grad_ys_that_do_not_fit(graph: jg.Graph) -> None:
    x = variable(2)
    y = x * 3.0
    with pytest.raises(ValueError, match="2 entries for 1 ys"):
        jg.gradients([y], x, [None, None])
    with pytest.raises(jg.DTypeError, match=r"grad_ys of .*multiply"):
        jg.gradients(y, x, [np.ones(2, np.complex128)])
    c = jg.placeholder(np.complex128, ())
    with pytest.raises(TypeError, match=r"complex128: gradients of complex ys need grad_ys"):
        jg.gradients(c * c, c)


def test_stop_gradients_equals_stop_gradient(graph: jg.Graph) -> None:
    x = variable()
    a = x * x
    direct = jg.gradients(a * x, x, stop_gradients=[a])
    built = jg.gradients(jg.stop_gradient(a) * x, x)
    assert run([direct, built], {x: 3.0}) == [[9.0], [9.0]]
    assert jg.gradients(a, x, stop_gradients=a) == [None]


# -- rules ---------------------------------------------------------------------------------------------------


def opaque(x: Any) -> Any:
    return jg.py_func(lambda a: a * 2.0, [x], np.float64)


# -- sums, places, gates -------------------------------------------------------------------------------------


def five_uses(x: Any) -> Any:
    return np.exp(x) + np.sin(x) + x * 2.0 + np.cos(x) + x * x


@pytest.mark.parametrize("method", [None, *jg.AggregationMethod])
def test_aggregation_methods_give_the_same(graph: jg.Graph, method: Any) -> None:
    x = variable()
    (g,) = jg.gradients(five_uses(x), x, None, "g", False, False, method)
    at = 0.3
    assert run(g, {x: at}) == pytest.approx(np.exp(at) + np.cos(at) + 2.0 - np.sin(at) + 2 * at, rel=1e-15)


def depth_of_sums(g: Any) -> int:
    """How many sums made by the driver lie one behind the other."""
    if g.op.type not in ("add", "add_n") or g.op.name.rpartition("/")[0] != "g":
        return 0
    return 1 + max(map(depth_of_sums, g.op.inputs))


@pytest.mark.parametrize(
    ("method", "unknown", "depth"),
    [
        (jg.AggregationMethod.ADD_N, False, 1),
        (jg.AggregationMethod.EXPERIMENTAL_TREE, False, 3),
        (jg.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N, False, 5),
        (jg.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N, True, 1),
    ],
)
def test_shapes_of_sums(graph: jg.Graph, method: Any, unknown: bool, depth: int) -> None:
    """Six addends (x * x gives two) in one sum, in a tree, in a running total where shapes are known."""
    x = jg.placeholder(np.float64, [None] if unknown else [3])
    (g,) = jg.gradients(five_uses(x), x, name="g", aggregation_method=method)
    assert depth_of_sums(g) == depth


@pytest.mark.parametrize("method", [3, "ADD_N", True, 1.0])
def test_an_unknown_aggregation_method_is_named(graph: jg.Graph, method: Any) -> None:
    x = variable()
    with pytest.raises(ValueError, match=f"aggregation_method={method!r} is none of .*EXPERIMENTAL_TREE"):
        jg.gradients(x * x, x, aggregation_method=method)


def test_gradients_are_placed_with_their_operations(graph: jg.Graph) -> None:
    x = variable()
    with graph.device("/cpu:1"):
        y = np.exp(x)
    with graph.colocate_with(y):
        z = np.sin(x)
    (g,) = jg.gradients(y * z, x, name="g", colocate_gradients_with_ops=True)
    made = [op for op in graph.operations if op.name.startswith("g/") and op.original_op in (y.op, z.op)]
    assert made
    assert all(op.device == "/cpu:1" and op.colocation_groups == [f"loc:@{y.op.name}"] for op in made)
    assert (g.op.type, g.op.device, g.op.colocation_groups) == ("add_n", "/cpu:1", [f"loc:@{y.op.name}"])
    plain = jg.gradients(y * z, x)[0]
    assert plain is not None and plain.op.colocation_groups == [f"loc:@{plain.op.name}"]


def test_a_sum_over_devices_is_placed_with_its_tensor(graph: jg.Graph) -> None:
    x = variable()
    parts = []
    for k in range(2):
        with graph.device(f"/cpu:{k}"):
            parts.append(np.exp(x))
    (g,) = jg.gradients(parts, x, colocate_gradients_with_ops=True)
    assert g is not None and g.op.colocation_groups == [f"loc:@{x.op.name}"]


@pytest.mark.parametrize("compiled", [False, True])
def test_gated_gradients_wait_for_one_another(graph: jg.Graph, compiled: bool) -> None:
    x, w = variable(2), variable(2)
    with jg.jit_scope(compiled):
        y = np.sum(np.where(x > 0, x * np.log(w), 0.0))
    grads = jg.gradients(y, [x, w], gate_gradients=True)
    gates = [op for op in graph.operations if op.type == "no_op"]
    assert gates and all(op.name.endswith("_grad/gate") for op in gates)
    last = next(g for g in grads if g is not None).op
    assert last.type == "identity" and [op.type for op in last.control_inputs] == ["no_op"]
    assert len(last.control_inputs[0].control_inputs) == 2
    feeds = {x: [2.0, -1.0], w: [1.0, 0.0]}
    expected = run(jg.gradients(y, [x, w]), feeds)
    for ours, theirs in zip(run(grads, feeds), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_options_are_positional(graph: jg.Graph) -> None:
    x = variable()
    a = x * 2.0
    assert run(jg.gradients(a * x, x, None, "g", True, True, jg.AggregationMethod.DEFAULT, [a]), {x: 3.0}) == [6.0]


# -- rules ---------------------------------------------------------------------------------------------------


def test_a_missing_rule_names_the_operation_and_the_line(graph: jg.Graph) -> None:
    x = variable()
    y = opaque(x)
    with pytest.raises(jg.GradientError) as caught:
        jg.gradients(y * 1.0, x)
    assert "op 'py_func' has no gradient rule" in str(caught.value)
    assert "made at test_gradients.py" in str(caught.value)
    assert "register_gradient('py_func')" in str(caught.value)
    assert isinstance(caught.value, LookupError)


def test_a_rule_that_is_not_needed_is_not_asked_for(graph: jg.Graph) -> None:
    x, z = variable(), variable()
    assert run(jg.gradients(opaque(z) * x, x), {x: 1.0, z: 3.0}) == [6.0]


@pytest.fixture
def rules() -> Any:
    before = dict(registered_rules)
    yield
    registered_rules.clear()
    registered_rules.update(before)


def test_register_gradient(graph: jg.Graph, rules: None) -> None:
    @jg.register_gradient("py_func")
    def rule(op: jg.Operation, g: Any) -> Any:
        assert op.type == "py_func"
        return g * 2.0

    x = variable()
    assert run(jg.gradients(opaque(x), x), {x: 1.0}) == [2.0]
    with pytest.raises(KeyError, match="registered already"):
        jg.register_gradient("py_func")(rule)


def test_not_differentiable(graph: jg.Graph, rules: None) -> None:
    jg.not_differentiable("py_func")
    x = variable()
    assert jg.gradients(opaque(x), x) == [None]


def test_a_rule_is_checked(graph: jg.Graph, rules: None) -> None:
    x = variable(3)
    registered_rules["tanh"] = lambda op, g: [g, g]
    with pytest.raises(ValueError, match=r"gave 2 gradients, not 1(.|\n)*tanh"):
        jg.gradients(np.tanh(x), x)
    registered_rules["tanh"] = lambda op, g: np.sum(g)
    with pytest.raises(
        ValueError, match=r"wrong shape for input 0(.|\n)*expected: f64\[3\](.|\n)*got: +f64\[\]"
    ):
        jg.gradients(np.tanh(x), x)


def test_prevent_gradient_raises_with_its_message(graph: jg.Graph) -> None:
    x = variable()
    y = jg.prevent_gradient(x, message="the table is fixed") * 2.0
    assert run(y, {x: 2.0}) == 4.0
    with pytest.raises(LookupError, match="the table is fixed"):
        jg.gradients(y, x)


# -- cost ----------------------------------------------------------------------------------------------------


def chain(x: Any, length: int) -> Any:
    for _ in range(length // 2):
        x = np.sin(x) * x
    return x


def test_a_hundred_thousand_operations_without_recursion() -> None:
    with jg.Graph().as_default() as graph:
        x = variable()
        y = x
        for _ in range(50_000):
            y = -y
        (g,) = jg.gradients(y, x)
        assert len(graph) >= 100_000
        assert jg.Session().run([y, g], {x: 2.0}) == [2.0, 1.0]


def test_cost_is_linear() -> None:
    def prepare(length: int) -> Any:
        with jg.Graph().as_default():
            x = variable()
            y = chain(x, length)
        return lambda: jg.gradients(y, x)

    assert_linear(prepare, 1000)


@pytest.mark.parametrize("side", ["readers", "readers of readers", "behind"])
def test_small_gradients_in_a_large_graph_cost_what_they_span(side: str) -> None:
    """The bulk is made between x and y, reads x or is read by y, and is seen by one of the two walks alone."""

    def cost(length: int) -> int:
        with jg.Graph().as_default():
            x = variable()
            start = np.cos(x)
            bulk = chain(start, length) if side != "readers" else None
            for _ in range(length if side == "readers" else 0):
                np.sin(start)
            small = np.sin(start if side != "behind" else bulk)
            ends = [small * float(k) for k in range(20)]
            of = start if side != "behind" else bulk
            return count_calls(lambda: [jg.gradients(end, of) for end in ends])

    assert cost(20_000) < 1.5 * cost(200)


@pytest.mark.parametrize("is_leaf", [False, True])
def test_what_x_has_no_part_in_costs_nothing(is_leaf: bool) -> None:
    """x feeds half of the operations, y is made of the other half, and one lies between."""

    def cost(length: int) -> int:
        with jg.Graph().as_default():
            x, other = variable(), variable()
            start = x if is_leaf else np.cos(x)
            for _ in range(length):
                np.sin(start)
            y = start * chain(other, length)
            return count_calls(lambda: [jg.gradients(y, start) for _ in range(10)])

    assert cost(10_000) < 1.5 * cost(100)


def test_more_placeholders_than_are_told_apart(graph: jg.Graph) -> None:
    xs = [variable() for _ in range(600)]
    parts = [np.sin(x) for x in xs]
    grads = jg.gradients(parts[::2], xs)
    assert [g is not None for g in grads] == [k % 2 == 0 for k in range(600)]
    assert jg.gradients(parts[3], [xs[3 + 256], xs[3]])[0] is None
    c = jg.constant(2.0)
    assert run(jg.gradients(c * c, [c])) == [4]


@pytest.mark.parametrize(
    "f, slope",
    [
        (lambda x: np.where(x > 0, np.log(x), 3 * x), 3.0),
        (lambda x: np.where(x > 0, 2 * np.sqrt(x) + 1, 0.0), 0.0),
        (lambda x: np.where(x > 0, 1 / x, 5 * x), 5.0),
        (lambda x: np.where(x == 0, x, np.exp(1 / x)), 1.0),
        (lambda x: np.where(x != 0, np.arctan2(x, x) * np.hypot(x, x), -x), -1.0),
    ],
)
def test_where_lets_no_nan_of_the_side_not_taken_through(f: Any, slope: float) -> None:
    x = np.array([0.0, 0.5])
    total = lambda x: np.sum(f(x))  # noqa: E731
    first = jg.grad(total)(x)
    assert first[0] == slope
    assert np.isfinite(first).all()
    assert jg.hessian(total)(x)[0, 0] == 0
    np.testing.assert_array_equal(jg.compile(jg.grad(total))(x)[0], slope)


@pytest.mark.quick
def test_gradients_do_not_list_all_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take time for each operation of the graph: 1.7 ms where there are 100,000."""
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, (3,))
        loss = np.sum(np.tanh(x) ** 2)
        monkeypatch.setattr(jg.Graph, "operations", property(lambda graph: pytest.fail("all operations are listed")))
        jg.gradients(loss, x)
        jg.hessian_vector_product(loss, [x], [np.ones(3)])
