"""Recording: where the library says what it does while a profile runs; it keeps nothing, and knows no profile.

A record is (kind, name, start, end, thread, source): times in nanoseconds of ``time.perf_counter_ns``, the thread as
``threading.get_ident`` numbers it, and an object from which more can be read later, when nobody waits. Without a
profile a ``span`` notes its name for the progress line, and looks twice at an empty tuple. Calls that machine code
takes are not told one by one: it writes them into a journal, and that is told, as a record of kind "journal".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from jitgrad import conditions, journal, progress

Record = tuple[str, str, int, int, int, Any]
Sink = Callable[[Record], None]

sinks: tuple[Sink, ...] = ()

_muted: list[int] = []  # threads that are not listened to


def add_sink(sink: Sink) -> None:
    """Hand every record to ``sink`` too, from now on, of all threads."""
    global sinks
    sinks = (*sinks, sink)
    journal.open_journal(_tell_journal)


def remove_sink(sink: Sink) -> None:
    """Hand it no more; ValueError when it gets none."""
    global sinks
    if sink not in sinks:
        raise ValueError("this sink gets no records")
    sinks = tuple(s for s in sinks if s != sink)
    if sinks:
        journal.open_journal(_tell_journal)
    else:
        journal.close_journal()


def _tell_journal(opened: journal.Journal) -> None:
    """A journal holds what happens from now on: those who listen later, or no more, get another one."""
    now = perf_counter_ns()
    made = ("journal", "", now, now, get_ident(), opened)
    for sink in sinks:
        sink(made)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """What this thread does in the block is recorded by nobody: a profile that is read while it runs measures too.
    Python takes all calls meanwhile.
    """
    mine = get_ident()
    _muted.append(mine)
    try:
        with conditions.counted(conditions.OBSERVERS):
            yield
    finally:
        _muted.remove(mine)


def record(kind: str, name: str, start: int, end: int, source: Any = None) -> None:
    """Tell all profiles that run of something that is over."""
    thread = get_ident()
    if _muted and thread in _muted:
        return
    made = (kind, name, start, end, thread, source)
    for sink in sinks:
        sink(made)


class span:  # noqa: N801  used like a keyword
    """``with span("simplify", "main"):`` records the block, also when it ends by an exception."""

    __slots__ = ("kind", "name", "source", "start")

    def __init__(self, kind: str, name: str, source: Any = None) -> None:
        self.kind = kind
        self.name = name
        self.source = source

    def __enter__(self) -> None:
        progress.latest = (self.kind, self.name)
        self.start = perf_counter_ns() if sinks else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sinks and self.start:
            record(self.kind, self.name, self.start, perf_counter_ns(), self.source)
