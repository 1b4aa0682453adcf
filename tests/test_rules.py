"""docs/rules.md is true as far as it can be checked: the tests that it names exist, and no rule is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "rules.md").read_text()
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and "`test_" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[:40])
def test_each_rule_names_tests_that_exist(row: str) -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
    assert named and row.count("`test_") == len(named)
    for file, name in named:
        assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE), f"{file}::{name}"


def test_no_rule_is_left_out() -> None:
    """Scopes 1.1 to 1.8, scopes of gradients 2.1 to 2.6, gradients() 3.1 to 3.10."""
    numbers = [tuple(map(int, found)) for found in re.findall(r"^\| (\d)\.(\d+) \|", TEXT, re.MULTILINE)]
    wanted = [(section, number) for section, count in ((1, 8), (2, 6), (3, 10)) for number in range(1, count + 1)]
    assert [n for n in wanted if n not in numbers] == []
    assert numbers == sorted(set(numbers))
