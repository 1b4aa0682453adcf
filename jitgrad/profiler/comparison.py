"""Comparison: the figures of one call run in several ways, as a table or a page; it measures nothing."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jitgrad.profiler.tables import bytes_text, machine_text, text_table
from jitgrad.profiler.timing import Times
from jitgrad.profiler.work import Work

COLUMNS = (
    "",
    "time (quartiles)",
    "speed",
    "kernels",
    "BLAS calls",
    "NumPy calls",
    "launches",
    "moved",
    "peak memory",
    "difference",
)


@dataclass(frozen=True)
class Measurement:
    """One way to run the call.

    ``difference`` is the largest one to the interpreter's results, relative to the array's largest magnitude;
    None for the interpreter itself. ``fusion`` tells which kernels run.
    """

    name: str
    times: Times
    work: Work
    difference: float | None
    fusion: str


@dataclass(frozen=True)
class Comparison:
    """A call run interpreted, fused with separate gradients and fused merged; ``print`` shows its table."""

    name: str
    rows: tuple[Measurement, ...]

    @property
    def interpreted(self) -> Measurement:
        """Op by op in NumPy."""
        return self.rows[0]

    @property
    def separate(self) -> Measurement:
        """Fused, forward and gradient apart."""
        return self.rows[1]

    @property
    def merged(self) -> Measurement:
        """Fused, forward and gradient together."""
        return self.rows[2]

    def table(self) -> str:
        """The figures as text: one row per way to run the call."""
        return text_table([COLUMNS, *(self._cells(row) for row in self.rows)])

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the table, a chart of the times and the kernels as one page that needs no other file."""
        Path(path).write_text(self._page(), encoding="utf-8")

    def __str__(self) -> str:
        return self.table()

    def _cells(self, row: Measurement) -> tuple[str, ...]:
        work = row.work
        speed = self.interpreted.times.median / row.times.median
        return (
            row.name,
            str(row.times),
            f"{speed:.2f}x",
            str(work.kernels),
            str(work.products),
            str(work.numpy_calls),
            str(work.launches),
            bytes_text(work.bytes_moved),
            bytes_text(work.peak_bytes),
            _difference_text(row.difference),
        )

    def _page(self) -> str:
        slowest = max(row.times.median for row in self.rows)
        return _PAGE.format(
            title=html.escape(f"jitgrad: {self.name}"),
            machine=html.escape(machine_text()),
            head=_row("th", COLUMNS),
            body="\n".join(_row("td", self._cells(row)) for row in self.rows),
            bars="\n".join(_bar(row, slowest) for row in self.rows),
            kernels="\n".join(_details(row) for row in self.rows if row.fusion),
        )


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _bar(row: Measurement, slowest: float) -> str:
    width = 60 * row.times.median / slowest
    text = html.escape(str(row.times))
    name = f"<span>{html.escape(row.name)}</span>"
    return f'<div class="bar">{name}<i style="width:{width:.1f}%"></i> {text}</div>'


def _details(row: Measurement) -> str:
    return f"<details><summary>{html.escape(row.name)}: kernels</summary><pre>{html.escape(row.fusion)}</pre></details>"


def _difference_text(difference: float | None) -> str:
    if difference is None:
        return "-"
    return "none" if difference == 0 else f"{difference:.1e}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ccc; }}
th:first-child, td:first-child {{ text-align: left; }}
.bar {{ margin: .3rem 0; }} .bar span {{ display: inline-block; width: 15rem; }}
.bar i {{ display: inline-block; height: .9rem; background: #4878a8; vertical-align: middle; }}
pre {{ overflow-x: auto; background: #f5f5f5; padding: 1rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{machine}</p>
<table><thead>{head}</thead><tbody>
{body}
</tbody></table>
<h2>Time of a call</h2>
{bars}
<p>Median of calls made in turns, with quartiles. Moved: arrays read and written by each kernel, BLAS call and
NumPy call, counted once each. Peak memory: beyond the arguments. Difference: the largest to the interpreter's
results, relative to the largest magnitude of each array.</p>
{kernels}
</body></html>
"""
