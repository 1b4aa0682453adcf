"""What gradients() is asked for: seeds, stops, sums, places, gates, control inputs; single rules are elsewhere."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

pytestmark = pytest.mark.quick


@pytest.fixture
def graph() -> Any:
    with jg.Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return jg.Session().run(fetches, feeds)


def scalar(dtype: Any = np.float64) -> Any:
    return jg.placeholder(dtype, ())


# ys and xs


def test_partial_and_total_derivatives(graph: jg.Graph) -> None:
    a = jg.constant(0.0)
    b = 2.0 * a
    assert run(jg.gradients(a + b, [a, b])) == [3, 1]
    assert run(jg.gradients(a + b, [a, b], stop_gradients=[a, b])) == [1, 1]
    assert run(jg.gradients([a, b, a], [a, b])) == [4, 1]


def test_a_y_is_its_own_x_whatever_is_stopped(graph: jg.Graph) -> None:
    x = scalar()
    y = x * 2.0
    assert run(jg.gradients(y, [y], stop_gradients=y)) == [1]
    assert jg.gradients(y, [x], stop_gradients=[y]) == [None]
    assert run(jg.gradients(y * x, [x], stop_gradients=[x]), {x: 3.0}) == [12]


def test_every_kind_of_collection_is_taken(graph: jg.Graph) -> None:
    x, v = scalar(), jg.Variable(2.0)
    y = x * v
    for ys, xs in [(y, x), ([y], (x,)), ((y,), [x])]:
        assert run(jg.gradients(ys, xs), {x: 1.0}) == [2]
    assert run(jg.gradients(y, [v, x]), {x: 5.0}) == [5, 2]
    (g,) = jg.gradients(y, [x], name=None)
    assert g.op.name == "gradients_4/multiply_grad/multiply"


def test_gradients_hold_where_a_tensor_in_the_middle_is_fed(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, (2,))
    middle = np.exp(x)
    (g,) = jg.gradients(np.sum(middle**3), x)
    assert run(g, {x: [0, 0], middle: [1.0, 2.0]}).tolist() == [3, 24]
    (of_middle,) = jg.gradients(np.sum(middle**3), middle)
    assert run(of_middle, {middle: [1.0, 2.0]}).tolist() == [3, 12]


# grad_ys


@pytest.mark.parametrize(
    "seed", [[1, 2], [1.0, 2.0], np.array([1, 2], np.uint8), np.array([1, 2], np.float32)], ids=repr
)
def test_seeds_are_converted_to_the_dtype_of_y(graph: jg.Graph, seed: Any) -> None:
    x = jg.placeholder(np.float64, (2,))
    (g,) = jg.gradients(x * 3.0, x, [seed])
    assert g.dtype == np.float64 and run(g).tolist() == [3, 6]


def test_seeds_are_tensors_variables_eager_tensors_and_slices(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, (3,))
    y = x * 3.0
    rows = jg.IndexedSlices(np.array([5.0]), np.array([2]), (3,))
    for seed, expected in [
        (np.sin(x) * 0.0 + 1.0, [3, 3, 3]), (jg.Variable([1.0, 2.0, 3.0]), [3, 6, 9]), (rows, [0, 0, 15]),
    ]:  # fmt: skip
        assert run(jg.gradients([y, x], x, [seed, None]), {x: np.ones(3)})[0].tolist() == [1 + e for e in expected]
    c = jg.placeholder(np.complex128, ())
    assert run(jg.gradients(c * 2.0, c, [1]), {c: 1j}) == [2]


@pytest.mark.parametrize(
    ("seed", "error", "text"),
    [
        (1j * np.ones(2), TypeError, r"(?s)grad_ys of 'multiply:0' does not fit: complex128 for float32.*f32\[2\]"),
        (np.array([True, False]), TypeError, r"grad_ys of 'multiply:0' does not fit: bool for float32"),
        (np.array(["a", "b"]), TypeError, r"(?s)grad_ys of 'multiply:0' does not fit: <U1 for float32.*f32\[2\]"),
        ("a", TypeError, r"(?s)grad_ys of 'multiply:0' does not fit.*got: +'a'"),
        (np.ones(3), ValueError, r"(?s)grad_ys of 'multiply:0' does not fit.*f32\[2\].*f64\[3\]"),
    ],
)
def test_seeds_that_do_not_fit(graph: jg.Graph, seed: Any, error: Any, text: str) -> None:
    x = jg.placeholder(np.float32, (2,))
    with pytest.raises(error, match=text):
        jg.gradients(x * 3.0, x, [seed])


def test_seeds_of_another_number_or_graph(graph: jg.Graph) -> None:
    x = scalar()
    with pytest.raises(ValueError, match="grad_ys has 1 entries for 2 ys"):
        jg.gradients([x, x * 2.0], x, [1.0])
    with jg.Graph().as_default():
        foreign = jg.constant(1.0, name="foreign")
    with pytest.raises(jg.LeakedTracerError, match="'foreign:0' belongs to another graph"):
        jg.gradients(x * 2.0, x, [foreign])


# sums


def uses(x: Any, count: int) -> Any:
    return [np.sin(x * (1.0 + k)) for k in range(count)]


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("count", [2, 3, 5, 8, 13])
def test_aggregation_methods_agree(graph: jg.Graph, count: int, unknown: bool) -> None:
    x = jg.placeholder(np.float64, (None,) if unknown else (3,))
    found = [jg.gradients(uses(x, count), x, aggregation_method=method)[0] for method in jg.AggregationMethod]
    at = np.array([0.1, 0.2, 0.3])
    for value in run(found, {x: at}):
        exact = sum((1 + k) * np.cos(at * (1 + k)) for k in range(count))
        np.testing.assert_allclose(value, exact, rtol=1e-14)


@pytest.mark.parametrize(
    ("method", "count", "types"),
    [
        ("ADD_N", 5, {"add_n": 1}),
        ("EXPERIMENTAL_TREE", 5, {"add": 4}),
        ("EXPERIMENTAL_ACCUMULATE_N", 5, {"add": 4}),
        ("EXPERIMENTAL_ACCUMULATE_N", 2, {"add_n": 1}),
    ],
)
def test_aggregation_methods_make_their_own_operations(
    graph: jg.Graph, method: str, count: int, types: dict[str, int]
) -> None:
    x = jg.placeholder(np.float64, (3,))
    jg.gradients(uses(x, count), x, name="g", aggregation_method=jg.AggregationMethod[method])
    made = [op.type for op in graph.operations if op.name.rpartition("/")[0] == "g" and op.type.startswith("add")]
    assert {name: made.count(name) for name in made} == types


def test_aggregation_methods_differ_in_memory(graph: jg.Graph) -> None:
    """16 addends of 1 MB: all of them at once, as many as there are digits, or two and the total."""
    count, nbytes = 16, 1_000_000
    x, seed = jg.placeholder(np.float64, (nbytes // 8,)), jg.placeholder(np.float64, (nbytes // 8,))
    ys = [x * (1.0 + k) for k in range(count)]
    feeds = {x: np.ones(nbytes // 8), seed: np.ones(nbytes // 8)}
    peaks = {}
    for method in ("ADD_N", "EXPERIMENTAL_TREE", "EXPERIMENTAL_ACCUMULATE_N"):
        session = jg.Session()
        fetches = jg.gradients(ys, x, [seed] * count, aggregation_method=jg.AggregationMethod[method])
        session.run(fetches, feeds)
        tracemalloc.start()
        try:
            session.run(fetches, feeds)
            peaks[method] = tracemalloc.get_traced_memory()[1] / nbytes
        finally:
            tracemalloc.stop()
    assert peaks["ADD_N"] > 16 and peaks["EXPERIMENTAL_TREE"] < 6.5 and peaks["EXPERIMENTAL_ACCUMULATE_N"] < 4.5


def test_accumulate_n(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, (2,))
    total = jg.accumulate_n([x, x * 2.0, x * 3.0], name="total")
    assert total.op.name == "total" and run([total, *jg.gradients(total, x)], {x: [1, 2]})[0].tolist() == [6, 12]
    assert run(jg.accumulate_n([x]), {x: [1, 2]}).tolist() == [1, 2]
    with pytest.raises(ValueError, match="at least one"):
        jg.accumulate_n([])
    with pytest.raises(jg.ShapeError, match="different shapes"):
        jg.accumulate_n([x, jg.constant(1.0)])


def test_accumulate_n_of_eager_tensors() -> None:
    assert jg.accumulate_n([jg.asarray([1.0]), jg.asarray([2.0])]).tolist() == [3]


# places


def matmuls(graph: jg.Graph, first: str, second: str) -> tuple[Any, Any, Any, Any]:
    """``w`` used on two devices: w, its two products, and their sum on a third."""
    with graph.device("/device:GPU:1"):
        w = jg.constant(np.ones((1, 1)), name="w")
    x, y = jg.constant(np.ones((1, 2))), jg.constant(np.ones((1, 2)))
    with graph.device(first):
        wx = w @ x
    with graph.device(second):
        wy = w @ y
    with graph.device("/device:GPU:0"):
        return w, wx, wy, wx + wy


@pytest.mark.parametrize("method", list(jg.AggregationMethod))
def test_sums_follow_the_first_consumer_or_over_devices_x_itself(graph: jg.Graph, method: Any) -> None:
    w, wx, _, z = matmuls(graph, "", "")
    options = {"colocate_gradients_with_ops": True, "aggregation_method": method}
    with graph.device("/cpu:9"), graph.colocate_with(w.op):
        (g,) = jg.gradients(z, w, **options)
    assert (g.op.device, g.op.colocation_groups) == (wx.op.device, wx.op.colocation_groups) == ("", ["loc:@matmul"])
    w, wx, _, z = matmuls(graph, "/task:1", "/task:2")
    (g,) = jg.gradients(z, w, **options)
    assert (g.op.device, g.op.colocation_groups) == (w.op.device, w.op.colocation_groups)
    (plain,) = jg.gradients(z, w)
    assert plain.op.device == "" and plain.op.colocation_groups == [f"loc:@{plain.op.name}"]


def test_every_gradient_operation_is_placed_as_its_forward_operation(graph: jg.Graph) -> None:
    w, *_, z = matmuls(graph, "/task:1", "/task:2")
    before = len(graph)
    with graph.device("/cpu:9"):
        jg.gradients(z, w, colocate_gradients_with_ops=True, gate_gradients=True)
    made = [op for op in graph.operations[before:] if op.original_op is not None]
    assert {op.original_op.type for op in made} >= {"matmul", "add"}
    for op in made:
        forward = op.original_op
        assert (op.device, op.colocation_groups) == (forward.device, forward.colocation_groups), op.name


# gates and control inputs


@pytest.mark.parametrize("separate", [None, False, True])
def test_gates_hold_in_every_scope_and_change_no_number(graph: jg.Graph, separate: bool | None) -> None:
    x, w = jg.placeholder(np.float64, (2,)), jg.placeholder(np.float64, (2,))
    with jg.jit_scope(separate is not None, separate_compiled_gradients=bool(separate)):
        y = np.sum(np.tanh(x * w) * (x / w))
    (gated, plain) = (jg.gradients(y, [x, w], gate_gradients=gate) for gate in (True, False))
    feeds = {x: [0.3, 0.4], w: [2.0, 3.0]}
    for ours, theirs in zip(run(gated, feeds), run(plain, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    gates = [op for op in graph.operations if op.name.endswith("/gate")]
    for gate in gates:
        waiting = [op for op in graph.operations if gate in op.control_inputs]
        assert len(gate.control_inputs) > 1 and {op.type for op in waiting} == {"identity"}
        assert {op.inputs[0].op for op in waiting} == set(gate.control_inputs)
        assert all(op.attrs == gate.attrs for op in waiting)
    assert {gate.original_op.type for gate in gates} == {"multiply", "divide"}


def test_control_inputs_are_no_paths_of_values(graph: jg.Graph) -> None:
    x, c = scalar(), jg.constant(2.0)
    with graph.control_dependencies([x * x]):
        y = jg.identity(c) * 3.0
    assert jg.gradients(y, x) == [None]
    assert run(jg.gradients(y, c), {x: 1.0}) == [3]


def test_gradients_inside_control_dependencies_wait_for_them(graph: jg.Graph) -> None:
    x, v = scalar(), jg.Variable(0.0)
    y = x * x
    with graph.control_dependencies([v.assign_add(1.0)]):
        (g,) = jg.gradients(y, x)
    assert run(g, {x: 3.0}) == 6 and v.numpy() == 1
    y = np.sin(x)
    before = len(graph)
    with graph.control_dependencies([v.assign_add(1.0)]):
        (g,) = jg.gradients(y, x)
    made = [op for op in graph.operations[before:] if op.original_op is y.op]
    assert made and all(op.control_inputs for op in made)
    np.testing.assert_allclose(run(g, {x: 3.0}), np.cos(3.0))
    assert v.numpy() == 2


def test_what_waits_for_a_fed_tensor_needs_nothing_more(graph: jg.Graph) -> None:
    x, y = scalar(), scalar()
    with graph.control_dependencies([x, np.exp(y)]):
        z = jg.identity(y)
    assert run(z, {x: 1.0, y: 2.0}) == 2
    assert run(jg.tuple([x, z, jg.py_func(lambda a: a, [x], np.float64)]), {x: 1.0, y: 2.0}) == [1, 2, 1]
    with pytest.raises(ValueError, match="placeholder 'placeholder' must be fed"):
        run(z, {y: 2.0})


@pytest.mark.parametrize("count", [3, 40])
def test_groups_are_no_steps_of_a_program(graph: jg.Graph, count: int) -> None:
    """What waits for a small group waits for its members; a large one stays, lest each waits for each."""
    x = jg.placeholder(np.float64, (2,))
    with jg.jit_scope():
        tied = jg.tuple([x * float(k) for k in range(1, count + 1)])
    session = jg.Session()
    assert [v.tolist() for v in session.run(tied, {x: [1, 2]})] == [[k, 2 * k] for k in range(1, count + 1)]
    stage, arrays = session.stages(tied, {x: [1, 2]})[0]
    steps = stage.executable(arrays).compiled.steps
    assert len(steps) == (1 if count == 3 else 3)


def test_unknown_extents_may_equal_known_ones() -> None:
    with jg.Graph().as_default() as graph:
        x = jg.placeholder(np.float64, (None, 4))
        loss = jg.nn.cross_entropy(x, np.array([0, 3, 1]))
        (slope,) = jg.gradients(loss, x)
        value, grad = jg.Session(graph).run([loss, slope], {x: np.zeros((3, 4))})
        assert value == pytest.approx(np.log(4)) and np.asarray(grad).shape == (3, 4)
        assert np.linalg.det(jg.placeholder(np.float64, (None, 3))).shape == ()
        assert np.tile(jg.placeholder(np.float64, (None, 3)), 2).shape == (None, 6)


@pytest.mark.parametrize("ys", [3.0, "x:0", None])
def test_gradients_of_no_tensors_are_refused(ys: object) -> None:
    with jg.Graph().as_default(), pytest.raises(TypeError, match="gradients takes tensors"):
        jg.gradients(ys, jg.placeholder(np.float64, ()))


@pytest.mark.parametrize(
    ("values", "indices", "shape"),
    [(np.ones((2, 2)), [0], None), (np.ones((2, 2)), [0.5, 1.0], None), (np.ones((2, 3)), [0, 1], (5, 2))],
)
def test_slices_are_checked_when_they_are_made(values: object, indices: object, shape: object) -> None:
    with pytest.raises(ValueError, match="an integer index for each row"):
        jg.IndexedSlices(values, indices, shape)


def test_vectors_of_a_product_with_the_hessian_are_checked() -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, (3,))
        with pytest.raises(ValueError, match=r"(?s)v\[0\] does not fit xs\[0\].*f64\[3\].*\[2\]"):
            jg.hessian_vector_product(np.sum(x**3), x, np.ones(2))
        for vector, got in [(None, "got: +None"), ([None], "got: +None")]:
            with pytest.raises(ValueError, match=rf"(?s)v\[0\] does not fit xs\[0\].*f64\[3\].*{got}"):
                jg.hessian_vector_product(np.sum(x**3), x, vector)
        with pytest.raises(TypeError, match=r"(?s)v\[0\] does not fit xs\[0\]: complex128 for float64.*hint"):
            jg.hessian_vector_product(np.sum(x**3), x, [1j * np.ones(3)])
        (product,) = jg.hessian_vector_product(np.sum(x**3), x, [[1, 2, 3]])
        assert run(product, {x: np.ones(3)}).tolist() == [6, 12, 18]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gate_gradients": "no"}, "gate_gradients must be a bool, got 'no'"),
        ({"colocate_gradients_with_ops": 1}, "colocate_gradients_with_ops must be a bool, got 1"),
        ({"name": 3}, "name must be a string or None, got 3"),
    ],
)
def test_options_are_checked(graph: jg.Graph, options: dict[str, Any], text: str) -> None:
    x = scalar()
    for fn in (jg.gradients, jg.hessians):
        with pytest.raises(TypeError, match=text):
            fn(x * x, x, **options)


# what single rules would not notice


def test_a_seed_becomes_the_gradient_in_the_dtype_of_y(graph: jg.Graph) -> None:
    x = scalar(np.float32)
    for seed in (2, np.float64(2), np.int64(2), jg.constant(2.0)):
        (g,) = jg.gradients(x, x, seed)
        assert g.dtype == np.float32 and run(g, {x: 1.0}) == 2


def test_one_output_may_be_stopped_and_another_not(graph: jg.Graph) -> None:
    x, fixed = jg.placeholder(np.float64, (2, 2)), jg.placeholder(np.float64, (2, 2))
    w, v = np.linalg.eigh(x @ x.T)
    (both,) = jg.gradients(np.sum(v * w), x)
    (one,) = jg.gradients(np.sum(v * w), x, stop_gradients=v)  # the product reads both, and lies between
    (expected,) = jg.gradients(np.sum(fixed * w), x)
    value = np.array([[1.0, 0.5], [0.25, 2.0]])
    got = run([both, one, expected], {x: value, fixed: np.linalg.eigh(value @ value.T)[1]})
    np.testing.assert_allclose(got[1], got[2], rtol=1e-12)
    assert not np.allclose(got[0], got[1])


def test_what_is_stopped_and_only_feeds_what_is_stopped_gets_no_gradient(graph: jg.Graph) -> None:
    x = scalar()
    a = np.sin(x)
    b = np.exp(a)
    y = a * b
    dx, da = jg.gradients(y, [x, a], stop_gradients=[a])
    assert dx is None
    np.testing.assert_allclose(run(da, {x: 0.5}), np.exp(np.sin(0.5)) * (1 + np.sin(0.5)))


def test_stops_inside_the_body_of_a_loop(graph: jg.Graph) -> None:
    x = scalar()

    def step(c: Any, _: Any) -> Any:
        inner = c * c
        (slope,) = jg.gradients(inner * c, c, stop_gradients=[inner])
        return slope * 1.0, None

    y, _ = jg.scan(step, x, None, length=2)
    assert run(y, {x: 3.0}) == 81.0
