"""What tapes promise (SEMANTICS, "Tapes"), a test for each clause; and what stands beside tensors: scopes, Python
functions, NumPy's protocols, memory.
"""

from __future__ import annotations

import functools
import gc
import pickle
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.eager import calls, pending
from jitgrad.eager.calls import CallRule
from jitgrad.eager.keys import ARITHMETIC
from jitgrad.eager.recorder import parts
from jitgrad.eager.tensor import ufunc_tables
from jitgrad.interpreter import interpret

X = np.array([1.0, 2.0, 3.0])


def gradient(fn: Callable[[Any], Any], value: Any = X) -> Any:
    x = jg.asarray(value)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    return tape.gradient(y, x)


# -- clauses -------------------------------------------------------------------------------------------------


def test_ops_are_recorded_when_an_input_is_watched() -> None:
    x, other = jg.asarray(X), jg.asarray(X)
    with jg.GradientTape() as tape:
        np.sin(other)
        assert not tape.entries
        tape.watch(x)
        np.sin(other) * 2.0
        assert not tape.entries
        y = x * other
        assert len(tape.entries) == 1
    assert tape.gradient(y, [x, other])[1] is None


def test_variables_are_watched_by_being_read() -> None:
    v, fixed, given = jg.Variable(2.0), jg.Variable(2.0, trainable=False), jg.Variable(2.0, trainable=False)
    with jg.GradientTape() as tape:
        tape.watch(given)
        y = v * fixed * given
    assert [g if g is None else float(g) for g in tape.gradient(y, [v, fixed, given])] == [4.0, None, 4.0]


@pytest.mark.parametrize("ask", [lambda t, y, x: t.gradient(y, x), lambda t, y, x: t.jacobian(y, x)])
def test_a_gradient_is_given_once_unless_persistent(ask: Any) -> None:
    x = jg.asarray(X)
    with jg.GradientTape() as once, jg.GradientTape(persistent=True) as tape:
        once.watch(x)
        tape.watch(x)
        y = x * x
    for _ in range(3):
        ask(tape, y, x)
    ask(once, y, x)
    with pytest.raises(RuntimeError, match="persistent=True"):
        ask(once, y, x)


def test_an_inner_gradient_is_differentiable_by_all_outer_tapes() -> None:
    x = jg.asarray(2.0)
    with jg.GradientTape() as third, jg.GradientTape() as second:
        third.watch(x)
        second.watch(x)
        with jg.GradientTape() as first:
            first.watch(x)
            y = x**4
        d1 = first.gradient(y, x)
    with third:
        pass
    assert (float(d1), float(second.gradient(d1, x)), float(third.gradient(d1, x))) == (32.0, 48.0, 48.0)


def test_tapes_survive_exceptions() -> None:
    x = jg.asarray(X)
    tape = jg.GradientTape(persistent=True)
    with pytest.raises(ZeroDivisionError), tape:
        tape.watch(x)
        y = np.sum(x * x)
        raise ZeroDivisionError
    np.testing.assert_array_equal(tape.gradient(y, x), 2 * X)
    with tape:
        z = y * 3.0
    np.testing.assert_array_equal(tape.gradient(z, x), 6 * X)
    with pytest.raises(TypeError, match="a target must be a tensor"):
        tape.gradient(1.0, x)
    np.testing.assert_array_equal(tape.gradient(z, x), 6 * X)


def test_tapes_hold_what_rules_declare_and_nothing_else() -> None:
    x = jg.asarray(np.ones(1000))
    tracemalloc.start()
    with jg.GradientTape() as tape:
        tape.watch(x)
        y: Any = x
        for k in range(2000):
            y = np.sin(y) if k % 20 == 0 else y + 1.0
        del y
        kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(tape.entries) == 2000
    assert 100 * 8000 <= kept < 100 * 8000 + 2000 * 600, "arguments of the sines alone, and the entries"


