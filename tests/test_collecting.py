"""Pausing the garbage collector: on again afterwards, whatever happened inside."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
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


def test_importing_looks_for_no_garbage() -> None:
    code = "import gc, numpy; before = gc.get_stats()[0]['collections']; import jitgrad; "
    code += "print(gc.isenabled(), gc.get_stats()[0]['collections'] - before)"
    enabled, count = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout.split()
    assert enabled == b"True"
    assert int(count) <= 2
