"""Surroundings: threads, processors and load of a run, noted when it ends; what they mean is not told here."""

from __future__ import annotations

import os

from jitgrad.config import available_cpus, config, get_num_threads
from jitgrad.records import dataclass


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Threads that kernels use, processors of this process, processes that want one (mean of the last minute), and
    whether the cache on disk is on.
    """

    threads: int
    cpus: int
    load: float
    is_cached: bool


def surroundings() -> Surroundings:
    """Those of this moment."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return Surroundings(get_num_threads(), available_cpus(), load, config.cache)
