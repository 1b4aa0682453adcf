"""Ranking: the events of a profile added up by kernel, op, user line, scope or phase; it prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

from jitgrad.profiler.events import BACKWARD, CALL, FORWARD, WORK, Event
from jitgrad.records import NamedTuple, dataclass

BY = ("kernel", "op", "line", "scope", "phase")


@dataclass(frozen=True, slots=True)
class Row:
    """Events that belong together: how many, their seconds, share of all, bytes and flops, their dtype if
    it is one, and the lines behind.
    """

    name: str
    kind: str
    count: int
    seconds: float
    share: float
    nbytes: float
    flops: float
    dtype: str
    lines: tuple[str, ...]

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and written per second; 0 where none are known."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        """Scalar operations per second; 0 where none are known."""
        return self.flops / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class _Part:
    """An event's part of a row; ``apart`` tells rows of one name from one another."""

    name: str
    kind: str
    fraction: float
    lines: tuple[str, ...]
    apart: tuple[str, ...] = ()


def rank(events: Sequence[Event], by: str) -> list[Row]:
    """Rows in falling order of time.

    ``by`` is kernel, op, line, scope or phase, else ValueError. By phase all exclusive time counts (tracing, compiling,
    calls without what they call); by the others only kernels, BLAS calls and NumPy calls, loops without the ops in
    their bodies. A kernel's time is shared among its ops by their weights, which is an estimate: fused ops have no
    times of their own.
    """
    if by not in BY:
        raise ValueError(f"by must be one of {', '.join(BY)}, got {by!r}")
    if by == "phase":
        return _rows(_alike(events, None), _by_phase)
    parts = {"kernel": _by_kernel, "op": _by_op, "line": _by_line, "scope": _by_scope}[by]
    return _rows(_alike(events, WORK), parts)


class _Alike(NamedTuple):
    """Events that differ in their times only: one of them, how many, and the nanoseconds of all."""

    event: Event
    number: int
    ns: int


def _alike(events: Sequence[Event], kinds: Container[str] | None) -> list[_Alike]:
    """The events of these kinds, or all, most of which tell the same again and again."""
    found: dict[Any, list[Any]] = {}
    for e, ns in zip(events, exclusive(events), strict=True):
        if kinds is None or e.kind in kinds:
            key = (e.kind, e.name, e.phase, e.scope, e.nbytes_read, e.nbytes_written, e.flops, e.dtype, id(e.shares))
            known = found.get(key)
            if known is None:
                found[key] = [e, 1, ns]
            else:
                known[1] += 1
                known[2] += ns
    return [_Alike(*parts) for parts in found.values()]


def exclusive(events: Sequence[Event]) -> list[int]:
    """Nanoseconds of each event without those of the events directly inside it."""
    own = [e.duration for e in events]
    for e in events:
        if e.parent is not None:
            own[e.parent] -= e.duration
    return [max(0, ns) for ns in own]


def _rows(alike: Sequence[_Alike], parts_of: Callable[[Event], Iterator[_Part]]) -> list[Row]:
    gathered: dict[tuple[str, str, tuple[str, ...]], list[tuple[_Alike, _Part]]] = {}
    for events in alike:
        for part in parts_of(events.event):
            gathered.setdefault((part.kind, part.name, part.apart), []).append((events, part))
    total = sum(events.ns * part.fraction for found in gathered.values() for events, part in found) or 1.0
    rows = [_row(name, kind, found, total) for (kind, name, _), found in gathered.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _row(name: str, kind: str, found: Sequence[tuple[_Alike, _Part]], total: float) -> Row:
    ns = sum(events.ns * part.fraction for events, part in found)
    return Row(
        name,
        kind,
        sum(events.number for events, _ in found),
        ns * 1e-9,
        ns / total,
        sum(events.event.nbytes * events.number * part.fraction for events, part in found),
        sum(events.event.flops * events.number * part.fraction for events, part in found),
        _common(events.event.dtype for events, _ in found),
        tuple(dict.fromkeys(line for _, part in found for line in part.lines)),
    )


def _common(texts: Iterable[str]) -> str:
    """The text that all are, else nothing."""
    found = set(texts)
    return found.pop() if len(found) == 1 else ""


def _by_kernel(event: Event) -> Iterator[_Part]:
    """Kernels of one name are rows of their own where they come from other lines: two lambdas, say."""
    yield _Part(event.name, event.kind, 1.0, event.lines, event.lines)


def _by_scope(event: Event) -> Iterator[_Part]:
    yield _Part(event.scope or "(interpreted)", "scope", 1.0, event.lines)


def _by_op(event: Event) -> Iterator[_Part]:
    total = sum(share.weight for share in event.shares) or 1.0
    for share in event.shares:
        yield _Part(share.op, event.kind, share.weight / total, (share.line,))


def _by_line(event: Event) -> Iterator[_Part]:
    total = sum(share.weight for share in event.shares) or 1.0
    for share in event.shares:
        yield _Part(share.line, "line", share.weight / total, ())


def _by_phase(event: Event) -> Iterator[_Part]:
    """A kernel of both passes is shared between them by the weights of its ops."""
    total = sum(share.weight for share in event.shares)
    if not total:
        yield _Part(CALL if event.kind == "call" else event.phase, "phase", 1.0, ())
        return
    back = sum(share.weight for share in event.shares if share.is_gradient) / total
    for phase, fraction in ((FORWARD, 1 - back), (BACKWARD, back)):
        if fraction:
            yield _Part(phase, "phase", fraction, event.lines)
