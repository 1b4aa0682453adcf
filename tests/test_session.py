"""Sessions: fetches, feeds, variables, and graphs whose shapes are only known when they run."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.session import FeedError

pytestmark = pytest.mark.quick


@pytest.fixture
def graph() -> Any:
    with jg.Graph().as_default() as graph:
        yield graph


class Pair(NamedTuple):
    left: Any
    right: Any


def test_nested_fetches(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, [None], name="x")
    y = x * 2.0
    out = jg.Session().run({"a": [x, (y, y.op)], "b": Pair(np.sum(y), None)}, {x: [1.0, 2.0]})
    assert out["a"][0].tolist() == [1.0, 2.0] and out["a"][1][0].tolist() == [2.0, 4.0]
    assert out["a"][1][1] is None and out["b"] == Pair(6.0, None)
    assert isinstance(out["b"].left, np.float64)


def test_fetches_by_name(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, (), name="x")
    with graph.name_scope("s"):
        np.tanh(x)
    session = jg.Session()
    assert session.run(["s/tanh:0", "s/tanh"], {"x:0": 0.0}) == [0.0, None]
    assert session.run("s/tanh:0", {"x": 0.0}) == 0.0
    with pytest.raises(KeyError, match="nothing"):
        session.run("nothing:0")


def test_eval(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, ())
    assert (x * 2.0).eval({x: 3.0}) == 6.0


def test_an_entered_session_is_the_one_of_eval_and_its_graph_the_default_one() -> None:
    graph = jg.Graph()
    with jg.Session(graph) as session:
        assert jg.default_graph() is graph
        draw = jg.random_uniform((3,), seed=1)
        first, second = draw.eval(), draw.eval()
        with jg.Graph().as_default():
            assert jg.constant(2.0).eval() == 2.0
    assert jg.default_graph() is not graph
    assert not np.array_equal(first, second)
    fresh = jg.Session(graph)
    np.testing.assert_array_equal([fresh.run(draw), fresh.run(draw)], [first, second])
    np.testing.assert_array_equal(draw.eval(), first)
    with pytest.raises(RuntimeError, match="this session is closed"):
        session.run(draw)
    with pytest.raises(RuntimeError, match="this session is closed"), session:
        pass
    assert jg.default_graph() is not graph


def test_any_tensor_can_be_fed(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, [2])
    y = x + 1.0
    z = y * y
    session = jg.Session()
    assert session.run(z, {y: [1.0, 2.0]}).tolist() == [1.0, 4.0]
    assert session.run([y, z], {y: [3.0, 3.0], x: [0.0, 0.0]})[0].tolist() == [3.0, 3.0]


def test_shapes_unknown_until_fed(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float32, [None, None])
    y = np.mean(np.square(x) + 1.0, axis=-1)
    (g,) = jg.gradients(y, x)
    session = jg.Session()
    for shape in [(1, 3), (2, 5)]:
        value, slope = session.run([y, g], {x: np.full(shape, 2.0)})
        assert value.shape == shape[:-1] and value.dtype == np.float32
        np.testing.assert_allclose(slope, np.full(shape, 4.0 / shape[-1]), rtol=1e-6)


def test_ranks_unknown_until_fed(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64)
    y = np.tanh(x) * 2.0 + x
    (g,) = jg.gradients(y, x)
    for shape in [(), (3,), (2, 1, 2)]:
        value, slope = jg.Session().run([y, g], {x: np.zeros(shape)})
        assert np.shape(value) == shape and np.all(slope == 3.0)


def test_results_are_new_arrays(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, [3])
    fed = np.ones(3)
    a, b, c = jg.Session().run([x, jg.identity(x), jg.constant([1.0, 2.0])], {x: fed})
    for result in (a, b, c):
        assert result.flags.writeable and result.flags.c_contiguous
        result[:] = 7.0
    assert fed.tolist() == [1.0, 1.0, 1.0]
    assert jg.Session().run(jg.constant([1.0])).tolist() == [1.0]


def test_an_unfed_placeholder_is_named(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, [3], name="inputs")
    loss = np.sum(x)
    with pytest.raises(FeedError) as caught:
        jg.Session().run(loss)
    text = str(caught.value)
    assert "placeholder 'inputs' must be fed" in text and "test_session.py" in text and "feed_dict" in text
    assert isinstance(caught.value, ValueError)


def test_feeds_that_do_not_fit(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, [None, 3], name="x")
    session = jg.Session()
    with pytest.raises(jg.ShapeError, match=r"'x:0'(.|\n)*expected: \[\?,3\](.|\n)*got: +\[2\]"):
        session.run(x, {x: [1.0, 2.0]})
    with pytest.raises(jg.DTypeError, match="complex128"):
        session.run(x, {x: np.ones((1, 3), complex)})
    with pytest.raises(jg.DTypeError, match="'x:0'"):
        session.run(x, {x: [["a", "b", "c"]]})
    with pytest.raises(FeedError, match="fed with a tensor"):
        session.run(x, {x: x})


def test_tensors_of_another_graph(graph: jg.Graph) -> None:
    x = jg.constant(1.0)
    with jg.Graph().as_default() as other:
        y = jg.constant(2.0, name="mine")
        with pytest.raises(jg.LeakedTracerError, match="belongs to another graph"):
            _ = x + y
    with pytest.raises(
        jg.LeakedTracerError, match=r"'mine:0' belongs to another graph(.|\n)*test_session.py"
    ):
        jg.Session(graph).run(y)
    assert jg.Session(other).run(y) == 2.0


# -- state ---------------------------------------------------------------------------------------------------


def test_variables(graph: jg.Graph) -> None:
    v = jg.Variable([1.0, 2.0], name="v")
    x = jg.placeholder(np.float64, [2])
    loss = np.sum(v * v * x)
    (g,) = jg.gradients(loss, v)
    session = jg.Session()
    assert session.run([v, g], {x: [1.0, 1.0]})[1].tolist() == [2.0, 4.0]
    assert session.run(v.assign_sub(0.5 * g), {x: [1.0, 1.0]}).tolist() == [0.0, 0.0]
    assert session.run(v).tolist() == [0.0, 0.0] and v.numpy().tolist() == [0.0, 0.0]
    assert session.run(v.assign([3, 4])).dtype == np.float64
    assert (v.shape, v.dtype, v.name, v.trainable) == ((2,), np.float64, "v", True)


def test_assignments_must_fit(graph: jg.Graph) -> None:
    v = jg.Variable(np.zeros(2, np.int64))
    with pytest.raises(jg.ShapeError, match=r"expected i64\[2\], got i64\[3\]"):
        v.assign([1, 2, 3])
    with pytest.raises(jg.DTypeError, match="f64"):
        v.assign([1.0, 2.0])
    with pytest.raises(jg.DTypeError, match="object"):
        jg.Variable(np.array([None]))


def test_a_variable_is_read_after_the_control_dependencies(graph: jg.Graph) -> None:
    v = jg.Variable(np.ones(3))
    session = jg.Session()
    assert session.run(v).tolist() == [1, 1, 1]
    new = v.assign_add(np.ones(3))
    with jg.control_dependencies([new]):
        after = jg.identity(v * 1.0)
        cube = np.sum(v * v * v)
        assert session.run(v).tolist() == [1, 1, 1]
        (inside,) = jg.gradients(cube, v)
    (g,) = jg.gradients(cube, v)
    assert session.run(after).tolist() == [2, 2, 2]
    assert session.run(v).tolist() == [2, 2, 2]
    assert session.run(g).tolist() == [27, 27, 27]
    assert session.run(inside).tolist() == [48, 48, 48]


def test_gradients_count_all_reads_of_a_variable(graph: jg.Graph) -> None:
    v = jg.Variable(np.ones(3))
    assert jg.Session().run(jg.gradients(v.read() * v + v.read(), v))[0].tolist() == [3, 3, 3]


def test_a_value_of_unknown_shape_must_fit_when_it_is_assigned(graph: jg.Graph) -> None:
    v = jg.Variable(np.ones(3))
    x = jg.placeholder(np.float64)
    new = v.assign(x)
    part = v.assign(jg.py_func(lambda: np.ones(5), [], np.float64))
    for fetch, feeds in [(new, {x: np.ones(5)}), (part, {})]:
        with pytest.raises(jg.ShapeError, match=r"(?s)f64\[3\], got f64\[5\].*assign.*made at test_session.py"):
            jg.Session().run(fetch, feeds)
    assert v.numpy().tolist() == [1, 1, 1]
    assert jg.Session().run(new, {x: [1, 2, 3]}).tolist() == [1, 2, 3]


def test_results_do_not_alias_a_variable(graph: jg.Graph) -> None:
    v = jg.Variable([1.0])
    session = jg.Session()
    session.run(v)[0] = 5.0
    session.run(v.assign([2.0]))[0] = 5.0
    v.numpy()[0] = 5.0
    assert session.run(v).tolist() == [2.0]


def test_control_dependencies_and_groups(graph: jg.Graph) -> None:
    v = jg.Variable(0.0)
    add = v.assign_add(1.0)
    with graph.control_dependencies([add]):
        after = v.read() * 10.0
    session = jg.Session()
    assert session.run(after) == 10.0
    assert session.run(jg.group(add)) is None and v.numpy() == 2.0
    assert session.run(jg.group()) is None
    tied = jg.tuple([jg.constant(1.0), None, after])
    assert tied[1] is None and session.run(tied[0]) == 1.0 and v.numpy() == 3.0


def test_a_compiled_function_assigns(graph: jg.Graph) -> None:
    v = jg.Variable(1.0)

    @jg.compile
    def count(x: Any) -> Any:
        v.assign_add(x)
        return x * 2.0

    assert (count(2.0), count(3.0), v.numpy()) == (4.0, 6.0, 6.0)


# -- py_func -------------------------------------------------------------------------------------------------


def test_py_func_gives_shapes_when_it_runs(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, [None])
    calls = []

    def positive(a: Any) -> Any:
        calls.append(len(a))
        return a[a > 0]

    first = jg.py_func(positive, [x * 1.0], np.float64)
    second = jg.py_func(lambda a: (a[:1], len(a)), [first * 2.0], [np.float64, np.int64])
    out = np.sum(first) + second[0] * second[1]
    session = jg.Session()
    assert session.run(out, {x: [1.0, -1.0, 3.0]}).tolist() == [8.0]
    assert session.run([out, first], {x: [5.0]})[1].tolist() == [5.0]
    assert calls == [3, 1]


def test_what_comes_before_a_py_func_runs_once(graph: jg.Graph) -> None:
    v = jg.Variable(1.0)
    new = v.assign_add(1.0)
    out = jg.py_func(lambda a: a * 10.0, [new], np.float64) + new
    with graph.control_dependencies([out]):
        last = v.read()
    assert jg.Session().run([out, last]) == [22.0, 2.0]


@pytest.mark.parametrize("result", [np.ones(2), np.float64(1), 1.0 + 1j, "a"])
def test_py_func_checks_the_dtypes_of_results(graph: jg.Graph, result: Any) -> None:
    y = jg.py_func(lambda: result, [], np.float32)
    with pytest.raises(jg.DTypeError, match=r"(?s)<lambda>.*expected: float32.*got:  ") as caught:
        jg.Session().run(y)
    assert str(np.asarray(result).dtype) in str(caught.value)


def test_py_func_may_give_python_numbers(graph: jg.Graph) -> None:
    y, n = jg.py_func(lambda: ([1.0, 2], 3), [], [np.float32, np.uint8])
    assert jg.Session().run([y, n])[1].dtype == np.uint8
    assert jg.Session().run(y).dtype == np.float32


@pytest.mark.parametrize("name", ["b c", "b:0", "", "a\n", "é?"])
def test_names_are_checked(graph: jg.Graph, name: str) -> None:
    def build() -> Any:
        yield lambda: jg.constant(1, name=name)
        yield lambda: jg.Variable(1.0, name=name)
        yield lambda: jg.name_scope(name).__enter__()

    for make in build() if name else ():
        with pytest.raises(ValueError, match="cannot be the name of an operation"):
            make()
    assert jg.constant(1, name="a.b/c-d_0").op.name == "a.b/c-d_0"


def test_py_func_checks_the_number_of_results(graph: jg.Graph) -> None:
    y = jg.py_func(lambda: (1.0, 2.0), [], [np.float64] * 3)
    with pytest.raises(ValueError, match="2 results for 3 dtypes"):
        jg.Session().run(y)


@pytest.mark.parametrize(
    ("dtype", "value", "got"),
    [
        (np.float64, 1j, "complex128"),
        (np.float64, [1j, 2], "complex128"),
        (np.float64, "1.5", "1.5"),
        (np.int64, 1.5, "float64 1.5"),
        (np.int32, 2**40, "int64 1099511627776"),
        (np.int32, np.int64(2**40), "int64 1099511627776"),
        (np.int32, np.array([2**40]), "int64"),
        (np.uint8, -1, "int64 -1"),
        (np.bool_, 2, "int64 2"),
    ],
)
def test_a_feed_is_not_changed_by_its_dtype(dtype: Any, value: Any, got: str) -> None:
    x = jg.placeholder(dtype, np.shape(value))
    with pytest.raises(jg.DTypeError, match=rf"(?s)does not fit.*got: +.*{got}"):
        jg.Session().run(jg.identity(x), {x: value})


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.float32, 1), (np.float32, 0.1), (np.int8, [1, -2]), (np.bool_, 1), (np.int64, []), (np.complex64, 2.5)],
)
def test_numbers_of_python_are_fed_in_the_dtype_of_the_tensor(dtype: Any, value: Any) -> None:
    x = jg.placeholder(dtype, np.shape(value))
    np.testing.assert_array_equal(jg.Session().run(jg.identity(x), {x: value}), np.asarray(value, dtype))


def test_a_py_func_may_change_the_arrays_that_it_is_given() -> None:
    def spoil(a: Any) -> Any:
        a *= 0
        return a + 1

    x = jg.placeholder(np.float64, (2,))
    y = x * 2
    spoiled = jg.py_func(spoil, [y], np.float64)
    fed = np.array([1.0, 2.0])
    got = jg.Session().run([spoiled, y + 0.0, y, jg.py_func(spoil, [x], np.float64)], {x: fed})
    np.testing.assert_array_equal(got[0], [1, 1])
    np.testing.assert_array_equal(got[1], [2, 4])
    np.testing.assert_array_equal(got[2], [2, 4])
    np.testing.assert_array_equal(fed, [1, 2])


def test_values_are_of_this_machines_byte_order(graph: jg.Graph) -> None:
    swapped = np.arange(3.0).astype(np.dtype(float).newbyteorder())
    v, c, x = jg.Variable(swapped), jg.constant(swapped), jg.placeholder(swapped.dtype, (3,))
    with jg.jit_scope():
        y = v * c + x.astype(swapped.dtype)
    assert all(t.dtype.isnative for t in (v, c, x, y, jg.asarray(swapped), y.astype(swapped.dtype)))
    found = jg.Session().run(y, {x: swapped})
    assert found.dtype.isnative and found.tolist() == [0.0, 2.0, 6.0]


def test_threads_enter_one_session() -> None:
    """Each leaves what it has entered itself, in any order."""
    session, inside, errors = jg.Session(jg.Graph()), threading.Barrier(2, timeout=20), list[BaseException]()

    def enter() -> None:
        try:
            with session:
                inside.wait()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
