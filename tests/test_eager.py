"""Eager tensors and tapes: NumPy's values, gradients of any order, what tapes keep, and every error of theirs."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import jitgrad as jg

X = np.array([0.5, 1.0, 2.0])


def f(x: Any) -> Any:
    return np.sum(np.tanh(x) * x**2 + np.exp(-x) @ x)


def gradient_of(fn: Any, *values: Any) -> list[Any]:
    xs = [jg.asarray(v) for v in values]
    with jg.GradientTape() as tape:
        tape.watch(xs)
        y = fn(*xs)
    return [None if g is None else g.numpy() for g in tape.gradient(y, xs)]


# -- values --------------------------------------------------------------------------------------------------


def test_a_tensor_is_its_value() -> None:
    x = jg.asarray([1, 2.5])
    assert x.dtype == np.float64 and x.shape == (2,) and len(x) == 2 and x.size == 2 and x.ndim == 1
    assert type(x.numpy()) is np.ndarray and list(map(float, x)) == [1.0, 2.5]
    assert type(jg.asarray(2.0).numpy()) is np.float64 and float(jg.asarray(3)) == 3.0 and int(jg.asarray(3)) == 3
    assert repr(x) == "tensor([1. , 2.5])" and str(x) == "[1.  2.5]" and f"{jg.asarray(0.5):.2f}" == "0.50"
    assert jg.asarray(x) is x and jg.asarray(x, np.float32).dtype == np.float32
    assert bool(jg.asarray(1.0) > 0) and [1, 2, 3][jg.asarray(1)] == 2


def test_numpys_array_is_copied_and_numpy_gives_a_copy() -> None:
    a = np.ones(3)
    x = jg.asarray(a)
    a[0] = 7
    x.numpy()[1] = 9
    np.testing.assert_array_equal(x, [1, 1, 1])


@pytest.mark.parametrize("value", ["text", [None, 1], np.array(["a"]), np.datetime64("2020-01-01")])
def test_what_a_tensor_cannot_hold(value: Any) -> None:
    with pytest.raises(jg.DTypeError, match="cannot hold values of dtype"):
        jg.asarray(value)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + 1, lambda x: 1 - x, lambda x: x * x, lambda x: 2 / x, lambda x: x // 2, lambda x: x % 0.3,
        lambda x: x**2, lambda x: 2.0**x, lambda x: x @ x, lambda x: -x, lambda x: +x, lambda x: abs(x),
        lambda x: x > 1, lambda x: x == x, lambda x: x != 1, lambda x: divmod(x, 0.4)[1], lambda x: x[1:],
        lambda x: x[0],
        lambda x: x.sum(), lambda x: x.mean(axis=0), lambda x: x.reshape(3, 1).T, lambda x: x.astype(np.float32),
        lambda x: np.stack([x, x]), lambda x: np.concatenate([x, np.ones(2)]), lambda x: np.where(x > 1, x, 0.0),
        lambda x: np.linalg.norm(x), lambda x: np.add.reduce(x), lambda x: np.split(x, 3)[1], lambda x: x.cumsum(),
        lambda x: np.sort(x)[::-1], lambda x: np.einsum("i,i", x, x), lambda x: np.multiply.outer(x, x),
        lambda x: x.clip(0.6, 1.5), lambda x: x.max(), lambda x: x.argmax(), lambda x: x.real, lambda x: x.round(),
        lambda x: np.asarray(x) + x, lambda x: np.float64(2.0) * x, lambda x: np.ones(3) * x, lambda x: [1.0, 2, 3] + x,
    ],
)  # fmt: skip
def test_operators_functions_and_methods_give_numpys_values(fn: Any) -> None:
    result, expected = fn(jg.asarray(X)), fn(X)
    assert isinstance(result, jg.EagerTensor)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == np.asarray(expected).dtype


def test_values_do_not_change() -> None:
    x = y = jg.asarray(X)
    x += 1
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(x, X + 1)
    for change in (lambda: y.__setitem__(0, 1.0), lambda: y.sort(), lambda: y.fill(0), lambda: np.add(y, 1, out=y)):
        with pytest.raises(jg.TracedValueError, match="does not change"):
            change()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.copyto(x, 9.0), lambda x: np.put(x, [0], 9.0), lambda x: np.add.at(x, [0], 9.0),
        lambda x: np.fill_diagonal(x.reshape(1, 3), 9.0), lambda x: np.cumsum(X, out=x), lambda x: np.sum(X, out=x),
        lambda x: np.asarray(x).__setitem__(0, 9.0), lambda x: memoryview(x).__setitem__(0, 9.0),
    ],
)  # fmt: skip
def test_no_back_door_changes_a_value(change: Any) -> None:
    x = jg.asarray(X)
    with pytest.raises((ValueError, TypeError, jg.TracedValueError)):
        change(x)
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.fill_diagonal(x, 9.0), lambda x: np.put(x, [0], 9.0), lambda x: np.copyto(x, 9.0),
        lambda x: np.put_along_axis(x, np.zeros((3, 1), int), 9.0, 1), lambda x: np.place(x, x > 0, [9.0]),
        lambda x: np.putmask(x, x > 0, x),
    ],
)  # fmt: skip
def test_functions_that_write_into_a_tensor_say_that_its_value_does_not_change(change: Any) -> None:
    with pytest.raises(jg.TracedValueError, match=r"(?s)does not change: \w+ into one is refused.*at test_eager.py"):
        change(jg.asarray(np.ones((3, 3))))


def test_arrays_are_recorded_as_they_were() -> None:
    x, a = jg.asarray(X), np.array([1.0, 2.0, 3.0])
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.sum(x * a) + np.dot(a, x) + np.concatenate([x * a])[0]
    a[:] = 100.0
    np.testing.assert_array_equal(tape.gradient(y, x), [3.0, 4.0, 6.0])


def test_lists_of_tensors_stay_on_the_tape() -> None:
    x = jg.asarray(2.0)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.sum(jg.asarray([[x, x * 3.0], [1.0, x]]))
    assert tape.gradient(y, x) == 5.0


def test_views_that_numpy_makes_are_tensors() -> None:
    x = np.array(jg.asarray(X), subok=True)
    np.testing.assert_array_equal(x + 1.0, X + 1.0)


def test_copies_pickles_and_memory() -> None:
    x = jg.asarray(X)
    for other in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert type(other) is jg.EagerTensor and other.number != x.number
        np.testing.assert_array_equal(other, X)
    assert bytes(memoryview(x)) == X.tobytes() and np.frombuffer(x).tolist() == X.tolist()
    assert x.__array_namespace__() is jg.numpy and hash(x) == hash(x)


def test_no_array_method_forgets_the_tape() -> None:
    """Whatever a method of arrays computes is recorded, refused, or no function of the values."""
    harmless = {
        "base", "ctypes", "data", "device", "dtype", "dump", "dumps", "flags", "getfield", "item", "itemsize", "nbytes",
        "ndim", "shape", "size", "strides", "to_device", "tobytes", "tofile", "tolist", "view",
    }  # fmt: skip
    ended = {"newbyteorder", "ptp", "tostring"}  # which NumPy 2.0 still names
    public = {name for name in dir(np.ndarray) if not name.startswith("_")} - ended
    assert public - harmless <= set(vars(jg.EagerTensor))


# -- tapes ---------------------------------------------------------------------------------------------------


def test_a_gradient() -> None:
    (g,) = gradient_of(f, X)
    np.testing.assert_allclose(g, jg.grad(f)(X), rtol=1e-14)


@pytest.mark.parametrize("order", [2, 3])
def test_tapes_nest(order: int) -> None:
    def derivative(fn: Any) -> Any:
        return lambda x: jg.gradients_function(fn)(x)[0]

    def fn(x: Any) -> Any:
        return np.sin(x) * x**3

    ours, theirs = fn, fn
    for _ in range(order):
        ours, theirs = derivative(ours), jg.grad(theirs)
    np.testing.assert_allclose(ours(0.7), theirs(0.7), rtol=1e-12)


def test_structures_of_targets_and_sources() -> None:
    p = {"w": jg.asarray(X), "b": (jg.asarray(2.0), jg.asarray(1.0))}
    with jg.GradientTape() as tape:
        tape.watch(p)
        y = {"a": p["w"] * p["b"][0], "c": np.sum(p["w"])}
    grads = tape.gradient(y, p, output_gradients={"a": np.array([1.0, 0.0, 2.0]), "c": None})
    np.testing.assert_array_equal(grads["w"], [3.0, 1.0, 5.0])
    assert grads["b"][0] == 0.5 + 4.0 and grads["b"][1] is None


def test_a_target_that_feeds_another() -> None:
    x = jg.asarray(3.0)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        z = y * 2.0
    assert tape.gradient([y, z], x) == 6.0 + 12.0
    assert tape.gradient(z, y) == 2.0 and tape.gradient(x, x) == 1.0 and tape.gradient(y, z) is None


def test_a_tape_gives_its_gradient_once() -> None:
    x = jg.asarray(3.0)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    assert tape.gradient(y, x) == 6.0
    with pytest.raises(RuntimeError, match="persistent=True"):
        tape.gradient(y, x)


def test_watching_stopping_and_resetting() -> None:
    x = jg.asarray(3.0)
    with jg.GradientTape(persistent=True) as tape:
        early = x * x
        tape.watch(x)
        with tape.stop_recording():
            hidden = x * x
        y = x * x
        assert tape.gradient(early, x) is None and tape.gradient(hidden, x) is None and tape.gradient(y, x) == 6.0
        tape.reset()
        assert tape.gradient(y, x) is None
        with pytest.raises(RuntimeError, match="records already"):
            tape.__enter__()
    with tape:
        tape.watch(x)
        assert tape.gradient(x**3, x) == 27.0


def test_integers_carry_no_gradient() -> None:
    with jg.GradientTape(persistent=True) as tape:
        n, x = jg.asarray(2), jg.asarray(3.0)
        tape.watch(x)
        with pytest.warns(UserWarning, match=r"dtype int64 has no gradient: watch x.astype\(float\)"):
            tape.watch(n)
        y = n * x
    assert tape.gradient(y, [n, x])[0] is None and tape.gradient(n * n, n) is None


def test_a_tape_that_was_never_entered() -> None:
    x, tape = jg.asarray(3.0), jg.GradientTape()
    tape.watch(x)
    for ask in (tape.gradient, tape.jacobian):
        with pytest.raises(RuntimeError, match=r"(?s)never entered.*with tape:"):
            ask(x * x, x)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: np.interp([1.5, 2.5], [1.0, 2.0, 3.0], x), [0.5, 1.0, 0.5]),
        (lambda x: np.interp(x, [0.0, 10.0], [0.0, 30.0]), [3.0, 3.0, 3.0]),
        (lambda x: np.extract([True, False, True], x * x), [2.0, 0.0, 6.0]),
        (lambda x: np.extract(x > 1.5, x * x), [0.0, 4.0, 6.0]),
        (lambda x: np.compress([True, True], x), [1.0, 1.0, 0.0]),
        (lambda x: np.compress([False, True], np.stack([x, x * 2.0]), axis=0), [2.0, 2.0, 2.0]),
        (lambda x: np.clip(x, [1.5, 1.5, 1.5], 2.5), [0.0, 1.0, 0.0]),
        (lambda x: np.where([True, False, True], x, [0.0, 1.0, 2.0]), [1.0, 0.0, 1.0]),
        (lambda x: np.average(x, weights=[1.0, 2.0, 1.0]), [0.25, 0.5, 0.25]),
        (lambda x: np.trapezoid(x, [0.0, 1.0, 3.0]), [0.5, 1.5, 1.0]),
    ],
)
def test_lists_of_numbers_beside_tensors(fn: Any, expected: Any) -> None:
    x = jg.asarray([1.0, 2.0, 3.0])
    for _ in range(2):
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        np.testing.assert_allclose(np.asarray(y), fn(np.array(x)))
        np.testing.assert_allclose(tape.gradient(y, x), expected, atol=1e-12)


@pytest.mark.parametrize("form", ["named", "starred", "required", "one"])
def test_custom_gradient_with_variables_and_two_outputs(form: str) -> None:
    w = jg.Variable([1.0, 2.0])

    @jg.custom_gradient
    def both(x: Any) -> Any:
        v = w.value()

        def pull(ga: Any, gb: Any) -> Any:
            return ga * v + gb, [ga * x]

        rules: dict[str, Any] = {
            "named": lambda ga, gb, variables=None: pull(ga, gb),
            "starred": lambda *gs, variables=None: pull(*gs),
            "required": lambda ga, gb, variables: pull(ga, gb),
            "one": lambda gs, variables=None: pull(*gs),
        }
        return (x * v, x + 1.0), rules[form]

    x = jg.asarray([3.0, 4.0])
    with jg.GradientTape() as tape:
        tape.watch(x)
        a, b = both(x)
        y = np.sum(a) + 2.0 * np.sum(b)
    gx, gw = tape.gradient(y, [x, w])
    assert np.asarray(gx).tolist() == [3.0, 4.0] and np.asarray(gw).tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tape, x: tape.watch(3.0), "a tape watches tensors, got float"),
        (lambda tape, x: tape.gradient(3.0, x), "a target must be a tensor, got float"),
        (lambda tape, x: tape.gradient(x, "x"), "a source must be a tensor or a Variable, got str"),
    ],
)
def test_what_is_no_tensor(call: Any, message: str) -> None:
    with jg.GradientTape(persistent=True) as tape, pytest.raises(TypeError, match=message):
        call(tape, jg.asarray(1.0))


def test_a_cotangent_of_another_shape() -> None:
    x = jg.asarray(X)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = x * 2.0
    with pytest.raises(ValueError, match=r"shape \(2,\) for a target of shape \(3,\)"):
        tape.gradient(y, x, output_gradients=np.ones(2))


def test_an_op_without_a_rule_is_named() -> None:
    x = jg.asarray(X)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.poly(x)
    with pytest.raises((jg.GradientError, jg.UnsupportedOpError), match="poly"):
        tape.gradient(y, x)


def test_exceptions_close_a_tape() -> None:
    x = jg.asarray(1.0)
    with pytest.raises(ZeroDivisionError), jg.GradientTape() as tape:
        tape.watch(x)
        y = x * 2.0
        1 / 0  # noqa: B018
    assert tape.gradient(y, x) == 2.0


def test_a_tape_belongs_to_its_thread() -> None:
    x = jg.asarray(2.0)
    found = []
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        thread = threading.Thread(target=lambda: found.append(x * x))
        thread.start()
        thread.join()
    assert tape.gradient(found[0], x) is None


def test_jacobians() -> None:
    def g(x: Any) -> Any:
        return np.tanh(x / 2) @ np.ones((3, 2)) * np.sum(x, axis=1, keepdims=True)

    a = np.arange(6.0).reshape(2, 3)
    x = jg.asarray(a)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = g(x)
    full = tape.jacobian(y, x)
    np.testing.assert_allclose(full, jg.jacobian(g)(a))
    np.testing.assert_allclose(tape.batch_jacobian(y, x), [full.numpy()[b, :, b] for b in range(2)])
    assert tape.jacobian(y, jg.asarray(1.0)) is None
    with pytest.raises(ValueError, match="equal leading extents"):
        tape.batch_jacobian(y, jg.asarray(np.ones((3, 2))))


def test_the_jacobian_of_a_variable_counts_all_its_values() -> None:
    v = jg.Variable([0.5, 1.0])
    with jg.GradientTape() as tape:
        y = np.sin(v)
        v.assign([2.0, 3.0])
        y = y + v * v
    np.testing.assert_allclose(tape.jacobian(y, v), np.diag(np.cos([0.5, 1.0]) + [4.0, 6.0]))


def test_seeds_of_another_kind() -> None:
    z = jg.asarray(np.array([1.0 + 2.0j]))
    x = jg.asarray(np.ones(1, np.float32))
    with jg.GradientTape(persistent=True) as tape:
        tape.watch([z, x])
        w, y = z * z, x * x
    with pytest.raises(TypeError, match="needs output_gradients"):
        tape.gradient(w, z)
    with pytest.raises(TypeError, match="complex128 for a target of dtype float32"):
        tape.gradient(y, x, output_gradients=np.array([1j]))
    assert tape.gradient(y, x, output_gradients=jg.asarray(np.ones(1))).dtype == np.float32


def test_the_jacobian_of_a_gradient_is_the_hessian() -> None:
    x = jg.asarray(X)
    with jg.GradientTape() as outer:
        outer.watch(x)
        with jg.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        g = inner.gradient(y, x)
    np.testing.assert_allclose(outer.jacobian(g, x), jg.hessian(f)(X), rtol=1e-12)


# -- memory --------------------------------------------------------------------------------------------------


def test_a_tape_keeps_what_rules_read_and_nothing_else() -> None:
    x = jg.asarray(np.ones(1000))
    with jg.GradientTape() as tape:
        tape.watch(x)
        a = x + 1.0  # its rule reads nothing
        b = a * 3.0  # nor does this one's, of a
        c = np.tanh(b)  # reads c
        y = np.sum(c)
    refs = {name: weakref.ref(t._plain) for name, t in (("a", a), ("b", b), ("c", c))}
    del a, b, c
    gc.collect()
    assert refs["a"]() is None and refs["b"]() is None and refs["c"]() is not None
    tape.gradient(y, x)
    del tape
    gc.collect()
    assert refs["c"]() is None


def living_tapes() -> int:
    gc.collect()
    return sum(type(o) is jg.GradientTape for o in gc.get_objects())


def test_nothing_is_left() -> None:
    before = living_tapes()
    x = jg.asarray(np.ones(10))
    ref = weakref.ref(x._plain)
    gradient_of(f, np.ones(10))
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    tape.gradient(y, x)
    del x, y, tape
    assert living_tapes() == before and ref() is None


# -- Variables -----------------------------------------------------------------------------------------------


def test_variables_are_watched_by_being_read() -> None:
    v, w = jg.Variable([1.0, 2.0]), jg.Variable(3.0, trainable=False)
    with jg.GradientTape() as tape:
        y = np.sum(v * v * w) + v.sum()
    assert tape.watched_variables() == (v,)
    np.testing.assert_array_equal(tape.gradient(y, v), [7.0, 13.0])
    with jg.GradientTape(watch_accessed_variables=False) as tape:
        y = np.sum(v * v)
    assert tape.gradient(y, v) is None


def test_variables_outside_of_graphs_have_values() -> None:
    v = jg.Variable([1.0, 2.0])
    assert isinstance(v + 1, jg.EagerTensor) and isinstance(v.value(), jg.EagerTensor) and bool(v[0] == 1.0)
    assert isinstance(np.stack([v, v]), jg.EagerTensor) and isinstance(jg.asarray(1.0) + v, jg.EagerTensor)
    assert v.assign([3.0, 4.0]) is v and v.assign_sub([1.0, 1.0]) is v and v.assign_add(v) is v
    np.testing.assert_array_equal(v.numpy(), [4.0, 6.0])
    with pytest.raises(jg.ShapeError, match="expected"):
        v.assign([1.0])
    with pytest.raises(jg.DTypeError, match="cannot take the value"):
        v.assign(np.array([1j, 2j]))
    with jg.Graph().as_default():
        assert isinstance(v + 1, jg.Tensor)


def test_a_variable_assigned_between_reads() -> None:
    v = jg.Variable(2.0)
    with jg.GradientTape() as tape:
        a = v * v
        v.assign(5.0)
        b = v * v
    assert tape.gradient([a, b], v) == 4.0 + 10.0


def test_variables_are_saved_with_savez(tmp_path: Any) -> None:
    v = jg.Variable([1.0, 2.0])
    np.savez(tmp_path / "v.npz", v=v)
    v.assign([0.0, 0.0])
    v.assign(np.load(tmp_path / "v.npz")["v"])
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])


# -- gradients of functions ----------------------------------------------------------------------------------


def product(x: Any, y: Any) -> Any:
    return x * y + np.sin(x)


def test_gradients_function() -> None:
    g = jg.gradients_function(product)
    assert g(2.0, 3.0) == [pytest.approx(3 + np.cos(2.0)), 2.0]
    assert jg.gradients_function(product, ["y"])(2.0, 3.0) == [2.0]
    assert jg.gradients_function(product, [1, 0])(2.0, 3.0, dy=2.0) == [4.0, pytest.approx(2 * (3 + np.cos(2.0)))]
    value, (dx, dy) = jg.val_and_grad_function(product)(2.0, 3.0)
    assert value == 6 + np.sin(2.0) and dy == 2.0 and dx == pytest.approx(3 + np.cos(2.0))
    value, vjp = jg.make_vjp(product, ["y"])(2.0, 3.0)
    assert vjp(5.0) == [10.0]


def test_the_same_object_twice_counts_as_two() -> None:
    x = jg.asarray(3.0)
    assert jg.gradients_function(lambda a, b: a * a * b)(x, x) == [18.0, 9.0]
    v = jg.Variable(3.0)
    assert jg.gradients_function(lambda a, b: a * a * b)(v, v) == [18.0, 9.0]


def test_partials_methods_and_nested_outputs() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = 2.0

        def loss(self, x: Any) -> Any:
            return {"a": x * self.w, "b": [x * x]}

    assert jg.gradients_function(Model().loss)(3.0) == [2.0 + 6.0]
    assert jg.gradients_function(functools.partial(product, 2.0))(3.0) == [2.0]
    assert jg.gradients_function(lambda *xs: xs[0] * xs[2])(1.0, 2.0, 3.0)[2] == 1.0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (["z"], "params has 'z', but product takes x, y"),
        (["x", 1], "all names or all positions"),
        ([True], "all names or all positions"),
        ([5], "asks for argument 5 of product, which was called with 2"),
    ],
)
def test_params_that_make_no_sense(params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jg.gradients_function(product, params)(1.0, 2.0)


def test_errors_name_the_function() -> None:
    def nothing(x: Any) -> None:
        x * 2.0

    with pytest.raises(ValueError, match=r"nothing returned None\n.*return value"):
        jg.gradients_function(nothing)(1.0)
    with pytest.raises(ValueError, match="product takes no keyword arguments, got y"):
        jg.gradients_function(product)(1.0, y=2.0)
    with pytest.raises(ValueError, match="product reads no trainable Variable"):
        jg.implicit_grad(product)(1.0, 2.0)
    with pytest.raises(ValueError, match="nothing returned None"):
        jg.implicit_grad(nothing)(1.0)


def test_implicit_gradients_come_in_the_order_of_creation() -> None:
    first, second, unused = jg.Variable(2.0), jg.Variable(5.0), jg.Variable(7.0)

    def loss(x: Any) -> Any:
        _ = unused * 1.0
        return second * x + first * first

    value, pairs = jg.implicit_val_and_grad(loss)(3.0)
    assert value == 19.0 and pairs == [(4.0, first), (3.0, second), (None, unused)]
    assert jg.implicit_grad(loss)(3.0) == pairs


def test_tapes_and_functions_take_tensors_of_graphs() -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, [])
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        g = tape.gradient(y, x)
        (h,) = jg.gradients_function(lambda x: x**3)(x)
        assert isinstance(g, jg.Tensor) and jg.Session().run([g, h], {x: 3.0}) == [6.0, 27.0]


# -- custom gradients ----------------------------------------------------------------------------------------


def test_custom_gradient() -> None:
    @jg.custom_gradient
    def log1pexp(x: Any) -> Any:
        e = np.exp(x)
        return np.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))

    g = jg.gradients_function(log1pexp)
    with np.errstate(over="ignore"):
        assert g(1000.0)[0] == 1.0
    s = 1 / (1 + np.exp(-1.0))
    assert g(1.0)[0] == pytest.approx(s)
    assert jg.gradients_function(lambda x: g(x)[0])(1.0)[0] == pytest.approx(s * (1 - s))


def test_custom_gradient_with_several_outputs_and_variables() -> None:
    @jg.custom_gradient
    def two(x: Any, y: Any) -> Any:
        return (x + y, x * y), lambda a, b: (a * 2.0, b * 3.0)

    assert jg.gradients_function(lambda x, y: two(x, y)[1])(1.0, 2.0) == [0.0, 3.0]
    v = jg.Variable(3.0)

    @jg.custom_gradient
    def scaled(x: Any) -> Any:
        return x * v, lambda dy, variables=None: (dy * 10.0, [dy * 100.0 for _ in variables])

    x = jg.asarray(2.0)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = scaled(x)
    assert tape.gradient(y, [x, v]) == [10.0, 100.0]

    @jg.custom_gradient
    def careless(x: Any) -> Any:
        return x * v, lambda dy: dy

    with jg.GradientTape(), pytest.raises(TypeError, match="variables=None"):
        careless(x)


def test_an_exception_in_a_rule_keeps_its_traceback() -> None:
    def broken_rule(dy: Any) -> Any:
        raise KeyError("mine")

    @jg.custom_gradient
    def fn(x: Any) -> Any:
        return x * 2.0, broken_rule

    with pytest.raises(KeyError, match="mine") as error:
        jg.gradients_function(fn)(1.0)
    assert "broken_rule" in [entry.name for entry in error.traceback]


# -- compiled functions --------------------------------------------------------------------------------------


@jg.compile
def layer(w: Any, x: Any) -> Any:
    return np.tanh(x @ w)


W, ROWS = np.full((3, 2), 0.3), np.arange(6.0).reshape(2, 3)


def test_a_compiled_function_is_one_op_of_a_tape() -> None:
    w, x = jg.asarray(W), jg.asarray(ROWS)
    with jg.GradientTape() as tape:
        tape.watch([w, x])
        y = layer(w, x)
        assert len(tape.entries) == 1 and isinstance(y, jg.EagerTensor)
        y = np.sum(y**2)
    expected = jg.grad(lambda w, x: np.sum(np.tanh(x @ w) ** 2), argnums=(0, 1))(W, ROWS)
    for g, e in zip(tape.gradient(y, [w, x]), expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-13)


def test_no_forward_op_runs_twice() -> None:
    from jitgrad.eager.compiled_calls import SplitRule

    w = jg.asarray(W)
    with jg.GradientTape() as tape:
        tape.watch(w)
        layer(w, ROWS)
    rule = tape.entries[0][0]
    assert isinstance(rule, SplitRule)
    assert {op.type for op in rule.split.backward.operations}.isdisjoint({"tanh"})


def test_compiled_functions_to_second_order() -> None:
    def along(fn: Any) -> Any:
        w = jg.asarray(W)
        with jg.GradientTape() as outer:
            outer.watch(w)
            with jg.GradientTape() as inner:
                inner.watch(w)
                y = np.sum(fn(w, ROWS) ** 2)
            g = inner.gradient(y, w)
            s = np.sum(g * g)
        return outer.gradient(s, w)

    np.testing.assert_allclose(along(layer), along(layer.fn), rtol=1e-11)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.sum(np.sin(x) ** 3),
        lambda x: np.sum(np.tanh(x @ np.full((3, 3), 0.4)) @ np.ones(3)),
        lambda x: np.sum(np.exp(-np.cos(x)) * np.log1p(x**2)),
    ],
)
def test_residuals_that_are_no_results_carry_second_and_third_order(fn: Any) -> None:
    compiled = jg.compile(fn)

    def derivative(f: Any) -> Any:
        return lambda x: np.sum(jg.gradients_function(f)(x)[0] * np.array([1.0, 2.0, -1.0]))

    def reference(f: Any) -> Any:
        return lambda x: np.sum(jg.grad(f)(x) * np.array([1.0, 2.0, -1.0]))

    ours, theirs = compiled, fn
    for _ in range(3):
        np.testing.assert_allclose(jg.gradients_function(ours)(X)[0], jg.grad(theirs)(X), rtol=1e-9, atol=1e-12)
        ours, theirs = derivative(ours), reference(theirs)


def test_static_arguments_on_a_tape() -> None:
    power = jg.compile(lambda x, n, how="sum": getattr(np, how)(x**n), static_argnums=1, static_argnames="how")
    x = jg.asarray(X)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = power(x, 3, how="mean")
    np.testing.assert_allclose(tape.gradient(y, x), X**2)


def test_compiled_functions_read_and_write_variables() -> None:
    v, count = jg.Variable(W), jg.Variable(0.0, trainable=False)

    @jg.compile
    def loss(x: Any) -> Any:
        count.assign_add(1.0)
        return np.sum(np.tanh(x @ v) ** 2)

    with jg.GradientTape() as tape:
        y = loss(ROWS)
    np.testing.assert_allclose(tape.gradient(y, v), jg.grad(lambda w: np.sum(np.tanh(ROWS @ w) ** 2))(W), rtol=1e-13)
    assert count.numpy() == 1.0
    assert isinstance(loss(ROWS), np.float64) and count.numpy() == 2.0


def test_a_tape_in_a_compiled_function_traces() -> None:
    @jg.compile
    def slope(x: Any) -> Any:
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = np.sum(np.sin(x))
        return tape.gradient(y, x)

    np.testing.assert_allclose(slope(X), np.cos(X), rtol=1e-15)


# -- scopes --------------------------------------------------------------------------------------------------


def test_a_scope_collects_and_runs_when_a_value_is_needed() -> None:
    x = jg.asarray(X)
    with jg.profile() as prof:
        with jg.jit_scope():
            y = np.sin(x) * 2.0 + x**2
            z = y.sum()
            assert not prof.events and z.shape == () and y.dtype == np.float64
        value = float(z)
    assert value == pytest.approx(np.sum(np.sin(X) * 2.0 + X**2))
    assert sum(e.kind == "native" for e in prof.events) == 1
    np.testing.assert_allclose(y + 0.0, np.sin(X) * 2.0 + X**2)


def test_a_scope_is_one_op_of_a_tape() -> None:
    x, v = jg.asarray(X), jg.Variable(2.0)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        with jg.jit_scope():
            z = np.sum(np.sin(x) * v)
        w = z * 3.0
    assert len(tape.entries) == 2
    np.testing.assert_allclose(tape.gradient(w, x), 6.0 * np.cos(X))
    assert tape.gradient(w, v) == pytest.approx(3 * np.sum(np.sin(X)))


def test_scopes_and_tapes_in_any_order() -> None:
    v = jg.Variable(X)

    def loss() -> Any:
        return np.sum(np.tanh(v) * v)

    expected = jg.grad(lambda v: np.sum(np.tanh(v) * v))(X)
    with jg.GradientTape() as tape, jg.jit_scope():
        y = loss()
    np.testing.assert_allclose(tape.gradient(y, v), expected)
    with jg.jit_scope():
        with jg.GradientTape() as tape:
            y = loss()
        np.testing.assert_allclose(tape.gradient(y, v), expected)
        np.testing.assert_allclose(jg.implicit_grad(loss)()[0][0], expected)
        np.testing.assert_allclose(jg.gradients_function(lambda x: np.sum(np.tanh(x) * x))(X)[0], expected)
    with jg.GradientTape(persistent=True) as tape, jg.jit_scope():
        with tape.stop_recording():
            hidden = loss()
        y = loss()
    assert tape.gradient(hidden, v) is None
    np.testing.assert_allclose(tape.gradient(y, v), expected)


def test_a_scope_reads_arrays_when_they_are_given() -> None:
    x, n = jg.asarray(X), np.ones(3)
    with jg.jit_scope():
        a = x * n
        n += 1.0
        b = x * n
    n += 1.0
    np.testing.assert_array_equal(a + 0.0, X)
    np.testing.assert_array_equal(b + 0.0, 2 * X)


def test_branches_in_a_scope_look_at_values() -> None:
    x = jg.asarray(2.0)
    with jg.jit_scope():
        y = x * 3.0
        z = y + 1.0 if y > 5.0 else y - 1.0
    assert z == 7.0 and repr(z) == "tensor(7.)" and np.asarray(z) == 7.0


def test_a_scope_with_compile_ops_false_runs_at_once() -> None:
    with jg.jit_scope(compile_ops=False):
        assert isinstance(jg.asarray(1.0) + 1.0, jg.EagerTensor)


# -- operands of other classes -------------------------------------------------------------------------------

SQUARE = np.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix, np.matrix])
@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.matmul, operator.lt, operator.eq])
def test_classes_that_answer_for_arrays_answer_for_tensors(op: Any, kind: Any) -> None:
    other = kind(SQUARE)

    def dense(x: Any) -> Any:
        return np.asarray(x.toarray() if sp.issparse(x) else x)

    for swapped in (False, True):
        expected, got = [op(other, x) if swapped else op(x, other) for x in (SQUARE, jg.asarray(SQUARE))]
        np.testing.assert_array_equal(dense(got), dense(expected))
        assert isinstance(got, type(expected))


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_masked_arrays_and_powers_of_matrices() -> None:
    x, masked = jg.asarray(SQUARE), np.ma.array(SQUARE, mask=[[0, 1], [0, 0]])
    for op in (operator.add, operator.mul, operator.truediv, operator.pow):
        expected, got = op(SQUARE, masked), op(x, masked)
        np.testing.assert_array_equal(got.mask, expected.mask)
        np.testing.assert_array_equal(got.data, expected.data)
    np.testing.assert_array_equal(x ** np.matrix(SQUARE), SQUARE**SQUARE)
    np.testing.assert_array_equal(x * np.int64(3) + np.longdouble(1), SQUARE * 3 + 1)


@pytest.mark.parametrize("other", [None, "a", {}], ids=repr)
def test_what_is_no_operand_is_equal_to_no_element(other: Any) -> None:
    x = jg.asarray(SQUARE)
    for got, expected in ((x == other, other == SQUARE), (x != other, other != SQUARE), (other == x, other == SQUARE)):
        assert isinstance(got, jg.EagerTensor) and got.dtype == bool
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(TypeError):
        operator.lt(x, other)


def test_tensors_have_no_subclasses() -> None:
    with pytest.raises(TypeError, match=r"(?s)Own cannot be a subclass of EagerTensor.*hint:"):
        type("Own", (jg.EagerTensor,), {})


def test_what_tapes_are_asked_wrongly() -> None:
    x = jg.asarray(X)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * 2.0
    for call, kind, text in (
        (lambda: tape.batch_jacobian(1.0, x), TypeError, "a target must be a tensor, got float"),
        (lambda: tape.batch_jacobian(y, X), TypeError, r"a source must be .* got ndarray: make one with jg.asarray"),
        (lambda: tape.gradient(y, X), TypeError, r"a source must be .* got ndarray: make one with jg.asarray"),
        (lambda: tape.gradient([y, y], x, [y]), ValueError, "output_gradients must have the structure of the target"),
        (lambda: tape.gradient({"a": y}, x, {"b": y}), ValueError, "output_gradients must have the structure"),
        (lambda: tape.gradient(y, x, "a"), TypeError, "output_gradients must hold numbers, got str"),
    ):
        with pytest.raises(kind, match=text):
            call()  # type: ignore[no-untyped-call]
    v = jg.Variable(X)
    with jg.GradientTape() as tape:
        z = v * v
    np.testing.assert_array_equal(tape.batch_jacobian(z, v), 2 * X)


def test_arrays_do_not_take_tensors_in_place() -> None:
    array = X.copy()
    with pytest.raises(jg.TracedValueError, match=r"(?s)add into an array \(a \+= x, or out=\) is refused.*a = a \+ x"):
        array += jg.asarray(X)
    np.testing.assert_array_equal(array, X)
