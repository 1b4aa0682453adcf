"""Python's cyclic garbage collector, held off while a graph or a program is worked on; it collects nothing itself.

Compiling makes many objects and little garbage. The collector looks at the young ones again and again, and now and
then at all: a third of the time that the compiler's own stages take in a graph of 30,000 operations.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MOST_ASKED = 2  # times in a process: its import and its first call; each puts off the next look at all objects
_PUT_ASIDE_BY_PYTHON = 1000  # at most: some versions of 3.12 begin with 375 objects put aside
_asked = 0


@contextlib.contextmanager
def collection_paused(are_kept: bool = False) -> Iterator[None]:
    """No automatic collection inside; afterwards as before, after an error too. May be nested and used by threads.

    ``are_kept``: what is made inside lives long. It is put among the oldest objects, without the looks on the way there
    (0.5 to 1 ms for a first call, 2 for the import), unless the user has put objects aside by ``gc.freeze()``.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        if are_kept:
            _keep()
    finally:
        gc.enable()


def _keep() -> None:
    """Put all objects among the oldest: aside, and back, which is a change of two lists.

    Whether there are objects of the user's own aside is asked as seldom: Python counts them one by one, 4 ms for half
    a million, which every first call of a server that has put its objects aside would take.
    """
    global _asked
    if _asked >= _MOST_ASKED:
        return
    _asked += 1
    if gc.get_freeze_count() <= _PUT_ASIDE_BY_PYTHON:
        gc.freeze()
        gc.unfreeze()
