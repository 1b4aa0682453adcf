"""What tensors, Variables and optimisers refuse, and what they follow: no value is cut, no gradient lost unsaid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.ops.slices import IndexedSlices

X = np.array([1.0, 2.0, 3.0])


def gradient(fn: Callable[[Any], Any], x: Any = X) -> Any:
    """That of a tape."""
    given = jg.asarray(x)
    with jg.GradientTape() as tape:
        tape.watch(given)
        y = fn(given)
    return tape.gradient(y, given)


# -- rows of optimisers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [jg.optimize.SGD(1.0), jg.optimize.SGD(1.0, momentum=0.5), jg.optimize.Adam(0.1)])
def test_a_row_counted_from_both_ends_is_one_row(rule: Any) -> None:
    """The step is that of the same rows counted from the first."""
    both = []
    for rows in ([-1, 3, 1], [3, 3, 1]):
        e = jg.Variable(np.zeros((4, 2)))
        with jg.GradientTape() as tape:
            y = np.sum(e[np.array(rows)])
        g = tape.gradient(y, e)
        assert isinstance(g, IndexedSlices)
        rule.apply_gradients([(g, e)])
        both.append(e.numpy())
    assert np.array_equal(*both) and both[0][3, 0] != 0.0


def test_a_row_that_is_not_there_names_the_variable() -> None:
    e = jg.Variable(np.zeros((4, 2)), name="table")
    with pytest.raises(jg.errors.IndexingError, match=r"row 7 of variable 'table', which has 4 rows"):
        jg.optimize.SGD(1.0).apply_gradients([(IndexedSlices(np.ones((1, 2)), np.array([7]), (4, 2)), e)])


# -- Variables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "start", "value"),
    [(np.int64, 1, 2.5), (np.int64, 1, float("nan")), (np.int64, [1, 2], [1.5, 2.5]), (np.uint8, 1, 300),
     (np.uint8, 1, -1), (np.bool_, True, 2), (np.int64, 1, 2.0)],
)  # fmt: skip
def test_assign_does_not_cut_numbers(dtype: Any, start: Any, value: Any) -> None:
    """As it refuses arrays of those dtypes, and as compiled code does."""
    v = jg.Variable(np.array(start, dtype), name="v")
    with pytest.raises(jg.errors.DTypeError, match=r"variable 'v.*' cannot take the value"):
        v.assign(value)
    assert np.array_equal(v.numpy(), start)


def test_assign_takes_numbers_that_the_dtype_holds() -> None:
    assert jg.Variable(np.uint8(1)).assign(255).numpy() == 255
    assert jg.Variable(np.float32(1)).assign(3).numpy() == 3
    assert jg.Variable([1.0, 2.0]).assign([3, 4]).numpy().tolist() == [3.0, 4.0]


def test_in_place_operators_of_variables_name_what_changes_them() -> None:
    v = jg.Variable(X, name="w")
    with pytest.raises(jg.errors.TracedValueError, match=r"(?s)'w.*' is not changed by -=.*test_value.*assign_sub"):
        v -= 0.1
    with pytest.raises(jg.errors.TracedValueError, match=r"assign\(v \* x\)"):
        v *= 2.0
    assert isinstance(v, jg.Variable) and np.array_equal(v.numpy(), X)


def test_assignments_of_other_shapes_name_the_variable() -> None:
    v = jg.Variable(X, name="w")
    for change in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(jg.errors.ShapeError, match=r"(?s)'w.*'.*expected: +f64\[3\].*got: +f64\[4\].*needed: +at"):
            change(np.ones(4))
    with pytest.raises(jg.errors.ShapeError, match=r"(?s)'w.*'.*got: +f64\[2,3\]"):
        v.assign_add(np.ones((2, 3)))
    v.assign_add([[1.0]][0])
    with pytest.raises(TypeError, match=r"(?s)'w.*'.*expected: +jg.IndexedSlices.*assign_add"):
        v.scatter_add(np.ones(3))


# -- tensors -----------------------------------------------------------------------------------------------------


def test_gradient_of_vectors_and_matrices_are_of_numpys_kinds() -> None:
    """np.gradient gives an array or a tuple of them, by the rank."""
    a = np.arange(12.0).reshape(3, 4) ** 2
    for _ in range(2):
        assert isinstance(np.gradient(jg.asarray(a[0])), jg.EagerTensor)
        found = np.gradient(jg.asarray(a))
        assert isinstance(found, tuple | list)
        assert all(map(np.array_equal, found, np.gradient(a)))


def test_a_view_is_followed() -> None:
    assert np.array_equal(gradient(lambda x: np.sum(x.view() * x)), 2 * X)
    assert np.array_equal(gradient(lambda x: np.sum(x.view(np.float64) * x)), 2 * X)
    x = jg.asarray(X)
    assert isinstance(x.view(np.int64), jg.EagerTensor) and type(x.view(np.ndarray)) is np.ndarray
    assert np.array_equal(x.getfield(np.float64), X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.view(np.int64),
        lambda x: x.getfield(np.float64),
        lambda x: np.vectorize(lambda e: e * e)(x),
        lambda x: np.frompyfunc(lambda e: e * e, 1, 1)(x),
        lambda x: x.astype(object),
    ],
)
def test_what_no_tape_follows_is_refused(fn: Callable[[Any], Any]) -> None:
    """Only where one watches."""
    with pytest.raises(jg.errors.TracedValueError, match=r"(?s)a tape watches .*needed: +at .*test_value.*hint"):
        gradient(fn)
    fn(jg.asarray(X))


def test_objects_and_text_are_arrays() -> None:
    x = jg.asarray(X)
    assert type(x.astype(object)) is np.ndarray and type(np.vectorize(str)(x)) is np.ndarray
    with pytest.raises(TypeError, match=r"jg\.asarray"):
        jg.EagerTensor([2, 3])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.reshape(3, 1, copy=True),
        lambda x: np.fft.fft(x, out=None).real,
        lambda x: np.tril_indices_from(np.outer(x, x), k=1),
    ],
)
def test_a_call_that_numpy_takes_is_taken_under_a_tape(fn: Callable[[Any], Any]) -> None:
    x = jg.asarray(X)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    assert all(map(np.array_equal, y, fn(X)))


def test_scipys_functions_of_jitgrad_are_followed() -> None:
    """Also one that gives Python's float."""
    from jitgrad.scipy import linalg, special

    assert np.allclose(gradient(linalg.norm), X / np.linalg.norm(X))
    assert np.allclose(gradient(special.logsumexp), special.softmax(X))

    def weighted(x: Any) -> Any:
        return np.sum(special.softmax(x) * X)

    assert np.allclose(gradient(weighted), jg.grad(weighted)(X))


def test_matrices_print_in_columns() -> None:
    rows = repr(jg.asarray(np.arange(24.0).reshape(2, 3, 4))).split("\n")
    assert {row.rindex("[") for row in rows if row} == {9} and rows[0].startswith("tensor([[[")
    assert not any(row != row.rstrip() for row in rows)


def test_text_and_dates_are_equal_to_no_number() -> None:
    x = jg.asarray(X)
    for other in (np.array(["a", "b", "c"]), np.array(["2020-01-01"] * 3, "M8[D]")):
        assert not np.any(x == other) and np.all(x != other)
