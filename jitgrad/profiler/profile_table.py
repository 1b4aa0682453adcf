"""The table of a profile: rows of times and rates as text, coloured where a terminal shows it; it measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jitgrad.config import get_num_threads
from jitgrad.profiler.events import Event
from jitgrad.profiler.limits import Limits, machine_limits
from jitgrad.profiler.ranking import Row, rank
from jitgrad.profiler.tables import seconds_text, text_table

HEADS = ("", "kind", "count", "time", "share", "GB/s", "of memory", "GFLOP/s", "of BLAS", "lines")


def profile_table(events: Sequence[Event], by: str, most: int) -> str:
    """Rows in falling order of time, and what the rest comes to."""
    rows = rank(events, by)
    limits = machine_limits(get_num_threads())
    cells = [table_cells(row, limits) for row in rows[:most]]
    table = [(by, *HEADS[1:]), *cells]
    text = _coloured(table) if sys.stdout.isatty() else None
    text = text or text_table(table)
    rest = rows[most:]
    if rest:
        text += f"\nand {len(rest)} more, {seconds_text(sum(row.seconds for row in rest))}"
    return text


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


def _coloured(table: Sequence[Sequence[str]]) -> str | None:
    """The table as ``rich`` draws it; None without ``rich``."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return None
    made = Table(header_style="bold", box=None)
    for k, head in enumerate(table[0]):
        made.add_column(head, justify="left" if k in (0, 1, len(table[0]) - 1) else "right", overflow="fold")
    for row in table[1:]:
        made.add_row(*row)
    console = Console()
    with console.capture() as capture:
        console.print(made)
    return str(capture.get()).rstrip("\n")
