"""The table of a profile: rows of times and rates as text, coloured where a terminal shows it; it measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from jitgrad.config import get_num_threads
from jitgrad.profiler.events import Event
from jitgrad.profiler.limits import Limits, RunLimits, limits_of_run
from jitgrad.profiler.ranking import Row, rank
from jitgrad.profiler.tables import seconds_text, text_table

MOST_ROWS = 30
HEADS = ("", "kind", "count", "time", "share", "GB/s", "of memory", "GFLOP/s", "of BLAS", "lines")


def profile_table(events: Sequence[Event], by: str, most: int) -> str:
    """Rows in falling order of time, and what the rest comes to, as plain text."""
    return _table(events, by, most, text_table)


def shown_table(events: Sequence[Event], by: str, most: int = MOST_ROWS) -> str:
    """The same for people: with colours where standard output is a terminal and ``rich`` is installed."""
    return _table(events, by, most, _coloured if sys.stdout.isatty() else text_table)


def _table(events: Sequence[Event], by: str, most: int, layout: Callable[[Sequence[Sequence[str]]], str]) -> str:
    rows = rank(events, by)
    held = run_limits(events)
    text = layout([(by, *HEADS[1:]), *(table_cells(row, held.limits) for row in rows[:most])])
    rest = rows[most:]
    if rest:
        text += f"\nand {len(rest)} more, {seconds_text(sum(row.seconds for row in rest))}"
    return f"{text}\n{held.note}" if held.note and any(row.kind == "blas" for row in rows) else text


def run_limits(events: Sequence[Event]) -> RunLimits:
    """The limits that the rates of these events are held against, so that no product shows more than 100 %."""
    rates: dict[str, float] = {}
    for row in (row for by in ("kernel", "op") for row in rank(events, by) if row.kind == "blas"):
        rates[row.dtype] = max(rates.get(row.dtype, 0.0), row.flops_per_second)
    return limits_of_run(get_num_threads(), rates)


def table_cells(row: Row, limits: Limits) -> tuple[str, ...]:
    """A row as text: rates, and their share of the machine's; more than 100 % of memory means caches."""
    has_bytes, has_flops = row.nbytes > 0, row.flops > 0
    return (
        row.name,
        row.kind,
        str(row.count),
        seconds_text(row.seconds),
        f"{100 * row.share:.1f}%",
        f"{row.bytes_per_second / 1e9:.3g}" if has_bytes else "-",
        f"{100 * row.bytes_per_second / limits.bytes_per_second:.0f}%" if has_bytes else "-",
        f"{row.flops_per_second / 1e9:.3g}" if has_flops else "-",
        f"{100 * row.flops_per_second / limits.flops_per_second(row.dtype):.0f}%" if row.kind == "blas" else "-",
        _lines_text(row.lines),
    )


def _lines_text(lines: Sequence[str]) -> str:
    return ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")


def _coloured(table: Sequence[Sequence[str]]) -> str:
    """The table as ``rich`` draws it, as wide as its cells are; plain text without ``rich``."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return text_table(table)
    made = Table(header_style="bold", box=None)
    for k, head in enumerate(table[0]):
        made.add_column(head, justify="left" if k in (0, 1, len(table[0]) - 1) else "right", no_wrap=True)
    for row in table[1:]:
        made.add_row(*map(Text, row))
    console = Console(width=len(text_table(table).split("\n")[1]) + 2 * len(table[0]))
    with console.capture() as capture:
        console.print(made)
    return str(capture.get()).rstrip("\n")
