"""What a process has one of."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.products import blas
from jitgrad.eager import native
from jitgrad.once import Once

pytestmark = pytest.mark.quick


def test_threads_that_ask_first_at_the_same_time_have_one() -> None:
    made: list[object] = []
    barrier = threading.Barrier(2)

    @Once
    def thing() -> object:
        """A thing."""
        made.append(object())
        time.sleep(0.05)  # the other thread comes meanwhile
        return made[-1]

    def ask(_: int) -> object:
        barrier.wait()
        return thing()

    assert not thing.made
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert first is second is thing()
    assert thing.made == made and len(made) == 1
    assert thing.__doc__ == "A thing."


def test_what_fails_is_tried_again() -> None:
    answers = [1, 0]
    thing = Once(lambda: 1 // answers.pop())
    with pytest.raises(ZeroDivisionError):
        thing()
    assert thing() == thing() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    begun, may_end = threading.Event(), threading.Event()
    parent = os.getpid()

    @Once
    def thing() -> int:
        if os.getpid() == parent:
            begun.set()
            assert may_end.wait(60)
        return os.getpid()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(thing)
        assert begun.wait(60)
        child = os.fork()
        if child == 0:
            os._exit(0 if thing() == os.getpid() else 1)
        status = os.waitpid(child, 0)[1]
        may_end.set()
        assert asked.result() == parent
    assert status == 0


def test_what_all_threads_share_is_such() -> None:
    """The driver and the count of BLAS hold numbers of all threads; and machine code that takes the place of Python's
    functions a second time would take its own for them.
    """
    assert isinstance(runtime, Once)
    assert isinstance(blas._guards, Once)
    assert isinstance(native.place, Once)
