"""Calls that machine code takes: which it takes, the same results as the first call, what it leaves to Python, and
that nothing is lost, kept or shared.
"""

from __future__ import annotations

import dataclasses
import enum
import gc
import os
import signal
import sys
import threading
import traceback
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import pytree
from jitgrad.calls import max_traces
from jitgrad.compiled import Compiled
from jitgrad.compiler.freezing.keeping import keep_now
from jitgrad.compiler.machine.tiers import improver

X = np.arange(1.0, 5.0)


class Watched:
    """A compiled function that counts the calls that reach Python."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.f: Compiled = jg.compile(fn, **options)
        self.python = 0
        take_apart = self.f._calls._take_apart

        def counting(*args: Any) -> Any:
            self.python += 1
            return take_apart(*args)

        self.f._calls._take_apart = counting  # type: ignore[method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **kwargs)

    def taken(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call that has come twice before, which machine code must take."""
        self(*args, **kwargs)
        self(*args, **kwargs)
        return self.third(*args, **kwargs)

    def third(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call that machine code must take."""
        before = self.python
        result = self(*args, **kwargs)
        assert self.python == before, "Python took the call"
        return result

    def left(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call that machine code must leave to Python."""
        before = self.python
        result = self(*args, **kwargs)
        assert self.python == before + 1, "machine code took the call"
        return result


class Pair(NamedTuple):
    a: Any
    b: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(unsafe_hash=True)
class Mutable:
    n: int


def same(a: Any, b: Any) -> None:
    """Equal trees of equal values of equal types."""
    (a_leaves, a_tree), (b_leaves, b_tree) = pytree.flatten(a), pytree.flatten(b)
    assert a_tree == b_tree
    for x, y in zip(a_leaves, b_leaves, strict=True):
        assert type(x) is type(y)
        if isinstance(x, np.ndarray | np.generic):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert x.tobytes() == y.tobytes()
        else:
            assert x == y


def total(*args: Any, **kwargs: Any) -> Any:
    """A sum of all numbers in the arguments, in a fixed order."""
    leaves = pytree.flatten((args, dict(sorted(kwargs.items()))))[0]
    return sum(2 * leaf for leaf in leaves if not isinstance(leaf, str))


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, X, X[:1], np.float32(3)), {}),
    ((X, 2.5), {}),
    ((X, 3), {}),
    ((X, True), {}),
    ((X, 1 - 2j), {}),
    ((X, np.array(4.0)), {}),
    ((X, np.float64(4.0)), {}),
    ((X, np.bool_(True)), {}),
    ((X, np.complex64(1j)), {}),
    ((X,), {"y": X, "z": 2.0}),
    ((), {"y": X}),
    (({"b": X, "a": 2.0},), {}),
    (([X, (X, [X, 1])],), {}),
    (((),), {"x": X}),
    ((Pair(X, {"w": [X]}),), {}),
    (({1: X, 2: X},), {}),
    ((X, None), {}),
    ((X, "text"), {"mode": "other"}),
    ((np.ones((2, 0, 3)),), {}),
    ((np.ones((2, 3, 4, 5), np.int16),), {}),
]


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS, ids=str)
def test_the_same_as_the_first_call(args: Any, kwargs: Any) -> None:
    f = Watched(total)
    first = f(*args, **kwargs)
    same(f.taken(*args, **kwargs), first)
    same(first, f.f.interpret(*args, **kwargs))


def changed(tree: Any) -> Any:
    """The same tree with other values of the same types."""

    def change(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x + 1
        return x if isinstance(x, str | bool) else type(x)(1) + x

    return pytree.tree_map(change, tree)


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS, ids=str)
def test_other_values_of_the_same_kind(args: Any, kwargs: Any) -> None:
    f = Watched(total)
    f.taken(*args, **kwargs)
    args, kwargs = changed((args, kwargs))
    same(f.third(*args, **kwargs), f.f.interpret(*args, **kwargs))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u2", "i4", "i8", "u8", "?", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 0)])
