"""``x[index]`` on eager tensors: NumPy's values, gradients of two orders, and one rule for all positions of a shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.eager import calls

Z = np.arange(12.0).reshape(3, 4) + 1.0
ROWS, EVEN = np.array([True, False, True]), np.arange(12).reshape(3, 4) % 2 == 0

INDICES: list[Any] = [
    0, -1, slice(1, 3), (0, 1), (slice(None), 2), (None, 0), (Ellipsis, 1), slice(None, None, -1), (), (2, slice(0, 0)),
    ROWS, EVEN, (ROWS, 1), (slice(None), np.array([True, False, True, True])), [True, False, True], (ROWS, [1, 1]),
    True, [0, 2, 0], np.array([0, 2, 0]), (0, [1, 1, 2]), ([0, 1], [2, 2]), (slice(1, 3), [0, 0]), [[0, 1], [1, 2]], [],
    np.int64(1), (np.int64(1), slice(None, None, 2)), (np.array(1), 2), np.array(2, np.uint8),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_values_and_gradients_to_second_order(index: Any) -> None:
    x = jg.asarray(Z)
    with jg.GradientTape() as outer:
        outer.watch(x)
        with jg.GradientTape() as tape:
            tape.watch(x)
            part = x[index]
            y = np.sum(part**3)
        g = tape.gradient(y, x)
        s = np.sum(np.asarray(g)) * 0.0 if g is None else np.sum(g * g)
    np.testing.assert_array_equal(part, Z[index])
    count = np.zeros(Z.shape)
    np.add.at(count, index, 1.0)
    np.testing.assert_allclose(g, 3 * Z**2 * count, rtol=1e-14)
    np.testing.assert_allclose(outer.gradient(s, x), 36 * Z**3 * count**2, rtol=1e-13)


@pytest.mark.parametrize("kind", [ROWS, [0, 2]])
def test_eager_tensors_and_changing_arrays_as_indices(kind: Any) -> None:
    x, index = jg.asarray(Z), np.array(kind)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.sum(x[index]) + np.sum(x[jg.asarray(kind)])
        index[:] = 0
    g = np.asarray(tape.gradient(y, x))
    np.testing.assert_array_equal(g, np.outer([2, 0, 2], np.ones(4)))


def test_one_rule_for_all_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = calls._make_rule
    monkeypatch.setattr(calls, "_make_rule", lambda *args: made.append(args[0]) or make(*args))
    x = jg.asarray(np.arange(57.0))

    def gradient(index: Any) -> Any:
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = x[index]
        return tape.gradient(y, x)

    for k in range(20):
        gradient(k)
        gradient(slice(k, k + 5))
        gradient(np.arange(57) > k)
    assert not made
    for k in range(20):
        gradient([k, k + 1, k])
        gradient(np.array([k, 3, 5]))
    assert len(made) == 1


def test_look_ups_give_slices_and_the_rest_arrays() -> None:
    x = jg.asarray(np.ones((100, 3)))
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        rows, one = x[[3, 5, 3]], x[3]
    assert isinstance(tape.gradient(rows, x), jg.IndexedSlices)
    assert isinstance(tape.gradient(one, x), jg.EagerTensor)


def test_jacobians_of_items() -> None:
    x = jg.asarray([1.0, 2.0, 3.0])
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        masked, product, looked = np.sin(x[ROWS]), x[1:] * x[0], x[[0, 0]] * 2.0
    np.testing.assert_allclose(tape.jacobian(masked, x), np.diag(np.cos(x))[[0, 2]])
    np.testing.assert_allclose(tape.jacobian(product, x), [[2, 1, 0], [3, 0, 1]])
    np.testing.assert_allclose(tape.jacobian(looked, x), [[2, 0, 0], [2, 0, 0]])


def test_items_in_scopes() -> None:
    x = jg.asarray([1.0, 2.0, 3.0])
    with jg.GradientTape() as tape:
        tape.watch(x)
        with jg.jit_scope():
            y = np.sum(x[1:] * x[np.array([True, True, False])]) + x[0]
    np.testing.assert_array_equal(tape.gradient(y, x), [3, 4, 2])
    with jg.jit_scope():
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = np.sum(x[1:] * x[0])
        g = tape.gradient(y, x)
    np.testing.assert_array_equal(g, [5, 1, 1])


@pytest.mark.parametrize(
    ("index", "message"), [(3, "out of bounds"), (np.array([True]), "boolean index"), (1.0, "only")]
)
def test_numpys_errors(index: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        jg.asarray([1.0, 2.0, 3.0])[index]


def test_integers_and_unwatched_tensors_are_not_recorded() -> None:
    x, n = jg.asarray([1.0, 2.0]), jg.asarray([1, 2])
    with jg.GradientTape() as tape, pytest.warns(UserWarning, match="no gradient"):
        tape.watch(n)
        assert x[0] == 1.0 and n[0] == 1
    assert not tape.entries


def test_items_while_values_are_looked_at() -> None:
    x = jg.asarray([1.0, 2.0, 3.0])
    with jg.config(debug_nans=True):
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = np.sum(x[ROWS] * x[1:]) + x[0]
        g = tape.gradient(y, x)
        with jg.jit_scope(), jg.jit_scope(compile_ops=False), pytest.raises(jg.NonFiniteError, match="op 'log' made"):
            np.log(x - 5.0)
    np.testing.assert_array_equal(g, [3, 1, 6])
