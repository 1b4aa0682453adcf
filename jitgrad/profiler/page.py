"""Pages: one HTML file that needs no other, in the reader's light or dark setting, on wide and narrow screens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --paper: #ffffff; --panel: #f5f6f8; --rule: #d5dae1;
  --forward: #2f6fb0; --backward: #b4521f; --both: #7a4fa3; --other: #7b8794; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa4b2; --paper: #14181f; --panel: #1c222b;
  --rule: #343c48; --forward: #6aa9e9; --backward: #f09a62; --both: #b996e6; --other: #8b97a6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 82rem; padding: 1.2rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: .2rem 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { max-width: 60rem; } .soft { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td:first-child { max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
.bar { display: inline-block; height: .7rem; background: var(--forward); vertical-align: middle; }
details { margin: .4rem 0; } summary { cursor: pointer; }
pre { overflow-x: auto; background: var(--panel); padding: .8rem; }
li { margin: .3rem 0; }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; border-radius: 2px; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole HTML document; ``parts`` are HTML, ``title`` is text."""
    name = escape(title)
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{STYLE}</style></head><body>",
            f"<h1>{name}</h1>",
            *parts,
            "</body></html>\n",
        )
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells of text as an HTML table that scrolls in itself where it is too wide."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    body = "\n".join(lines[1:])
    return f'<div class="wide"><table><thead>{lines[0]}</thead><tbody>\n{body}\n</tbody></table></div>'


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f'<{tag} title="{escape(cell)}">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"


def section(title: str, *parts: str) -> str:
    """A heading and what is under it."""
    return "\n".join((f"<h2>{escape(title)}</h2>", *parts))


def folded(title: str, part: str, is_open: bool = False) -> str:
    """A part that the reader opens."""
    state = " open" if is_open else ""
    return f"<details{state}><summary>{escape(title)}</summary>{part}</details>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    """Text with its line ends and spaces."""
    return f"<pre>{escape(text)}</pre>"


def items(texts: Iterable[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
