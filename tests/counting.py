"""Counting calls: growth with the size of the input, measured without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def count_calls(run: Callable[[], Any]) -> int:
    """How many calls of Python and C functions ``run`` makes."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def assert_linear(run: Callable[[int], Callable[[], Any]], size: int) -> None:
    """``run(n)`` prepares a run of size n; twice the size may take 2.3 times the calls."""
    small, large = run(size), run(2 * size)
    assert count_calls(large) < 2.3 * count_calls(small)
