"""The progress line: on a terminal after some patience, gone at the end, and silent everywhere else."""

from __future__ import annotations

import io
import threading
import time

import pytest

from jitgrad.progress import watched
from jitgrad.recording import span

pytestmark = pytest.mark.quick


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_is_told() -> None:
    terminal = Terminal()
    with watched("compiling step", terminal, patience=0.01):
        span("codegen", "7 kernels").__enter__()
        deadline = time.monotonic() + 10
        while "codegen 7 kernels" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "\r\x1b[Kjitgrad: compiling step: codegen 7 kernels, 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_short_work_is_not() -> None:
    terminal = Terminal()
    with watched("compiling step", terminal):
        pass
    assert terminal.getvalue() == ""


def test_no_terminal_no_thread() -> None:
    stream = io.StringIO()
    before = threading.active_count()
    with watched("compiling step", stream, patience=0.0):
        assert threading.active_count() == before
        time.sleep(0.3)
    assert stream.getvalue() == ""


def test_no_thread_to_be_had_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    terminal = Terminal()
    with watched("compiling step", terminal, patience=0.0):
        pass
    assert terminal.getvalue() == ""


def test_a_terminal_that_goes_away() -> None:
    """An exception in the thread that writes would be a warning of pytest's, and so fail."""
    terminal = Terminal()
    with watched("compiling step", terminal, patience=0.01):
        terminal.close()
        time.sleep(0.4)
