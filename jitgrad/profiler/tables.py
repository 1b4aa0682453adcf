"""Text for people: tables, amounts of memory, the machine that figures come from; it knows no figures."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import numpy as np

from jitgrad.config import get_num_threads


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines: the first row as heading, the first column to the left, others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(_cell(k, row[k], width) for k, width in enumerate(widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cell(column: int, text: str, width: int) -> str:
    return text.rjust(width) if column else text.ljust(width)


def bytes_text(nbytes: int) -> str:
    """A number of bytes, in a unit that makes it readable."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.3g} GiB"


def machine_text() -> str:
    """Where and with what figures were made, in one line."""
    return (
        f"{platform.machine()}, {os.cpu_count()} processors, {get_num_threads()} threads; "
        f"Python {platform.python_version()}, NumPy {np.__version__}"
    )


def seconds_text(seconds: float) -> str:
    """A time in a unit that makes it readable."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
