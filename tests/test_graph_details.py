"""Details of graphs that other people's code looks at: one call is one op, attributes, groups, what can be fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

pytestmark = pytest.mark.quick


@pytest.fixture
def graph() -> Any:
    with jg.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize(
    ("call", "type_"),
    [
        (lambda x: np.matmul(x, x), "matmul"),
        (lambda x: x @ x, "matmul"),
        (lambda x: np.stack([x, x]), "stack"),
        (lambda x: np.concatenate([x, x]), "concatenate"),
        (lambda x: np.split(x, 2), "split"),
        (lambda x: jg.add_n([x, x, x]), "add_n"),
        (lambda x: jg.gather(x, x.op.graph.get_operation_by_name("rows").outputs[0]), "take"),
    ],
)
def test_one_call_is_one_op(graph: jg.Graph, call: Any, type_: str) -> None:
    x = jg.placeholder(np.float64, (4, 4))
    jg.placeholder(np.int64, (2,), name="rows")
    before = len(graph)
    call(x)
    assert [op.type for op in graph.operations[before:]] == [type_]


def test_the_gradient_of_a_product_is_a_product_that_reads_transposed(graph: jg.Graph) -> None:
    a, b = jg.placeholder(np.float64, (2, 3)), jg.placeholder(np.float64, (3, 4))
    da, db = jg.gradients(a @ b, [a, b])
    assert da.op.type == db.op.type == "matmul"
    assert (da.op.get_attr("transpose_a"), da.op.get_attr("transpose_b")) == (False, True)
    assert (db.op.get_attr("transpose_a"), db.op.get_attr("transpose_b")) == (True, False)
    assert da.op.inputs[1] is b and db.op.inputs[0] is a
    with pytest.raises(LookupError, match="'matmul' has no attribute '_XlaCompile'"):
        (a @ b).op.graph.get_operation_by_name("matmul").get_attr("_XlaCompile")


def test_an_operation_is_in_a_group_of_its_own_unless_placed(graph: jg.Graph) -> None:
    x = jg.constant(1.0, name="x")
    with graph.colocate_with(x):
        y = jg.identity(x, name="y")
        with graph.colocate_with(y.op, ignore_existing=True):
            z = jg.identity(x, name="z")
    assert [t.op.colocation_groups for t in (x, y, z)] == [["loc:@x"]] * 3
    with jg.colocate_with(x), jg.colocate_with(jg.constant(2.0, name="w")):
        assert jg.identity(x).op.colocation_groups == ["loc:@x"]
    with jg.colocate_with(jg.constant(3.0, name="u")), jg.colocate_with(x):
        assert jg.identity(x).op.colocation_groups == ["loc:@u", "loc:@x"]


def test_what_can_be_fetched(graph: jg.Graph) -> None:
    v = jg.Variable([1.0, 2.0])
    rows = jg.IndexedSlices(jg.constant([[1.0]]), jg.constant([2]), (4, 1))
    nothing, group = jg.group(), jg.group(v.assign_add([1.0, 1.0]), rows.values)
    found = jg.Session().run({"group": group, "rest": [nothing, rows, (rows,)]})
    assert found["group"] is None and found["rest"][0] is None
    assert found["rest"][1].numpy().tolist() == found["rest"][2][0].numpy().tolist() == [[0], [0], [1], [0]]
    assert jg.Session().run([v, v.value()])[1].tolist() == [2, 3]


def test_rules_and_their_cotangents(graph: jg.Graph) -> None:
    """A cotangent has the shape of its output; an exception in a rule arrives as it is."""
    shapes: list[Any] = []

    @jg.custom_gradient
    def total(x: Any) -> Any:
        return np.sum(x, axis=0), lambda g: shapes.append(g.shape) or np.ones((2, 3)) * g

    x = jg.placeholder(np.float64, (2, 3))
    assert jg.Session().run(jg.gradients(total(x), x))[0].tolist() == np.ones((2, 3)).tolist() and shapes == [(3,)]

    @jg.custom_gradient
    def broken(x: Any) -> Any:
        def rule(g: Any) -> Any:
            raise ZeroDivisionError("in the rule")

        return x * 1.0, rule

    with pytest.raises(ZeroDivisionError, match=r"^in the rule$"):
        jg.gradients(broken(x), x)


def test_a_number_that_is_broadcast_to_a_constant_stays_one_number() -> None:
    number = np.ones(())
    with jg.Graph().as_default():
        value = jg.constant(np.broadcast_to(number, (300, 200))).op.params["value"]
    number[...] = 2
    assert value.strides == (0, 0) and not value.flags.writeable
    assert value.shape == (300, 200) and value[7, 8] == 1


@pytest.mark.parametrize(
    "read",
    [
        lambda x, index: np.take_along_axis(x, index[:, None], 1),
        lambda x, index: np.take(x, index, 0),
        lambda x, index: x[index],
        lambda x, index: np.sort(x, 0)[:9],
    ],
)
def test_gradients_of_positions_hold_no_array_of_zeros(read: Callable[[Any, Any], Any]) -> None:
    x, index = np.random.default_rng(0).standard_normal((90, 90)), np.arange(90)
    runner, _ = jg.compile(jg.grad(lambda x: np.sum(read(x, index) ** 2))).prepared(x)
    held = [op.params["value"] for op in runner.operations if op.type == "constant"]
    assert not [value for value in held if value.size == x.size and any(value.strides)]
