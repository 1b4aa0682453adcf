"""Pictures of programs for a page: a large one is collapsed, and each of its parts is a picture of its own under it, to
which its box leads; nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterator

from jitgrad.profiler.collapsing import MOST_BOXES, collapse, inside
from jitgrad.profiler.drawing import draw
from jitgrad.profiler.page import folded, zoomable
from jitgrad.profiler.picture import Box, Picture

MOST_DEPTH = 4


def picture_parts(picture: Picture, place: str, depth: int = 0) -> str:
    """The picture as HTML. ``place`` is the name under which the page knows it, in letters, digits and "-".

    A part of a part, and so on, is drawn too, to ``MOST_DEPTH``; what lies deeper is listed by the boxes' hovers.
    """
    small = collapse(picture)
    parts = [box for box in small.boxes if box.members and depth < MOST_DEPTH]
    links = {box.key: f"#{_name(place, box)}" for box in parts}
    return zoomable(draw(small, links)) + "".join(_folded_parts(picture, parts, place, depth))


def _folded_parts(picture: Picture, parts: list[Box], place: str, depth: int) -> Iterator[str]:
    for box in parts:
        held = inside(picture, box)
        title = f"{box.title}: {len(held.boxes)} parts" + (", collapsed again" if len(held.boxes) > MOST_BOXES else "")
        yield folded(title, picture_parts(held, _name(place, box), depth + 1), name=_name(place, box))


def _name(place: str, box: Box) -> str:
    return f"{place}-{box.key}"
