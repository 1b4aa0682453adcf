"""Pictures: a compiled program as boxes and arrows, data only; they are made small in collapsing.py and drawn in
drawing.py.

A box is what runs as one: a kernel with its fused ops, a BLAS call, a NumPy call. Boxes are in running order, and every
arrow points from an earlier to a later one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jitgrad.records import dataclass


@dataclass(frozen=True, slots=True)
class OpText:
    """An op in a box: its type, where the user wrote it, its name, and whether it belongs to a gradient."""

    type: str
    line: str
    name: str
    is_gradient: bool


@dataclass(frozen=True, slots=True)
class Box:
    """What runs as one. ``kind`` is kernel, blas, numpy, input, output, or part for several of them, whose keys are the
    ``members``. ``group`` is the native call that it belongs to. ``inner`` are the bodies of a loop or a choice.
    """

    key: int
    kind: str
    title: str
    scope: str | None
    ops: tuple[OpText, ...]
    notes: tuple[str, ...] = ()
    group: str = ""
    members: tuple[int, ...] = ()
    inner: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """What a loop runs in each step, or a choice where it is chosen, under its name."""

    name: str
    picture: Picture


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
