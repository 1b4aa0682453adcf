"""What public functions say of what is no function, no name, no graph, no shape: the class that one would catch, and
what was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

pytestmark = pytest.mark.quick

X = np.ones(3)


def loss(x: Any) -> Any:
    return np.sum(x * x)


def tensor() -> Any:
    return jg.constant(1.0, name="one")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: jg.compile(3), lambda: jg.grad(3), lambda: jg.value_and_grad(3), lambda: jg.jacrev(3),
        lambda: jg.jacfwd(3), lambda: jg.hessian(3), lambda: jg.vjp(3, X), lambda: jg.jvp(3, (X,), (X,)),
        lambda: jg.hvp(3, X, X), lambda: jg.custom_gradient(3), lambda: jg.cond(True, 3, loss),
        lambda: jg.cond(True, loss, 3, X), lambda: jg.switch(0, [loss, 3], X),
        lambda: jg.while_loop(3, loss, X), lambda: jg.while_loop(loss, 3, X), lambda: jg.scan(3, 0.0, X),
        lambda: jg.fori_loop(0, 2, 3, X), lambda: jg.checkpoint(3), lambda: jg.function(3),
        lambda: jg.py_func(3, [X], np.float64), lambda: jg.gradients_function(3), lambda: jg.make_vjp(3),
        lambda: jg.val_and_grad_function(3), lambda: jg.implicit_grad(3), lambda: jg.implicit_val_and_grad(3),
        lambda: jg.optimize.minimize(3, X),
    ],
)  # fmt: skip
def test_what_is_no_function_is_refused_where_it_is_given(wrong: Callable[[], Any]) -> None:
    text = r"takes (a function|two functions|functions), got 3\n  needed: at test_wrong_inputs.py:\d+\n  hint:"
    with pytest.raises(TypeError, match=text):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: jg.while_loop(lambda a, b: a < 3, loss, (X, X)), "while_loop gives a function the state"),
        (lambda: jg.while_loop(loss, lambda a, b: (a, b), (X, X)), "while_loop gives a function the state"),
        (lambda: jg.fori_loop(0, 2, loss, X), "fori_loop gives a function the number of the step and the state"),
        (lambda: jg.scan(loss, 0.0, X), "scan gives a function the carry and an item"),
        (lambda: jg.map(lambda a, b: a, X), "map gives a function an item"),
        (lambda: jg.foldl(loss, X), "foldl gives a function the state and an item"),
        (lambda: jg.foldr(loss, X), "foldr gives a function the state and an item"),
        (lambda: jg.cond(True, loss, loss), "cond gives a function nothing"),
        (lambda: jg.switch(0, [loss, lambda: X], X), "switch gives a function operand 1"),
    ],
)  # fmt: skip
def test_functions_that_take_something_else_are_refused_where_they_are_given(
    wrong: Callable[[], Any], said: str
) -> None:
    text = rf"{said}, and \S+ at test_wrong_inputs.py:\d+ takes .+\n  needed: at test_wrong_inputs.py:\d+\n  hint:"
    with pytest.raises(TypeError, match=text):
        wrong()


def test_functions_that_take_more_than_they_are_given_are_taken() -> None:
    def step(carry: Any, x: Any = 1.0, *, scale: float = 2.0) -> Any:
        return carry + x * scale, None

    assert jg.scan(step, 0.0, X)[0] == 6.0
    assert jg.scan(lambda *both: (both[0] + both[1], None), 0.0, X)[0] == 3.0
    assert jg.while_loop(lambda s, most=3: s < most, lambda s: s + 1.0, 0.0) == 3.0


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        (lambda: jg.grad(loss, argnums=1.0), TypeError, "argnums must be an int or a tuple of ints, got 1.0"),
        (lambda: jg.grad(loss, argnums=None), TypeError, "argnums must be an int or a tuple of ints, got None"),
        (lambda: jg.compile(loss, static_argnums="x"), TypeError, "static_argnums must be an int or a tuple of ints"),
        (lambda: jg.compile(loss, static_argnames=3), TypeError, "static_argnames must be a string or a tuple"),
        (lambda: jg.compile(loss, name=3), TypeError, "name must be a string or None, got 3"),
        (lambda: jg.placeholder(float, name=3), TypeError, "a name is a string or None, got 3"),
        (lambda: jg.constant(1.0, name=3), TypeError, "a name is a string or None, got 3"),
        (lambda: jg.Variable(1.0, name=3), TypeError, "a name is a string or None, got 3"),
        (lambda: jg.name_scope("a b").__enter__(), ValueError, "needed: at test_wrong_inputs.py"),
        (lambda: jg.placeholder(float, (3, -1)), jg.ShapeError, "no negative extent, got (3, -1)"),
        (lambda: jg.config(cache="0"), TypeError, "config does not take cache='0': it is on or off"),
        (lambda: jg.config(cache=X), TypeError, "config does not take cache=array([1., 1., 1.]): it is on or off"),
        (lambda: jg.config(debug_nans=3), TypeError, "config does not take debug_nans=3: it is on or off"),
        (lambda: jg.set_num_threads("a"), TypeError, "config does not take num_threads='a': 'str' object cannot be"),
        (lambda: np.quantile(jg.constant(X * 1j), 0.5), jg.DTypeError, "quantiles are of real numbers, got c128[3]"),
        (lambda: jg.device(3), TypeError, "a device is a string or None, got 3"),
        (lambda: jg.control_dependencies(3), TypeError, "takes operations and tensors in a list, got 3"),
        (lambda: jg.tuple(3), TypeError, "takes tensors in a list, got 3"),
        (lambda: jg.hessians(3, tensor()), TypeError, "hessians take tensors for ys and xs, got 3"),
        (lambda: jg.IndexedSlices(X, [0, 1, 2], 3), ValueError, "dense_shape must be integers"),
        (lambda: jg.IndexedSlices(X, [0, 1, 2], (-5,)), ValueError, "dense_shape must be integers from 0 on"),
        (lambda: jg.cond(1.5, loss, loss, X), jg.DTypeError, "cond needs one bool, got f64[]"),
        (lambda: jg.while_loop(lambda s: 1.0 * s, lambda s: s, 1.0), jg.DTypeError, "the condition gives one bool"),
        (lambda: jg.vjp(loss, X)[1](1j), jg.DTypeError, "the cotangent of loss("),
        (lambda: jg.jvp(loss, (X,), (X * 1j,)), jg.DTypeError, "the tangent of x of loss("),
        (lambda: jg.vjp(lambda x: (x, x), X)[1](X), TypeError, "expected: (*, *)"),
        (lambda: jg.jvp(loss, (X,), (X, X)), TypeError, "must have the structure of the primals"),
        (lambda: jg.grad(lambda x: "text")(X), TypeError, "must return one scalar to have a gradient, got str"),
        (lambda: jg.compile(lambda x: np.sum(x, axis=1))(X), np.exceptions.AxisError, "axis 1 is out of bounds"),
        (lambda: jg.compile(lambda x: np.linalg.eigvalsh(x, "X"))(np.eye(3)), ValueError, "'L' or 'U', got 'X'"),
        (lambda: jg.compile(lambda x: np.linalg.eigh(x, UPLO=""))(np.eye(3)), ValueError, "'L' or 'U', got ''"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_by_name(wrong: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with jg.Graph().as_default(), pytest.raises(kind, match=re.escape(text)):
        wrong()


def test_tensors_and_operations_are_looked_up_by_names_that_are_names() -> None:
    with jg.Graph().as_default() as graph:
        one = tensor()
        assert graph.as_graph_element("one:0") is one
        with pytest.raises(TypeError, match="names, which are strings, got 3"):
            graph.get_operation_by_name(3)
        with pytest.raises(KeyError, match="has 1 outputs, and no tensor 'one:1'"):
            graph.as_graph_element("one:1")
        for text in ("one:x", "one:-1", "one:"):
            with pytest.raises(ValueError, match="is not the name of a tensor"):
                graph.as_graph_element(text)


def test_a_tensor_of_another_graph_is_a_wrong_value() -> None:
    with jg.Graph().as_default():
        one = tensor()
    with jg.Graph().as_default():
        for wrong in (lambda: one + tensor(), lambda: jg.Session().run(one), lambda: jg.gradients(tensor(), one)):
            with pytest.raises(ValueError, match="belongs to another graph") as caught:
                wrong()
            assert isinstance(caught.value, jg.LeakedTracerError)


@pytest.mark.parametrize("wrong", [3, [1], "x"])
def test_a_session_says_what_it_is_given_wrongly(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a Session runs a Graph"):
        jg.Session(wrong)
    with jg.Graph().as_default(), pytest.raises(TypeError, match="feed_dict must be a dict"):
        jg.Session().run(tensor(), wrong)


def test_a_position_out_of_bounds_among_constants_names_the_operation() -> None:
    with jg.Graph().as_default():
        with jg.jit_scope():
            y = jg.gather(jg.constant(X), jg.identity(jg.constant([7])))
        with pytest.raises(IndexError, match=r"(?s)op 'take': a position is out of bounds.*test_wrong_inputs.py"):
            jg.Session().run(y)


def assigned_two(x: Any) -> Any:
    x[0] = np.ones(2)
    return x


def given_none() -> Any:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64)
        return jg.Session().run(x, {x: None})


def filled_in_a_graph() -> None:
    with jg.Graph().as_default():
        np.zeros(3)[:] = jg.placeholder(np.float64, (3,))


LINE = r"\n  needed: +at test_wrong_inputs.py:\d+"


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda: jg.compile(lambda x: x / len(x))(1.0), TypeError, r"len\(\) of a 0-d tensor" + LINE),
        (lambda: jg.grad(lambda x: sum(v for v in x))(1.0), TypeError, "iteration of a 0-d tensor" + LINE),
        (lambda: jg.grad(loss)("text"), jg.DTypeError, "argument x of .* is 'text', which has no derivative" + LINE),
        (lambda: jg.compile(assigned_two)(X), jg.ShapeError, r"shape \[2\] cannot be assigned to a part of shape \[\]"),
        (lambda: jg.compile(np.dot)(np.ones((5, 3)), X[:2]), jg.ShapeError, r"shapes \[5,3\] and \[2\]\n  op: "),
        (given_none, ValueError, "is fed with None\n  op: .*\n  hint: feed it an array"),
        (filled_in_a_graph, jg.TracedValueError, r"hint: .*in a graph, jg.constant\(np.zeros\(shape\)\)"),
        (lambda: jg.gradients(tensor(), X), TypeError, r"gradients takes tensors for ys and xs, got array\("),
        (lambda: jg.vjp(loss, X)[1]("text"), jg.DTypeError, "cannot hold values of dtype <U4" + LINE),
        (lambda: jg.placeholder(np.float64, 3.5), TypeError, "placeholder: no shape: 3.5" + LINE),
    ],
)  # fmt: skip
def test_the_line_and_what_to_do_are_said(wrong: Callable[[], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        wrong()
    assert "\n  hint:" in str(caught.value) or "takes tensors" in said


def test_the_line_that_is_added_is_aligned() -> None:
    def small(x: Any, w: Any) -> Any:
        return jg.nn.conv2d(x, w)

    with pytest.raises(jg.ShapeError) as caught:
        jg.compile(small)(np.ones((1, 3, 5, 5)), np.ones((2, 4, 3, 3)))
    _, *lines = str(caught.value).split("\n")
    assert lines[-1].startswith("  needed:   at ") and all(line[11] == " " != line[12] for line in lines)
