"""A picture of a run: per workload, each peer's time over jitgrad's, on a logarithmic axis, as SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence

from benchmarks.frameworks import PEERS
from benchmarks.report import Row

NAMES = {"jax": "JAX", "torch": "torch.compile", "pytensor": "PyTensor", "interpreter": "NumPy"}
COLOURS = {"jax": "#4878a8", "torch": "#d1703c", "pytensor": "#5a9a5a", "interpreter": "#999999"}
LEFT, WIDTH, LINE = 330, 620, 26
LOWEST, HIGHEST = 0.25, 256.0


def picture(rows: Sequence[Row]) -> str:
    """The text of an SVG file."""
    height = LINE * (len(rows) + 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 30}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_legend(),
        *_axis(height),
        *(part for k, row in enumerate(rows) for part in _line(row, LINE * (k + 2))),
        "</svg>",
    ]
    return "\n".join(parts)


def _place(ratio: float) -> float:
    bounded = min(max(ratio, LOWEST), HIGHEST)
    return LEFT + WIDTH * math.log(bounded / LOWEST) / math.log(HIGHEST / LOWEST)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _dot(x: float, y: float, name: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[name]}"/>'


def _legend() -> Iterator[str]:
    yield _text(10, 20, "time over jitgrad's")
    for k, (name, label) in enumerate(NAMES.items()):
        yield _dot(LEFT + 150 * k, 16, name)
        yield _text(LEFT + 150 * k + 10, 20, label)


def _axis(height: int) -> Iterator[str]:
    ratio = LOWEST
    while ratio <= HIGHEST:
        x, colour = _place(ratio), "#333" if ratio == 1 else "#ddd"
        yield f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{LINE}" y2="{height - LINE}" stroke="{colour}"/>'
        yield _text(x, height - 8, f"{ratio:g}", "middle")
        ratio *= 2


def _line(row: Row, y: int) -> Iterator[str]:
    yield _text(LEFT - 12, y + 4, row.workload.title, "end")
    for name in ("interpreter", *PEERS):
        ratio = row.faster_than(name)
        if ratio is not None:
            yield _dot(_place(ratio), y, name)
