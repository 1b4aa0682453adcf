"""Comparison: the figures of one call run in several ways, as a table or a page; it measures nothing."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jitgrad.profiler.page import code, folded, page, paragraph, section, table
from jitgrad.profiler.tables import bytes_text, machine_text, text_table
from jitgrad.profiler.timing import Times
from jitgrad.profiler.work import Work
from jitgrad.records import dataclass

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
    "residuals",
    "difference",
)


_WORTH = 1.03  # ratios of times below this are no reason


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
    """A call run interpreted, fused with separate gradients and fused merged; ``print`` shows its table.

    ``executables`` are those of the merged run, for its pictures, which a pickle does not hold.
    """

    name: str
    rows: tuple[Measurement, ...]
    executables: tuple[Any, ...] = ()

    def __reduce__(self) -> Any:
        return Comparison, (self.name, self.rows)

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

    @property
    def advice(self) -> str:
        """Which way to use and why, in one sentence."""
        fused = (self.merged, self.separate)
        best, other = sorted(fused, key=lambda row: row.times.median)
        gain = other.times.median / best.times.median
        if _overlap(best.times, other.times) or gain < _WORTH:
            best = self.merged
            why = f"as fast as the other within the spread of the times, with {_saved(self.merged, self.separate)}"
        else:
            why = f"{gain:.2f} times as fast as {other.name}, with {_saved(best, other)}"
        if self.interpreted.times.median < best.times.median:
            return f"Use the interpreter here (f.interpret): {best.name} takes longer; NumPy's calls do all the work."
        return f"Use {best.name}: {why}."

    def table(self) -> str:
        """The figures as text: one row per way to run the call."""
        return text_table([COLUMNS, *(self._cells(row) for row in self.rows)])

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the table, a chart of the times and the kernels as one page that needs no other file."""
        Path(path).write_text(self._page(), encoding="utf-8")

    def __str__(self) -> str:
        return f"{self.table()}\n{self.advice}"

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
            bytes_text(work.residual_bytes),
            _difference_text(row.difference),
        )

    def _page(self) -> str:
        slowest = max(row.times.median for row in self.rows)
        kernels = [folded(f"{row.name}: kernels", code(row.fusion)) for row in self.rows if row.fusion]
        parts = [
            paragraph(machine_text(), "soft"),
            paragraph(self.advice),
            table(COLUMNS, [self._cells(row) for row in self.rows]),
            section("Time of a call", *(_bar(row, slowest) for row in self.rows), paragraph(_NOTE, "soft")),
            section("What was compiled", *self._pictures(), *kernels),
        ]
        return page(f"jitgrad: {self.name}", parts)

    def _pictures(self) -> Iterator[str]:
        from jitgrad.profiler.page_pictures import picture_parts
        from jitgrad.profiler.planned_picture import picture_of

        for number, made in enumerate(self.executables):
            yield picture_parts(picture_of(made.compiled), f"program-{number}")


def _overlap(a: Times, b: Times) -> bool:
    return a.low <= b.high and b.low <= a.high


def _saved(a: Measurement, b: Measurement) -> str:
    """What differs in the work of two ways to run."""
    ours, theirs = a.work, b.work
    found = []
    if ours.launches != theirs.launches:
        found.append(f"{ours.launches} launch{'es' * (ours.launches != 1)} in place of {theirs.launches}")
    if bytes_text(ours.bytes_moved) != bytes_text(theirs.bytes_moved):
        found.append(f"{bytes_text(ours.bytes_moved)} moved in place of {bytes_text(theirs.bytes_moved)}")
    return " and ".join(found) or "as many launches and bytes moved"


def _bar(row: Measurement, slowest: float) -> str:
    width = 60 * row.times.median / slowest
    text = html.escape(f"{row.name}: {row.times}")
    return f'<div><span class="bar" style="width:{width:.1f}%"></span> {text}</div>'


def _difference_text(difference: float | None) -> str:
    if difference is None:
        return "-"
    return "none" if difference == 0 else f"{difference:.1e}"


_NOTE = (
    "Median of calls made in turns, with quartiles. Moved: arrays read and written by each kernel, BLAS call and NumPy "
    "call, counted once each. Peak memory: beyond the arguments. Residuals: what forward ops leave in memory for "
    "gradient ops. Difference: the largest to the interpreter's results, relative to each array's largest magnitude."
)
