"""Kernels are compiled twice: quickly, to run at once, and well, by a thread in the background, whose code then takes
the place of the first in the records of all steps. What is compiled, and when, is not decided here.

Code generation without scheduling, loop rewriting and a global register allocation takes a third of the time, and its
code runs 1.1 to 1.8 times as long. The second compilation begins when the first run is over, which wants all
processors. Both codes give the same bits: no instruction may be contracted or reassociated
unless its flags say so, and modules with such flags are compiled once. The good code alone is kept on disk. A process
ends when the thread is done.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.firsts import first_calls
from jitgrad.records import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

_PATIENCE = 0.25  # seconds that a task waits for first calls: a first run may be all that the process does
_LOOSE = ("contract", "reassoc", "afn", "arcp", "fast")


def may_be_compiled_twice(text: str) -> bool:
    """Whether both codes of a module give the same bits."""
    return not any(f" {flag} " in text for flag in _LOOSE)


@dataclass(frozen=True, slots=True)
class Task:
    """A module to compile well, by what gives its text, and what to do with its object code: a function that gives an
    old and a new address, the same where no record holds one.
    """

    text: Callable[[], str]
    enter: Callable[[bytes], tuple[int, int]]


class Improver:
    """Does tasks in a thread of its own, in order, and knows the records that hold addresses."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[Task, float]] = deque()  # and until when each waits for first calls
        self._replaced: dict[int, int] = {}
        self._records: list[weakref.ref[npt.NDArray[np.int64]]] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the fields above; held for moments
        self._busy = threading.Lock()  # held while LLVM works: a fork waits for its end

    def watch(self, records: npt.NDArray[np.int64]) -> None:
        """Replace addresses in the first column of these records, now and as long as they are alive."""
        with self._lock:
            for k, address in enumerate(records[:, 0].tolist()):
                if address in self._replaced:
                    records[k, 0] = self._replaced[address]
            if self._tasks:
                self._records.append(weakref.ref(records))

    def add(self, tasks: list[Task]) -> None:
        """Have tasks done."""
        with self._lock:
            self._tasks.extend([(task, monotonic() + _PATIENCE) for task in tasks])
            self._start()

    def wait(self) -> None:
        """Return when all is done."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        """Begin the thread; where none is to be had, as while the interpreter ends, quick code stays until it is."""
        if self._tasks and self._thread is None:
            thread = threading.Thread(target=self._work, name="jitgrad-compiler")
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        while self._goes_on():
            task, until = self._tasks[0]
            first_calls.wait(until)
            try:
                self._do(task)
            except Exception as error:  # of the text or the code: the thread goes on with the others
                warnings.warn(f"a kernel keeps its quick code: {error}", RuntimeWarning, stacklevel=1)
            self._tasks.popleft()

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._tasks:
                self._thread = None
                self._records.clear()
            return bool(self._tasks)

    def _do(self, task: Task) -> None:
        text = task.text()
        with self._busy:
            object_code = native.compile_beside(text)
        old, new = task.enter(object_code)
        if old == new:  # code that no record holds
            return
        with self._lock:
            self._replaced[old] = new
            for reference in self._records:
                records = reference()
                if records is not None:
                    records[records[:, 0] == old, 0] = new

    def before_fork(self) -> None:
        """Let the task be finished that is being done."""
        self._busy.acquire()
        self._lock.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._lock.release()
        self._busy.release()

    def after_fork_in_child(self) -> None:
        """The thread stayed with the parent: another one does what is left."""
        self._thread = None
        self._start()
        self.after_fork()


improver = Improver()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=improver.before_fork,
        after_in_parent=improver.after_fork,
        after_in_child=improver.after_fork_in_child,
    )
