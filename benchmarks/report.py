"""The table of a run, as text and as Markdown, and its figures as JSON; it measures nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.frameworks import PEERS
from benchmarks.limits import Limit, limit_of, share_of_limit
from benchmarks.measure import Figures
from benchmarks.tables import aligned
from benchmarks.workload import Workload

NOTES = (
    "- Times are medians in ms, first and warm calls too, memory in MB; a dash stands for what was not measured. "
    "Value and gradient of each; all frameworks in processes of their own, called in turns.",
    "- faster: time of the best peer over jitgrad's, the median over the turns.",
    "- limit: the time that the work must take, the longer of two. One: all arguments read and all gradients written "
    "once, at the best rate for as many bytes in the same turns (L2, L3, memory: where so many bytes fit). The other: "
    "large products by NumPy's BLAS (BLAS), and other arithmetic at the rates of this machine's registers (ALU).",
    "- of limit: the shortest limit of a turn over jitgrad's median in it, the median over the turns.",
    "- first: tracing, gradient, compiling and running, with empty caches, in a process that has compiled something "
    "small before; the median of three of jitgrad and JAX. PyTensor's cache lasts for the run.",
    "- warm: in a new process, machine code on disk; the median of three.",
    "- peak: of resident memory, above the level after the import; arguments and results are part of it.",
    "- NumPy's times are those of a new process, which pays page faults for each array of some hundred kilobytes or "
    "more. Once it has freed a large block the C library keeps memory (gelu, 1e6: 11 ms in place of 18).",
)
"""A list in Markdown, which reads as text, too."""


@dataclass(frozen=True)
class Row:
    """A workload with its figures by framework."""

    workload: Workload
    figures: dict[str, Figures]
    least_bytes: int

    def median(self, name: str) -> float | None:
        return self.figures[name].median if name in self.figures else None

    @property
    def best_peer(self) -> str | None:
        """The peer with the lowest median that ran without an error."""
        medians = {p: self.median(p) for p in PEERS if p in self.figures and self.figures[p].error is None}
        known = {name: value for name, value in medians.items() if value is not None}
        return min(known, key=lambda name: known[name]) if known else None

    @property
    def faster(self) -> float | None:
        """How many times faster than the best peer, the median over the turns."""
        return self.faster_than(self.best_peer) if self.best_peer else None

    def faster_than(self, peer: str) -> float | None:
        """How many times faster than a framework, the median over the turns."""
        ours, theirs = self._turns("jitgrad"), self._turns(peer)
        if not ours or not theirs:
            return None
        return float(np.median([t / o for o, t in zip(ours, theirs, strict=False)]))

    @property
    def limit(self) -> Limit | None:
        """What the work must take, and why; None below some microseconds, where calls cost more than work."""
        return limit_of(self.figures)

    @property
    def of_limit(self) -> float | None:
        """The limit over jitgrad's time, the median over the turns."""
        return share_of_limit(self.figures)

    def _turns(self, name: str) -> list[float]:
        return [float(np.median(turn)) for turn in self.figures[name].turns] if name in self.figures else []


