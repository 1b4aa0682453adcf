"""The pages about the design can be read and followed: links reach headings, files exist, and no page is a logbook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (
    "design", "tracing", "products", "factors", "kernels", "axes", "positions", "loops", "first-calls", "threads",
    "new-shapes", "growth",
)  # fmt: skip
LONGEST_LINE, LONGEST_PARAGRAPH, LONGEST_CELL = 120, 8, 250


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text()


def anchors(text: str) -> set[str]:
    """What headings are called in links."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def paragraphs(text: str) -> Iterator[list[str]]:
    """Paragraphs and items of lists; neither tables nor code."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = ["" if line.startswith(("|", "#")) else line for line in prose.splitlines()]
    items = re.sub(r"\n(?=\s*(?:-|\d+\.) )", "\n\n", "\n".join(lines))
    for paragraph in items.split("\n\n"):
        yield paragraph.strip().splitlines()


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_links_reach_headings(path: Path) -> None:
    for page, anchor in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", path.read_text()):
        assert anchor in anchors((DOCS / page).read_text() if page else path.read_text()), f"{page}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    files = [f"/{file.relative_to(ROOT).as_posix()}" for folder in ("jitgrad", "tests", "benchmarks", "examples")
             for file in (ROOT / folder).rglob("*.py")]  # fmt: skip
    for name in re.findall(r"`([\w/]+\.py)[`:]", text_of(page)):
        assert any(file.endswith(f"/{name}") for file in files), name


def test_all_files_of_products_are_listed() -> None:
    listed = set(re.findall(r"`(\w+\.py)`", text_of("products").split("\n## Files\n")[1]))
    assert {file.name for file in (ROOT / "jitgrad/compiler/products").glob("*.py")} - {"__init__.py"} == listed


def test_all_packages_of_the_compiler_are_listed() -> None:
    folders = {file.parent.name for file in (ROOT / "jitgrad/compiler").glob("*/__init__.py")}
    assert folders <= set(re.findall(r"^\| `(\w+)/` \|", text_of("design"), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_no_logbooks(page: str) -> None:
    text = text_of(page)
    lines = text.splitlines()
    assert not [line for line in lines if len(line) > LONGEST_LINE and not line.startswith("|")]
    assert not [cell for line in lines if line.startswith("|") for cell in line.split("|") if len(cell) > LONGEST_CELL]
    assert not [lines for lines in paragraphs(text) if len(lines) > LONGEST_PARAGRAPH]
