"""The compiled function as a Python object: signatures, static arguments, traces, threads, pickles; not
what it computes.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import os
import pickle
import re
import signal
import sys
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import pytree
from jitgrad.calls import max_traces
from jitgrad.compiled import Compiled
from jitgrad.run_stages import Stage

X = np.arange(4.0)


class Counted:
    """A function that counts how often its Python code runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any, *rest: Any, **options: Any) -> Any:
        self.calls += 1
        return x * 2.0 + sum(rest)


def test_decorator_with_and_without_arguments() -> None:
    @jg.compile
    def f(x: Any) -> Any:
        """Doc."""
        return x * 2

    @jg.compile(name="renamed", separate_compiled_gradients=True)
    def g(x: Any) -> Any:
        return x * 2

    assert f(X).tolist() == g(X).tolist() == (X * 2).tolist()
    assert (f.__name__, f.__doc__, f.__module__) == ("f", "Doc.", __name__)
    assert f.__wrapped__(2) == 4  # type: ignore[attr-defined]
    assert "program renamed(" in g.explain(X).program
    with pytest.raises(TypeError, match="compile takes a function"):
        jg.compile(3)  # type: ignore[call-overload]


def test_traced_once_per_dtypes_shapes_and_weakness() -> None:
    fn = Counted()
    f = jg.compile(fn)
    calls: list[tuple[Any, ...]] = [
        (X,),
        (X + 1,),
        (X.astype(np.float32),),
        (X[:2],),
        (X.reshape(2, 2),),
        (X, 1.0),
        (X, 2.0),
        (X, 1),
        (X, np.float64(1.0)),
    ]
    counts = []
    for args in calls:
        out = f(*args)
        expected = np.asarray(fn(*args))
        assert out.dtype == expected.dtype
        np.testing.assert_array_equal(out, expected)
        fn.calls -= 1
        counts.append(fn.calls)
    assert counts == [1, 1, 2, 3, 4, 5, 5, 6, 7]
    assert f.cache_info().traces == 7


def test_layouts_byte_orders_and_views() -> None:
    f = jg.compile(lambda x: x + 1.0)
    wide = np.arange(12.0).reshape(3, 4)
    for x in (
        wide.T,
        wide[:, ::2],
        wide[::-1],
        np.asfortranarray(wide),
        wide.astype(">f8"),
        np.broadcast_to(X, (2, 4)),
    ):
        out = f(x)
        np.testing.assert_array_equal(out, x + 1.0)
        assert out.flags.c_contiguous and out.flags.writeable and out.dtype == np.float64
    assert f(memoryview(X)).tolist() == (X + 1).tolist()


def test_results_are_arrays_scalars_or_what_was_returned() -> None:
    constant = np.ones(2)
    f = jg.compile(
        lambda x: {"x": x, "twice": (x, x), "sum": np.sum(x), "c": constant, "n": 3, "s": "a", "none": None}
    )
    out = f(X)
    assert isinstance(out["sum"], np.float64) and (out["n"], out["s"], out["none"]) == (3, "a", None)
    assert type(out["x"]) is np.ndarray
    arrays = [out["x"], *out["twice"], out["c"]]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [array[0] for array in arrays] == [0, 1, 2, 3]
    assert X[1] == 1.0 and constant.tolist() == [1.0, 1.0] and f(X)["c"].tolist() == [1.0, 1.0]


def test_empty_and_zero_dimensional_arrays() -> None:
    f = jg.compile(lambda x: (x * 2, np.sum(x)))
    out, total = f(np.zeros((7, 0)))
    assert out.shape == (7, 0) and total == 0.0
    assert f(np.array(3.0)) == (6.0, 3.0) and isinstance(f(3.0)[0], np.float64)


def test_a_mutated_argument_keeps_its_value_in_the_caller() -> None:
    def assign(x: Any) -> Any:
        x[0] = 10.0
        return x

    x = X.copy()
    inner = jg.compile(assign)
    assert inner(x)[0] == 10.0 and x[0] == 0.0
    first, second = jg.compile(lambda x: (inner(x), x))(x)
    assert first[0] == 10.0 and second[0] == 0.0


# -- static arguments ----------------------------------------------------------------------------------------


