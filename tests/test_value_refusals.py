"""What tensors, Variables and optimisers refuse, and what they follow: no value is cut, no gradient lost unsaid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.stats
from scipy.special import logsumexp
from scipy.stats import norm

import jitgrad as jg
from jitgrad.ops.slices import IndexedSlices

X = np.array([1.0, 2.0, 3.0])
needs_copies = pytest.mark.skipif(np.__version__.startswith("2.0."), reason="no reshape(copy=True)")


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
        pytest.param(lambda x: x.reshape(3, 1, copy=True), marks=needs_copies),
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


# -- arrays, functions and minimisers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda xp, x: xp.asarray(x, copy=True),
        lambda xp, x: xp.asarray(x, device="cpu", copy=False),
        lambda xp, x: xp.ascontiguousarray(x),
        lambda xp, x: xp.asfortranarray(x),
        lambda xp, x: xp.asarray_chkfinite(x),
        lambda xp, x: xp.from_dlpack(x),
    ],
)
def test_arrays_made_of_tensors_are_followed(fn: Callable[[Any, Any], Any]) -> None:
    """By tapes and traces; of arrays they are NumPy's."""
    xp = jg.asarray(X).__array_namespace__()
    assert np.array_equal(gradient(lambda x: np.sum(fn(xp, x) * x)), 2 * X)
    assert np.array_equal(jg.compile(lambda x: fn(xp, x) * 2.0)(X), 2 * X)
    assert type(fn(xp, X)) is np.ndarray


def test_arrays_made_of_tensors_refuse_what_numpy_refuses() -> None:
    xp = jg.asarray(X).__array_namespace__()
    assert xp.asarray(jg.asarray(X), copy=True) is not xp.asarray(jg.asarray(X))
    with pytest.raises(ValueError, match="device"):
        xp.asarray(jg.asarray(X), device="gpu")
    with pytest.raises(ValueError, match="copy"):
        xp.asarray(jg.asarray(X), np.float32, copy=False)
    with pytest.raises(ValueError, match="infs or NaNs"):
        xp.asarray_chkfinite(jg.asarray([np.nan]))


def test_integer_arguments_have_no_gradient() -> None:
    with pytest.raises(jg.errors.DTypeError, match=r"(?s)argument 0 of .* is int64.*test_value.*3\.0"):
        jg.gradients_function(lambda x: x * 2.0)(3)
    with pytest.raises(jg.errors.DTypeError, match="argument 1 of"):
        jg.gradients_function(lambda x, k: x * k, params=[0, 1])(2.0, 3)
    assert jg.gradients_function(lambda x, k: x * k)(2.0, 3) == [3.0, None]
    with pytest.raises(jg.errors.DTypeError, match=r"(?s)argument 1: .*<U1.*test_value"):
        jg.gradients_function(lambda x, k: x)(2.0, "a")


def test_a_target_that_has_left_the_tape_is_told_how() -> None:
    with pytest.raises(TypeError, match=r"(?s)got float64.*test_value.*np\.stack.*jitgrad\.scipy"):
        gradient(lambda x: np.sum([x, x]))


@pytest.mark.parametrize(
    "write",
    [
        lambda a, x: np.add.at(a, [0, 1, 2], x),
        np.copyto,
        lambda a, x: np.put_along_axis(a, np.array([0, 1, 2]), x, 0),
        lambda a, x: np.put(a, [0, 1, 2], x),
    ],
)
def test_tensors_are_not_written_into_arrays(write: Callable[[Any, Any], Any]) -> None:
    a = np.zeros(3)
    with pytest.raises(jg.errors.TracedValueError, match="into an array"):
        write(a, jg.asarray(X))
    assert not a.any()


def test_a_scalar_variable_gives_a_scalar() -> None:
    assert type(jg.Variable(2.0).numpy()) is np.float64


def test_minimize_takes_one_argument_and_structured_constraints() -> None:
    """A number for ``args``, as SciPy does; constraints of x in the structure of the start."""
    best = jg.optimize.minimize(lambda p, c: np.sum((p["a"] - c) ** 2), {"a": np.zeros(2)}, args=3.0)
    assert np.allclose(best.x["a"], 3.0, atol=1e-5)
    bound = {"type": "ineq", "fun": lambda p: 1.0 - p["a"]}
    best = jg.optimize.minimize(
        lambda p: np.sum((p["a"] - 3.0) ** 2), {"a": np.zeros(2)}, method="SLSQP", constraints=bound
    )
    assert np.allclose(best.x["a"], 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("fn", "what", "hint"),
    [
        (lambda x: logsumexp(x), "special.logsumexp", "use jitgrad.scipy.special.logsumexp"),
        (lambda x: norm.logpdf(x), "stats.norm.logpdf", "use jitgrad.scipy.stats.norm.logpdf"),
        (lambda x: scipy.stats.norm(0.5, 1.0).logpdf(x), "stats.norm.logpdf", "use jitgrad.scipy.stats.norm.logpdf"),
        (lambda x: scipy.stats.gamma.logsf(x, 2.0), "stats.gamma.logsf", "jitgrad.scipy has none"),
        (lambda x: scipy.stats.skew(x), "stats.skew", "jitgrad.scipy has none"),
        (lambda x: scipy.linalg.sqrtm(np.outer(x, x)), "linalg.sqrtm", "jitgrad.scipy has none"),
        (
            lambda x: scipy.optimize.curve_fit(lambda t, a: a * t, np.ones(4), x),  # asks by a function of NumPy's
            "optimize.curve_fit",
            "jitgrad.scipy has none",
        ),
        (
            lambda x: scipy.integrate.solve_ivp(lambda t, y: x[:1] * y, (0.0, 1.0), [1.0]).y,
            "integrate.solve_ivp",
            "use jitgrad.scipy.integrate.odeint",
        ),
    ],
)  # fmt: skip
def test_functions_of_scipys_are_named_with_what_takes_their_place(fn: Any, what: str, hint: str) -> None:
    with pytest.raises(jg.TracedValueError) as info:
        jg.compile(fn)(np.linspace(0.1, 1.0, 4))
    assert str(info.value).startswith(f"scipy.{what}() needs the value of") and hint in str(info.value)
