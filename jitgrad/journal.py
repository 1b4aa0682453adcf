"""The journal: memory in which machine code writes down the calls that it takes while a profile runs. Which calls are
meant is found out when it is read; nothing is measured here.

    memory  = USED CAPACITY SERIAL, then records one behind the other up to the word that USED counts
    record  = NUMBER STEPS THREAD START END, then STEPS + 1 stamps: when the run began, and when each step was over

Times are nanoseconds of the clock of ``time.perf_counter_ns``; END is 0 while the call runs. Room for a record is
taken by a thread that holds the GIL. Where there is none, or where the journal does not know the call yet, machine code
asks ``admit``, which may put another journal in its place. A writer goes on in the memory in which it began. Once
``MOST_WORDS`` are written the journal is closed, and calls are no longer written down.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from jitgrad import conditions
from jitgrad.records import NamedTuple

USED, CAPACITY, SERIAL, FIRST = range(4)
NUMBER, STEPS, THREAD, START, END, STAMPS = range(6)

MOST_WORDS = 1 << 19  # between two openings: some 20,000 calls of 20 kernels
_WORDS = 1 << 16
_serials = itertools.count(1)
_THREAD_BITS = (1 << 64) - 1


class Written(NamedTuple):
    """A call as it was written down: what it ran (see Source), its thread, and its times."""

    source: Any
    thread: int
    start: int
    end: int
    stamps: list[int]


class Admitted(Protocol):
    """Who writes: a number that no other has, and what it stands for, as long as that is there."""

    number: int

    def source(self) -> Any:
        """What a profile keeps of its calls."""

    def enter(self, journal: Journal) -> None:
        """Note that the journal knows it, and keep its memory for calls that run."""


class Journal:
    """One stretch of the record, of at least so many words."""

    def __init__(self, nwords: int = 0) -> None:
        self.memory = np.zeros(max(_WORDS, FIRST + nwords), np.int64)
        self.memory[:FIRST] = FIRST, len(self.memory), next(_serials)
        self.is_last = False  # whether calls after it went unwritten
        self._sources: dict[int, Any] = {}

    @property
    def address(self) -> int:
        """Where the memory lies."""
        return int(self.memory.ctypes.data)

    @property
    def serial(self) -> int:
        """The number by which machine code tells journals apart."""
        return int(self.memory[SERIAL])

    @property
    def used(self) -> int:
        """How many words are taken."""
        return int(self.memory[USED])

    def has_room(self, nwords: int) -> bool:
        """Whether so many more words fit."""
        return self.used + nwords <= len(self.memory)

    def admit(self, writer: Admitted) -> None:
        """Know a writer from now on."""
        self._sources[writer.number] = writer.source()
        writer.enter(self)

    def sources(self) -> list[Any]:
        """What those stand for who have written."""
        return list(self._sources.values())

    def written(self) -> Iterator[Written]:
        """The calls that are over."""
        words = self.memory[: self.used].tolist()
        at = FIRST
        while at < len(words):
            number, steps, thread, start, end = words[at : at + STAMPS]
            after = at + STAMPS + steps + 1
            if end:
                stamps = words[at + STAMPS : after]
                yield Written(self._sources[number], thread & _THREAD_BITS, start, end, stamps)
            at = after


latest: Journal | None = None
"""The one in use, while a profile runs."""

_listener: Callable[[Journal], None] | None = None
_written = 0


def open_journal(tell: Callable[[Journal], None]) -> None:
    """Let machine code write into a new journal, and into others after it; ``tell`` hears of each."""
    global _listener, _written
    _listener, _written = tell, 0
    _open_next(tell, 0)


def _open_next(tell: Callable[[Journal], None], nwords: int) -> None:
    global latest
    latest = Journal(nwords)
    tell(latest)
    conditions.words[conditions.JOURNAL] = latest.address


def close_journal() -> None:
    """Let it write no more. Calls that run still end their records."""
    global latest, _listener
    conditions.words[conditions.JOURNAL] = 0
    latest = _listener = None


def admit(writer: Admitted, nwords: int) -> None:
    """Make room for so many words, and make the journal know the writer: for machine code, which tries again."""
    global _written
    if latest is None or _listener is None:
        return
    if not latest.has_room(nwords):
        _written += latest.used
        if _written > MOST_WORDS:
            latest.is_last = True
            close_journal()
            return
        _open_next(_listener, nwords)
    latest.admit(writer)