def power(x: Any, n: int, flip: bool = False) -> Any:
    for _ in range(n):
        x = x * 2.0
    return -x if flip else x


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": (1, 2)},
        {"static_argnames": ("n", "flip")},
        {"static_argnums": 1, "static_argnames": "flip"},
        {"static_argnums": (-2, -1)},
    ],
)
def test_static_arguments(options: Any) -> None:
    f = jg.compile(power, **options)
    for args, kwargs in [((X, 2), {}), ((X, 2, True), {}), ((X,), {"n": 3}), ((X,), {"flip": True, "n": 0})]:
        np.testing.assert_array_equal(f(*args, **kwargs), power(*args, **kwargs))
    traces = f.cache_info().traces
    f(X, 2)
    assert f.cache_info().traces == traces == 4


def test_static_arguments_of_transforms() -> None:
    g = jg.grad(jg.compile(lambda x, n: np.sum(power(x, n)), static_argnums=1))
    assert g(X, 3).tolist() == [8.0] * 4


def test_static_values_are_told_apart_by_type() -> None:
    seen = []
    f = jg.compile(lambda x, s: seen.append(s) or x * s, static_argnums=1)
    assert [f(X, s).dtype for s in (1, 1.0, True)] == [np.float64] * 3
    assert [type(s) for s in seen] == [int, float, bool]


class Size(NamedTuple):
    n: Any


@dataclasses.dataclass(frozen=True)
class Setup:
    n: Any


@pytest.mark.parametrize(
    "hold", [lambda n: n, lambda n: (n,), lambda n: ((0, n),), Size, Setup, lambda n: frozenset([n])]
)
def test_static_values_are_told_apart_inside_containers(hold: Any) -> None:
    def fill(x: Any, held: Any) -> Any:
        while isinstance(held, tuple | frozenset | Setup):
            held = held.n if isinstance(held, Setup) else list(held)[-1]
        return np.full(2, held), x

    f = jg.compile(fill, static_argnums=1)
    values = [1, 1.0, True, 1 + 0j, np.float32(1), 0.0, -0.0]
    for n in values * 2:
        ours, theirs = f(X, hold(n))[0], np.full(2, n)
        assert ours.dtype == theirs.dtype and np.array_equal(np.signbit(ours.real), np.signbit(theirs.real))
    assert f.cache_info().traces == len(values)


def test_static_leaves_are_told_apart_too() -> None:
    f = jg.compile(lambda x, n: np.full(2, next(iter(n))))
    assert [f(X, frozenset([n])).dtype for n in (1, True, 1.0)] == [np.int64, np.bool_, np.float64]


def test_a_static_nan_is_one_value() -> None:
    f = jg.compile(lambda x, n, *rest: x * n, static_argnums=(1, 2))
    for make in (float, np.float64):
        for _ in range(3):
            f(X, make("nan"), (make("nan"), 1j * make("nan")))
    assert f.cache_info().traces == 2


def test_a_static_argument_is_bound_by_the_signature() -> None:
    fn = Counted()

    def scaled(x: Any, n: int = 3, *, flip: bool = False) -> Any:
        return fn(x) * n

    f = jg.compile(scaled, static_argnames=("n", "flip"))
    for args, kwargs in [((X,), {}), ((X, 3), {}), ((X,), {"n": 3}), ((), {"n": 3, "x": X}), ((X,), {"flip": False})]:
        assert f(*args, **kwargs).tolist() == (X * 6).tolist()
    assert fn.calls == 1
    g = jg.grad(jg.compile(lambda x, n=2: np.sum(x) * n, static_argnames="n"))
    assert [h.tolist() for h in (g(X), g(X, 2), g(X, n=2), g(X, n=3))] == [[2.0] * 4] * 3 + [[3.0] * 4]
    assert isinstance(g, Compiled) and g.cache_info().traces == 2
    with pytest.raises(TypeError, match="unexpected keyword argument 'm'"):
        f(X, m=1)


def test_a_wrapper_sees_how_it_was_called() -> None:
    @functools.wraps(power)
    def wrapper(x: Any, **options: Any) -> Any:
        return power(x, options.pop("n", 5))

    f = jg.compile(wrapper, static_argnames="n")
    np.testing.assert_array_equal(f(X, n=2), power(X, 2))
    np.testing.assert_array_equal(f(X), power(X, 5))


