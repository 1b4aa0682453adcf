"""Events: what happened while a profile ran, one record each; how they are gathered and shown is not told here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from jitgrad.records import dataclass

# The phases of a run. What belongs to no op (a stage of the compiler, a look into the cache) is "compile".
TRACE, COMPILE, FORWARD, BACKWARD, BOTH, CALL = "trace", "compile", "forward", "backward", "forward+backward", "call"

# Kinds of events that are work on arrays; all others are about it.
WORK = ("kernel", "blas", "loop", "numpy")


@dataclass(frozen=True, slots=True)
class Share:
    """An op's part of an event: its type, the user's line, whether it belongs to a gradient, and its weight."""

    op: str
    line: str
    is_gradient: bool
    weight: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time: start and duration in nanoseconds of the monotonic clock, and what it worked on.

    ``kind``: call and native (a call from Python, and the one into machine code); trace; compile and what it is made
    of: cache, simplify, cluster, plan, lower, emit, codegen; kernel, blas, loop (all steps of one, in machine code) and
    numpy, which is all work; allocate (memory from the system), denormals (a look for them in arguments and results).
    ``parent`` is the number of the event around it in the profile, or None. ``nbytes_read`` and ``nbytes_written``
    count each array once at its full size; ``flops`` one for each scalar operation, and 2mnk for a matrix product.
    ``shares`` are the ops behind a kernel, BLAS call or NumPy call; ``facts`` whatever else is known.
    """

    kind: str
    name: str
    start: int
    duration: int
    thread: int
    phase: str
    scope: str | None = None
    parent: int | None = None
    nbytes_read: int = 0
    nbytes_written: int = 0
    flops: int = 0
    dtype: str = ""
    shares: tuple[Share, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """When it was over, in nanoseconds of the same clock."""
        return self.start + self.duration

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.nbytes_read + self.nbytes_written

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines behind it, each once."""
        return tuple(dict.fromkeys(share.line for share in self.shares))


def phase_of(shares: tuple[Share, ...]) -> str:
    """Whether ops belong to the forward pass, to a gradient, or some to each."""
    gradient = {share.is_gradient for share in shares}
    if len(gradient) == 2:
        return BOTH
    return BACKWARD if True in gradient else FORWARD


def outermost(events: Sequence[Event]) -> list[int]:
    """Per event of a profile, the number of the outermost one around it, its own where there is none."""
    roots: list[int] = []
    for number, e in enumerate(events):
        roots.append(number if e.parent is None else roots[e.parent])
    return roots