@dataclass(frozen=True)
class Report:
    """All rows of a run, and sentences about where it ran."""

    machine: dict[str, Any]
    rows: Sequence[Row]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The table, the errors, and what stands above and below."""
        names = "  ".join(f"{key}: {value}" for key, value in self.machine.items())
        return "\n".join([names, "", aligned(self._cells()), "", *NOTES, *self._totals(), *self._errors()])

    @property
    def markdown(self) -> str:
        """The same for docs/."""
        names = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        cells = self._cells()
        bars = ["|".join(["", *("---" if k == 0 else "---:" for k in range(len(cells[0]))), ""])]
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        return "\n\n".join(
            [names, "\n".join([lines[0], *bars, *lines[1:]]), "\n".join(NOTES), *self._totals(), *self._errors()]
        )

    @property
    def json(self) -> dict[str, Any]:
        """All figures, each sample among them."""
        rows = [
            {
                "name": row.workload.name,
                "title": row.workload.title,
                "least_bytes": row.least_bytes,
                "best_peer": row.best_peer,
                "faster": row.faster,
                "limit": row.limit.seconds if row.limit else None,
                "limit_is": row.limit.what if row.limit else None,
                "of_limit": row.of_limit,
                "figures": {name: _figures(found) for name, found in row.figures.items()},
            }
            for row in self.rows
        ]
        return {"machine": self.machine, "options": self.options, "rows": rows}

    def _cells(self) -> list[list[str]]:
        return [list(COLUMNS), *([make(row) for make in COLUMNS.values()] for row in self.rows)]

    def _totals(self) -> list[str]:
        ratios = [row.faster for row in self.rows if row.faster]
        if not ratios:
            return []
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        slower = sum(ratio < 1 for ratio in ratios)
        return [
            f"Against the best peer: geometric mean {mean:.2f}, slower on {slower} of {len(ratios)} rows."
        ]

    def _errors(self) -> list[str]:
        return [
            f"{row.workload.name}: {found.error}"
            for row in self.rows
            for found in row.figures.values()
            if found.error is not None
        ]


def _figures(found: Figures) -> dict[str, Any]:
    names = ("quartiles", "median", "first", "warm")
    return {**asdict(found), **{name: getattr(found, name) for name in names}}


# -- cells ----------------------------------------------------------------------------------------------------


def _number(value: float | None, scale: float = 1.0, form: str = ".3g") -> str:
    if value is None:
        return "-"
    scaled = value * scale
    return f"{scaled:.0f}" if form == ".3g" and scaled >= 1000 else f"{scaled:{form}}"


def _time_of(name: str) -> Callable[[Row], str]:
    return lambda row: _number(row.median(name), 1e3)


def _of(name: str, attribute: str, scale: float, form: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        found = row.figures.get(name)
        return _number(getattr(found, attribute) if found else None, scale, form)

    return cell


def _quartiles(row: Row) -> str:
    quartiles = row.figures["jitgrad"].quartiles if "jitgrad" in row.figures else None
    return f"{quartiles[0] * 1e3:.3g}-{quartiles[2] * 1e3:.3g}" if quartiles else "-"


def _kernels(row: Row) -> str:
    details = row.figures["jitgrad"].details if "jitgrad" in row.figures else {}
    names = ("kernels", "products", "numpy_calls")
    return "+".join(str(details[name]) for name in names) if details else "-"


def _moved(row: Row) -> str:
    details = row.figures["jitgrad"].details if "jitgrad" in row.figures else {}
    return f"{details['bytes_moved'] / row.least_bytes:.2f}" if details else "-"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "value and gradient of": lambda row: row.workload.title,
    "jitgrad": _time_of("jitgrad"),
    "quartiles": _quartiles,
    "NumPy": _time_of("interpreter"),
    "JAX": _time_of("jax"),
    "torch": _time_of("torch"),
    "PyTensor": _time_of("pytensor"),
    "faster": lambda row: _number(row.faster, form=".2f"),
    "limit": lambda row: _number(row.limit.seconds if row.limit else None, 1e3),
    "of limit": lambda row: f"{row.of_limit:.0%} {row.limit.what}" if row.limit and row.of_limit else "-",
    "kernels+BLAS+NumPy": _kernels,
    "moved/least": _moved,
    "first": _of("jitgrad", "first", 1e3, ".0f"),
    "warm": _of("jitgrad", "warm", 1e3, ".0f"),
    "first JAX": _of("jax", "first", 1e3, ".0f"),
    "first torch": _of("torch", "first", 1e3, ".0f"),
    "first PyTensor": _of("pytensor", "first", 1e3, ".0f"),
    "peak": _of("jitgrad", "peak_bytes", 1e-6, ".0f"),
    "peak JAX": _of("jax", "peak_bytes", 1e-6, ".0f"),
    "peak torch": _of("torch", "peak_bytes", 1e-6, ".0f"),
    "peak PyTensor": _of("pytensor", "peak_bytes", 1e-6, ".0f"),
    "difference": _of("jitgrad", "difference", 1, ".0e"),
}
