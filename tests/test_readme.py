"""The README is true: its Python code runs and prints what it says, its commands and links exist."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
DOCUMENTS = [README, *(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))]


def run(code: str, namespace: dict[str, Any]) -> str:
    """What the code prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "example.py", "exec", dont_inherit=True), namespace)
    return printed.getvalue()


@pytest.mark.parametrize("text", DOCUMENTS, ids=lambda text: text.splitlines()[0])
def test_code_runs_and_prints_what_is_said(text: str) -> None:
    """Python blocks run in order; where one prints, the text block after it holds what it printed."""
    namespace: dict[str, Any] = {"__name__": "readme"}
    blocks = BLOCK.findall(text)
    for (language, code), following in itertools.pairwise([*blocks, ("", "")]):
        if language == "python":
            printed = run(code, namespace)
            assert not printed or following == ("text", printed)


@pytest.mark.quick
def test_set_up_takes_two_lines() -> None:
    """.ci/run takes them from here."""
    lines = re.findall(r"^python -m venv .*$", README, re.MULTILINE)
    assert len(lines) == 2
    assert "examples/digits.py" in lines[0] and "pytest" in lines[1]


@pytest.mark.quick
def test_files_and_links_exist() -> None:
    for text, folder in zip(DOCUMENTS, [ROOT] + [ROOT / "docs"] * (len(DOCUMENTS) - 1), strict=True):
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert target.startswith("http") or (folder / target).exists(), target
    for path in re.findall(r"examples/\w+\.py", README):
        assert (ROOT / path).exists(), path
