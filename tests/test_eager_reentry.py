"""Eager operations while other Python runs: threads, signals, callbacks of NumPy and finalizers in their midst."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import conditions
from jitgrad.compiler.eager_code.layout import ENTRY_HEAD
from jitgrad.eager import native
from jitgrad.graph import in_graph

pytestmark = pytest.mark.usefixtures("machine_code_or_python")

BIG = np.linspace(0.5, 1.5, 100_000)


@contextmanager
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def cubes(number: int) -> list[str]:
    """Gradients of x * x * x by tapes of this thread, what was wrong with them."""
    wrong = []
    for k in range(number):
        scale = 1.0 + k % 7
        x = jg.asarray(BIG * scale)
        with jg.GradientTape() as tape:
            tape.watch(x)
            middle = (x * x * x)[::2].reshape(-1, 10)
            y = np.sum(middle)
        count, g = len(tape.entries), tape.gradient(y, x)
        expected = np.zeros_like(BIG)
        expected[::2] = 3.0 * (BIG[::2] * scale) ** 2
        if count != 5 or g is None or not np.allclose(g, expected, rtol=1e-12):
            wrong.append(f"{k}: {count} entries")
    return wrong


def test_threads_with_their_own_tapes() -> None:
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(cubes(40))) for _ in range(4)]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [[]] * 4


def test_a_thread_without_a_tape_beside_one_with() -> None:
    data, end, outs = jg.asarray(BIG), threading.Event(), [0]

    def other() -> None:
        while not end.is_set():
            data * 2.0
            np.tanh(data[1:])
            outs[0] += 1

    thread = threading.Thread(target=other)
    with switching_often():
        thread.start()
        try:
            assert cubes(100) == []
        finally:
            end.set()
            thread.join()
    assert outs[0]


def test_what_a_thread_told_ends_with_it() -> None:
    tapes: list[Any] = []

    def other() -> None:
        tape = jg.GradientTape()
        tape.__enter__()
        x = jg.asarray([1.0])
        tape.watch(x)
        x * x
        tapes.append(sys.getrefcount(tape.entries))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    x = jg.asarray([2.0])
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    assert len(tape.entries) == 1 and tape.gradient(y, x).tolist() == [4.0]
    assert conditions.words[conditions.OBSERVERS] == 0


class _Callback:
    """Python that NumPy runs in the midst of an operation."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act, self.calls = act, 0

    def __call__(self, *args: Any) -> None:
        self.calls += 1
        self.act()


def called_inside(act: Callable[[], Any], compute: Callable[[], Any]) -> Any:
    """What is computed, and ``act`` is called in the midst of it, by an invalid operation."""
    callback = _Callback(act)
    with np.errstate(invalid="call", call=callback):
        out = compute()
    assert callback.calls
    return out


def stopped(tape: Any, z: Any) -> None:
    with tape.stop_recording():
        z * z


def inner_tape(tape: Any, z: Any) -> None:
    with jg.GradientTape() as inner:
        inner.watch(z)
        z * z
    assert len(inner.entries) == 1


def other_thread(tape: Any, z: Any) -> None:
    thread = threading.Thread(target=lambda: z * z)
    thread.start()
    thread.join()


@pytest.mark.parametrize("inside", [stopped, inner_tape, other_thread])
@pytest.mark.parametrize(
    "operation",
    [np.sqrt, lambda x: x**0.5, lambda x: x.std(), lambda x: x * np.inf, lambda x: np.inf * x],
)
def test_other_operations_in_the_midst_of_one(operation: Callable[[Any], Any], inside: Callable[..., Any]) -> None:
    z = jg.asarray([1.0, 2.0])
    for _ in range(2):
        x = jg.asarray([-1.0, 0.0, np.inf])
        with jg.GradientTape(persistent=True) as tape:
            tape.watch([x, z])
            before = len(tape.entries)
            y = called_inside(partial(inside, tape, z), partial(operation, x))
            inner = [entry for entry in tape.entries[before:] if entry[ENTRY_HEAD] == z.number]
            assert len(tape.entries) == before + 1 + len(inner) and y.number in tape.watched
            total = np.sum(y * 2.0)
        with np.errstate(all="ignore"):
            assert tape.gradient(total, y).tolist() == np.full(y.shape, 2.0).tolist()
            assert tape.gradient(total, x) is not None


