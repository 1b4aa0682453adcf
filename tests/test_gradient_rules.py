"""Which gradient rule an operation has: registered, overridden in a context, forbidden; and what a rule may give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.gradient_rules import registered_rules

pytestmark = pytest.mark.quick


@pytest.fixture
def graph() -> Iterator[jg.Graph]:
    before = dict(registered_rules)
    with jg.Graph().as_default() as graph:
        yield graph
    registered_rules.clear()
    registered_rules.update(before)


def run(fetches: Any, feeds: Any = None) -> Any:
    return jg.Session().run(fetches, feeds)


def vector() -> Any:
    return jg.placeholder(np.float64, (3,))


AT = np.array([0.6, -1.7, 2.2])


# overrides in a context


def test_a_rule_can_be_overridden_where_operations_are_made(graph: jg.Graph) -> None:
    jg.register_gradient("Sevenfold")(lambda op, g: 7.0 * g)
    x = vector()
    with graph.gradient_override_map({"square": "Sevenfold"}):
        named = np.square(x)
        with graph.gradient_override_map({"square": lambda op, g: g * op.inputs[0]}):
            given = np.square(x)
        again = np.square(x)
    plain = np.square(x)
    found = run([jg.gradients(y, x)[0] for y in (named, given, again, plain)], {x: AT})
    for value, expected in zip(found, [np.full(3, 7.0), AT, np.full(3, 7.0), 2 * AT], strict=True):
        np.testing.assert_array_equal(value, expected)
    assert named.op.get_attr("_gradient_op_type") == "Sevenfold" and plain.op.attrs == {}
    np.testing.assert_array_equal(run(named, {x: AT}), AT**2)


def test_the_rule_of_another_op_lets_gradients_pass_straight_through(graph: jg.Graph) -> None:
    x = vector()
    with graph.gradient_override_map({"rint": "identity", "max": "sum"}):
        y, largest = np.rint(x), np.max(x)
    assert run(jg.gradients(y * y, x), {x: AT})[0].tolist() == (2 * np.rint(AT)).tolist()
    assert run(jg.gradients(largest, x), {x: AT})[0].tolist() == [1, 1, 1]
    assert jg.gradients(np.rint(x), x) == [None]


def test_overrides_are_restored_by_exceptions_and_checked(graph: jg.Graph) -> None:
    x = vector()
    with pytest.raises(ZeroDivisionError), graph.gradient_override_map({"sin": "identity"}):
        raise ZeroDivisionError
    assert run(jg.gradients(np.sin(x), x), {x: AT})[0].tolist() == np.cos(AT).tolist()
    with pytest.raises(TypeError, match="takes op types and rules or names of rules, got 'sin': 3"):
        graph.gradient_override_map({"sin": 3})
    with graph.gradient_override_map({"sin": "Nowhere"}):
        y = np.sin(x)
    with pytest.raises(jg.GradientError, match=r"(?s)'Nowhere', for which there is no gradient rule.*made at test_gr"):
        jg.gradients(y, x)


@pytest.mark.parametrize("separate", [None, False, True])
def test_overrides_are_compiled_and_differentiated_again(graph: jg.Graph, separate: bool | None) -> None:
    x = vector()
    scope = jg.jit_scope(separate is not None, separate_compiled_gradients=bool(separate))
    with graph.gradient_override_map({"square": lambda op, g: g * np.exp(op.inputs[0])}), scope:
        y = np.square(x) * 3.0
    (first,) = jg.gradients(y, x)
    (second,) = jg.gradients(first, x)
    for value in run([first, second], {x: AT}):
        np.testing.assert_allclose(value, 3 * np.exp(AT), rtol=1e-14)


def test_what_is_registered_is_checked() -> None:
    for wrong in (None, 3):
        with pytest.raises(TypeError, match=f"takes the type of an op, a string, got {wrong}"):
            jg.register_gradient(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=rf"'Sixfold' must be a function fn\(op, \*grads\), got {wrong}"):
            jg.register_gradient("Sixfold")(wrong)  # type: ignore[arg-type]
    assert "Sixfold" not in registered_rules and None not in registered_rules


# what a rule gives


def test_a_rule_may_give_arrays_slices_and_other_float_dtypes(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float32, (3, 2))
    rows = jg.IndexedSlices(jg.constant(np.ones((1, 2))), jg.constant([1]), (3, 2))
    for result in (np.full((3, 2), 5.0), lambda g: g * np.float64(5) * np.ones((3, 2)), lambda g: g * 5j, rows):
        rule = (lambda op, g, r=result: r(g) if callable(r) else r)  # fmt: skip  # noqa: E731
        with graph.gradient_override_map({"tanh": rule}):
            (g,) = jg.gradients(np.tanh(x), x)
        assert g.dtype == np.float32 and run(g * np.float32(1), {x: np.zeros((3, 2))}).shape == (3, 2)


def test_slices_of_a_rule_stay_slices(graph: jg.Graph) -> None:
    x = jg.placeholder(np.float64, (1000, 2))

    def rows_only(op: jg.Operation, g: Any) -> Any:
        return jg.IndexedSlices(jg.gather(g, [3, 3]), jg.constant([3, 3]), (1000, 2))

    with graph.gradient_override_map({"tanh": rows_only}):
        (g,) = jg.gradients(np.tanh(x), x)
    assert isinstance(g, jg.IndexedSlices) and run(g.values, {x: np.zeros((1000, 2))}).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda g: [g, g], r"'tanh' gave 2 gradients, not 1"),
        (lambda g: [], r"'tanh' gave 0 gradients, not 1"),
        (np.sum, r"(?s)wrong shape for input 0.*expected: f64\[3\].*got: +f64\[\]"),
        (lambda g: "text", "of 'tanh' gave what is no gradient: a constant cannot hold values of dtype <U4"),
    ],
)
def test_a_rule_is_checked(graph: jg.Graph, result: Any, text: str) -> None:
    x = vector()
    with graph.gradient_override_map({"tanh": lambda op, g: result(g)}):
        y = np.tanh(x)
    with pytest.raises(ValueError, match=text) as caught:
        jg.gradients(y, x)
    assert "op:" in str(caught.value) and "tanh = tanh(placeholder) : f64[3]    made at test_grad" in str(caught.value)


def test_a_missing_output_gradient_is_zeros_of_its_shape(graph: jg.Graph) -> None:
    arrived: list[Any] = []

    @jg.register_gradient("split")
    def rule(op: jg.Operation, *grads: Any) -> Any:
        arrived.extend(grads)
        return np.concatenate(grads)

    x = jg.placeholder(np.float64, (None,))
    left, _ = np.split(x, [1])
    (g,) = jg.gradients(left * 3.0, x)
    assert run(arrived[1], {x: np.ones(4)}).tolist() == [0, 0, 0] and run(g, {x: np.ones(4)}).tolist() == [3, 0, 0, 0]


def test_integer_outputs_get_no_zeros(graph: jg.Graph) -> None:
    arrived: list[Any] = []
    jg.register_gradient("frexp")(lambda op, *grads: arrived.extend(grads))
    x = vector()
    mantissa, exponent = np.frexp(x)
    assert jg.gradients(mantissa, x) == [None] and arrived[0] is not None and arrived[1] is None
    assert jg.gradients(exponent * 2, x) == [None] and len(arrived) == 2


# forbidden, missing, not differentiable


def doubled(x: Any) -> Any:
    return jg.py_func(lambda a: a * 2.0, [x], np.float64)


def test_only_rules_on_the_way_of_a_gradient_are_asked(graph: jg.Graph) -> None:
    """Behind a stop, an integer or a rounding there is nothing to differentiate."""
    x = vector()
    for hidden in (jg.stop_gradient(x), x.astype(np.int64).astype(np.float64), np.floor(x)):
        assert jg.gradients(doubled(hidden) + jg.prevent_gradient(hidden, "never"), x) == [None]
    assert run(jg.gradients(doubled(jg.stop_gradient(x)) * x, x), {x: AT})[0].tolist() == (2 * AT).tolist()
    jg.not_differentiable("py_func")
    assert jg.gradients(doubled(x), x) == [None]


def test_prevent_gradient_also_on_tapes() -> None:
    x = jg.asarray([1.0, 2.0])
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        guarded = jg.prevent_gradient(x, "the table is fixed")
        y, z = np.sum(guarded * 2.0), np.sum(jg.prevent_gradient(jg.stop_gradient(x), "never") * x)
    assert guarded.tolist() == [1, 2] and tape.gradient(z, x).tolist() == [1, 2]
    with pytest.raises(LookupError, match=r"(?s)the table is fixed.*test_gradient_rules.py:"):
        tape.gradient(y, x)
    assert jg.prevent_gradient(np.ones(2), "an array is one").tolist() == [1, 1]


def test_py_func_also_of_eager_tensors() -> None:
    x = jg.asarray([1.0, -2.0])
    assert jg.py_func(np.abs, [x], np.float64).tolist() == [1, 2]
    sign, size = jg.py_func(lambda a: (a > 0, a.size), x, [bool, np.int64])
    assert sign.tolist() == [True, False] and size.numpy() == 2
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.sum(jg.py_func(np.abs, [x], np.float64))
    with pytest.raises(jg.GradientError, match="'py_func' has no gradient"):
        tape.gradient(y, x)


def test_errors_of_python_functions_name_the_operation_and_the_line() -> None:
    def broken(a: Any) -> Any:
        raise OSError("no such file")

    def in_loop(x: Any) -> Any:
        return jg.fori_loop(0, 2, lambda i, s: s + np.reshape(jg.py_func(broken, [s], np.float64), (2,)), x)

    def as_list(a: Any) -> Any:
        return [1.0, 2.0, 3.0]

    at = "made at test_gradient_rules.py:"
    for fn in (lambda x: jg.py_func(broken, [x], np.float64) * 2, in_loop):
        with pytest.raises(OSError, match="no such file") as raised:
            jg.compile(fn)(np.ones(2))
        (note,) = raised.value.__notes__
        assert "py_func(" in note and "fn=broken" in note and at in note
    with pytest.raises(jg.DTypeError, match=rf"(?s)gave another dtype.*op: py_func = .*{at}.*got: +float32"):
        jg.compile(lambda x: jg.py_func(np.float32, [x], np.float64) * 2)(np.ones(2))
    with pytest.raises(ValueError, match="3 results for 2 dtypes") as counted:
        jg.compile(lambda x: jg.py_func(as_list, [x], [float, float])[0])(np.ones(2))
    assert at in counted.value.__notes__[0]
    with pytest.raises(TypeError, match=r"(?s)py_func takes a function, got 5.*test_gradient_rules.py"):
        jg.py_func(5, [np.ones(2)], np.float64)


# custom_gradient


def test_custom_gradient_in_graphs_to_third_order(graph: jg.Graph) -> None:
    @jg.custom_gradient
    def cube(x: Any) -> Any:
        return x**3, lambda g: g * 3 * x * x

    for compiled in (False, True):
        x = jg.placeholder(np.float64, ())
        with jg.jit_scope(compiled):
            found = [cube(x)]
            for _ in range(3):
                found += jg.gradients(found[-1], x)
        assert run(found, {x: 2.0}) == [8, 12, 12, 6]


def test_custom_gradient_takes_variables_as_arguments(graph: jg.Graph) -> None:
    v = jg.Variable([1.0, 2.0])
    tenfold = jg.custom_gradient(lambda x: (x * 2.0, lambda g: g * 10.0))
    assert run(jg.gradients(tenfold(v), v))[0].tolist() == [10, 10]


def test_custom_gradient_of_variables_that_are_read_inside(graph: jg.Graph) -> None:
    v, fixed = jg.Variable([1.0, 2.0]), jg.Variable(2.0, trainable=False)
    x = jg.placeholder(np.float64, (2,))

    @jg.custom_gradient
    def scaled(x: Any) -> Any:
        def rule(g: Any, variables: Any = None) -> Any:
            assert variables == [v]
            return g * 10.0, [g * 100.0]

        return v * x * fixed, rule

    y = scaled(x)
    assert [value.tolist() for value in run([y, *jg.gradients(y, [x, v])], {x: [3, 4]})] == [
        [6, 16], [10, 10], [100, 100]
    ]  # fmt: skip
    silent = jg.custom_gradient(lambda x: (v * x, lambda g: g))
    with pytest.raises(TypeError, match=r"(?s)<lambda>, decorated with custom_gradient, reads 'Va.*variables=None"):
        silent(x)
    short = jg.custom_gradient(lambda x: (v * x, lambda g, variables: (g, [])))
    with pytest.raises(ValueError, match="gave 0 gradients for 1 variables"):
        jg.gradients(short(x), x)
