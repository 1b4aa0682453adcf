"""Python's cyclic garbage collector, held off while a graph or a program is worked on; it collects nothing itself.

Compiling makes many objects and little garbage. The collector looks at the young ones again and again, and now and
then at all: a third of the time that the compiler's own stages take in a graph of 30,000 operations.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No automatic collection inside; afterwards as before, after an error too. May be nested and used by threads."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
