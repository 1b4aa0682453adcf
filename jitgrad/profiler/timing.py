"""Times of calls made in turns, so that a busy machine slows all of them alike; what they do is not known."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.records import dataclass

Around = Callable[[], contextlib.AbstractContextManager[Any]]

SECONDS = 2.0
FEWEST, MOST = 5, 300
_SHORTEST = 20e-6  # calls shorter than this are timed several at once


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call: the median of ``count`` measurements, and the quartiles below and above it."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        scale, unit = _unit(self.median)
        low, high, median = (f"{x * scale:.3g}" for x in (self.low, self.high, self.median))
        return f"{median} {unit} ({low}-{high})"


def _unit(seconds: float) -> tuple[float, str]:
    if seconds < 1e-3:
        return 1e6, "us"
    return (1e3, "ms") if seconds < 1 else (1.0, "s")


def time_in_turns(
    calls: Sequence[Callable[[], Any]], repeat: int | None = None, around: Sequence[Around] | None = None
) -> list[Times]:
    """Times of the calls, made in turns, each turn beginning with another one.

    ``repeat`` is the number of turns; without it, as many as fit into about two seconds, at least 5 and at most 300.
    ``around`` makes, per call, the context in which it is made, which is not timed. The calls should have been made
    before: the first one is not left out. ValueError when ``repeat`` is below 1.
    """
    if repeat is not None and repeat < 1:
        raise ValueError(f"repeat must be at least 1, got {repeat}")
    contexts = [contextlib.nullcontext] * len(calls) if around is None else around
    pairs = list(zip(calls, contexts, strict=True))
    once = [max(_seconds(call, context, 1), 1e-9) for call, context in pairs]
    loops = [max(1, round(_SHORTEST / seconds)) for seconds in once]
    if repeat is None:
        turn = sum(seconds * n for seconds, n in zip(once, loops, strict=True))
        repeat = min(MOST, max(FEWEST, int(SECONDS / turn)))
    found: list[list[float]] = [[] for _ in calls]
    with _without_collection():
        for first in range(repeat):
            for k in range(first, first + len(calls)):
                k %= len(calls)
                found[k].append(_seconds(*pairs[k], loops[k]))
    return [_times(seconds) for seconds in found]


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _seconds(call: Callable[[], Any], context: Around, loops: int) -> float:
    with context():
        start = time.perf_counter()
        for _ in range(loops):
            call()
        return (time.perf_counter() - start) / loops


def _times(seconds: Sequence[float]) -> Times:
    low, median, high = (float(x) for x in np.quantile(seconds, [0.25, 0.5, 0.75]))
    return Times(median, low, high, len(seconds))
