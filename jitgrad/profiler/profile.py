"""profile(): a block whose traces, compilations, kernels and calls are gathered as events; it draws nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from jitgrad import eagerness, recording
from jitgrad.profiler.events import Event
from jitgrad.profiler.surroundings import Surroundings, surroundings

MOST_RECORDS = 500_000
_FULL = "the profile is full: it shows the beginning of the run, and nothing of what came later; profile fewer calls"


class Profile:
    """What happened in a ``with jg.profile() as prof:`` block, in all threads.

    It may be looked at while the block runs and after it. Blocks may nest; each gathers for itself. It holds some
    20,000 calls of 20 kernels; what comes then is not kept, and ``findings`` says so. RuntimeError when one profile is
    entered twice.
    """

    def __init__(self) -> None:
        self._records: list[recording.Record] = []
        self._is_full = False
        self._events: tuple[Event, ...] = ()
        self._resolved = 0
        self._is_open = False
        self._around: Surroundings | None = None

    def __enter__(self) -> Profile:
        if self._is_open:
            raise RuntimeError("this profile runs already; jg.profile() makes another one")
        self._is_open = True
        recording.add_sink(self._keep)
        eagerness.time_operations()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recording.remove_sink(self._keep)
        eagerness.time_operations()
        self._is_open = False
        self._around = surroundings()

    def _keep(self, record: recording.Record) -> None:
        if len(self._records) < MOST_RECORDS:
            self._records.append(record)
        else:
            self._is_full = True

    @property
    def events(self) -> tuple[Event, ...]:
        """All events so far, in the order in which they began; an event stands before those inside it."""
        from jitgrad.profiler.resolving import count, resolve

        records = self._records[:]
        if self._resolved != count(records):
            self._resolved = count(records)
            self._events = resolve(records)
        return self._events

    @property
    def findings(self) -> tuple[str, ...]:
        """Why it was slow, as far as it can be told: a sentence each, with the user's line."""
        from jitgrad.profiler.findings import find
        from jitgrad.profiler.resolving import any_unwritten

        around = surroundings() if self._around is None or self._is_open else self._around
        full = [_FULL] if self._is_full or any_unwritten(self._records) else []
        return (*full, *find(self._records, self.events, around))

    def table(self, by: str = "kernel", most: int = 30) -> str:
        """Time, rates and their share of what the machine can do, added up by kernel, op, line, scope or phase.

        At most ``most`` rows. ValueError for another ``by``.
        """
        from jitgrad.profiler.profile_table import profile_table

        return profile_table(self.events, by, most)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events as Trace Event JSON, for Perfetto or chrome://tracing. OSError where it cannot."""
        from jitgrad.profiler.trace_event import trace_events

        Path(path).write_text(json.dumps(trace_events(self.events)), encoding="utf-8")

    def save_html(self, path: str | os.PathLike[str], title: str = "jitgrad profile") -> None:
        """Write tables, timeline, findings and pictures of what was compiled as one page. OSError where it cannot."""
        from jitgrad.profiler.profile_page import profile_page

        Path(path).write_text(profile_page(title, self.events, self.findings, self.programs()), encoding="utf-8")

    def programs(self) -> Sequence[Any]:
        """The executables that ran, in the order of their first runs."""
        from jitgrad.profiler.resolving import executables

        return executables(self._records)

    def __str__(self) -> str:
        """The table by kernel, with colours where standard output is a terminal and ``rich`` is installed."""
        from jitgrad.profiler.profile_table import shown_table

        return shown_table(self.events, "kernel")

    def __repr__(self) -> str:
        return f"<profile of {len(self.events)} events>"


def profile() -> Profile:
    """``with jg.profile() as prof: step(params, x, y)`` gathers every trace, compilation, kernel, BLAS call and
    interpreted op of the block, with the user's lines; ``print(prof.table())`` tells where the time went.
    """
    return Profile()
