"""Pausing the garbage collector: on again afterwards, whatever happened inside."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import collecting
from jitgrad.collecting import collection_paused
from jitgrad.running import Runner

pytestmark = pytest.mark.quick


def test_it_is_off_inside_and_on_afterwards() -> None:
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_leaves_it_on() -> None:
    with pytest.raises(ZeroDivisionError), collection_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_stays_off_where_the_user_has_it_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_trace_that_fails_leaves_it_on() -> None:
    def fails(x: object) -> None:
        assert not gc.isenabled()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jg.compile(fails)(1.0)
    assert gc.isenabled()


def test_a_first_call_pauses_it_once_for_all_that_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []
    run = Runner.run

    def watched(self: Runner, arrays: Any) -> list[Any]:
        enabled.append(gc.isenabled())
        results = run(self, arrays)
        enabled.append(gc.isenabled())
        return results

    monkeypatch.setattr(Runner, "run", watched)
    f = jg.compile(lambda x: x * 2.0 + 0.75)
    f(np.ones(3))
    assert enabled == [False, False]
    assert gc.isenabled()
    f(np.ones(3))
    assert enabled[2:] == [True, True]


def _collections(code: str) -> list[int]:
    """What is printed by code that has the number of collections so far in ``count()``."""
    count = "import gc, numpy as np\ncount = lambda: sum(g['collections'] for g in gc.get_stats())\n"
    run = subprocess.run([sys.executable, "-c", count + code], check=True, capture_output=True, text=True)
    return [int(word) for word in run.stdout.split()]


_FIRST_CALL = "jg.compile(jg.value_and_grad(lambda x: np.sum(np.sin(x) * x)))(np.ones(3))\n"


def test_neither_an_import_nor_a_first_call_is_followed_by_a_collection() -> None:
    code = "before = count()\nimport jitgrad as jg\n" + _FIRST_CALL
    assert _collections(code + "print(count() - before, int(gc.isenabled()), gc.get_freeze_count())") == [0, 1, 0]


def test_later_first_calls_do_not_put_off_collections() -> None:
    code = "import jitgrad as jg\n" + _FIRST_CALL + "before = count()\n" + _FIRST_CALL
    looks, new = _collections(code + "new = gc.get_count()[0]\nprint(count() - before, new)")
    assert looks or new > 30


def test_what_the_user_has_put_aside_stays_there() -> None:
    code = "gc.freeze()\nbefore = gc.get_freeze_count()\nimport jitgrad as jg\n" + _FIRST_CALL
    missing, is_enabled = _collections(code + "print(before - gc.get_freeze_count(), int(gc.isenabled()))")
    assert 0 <= missing < 100  # some of them have died
    assert is_enabled


def test_what_the_user_has_put_aside_is_counted_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python goes through all of it: too long for each first call."""
    counts: list[int] = []

    def count() -> int:
        counts.append(1 << 20)
        return counts[-1]

    monkeypatch.setattr(collecting, "_asked", 0)
    monkeypatch.setattr(gc, "get_freeze_count", count)
    for _ in range(5):
        with collection_paused(are_kept=True):
            pass
    assert len(counts) == 2
