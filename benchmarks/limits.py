"""The least time that a workload can take on this machine, from what was measured beside it; it measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.measure import Figures

_LEAST = 3e-6  # a call costs about as much


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds, and what takes them: a level of memory, "BLAS", "ALU" or both."""

    seconds: float
    what: str


def limit_of(figures: Mapping[str, Figures]) -> Limit | None:
    """The longer of moving the data and of computing; None below what a call costs, or where nothing was measured."""
    limits = [limit for limit in (_moving(figures), _computing(figures)) if limit and limit.seconds > _LEAST]
    return max(limits, key=lambda limit: limit.seconds, default=None)


def share_of_limit(figures: Mapping[str, Figures]) -> float | None:
    """The limit over jitgrad's median time, each of the same turn: the median over the turns.

    A machine that others use is up to twice as fast in one turn as in another, in memory and in arithmetic alike. The
    limit of the best turn over the time of a usual one would say how steady the machine is.
    """
    ours = figures["jitgrad"].turns if "jitgrad" in figures else []
    limits = [limit_of(_in_turn(figures, k)) for k in range(len(ours))]
    shares = [limit.seconds / float(np.median(turn)) for limit, turn in zip(limits, ours, strict=True) if limit]
    return float(np.median(shares)) if shares else None


def _in_turn(figures: Mapping[str, Figures], k: int) -> dict[str, Figures]:
    """What was measured in a turn; rates of arithmetic, which are those of the best one, as much lower as that took
    longer.
    """
    found = {name: replace(f, turns=f.turns[k : k + 1]) for name, f in figures.items()}
    shortest, here = _shortest(figures, "arithmetic"), _shortest(found, "arithmetic")
    if here:
        rates = found["arithmetic"].details
        slower = {kind: {size: rate * shortest / here for size, rate in of.items()} for kind, of in rates.items()}
        found["arithmetic"] = replace(found["arithmetic"], details=slower)
    return found


def _moving(figures: Mapping[str, Figures]) -> Limit | None:
    seconds = _shortest(figures, "stream")
    return Limit(seconds, str(figures["stream"].details.get("level", "memory"))) if seconds else None


def _computing(figures: Mapping[str, Figures]) -> Limit | None:
    """Products and the arithmetic beside them, one after the other; what is less than a tenth is not named."""
    parts = {"BLAS": _shortest(figures, "products"), "ALU": _arithmetic(figures)}
    total = sum(parts.values())
    return Limit(total, "+".join(name for name, seconds in parts.items() if seconds > 0.1 * total)) if total else None


def _shortest(figures: Mapping[str, Figures], name: str) -> float:
    turns = figures[name].turns if name in figures else []
    return min(map(min, turns), default=0.0)


def _arithmetic(figures: Mapping[str, Figures]) -> float:
    """Seconds of the operations that jitgrad counted: of multiplications, of divisions or of all, whichever is longest,
    since each has units of its own: 16 multiply-adds of registers and a division take 8.9 cycles, where one alone takes
    8 and the other 4.5 (float64, Zen 3).
    """
    counts = _details(figures, "jitgrad").get("operations", {})
    rates = _details(figures, "arithmetic")
    return sum(_seconds(counts[size], rates, size) for size in rates.get("products", {}) if size in counts)


def _seconds(counts: Sequence[float], rates: Mapping[str, Mapping[str, float]], size: str) -> float:
    products, divisions, _ = counts
    alone = products / rates["products"][size], divisions / rates["divisions"][size]
    return max(*alone, sum(counts) / rates["issued"][size])


def _details(figures: Mapping[str, Figures], name: str) -> Mapping[str, Any]:
    return figures[name].details if name in figures else {}
