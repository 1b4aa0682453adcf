"""Collapsing: large pictures made small enough to be looked at, and what became one box taken out again.

Boxes are in running order, and every arrow points from an earlier to a later one. That is what makes it safe: a stretch
of consecutive boxes can become one box without making a cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby

from jitgrad.profiler.picture import Arrow, Box, Picture

MOST_BOXES = 60
MOST_NOTES = 3
_MOST_READERS = 5
_ENDS = ("input", "output")
_PLURALS = {"kernel": "kernels", "blas": "BLAS calls", "numpy": "NumPy calls", "input": "inputs", "output": "outputs"}


def collapse(picture: Picture, most: int = MOST_BOXES) -> Picture:
    """The picture itself, if it has at most ``most`` boxes, else one with half as many: neighbours of one name scope
    become one box.

    Where name scopes leave too many boxes, neighbouring ones become one, in stretches of equal length; where they leave
    too few to see anything, those within them do. Inputs become one, and outputs; where many boxes read them, a note
    says so in place of the arrows.
    """
    if len(picture.boxes) <= most:
        return picture
    return _without_fans(_collapsed(picture, max(4, most // 2)))


def _collapsed(picture: Picture, most: int) -> Picture:
    finest: list[Hashable] = [box.kind if box.kind in _ENDS else box.key for box in picture.boxes]
    deepest = max((op.name.count("/") for box in picture.boxes for op in box.ops), default=0)
    for depth in range(deepest, 0, -1):
        places = _runs([_place(box, depth) for box in picture.boxes])
        if places[-1] < most // 4:
            break
        if places[-1] < most:
            return _merge(picture, places)
        finest = list(places)
    return _merge(picture, _stretches(picture, _runs(finest), most))


def inside(picture: Picture, box: Box) -> Picture:
    """What a box of the collapsed picture holds, and the arrows within."""
    members = frozenset(box.members)
    return Picture(
        tuple(b for b in picture.boxes if b.key in members),
        tuple(a for a in picture.arrows if a.source in members and a.target in members),
    )


def _without_fans(picture: Picture) -> Picture:
    """The picture without the arrows of inputs or outputs that have become one, where they would hide all others."""
    boxes, left_out = [], set()
    for box in picture.boxes:
        fan = [a for a in picture.arrows if box.key in (a.source, a.target)]
        if box.kind in _ENDS and box.members and len(fan) > _MOST_READERS:
            left_out.update(fan)
            way = "read by" if fan[0].source == box.key else "made by"
            box = replace(box, notes=(*box.notes, f"{way} {len(fan)} of the parts"))
        boxes.append(box)
    return Picture(tuple(boxes), tuple(a for a in picture.arrows if a not in left_out))


def _runs(places: Sequence[Hashable]) -> list[int]:
    """Per box, the number of the stretch of neighbours with one place."""
    return [number for number, (_, run) in enumerate(groupby(places)) for _ in run]


def _stretches(picture: Picture, runs: Sequence[int], most: int) -> list[Hashable]:
    """Places by which at most ``most`` boxes are left, of about as many runs each; inputs are one, outputs too."""
    inner = dict.fromkeys(run for box, run in zip(picture.boxes, runs, strict=True) if box.kind not in _ENDS)
    rank = {run: k for k, run in enumerate(inner)}
    room = max(1, most - 2)
    return [
        box.kind if box.kind in _ENDS else rank[run] * room // len(inner)
        for box, run in zip(picture.boxes, runs, strict=True)
    ]


def _place(box: Box, depth: int) -> Hashable:
    """What boxes that may become one have in common; inputs and outputs stay apart."""
    if box.kind in _ENDS:
        return box.kind
    return box.scope, box.group, "/".join(_scopes(box)[:depth])


def _scopes(box: Box) -> list[str]:
    """The name scopes around the first op of a box."""
    return box.ops[0].name.split("/")[:-1] if box.ops else []


def _merge(picture: Picture, places: Sequence[Hashable]) -> Picture:
    stretches = [
        [box for box, _ in stretch] for _, stretch in groupby(zip(picture.boxes, places, strict=True), lambda p: p[1])
    ]
    home = {box.key: stretch[0].key for stretch in stretches for box in stretch}
    gathered: dict[tuple[int, int], list[Arrow]] = {}
    for arrow in picture.arrows:
        ends = home[arrow.source], home[arrow.target]
        if ends[0] != ends[1]:
            gathered.setdefault(ends, []).append(arrow)
    arrows = tuple(
        Arrow(a, b, sum(arrow.nbytes for arrow in found), _common([arrow.reason for arrow in found]))
        for (a, b), found in gathered.items()
    )
    names = ["/".join(_shared_scope(stretch)) for stretch in stretches]
    often = Counter(names)
    return Picture(
        tuple(
            _merged(stretch, name if often[name] == 1 else _range(stretch))
            for stretch, name in zip(stretches, names, strict=True)
        ),
        arrows,
    )


def _merged(stretch: Sequence[Box], name: str) -> Box:
    if len(stretch) == 1:
        return stretch[0]
    kinds = Counter(box.kind for box in stretch)
    text = ", ".join(f"{n} {_PLURALS[kind] if n > 1 else kind}" for kind, n in kinds.items())
    scopes, groups = {box.scope for box in stretch}, {box.group for box in stretch}
    return replace(
        stretch[0],
        kind=next(iter(kinds)) if set(kinds) <= set(_ENDS) else "part",
        title=name or text,
        scope=scopes.pop() if len(scopes) == 1 else None,
        group=groups.pop() if len(groups) == 1 else "",
        ops=tuple(op for box in stretch for op in box.ops),
        notes=((text,) if name else ()) + _gathered(stretch),
        members=tuple(box.key for box in stretch),
        inner=(),
    )


def _gathered(stretch: Sequence[Box]) -> tuple[str, ...]:
    """The notes of boxes that become one, each once; of many the first, and how many others."""
    notes = tuple(dict.fromkeys(note for box in stretch for note in box.notes))
    rest = len(notes) - MOST_NOTES
    return (*notes[:MOST_NOTES], f"and {rest} more such notes") if rest > 0 else notes


def _shared_scope(stretch: Sequence[Box]) -> list[str]:
    """The name scopes that all ops are in."""
    shared: list[str] = []
    for level in zip(*(op.name.split("/")[:-1] for box in stretch for op in box.ops), strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return shared


def _range(stretch: Sequence[Box]) -> str:
    """From which name scope to which other it goes, or from which of the user's lines, where scopes are alike."""
    shared = _shared_scope(stretch)
    inner = [scopes[len(shared)] for scopes in map(_scopes, stretch) if len(scopes) > len(shared)]
    if inner:
        ends = inner[0] if inner[0] == inner[-1] else f"{inner[0]} … {inner[-1]}"
        return "/".join([*shared, ends])
    lines = [box.ops[0].line for box in stretch if box.ops]
    if not lines:
        return "/".join(shared)
    ends = lines[0] if lines[0] == lines[-1] else f"{lines[0]} … {lines[-1]}"
    return f"{'/'.join(shared)} ({ends})" if shared else ends


def _common(reasons: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))
