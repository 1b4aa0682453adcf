"""The word by which a step of a region is told to ask for lines of memory while it works, so that they are in the
second cache when they are read: which slot of the table holds the address of the first, and how many bytes belong to
each of the rows that it works on. What is asked for is decided elsewhere (freezing/next_chunks.py).
"""

from __future__ import annotations

ASKED_SLOT = 32  # bits below the number of the slot, which is never 0: no word is less than a line


def asked_word(slot: int, nbytes: int) -> int:
    """The word; 0 where nothing is asked for."""
    return (slot << ASKED_SLOT) + nbytes if nbytes else 0
