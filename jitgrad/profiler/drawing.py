"""Drawing: a picture as SVG that stands alone and follows the reader's light or dark setting; it lays nothing out.

Scopes are told apart by the colour of their boxes, native calls by that of a stripe at the left; forward ops are in the
left column of a box and gradient ops in the right one. What there is no room for (all ops with their lines, reasons)
appears when the pointer rests on it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from jitgrad.profiler.arrows import draw_arrows
from jitgrad.profiler.collapsing import collapse
from jitgrad.profiler.layout import Layout, Size, lay_out
from jitgrad.profiler.picture import Box, OpText, Picture, op_lines
from jitgrad.records import dataclass

LINE, CHARACTER, PADDING, HEADER = 15.0, 6.7, 10.0, 22.0
_MARGIN = 16.0
_LINES, _LINES_OF_PARTS = 14, 6
_COLOURS, _STRIPES = 8, 6
_MOST_KEYS = 12
_STRIPE = 4.0
_NOTE = 60  # characters of a line of a note

STYLE = """
.jg { font: 11px ui-monospace, Menlo, Consolas, monospace; --ink: #1c2430; --soft: #667085; --paper: #ffffff;
  --edge: #98a2b3; --refused: #c2410c; --h0: #dbeafe; --h1: #dcfce7; --h2: #fef3c7; --h3: #fce7f3; --h4: #e0e7ff;
  --h5: #ccfbf1; --h6: #ffedd5; --h7: #ede9fe; --none: #f2f4f7; --s0: #2563eb; --s1: #d97706; --s2: #059669;
  --s3: #db2777; --s4: #7c3aed; --s5: #475569; }
@media (prefers-color-scheme: dark) { .jg { --ink: #e6e9ef; --soft: #9aa4b2; --paper: #14181f; --edge: #667085;
  --refused: #fb923c; --h0: #1e3a5f; --h1: #14432a; --h2: #4a3a10; --h3: #4a1d38; --h4: #2b2f63; --h5: #134040;
  --h6: #4b2a12; --h7: #35265c; --none: #262c36; --s0: #60a5fa; --s1: #fbbf24; --s2: #34d399; --s3: #f472b6;
  --s4: #a78bfa; --s5: #cbd5e1; } }
.jg text { fill: var(--ink); } .jg .soft { fill: var(--soft); } .jg .head { font-weight: 600; }
.jg .edge text, .jg .refused text { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.jg rect.box { stroke: var(--edge); } .jg path { fill: none; stroke: var(--edge); stroke-width: 1.2; }
.jg .refused path { stroke: var(--refused); } .jg .refused text { fill: var(--refused); }
.jg line { stroke: var(--edge); stroke-width: .6; }
.jg .kind-blas rect.box { stroke-width: 2; } .jg .kind-numpy rect.box { stroke-dasharray: 4 3; }
.jg a:hover rect.box, .jg a:focus rect.box { stroke: var(--ink); stroke-width: 2; }
"""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The two columns of lines in a box."""

    forward: tuple[tuple[str, str], ...]
    gradient: tuple[tuple[str, str], ...]

    @property
    def width_of_forward(self) -> float:
        return _column_width(self.forward)

    @property
    def width_of_gradient(self) -> float:
        return _column_width(self.gradient)

    @property
    def left_of_gradient(self) -> float:
        """Where the second column begins."""
        return PADDING + (self.width_of_forward + 2 * PADDING if self.forward else 0.0)


@dataclass(frozen=True, slots=True)
class _Key:
    """Which colours stand for what: scopes for boxes, native calls for stripes, where a picture has several."""

    scopes: tuple[str, ...]
    groups: tuple[str, ...]

    def box(self, scope: str | None) -> str:
        return f"--h{self.scopes.index(scope) % _COLOURS}" if scope is not None else "--none"

    def stripe(self, group: str) -> str | None:
        return f"--s{self.groups.index(group) % _STRIPES}" if group and len(self.groups) > 1 else None

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Colours with what they stand for; of many the first."""
        found = [(self.box(scope), scope) for scope in self.scopes]
        found += [(stripe, group) for group in self.groups if (stripe := self.stripe(group)) is not None]
        rest = len(found) - _MOST_KEYS
        return [*found[:_MOST_KEYS], ("--paper", f"and {rest} more")] if rest > 0 else found


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A picture as SVG, its upper left corner at the origin."""

    lines: tuple[str, ...]
    size: Size


def draw(picture: Picture, links: Mapping[int, str] | None = None) -> str:
    """The picture as an SVG document; a large one is collapsed first. ``links``: addresses of boxes by key."""
    picture = collapse(picture)
    key = _key(picture)
    drawn = _drawn(picture, key, links or {})
    body = [*_legend(key, -_top(key)), *drawn.lines]
    return _document(f"{len(picture.boxes)} parts of a compiled program", body, drawn.size, _top(key))


def _drawn(picture: Picture, key: _Key, links: Mapping[int, str]) -> _Drawn:
    columns = {box.key: _columns(box) for box in picture.boxes}
    bodies = {box.key: _bodies(box, key) for box in picture.boxes}
    sizes = {box.key: _size(box, columns[box.key], bodies[box.key]) for box in picture.boxes}
    layout = lay_out(sizes, [(arrow.source, arrow.target) for arrow in picture.arrows])
    boxes = (
        _linked(_box(box, columns[box.key], bodies[box.key], layout, sizes[box.key], key), links.get(box.key))
        for box in picture.boxes
    )
    return _Drawn((*draw_arrows(picture.arrows, layout, sizes), *boxes), layout.size)


def _bodies(box: Box, key: _Key) -> _Drawn:
    """The bodies of a loop or a choice, one under the other, each with its name above."""
    lines: list[str] = []
    width = y = 0.0
    for body in box.inner:
        drawn = _drawn(collapse(body.picture), key, {})
        lines.append(_text(0.0, y + LINE, body.name, "soft"))
        lines.append(f'<g transform="translate(0 {y + 1.6 * LINE:.1f})">{"".join(drawn.lines)}</g>')
        y += drawn.size.height + 2.4 * LINE
        width = max(width, drawn.size.width, CHARACTER * len(body.name))
    return _Drawn(tuple(lines), Size(width, y))


def _document(title: str, body: Sequence[str], size: Size, top: float) -> str:
    """The parts on paper with a margin, and so much room above them."""
    width = max(size.width, 220.0) + 2 * _MARGIN
    height = size.height + 2 * _MARGIN + top
    left, upper = -_MARGIN, -_MARGIN - top
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="jg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="{left:g} {upper:.1f} {width:.1f} {height:.1f}" role="img">',
            f"<title>{title}</title><style>{STYLE}</style>",
            f'<rect x="{left:g}" y="{upper:.1f}" width="{width:.1f}" height="{height:.1f}" style="fill:var(--paper)"/>',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8" style="fill:var(--edge)"/></marker></defs>',
            *body,
            "</svg>",
        ]
    )


def _key(picture: Picture) -> _Key:
    boxes = list(_all_boxes(picture))
    scopes = dict.fromkeys(box.scope for box in boxes if box.scope is not None)
    groups = dict.fromkeys(box.group for box in boxes if box.group)
    return _Key(tuple(scopes), tuple(groups))


def _all_boxes(picture: Picture) -> Iterator[Box]:
    """Its boxes and those of bodies within."""
    for box in picture.boxes:
        yield box
        for body in box.inner:
            yield from _all_boxes(body.picture)


def _top(key: _Key) -> float:
    return LINE * 1.4 * len(key.lines) + (LINE * 0.4 if key.lines else 0.0)


def _legend(key: _Key, top: float) -> Iterator[str]:
    for k, (colour, text) in enumerate(key.lines):
        y = top + k * LINE * 1.4
        yield (
            f'<rect x="0" y="{y:.1f}" width="12" height="12" rx="2" style="fill:var({colour})"/>'
            f'<text x="18" y="{y + 10:.1f}">{escape(text)}</text>'
        )


# -- boxes ---------------------------------------------------------------------------------------------------


def _columns(box: Box) -> _Columns:
    most = _LINES_OF_PARTS if box.members else _LINES

    def lines(is_gradient: bool) -> tuple[tuple[str, str], ...]:
        return tuple(op_lines([op for op in box.ops if op.is_gradient is is_gradient], most))

    return _Columns(lines(False), lines(True))


def _column_width(lines: Sequence[tuple[str, str]]) -> float:
    return max((CHARACTER * (len(op) + (len(line) + 2 if line else 0)) for op, line in lines), default=0.0)


def _size(box: Box, columns: _Columns, bodies: _Drawn) -> Size:
    both = bool(columns.forward and columns.gradient)
    inside = columns.width_of_forward + columns.width_of_gradient + 2 * PADDING * both
    notes = _note_lines(box)
    head = max([CHARACTER * 1.08 * len(box.title), *(CHARACTER * len(note) for note in notes)])
    lines = max(len(columns.forward), len(columns.gradient)) + len(notes)
    height = HEADER + LINE * lines + (6.0 if lines else 2.0) + bodies.size.height
    return Size(max(inside, head, bodies.size.width) + 2 * PADDING, height)


def _note_lines(box: Box) -> list[str]:
    return [line for note in box.notes for line in textwrap.wrap(note, _NOTE)]


def _box(box: Box, columns: _Columns, bodies: _Drawn, layout: Layout, size: Size, key: _Key) -> str:
    x, y = layout.corners[box.key]
    frame = f'width="{size.width:.1f}" height="{size.height:.1f}" rx="5"'
    baseline = HEADER + 10.0
    notes = [_text(PADDING, baseline + k * LINE, note, "soft") for k, note in enumerate(_note_lines(box))]
    parts = [
        f'<g class="kind-{box.kind}" transform="translate({x:.1f} {y:.1f})"><title>{escape(_hover(box))}</title>',
        f'<rect class="box" {frame} style="fill:var({key.box(box.scope)})"/>',
        _stripe(key.stripe(box.group), size),
        _text(PADDING, 15.0, box.title, "head"),
        *notes,
        *_ops(columns, baseline + len(notes) * LINE, size.height - bodies.size.height),
        *_placed_bodies(bodies, size),
        "</g>",
    ]
    return "".join(parts)


def _placed_bodies(bodies: _Drawn, size: Size) -> Iterator[str]:
    if bodies.lines:
        y = size.height - bodies.size.height
        yield f'<g transform="translate({PADDING:g} {y:.1f})">{"".join(bodies.lines)}</g>'


def _stripe(colour: str | None, size: Size) -> str:
    if colour is None:
        return ""
    return f'<rect width="{_STRIPE:g}" height="{size.height:.1f}" rx="2" style="fill:var({colour})"/>'


def _ops(columns: _Columns, baseline: float, bottom: float) -> Iterator[str]:
    """Forward ops, gradient ops, and a line between them."""
    for left, lines in ((PADDING, columns.forward), (columns.left_of_gradient, columns.gradient)):
        for k, (op, line) in enumerate(lines):
            yield _op(left, baseline + k * LINE, op, line)
    if columns.forward and columns.gradient:
        middle, top = columns.left_of_gradient - PADDING, baseline - 10.0
        yield f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{top:.1f}" y2="{bottom - 5:.1f}"/>'


def _linked(box: str, address: str | None) -> str:
    return box if address is None else f'<a href="{escape(address)}">{box}</a>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _op(x: float, y: float, op: str, line: str) -> str:
    place = f'<tspan class="soft" dx="8">{escape(line)}</tspan>' if line else ""
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(op)}{place}</text>'


def _hover(box: Box) -> str:
    def line(op: OpText) -> str:
        return f"{'gradient' if op.is_gradient else 'forward '}  {op.name}  {op.line}"

    return "\n".join([box.title, *filter(None, [box.group]), *box.notes, *map(line, box.ops[:200])])
