"""Tests verify every stage, compile kernels once, and keep them beside pytest's own cache, not in the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("JITGRAD_VERIFY", "1")
os.environ.setdefault("JITGRAD_QUICK_START", "0")
os.environ.setdefault("JITGRAD_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "kernels"))


# Test modules after each of whose tests nothing eager is left alive.
LEAVE_NOTHING = {
    "test_eager", "test_items", "test_optimize", "test_tapes", "test_tapes_in_graphs", "test_training",
    "test_variables",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.module.__name__.rpartition(".")[2] not in LEAVE_NOTHING:
        yield
        return
    from tests.leaks import left_since, living

    before = set(living())
    yield
    left = left_since(before)
    assert not left, f"alive after the test: {dict(left)}"
