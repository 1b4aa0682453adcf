"""Arithmetic counted in kernels, and the limits that follow from it and from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from benchmarks.limits import Limit, limit_of, share_of_limit
from benchmarks.measure import Figures
from jitgrad.profiler.operations import Operations, operations


def _counted(f: Callable[..., Any], *arrays: Any) -> dict[int, Operations]:
    [(stage, given)] = jg.compile(f).stages(*arrays)
    return operations(stage.executable(given))


def test_operations_are_counted_in_loops() -> None:
    x = np.ones((30, 70))
    assert _counted(lambda x, y: x * y + x, x, x)[8] == Operations(products=2100, others=2100)
    assert _counted(lambda x: np.sqrt(x) / (x + 1), x.astype(np.float32))[4] == Operations(divisions=4200, others=2100)


def test_rows_of_a_ring_are_counted_once() -> None:
    u = np.ones((300, 71))
    found = _counted(lambda u: np.diff(np.exp(u) * 2.0, axis=0), u)[8]
    assert found.divisions + found.products >= 300 * 70
    assert found.others + found.products < 300 * 75 * 40


def test_sums_and_functions_are_counted() -> None:
    x = np.ones((30, 70))
    sums = _counted(lambda x: np.sum(x, axis=1), x)[8]
    assert 2100 <= sums.others <= 2200
    tanh = _counted(np.tanh, x)[8]
    assert tanh.products >= 10 * x.size
    assert tanh.divisions == x.size


def test_updates_of_a_table_are_counted_once() -> None:
    """Chunks share a scatter of long rows out; each update is added by one of them."""
    rows = np.arange(300) * 7 % 200
    gradient = jg.grad(lambda table, updates: np.sum(table[rows] * updates))
    found = _counted(gradient, np.ones((200, 64), np.float32), np.ones((300, 64), np.float32))[4]
    assert found == Operations(others=300 * 64)


@pytest.mark.quick
def test_the_longer_limit_is_named() -> None:
    rates = {"products": {"4": 1e9}, "divisions": {"4": 1e8}, "issued": {"4": 2e9}}
    figures = {
        "stream": Figures(turns=[[3e-3, 2e-3]], details={"level": "L3"}),
        "arithmetic": Figures(turns=[[1.0]], details=rates),
        "jitgrad": Figures(turns=[[1.0]], details={"operations": {"4": [1e6, 1e5, 1e6]}}),
    }
    assert limit_of(figures) == Limit(2e-3, "L3")
    figures["products"] = Figures(turns=[[4e-3, 5e-3]])
    limit = limit_of(figures)
    assert limit is not None
    assert limit.seconds == pytest.approx(5.05e-3)  # all operations take longer than products or divisions alone
    assert limit.what == "BLAS+ALU"
    assert limit_of({}) is None


@pytest.mark.quick
def test_the_share_of_the_limit_is_that_of_the_same_turn() -> None:
    figures = {
        "stream": Figures(turns=[[1e-3, 2e-3], [3e-3], [2e-3]], details={"level": "memory"}),
        "jitgrad": Figures(turns=[[2e-3, 1e-3, 4e-3], [4e-3], [2e-3]]),
    }
    assert share_of_limit(figures) == pytest.approx(0.75)  # of 0.5, 0.75 and 1; the best of all would be 0.5
    assert share_of_limit({"jitgrad": figures["jitgrad"]}) is None


@pytest.mark.quick
def test_arithmetic_is_as_slow_in_a_turn_as_its_own_measurement() -> None:
    rates = {kind: {"4": 1e9} for kind in ("products", "divisions", "issued")}
    figures = {
        "arithmetic": Figures(turns=[[1.0], [2.0]], details=rates),
        "jitgrad": Figures(turns=[[2e-3], [4e-3]], details={"operations": {"4": [1e6, 0, 0]}}),
    }
    assert share_of_limit(figures) == pytest.approx(0.5)