def test_a_tape_that_opens_in_the_midst_of_an_operation() -> None:
    x, tapes = jg.asarray([-1.0, 2.0]), []

    def act() -> None:
        tape = jg.GradientTape()
        tape.__enter__()
        tape.watch(x)
        tapes.append(tape)

    called_inside(act, lambda: np.sqrt(x))
    tapes[0].__exit__(None, None, None)
    assert len(tapes[0].entries) == 1


class UnluckyError(Exception):
    """Raised by a signal."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of signals")
def test_exceptions_of_signals_arrive() -> None:
    raised = [0]

    def handler(number: int, frame: Any) -> None:
        raised[0] += 1
        raise UnluckyError

    x, arrived = jg.asarray([1.0, 2.0]), 0
    observers = conditions.words[conditions.OBSERVERS]
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for k in range(600):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + 1e-6 * (k % 100))
                while True:
                    tape = jg.GradientTape()
                    with tape:
                        tape.watch(x)
                        x * x
            except UnluckyError:
                arrived += 1
            except SystemError as error:
                assert isinstance(error.__cause__, UnluckyError)
                raise
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                jg.eagerness.set_tapes(())
    finally:
        signal.signal(signal.SIGALRM, before)
        extra = conditions.words[conditions.OBSERVERS] - observers
        conditions.count(conditions.OBSERVERS, -extra)
    assert extra == 0
    assert not in_graph()
    assert arrived == raised[0] == 600


def test_an_exception_while_it_is_found_what_listens(monkeypatch: Any) -> None:
    """As a signal's, which may come anywhere in Python."""
    x = jg.asarray([1.0, 2.0])
    for operation in (lambda: x * x, lambda: x[0], lambda: x.sum(), lambda: np.sin(x), lambda: x.sum(axis=0)):
        operation()

        def interrupted(frame: Any, event: str, arg: Any) -> Any:
            if event == "call" and frame.f_code is jg.eagerness.show.__code__:
                raise UnluckyError
            return None

        with jg.GradientTape() as tape:
            tape.watch(x)
            if vars(jg.EagerTensor)["__mul__"] is native.definitions["__mul__"]:
                return
            sys.setprofile(interrupted)
            try:
                with pytest.raises(UnluckyError):
                    operation()
            finally:
                sys.setprofile(None)
            operation()
            assert len(tape.entries) == 1


def test_dtypes_that_are_new_objects_each_time() -> None:
    """Their places in memory are taken by others."""
    for k in range(60):
        kind = (">f8", ">f4", ">i4", ">f2", ">c16")[k % 5]
        array = np.frombuffer(np.arange(1, 4).astype(kind).tobytes(), np.dtype(kind))
        x = jg.asarray(np.ones(3))
        y = jg.eager.tensor.wrap(array)
        with jg.GradientTape() as tape:
            tape.watch([x, y] if array.dtype.kind != "i" else x)
            z = y * x
        gx, gy = tape.gradient(z, [x, y], output_gradients=np.ones(3, z.dtype))
        np.testing.assert_allclose(gx, np.arange(1, 4))
        assert gx.dtype == np.float64
        if array.dtype.kind == "i":
            assert gy is None
        else:
            assert gy.dtype == array.dtype.newbyteorder("=")
            np.testing.assert_allclose(gy, np.ones(3))


def test_many_arguments() -> None:
    x = jg.asarray(np.arange(4.0))
    assert x.reshape(*[1] * 20, 4).shape == (1,) * 20 + (4,)
    with pytest.raises(ValueError, match="maximum supported dimension"):
        x.reshape(*[1] * 2_000_000)


class _Uncomparable:
    def __eq__(self, other: object) -> bool:
        raise KeyError("not to be compared")

    def __hash__(self) -> int:
        raise KeyError("not to be hashed")


def test_exceptions_of_comparisons_and_hashes_arrive() -> None:
    x: Any = jg.asarray([1.0])
    with pytest.raises(KeyError, match="not to be compared"):
        x.__array_ufunc__(np.add, _Uncomparable(), x)
    with pytest.raises((KeyError, TypeError, AttributeError)):
        x.__array_ufunc__(_Uncomparable(), "__call__", x)


def test_true_is_not_one() -> None:
    b = jg.asarray([True, False])
    for _ in range(2):
        assert b.clip(0, 1).dtype == np.int64
        assert b.clip(False, True).dtype == bool
        assert b.sum(0).shape == () and b.sum(keepdims=True).shape == (1,)
        assert np.where(b, 1, 0).dtype == np.int64
        assert np.where(b, True, False).dtype == bool
        assert np.multiply.outer(b, 1).dtype == np.int64
        assert np.multiply.outer(b, True).dtype == bool
        assert b.sum(dtype=bool).dtype == bool
