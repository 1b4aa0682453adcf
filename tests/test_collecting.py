"""Pausing the garbage collector: on again afterwards, whatever happened inside."""

from __future__ import annotations

import gc

import pytest

import jitgrad as jg
from jitgrad.collecting import collection_paused

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
