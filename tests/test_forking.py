"""Forks beside threads that import."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitgrad import forking

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here"),
]

_FORK = """
import os, threading, time, sys
import jitgrad
jitgrad.__path__.append({folder!r})
def imported():
    import jitgrad.imported_slowly
thread = threading.Thread(target=imported)
thread.start()
while "jitgrad.imported_slowly" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if not child:
    imported()
    os._exit(7)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_imports_what_another_thread_was_importing(tmp_path: Path) -> None:
    (tmp_path / "imported_slowly.py").write_text("import time\ntime.sleep(0.3)\n")
    command = [sys.executable, "-W", "ignore", "-c", _FORK.format(folder=str(tmp_path))]
    done = subprocess.run(command, timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout == "7\n"


def test_a_fork_of_the_only_thread_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_is_importing", lambda: True)
    monkeypatch.setattr(forking.threading, "active_count", lambda: 1)
    start = time.monotonic()
    forking._wait_for_imports()
    assert time.monotonic() - start < 1


def test_the_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may be importing itself while its own thread forks."""
    monkeypatch.setattr(forking, "_is_importing", lambda: True)
    monkeypatch.setattr(forking.threading, "active_count", lambda: 2)
    monkeypatch.setattr(forking, "_LONGEST_IMPORT", 0.01)
    start = time.monotonic()
    forking._wait_for_imports()
    assert 0.01 <= time.monotonic() - start < 2