def test_dtypes_and_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    f = Watched(lambda x: (x, x.reshape(-1), x == x))
    x = np.ones(shape, dtype)
    same(f.taken(x), f.f.interpret(x))


RESULTS: list[Callable[[Any], Any]] = [
    lambda x: x * 2,
    lambda x: x.sum(),
    lambda x: (x.sum(), x * 2),
    lambda x: [x * 2, (x.max(), {"k": x + 1})],
    lambda x: {"b": x * 2, "a": [x.sum()], 3: ()},
    lambda x: (x * 2, None, "text", 3, 2.5),
    lambda x: Pair(x * 2, x.sum()),
    lambda x: Frozen(x * 2, (x.sum(),)),
    lambda x: (x * 2, np.arange(3)),
    lambda x: (x, x * 2, x),
    lambda x: (lambda y: (y, y, y.sum(), y.reshape(2, 2)))(x * 3),
    lambda x: (lambda s: (s, s, s.reshape(1)))(x.sum()),
    lambda x: (x.reshape(2, 2), x.sum() > 3, x.astype(np.complex128).sum()),
    lambda x: np.zeros((8192, 4)) + x,
    lambda x: {f"k{n}": x + n for n in range(50)},
]


@pytest.mark.parametrize("fn", RESULTS)
def test_results(fn: Callable[[Any], Any]) -> None:
    f = Watched(fn)
    first = f(X)
    third = f.taken(X)
    same(third, first)
    arrays = [leaf for leaf in pytree.flatten(third)[0] if isinstance(leaf, np.ndarray)]
    for k, array in enumerate(arrays):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert not np.shares_memory(array, X)
        assert not any(np.shares_memory(array, other) for other in arrays[:k])


class Subclass(np.ndarray[Any, Any]):
    """Not exactly numpy.ndarray."""


UNUSUAL = [
    np.ones(8)[::2],
    np.ones(4).astype(">f8"),
    np.ones(4).view(Subclass),
    np.ones(33, np.uint8)[1:].view(np.float64),
]


@pytest.mark.parametrize("x", UNUSUAL, ids=["strided", "swapped", "subclass", "misaligned"])
def test_unusual_arrays_are_left_to_python(x: Any) -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    same(f.left(x), np.asarray(x) * 2.0)


@pytest.mark.parametrize("x", [X.astype(np.float32), X[:3], X.reshape(2, 2), np.arange(4), 2.0, [1.0, 2.0]], ids=str)
def test_other_kinds_of_arguments(x: Any) -> None:
    """They get descriptions of their own, and do not disturb that of the first."""
    f = Watched(lambda x: x if isinstance(x, list) else x * 2)
    f.taken(X)
    same(f.taken(x), f.f.interpret(x))
    same(f.third(X), X * 2)


def test_read_only_arguments_are_taken() -> None:
    f = Watched(lambda x: x * 2)
    x = X.copy()
    x.flags.writeable = False
    same(f.taken(x), X * 2)


def test_an_assignment_in_the_function_does_not_reach_the_caller() -> None:
    def fn(x: Any) -> Any:
        x[0] = 9.0
        return x

    f, x = Watched(fn), X.copy()
    assert f.taken(x).tolist() == [9, 2, 3, 4]
    assert x.tolist() == X.tolist()


# -- counts and names ----------------------------------------------------------------------------------------


def test_wrong_arguments_say_what_python_says() -> None:
    f = Watched(lambda x, y: x * y)
    f.taken(X, X)
    for args, kwargs in (((X,), {}), ((X, X, X), {}), ((X, X), {"y": X}), ((X,), {"z": X})):
        with pytest.raises(TypeError, match="argument"):
            f(*args, **kwargs)
    with pytest.raises(TypeError, match="object"):
        f(X, np.array([object()]))
    same(f.third(X, X), X * X)


