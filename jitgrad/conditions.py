"""What machine code looks at before it takes a call, as words of memory: observers, which must see every call, so that
Python takes all calls meanwhile (traces under way, tapes, searches for NaN), blocks with settings of their own, threads
of the process, where calls are to be written down. Who sets them decides what they mean; nothing is read here.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Iterator
from typing import Protocol

OBSERVERS, BLOCKS, THREADS, JOURNAL = range(4)

words = array("q", (0, 0, 0, 0))
"""By the names above. A thread count of 0: nobody has asked for it yet; a journal at 0: there is none."""

_lock = threading.Lock()
_mine = threading.local()


def address() -> int:
    """Where the words lie; they stay there."""
    return words.buffer_info()[0]


@contextlib.contextmanager
def counted(word: int) -> Iterator[None]:
    """Adds 1 to a word while the block runs."""
    count(word, 1)
    try:
        yield
    finally:
        count(word, -1)


def count(word: int, change: int) -> None:
    """Add to a word, whatever other threads do."""
    with _lock:
        words[word] += change
    if word == OBSERVERS:
        _mine.observers = getattr(_mine, "observers", 0) + change


class Counted(Protocol):
    """A thread's own count of its tapes."""

    tapes: int


def count_tapes(mine: Counted, change: int) -> None:
    """Add to the observers, and to a thread's own count of them. No exception of a signal comes between the two: Python
    looks for signals where functions are called and where loops turn.
    """
    _mine.counted = mine
    with _lock:
        words[OBSERVERS] += change
        mine.tapes += change


def release_observers(number: int) -> None:
    """Take away observers of a thread that has ended, with none of its tapes closed."""
    with _lock:
        words[OBSERVERS] -= number


def _forget_others() -> None:
    """A forked child goes on with the observers of its own thread; other threads of the parent are not there."""
    global _lock
    _lock = threading.Lock()
    counted: Counted | None = getattr(_mine, "counted", None)
    words[OBSERVERS] = getattr(_mine, "observers", 0) + (counted.tapes if counted is not None else 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_others)
