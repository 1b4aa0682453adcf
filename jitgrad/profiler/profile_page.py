"""The page of a profile: findings, tables, timeline and pictures of what was compiled; it measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jitgrad.profiler.events import WORK, Event
from jitgrad.profiler.limits import Limits
from jitgrad.profiler.page import code, folded, items, page, paragraph, section, table, zoomable
from jitgrad.profiler.page_pictures import picture_parts
from jitgrad.profiler.planned_picture import picture_of
from jitgrad.profiler.profile_table import HEADS, run_limits, table_cells
from jitgrad.profiler.ranking import BY, exclusive, rank
from jitgrad.profiler.tables import machine_text, seconds_text
from jitgrad.profiler.timeline import MOST_BARS, keys, timeline, timeline_of_runs

_ROWS, _MOST_ROWS, _MOST_PICTURES = 15, 100, 12


def profile_page(title: str, events: Sequence[Event], findings: Sequence[str], executables: Sequence[Any]) -> str:
    """One HTML file that needs no other."""
    return page(title, _parts(events, findings, executables))


def _parts(events: Sequence[Event], findings: Sequence[str], executables: Sequence[Any]) -> Iterator[str]:
    held = run_limits(events)
    limits = held.limits
    yield paragraph(machine_text(), "soft")
    yield paragraph(_summary(events))
    if findings:
        yield section("What to look at", items(findings))
    yield section("Where the time went", *(folded(f"by {by}", _table(events, by, limits), by == "kernel") for by in BY))
    yield paragraph(
        f"Measured limits: {limits.bytes_per_second / 1e9:.3g} GB/s to and from memory (more than 100 % of it means "
        f"caches), {limits.float32_flops / 1e9:.3g} GFLOP/s in float32 and {limits.float64_flops / 1e9:.3g} in float64 "
        f"products. {f'{held.note}. ' if held.note else ''}A kernel's time is shared among its ops by estimated cost.",
        "soft",
    )
    note = f" (the {MOST_BARS} longest of {len(events)} events)" if len(events) > MOST_BARS else ""
    yield section(f"When{note}", f'<p class="soft">{keys()}</p>', zoomable(timeline(events)) if events else "")
    runs = timeline_of_runs(events)
    if runs:
        yield section("When, without the calls that traced or compiled", zoomable(runs))
    pictures = [_picture(k, made) for k, made in enumerate(executables[:_MOST_PICTURES])]
    yield section("What was compiled", *pictures)


def _summary(events: Sequence[Event]) -> str:
    calls = [e for e in events if e.kind == "call"]
    work = [ns for e, ns in zip(events, exclusive(events), strict=True) if e.kind in WORK]
    if not calls and not work:
        return "Nothing ran in this profile: was the compiled function called inside the block?"
    return (
        f"{len(calls)} calls, {seconds_text(sum(e.duration for e in calls) * 1e-9)}; in them {len(work)} kernels, "
        f"BLAS calls and NumPy calls, {seconds_text(sum(work) * 1e-9)}."
    )


def _table(events: Sequence[Event], by: str, limits: Limits) -> str:
    """The first rows, and the next ones folded."""
    head, rows = (by, *HEADS[1:]), [table_cells(row, limits) for row in rank(events, by)]
    shown = table(head, rows[:_ROWS], ("lines",))
    rest = rows[_ROWS:_MOST_ROWS]
    if not rest:
        return shown
    left_out = f" of {len(rows) - _ROWS}" if len(rows) > _MOST_ROWS else ""
    return shown + folded(f"the next {len(rest)}{left_out}", table(head, rest, ("lines",)))


def _picture(number: int, executable: Any) -> str:
    compiled = executable.compiled
    name = f"program {number}: {len(compiled.program.instructions)} ops"
    drawn = picture_parts(picture_of(compiled), f"program-{number}")
    return folded(
        name, drawn + folded("its kernels and what was not fused", code(executable.explanation.fusion)), not number
    )