def test_static_arguments_must_exist() -> None:
    with pytest.raises(ValueError, match=r"static_argnums has 3, but power\(x, n, flip\)"):
        jg.compile(power, static_argnums=3)
    with pytest.raises(
        ValueError, match=r"static_argnames has 'm', which is no parameter of power\(x, n, flip\)"
    ):
        jg.compile(power, static_argnames="m")
    jg.compile(lambda *args, **kwargs: 0, static_argnums=5, static_argnames="any")


def test_strings_and_functions_are_static_by_themselves() -> None:
    f = jg.compile(lambda x, how, fn: fn(x) if how == "call" else x)
    np.testing.assert_allclose(f(X, "call", np.tanh), np.tanh(X))
    np.testing.assert_allclose(f(X, "leave", np.tanh), X)
    assert f.cache_info().traces == 2


# -- the cache of traces -------------------------------------------------------------------------------------


def test_the_cache_is_bounded_and_drops_the_least_recently_used() -> None:
    fn = Counted()
    f = jg.compile(fn, static_argnames="n")
    for n in range(max_traces + 6):
        f(X, n=n)
        f(X, n=0)
    assert fn.calls == max_traces + 6
    f(X, n=1)
    assert fn.calls == max_traces + 7


def test_traces_make_room_a_quarter_at_a_time() -> None:
    fn = Counted()
    f = jg.compile(fn)
    for n in range(max_traces + 1):
        f(np.ones(n + 10))
    for n in range(max_traces, max_traces // 4 - 1, -1):  # still there
        f(np.ones(n + 10))
    assert fn.calls == max_traces + 1
    f(np.ones(max_traces // 4 + 9))
    assert fn.calls == max_traces + 2


def test_what_was_compiled_for_dropped_traces_stays_counted() -> None:
    f = jg.compile(lambda x: np.sum(np.arctan(np.cosh(x) - x) ** 3 / (1 + np.expm1(x) ** 2)))
    f(np.ones(10))
    first = f.cache_info()
    for n in range(max_traces):
        f(np.ones(n + 11))
    last = f.cache_info()
    assert first.compiles + first.disk_hits > 0
    assert (last.compiles, last.disk_hits, last.kernels) == (first.compiles, first.disk_hits, first.kernels)


def test_what_other_threads_compile_is_not_counted() -> None:
    start, functions = threading.Barrier(4), [_unlike_all_others(k) for k in range(4)]

    def call(f: Any) -> None:
        start.wait()
        for n in range(20, 24):
            f(np.ones((n, 3)), np.ones((3, n)))

    threads = [threading.Thread(target=call, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [f.cache_info() for f in functions]
    assert all(0 < info.compiles + info.disk_hits <= info.kernels for info in counts)


def _unlike_all_others(k: int) -> Any:
    """A function that no other has the kernels of."""
    powers = range(3, 5 + k)
    return jg.compile(jg.grad(lambda x, y: np.sum(sum(np.tanh(x @ y) ** p * 0.731 for p in powers))))


def test_a_call_of_nothing_but_arrays_counts_as_use() -> None:
    fn = Counted()
    f = jg.compile(fn)
    for n in range(max_traces + 6):
        f(np.ones(n + 10))
        f(X)
    assert fn.calls == max_traces + 7
    f(np.ones(10))
    assert fn.calls == max_traces + 8


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ((X, 1.0), (X[:2], 1.0), r"argument x changed from f64\[4\] to f64\[2\]"),
        (
            (X, 1.0),
            (X.astype(np.float32), 1),
            r"x changed from f64\[4\] to f32\[4\], argument n changed from float to int",
        ),
        ((X, 1.0), ([X], 1.0), "structure of the arguments changed"),
        ((X, "a"), (X, "b"), "argument n changed from 'a' to 'b'"),
    ],
)
def test_a_retrace_says_why(first: Any, second: Any, reason: str, capfd: Any) -> None:
    f = jg.compile(lambda x, n: x)
    with jg.config(log="recompile"):
        f(*first)
        assert capfd.readouterr().err == ""
        f(*second)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("jitgrad recompile: <lambda> at test_compiled_function.py")
    assert re.search(reason, lines[0]), lines[0]


def test_a_static_retrace_says_why(capfd: Any) -> None:
    f = jg.compile(power, static_argnames="n")
    f(X, 2)
    with jg.config(log="recompile"):
        f(X, 3)
    assert "static argument n changed from 2 to 3" in capfd.readouterr().err.replace("'", "")


def test_a_failed_trace_leaves_nothing_behind() -> None:
    f = jg.compile(lambda x, fail: 1 / 0 if fail else x, static_argnums=1)
    with pytest.raises(ZeroDivisionError) as caught:
        f(X, True)
    assert caught.value.__context__ is None
    assert f(X, False).tolist() == X.tolist() and f.cache_info().traces == 1


def test_arrays_are_not_kept() -> None:
    f = jg.compile(lambda x: x * 2.0)
    x = np.arange(3.0)
    alive = weakref.ref(x)
    out = f(x)
    result = weakref.ref(out)
    del x, out
    gc.collect()
    assert alive() is None and result() is None


# -- objects -------------------------------------------------------------------------------------------------


@jg.compile
def doubled(x: Any) -> Any:
    return x * 2.0


def plain(x: Any) -> Any:
    return x * 3.0


def test_pickles_by_reference_or_by_its_function() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    other = pickle.loads(pickle.dumps(jg.compile(plain, name="other")))
    assert other(X).tolist() == (X * 3).tolist() and other.options.name == "other"


@jg.compile
def total(x: Any) -> Any:
    return np.sum(x * x)


def plain_total(x: Any) -> Any:
    return np.sum(x * x)


@jg.value_and_grad
def decorated(x: Any) -> Any:
    return np.sum(x * x)


@pytest.mark.parametrize("fn", [total, plain_total])
@pytest.mark.parametrize(
    "transform",
    [
        jg.grad,
        lambda f: jg.value_and_grad(f, argnums=(0,)),
        jg.jacfwd,
        jg.hessian,
        lambda f: jg.compile(jg.grad(f)),
        lambda f: jg.compile(jg.hessian(f), name="curvature"),
    ],
)
def test_transforms_pickle_by_their_function(fn: Any, transform: Any) -> None:
    made = transform(fn)
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made)
    for ours, theirs in zip(pytree.flatten(again(X))[0], pytree.flatten(made(X))[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if fn is total:
        assert pickle.loads(pickle.dumps(jg.grad(fn))) is jg.grad(fn)


def test_a_decorated_transform_pickles_by_reference() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated


class Model:
    scale = 3.0

    @jg.compile
    def scaled(self, x: Any) -> Any:
        return x * self.scale


def test_methods_and_partials() -> None:
    assert Model().scaled(X).tolist() == (X * 3.0).tolist()
    f = jg.compile(functools.partial(power, n=2))
    assert f(X).tolist() == (X * 4).tolist()
    assert jg.compile(np.tanh)(X).tolist() == np.tanh(X).tolist()


def test_what_tells_of_a_call_is_pickled_and_copied() -> None:
    f = jg.compile(lambda x: np.sum(np.tanh(x) * x))
    explanation, comparison = f.explain(X), jg.compare(f, X, repeat=2)
    for copied in (lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy):
        assert copied(explanation) == explanation
        assert copied(explanation).text == explanation.text
        assert copied(explanation).svg == explanation.svg
        assert str(copied(comparison)) == str(comparison)


def test_interpret_and_explain() -> None:
    f = jg.compile(lambda x: np.sum(np.tanh(x)))
    assert f.interpret(X) == np.sum(np.tanh(X))
    text = f.explain(X).text
    assert "tanh" in text and "test_compiled_function.py" in text
    with pytest.raises(TypeError, match="not traced values"):
        jg.compile(lambda x: f.explain(x))(X)


def test_recursion() -> None:
    @functools.partial(jg.compile, static_argnames="n")
    def total(x: Any, n: int) -> Any:
        return x if n == 0 else x + total(x * 0.5, n - 1)

    assert total(1.0, 3) == 1.875


# -- threads and processes -----------------------------------------------------------------------------------


def test_called_from_several_threads_it_is_traced_once() -> None:
    fn = Counted()
    f = jg.compile(fn)
    results: list[Any] = [None] * 8
    barrier = threading.Barrier(8)

    def work(i: int) -> None:
        barrier.wait()
        for _ in range(50):
            results[i] = f(X + i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fn.calls == 1
    assert all(results[i].tolist() == ((X + i) * 2).tolist() for i in range(8))


def test_threads_trace_different_functions_at_once() -> None:
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = jg.value_and_grad(jg.compile(lambda x: np.sum(np.sin(x * (i + 1)))))(X)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (value, g) in found.items():
        np.testing.assert_allclose(value, np.sum(np.sin(X * (i + 1))))
        np.testing.assert_allclose(g, (i + 1) * np.cos(X * (i + 1)))


def test_after_a_fork() -> None:
    assert doubled(X).tolist() == (X * 2).tolist()
    child = os.fork()
    if child == 0:
        ok = doubled(X).tolist() == (X * 2).tolist() and doubled(X[:3]).tolist() == (X[:3] * 2).tolist()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _in_child(work: Any) -> int:
    """The exit code of a forked child that does this; it is killed when it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_while_another_thread_traces_and_compiles() -> None:
    """The child waits for no lock of a thread that it does not have."""
    forking, done = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        if not is_child:
            forking.set()
            done.wait()
        return x * 2.0

    is_child = False
    f = jg.compile(slow)
    thread = threading.Thread(target=f, args=(X,))
    thread.start()
    forking.wait()

    def work() -> bool:
        nonlocal is_child
        is_child = True
        return bool(f(X).tolist() == (X * 2).tolist())

    try:
        assert _in_child(work) == 0
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("make", [lambda: Stage((), ()), lambda: jg.Session(jg.Graph()), lambda: jg.compile(plain)])
def test_a_forked_child_has_locks_of_its_own(make: Any) -> None:
    owner = make()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with owner._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert _in_child(lambda: owner._lock.acquire(timeout=5)) == 0
    finally:
        done.set()
        thread.join()


def test_a_fork_waits_while_a_dataclass_is_registered() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with pytree._registering:
            held.set()
            done.wait(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert _in_child(lambda: jg.compile(lambda s: s.n * 2.0)(Setup(X)).tolist() == (X * 2).tolist()) == 0
    done.set()
    thread.join()


@dataclasses.dataclass
class Layer:
    """Weights, how often they are taken, and the name of a function."""

    w: Any
    times: Any = dataclasses.field(metadata={"static": True})
    name: Any = dataclasses.field(default="tanh", metadata={"static": True})


def test_static_fields_of_dataclasses_are_part_of_the_program() -> None:
    @jg.compile
    def run(layer: Layer, x: Any) -> Layer:
        for _ in range(int(layer.times)):
            x = getattr(np, layer.name)(x * layer.w)
        return Layer(x, layer.times, layer.name)

    for _ in range(3):
        for times in (2, 3, True, 1.0):
            made = run(Layer(0.5, times), X)
            assert type(made.times) is type(times) and made.times == times
        assert run.cache_info().traces == 4
    np.testing.assert_allclose(run(Layer(0.5, 2, "sin"), X).w, np.sin(np.sin(X * 0.5) * 0.5))

    slope = jg.compile(jg.grad(lambda layer: np.sum(layer.w**layer.times)))(Layer(X, 2))
    np.testing.assert_allclose(slope.w, 2 * X)
    assert (slope.times, slope.name) == (2, "tanh")
    with pytest.raises(TypeError, match="structure"):
        jg.jvp(lambda layer: layer.w, (Layer(X, 2),), (Layer(X, 3),))


def test_a_number_in_a_dataclass_that_decides_is_told_of_static_fields() -> None:
    with pytest.raises(jg.TracedValueError, match=r"field\(metadata="):
        jg.compile(lambda s: [0.0 for _ in range(s.n)])(dataclasses.make_dataclass("S", ["n"])(2))


def test_a_fork_waits_while_another_thread_imports() -> None:
    """What the second call of a function imports; a child forked beside that would wait forever."""
    begun, done = threading.Event(), threading.Event()

    class Slowly:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "jitgrad.steady" and threading.current_thread() is thread:
                begun.set()
                done.wait(0.5)

    def call_twice() -> bool:
        f = jg.compile(lambda x: x * 2.0)
        return all(f(X).tolist() == (X * 2).tolist() for _ in range(3))

    kept = sys.modules.pop("jitgrad.steady", None)
    thread = threading.Thread(target=call_twice)
    sys.meta_path.insert(0, Slowly())  # type: ignore[arg-type]
    try:
        thread.start()
        begun.wait()
        assert _in_child(call_twice) == 0
    finally:
        done.set()
        thread.join()
        del sys.meta_path[0]
        if kept is not None:
            sys.modules["jitgrad.steady"] = kept