def test_each_target_gets_its_seed_also_when_one_feeds_another() -> None:
    x = jg.asarray(2.0)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        z = y * y
    assert float(tape.gradient([y, z], x)) == 4.0 + 32.0
    assert float(tape.gradient([y, z], x, output_gradients=[10.0, 1.0])) == 40.0 + 32.0
    assert float(tape.gradient({"a": y, "b": z}, x, output_gradients={"a": None, "b": jg.asarray(0.0)})) == 4.0


def test_seeds_given_stay_the_callers() -> None:
    seed = np.ones(3)
    x = jg.asarray(X)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = x + 1.0
    g = tape.gradient(y, x, output_gradients=seed)
    seed[0] = 7.0
    np.testing.assert_array_equal(g, np.ones(3))


def test_the_same_object_counts_as_two_arguments_and_a_tensor_used_twice_gets_the_sum() -> None:
    x = jg.asarray(3.0)
    assert [float(g) for g in jg.gradients_function(lambda a, b: a * a * b)(x, x)] == [18.0, 9.0]
    assert float(gradient(lambda x: (lambda a, b: a * a * b)(x, x), 3.0)) == 27.0


def returns_nothing(x: Any) -> Any:
    x * 2.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: jg.gradients_function(returns_nothing)(1.0),
        lambda: jg.val_and_grad_function(returns_nothing)(1.0),
        lambda: jg.make_vjp(returns_nothing)(1.0),
        lambda: jg.implicit_grad(returns_nothing)(1.0),
        lambda: jg.implicit_val_and_grad(functools.partial(returns_nothing, 1.0))(),
    ],
)
def test_a_function_that_returns_none(call: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)returns_nothing.*return"):
        call()


def test_no_trainable_variable() -> None:
    v = jg.Variable(1.0, trainable=False)
    with pytest.raises(ValueError, match="reads no trainable Variable"):
        jg.implicit_grad(lambda: v * 2.0)()


def wrapped(fn: Any) -> Any:
    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return fn(*args)

    return call


@wrapped
def product(x: Any, y: Any) -> Any:
    return x * y


@pytest.mark.parametrize("params", ["y", ["y"], 1, [1], [-1], (np.int32(1),)])
def test_parameters_are_names_or_positions(params: Any) -> None:
    assert [float(g) for g in jg.gradients_function(product, params)(2.0, 3.0)] == [2.0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (["x", 1], "all names or all positions"),
        ([1.5], "all names or all positions"),
        ([True], "all names or all positions"),
        ("z", "'z', but product takes x, y"),
        ([2], "argument 2 of product, which was called with 2"),
    ],
)
def test_parameters_that_make_no_sense(params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jg.gradients_function(product, params)(2.0, 3.0)


@pytest.mark.parametrize("make", [jg.gradients_function, jg.val_and_grad_function, jg.make_vjp])
def test_keyword_arguments_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)product takes no keyword arguments, got y.*functools\.partial"):
        make(product)(2.0, y=3.0)


def test_implicit_gradients_come_in_the_order_of_creation() -> None:
    a, b, unused = jg.Variable(2.0), jg.Variable(3.0), jg.Variable(4.0)

    def loss() -> Any:
        unused.value()
        return b * b * a

    pairs = jg.implicit_grad(loss)()
    assert [(g if g is None else float(g), v) for g, v in pairs] == [(9.0, a), (12.0, b), (None, unused)]


def test_a_complex_target_needs_a_seed() -> None:
    with pytest.raises(TypeError, match="complex128 needs output_gradients"):
        gradient(lambda x: x * 1j)


