"""Calls that machine code takes, many and at once: memory, references, threads and forks."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.freezing.keeping import keep_now
from jitgrad.compiler.machine.tiers import improver
from tests.watched_calls import Watched, X, no_trace_is_left_open, same

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
    assert inner or sys.version_info >= (3, 12)  # from there on collections wait until Python code runs
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
    yield
    no_trace_is_left_open()
