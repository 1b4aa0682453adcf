"""Small results that the caller has dropped and that are given out again: what is kept is never overwritten, what was
changed never given out, and nothing is left behind.
"""

from __future__ import annotations

import gc
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.calling.entry_layout import SPARES
from tests.watched_calls import Watched, X, no_trace_is_left_open, same


@pytest.fixture(autouse=True)
def _no_trace_is_left_open() -> Iterator[None]:
    yield
    no_trace_is_left_open()


def doubled() -> Watched:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    return f


def grid() -> Watched:
    f = Watched(lambda x: np.outer(x, x[:3]))
    f.taken(X)
    return f


def test_dropped_results_are_given_out_again() -> None:
    f = doubled()
    assert len({f.third(X).ctypes.data for _ in range(10)}) == 1
    x, before, places = X, X, set()
    for k in range(10):
        x, before = f.third(x), x
        places.add(x.ctypes.data)
        same((x, before), (X * 2.0 ** (k + 1), X * 2.0**k))
    assert len(places) == SPARES


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "the array": lambda r: r,
    "a container": lambda r: {"r": [r]},
    "a part": lambda r: r[1:],
    "a view of a view": lambda r: r.T[::-1].view(np.int64),
    "a diagonal": lambda r: np.lib.stride_tricks.as_strided(r, (3,), (32,)),
    "a memoryview": memoryview,
    "an array of a buffer": lambda r: np.frombuffer(memoryview(r).cast("B"), np.float64),
    "an iterator": lambda r: r.flat,
    "a pointer of ctypes": lambda r: r.ctypes.data_as(__import__("ctypes").c_void_p),
    "an array by dlpack": np.from_dlpack,
    "a method": lambda r: r.tolist,
    "a closure": lambda r: lambda: r,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_kept_is_not_overwritten(holder: str) -> None:
    f = grid()
    where, kept = [], []
    for k in range(20):
        r = f.third(X + k)
        where.append(r.ctypes.data)
        kept.append(HOLDERS[holder](r))
        del r
    assert len(set(where)) == 20, "memory that is still seen was given out again"
    assert len(kept) == 20


def test_results_kept_now_and_then() -> None:
    f = Watched(lambda x: {"a": x + 1, "b": [x * x, np.outer(x, x)], "s": x.sum()})
    f.taken(X)
    rng = np.random.default_rng(0)
    kept: list[tuple[float, Any]] = []
    for k in range(500):
        result = f.third(X + k)
        choice = rng.integers(4)
        if choice == 0:
            kept.append((k, result))
        elif choice == 1:
            kept.append((k, {"a": result["a"][:], "b": result["b"], "s": result["s"]}))
        elif choice == 2 and kept:
            kept.pop(int(rng.integers(len(kept))))
    assert len(kept) > 100
    for value, found in kept:
        x = X + value
        same(found, {"a": x + 1, "b": [x**2, np.outer(x, x)], "s": x.sum()})


