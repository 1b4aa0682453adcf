"""IndexedSlices: gradients of look-ups in graphs and on tapes, kept sparse, added, made dense, applied to Variables."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.ops import slices as slices_module
from jitgrad.ops.rows import change_rows

TABLE = np.arange(10.0).reshape(5, 2)


def dense(fn: Any) -> Any:
    return jg.grad(fn)(TABLE)


def in_graph(fn: Any) -> Any:
    """The gradient that a graph gives for a function of the table, and what a session makes of it."""
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [5, 2])
        (g,) = jg.gradients(fn(t), [t])
        return g, jg.Session().run(g, {t: TABLE})


LOOKUPS = [
    ("gather", lambda t: np.sum(jg.gather(t, np.array([1, 1, 4])) ** 2), 3),
    ("take", lambda t: np.sum(np.take(t, np.array([[0, 2], [2, -1]]), axis=0) ** 3), 4),
    ("index", lambda t: np.sum(t[np.array([3, 0])] * 2.0), 2),
    ("two look-ups", lambda t: np.sum(jg.gather(t, [1]) ** 2) + np.sum(jg.gather(t, [1, 2])), 3),
    ("nested", lambda t: np.sum(jg.gather(jg.gather(t, [1, 1, 4]), [0, 2]) * 3.0), 2),
]


@pytest.mark.parametrize(("name", "fn", "rows"), LOOKUPS)
def test_gradients_of_lookups_are_slices(name: str, fn: Any, rows: int) -> None:
    g, value = in_graph(fn)
    assert isinstance(g, jg.IndexedSlices) and g.shape == (5, 2)
    assert isinstance(value, jg.IndexedSlices) and value.values.shape == (rows, 2) and value.indices.shape == (rows,)
    np.testing.assert_allclose(value.numpy(), dense(fn))
    np.testing.assert_allclose(value.to_scipy().toarray(), dense(fn))


@pytest.mark.parametrize(("name", "fn", "rows"), LOOKUPS)
def test_so_they_are_on_tapes(name: str, fn: Any, rows: int) -> None:
    t = jg.asarray(TABLE)
    with jg.GradientTape() as tape:
        tape.watch(t)
        y = fn(t)
    g = tape.gradient(y, t)
    assert isinstance(g, jg.IndexedSlices)
    np.testing.assert_allclose(g.numpy(), dense(fn))


def test_one_dense_addend_makes_the_sum_dense() -> None:
    def fn(t: Any) -> Any:
        return np.sum(jg.gather(t, [1, 1])) + np.sum(t * t)

    g, value = in_graph(fn)
    assert isinstance(g, jg.Tensor)
    np.testing.assert_allclose(value, dense(fn))
    t = jg.asarray(TABLE)
    with jg.GradientTape() as tape:
        tape.watch(t)
        y = fn(t)
    g = tape.gradient(y, t)
    assert isinstance(g, jg.EagerTensor)
    np.testing.assert_allclose(g, dense(fn))


def test_the_dense_tensor_is_not_made_unless_wanted() -> None:
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [5, 2])
        (g,) = jg.gradients(np.sum(jg.gather(t, [0, 1]) ** 2), [t])
        stage, _ = jg.Session().stages([g.values, g.indices], {t: TABLE})[0]
        names = {ins.op.name for ins in stage.program([jg.Session().graph.as_graph_element(t).spec]).instructions}
        assert not any(name.startswith("scatter") for name in names)


def test_slices_stand_where_a_tensor_does() -> None:
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [5, 2])
        (g,) = jg.gradients(np.sum(jg.gather(t, [1, 1])), [t])
        wanted = [g * 2.0, g[1], np.reshape(g, (2, 5)), np.stack([g, g]), g.sum()]
        found = jg.Session().run(wanted, {t: TABLE})
    d = np.zeros((5, 2))
    d[1] = 2.0
    for value, expected in zip(found, [d * 2, d[1], d.reshape(2, 5), np.stack([d, d]), d.sum()], strict=True):
        np.testing.assert_array_equal(value, expected)
    s = jg.IndexedSlices(np.ones((2, 2)), [1, 1], (5, 2))
    np.testing.assert_array_equal(s + 1.0, d + 1)
    np.testing.assert_array_equal(np.asarray(s), d)
    assert len(s) == 5 and float(s[1, 0]) == 2.0


def test_members_are_fed_and_slices_are_seeds() -> None:
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [5, 2])
        y = t * 3.0
        (g,) = jg.gradients(np.sum(jg.gather(t, [0, 1])), [t])
        assert jg.Session().run(g * 1.0, {t: TABLE, g.values: np.full((2, 2), 7.0)})[0, 0] == 7.0
        fed = jg.Session().run(g, {t: TABLE, g.indices: np.array([4, 4])})
        np.testing.assert_array_equal(fed.numpy()[4], [2.0, 2.0])
        seed = jg.IndexedSlices(jg.constant(np.ones((1, 2))), jg.constant([2]), (5, 2))
        (h,) = jg.gradients(y, [t], grad_ys=seed)
        np.testing.assert_array_equal(jg.Session().run(h, {t: TABLE})[:, 0], [0, 0, 3, 0, 0])


def test_slices_are_fed_as_slices_or_as_a_pair() -> None:
    rows = jg.IndexedSlices(np.full((3, 2), 7.0), np.array([0, 4, 4]), (5, 2))
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [5, 2])
        (one,) = jg.gradients(np.sum(jg.gather(t, [0, 1, 2]) ** 2), [t])
        (two,) = jg.gradients(np.sum(jg.gather(t, [0]) ** 2) + np.sum(jg.gather(t, [1, 2]) ** 3), [t])
        for g in (one, two):
            for fed in (rows, (rows.values, rows.indices)):
                found = jg.Session().run([g, g * 1.0], {g: fed})
                np.testing.assert_array_equal(found[0].numpy(), rows.numpy())
                np.testing.assert_array_equal(found[1], rows.numpy())
            np.testing.assert_array_equal(jg.Session().run(g + 0.0, {g: TABLE}), TABLE)


def test_slices_of_an_unknown_number_of_rows_are_made_dense() -> None:
    with jg.Graph().as_default():
        values, indices = jg.placeholder(np.float32, [None, 2]), jg.placeholder(np.int32, [None])
        s = jg.IndexedSlices(values, indices, (4, 2))
        (g,) = jg.gradients(np.sum(s * np.float32(2) + s[1:2]), [values])
        found = jg.Session().run([s * np.float32(1), g], {values: [[1, 2], [3, 4], [5, 6]], indices: [1, 3, 1]})
    np.testing.assert_array_equal(found[0], [[0, 0], [6, 8], [0, 0], [3, 4]])
    np.testing.assert_array_equal(found[1], [[6, 6], [2, 2], [6, 6]])


def test_the_gradient_of_slices_is_differentiated_again() -> None:
    """The sum of squares of a sparse gradient, with respect to the table: dense and sparse agree."""
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [5, 2])
        (g,) = jg.gradients(np.sum(jg.gather(jg.gather(t, [1, 1, 4]), [0, 2, 2]) ** 3) + np.sum(t[np.array([0])]), [t])
        assert isinstance(g, jg.IndexedSlices)
        (again,) = jg.gradients(np.sum(np.square(g)), [t])
        found = jg.Session().run(again * 1.0, {t: TABLE})
    expected = jg.grad(
        lambda t: np.sum(np.square(jg.grad(lambda t: np.sum(t[[1, 4, 4]] ** 3) + np.sum(t[[0]]))(t)))
    )(TABLE)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("method", list(jg.AggregationMethod))
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("separate", [None, False, True])
def test_slices_survive_every_option(method: Any, gate: bool, separate: bool | None) -> None:
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [5, 2])
        with jg.jit_scope(separate is not None, separate_compiled_gradients=bool(separate)):
            parts = [jg.gather(t, [k, 4]) ** 2 for k in range(4)]
        (g,) = jg.gradients(parts, [t], [None, np.full((2, 2), 2.0), None, None], "g", True, gate, method)
        value = jg.Session().run(g, {t: TABLE})
    assert isinstance(value, jg.IndexedSlices) and value.values.shape == (8, 2)
    weights = np.array([1.0, 2.0, 1.0, 1.0, 5.0])[:, None]
    np.testing.assert_allclose(value.numpy(), 2 * TABLE * weights)


@pytest.mark.parametrize("colocated", [False, True])
def test_what_slices_are_made_of_is_named_and_placed_as_the_sum(colocated: bool) -> None:
    with jg.Graph().as_default() as graph:
        with graph.device("/gpu:1"), jg.jit_scope():
            t = jg.placeholder(np.float64, (5, 3))
            y = np.sum(jg.gather(t, [1, 2]) ** 2) + np.sum(jg.gather(t, [[1], [2]]) ** 3)
        before = len(graph)
        with graph.name_scope("out"), graph.device("/cpu:9"):
            (g,) = jg.gradients(y, t, colocate_gradients_with_ops=colocated)
        made = [op for op in graph.operations[before:] if "_slices" in op.name]
        (total,) = [op for op in graph.operations[before:] if op.type == "add_n" and op.outputs[0].shape == (5, 3)]
    assert {g.values.op, g.indices.op} < set(made) and total.name == "out/gradients/add_n"
    assert {op.name.rpartition("/")[0] for op in made} == {"out/gradients/add_n_slices"}
    assert {op.device for op in made} == {total.device} == {"/gpu:1" if colocated else "/cpu:9"}
    groups = {tuple(op.colocation_groups) for op in made}
    assert groups == ({tuple(total.colocation_groups)} if colocated else {(f"loc:@{op.name}",) for op in made})
    assert all(op.attrs == total.attrs and op.is_gradient for op in made)


def test_thousands_of_lookups_without_recursion() -> None:
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, (5, 2))
        many = jg.add_n([np.sum(jg.gather(t, [k % 5])) for k in range(1500)])
        (of_many,) = jg.gradients(many, t, aggregation_method=jg.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N)
        nested = t
        for _ in range(1500):
            nested = jg.gather(nested, [1, 0])
        (of_nested,) = jg.gradients(np.sum(nested), t)
        assert of_many.values.shape == (1500, 2) and of_nested.values.shape == (2, 2)
        positions = jg.Session().run(of_many.indices, {t: TABLE})
    assert np.bincount(positions).tolist() == [300] * 5


def test_another_dtype_is_refused() -> None:
    s = jg.IndexedSlices(np.ones((2, 2), np.float32), [1, 1], (5, 2))
    for make in (lambda: np.asarray(s, np.float64), lambda: jg.constant(s, np.float64)):
        with pytest.raises(ValueError, match="slices of float32 cannot be made a dense array of float64"):
            make()
    assert np.asarray(s, np.float32).dtype == np.float32


def test_asking_for_the_shape_makes_nothing_dense() -> None:
    with jg.Graph().as_default() as graph:
        values = jg.placeholder(np.float64, [3, 2])
        s = jg.IndexedSlices(values, jg.constant([0, 1, 2]), (2_000_000_000, 2))
        before = len(graph)
        assert (s.shape, s.ndim, s.size, s.dtype, len(s)) == ((2_000_000_000, 2), 2, 4 * 10**9, np.float64, 2 * 10**9)
        assert s.spec == jg.placeholder(np.float64, (2_000_000_000, 2)).spec and len(graph) == before + 1


@pytest.mark.parametrize("positions", [(None,), (None, None), None])
@pytest.mark.parametrize("shape", [(None, 2), (None, None), None])
def test_an_unknown_number_of_rows(shape: Any, positions: Any) -> None:
    at = np.array([[1, 3, 3], [0, 1, 1]]) if positions is None or len(positions) == 2 else np.array([1, 3, 3])
    expected = np.zeros_like(TABLE)
    np.add.at(expected, at, 2 * TABLE[at])
    expected[2] += 3.0
    with jg.Graph().as_default():
        t, i = jg.placeholder(np.float64, shape), jg.placeholder(np.int64, positions)
        (g,) = jg.gradients(np.sum(jg.gather(t, i) ** 2) + np.sum(jg.gather(t, [2, 2, 2])), [t])
        assert isinstance(g, jg.IndexedSlices)
        again = jg.IndexedSlices(g.values * 2.0, g.indices, g.dense_shape)
        rows = jg.placeholder(np.int64, (2,))
        asked = jg.IndexedSlices(g.values, g.indices, rows)
        slices, dense, twice, other = jg.Session().run([g, g * 1.0, again * 1.0, asked * 1.0], {
            t: TABLE, i: at, rows: [6, 2],
        })  # fmt: skip
    assert slices.dense_shape == TABLE.shape
    for found in (slices.numpy(), dense, twice / 2.0, other[: len(TABLE)]):
        np.testing.assert_array_equal(found, expected)
    assert other.shape == (6, 2)


def test_a_dense_shape_that_is_a_tensor_must_be_one_of_integers() -> None:
    with jg.Graph().as_default():
        shape = jg.placeholder(np.float64, (2,))
        with pytest.raises(ValueError, match=r"(?s)dense_shape must be integers.*test_slices.py"):
            jg.IndexedSlices(np.ones((1, 2)), [0], shape)
        known = jg.IndexedSlices(jg.constant(np.ones((1, 2))), [0], jg.constant([5, 2]))
        assert known.dense_shape == (5, 2) and known.shape == (5, 2)


def test_without_a_shape_slices_stay_slices() -> None:
    with pytest.raises(ValueError, match="without dense_shape"):
        jg.IndexedSlices(np.ones((1, 2)), [0]).numpy()
    with pytest.raises(ValueError, match="2-D"):
        jg.IndexedSlices(np.ones((1, 2, 2)), [0], (3, 2, 2)).to_scipy()


def test_a_large_dense_tensor_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "LARGE", 10)
    monkeypatch.setattr(slices_module, "_warned", set())

    def made(rows: int = 5) -> Any:
        return jg.IndexedSlices(np.ones((1, 2)), [0], (rows, 2))

    with pytest.warns(UserWarning, match=r"^slices made dense at test_slices.py:\d+: 10 elements, 0.0 GB$") as caught:
        for _ in range(2):
            made().numpy()
    assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(UserWarning, match="made dense"):
        made().numpy()  # at another place
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(4).numpy()
        sparse = made()
        assert sparse.shape == (5, 2) and sparse.to_scipy().nnz == 2
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [5, 2])
        (g,) = jg.gradients(np.sum(jg.gather(t, [1])), [t])
        with pytest.warns(UserWarning, match=r"gradients/take_grad/\S+ made dense|broadcast\S* made dense") as caught:
            _ = (g * 1.0, g + 1.0)
        assert len(caught) == 1


def test_a_large_gradient_that_the_walk_makes_dense_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "LARGE", 10)
    monkeypatch.setattr(slices_module, "_warned", set())
    text = r"take\w*_grad/scatter_take made dense at test_slices.py:\d+: 10 elements, 0.0 GB"
    with jg.Graph().as_default():
        t, small = jg.placeholder(np.float64, (5, 2)), jg.placeholder(np.float64, (4, 2))
        with pytest.warns(UserWarning, match=text) as behind:
            jg.gradients(np.sum(jg.gather(t * 2.0, [1])), t)
        with pytest.warns(UserWarning, match=text) as added:
            jg.gradients(np.sum(jg.gather(t, [1])) + np.sum(t * t), t)
        with pytest.warns(UserWarning, match=text) as product:
            jg.hessian_vector_product(np.sum(jg.gather(t, [1]) ** 2), t, TABLE)
        assert len(behind) == len(added) == len(product) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jg.gradients(np.sum(jg.gather(t, [1])) + np.sum(jg.gather(jg.gather(t, [1, 2]), [0])), t)
            jg.gradients(np.sum(jg.gather(small * 2.0, [1])), small)


# -- Variables -----------------------------------------------------------------------------------------------


def test_variables_take_slices() -> None:
    v = jg.Variable(TABLE)
    s = jg.IndexedSlices(np.ones((3, 2)), [1, 1, 4])
    before = v.value()
    v.scatter_add(s)
    np.testing.assert_array_equal(v.numpy()[:, 0], [0, 4, 4, 6, 9])
    v.scatter_sub(s)
    np.testing.assert_array_equal(v.numpy(), TABLE)
    v.scatter_update(jg.IndexedSlices(np.zeros((1, 2)), [2]))
    np.testing.assert_array_equal(v.numpy()[2], [0, 0])
    np.testing.assert_array_equal(before, TABLE)
    with pytest.raises(jg.ShapeError, match="got rows"):
        v.scatter_add(jg.IndexedSlices(np.ones((3, 3)), [1, 1, 4]))
    with pytest.raises(jg.IndexingError, match="has 5 rows"):
        v.scatter_add(jg.IndexedSlices(np.ones((1, 2)), [5]))


def test_variables_take_slices_in_graphs() -> None:
    v = jg.Variable(TABLE)
    with jg.Graph().as_default():
        (g,) = jg.gradients(np.sum(jg.gather(v, [1, 1, 4]) ** 2), [v.value()])
        update = v.scatter_sub(g)
        jg.Session().run(update)
    expected = TABLE.copy()
    np.subtract.at(expected, [1, 1, 4], 2 * TABLE[[1, 1, 4]])
    np.testing.assert_array_equal(v.numpy(), expected)


@pytest.mark.parametrize("optimizer", [jg.optimize.SGD, jg.optimize.Adam, jg.optimize.RMSProp])
def test_sparse_steps_are_dense_steps_of_the_rows(optimizer: Any) -> None:
    sparse, full = jg.Variable(TABLE), jg.Variable(TABLE[[1, 4]])
    ours, theirs = optimizer(0.1), optimizer(0.1)
    for _ in range(3):
        ours.apply_gradients(jg.implicit_grad(lambda: np.sum(np.take(sparse, [4, 1, 1], axis=0) ** 2))())
        theirs.apply_gradients(jg.implicit_grad(lambda: np.sum(full**2 * np.array([[2.0], [1.0]])))())
    np.testing.assert_allclose(sparse.numpy()[[1, 4]], full.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(sparse.numpy()[[0, 2, 3]], TABLE[[0, 2, 3]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128, np.int32])
@pytest.mark.parametrize("width", [(), (1,), (3,), (16,), (5, 7), (0,)])
@pytest.mark.parametrize("count", [0, 1, 40, 5000])
def test_rows_that_repeat_change_in_the_order_given(count: int, width: tuple[int, ...], dtype: Any) -> None:
    """The bits of NumPy's own ``at``, by machine code and by positions of elements."""
    rng = np.random.default_rng(count)
    rows, values = rng.integers(-9, 9, count), (rng.normal(size=(count, *width)) * 100).astype(dtype)
    for change in (np.add, np.subtract):
        ours = np.ones((9, *width), dtype)
        theirs = ours.copy()
        change_rows(change, ours, rows, values)
        change.at(theirs, rows, values)
        np.testing.assert_array_equal(ours, theirs)
    if values.size:
        for bad in (9, -10):
            with pytest.raises(IndexError, match=f"index {bad} is out of bounds for axis 0 with size 9"):
                change_rows(np.add, ours, np.where(rows == rows[0], bad, rows), values)


