"""Comparison: the figures of one call run in several ways, as a table or a page; it measures nothing."""

from __future__ import annotations

import html
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jitgrad.config import get_num_threads
from jitgrad.profiler.timing import Times
from jitgrad.profiler.work import Work

COLUMNS = (
    "", "time (quartiles)", "speed", "kernels", "BLAS calls", "NumPy calls", "launches", "moved", "peak memory", "difference",
)  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """One way to run the call. ``difference`` is the largest one to the interpreter's results, relative to each array's
    largest magnitude; None for the interpreter itself. ``fusion`` tells which kernels run.
    """

    name: str
    times: Times
    work: Work
    difference: float | None
    fusion: str


@dataclass(frozen=True)
class Comparison:
    """A call run interpreted, fused with separate gradients and fused merged. ``print`` shows its table."""

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
        rows = [COLUMNS, *(self._cells(row) for row in self.rows)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(COLUMNS))]
        lines = [
            "  ".join(
                cell.rjust(width) if k else cell.ljust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the table, a chart of the times and the kernels of each run as one page that needs no other file."""
        Path(path).write_text(self._page(), encoding="utf-8")

    def __str__(self) -> str:
        return self.table()

    def _cells(self, row: Measurement) -> tuple[str, ...]:
        work = row.work
        speed = self.interpreted.times.median / row.times.median
        return (
            row.name, str(row.times), f"{speed:.2f}x", str(work.kernels), str(work.products), str(work.numpy_calls),
            str(work.launches), bytes_text(work.bytes_moved), bytes_text(work.peak_bytes), _difference_text(row.difference),
        )  # fmt: skip

    def _page(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
        body = "\n".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in self._cells(row)) + "</tr>" for row in self.rows
        )
        longest = max(row.times.high for row in self.rows)
        bars = "\n".join(
            f'<div class="bar"><span>{html.escape(row.name)}</span>'
            f'<i style="width:{60 * row.times.median / longest:.1f}%"></i> {html.escape(str(row.times))}</div>'
            for row in self.rows
        )
        kernels = "\n".join(
            f"<details><summary>{html.escape(row.name)}: kernels</summary><pre>{html.escape(row.fusion)}</pre></details>"
            for row in self.rows
            if row.fusion
        )
        return _PAGE.format(
            title=html.escape(f"jitgrad: {self.name}"), head=head, body=body, bars=bars, kernels=kernels,
            machine=html.escape(machine_text()),
        )  # fmt: skip


def _difference_text(difference: float | None) -> str:
    if difference is None:
        return "-"
    return "none" if difference == 0 else f"{difference:.1e}"


def bytes_text(nbytes: int) -> str:
    """A number of bytes in a unit that makes it readable."""
    amount, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):  # noqa: B007
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.3g} {unit}"


def machine_text() -> str:
    """Where and with what the figures were made."""
    return (
        f"{platform.machine()}, {os.cpu_count()} processors, {get_num_threads()} threads; "
        f"Python {platform.python_version()}, NumPy {np.__version__}"
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} th, td {{ padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ccc; }}
th:first-child, td:first-child {{ text-align: left; }}
.bar {{ margin: .3rem 0; }} .bar span {{ display: inline-block; width: 15rem; }}
.bar i {{ display: inline-block; height: .9rem; background: #4878a8; vertical-align: middle; }}
pre {{ overflow-x: auto; background: #f5f5f5; padding: 1rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{machine}</p>
<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table>
<h2>Time of a call</h2>
{bars}
<p>Median of calls made in turns, with quartiles. Moved: arrays read and written by each kernel, BLAS call and NumPy call, counted
once each. Peak memory: beyond the arguments. Difference: the largest to the interpreter's results, relative to the
largest magnitude of each array.</p>
{kernels}
</body></html>
"""
