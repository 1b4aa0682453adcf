"""Keeping on disk what need not be there at once, as plans that were made from plans for other extents: not while the
caller waits.

Such a plan costs a new process all stages, and this one nothing, so it is written when no further one has come for a
moment, or when the process ends.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from jitgrad.compiler.freezing.plankey import plan_key
from jitgrad.compiler.freezing.plans import keep_plan
from jitgrad.compiler.machine.cache import KernelCache, kernel_cache
from jitgrad.config import config
from jitgrad.program import Program

_MOMENT = 0.5  # seconds
_MOST_PENDING = 512

_lock = threading.Lock()
_writing = threading.Lock()
_pending: list[Callable[[], object]] = []
_is_waiting = False


def keep_later(source: Callable[[], Program], frozen: Callable[[], Any]) -> None:
    """Keep on disk before long the plan that ``frozen`` gives, of the program that ``source`` gives, if plans are kept
    at all.
    """
    if config.cache:
        cache = kernel_cache()
        when_idle(lambda: _keep(source(), frozen, cache))


def when_idle(keep: Callable[[], object]) -> None:
    """Have something written when no more has come for a moment, or, where no thread is to be had, when the process
    ends; the oldest is forgotten where there is too much.
    """
    global _is_waiting
    with _lock:
        _pending.append(keep)
        del _pending[:-_MOST_PENDING]
        starts, _is_waiting = not _is_waiting, True
    if starts:
        try:
            threading.Thread(target=_wait_and_keep, name="jitgrad-plans", daemon=True).start()
        except RuntimeError:
            _is_waiting = False


def keep_now() -> None:
    """Write all that waits, and what another thread is writing, in the order in which it came."""
    with _writing:
        with _lock:
            waiting = _pending.copy()
            _pending.clear()
        for keep in waiting:
            keep()


def _keep(program: Program, frozen: Callable[[], Any], cache: KernelCache) -> None:
    key = plan_key(program)
    if key is not None:
        keep_plan(key, frozen(), cache)


def _wait_and_keep() -> None:
    global _is_waiting
    count = -1
    while count != len(_pending):
        count = len(_pending)
        time.sleep(_MOMENT)
    with _lock:
        _is_waiting = False
    keep_now()


def _forget() -> None:
    """In a forked child: the plans are the parent's to keep."""
    global _is_waiting, _lock, _writing
    _lock, _writing = threading.Lock(), threading.Lock()
    _is_waiting = False
    _pending.clear()


atexit.register(keep_now)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