# -- rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        np.sin, np.tanh, np.sum, np.exp, np.cumsum, np.max, np.std, lambda x: x * 2.0, lambda x: 3.0 / x,
        lambda x: x**2, lambda x: x.mean(axis=0), lambda x: np.float32(2.0) * x, lambda x: np.sqrt(x) * x,
        lambda x: x @ x,
    ],
)  # fmt: skip
def test_rules_give_the_interpreters_bits(fn: Any) -> None:
    x = jg.asarray(X)
    with jg.GradientTape() as tape:
        tape.watch(x)
        fn(x)
    for rule, _, outputs, kept in map(parts, tape.entries):
        assert isinstance(rule, CallRule) and rule.call is not None and len(outputs) == 1
        shape = rule.call.program.specs[rule.call.program.inputs[-1]].known_shape
        values = [*[np.asarray(v) for v in kept], *[np.full(shape, 0.7) for _ in rule.seeds]]
        for made, expected in zip(rule.call.straight(values), interpret(rule.call.program, values), strict=True):
            assert np.shape(made) == np.shape(expected) and np.asarray(made).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda x: np.percentile(x, 25.0, method="inverted_cdf", weights=np.ones(3)), "numpy.percentile"),
        (lambda x: np.unique(x), "numpy.unique"),
        (lambda x: np.fmod.reduce(x), "numpy.fmod.reduce"),
    ],
)
def test_gradients_that_cannot_be_derived(fn: Any, name: str) -> None:
    with pytest.raises(jg.GradientError, match=rf"(?s)the gradient of .*{name}.*because:.*custom_gradient"):
        gradient(fn)


def test_what_cannot_be_derived_names_the_operation_and_the_line_that_asks() -> None:
    x = jg.asarray(X)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, z = np.fmin.reduce(x), jg.prevent_gradient(x, "no")
    made = here() - 1
    with pytest.raises(jg.GradientError) as underivable:
        tape.gradient(y, x)
    lines = str(underivable.value).split("\n")
    assert lines[1] == f"  op:      numpy.fmin.reduce of f64[3]    first recorded at test_tapes.py:{made}"
    assert lines[3] == f"  asked:   at test_tapes.py:{here() - 3}" and lines[4].startswith("  hint:    ")
    with pytest.raises(jg.GradientError, match=rf"(?s)test_tapes.py:{made}.*asked: *at test_tapes.py:{here() + 1}"):
        tape.gradient(z, x)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("ufunc", sorted(ARITHMETIC, key=lambda ufunc: ufunc.__name__))