def set_quietly(r: Any, name: str, value: Any) -> None:
    """Set what newer versions of NumPy advise against setting."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        setattr(r, name, value)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda r: set_quietly(r, "shape", (3, 4)),
    "rank": lambda r: set_quietly(r, "shape", (12,)),
    "dtype": lambda r: set_quietly(r, "dtype", np.int64),
    "writeable": lambda r: r.setflags(write=False),
    "size": lambda r: r.resize((2, 3), refcheck=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_array_that_was_changed_is_let_go(change: str) -> None:
    f = grid()
    for k in range(6):
        r = f.third(X + k)
        same(r, np.outer(X + k, (X + k)[:3]))
        assert r.flags.c_contiguous and r.flags.owndata and r.flags.writeable and r.base is None
        CHANGES[change](r)
        del r


def test_other_strides_of_one_row_are_not_given_out() -> None:
    f = Watched(lambda x: x[None] * 2)
    f.taken(X)
    r = f.third(X)
    assert r.strides == (32, 8)
    set_quietly(r, "strides", (8, 8))
    assert r.flags.c_contiguous and r.strides == (8, 8)
    del r
    assert f.third(X).strides == (32, 8)


def test_a_weak_reference_ends_with_the_next_call() -> None:
    f = doubled()
    seen: list[Any] = []
    r = f.third(X)
    alive = weakref.ref(r, lambda _: seen.append(f(X)))
    del r
    other = f(X + 1)
    assert alive() is None
    same(seen[0], X * 2)
    same(other, (X + 1) * 2)


def test_what_a_weak_reference_gave_back_is_not_overwritten() -> None:
    f = doubled()
    r = f.third(X)
    alive = weakref.ref(r)
    del r
    again = alive()
    for k in range(4):
        f.third(X + k)
    same(again, X * 2)


def test_what_is_kept_goes_with_the_function() -> None:
    gc.collect()
    f = jg.compile(lambda x: x * 2)
    for _ in range(4):
        r = f(X)
    alive = weakref.ref(r)
    del r
    assert alive() is not None
    del f
    gc.collect()
    assert alive() is None


def test_as_much_is_kept_as_said() -> None:
    """Those of 16 KiB are, those of the next output are not, but those that still fit."""
    f = Watched(lambda x: (x * 2, x * 3, x[:8] * 4))
    x = np.ones(2 * 1024)
    f.taken(x)
    alive = [weakref.ref(r) for r in f.third(x)]
    assert [ref() is not None for ref in alive] == [True, False, True]


def test_memory_does_not_grow_where_all_is_kept_for_a_while() -> None:
    f = Watched(lambda x: [x + k for k in range(10)])
    f.taken(X)
    tracemalloc.start()
    try:
        for _ in range(3):
            kept = [f(X) for _ in range(200)]
            del kept
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            kept = [f(X) for _ in range(200)]
            del kept
        assert tracemalloc.get_traced_memory()[0] - before < 2_000
    finally:
        tracemalloc.stop()


def test_a_call_that_fails_gives_its_arrays_back() -> None:
    f = Watched(lambda x, i: (x[i], x * 2))
    good, bad = np.array([0, 3]), np.array([0, 9])
    f.taken(X, good)
    kept = f.third(X, good)
    for _ in range(5):
        with pytest.raises(IndexError):
            f(X, bad)
        same(f.third(X + 1, good), ((X + 1)[good], (X + 1) * 2))
    same(kept, (X[good], X * 2))


def test_threads_at_once_keep_their_results() -> None:
    f = jg.compile(lambda x: {"a": x * 2, "b": (x + 1, np.outer(x, x))})
    for _ in range(3):
        f(X)
    wrong: list[float] = []

    def work(first: float) -> None:
        kept: list[tuple[float, Any]] = []
        for k in np.arange(first, first + 2000):
            kept.append((k, f(X + k)))
            for value, r in kept if len(kept) == 8 else ():
                x = X + value
                if not (np.array_equal(r["a"], x * 2) and np.array_equal(r["b"][1], np.outer(x, x))):
                    wrong.append(value)
            kept = kept[-3:] if len(kept) == 8 else kept

    threads = [threading.Thread(target=work, args=(10_000.0 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_dicts_of_results_are_of_their_own() -> None:
    f = Watched(lambda t: {key: value * 2 for key, value in t.items()})
    tree = {f"w{k}": X + k for k in range(20)}
    f.taken(tree)
    first = f.third(tree)
    first["w3"], first["more"] = None, 1
    del first["w5"]
    wanted = {key: value * 2 for key, value in tree.items()}
    same(f.third(tree), wanted)
    assert list(f.third(tree)) == list(wanted)


def test_members_in_another_order() -> None:
    f = Watched(lambda t: t["a"] - 2 * t["b"] + 3 * t["c"])
    a, b, c = X, X**2, X**3
    f.taken({"a": a, "b": b, "c": c})
    wanted = a - 2 * b + 3 * c
    for tree in ({"c": c, "b": b, "a": a}, {"b": b, "a": a, "c": c}, {"a": a, "c": c, "b": b}):
        same(f.taken(tree), wanted)  # another kind of call
    gone = {"a": a, "x": b, "b": b, "c": c}
    del gone["x"]
    same(f.third(gone), wanted)
    equal = {"".join(("a", "")): a, "bb"[:1]: b, "c": c}
    same(f.third(equal), wanted)
