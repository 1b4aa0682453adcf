"""What machine code looks at before it takes a call, as words of memory: traces under way (and tapes and searches for
NaN, which must see every call as well: Python takes all calls meanwhile), blocks with settings of their own, threads of
the process, where calls are to be written down. Who sets them decides what they mean; nothing is read here.
"""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Iterator

TRACES, BLOCKS, THREADS, JOURNAL = range(4)

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
    if word == TRACES:
        _mine.traces = getattr(_mine, "traces", 0) + change


def _forget_others() -> None:
    """A forked child goes on with the traces of its own thread; those of the parent's other threads are not there."""
    global _lock
    _lock = threading.Lock()
    words[TRACES] = getattr(_mine, "traces", 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_others)
