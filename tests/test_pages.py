"""Pages of large outputs that a thread asks for in first calls: they are there, and the run takes them."""

from __future__ import annotations

import resource
import sys
import threading

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.driver import pages
from jitgrad.compiler.driver.pools import OutputPool, outputs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has the call")

_SIZE = 3 << 20


def _wait() -> None:
    for thread in threading.enumerate():
        if thread.name == "jitgrad-pages":
            thread.join()


def test_memory_that_was_prepared_has_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = OutputPool(1 << 30)
    monkeypatch.setattr(pages, "outputs", pool)
    pages.begin_outputs([_SIZE, _SIZE, 8])
    _wait()
    assert (pool.statistics().blocks, pool.statistics().misses) == (2, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    taken = [pool.take((_SIZE,), np.uint8) for _ in range(2)]
    for array in taken:
        array.fill(1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100  # 1536 pages
    assert (pool.statistics().hits, pool.statistics().misses) == (2, 0)


def test_idle_memory_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = OutputPool(1 << 30)
    monkeypatch.setattr(pages, "outputs", pool)
    used, idle = pool.take((_SIZE,), np.uint8), pool.take((_SIZE,), np.uint8)
    del idle
    pages.begin_outputs([_SIZE])
    assert pool.statistics().blocks == 2
    pages.begin_outputs([_SIZE, _SIZE])
    assert pool.statistics().blocks == 3
    _wait()
    assert used.nbytes == _SIZE


def test_a_first_call_prepares_its_own_outputs_and_explaining_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    begin = pages.begin_outputs
    monkeypatch.setattr("jitgrad.compiler.stages.begin_outputs", lambda sizes: asked.append(sizes) or begin(sizes))
    outputs.release()
    x = np.ones(600_000)
    f = jg.compile(lambda x: (np.sin(x) - x, x.reshape(2, -1), np.sum(x)))
    f.explain(x)
    assert asked == []
    outputs.release()
    g = jg.compile(lambda x: (np.sin(x) + 2 * x, x.reshape(2, -1), np.sum(x)))
    results = g(x)
    _wait()
    assert sorted(asked[0]) == [8, x.nbytes]
    assert outputs.statistics().blocks == 1
    assert results[0][0] == np.sin(1.0) + 2.0