def test_names_in_any_order() -> None:
    f = Watched(lambda x, y, z: x - y * z)
    f.taken(X, y=X, z=2.0)
    same(f.third(X, z=2.0, y=X), X - X * 2)
    same(f.left(x=X, y=X, z=2.0), X - X * 2)


def test_dicts_in_any_order_with_just_those_keys() -> None:
    f = Watched(lambda d: d["a"] - d["b"] + len(d))
    f.taken({"a": X, "b": 2.0})
    same(f.third({"b": 2.0, "a": X}), X - 2.0 + 2)
    same(f.left({"b": 2.0, "a": X, "c": 1.0}), X - 2.0 + 3)
    with pytest.raises(KeyError):
        f({"a": X})


def test_lengths_of_lists() -> None:
    f = Watched(lambda xs: sum(xs))
    f.taken([X, X])
    same(f.left([X]), X)
    same(f.left([]), 0)
    same(f.left([X, X, X]), X * 3)
    same(f.left((X, X)), X * 2)


def test_integers_that_do_not_fit() -> None:
    f = Watched(lambda x, n: x * n)
    f.taken(X, 3)
    with pytest.raises(TypeError, match="does not fit"):
        f(X, 2**70)
    same(f.third(X, -1), -X)


# -- static arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [3, -1, 2**70, "mode", b"x", 0.5, float("nan"), None, True, (3, "a", (1.5,)), Colour.RED, frozenset({1})]
    + [Frozen(3, ("a",)), X.dtype.type, np.dtype("f4"), np.int64(4), np.sin, len, same, Pair],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_static_values(value: Any) -> None:
    seen = []

    def fn(x: Any, value: Any) -> Any:
        seen.append(value)
        return x * 2

    f = Watched(fn, static_argnames="value")
    same(f.taken(X, value), X * 2)
    same(f.taken(X, value=value), X * 2)
    same(f.taken(value=value, x=X), X * 2)
    assert len(seen) == 1


def test_equal_static_values_that_are_other_objects() -> None:
    f = Watched(lambda x, shape, name: x.reshape(shape), static_argnums=(1, 2))
    f.taken(X, (2, 2), "name")
    same(f.third(X, tuple([2, 2]), "".join(["na", "me"])), X.reshape(2, 2))  # noqa: C409
    same(f.left(X, (4, 1), "name"), X.reshape(4, 1))


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,)), ("1", b"1"), (Colour.RED, Colour.BLUE)]
)
def test_static_values_that_differ(one: Any, other: Any) -> None:
    seen = []

    def fn(x: Any, value: Any) -> Any:
        seen.append(value)
        return x * 2

    f = Watched(fn, static_argnums=1)
    f.taken(X, one)
    f.left(X, other)
    assert [repr(value) for value in seen] == [repr(one), repr(other)]


def test_a_static_value_that_changes_is_looked_at_each_time() -> None:
    f, setting = Watched(lambda x, s: x * s.n, static_argnums=1), Mutable(2)
    for _ in range(3):
        same(f.left(X, setting), X * 2)
    setting.n = 3
    same(f.left(X, setting), X * 3)


def test_static_defaults() -> None:
    f = Watched(lambda x, n=2, *, m=3: x * n + m, static_argnames=("n", "m"))
    for args, kwargs in (((X,), {}), ((X, 2), {}), ((X,), {"n": 2}), ((), {"m": 3, "x": X})):
        same(f.taken(*args, **kwargs), X * 2 + 3)
    assert f.f.cache_info().traces == 1


# -- what surrounds a call -----------------------------------------------------------------------------------


def test_calls_inside_a_trace_are_traced() -> None:
    traced = []

    def cube(x: Any) -> Any:
        traced.append(x)
        return x**3

    f = Watched(cube)
    f.taken(X)
    same(jg.compile(lambda x: x * f(X))(X), X * X**3)
    assert len(traced) == 2
    same(jg.grad(lambda x: np.sum(f(x)))(X), 3 * X**2)
    same(f.third(X), X**3)


