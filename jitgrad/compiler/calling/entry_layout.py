"""Where the words of a call's description lie, for the code that reads them and for the packing; no code of its own."""

from __future__ import annotations

from enum import IntEnum, auto

CAPACITY = 64
"""Descriptions that a callable tries, the one that fitted last first."""

# The table of a callable: how many descriptions, how many calls were taken, then the addresses of the descriptions.
COUNT, CLOCK, FIRST_ENTRY = range(3)


class Word(IntEnum):
    """The words of a description. Addresses of objects are borrowed: OWNER keeps them all."""

    BUSY = 0  # address of a word that is 1 while a call runs on the frame
    STAMP = auto()  # the clock of the table when it was taken last
    OWNER = auto()
    POSITIONAL = auto()  # how many arguments by position, and by name
    NAMED = auto()
    PATTERNS = auto()  # nodes of the arguments by position, then name and node of those by name
    TABLE = auto()  # the frame: addresses of buffers, the status behind them
    HOLDS = auto()  # room for objects found in containers, in front of it their count
    FINISH = auto()  # a Python function of the list of the leaves, in place of all that follows; or 0
    NLEAVES = auto()
    STEPS = auto()
    NSTEPS = auto()
    WORKERS = auto()
    RELEASE = auto()
    ENTER = auto()  # the driver's function
    STATUS = auto()  # the word that a run reports in
    REPORT = auto()  # a Python function of that word, which raises; or 0
    NOUTPUTS = auto()
    OUTPUTS = auto()  # a record per output
    RESULTS = auto()  # room for the outputs as objects; null between calls
    BUILD = auto()  # how the result is put together from them
    STACK = auto()  # room for its parts
    NUMBER = auto()  # by which journals know it
    JOURNAL = auto()  # the serial number of the journal that knows it
    RECORDED = auto()  # how many calls were taken while a journal was open


# A record of an output: kind, slot, object (dtype, or taker), slot to copy from or -1, bytes, address of its SPARES
# objects (only of those that have them), rank, shape, strides in bytes.
FRESH, SPARED, POOLED, SCALAR = range(4)
SPARES_WORD, RANK_WORD = 5, 6
OUTPUT_WORDS = 7
SPARES = 3
"""Arrays kept per output: of `x, before = f(x), x` two are held while the third is filled."""

# Instructions that put a result together, on a stack: a leaf; an object; the last n parts as a tuple or list, or as a
# dict like the one that follows, whose n keys stand behind it; a Python function of the list of the last n parts.
LEAF, OBJECT, MAKE_TUPLE, MAKE_LIST, MAKE_DICT, MAKE, DONE = range(7)