def test_a_rule_is_made_once_for_all_integers(ufunc: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, made = jg.asarray(X.astype(dtype)), []
    make = calls._make_rule
    monkeypatch.setattr(calls, "_make_rule", lambda *args: made.append(args) or make(*args))

    def twice(k: Any) -> Any:
        with jg.GradientTape() as outer:
            outer.watch(x)
            with jg.GradientTape() as inner:
                inner.watch(x)
                y = ufunc(x, k) + ufunc(k, x)
            first = inner.gradient(y, x)
        return y, first, None if first is None else outer.gradient(first, x)

    def found(k: Any) -> Any:
        return [None if g is None else (g.dtype, g.tobytes()) for g in twice(k)]

    assert found(5)[0]
    made.clear()
    for k in (7, 123456789, -3, 1):
        got = found(k)
        assert not made
        assert got == found(np.asarray(k, dtype))
        made.clear()
    assert found(1 << 70) == found(np.asarray(1 << 70, dtype))


def test_ufuncs_that_users_make_are_forgotten() -> None:
    class Held:
        pass

    x, held = jg.asarray(X), []
    for k in range(600):
        own = Held()
        held.append(weakref.ref(own))
        with jg.GradientTape():
            np.frompyfunc(lambda a, k=k, own=own: a + k, 1, 1)(x)
    del own
    gc.collect()
    assert held[0]() is None and len(ufunc_tables) <= 512
    assert len([ref for ref in held if ref() is not None]) < 512


def test_integers_in_jacobians_and_scopes() -> None:
    x = jg.asarray(X)
    for k in (3, 4):
        with jg.GradientTape() as tape:
            tape.watch(x)
            with jg.jit_scope():
                z = x * k
            y = z + k * x + x**k
        np.testing.assert_allclose(tape.jacobian(y, x), np.diag(2 * k + k * X ** (k - 1)))


def here() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def test_arrays_beside_tensors_are_kept_as_they_were() -> None:
    x, n = jg.asarray(X), np.ones(3)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = x * n + n * x + np.multiply(n, x)
        n[:] = 7.0
    np.testing.assert_array_equal(tape.gradient(y, x), [3.0, 3.0, 3.0])


# -- scopes --------------------------------------------------------------------------------------------------


def in_scope(x: Any, number: float) -> Any:
    with jg.jit_scope():
        return np.sum(np.sin(x) * number)


def test_scopes_that_collect_the_same_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    compiled = pending.Compiled
    monkeypatch.setattr(pending, "Compiled", lambda *args: made.append(args) or compiled(*args))
    x = jg.asarray(X)
    for _ in range(3):
        assert float(in_scope(x, 2.5)) == pytest.approx(2.5 * np.sum(np.sin(X)))
    assert len(made) <= 1
    assert float(in_scope(x, 3.5)) == pytest.approx(3.5 * np.sum(np.sin(X)))
    assert float(in_scope(jg.asarray(X[:2]), 3.5)) == pytest.approx(3.5 * np.sum(np.sin(X[:2])))
    g = gradient(lambda x: in_scope(x, 2.5))
    np.testing.assert_allclose(g, 2.5 * np.cos(X))


def test_an_inner_scope_that_does_not_compile_runs_at_once() -> None:
    x = jg.asarray(X)
    with jg.jit_scope():
        a = x * 2.0
        with jg.jit_scope(compile_ops=False):
            b = a + 1.0
        c = a * b
    kinds = [type(t) for t in (a, b, c)]
    assert kinds == [pending.PendingTensor, jg.EagerTensor, pending.PendingTensor]
    np.testing.assert_array_equal(c + 0.0, 2 * X * (2 * X + 1))


def test_a_scope_asks_which_operations_to_compile() -> None:
    asked = []
    with jg.jit_scope(compile_ops=lambda op: bool(asked.append(op.type)) or op.type != "sin"):
        y = np.sin(jg.asarray(X)) * 2.0
    np.testing.assert_allclose(y + 0.0, 2 * np.sin(X))
    assert "sin" in asked and "multiply" in asked


def test_what_a_scope_has_collected_for_nobody_goes() -> None:
    x = jg.asarray(X)
    with jg.jit_scope():
        np.sin(x)
    del x
    assert pending.local.unfinished == () or all(ref() is None for ref in pending.local.unfinished)


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize(
    "write",
    [
        lambda x: np.add(x, x, out=np.zeros(3)),
        lambda x: np.sum(x, out=np.zeros(())),
        lambda x: x.sum(out=np.zeros(())),
        lambda x: np.add(X, X, out=x),
        lambda x: x.__setitem__(0, 1.0),
    ],
)
def test_tensors_are_not_written_into_arrays_nor_the_other_way(write: Any, collects: bool) -> None:
    with jg.jit_scope(collects), pytest.raises(jg.TracedValueError, match="is refused"):
        write(jg.asarray(X) * 2.0)


# -- functions of graphs on tensors --------------------------------------------------------------------------


def test_python_functions_run_at_once() -> None:
    x = jg.asarray(X)
    y = jg.py_func(lambda a: a * 2, x, np.float64)
    total, difference = jg.py_func(lambda a, b: (a + b, a - b), [x, 1.0], [np.float64, np.float64])
    assert all(isinstance(t, jg.EagerTensor) for t in (y, total, difference))
    np.testing.assert_array_equal(y + total + difference, 4 * X)
    with pytest.raises(jg.DTypeError, match="another dtype than was declared"):
        jg.py_func(lambda a: a, [x], np.float32)
    with pytest.raises(jg.GradientError, match="py_func"):
        gradient(lambda x: jg.py_func(lambda a: a * 2, x, np.float64))


def test_prevented_gradients() -> None:
    np.testing.assert_array_equal(jg.prevent_gradient(jg.asarray(X)), X)
    with pytest.raises(jg.GradientError, match="not through here"):
        gradient(lambda x: jg.prevent_gradient(x * 2.0, "not through here"))


def test_tuples_of_tensors() -> None:
    first, none, second = jg.tuple([jg.asarray(X), None, jg.Variable(2.0)])
    assert none is None and isinstance(first, jg.EagerTensor) and float(second) == 2.0
    np.testing.assert_array_equal(gradient(lambda x: np.sum(jg.tuple([x * 2.0, x])[0] * x)), 4 * X)


# -- protocols -----------------------------------------------------------------------------------------------


def test_the_array_api_namespace() -> None:
    x = jg.asarray(X)
    xp = x.__array_namespace__()
    assert xp is jg.numpy and x.__array_namespace__(api_version="2022.12") is xp
    with pytest.raises(ValueError, match=r"1999\.01"):
        x.__array_namespace__(api_version="1999.01")

    def standardised(x: Any) -> Any:
        return (x - xp.mean(x)) / xp.sqrt(xp.sum(xp.pow(x, 2.0)) + 1.0)

    np.testing.assert_allclose(standardised(x), standardised(X))
    wanted = ("asarray", "concat", "matrix_transpose", "permute_dims", "astype", "isdtype", "linalg", "fft", "pi")
    assert all(hasattr(xp, name) for name in wanted)


def test_pickles_buffers_and_copies() -> None:
    x = jg.asarray(X)
    again = pickle.loads(pickle.dumps({"x": x}))["x"]
    assert type(again) is jg.EagerTensor and (again == x).all() and again.number != x.number
    view = memoryview(x)
    assert view.readonly and view.tolist() == X.tolist() and bytes(view) == X.tobytes()
    assert np.frombuffer(x).tolist() == X.tolist() and not np.asarray(x).flags.writeable


def test_comparisons_and_truth_are_numpys() -> None:
    x = jg.asarray(X)
    assert ((x > 1.5) == (X > 1.5)).all() and (x != 2).tolist() == [True, False, True] and (x >= 2.0).sum() == 2
    assert bool(jg.asarray(0.5)) and not jg.asarray(0.0) and (x != "text").all() and x is not None
    with pytest.raises(ValueError, match="truth value"):
        bool(x)
    with pytest.raises(TypeError):
        x + "text"  # type: ignore[operator]
    with pytest.raises(TypeError):
        x + None  # type: ignore[operator]


def test_rounding_is_numpys_scalars() -> None:
    x = jg.asarray(2.56)
    assert round(x) == 3 and type(round(x)) is int and float(round(x, 1)) == 2.6


def test_in_place_forms_rebind() -> None:
    x = y = jg.asarray(X)
    y += 1.0
    y *= y
    y **= 2.0
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, (X + 1) ** 4)


# -- memory --------------------------------------------------------------------------------------------------


def test_training_does_not_grow() -> None:
    v = jg.Variable(np.ones(100))
    optimizer = jg.optimize.SGD(0.01, momentum=0.9)
    loss = jg.compile(lambda: np.sum(np.tanh(v) ** 2))

    def steps(count: int) -> None:
        for k in range(count):
            with jg.GradientTape() as tape:
                y = loss() + np.sum(v[k % 50 :]) * 0.1
            optimizer.apply_gradients([(tape.gradient(y, v), v)])
            with jg.jit_scope():
                z = v * 2.0
            z.numpy()

    steps(60)
    gc.collect()
    tracemalloc.start()
    steps(50)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    steps(50)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 8000, "fifty steps leave nothing of the size of an array each"
