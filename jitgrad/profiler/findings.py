"""Findings: why a run was slow, as sentences that name the user's line and what to do; only what the records show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jitgrad.profiler.events import COMPILE, TRACE, WORK, Event, outermost
from jitgrad.profiler.ranking import exclusive
from jitgrad.profiler.resolving import executables
from jitgrad.profiler.surroundings import Surroundings
from jitgrad.profiler.tables import bytes_text, seconds_text
from jitgrad.recording import Record

_FEW = 5
_LONG = 0.05  # seconds of tracing and compiling that are worth a word


def find(records: Sequence[Record], events: Sequence[Event], around: Surroundings) -> Iterator[str]:
    """All findings, those about the whole run first."""
    yield from _compile_time(events, around.is_cached)
    yield from _retraces(events)
    yield from _threads(around)
    yield from _interpreted(records, events)
    yield from _copies(records)
    yield from _cuts(records)
    yield from _denormals(records)


def _compile_time(events: Sequence[Event], is_cached: bool) -> Iterator[str]:
    own = exclusive(events)
    making = sum(ns for e, ns in zip(events, own, strict=True) if e.phase in (TRACE, COMPILE)) * 1e-9
    work = sum(ns for e, ns in zip(events, own, strict=True) if e.kind in WORK) * 1e-9
    if making > work > 0 and making > _LONG:
        advice = "call the function more often" + ("" if is_cached else ", or keep the cache on disk (JITGRAD_CACHE=1)")
        most = _mostly_compiled(events)
        where = f", most of it for {most}" if most else ""
        took = f"{seconds_text(making)}{where}; all runs together {seconds_text(work)}"
        yield f"tracing and compiling took {took}: {advice}"


def _mostly_compiled(events: Sequence[Event]) -> str:
    """What was traced and compiled longest, with the user's line; nothing where it was outside of calls."""
    roots = outermost(events)
    called = {r: f"{e.facts['of']}, called at {e.facts['line']}" for e, r in zip(events, roots, strict=True)
              if e.kind == "trace" and "of" in e.facts}  # fmt: skip
    seconds: Counter[str] = Counter()
    for e, own, root in zip(events, exclusive(events), roots, strict=True):
        if e.phase in (TRACE, COMPILE) and events[root].kind == "call":
            seconds[called.get(root, events[root].name)] += own
    return seconds.most_common(1)[0][0] if seconds else ""


def _retraces(events: Sequence[Event]) -> Iterator[str]:
    """Functions are told apart by where they were written: many are called <lambda>."""
    again: dict[str, list[Mapping[str, Any]]] = {}
    for e in events:
        if e.kind == "trace" and e.facts.get("why"):
            again.setdefault(str(e.facts["of"]), []).append(e.facts)
    for name, facts in again.items():
        [(reason, line), _], *_ = Counter((str(f["why"]), str(f["line"])) for f in facts).most_common(1)
        times = f"{len(facts)} times" if len(facts) > 1 else "once more"
        mostly = "mostly " if len(facts) > 1 else ""
        yield (
            f"{name} was traced {'again ' * (len(facts) > 1)}{times}, {mostly}for the call at {line}, since {reason}: "
            "make what changes an array of one shape"
        )


def _threads(around: Surroundings) -> Iterator[str]:
    threads, cpus = around.threads, around.cpus
    if threads > cpus:
        yield f"{threads} threads share {cpus} processors and wait for one another: use jg.set_num_threads({cpus})"
    if around.load > cpus + 0.5:
        yield f"the machine was busy: {around.load:.1f} processes want its {cpus} processors, so times are too long"


def _interpreted(records: Sequence[Record], events: Sequence[Event]) -> Iterator[str]:
    reasons = dict(_reasons(records))
    seconds: dict[tuple[str, str], float] = {}
    for e, own in zip(events, exclusive(events), strict=True):
        if e.kind == "numpy" and e.shares:
            key = (e.shares[0].op, e.shares[0].line)
            if "why" in e.facts:
                reasons[key] = str(e.facts["why"])
            seconds[key] = seconds.get(key, 0.0) + own * 1e-9
    for (op, line), time in sorted(seconds.items(), key=lambda item: -item[1])[:_FEW]:
        why = reasons.get((op, line), "it is outside compiled scopes")
        yield f"{op} at {line} ran in NumPy for {seconds_text(time)}: {why}"


def _reasons(records: Sequence[Record]) -> Iterator[tuple[tuple[str, str], str]]:
    from jitgrad.profiler.details import share_of

    for executable in executables(records):
        compiled = executable.compiled
        for reason in compiled.clustering.reasons:
            if len(reason.instructions) == 1:
                share = share_of(compiled.program.instructions[reason.instructions[0]])
                yield (share.op, share.line), reason.text


def _copies(records: Sequence[Record]) -> Iterator[str]:
    for executable in executables(records):
        program = executable.compiled.program
        for step, bound in zip(executable.compiled.steps, executable.bound.steps, strict=True):
            copied = getattr(bound, "copied", ())
            for v, *_ in () if isinstance(step, int) else copied:
                producer = program.producers().get(v)
                line = "" if producer is None else f" of {program.instructions[producer].origin}"
                size = bytes_text(program.specs[v].nbytes)
                yield f"the output{line} ({size}) is copied after the run: it shares memory with another value"


def _cuts(records: Sequence[Record]) -> Iterator[str]:
    found: dict[str, None] = {}
    for executable in executables(records):
        found |= dict.fromkeys(r.text for r in executable.compiled.clustering.reasons if len(r.instructions) > 1)
    for text in list(found)[:_FEW]:
        yield f"one scope became several native calls: {text}"


def _denormals(records: Sequence[Record]) -> Iterator[str]:
    places: Counter[str] = Counter()
    for kind, _, _, _, _, source in records:
        if kind == "denormals":
            program = source.executable.compiled.program
            producer = program.producers().get(source.value)
            places["an argument" if producer is None else str(program.instructions[producer].origin)] += 1
    for where, _ in places.most_common(_FEW):
        yield f"{where} holds denormal numbers, which processors are many times slower with: scale the values up"