def test_after_a_trace_that_failed() -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    with pytest.raises(ZeroDivisionError):
        jg.compile(lambda x: 1 // 0)(X)
    f.third(X)


def test_threads_of_a_block() -> None:
    f = Watched(lambda x: np.exp(x).sum())
    x = np.linspace(0, 1, 200_000)
    wanted = f.taken(x)
    with jg.config(num_threads=1):
        same(f.third(x), wanted)
        with jg.config(num_threads=3):
            same(f.third(x), wanted)
    before = jg.get_num_threads()
    try:
        jg.set_num_threads(1)
        same(f.third(x), wanted)
    finally:
        jg.set_num_threads(before)
    same(f.third(x), wanted)


def test_a_position_out_of_bounds_raises_and_the_next_call_is_right() -> None:
    f = Watched(lambda x, i: x[i])
    inside, outside = np.array([1, 2]), np.array([1, 7])
    f.taken(X, inside)
    with pytest.raises(IndexError, match="out of bounds"):
        f.third(X, outside)
    same(f.third(X, inside), X[inside])


def test_programs_of_several_parts() -> None:
    """What is no single cluster is run by Python, with arguments checked by machine code."""

    def fn(x: Any, n: Any) -> Any:
        return jg.py_func(lambda v: v + 1, [x * n], [np.float64]) * 2

    f = Watched(fn if hasattr(jg, "py_func") else lambda x, n: np.sort(x * n) * 2)
    same(f.taken(X, 3.0), f.f.interpret(X, 3.0))
    same(f.third(X * 2, 4.0), f.f.interpret(X * 2, 4.0))


def test_a_function_that_returns_its_argument() -> None:
    f = Watched(lambda x: x)
    y = f.taken(X)
    same(y, X)
    assert y is not X
    assert not np.shares_memory(y, X)


def test_methods() -> None:
    class Model:
        scale = 3.0

        @jg.compile
        def apply(self, x: Any) -> Any:
            return x * self.scale

    model = Model()
    for _ in range(4):
        same(model.apply(X), X * 3)


# -- the cache of traces -------------------------------------------------------------------------------------


def test_calls_by_machine_code_count_as_use() -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    for n in range(max_traces + 6):
        f(np.ones(n + 10))
        f.third(X)
    assert f.f.cache_info().traces == max_traces + 7


def test_a_dropped_trace_is_not_taken() -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    for n in range(max_traces):
        f(np.ones(n + 10))
    traces = f.f.cache_info().traces
    same(f.left(X), X * 2)
    assert f.f.cache_info().traces == traces + 1


def test_many_ways_to_write_a_call() -> None:
    f = Watched(lambda **options: sum(options.values()))
    names = [f"n{k}" for k in range(100)]
    for name in names:
        f.taken(**{name: X})
        same(f.third(**{name: X}), X)


# -- memory --------------------------------------------------------------------------------------------------


def test_references_are_given_back() -> None:
    key = "key-made-for-this-test"
    leaf, number, static = np.ones(3), 1234567.5, ("static", 1)
    f = Watched(lambda t, n, s: {key: (t[key][0] * n, s)}, static_argnums=2)
    values = [leaf, number, static, key, leaf.dtype, np.ndarray]
    tree = {key: [leaf]}
    f.taken(tree, number, static)
    f(tree, number, static)

    keep_now()  # plans of earlier tests hold dtypes, and would be let go at some time in between
    improver.wait()
    gc.collect()
    before = [sys.getrefcount(value) for value in values]
    for _ in range(1000):
        f(tree, number, static)
    gc.collect()
    assert max(abs(sys.getrefcount(v) - n) for v, n in zip(values, before, strict=True)) <= 3


def test_memory_does_not_grow() -> None:
    f = Watched(lambda d: [x * 2 for x in d.values()] + [d["a"].sum()])
    d = {"a": np.ones(100), "b": np.ones((10, 10))}
    f.taken(d)
    tracemalloc.start()
    try:
        f(d)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            f(d)
        assert tracemalloc.get_traced_memory()[0] - before < 2_000
    finally:
        tracemalloc.stop()


def test_large_outputs_use_memory_again() -> None:
    f = Watched(lambda x: x * 2)
    x = np.ones(1 << 20)
    f.taken(x)
    assert len({f(x).ctypes.data for _ in range(10)}) == 1
    kept = [f(x) for _ in range(3)]
    assert len({y.ctypes.data for y in kept}) == 3


def test_a_function_is_freed_with_its_last_reference() -> None:
    gc.collect()
    gc.disable()
    try:
        f = jg.compile(lambda x: x * 2)
        calls = weakref.ref(f._calls)
        for _ in range(4):
            f(X)
        frames = [weakref.ref(stage.executable([X])) for stage, _ in f.stages(X)]
        call = f.__call__
        del f
        same(call(X), X * 2)
        del call
        assert calls() is None
        assert [frame() for frame in frames] == [None]
    finally:
        gc.enable()


def test_the_first_call_kept_without_its_function() -> None:
    call = jg.compile(lambda x: x * 2).__call__
    for _ in range(4):
        same(call(X), X * 2)


# -- several at once -----------------------------------------------------------------------------------------


def test_threads_at_once() -> None:
    f = jg.compile(lambda d: (np.sin(d["x"]) * d["n"], d["x"].sum()))
    xs = [np.full(50_000, float(k)) for k in range(4)]
    wanted = [f.interpret({"x": x, "n": float(k)}) for k, x in enumerate(xs)]
    for _ in range(3):
        f({"x": xs[0], "n": 0.0})
    wrong = []

    def work(k: int) -> None:
        for _ in range(100):
            y, s = f({"x": xs[k], "n": float(k)})
            if not np.allclose(y, wanted[k][0], rtol=1e-14) or s != wanted[k][1]:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_leaf_that_another_thread_takes_out_of_its_container() -> None:
    f = jg.compile(lambda d: np.exp(d["x"]).sum())
    n = 1 << 18
    d = {"x": np.zeros(n)}
    for _ in range(3):
        f(d)
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            d["x"] = np.zeros(n)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        assert all(f(d) == n for _ in range(200))
    finally:
        stop.set()
        thread.join()


def test_a_call_while_the_frame_is_taken() -> None:
    """A finaliser that runs as a call builds its results calls the same function."""
    f = Watched(lambda x: [x * k for k in range(200)])
    wanted = [X * k for k in range(200)]
    f.taken(X)
    inner = []

    def called(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and len(inner) < 20:
            inner.append(None)
            inner[-1] = f(X)

    gc.callbacks.append(called)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        outer = [f(X) for _ in range(10)]
    finally:
        gc.callbacks.remove(called)
        gc.set_threshold(*threshold)
    assert inner
    for result in outer + inner:
        same(result, wanted)


def fork_and(check: Callable[[], bool]) -> None:
    """Assert something in a forked child."""
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is a call of Unix")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_traces() -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    tracing, done = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        tracing.set()
        done.wait(10)
        return x

    thread = threading.Thread(target=jg.compile(slow), args=(X,))
    thread.start()
    tracing.wait(10)
    try:
        same(f.left(X), X * 2)
        fork_and(lambda: bool((f.third(X) == X * 2).all()))
    finally:
        done.set()
        thread.join()
    f.third(X)


@pytest.fixture(autouse=True)
def _no_trace_is_left_open() -> Iterator[None]:
    from jitgrad import conditions

    yield
    assert conditions.words[conditions.OBSERVERS] == 0
    assert conditions.words[conditions.BLOCKS] == 0
