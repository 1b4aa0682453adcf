"""Pictures: a compiled program as boxes and arrows, small enough to be looked at; the drawing is in drawing.py.

A box is what runs as one: a kernel with its fused ops, a BLAS call, a NumPy call. Boxes are in running order, and every
arrow points from an earlier to a later one. That is what makes collapsing safe: a stretch of consecutive boxes can
become one box without making a cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

MOST_BOXES = 60
MOST_NOTES = 3
_ENDS = ("input", "output")
_PLURALS = {"kernel": "kernels", "blas": "BLAS calls", "numpy": "NumPy calls", "input": "inputs", "output": "outputs"}


@dataclass(frozen=True, slots=True)
class OpText:
    """An op in a box: its type, where the user wrote it, its name, and whether it belongs to a gradient."""

    type: str
    line: str
    name: str
    is_gradient: bool


@dataclass(frozen=True, slots=True)
class Box:
    """What runs as one. ``kind`` is kernel, blas, numpy, input, output or part (several of them, collapsed)."""

    key: int
    kind: str
    title: str
    scope: str | None
    ops: tuple[OpText, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrow:
    """Data that one box makes and another reads; ``reason`` says why the two are not one."""

    source: int
    target: int
    nbytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes in running order and the arrows between them."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def collapse(picture: Picture, most: int = MOST_BOXES) -> Picture:
    """The picture with at most ``most`` boxes: neighbours of one name scope become one.

    Where name scopes leave too many boxes or too few to see anything, stretches of equal length become one.
    """
    count = len(picture.boxes)
    if count <= most:
        return picture
    deepest = max((op.name.count("/") for box in picture.boxes for op in box.ops), default=0)
    for depth in range(deepest, 0, -1):
        merged = _merge(picture, [_place(box, depth) for box in picture.boxes])
        if len(merged.boxes) <= most:
            if len(merged.boxes) > most // 4:
                return merged
            break
    return _merge(picture, _stretches(picture, most))


def _stretches(picture: Picture, most: int) -> list[Hashable]:
    """Places of at most ``most`` stretches of equal length; all inputs are one, all outputs too."""
    inner = [box.key for box in picture.boxes if box.kind not in _ENDS]
    rank = {key: k for k, key in enumerate(inner)}
    room = max(1, most - 2)
    return [box.kind if box.kind in _ENDS else rank[box.key] * room // len(inner) for box in picture.boxes]


def _place(box: Box, depth: int) -> Hashable:
    """What boxes that may become one have in common; inputs and outputs stay apart."""
    if box.kind in _ENDS:
        return box.kind
    return box.scope, "/".join(box.ops[0].name.split("/")[:-1][:depth]) if box.ops else ""


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
    return Picture(tuple(map(_merged, stretches)), arrows)


def _merged(stretch: Sequence[Box]) -> Box:
    if len(stretch) == 1:
        return stretch[0]
    first = stretch[0]
    scopes = {box.scope for box in stretch}
    kinds = Counter(box.kind if box.kind != "part" else "" for box in stretch)
    text = ", ".join(f"{n} {_PLURALS[kind] if n > 1 else kind}" for kind, n in kinds.items() if kind)
    shared = _shared_scope([op.name for box in stretch for op in box.ops])
    return replace(
        first,
        kind="part",
        title=shared or text or "part",
        scope=scopes.pop() if len(scopes) == 1 else None,
        ops=tuple(op for box in stretch for op in box.ops),
        notes=((text,) if shared and text else ()) + _gathered(stretch),
    )


def _gathered(stretch: Sequence[Box]) -> tuple[str, ...]:
    """The notes of boxes that become one, each once; of many the first, and how many others."""
    notes = tuple(dict.fromkeys(note for box in stretch for note in box.notes))
    rest = len(notes) - MOST_NOTES
    return (*notes[:MOST_NOTES], f"and {rest} more such notes") if rest > 0 else notes


def _shared_scope(names: Sequence[str]) -> str:
    """The name scope that all names are in."""
    parts = [name.split("/")[:-1] for name in names]
    shared: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/".join(shared)


def _common(reasons: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def op_lines(ops: Sequence[OpText], most: int) -> Iterator[tuple[str, str]]:
    """Ops as lines with the user's place; where there are more than ``most``, each type once with its count."""
    if len(ops) <= most:
        yield from ((op.type, op.line) for op in ops)
        return
    counts = Counter(op.type for op in ops).most_common()
    yield from ((f"{op} ×{n}" if n > 1 else op, "") for op, n in counts[: most - 1])
    if len(counts) >= most:
        rest = sum(n for _, n in counts[most - 1 :])
        yield f"… {rest} more", ""
