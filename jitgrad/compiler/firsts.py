"""First calls under way: what works in the background waits for their end. It knows neither the calls nor that work.

A first run uses all processors, and the pages of its memory are new. Code generation beside it takes one of them away:
attention with its gradient ran for 81 ms, and 24 without.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class FirstCalls:
    """Counts the calls that compile and run something for the first time, in any thread."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[None]:
        """A call, from before its compilation to the end of its run."""
        with self._changed:
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count = max(0, self._count - 1)  # a child forked inside of a call begins with none
                self._changed.notify_all()

    def wait(self, until: float) -> None:
        """Return when none is under way, or when `monotonic()` has reached ``until``."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, max(0.0, until - monotonic()))


first_calls = FirstCalls()
