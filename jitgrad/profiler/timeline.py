"""The timeline of a profile as SVG: what ran when, by thread and depth; it stands alone and follows light and dark.

Places and lengths are shares of the whole width, so that whoever makes the picture wider sees more of it. Stretches of
time can be left out: what ran before and after them then stands side by side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate

from jitgrad.profiler.events import BACKWARD, BOTH, COMPILE, FORWARD, TRACE, Event, outermost
from jitgrad.profiler.tables import bytes_text, seconds_text
from jitgrad.records import dataclass

ROW = 18.0
MOST_BARS = 3000
_COLOURS = {FORWARD: "--forward", BACKWARD: "--backward", BOTH: "--both"}
_TICKS = 5
_SHORTEST = 100.0  # nanoseconds: a pixel of the widest picture
_WIDEST = 16000  # times the width of the page; browsers do not go far beyond
_PAGE = 1200.0
_HEAD = 16.0


@dataclass(frozen=True, slots=True)
class _Axis:
    """The time that is shown: stretches, each from a beginning to an end, one behind the other."""

    stretches: tuple[tuple[int, int], ...]
    before: tuple[int, ...]  # nanoseconds shown in front of each stretch, and of its end at last

    @property
    def length(self) -> int:
        """Nanoseconds that are shown."""
        return max(1, self.before[-1])

    def share(self, time: int) -> float:
        """Where a moment stands, from 0 to 1."""
        number = max(0, bisect_right(self.stretches, (time, time)) - 1)
        begin, end = self.stretches[number]
        return (self.before[number] + min(max(time, begin), end) - begin) / self.length


def keys() -> str:
    """What the colours stand for, as HTML."""
    names = (*_COLOURS.items(), ("tracing, compiling, calls", "--other"))
    return "".join(f'<span class="key" style="background:var({colour})"></span>{name}' for name, colour in names)


def timeline(events: Sequence[Event]) -> str:
    """Bars in time; of more than ``MOST_BARS`` events, the longest."""
    return _drawn(events, range(len(events)), ()) if events else ""


def timeline_of_runs(events: Sequence[Event]) -> str:
    """The same without the calls that traced or compiled, and without the time that they took; nothing where that
    leaves out nothing or all.
    """
    roots = outermost(events)
    making = {root for root, e in zip(roots, events, strict=True) if e.phase in (TRACE, COMPILE)}
    shown = [number for number, root in enumerate(roots) if root not in making]
    if not making or not any(events[number].kind == "call" for number in shown):
        return ""
    return _drawn(events, shown, [(events[root].start, events[root].end) for root in sorted(making)])


def _drawn(events: Sequence[Event], shown: Sequence[int], left_out: Sequence[tuple[int, int]]) -> str:
    axis = _axis([events[k] for k in shown], left_out)
    depths = _depths(events)
    tops, height = _rows([(events[k].thread, depths[k]) for k in shown])
    longest = sorted(shown, key=lambda k: -events[k].duration)[:MOST_BARS]
    bars = (_bar(events[k], tops[events[k].thread] + ROW * depths[k], axis) for k in sorted(longest))
    most = min(_WIDEST, max(1, round(axis.length / _SHORTEST / _PAGE)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="times" data-most="{most}" width="100%" height="{height:.0f}" '
        f'role="img">{"".join(_ticks(axis, height))}{"".join(bars)}</svg>'
    )


def _axis(events: Sequence[Event], left_out: Sequence[tuple[int, int]]) -> _Axis:
    begin, end = min(e.start for e in events), max(e.end for e in events)
    stretches: list[tuple[int, int]] = []
    for a, b in sorted(left_out):
        if begin < a:
            stretches.append((begin, a))
        begin = max(begin, b)
    stretches.append((begin, max(begin, end)))
    return _Axis(tuple(stretches), tuple(accumulate((b - a for a, b in stretches), initial=0)))


def _depths(events: Sequence[Event]) -> list[int]:
    depths: list[int] = []
    for e in events:
        depths.append(0 if e.parent is None else depths[e.parent] + 1)
    return depths


def _rows(places: Sequence[tuple[int, int]]) -> tuple[dict[int, float], float]:
    """Where the rows of each thread begin, and the height of all."""
    deepest: dict[int, int] = {}
    for thread, depth in places:
        deepest[thread] = max(depth, deepest.get(thread, 0))
    tops: dict[int, float] = {}
    y = _HEAD
    for thread, depth in deepest.items():
        tops[thread] = y
        y += ROW * (1 + depth) + 8
    return tops, y


def _ticks(axis: _Axis, height: float) -> Iterator[str]:
    for k in range(_TICKS):
        x = f"{100 * k / _TICKS:g}%"
        text = seconds_text(axis.length * k / _TICKS * 1e-9) if k else "0"
        yield (
            f'<line x1="{x}" x2="{x}" y1="0" y2="{height:.0f}" style="stroke:var(--rule)"/>'
            f'<text x="{x}" dx="3" y="11" style="fill:var(--soft)">{text}</text>'
        )


def _bar(e: Event, y: float, axis: _Axis) -> str:
    """A bar that clips its label."""
    x = 100 * axis.share(e.start)
    width = 100 * axis.share(e.end) - x
    colour = _COLOURS.get(e.phase, "--other")
    text = f"{e.kind} {e.name}: {seconds_text(e.duration * 1e-9)}, {e.phase}"
    if e.nbytes:
        text += f", {bytes_text(e.nbytes)}"
    text += "".join(f"\n{key}: {value}" for key, value in e.facts.items() if value != "")
    if e.lines:
        text += "\n" + ", ".join(e.lines)
    return (
        f'<svg x="{x:.6f}%" y="{y:.0f}" width="{width:.6f}%" height="{ROW - 2:.0f}" '
        f'style="width:max(1px,{width:.6f}%)"><title>{escape(text)}</title>'
        f'<rect width="100%" height="100%" style="fill:var({colour})"/>'
        f'<text x="3" y="12" style="fill:var(--paper)">{escape(e.name)}</text></svg>'
    )
