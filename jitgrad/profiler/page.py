"""Pages: one HTML file that needs no other, in the reader's light or dark setting, on wide and narrow screens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from jitgrad.profiler.page_script import SCRIPT

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
.wide { overflow-x: auto; } .zoom { overflow: auto; max-height: 85vh; }
.tools { display: flex; gap: .3rem; margin: .3rem 0; }
.tools button { min-width: 2rem; padding: .1rem .4rem; color: var(--ink); background: var(--panel);
  border: 1px solid var(--rule); border-radius: 4px; cursor: pointer; }
svg.times { font: 11px system-ui, sans-serif; display: block; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td:first-child { max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
th.text, td.text { text-align: left; white-space: normal; min-width: 9rem; }
@media (max-width: 40rem) {
  table, tbody, tr { display: block; } thead { display: none; }
  tr { border-bottom: 1px solid var(--rule); padding: .4rem 0; }
  td, td.text { display: inline-block; border: 0; padding: 0 .7rem 0 0; min-width: 0; text-align: left; }
  td:first-child { display: block; max-width: none; font-weight: 600; overflow-wrap: anywhere; }
  td:not(:first-child)::before { content: attr(data-head) " "; color: var(--soft); } td.none { display: none; }
}
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
            f"<script>{SCRIPT}</script></body></html>\n",
        )
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> str:
    """Cells of text as an HTML table that scrolls in itself where it is too wide; on a narrow screen, each row is a
    paragraph whose figures have their heads beside them. The columns in ``texts`` hold words, and break lines.
    """
    kinds = ["text" if name in texts else "" for name in head]
    heads = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(head, kinds, strict=True))
    body = "\n".join(_row(head, kinds, row) for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _row(head: Sequence[str], kinds: Sequence[str], cells: Sequence[str]) -> str:
    def cell(name: str, kind: str, text: str) -> str:
        kind = f"{kind} none".strip() if text in ("", "-") else kind
        return f'<td class="{kind}" data-head="{escape(name)}" title="{escape(text)}">{escape(text)}</td>'

    return "<tr>" + "".join(map(cell, head, kinds, cells)) + "</tr>"


def zoomable(picture: str) -> str:
    """An SVG in a frame that the reader can move and widen it in."""
    return f'<div><div class="zoom">{picture}</div></div>'


def section(title: str, *parts: str) -> str:
    """A heading and what is under it."""
    return "\n".join((f"<h2>{escape(title)}</h2>", *parts))


def folded(title: str, part: str, is_open: bool = False, name: str = "") -> str:
    """A part that the reader opens, or a link to its name."""
    state = (f' id="{escape(name)}"' if name else "") + (" open" if is_open else "")
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
