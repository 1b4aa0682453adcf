"""The life of the worker threads: started when first wanted, gone after a fork, stopped at exit; not what
they run.

A worker is a daemon thread of the interpreter inside one ctypes call, which never holds the GIL. Nobody waits until it
runs, as `threading` would (0.2 ms of a first call, 1 to 8 where other processes keep the processors busy): one that
comes late takes what is left of the region that is open. Nothing is started while one thread is asked for. A forked
child has none of its parent's workers: its pool is reset and starts again when used.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Mapping
from contextlib import suppress

from jitgrad.compiler.driver.pool_layout import ENSURE, MAX_WORKERS, PROCESSORS, REGIONS, RUNNING, STOP, THREAD_IDS

_EXIT_WAIT_SECONDS = 1.0
_NOBODY = -1
"""The number of a thread that does not run yet: the system forbids no processor to it."""


class ThreadPool:
    """The workers of one driver module. `ensure` may be called from any thread; the rest belongs to the
    process.
    """

    def __init__(self, functions: Mapping[str, int]) -> None:
        self._ends: list[LockType] = []  # per worker; released when it ends
        self._lock = threading.Lock()
        self._worker = ctypes.CFUNCTYPE(None, ctypes.c_int64)(functions["worker"])
        self._end = ctypes.CFUNCTYPE(None)(functions["stop"])
        self._reset = ctypes.CFUNCTYPE(None)(functions["reset"])
        pool = self._pool = int(ctypes.CFUNCTYPE(ctypes.c_int64)(functions["pool"])())
        self._running = ctypes.c_int32.from_address(pool + RUNNING)
        self._stopping = ctypes.c_int32.from_address(pool + STOP)
        self._regions = ctypes.c_int64.from_address(pool + REGIONS)
        self._reset()
        self._hook = self.ensure  # the driver keeps a bare pointer to this bound method
        ctypes.c_void_p.from_address(pool + ENSURE).value = id(self._hook)
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.stop)

    @property
    def running(self) -> int:
        """How many workers there are, the calling thread not counted."""
        return int(self._running.value)

    @property
    def regions(self) -> int:
        """How many parallel regions have been run so far."""
        return int(self._regions.value)

    def ensure(self, threads: int) -> None:
        """Start workers until `threads` threads, the caller included, can share a region; fewer if there are
        no more to be had.

        The driver calls this when it lacks workers; nobody else needs to.
        """
        if sys.platform == "win32":
            return
        with self._lock, suppress(RuntimeError):  # no threads to be had, or the interpreter is ending
            for number in range(len(self._ends) + 1, min(threads, MAX_WORKERS)):
                self._start(number)

    def _start(self, number: int) -> None:
        place = ctypes.c_int32.from_address(self._pool + THREAD_IDS + 4 * (number - 1))
        place.value = _NOBODY
        end = allocate_lock()
        end.acquire()
        start_new_thread(self._work, (number, place, end))
        self._ends.append(end)
        self._note_processors()
        self._running.value = number

    def _work(self, number: int, place: ctypes.c_int32, end: LockType) -> None:
        """The life of a worker."""
        place.value = threading.get_native_id()
        self._worker(number)
        end.release()

    def _note_processors(self) -> None:
        """Tell the driver where this process may run, as a set of bits."""
        if hasattr(os, "sched_getaffinity"):
            bits = sum(1 << cpu for cpu in os.sched_getaffinity(0) if cpu < 1024)
            ctypes.memmove(self._pool + PROCESSORS, bits.to_bytes(128, sys.byteorder), 128)

    def stop(self) -> None:
        """End all workers; the next parallel step starts them again."""
        with self._lock:
            self._running.value = 0
            self._end()
            for end in self._ends:
                if end.acquire(timeout=_EXIT_WAIT_SECONDS):
                    end.release()
            if not any(end.locked() for end in self._ends):
                self._ends.clear()
                self._stopping.value = 0

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._ends.clear()
        self._reset()
