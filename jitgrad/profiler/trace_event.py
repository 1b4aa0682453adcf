"""Events as Trace Event JSON, which Perfetto and chrome://tracing open; it measures nothing.

The format: "Trace Event Format", Google, 2016: complete events ("X") with times in microseconds, metadata events ("M")
that name process and threads, and flow events ("s", "f") drawn as arrows, here from the forward work of a user's line
to the gradient work of the same line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from jitgrad.profiler.events import BACKWARD, BOTH, FORWARD, Event


def trace_events(events: Sequence[Event], process: str = "jitgrad") -> dict[str, Any]:
    """The JSON object of a trace; ``ts`` counts microseconds from the first event, ``tid`` threads from 1.

    The numbers that Python gives to threads are addresses: too long for viewers, which read them into 32 bits.
    """
    pid = os.getpid()
    begin = min((e.start for e in events), default=0)
    number = {thread: k for k, thread in enumerate(dict.fromkeys(e.thread for e in events), 1)}
    events = [replace(e, thread=number[e.thread]) for e in events]
    made = [_metadata(pid, 0, "process_name", process)]
    made += [_metadata(pid, t, "thread_name", f"thread {t}") for t in number.values()]
    made += [_complete(pid, begin, e) for e in events]
    made += _flows(pid, begin, events)
    return {"traceEvents": made, "displayTimeUnit": "ns"}


def _metadata(pid: int, tid: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": {"name": name}}


def _complete(pid: int, begin: int, e: Event) -> dict[str, Any]:
    facts: dict[str, Any] = {"phase": e.phase, **{key: _plain(value) for key, value in e.facts.items()}}
    if e.scope is not None:
        facts["scope"] = e.scope
    if e.nbytes:
        facts |= {"bytes read": e.nbytes_read, "bytes written": e.nbytes_written}
    if e.flops:
        facts["flops"] = e.flops
    if e.shares:
        facts |= {"ops": " ".join(share.op for share in e.shares), "lines": ", ".join(e.lines)}
    return {
        "ph": "X",
        "pid": pid,
        "tid": e.thread,
        "ts": (e.start - begin) / 1e3,
        "dur": e.duration / 1e3,
        "name": e.name,
        "cat": e.kind,
        "args": facts,
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _flows(pid: int, begin: int, events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """An arrow from the last forward event of a line to the next gradient event of that line, on the same thread."""
    forward: dict[tuple[int, str], Event] = {}
    number = 0
    for e in events:
        if e.phase == BACKWARD:
            for line in e.lines:
                before = forward.pop((e.thread, line), None)
                if before is not None:
                    number += 1
                    yield _arrow(pid, begin, before, "s", number)
                    yield _arrow(pid, begin, e, "f", number) | {"bp": "e"}
        elif e.phase in (FORWARD, BOTH):
            forward |= {(e.thread, line): e for line in e.lines}


def _arrow(pid: int, begin: int, e: Event, end: str, number: int) -> dict[str, Any]:
    moment = (e.start - begin + e.duration / 2) / 1e3
    return {"ph": end, "pid": pid, "tid": e.thread, "ts": moment, "id": number, "name": "gradient", "cat": "gradient"}
