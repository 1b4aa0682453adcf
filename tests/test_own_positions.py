"""``x[np.arange(n), labels]``: positions of which all but the last are each element's own, read along the last axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitgrad as jg
import jitgrad.numpy as jnp
from jitgrad.testing import check_gradients

pytestmark = pytest.mark.quick

Array = npt.NDArray[Any]

ROWS, CUBE = np.random.default_rng(4).normal(size=(5, 7)), np.random.default_rng(5).normal(size=(4, 5, 7))
LABELS, TABLE = np.array([6, -7, 0, 3, 3]), np.random.default_rng(6).integers(0, 7, (4, 5))


def _written_to(x: Any, t: Any) -> Any:
    own = jnp.arange(5)
    view = own[:]
    first = x[own, t]
    own[0] = 2
    return first + 2 * x[view, t]


# name → (function, array, positions, whether they are all along the last axis)
OWN: dict[str, tuple[Callable[..., Any], Array, Array, bool]] = {
    "of each row": (lambda x, t: x[np.arange(5), t], ROWS, LABELS, True),
    "of 32 bits": (lambda x, t: x[np.arange(len(x), dtype=np.int32), t], ROWS, LABELS, True),
    "a list": (lambda x, t: x[[0, 1, 2, 3, 4], t], ROWS, LABELS, True),
    "several of each row": (lambda x, t: x[np.arange(5)[:, None], t[:, None] % np.array([2, 3])], ROWS, LABELS, True),
    "two axes": (lambda x, t: x[np.arange(4)[:, None], np.arange(5), t], CUBE, TABLE, True),
    "of one matrix": (lambda x, t: x[1, np.arange(5), t], CUBE, LABELS, True),
    "both known": (lambda x, t: x[np.arange(5), [0, 2, 4, 6, 1]] * t, ROWS, LABELS, True),
    "fewer rows": (lambda x, t: x[np.arange(3), t[:3]], ROWS, LABELS, False),
    "in another order": (lambda x, t: x[np.arange(5)[::-1], t], ROWS, LABELS, False),
    "two axes, one turned": (lambda x, t: x[np.arange(4)[:, None], np.arange(5)[::-1], t], CUBE, TABLE, False),
    "rows of matrices": (lambda x, t: x[np.arange(4), t[:, 0] % 5], CUBE, TABLE, False),
    "all pairs": (lambda x, t: x[np.arange(5)[:, None], t], ROWS, LABELS, True),
    "all pairs, turned": (lambda x, t: x[np.arange(5), t[:, None]], ROWS, LABELS, False),
    "written to": (_written_to, ROWS, LABELS, False),
}


@pytest.mark.parametrize("name", OWN)
def test_own_positions_are_no_positions(name: str) -> None:
    f, x, t, is_along = OWN[name]
    compiled = jg.compile(f)
    assert np.array_equal(compiled(x, t), f(x, t)) and np.array_equal(compiled.interpret(x, t), f(x, t))
    assert (" index(" not in compiled.explain(x, t).text) == is_along
    check_gradients(lambda x: f(x, t) ** 2, x)


def _less(x: Any, t: Any) -> Any:
    p = np.exp(x)
    p[np.arange(len(p)), t] -= x[:, 0]
    return p


def _minus_zero(x: Any, t: Any) -> Any:
    y = x + 0
    y[np.arange(5), t] = [-0.0, np.nan, np.inf, 1, 2]
    return y


def _ones(x: Any, t: Any) -> Any:
    hot = np.zeros_like(x, np.int64)
    hot[np.arange(5), t] = 1
    return hot * x


def _of_a_part(x: Any, t: Any) -> Any:
    y = x * 1
    y[:, 1, :][np.arange(4), t[:, 0]] = x[:, 0, 0] ** 2
    return y


def _along(x: Any, t: Any) -> Any:
    y = x * 1
    np.put_along_axis(y, t[:, None], x[:, :1] * 2, 1)
    return y


def _several(x: Any, t: Any) -> Any:
    y = x * 1
    y[np.arange(5)[:, None], np.stack([t, t], 1)] = x[:, :2] * 2
    return y


WRITING: dict[str, tuple[Callable[..., Any], Array, Array, bool]] = {
    "less": (_less, ROWS, LABELS, True),
    "signs of zeros, NaN and infinities": (_minus_zero, ROWS, LABELS, True),
    "one-hot": (_ones, ROWS, LABELS, True),
    "rows of a part": (_of_a_part, CUBE, TABLE, True),
    "put_along_axis": (_along, ROWS, LABELS, True),
    "several in a row, of which the last stays": (_several, ROWS, LABELS, False),
}


@pytest.mark.parametrize("name", WRITING)
def test_writing_at_own_positions_is_fused(name: str) -> None:
    f, x, t, is_fused = WRITING[name]
    compiled = jg.compile(f)
    expected = f(x, t)
    for found in (compiled(x, t), compiled.interpret(x, t)):
        np.testing.assert_allclose(found, expected, rtol=1e-15)
        assert np.array_equal(np.signbit(found), np.signbit(expected))
    assert ("last_writer" not in compiled.explain(x, t).text) == is_fused
    if name != "signs of zeros, NaN and infinities":
        check_gradients(lambda x: f(x, t) ** 2, x)
    with pytest.raises(IndexError, match=r"test_own_positions\.py" if is_fused else "out of bounds"):
        compiled(x, np.full_like(t, 7))


def test_positions_out_of_range_are_refused_at_the_line() -> None:
    f = jg.compile(lambda x, t: x[np.arange(5), t])
    f(ROWS, LABELS)
    for run in (f, f.interpret):
        with pytest.raises(jg.errors.IndexingError, match=r"test_own_positions\.py"):
            run(ROWS, np.array([0, 1, 7, 0, 0]))
    with pytest.raises(jg.errors.IndexingError, match="index 7 is out of bounds for axis 1 with size 7"):
        jg.compile(lambda x: x[np.arange(5), [0, 1, 7, 0, 0]])(ROWS)
    with pytest.raises(jg.errors.IndexingError, match="index 5 is out of bounds for axis 0 with size 5"):
        jg.compile(lambda x: x[np.arange(6), 0])(ROWS)


def test_other_numbers_of_rows_and_none() -> None:
    f = jg.compile(jg.grad(lambda x, t: np.sum(x[np.arange(len(x)), t] ** 2)))
    for n in (5, 3, 1, 0):
        expected = np.zeros((n, 7))
        expected[np.arange(n), LABELS[:n]] = 2 * ROWS[np.arange(n), LABELS[:n]]
        assert np.array_equal(f(ROWS[:n], LABELS[:n]), expected)


def test_positions_that_are_fed() -> None:
    graph = jg.Graph()
    with graph.as_default():
        x, own = jg.constant(ROWS), jg.constant(np.arange(5))
        read = x[own, LABELS]
    with jg.Session(graph=graph) as session:
        fed = session.run(read, {own: np.arange(5)[::-1]})
        assert np.array_equal(fed, ROWS[::-1][np.arange(5), LABELS])
        assert np.array_equal(session.run(read), ROWS[np.arange(5), LABELS])


def test_positions_without_a_rank() -> None:
    graph = jg.Graph()
    with graph.as_default():
        x, t = jg.placeholder(np.float64, (5, None)), jg.placeholder(np.int64)
        read = x[np.arange(5), t]
    assert read.op.type == "index"
    with jg.Session(graph=graph) as session:
        for labels in (LABELS, LABELS[:1]):
            assert np.array_equal(session.run(read, {x: ROWS, t: labels}), ROWS[np.arange(5), labels])


def test_extents_that_are_not_known() -> None:
    graph = jg.Graph()
    with graph.as_default():
        x, t = jg.placeholder(np.float64, (None, 7)), jg.placeholder(np.int64, (5,))
        read = x[np.arange(5), t]
    with jg.Session(graph=graph) as session:
        assert np.array_equal(session.run(read, {x: ROWS, t: LABELS}), ROWS[np.arange(5), LABELS])
