"""Sizes of the machine's caches, as far as the system tells."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_UNKNOWN = 32 << 20
_MOST = 32 << 20  # of the largest cache, for each processor
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@functools.cache
def last_level_bytes() -> int:
    """Bytes of the largest cache that are ours to fill: at most 32 MB for each processor, 32 MB where nobody tells.

    A virtual machine hears of all of its host's cache, and fills it together with others: two processors that are told
    of 480 MB read 64 MB again and again at 58 GB/s, 200 MB at 30.
    """
    found = max((_bytes(file) for file in _CACHES.glob("index*/size")), default=0)
    return min(found, _MOST * (os.cpu_count() or 1)) or _UNKNOWN


def _bytes(file: Path) -> int:
    try:
        text = file.read_text().strip()
    except OSError:
        return 0
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "")
    return int(number) * _UNITS.get(unit, 1) if number.isdigit() else 0
