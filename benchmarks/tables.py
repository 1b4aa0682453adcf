"""Text tables for the smaller benchmarks, and the choice of their rows; it measures nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.workloads import WORKLOADS


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in columns, the first row as the head; the first column to the left, the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) if k == 0 else cell.rjust(width) for k, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def chosen_workloads(given: str, parser: argparse.ArgumentParser) -> list[str]:
    """The names of workloads in a list with commas; each may be given by a part of its name."""
    words = [word for word in given.split(",") if word]
    for word in words:
        if not any(word in name for name in WORKLOADS):
            parser.error(f"nothing is called {word!r}: there are {', '.join(WORKLOADS)}")
    return [name for name in WORKLOADS if not words or any(word in name for word in words)]
