"""Drawing: a picture as SVG that stands alone and follows the reader's light or dark setting; it lays nothing out.

Clusters are told apart by colour, one per scope; forward ops are in the left column of a box and gradient ops in the
right one. What there is no room for (all ops with their lines, reasons) appears when the pointer rests on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from jitgrad.profiler.layout import Layout, Point, Size, lay_out
from jitgrad.profiler.picture import Arrow, Box, OpText, Picture, collapse, op_lines
from jitgrad.profiler.tables import bytes_text

LINE, CHARACTER, PADDING, HEADER = 15.0, 6.7, 10.0, 22.0
_MARGIN = 16.0
_LINES = 14
_COLOURS = 8

STYLE = """
.jg { font: 11px ui-monospace, Menlo, Consolas, monospace; --ink: #1c2430; --soft: #667085; --paper: #ffffff;
  --edge: #98a2b3; --refused: #c2410c; --h0: #dbeafe; --h1: #dcfce7; --h2: #fef3c7; --h3: #fce7f3; --h4: #e0e7ff;
  --h5: #ccfbf1; --h6: #ffedd5; --h7: #ede9fe; --none: #f2f4f7; }
@media (prefers-color-scheme: dark) { .jg { --ink: #e6e9ef; --soft: #9aa4b2; --paper: #14181f; --edge: #667085;
  --refused: #fb923c; --h0: #1e3a5f; --h1: #14432a; --h2: #4a3a10; --h3: #4a1d38; --h4: #2b2f63; --h5: #134040;
  --h6: #4b2a12; --h7: #35265c; --none: #262c36; } }
.jg text { fill: var(--ink); } .jg .soft { fill: var(--soft); } .jg .head { font-weight: 600; }
.jg rect.box { stroke: var(--edge); } .jg path { fill: none; stroke: var(--edge); stroke-width: 1.2; }
.jg .refused path { stroke: var(--refused); } .jg .refused text { fill: var(--refused); }
.jg line { stroke: var(--edge); stroke-width: .6; }
.jg .kind-blas rect.box { stroke-width: 2; } .jg .kind-numpy rect.box { stroke-dasharray: 4 3; }
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


def draw(picture: Picture) -> str:
    """The picture as an SVG document; a large one is collapsed first."""
    picture = collapse(picture)
    columns = {box.key: _columns(box) for box in picture.boxes}
    sizes = {box.key: _size(box, columns[box.key]) for box in picture.boxes}
    layout = lay_out(sizes, [(arrow.source, arrow.target) for arrow in picture.arrows])
    scopes = list(dict.fromkeys(box.scope for box in picture.boxes if box.scope is not None))
    legend = [*_legend(scopes)]
    top = LINE * 1.6 * len(scopes)
    width = max(layout.size.width, 220.0) + 2 * _MARGIN
    height = layout.size.height + 2 * _MARGIN + top
    corner = f'x="{-_MARGIN:g}" y="{-_MARGIN - top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="jg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-_MARGIN:g} {-_MARGIN - top:.1f} {width:.1f} {height:.1f}" role="img">',
        f"<title>{len(picture.boxes)} parts of a compiled program</title><style>{STYLE}</style>",
        f'<rect {corner} style="fill:var(--paper)"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8" style="fill:var(--edge)"/></marker></defs>',
        *(f'<g transform="translate(0 {-top:.1f})">{item}</g>' for item in legend),
        *(_arrow(arrow, layout) for arrow in picture.arrows),
        *(_box(box, columns[box.key], layout, sizes[box.key], scopes) for box in picture.boxes),
        "</svg>",
    ]
    return "\n".join(parts)


def _columns(box: Box) -> _Columns:
    def lines(is_gradient: bool) -> tuple[tuple[str, str], ...]:
        return tuple(op_lines([op for op in box.ops if op.is_gradient is is_gradient], _LINES))

    return _Columns(lines(False), lines(True))


def _column_width(lines: Sequence[tuple[str, str]]) -> float:
    return max((CHARACTER * (len(op) + (len(line) + 2 if line else 0)) for op, line in lines), default=0.0)


def _size(box: Box, columns: _Columns) -> Size:
    both = bool(columns.forward and columns.gradient)
    inside = columns.width_of_forward + columns.width_of_gradient + 2 * PADDING * both
    head = max([CHARACTER * 1.08 * len(box.title), *(CHARACTER * len(note) for note in box.notes)])
    lines = max(len(columns.forward), len(columns.gradient)) + len(box.notes)
    return Size(max(inside, head) + 2 * PADDING, HEADER + LINE * lines + (6.0 if lines else 2.0))


def _legend(scopes: Sequence[str]) -> Iterator[str]:
    for k, scope in enumerate(scopes):
        y = k * LINE * 1.4
        yield (
            f'<rect x="0" y="{y:.1f}" width="12" height="12" rx="2" style="fill:var(--h{k % _COLOURS})"/>'
            f'<text x="18" y="{y + 10:.1f}">{escape(scope)}</text>'
        )


def _box(box: Box, columns: _Columns, layout: Layout, size: Size, scopes: Sequence[str]) -> str:
    x, y = layout.corners[box.key]
    colour = f"--h{scopes.index(box.scope) % _COLOURS}" if box.scope is not None else "--none"
    parts = [
        f'<g class="kind-{box.kind}" transform="translate({x:.1f} {y:.1f})"><title>{escape(_hover(box))}</title>',
        f'<rect class="box" width="{size.width:.1f}" height="{size.height:.1f}" rx="5" style="fill:var({colour})"/>',
        _text(PADDING, 15.0, box.title, "head"),
    ]
    baseline = HEADER + 10.0
    for note in box.notes:
        parts.append(_text(PADDING, baseline, note, "soft"))
        baseline += LINE
    second = PADDING + (columns.width_of_forward + 2 * PADDING if columns.forward else 0.0)
    for left, lines in ((PADDING, columns.forward), (second, columns.gradient)):
        for k, (op, line) in enumerate(lines):
            parts.append(_op(left, baseline + k * LINE, op, line))
    if columns.forward and columns.gradient:
        middle, top = second - PADDING, baseline - 10.0
        parts.append(f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{top:.1f}" y2="{size.height - 5:.1f}"/>')
    return "".join(parts) + "</g>"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _op(x: float, y: float, op: str, line: str) -> str:
    place = f'<tspan class="soft" dx="8">{escape(line)}</tspan>' if line else ""
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(op)}{place}</text>'


def _hover(box: Box) -> str:
    def line(op: OpText) -> str:
        return f"{'gradient' if op.is_gradient else 'forward '}  {op.name}  {op.line}"

    return "\n".join([box.title, *box.notes, *map(line, box.ops[:200])])


def _arrow(arrow: Arrow, layout: Layout) -> str:
    points = layout.paths[arrow.source, arrow.target]
    x, y = points[len(points) // 2] if len(points) > 2 else _between(points[0], points[-1])
    kind = "refused" if arrow.reason else "edge"
    title = f"{bytes_text(arrow.nbytes)}" + (f"\nnot one kernel: {arrow.reason}" if arrow.reason else "")
    return (
        f'<g class="{kind}"><title>{escape(title)}</title><path d="{_curve(points)}" marker-end="url(#tip)"/>'
        f'<text class="soft" x="{x + 4:.1f}" y="{y:.1f}">{escape(bytes_text(arrow.nbytes))}</text></g>'
    )


def _between(a: Point, b: Point) -> Point:
    return (a[0] + b[0]) / 2, (a[1] + b[1]) / 2 + 4


def _curve(points: Sequence[Point]) -> str:
    """A smooth line that leaves and enters each point straight down."""
    (x0, y0), *rest = points
    parts = [f"M{x0:.1f} {y0:.1f}"]
    for x, y in rest:
        half = (y - y0) / 2
        parts.append(f"C{x0:.1f} {y0 + half:.1f} {x:.1f} {y - half:.1f} {x:.1f} {y:.1f}")
        x0, y0 = x, y
    return "".join(parts)