def test_a_large_table_costs_its_rows() -> None:
    table = jg.Variable(np.zeros((200_000, 64), np.float32))
    rows = np.random.default_rng(0).integers(0, 200_000, 100)
    optimizer = jg.optimize.SGD(0.1)

    def step() -> None:
        with jg.GradientTape() as tape:
            y = np.sum((np.take(table, rows, axis=0) - 1.0) ** 2)
        optimizer.apply_gradients([(tape.gradient(y, table), table)])

    step()
    tracemalloc.start()
    try:
        step()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 4 * 200_000 / 50


def test_rows_counted_from_the_end_are_made_dense_there() -> None:
    slices = jg.IndexedSlices(np.array([[1.0], [2.0]]), np.array([-1, 0]), (3, 1))
    np.testing.assert_array_equal(slices, [[2.0], [0.0], [1.0]])
    x = jg.asarray(np.array([[1.0], [2.0]]))
    with jg.GradientTape() as tape:
        tape.watch(x)
        dense = np.asarray(jg.IndexedSlices(x, np.array([-1, 0]), (3, 1)) * 1.0)
        dropped = jg.unsorted_segment_sum(x, np.array([-1, 0]), 3)
        loss = np.sum(dropped * np.array([[5.0], [6.0], [7.0]]))
    np.testing.assert_array_equal(dense, [[2.0], [0.0], [1.0]])
    np.testing.assert_array_equal(dropped, [[2.0], [0.0], [0.0]])
    np.testing.assert_array_equal(tape.gradient(loss, x), [[0.0], [5.0]])


def test_what_is_made_again_elsewhere_reads_rows_and_padded_arrays_where_they_are() -> None:
    """Cheap values of an array and a row, or of an array with a border, read at neighbours by what reads these too."""
    x, b = np.arange(60.0).reshape(12, 5), np.arange(5.0) * 100

    def beside_a_row(x: Any, b: Any) -> Any:
        v = np.negative(x + b)
        return (v[1:] - v[:-1]) * x[1:] + b, np.sum(v)

    def beside_a_border(x: Any, b: Any) -> Any:
        v = np.pad(x, 1)[:-2, 1:-1] * 2.0
        return (v[1:] - v[:-1]) * x[1:] + b, np.sum(v)

    for fn in (beside_a_row, beside_a_border):
        f = jg.compile(fn)
        for found, expected in zip(f(x, b), fn(x, b), strict=True):
            np.testing.assert_array_equal(found, expected)
