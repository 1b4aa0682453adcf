"""Pages of large outputs that a thread asks for in first calls: they are there, the run takes them, none is left."""

from __future__ import annotations

import os
import sys
import time
import weakref

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.driver import pages, pools
from jitgrad.compiler.driver.pools import Arena, OutputPool, outputs
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.machine import stamp
from jitgrad.compiler.machine.early import have_early
from tests.leaks import page_flags

_SIZE = 3 << 20


def _wait() -> None:
    while pages.at_work:
        time.sleep(1e-3)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> OutputPool:
    """A pool of the test's own, in place of that of the process."""
    pool = OutputPool(1 << 30)
    monkeypatch.setattr(pages, "outputs", pool)
    return pool


def _resident() -> int:
    """Bytes that this process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells what is in memory")
def test_memory_that_was_prepared_has_its_pages(pool: OutputPool) -> None:
    nbytes = 64 << 20
    before = _resident()
    pages.begin_outputs([nbytes])
    _wait()
    assert _resident() - before > 0.9 * nbytes
    assert pool.take((nbytes,), np.uint8).base is not None
    assert pool.statistics().blocks == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells of its pages")
@pytest.mark.parametrize("slow", [-1.0, 1e9])
def test_pages_are_small_where_huge_ones_are_slow(
    pool: OutputPool, slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = 16 << 20
    monkeypatch.setattr(pages, "_SLOW", slow)
    pages.begin_outputs([nbytes])
    _wait()
    taken = pool.take((nbytes,), np.uint8)
    assert ("nh" in page_flags(taken.ctypes.data + nbytes // 2)) == (slow < 0)
    assert pool.has_slow_huge_pages == (slow < 0)
    taken.fill(1)
    assert taken.sum() == nbytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells of its pages")
@pytest.mark.parametrize("is_slow", [True, False])
def test_two_outputs_of_one_huge_page_tell_whether_they_are_slow(
    pool: OutputPool, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_SLOW", -1.0 if is_slow else 1e9)
    monkeypatch.setattr(pools, "outputs", pool)
    sizes = [2 << 20, 2 << 20, 7 << 19]
    pages.begin_outputs(sizes)
    _wait()
    *_, last = taken = [pool.take((size,), np.uint8) for size in sizes]
    assert ("nh" in page_flags(last.ctypes.data)) == is_slow
    arena = Arena(8 << 20)
    arena.reach(8 << 20)
    assert ("nh" in page_flags(arena.address + (4 << 20))) == is_slow
    assert len(taken) == 3


def test_pages_are_asked_for_without_a_change_and_until_memory_is_taken() -> None:
    touch = have_early().touch
    there = np.arange(200, dtype=np.uint8)
    is_over = np.zeros(1, np.int64)
    place = there.ctypes.data
    touch(place, place + there.nbytes, 1, is_over.ctypes.data, 0)
    assert np.array_equal(there, np.arange(200))
    touch(place, place + there.nbytes, 1, is_over.ctypes.data, 1)
    assert np.array_equal(there, np.arange(200) + 1)
    is_over[0] = 1
    touch(place, place + there.nbytes, 1, is_over.ctypes.data, 1)
    assert np.array_equal(there, np.arange(200) + 1)


def test_who_looks_at_files_asks_for_pages_afterwards(pool: OutputPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> None:
        raise AssertionError("another thread")

    look = stamp._Look()
    monkeypatch.setattr(stamp, "_begun", [look])
    monkeypatch.setattr(stamp, "_looks", lambda folders: b"seen")
    monkeypatch.setattr(pages, "start_new_thread", begin)
    pages.begin_outputs([_SIZE])
    assert pages.at_work
    look.do([])
    assert not pages.at_work and look.found == b"seen"
    with pytest.raises(AssertionError, match="another"):
        pages.begin_outputs([_SIZE, _SIZE])
    pages.at_work.clear()


def test_prepared_memory_is_known_when_it_is_taken(pool: OutputPool) -> None:
    pages.begin_outputs([_SIZE, _SIZE])
    _wait()
    assert pool.statistics().blocks == 0
    taken = [pool.take((_SIZE,), np.uint8) for _ in range(3)]
    assert pool.statistics().blocks == len({array.ctypes.data for array in taken}) == 3


def test_idle_memory_is_not_made_again(pool: OutputPool) -> None:
    used, idle = pool.take((_SIZE,), np.uint8), pool.take((_SIZE,), np.uint8)
    place = idle.ctypes.data
    del idle
    assert pool.prepare([_SIZE]) == []
    assert [most for _, most in pool.prepare([_SIZE, _SIZE])] == [_SIZE]
    assert pool.prepare([_SIZE, _SIZE]) == []
    assert pool.take((_SIZE,), np.uint8).ctypes.data == place
    assert used.nbytes == _SIZE


def test_what_is_not_taken_is_given_back(pool: OutputPool) -> None:
    ((block, _),) = pool.prepare([_SIZE])
    memory = weakref.ref(block.memory)
    del block
    assert memory() is not None
    pool.forget_prepared()
    assert memory() is None


def test_a_first_call_prepares_its_own_outputs_and_explaining_none(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime()
    asked: list[list[int]] = []
    prepare = outputs.prepare
    monkeypatch.setattr(outputs, "prepare", lambda sizes: asked.append(list(sizes)) or prepare(asked[-1]))
    outputs.release()
    x = np.ones(600_000)
    f = jg.compile(lambda x: (np.sin(x) - x, x.reshape(2, -1), np.sum(x)))
    f.explain(x)
    assert asked == []
    g = jg.compile(lambda x: (np.sin(x) + 2 * x, x.reshape(2, -1), np.sum(x)))
    results = g(x)
    _wait()
    assert asked == [[x.nbytes]]
    assert outputs.statistics().blocks == 1
    assert results[0][0] == np.sin(1.0) + 2.0


def test_a_first_call_keeps_no_memory_that_turns_out_not_to_be_needed() -> None:
    runtime()
    outputs.release()
    x = np.ones(600_000)
    f = jg.compile(lambda x: (np.cos(x) - x, np.cos(x) - x, x * 1))
    first, second, third = f(x)
    _wait()
    assert outputs.statistics().blocks == 1
    assert not outputs._prepared
    assert np.array_equal(first, second) and np.array_equal(third, x)


@pytest.mark.parametrize("is_outside", [True, False])
def test_gradients_have_memory_before_their_function_is_traced(
    is_outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime()
    outputs.release()
    asked: list[list[int]] = []
    prepare = outputs.prepare
    monkeypatch.setattr(outputs, "prepare", lambda sizes: asked.append(list(sizes)) or prepare(asked[-1]))
    known: list[list[int]] = []

    def loss(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.floating:
        known.extend(asked)
        return np.sum(np.sin(x) * np.cos(y["of"])) + np.sum(z * z)

    x, y, z = np.ones(400_000), {"of": np.ones(400_000), "other": np.ones(3)}, np.ones(600_000)
    f = jg.compile(jg.value_and_grad(loss, (0, 1))) if is_outside else jg.value_and_grad(jg.compile(loss), (0, 1))
    gradients = f(x, y, z)[1]
    _wait()
    assert known == [[x.nbytes, y["of"].nbytes]]
    assert gradients[1]["of"][0] == pytest.approx(-(np.sin(1.0) ** 2))
    assert outputs.statistics().blocks == 2


def test_memory_for_gradients_is_given_back_when_the_trace_fails() -> None:
    runtime()
    outputs.release()

    def fails(x: np.ndarray) -> np.floating:
        assert outputs._prepared
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jg.compile(jg.grad(fails))(np.ones(400_000))
    _wait()
    assert not outputs._prepared


def test_workers_begin_before_the_first_run_of_steps_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(type(runtime().pool), "ensure", lambda pool, threads: asked.append(threads))
    stage = jg.compile(lambda x: np.sum(np.sin(x) * 1.25))
    for n, is_cut in ((7, False), (1_000_000, True)):
        ((part, arrays),) = stage.stages(np.ones(n))
        asked.clear()
        with jg.config(num_threads=2):
            part.executable(arrays)
        assert asked == [2] * is_cut
