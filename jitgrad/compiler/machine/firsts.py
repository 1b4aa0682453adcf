"""First calls under way: what works in the background waits for their end. It knows neither the calls nor that work.

A first run uses all processors, and the pages of its memory are new. Code generation beside it takes one of them away:
attention with its gradient ran for 81 ms, and 24 without. First calls seldom come alone, and a module that LLVM has
begun cannot be put off: what waits begins when none has come for a moment.

Meanwhile threads that wait for the GIL get it after a tenth of a millisecond, not after 5: those that compile hold it
for moments, between two calls of LLVM, of which a module takes three, and would spend half of their time with waiting
for the one that writes texts; a third with half a millisecond.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

_QUIET = 0.05  # seconds
_TURN = 1e-4  # seconds


class FirstCalls:
    """Counts the calls that trace, compile and run something for the first time, in any thread."""

    def __init__(self) -> None:
        self._turn = 0.0  # what was set before the first of them
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._count = 0
        self._last = -_QUIET  # when one ended
        self._changed = threading.Condition()
        self._take_turns_as_before()

    @contextmanager
    def one(self) -> Iterator[None]:
        """A call, from before its compilation to the end of its run."""
        with self._changed:
            self._count += 1
            if self._count == 1 and sys.getswitchinterval() > _TURN:
                self._turn = sys.getswitchinterval()
                sys.setswitchinterval(_TURN)
        try:
            yield
        finally:
            with self._changed:
                self._count = max(0, self._count - 1)  # a child forked inside of a call begins with none
                if not self._count:
                    self._take_turns_as_before()
                self._last = monotonic()
                self._changed.notify_all()

    @property
    def are_under_way(self) -> bool:
        """Whether there is one, in any thread."""
        return self._count > 0

    def _take_turns_as_before(self) -> None:
        if self._turn:
            sys.setswitchinterval(self._turn)
        self._turn = 0.0

    def wait(self, until: float) -> None:
        """Return when none has been under way for a moment, or when `monotonic()` has reached ``until``."""
        with self._changed:
            while (now := monotonic()) < until:
                if not self._count and now >= self._last + _QUIET:
                    return
                self._changed.wait((until if self._count else min(until, self._last + _QUIET)) - now)


first_calls = FirstCalls()
