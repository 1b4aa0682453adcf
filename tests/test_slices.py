"""IndexedSlices: gradients of look-ups in graphs and on tapes, kept sparse, added, made dense, applied to Variables."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.ops import slices as slices_module

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


def test_an_unknown_number_of_rows() -> None:
    with jg.Graph().as_default():
        t = jg.placeholder(np.float64, [None, 2])
        i = jg.placeholder(np.int64, [None])
        (g,) = jg.gradients(np.sum(jg.gather(t, i) ** 2), [t])
        found = jg.Session().run([g.values, g.indices], {t: TABLE, i: [1, 3, 3]})
        assert isinstance(g, jg.IndexedSlices) and g.dense_shape is None
        np.testing.assert_array_equal(found[0], 2 * TABLE[[1, 3, 3]])


def test_without_a_shape_slices_stay_slices() -> None:
    with pytest.raises(ValueError, match="without dense_shape"):
        jg.IndexedSlices(np.ones((1, 2)), [0]).numpy()
    with pytest.raises(ValueError, match="2-D"):
        jg.IndexedSlices(np.ones((1, 2, 2)), [0], (3, 2, 2)).to_scipy()


def test_a_large_dense_tensor_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "LARGE", 10)
    s = jg.IndexedSlices(np.ones((1, 2)), [0], (5, 2))
    with pytest.warns(UserWarning, match=r"made dense at test_slices.py:\d+: 10 elements"):
        for _ in range(2):
            s.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jg.IndexedSlices(np.ones((1, 2)), [0], (4, 2)).numpy()


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
