"""Arrows of a picture as SVG: smooth lines, and amounts of bytes beside them where there is room; boxes are drawn
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from jitgrad.profiler.layout import Layout, Point, Size
from jitgrad.profiler.picture import Arrow
from jitgrad.profiler.tables import bytes_text
from jitgrad.records import NamedTuple

_CHARACTER, _HEIGHT = 6.7, 11.0
_ALONG = (0.5, 0.3, 0.7, 0.15, 0.85)  # where a label may stand between two points of a line


class _Area(NamedTuple):
    """A rectangle: left, top, right, bottom."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Area) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def draw_arrows(arrows: Sequence[Arrow], layout: Layout, sizes: dict[int, Size]) -> Iterator[str]:
    """One group per arrow: what it carries and why it is there appear when the pointer rests on it.

    A label that finds no place along its line without covering a box or another label is left to that.
    """
    taken = [_area(layout.corners[key], size) for key, size in sizes.items()]
    for arrow in sorted(arrows, key=lambda a: -a.nbytes):
        points = layout.paths[arrow.source, arrow.target]
        text = bytes_text(arrow.nbytes)
        place = _free_place(points, len(text) * _CHARACTER, taken)
        if place is not None:
            taken.append(place)
        yield _arrow(arrow, points, text, place)


def _area(corner: Point, size: Size) -> _Area:
    return _Area(corner[0], corner[1], corner[0] + size.width, corner[1] + size.height)


def _free_place(points: Sequence[Point], width: float, taken: Sequence[_Area]) -> _Area | None:
    """Room for a label beside the line, as near to its beginning as there is some."""
    for a, b in pairwise(points):
        for t in _ALONG:
            x, y = _on_curve(a, b, t)
            for left in (x + 4, x - 4 - width):
                area = _Area(left, y - _HEIGHT / 2, left + width, y + _HEIGHT / 2)
                if not any(area.meets(other) for other in taken):
                    return area
    return None


def _arrow(arrow: Arrow, points: Sequence[Point], text: str, place: _Area | None) -> str:
    kind = "refused" if arrow.reason else "edge"
    title = text + (f"\nnot one kernel: {arrow.reason}" if arrow.reason else "")
    label = ""
    if place is not None:
        label = f'<text class="soft" x="{place.left:.1f}" y="{place.bottom - 2:.1f}">{escape(text)}</text>'
    return (
        f'<g class="{kind}"><title>{escape(title)}</title><path d="{_curve(points)}" marker-end="url(#tip)"/>'
        f"{label}</g>"
    )


def _curve(points: Sequence[Point]) -> str:
    """A smooth line that leaves and enters each point straight down."""
    (x0, y0), *rest = points
    parts = [f"M{x0:.1f} {y0:.1f}"]
    for x, y in rest:
        half = (y - y0) / 2
        parts.append(f"C{x0:.1f} {y0 + half:.1f} {x:.1f} {y - half:.1f} {x:.1f} {y:.1f}")
        x0, y0 = x, y
    return "".join(parts)


def _on_curve(a: Point, b: Point, t: float) -> Point:
    """The point of that line at a parameter from 0 to 1."""
    (x0, y0), (x1, y1) = a, b
    weight = t * t * (3 - 2 * t)
    middle = 3 * t * (1 - t) * (y0 + y1) / 2
    return x0 + (x1 - x0) * weight, (1 - t) ** 3 * y0 + middle + t**3 * y1
