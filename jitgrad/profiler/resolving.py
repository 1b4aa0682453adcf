"""Resolving: the bare records of a run become events with phases, bytes, operations and lines, when nobody waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.eager.timing import EagerRun
from jitgrad.interpreter import InterpretedRun
from jitgrad.journal import Journal, Written
from jitgrad.profiler.details import Detail, eager_detail, interpreted_detail, operation_detail, step_details
from jitgrad.profiler.events import CALL, COMPILE, TRACE, Event
from jitgrad.profiler.loops import latest_steps
from jitgrad.recording import Record
from jitgrad.running import OperationRun

_NONE: Mapping[str, Any] = {}
_PHASES = {"call": CALL, "native": CALL, "trace": TRACE}


def resolve(records: Sequence[Record]) -> tuple[Event, ...]:
    """Events in the order in which they began, each with the number of the one around it."""
    details: dict[Any, Any] = {}
    found = [event for record in records for event in _events(record, details)]
    return tuple(_nested(found))


def executables(records: Sequence[Record]) -> list[Any]:
    """The executables that the records tell of, each once."""
    return list(dict.fromkeys(found for _, _, _, _, _, source in records for found in _executables(source)))


def count(records: Sequence[Record]) -> int:
    """A number that grows with what the records tell."""
    return len(records) + sum(source.used for _, _, _, _, _, source in records if isinstance(source, Journal))


def any_unwritten(records: Sequence[Record]) -> bool:
    """Whether machine code took calls that are in no journal, since there had been too many."""
    return any(isinstance(source, Journal) and source.is_last for _, _, _, _, _, source in records)


def _executables(source: Any) -> Iterator[Any]:
    if isinstance(source, Journal):
        yield from (run.executable for _, run in source.sources())
    elif hasattr(source, "executable"):
        yield source.executable


def _events(record: Record, details: dict[Any, Any]) -> Iterator[Event]:
    kind, name, start, end, thread, source = record
    if kind == "journal":
        for written in source.written():
            yield from _written(written, details)
    elif kind == "native":
        yield from _native(name, start, end, thread, source, details)
    elif kind == "numpy" and source is not None:
        yield _interpreted(name, source, start, end, thread, details)
    else:
        facts = source if isinstance(source, dict) else {}
        yield Event(kind, name, start, end - start, thread, _PHASES.get(kind, COMPILE), facts=facts)


def _written(call: Written, details: dict[Any, Any]) -> Iterator[Event]:
    """A call that machine code took, and what it ran."""
    name, run = call.source
    yield Event("call", name, call.start, call.end - call.start, call.thread, CALL)
    run = run._replace(stamps=call.stamps)
    yield from _native(f"cluster {run.number}", call.stamps[0], call.stamps[-1], call.thread, run, details)


def _native(
    name: str, start: int, end: int, thread: int, source: Any, details: dict[Any, Any]
) -> Iterator[Event]:
    scope = source.executable.compiled.steps[source.number].cluster.scope
    yield Event("native", name, start, end - start, thread, CALL, scope=scope)
    yield from _steps(source, thread, details)


def _interpreted(name: str, source: Any, start: int, end: int, thread: int, details: dict[Any, Any]) -> Event:
    """An op that NumPy ran: of an executable, of a program that was interpreted, or of none."""
    match source:
        case InterpretedRun(program, number):
            key, facts = (id(program), number), {"why": "the run was interpreted, not compiled"}
        case EagerRun():
            return _worked(eager_detail(name, source), start, end, thread, {"why": "eager operations run one by one"})
        case OperationRun():
            detail = operation_detail(*source)
            return _worked(detail, start, end, thread, {"why": "its shapes are known only once it has run"})
        case _:
            compiled = source.executable.compiled
            program, number = compiled.program, compiled.steps[source.number]
            key, facts = (id(source.executable), source.number), {}
    if key not in details:
        details[key] = interpreted_detail(program, number)
    return _worked(details[key], start, end, thread, facts)


def _steps(run: Any, thread: int, details: dict[Any, Any]) -> Iterator[Event]:
    """The kernels, BLAS calls and loops of a native call, between its stamps."""
    key = (id(run.executable), run.number)
    bound = run.executable.bound.steps[run.number]
    if key not in details:
        compiled = run.executable.compiled
        found = step_details(compiled.program, compiled.steps[run.number])
        details[key] = found, [_facts(found, bound, k) for k in range(len(bound.origins))]
    known, facts = details[key]
    for numbers, told, start, end in zip(bound.origins, facts, run.stamps, run.stamps[1:], strict=False):
        yield from _shared([known[number] for number in numbers], start, end, thread, told)


def _facts(details: Sequence[Detail], bound: BoundCluster, place: int) -> Mapping[str, Any]:
    """What is known of a step only after it ran: of a loop that is no kernel, how many steps it took the last time."""
    if not bound.names[place].startswith("loop_"):
        return _NONE
    return {"steps of the latest run": latest_steps(bound, place)}


def _shared(
    details: Sequence[Detail], start: int, end: int, thread: int, facts: Mapping[str, Any]
) -> Iterator[Event]:
    """Steps that ran together, chunk by chunk, one after another: each with the time that its bytes would take."""
    if len(details) == 1:
        yield _worked(details[0], start, end, thread, facts)
        return
    weights = [1 + detail.nbytes_read + detail.nbytes_written for detail in details]
    for number, detail in enumerate(details):
        first, last = (start + (end - start) * sum(weights[:k]) // sum(weights) for k in (number, number + 1))
        yield _worked(detail, first, last, thread)


def _worked(detail: Detail, start: int, end: int, thread: int, facts: Mapping[str, Any] = _NONE) -> Event:
    return Event(
        detail.kind,
        detail.name,
        start,
        end - start,
        thread,
        detail.phase,
        detail.scope,
        None,
        detail.nbytes_read,
        detail.nbytes_written,
        detail.flops,
        detail.dtype,
        detail.shares,
        facts,
    )


def _nested(events: list[Event]) -> Iterator[Event]:
    """The events in order, with their parents: per thread, the innermost that has not ended."""
    around: dict[int, list[tuple[int, int]]] = {}  # thread → (number, end) of the events that contain this moment
    for number, event in enumerate(sorted(events, key=lambda e: (e.start, -e.duration))):
        stack, end = around.setdefault(event.thread, []), event.start + event.duration
        while stack and stack[-1][1] < end:
            stack.pop()
        yield _within(event, stack[-1][0]) if stack else event
        stack.append((number, end))


def _within(e: Event, parent: int) -> Event:
    """The event inside another; written out, since there are many, in a third of the time of ``replace``."""
    return Event(
        e.kind, e.name, e.start, e.duration, e.thread, e.phase, e.scope, parent, e.nbytes_read, e.nbytes_written,
        e.flops, e.dtype, e.shares, e.facts,
    )  # fmt: skip
