"""The timeline of a profile as SVG: what ran when, by thread and depth; it stands alone and follows light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from jitgrad.profiler.events import BACKWARD, BOTH, FORWARD, Event
from jitgrad.profiler.tables import bytes_text

WIDTH, ROW = 1200.0, 18.0
MOST_BARS = 3000
_COLOURS = {FORWARD: "--forward", BACKWARD: "--backward", BOTH: "--both"}


def timeline(events: Sequence[Event]) -> str:
    """Bars in time; of more than ``MOST_BARS`` events, the longest."""
    if not events:
        return ""
    depths = _depths(events)
    begin, end = min(e.start for e in events), max(e.end for e in events)
    scale = WIDTH / max(1, end - begin)
    threads = list(dict.fromkeys(e.thread for e in events))
    height_of = {t: ROW * (1 + max(d for e, d in zip(events, depths, strict=True) if e.thread == t)) for t in threads}
    top: dict[int, float] = {}
    y = 0.0
    for t in threads:
        top[t] = y
        y += height_of[t] + 8
    shown = sorted(range(len(events)), key=lambda k: -events[k].duration)[:MOST_BARS]
    bars = [_bar(events[k], top[events[k].thread] + ROW * depths[k], begin, scale) for k in sorted(shown)]
    names = (*_COLOURS.items(), ("tracing, compiling, calls", "--other"))
    keys = "".join(f'<span class="key" style="background:var({colour})"></span>{name}' for name, colour in names)
    return (
        f'<p class="soft">{keys}</p><div class="wide"><svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" '
        f'height="{y:.0f}" role="img" style="font:11px system-ui,sans-serif">{"".join(bars)}</svg></div>'
    )


def _depths(events: Sequence[Event]) -> list[int]:
    depths: list[int] = []
    for e in events:
        depths.append(0 if e.parent is None else depths[e.parent] + 1)
    return depths


def _bar(e: Event, y: float, begin: int, scale: float) -> str:
    x, width = (e.start - begin) * scale, max(0.5, e.duration * scale)
    colour = _COLOURS.get(e.phase, "--other")
    text = f"{e.kind} {e.name}: {e.duration / 1e3:.1f} us, {e.phase}"
    if e.nbytes:
        text += f", {bytes_text(e.nbytes)}"
    if e.lines:
        text += "\n" + ", ".join(e.lines)
    label = ""
    if width > 7 * len(e.name):
        label = f'<text x="{x + 3:.1f}" y="{y + 12:.1f}" style="fill:var(--paper)">{escape(e.name)}</text>'
    return (
        f'<g><title>{escape(text)}</title><rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{ROW - 2:.0f}" '
        f'rx="1.5" style="fill:var({colour})"/>{label}</g>'
    )
