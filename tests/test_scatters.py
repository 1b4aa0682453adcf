"""Scatters that several threads share: the same bits as one update after the other, whoever makes which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from benchmarks.steps import Steps
from jitgrad.compiler.machine import compilation
from jitgrad.opdef import Scatter
from tests.oracles import python_results

COUNTS = (1, 2, 3, 5)
Rng = np.random.Generator
along = np.take_along_axis


@pytest.fixture(autouse=True)
def many_threads() -> Iterator[None]:
    before = jg.get_num_threads()
    jg.set_num_threads(max(COUNTS))
    yield
    jg.set_num_threads(before)


def rows_of(shape: tuple[int, ...], rows: int, dtype: Any = np.float32) -> Callable[[Rng], list[Any]]:
    """A table of some rows, positions from both ends, and what each row that is looked up is multiplied by."""

    def make(rng: Rng) -> list[Any]:
        at = rng.integers(-rows, rows, shape)
        at.flat[::3] = at.flat[0]  # one row has a third of all updates
        return [rng.standard_normal((rows, 37)).astype(dtype), at, rng.standard_normal((*shape, 37)).astype(dtype)]

    return make


def whole(rng: Rng, *shape: int) -> Any:
    """Numbers of which sums of products are exact."""
    return rng.integers(-9, 10, shape).astype(float)


def looked_up(table: Any, at: Any, w: Any) -> Any:
    return np.sum(table[at] * w)


def by_two_positions(table: Any, at: Any, other: Any, w: Any) -> Any:
    return np.sum(table[at, other] * w)


def in_rows(x: Any, at: Any, w: Any) -> Any:
    return np.sum(along(x, at, 1) * w)


def in_columns(x: Any, at: Any, w: Any) -> Any:
    return np.sum(np.take(x, at, axis=1) * w)


def joined(table: Any, at: Any, w: Any) -> Any:
    return np.sum(table[np.concatenate([at[::-1], at])] * np.concatenate([w, w]))


def pair_energy(x: Any, i: Any, j: Any) -> Any:
    d = x[i] - x[j]
    return np.sum(np.sum(d * d, axis=-1) ** 2)


def areas(x: Any, faces: Any) -> Any:
    corners = x[faces]
    return np.sum(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]) ** 2)


def in_boxes(x: Any, at: Any, w: Any) -> Any:
    return np.sum(x[:, at] * w)


cases: dict[str, tuple[Callable[..., Any], Callable[[Rng], list[Any]]]] = {
    "one position each": (looked_up, rows_of((300,), 200)),
    "bags": (looked_up, rows_of((40, 9), 65)),
    "boxes": (looked_up, rows_of((7, 3, 5), 1000)),
    "float64": (looked_up, rows_of((300,), 130, np.float64)),
    "few updates": (looked_up, rows_of((3,), 2000)),
    "joined": (joined, rows_of((100,), 200)),
    "two positions": (
        by_two_positions,
        lambda rng: [
            rng.standard_normal((70, 3, 33)), rng.integers(-70, 70, 90), rng.integers(-3, 3, 90),
            rng.standard_normal((90, 33)),
        ],
    ),
    "within rows": (
        in_rows,
        lambda rng: [
            rng.standard_normal((90, 6)), rng.integers(-6, 6, (90, 30)), rng.standard_normal((90, 30)),
        ],
    ),
    "columns": (
        in_columns,
        lambda rng: [rng.standard_normal((80, 9)), rng.integers(-9, 9, 50), rng.standard_normal((80, 50))],
    ),
    "few rows": (looked_up, rows_of((300,), 20)),
    "short rows": (
        looked_up,
        lambda rng: [rng.standard_normal((90, 5)), rng.integers(0, 90, 400), rng.standard_normal((400, 5))],
    ),
    "eight columns": (
        looked_up,
        lambda rng: [rng.standard_normal((90, 8)), rng.integers(0, 90, 400), rng.standard_normal((400, 8))],
    ),
    "pairs": (
        pair_energy,
        lambda rng: [whole(rng, 60, 3), rng.integers(-60, 60, 300), rng.integers(0, 60, 300)],
    ),
    "triangles": (areas, lambda rng: [whole(rng, 70, 3), rng.integers(-70, 70, (150, 3))]),
    "small matrices": (
        looked_up,
        lambda rng: [
            rng.standard_normal((70, 3, 2)), rng.integers(-70, 70, (40, 9)), rng.standard_normal((40, 9, 3, 2)),
        ],
    ),
    "points of batches": (
        in_boxes,
        lambda rng: [rng.standard_normal((9, 50, 3)), rng.integers(-50, 50, 80), rng.standard_normal((9, 80, 3))],
    ),
}  # fmt: skip
ON_ONE_THREAD = ("few rows", "short rows", "eight columns", "small matrices")
BY_PLACES = ("short rows", "pairs", "triangles", "small matrices", "points of batches")


@pytest.mark.parametrize("name", cases)
def test_each_place_adds_its_updates_in_their_order(name: str) -> None:
    fn, make = cases[name]
    arrays = make(np.random.default_rng(1))
    f = jg.compile(jg.grad(fn))
    expected = f.interpret(*arrays)
    for threads in COUNTS:
        jg.set_num_threads(threads)
        np.testing.assert_array_equal(f(*arrays), expected)


@pytest.mark.parametrize("name", cases)
def test_in_any_number_of_chunks(name: str) -> None:
    fn, make = cases[name]
    arrays = make(np.random.default_rng(2))
    f = jg.compile(jg.grad(fn))
    expected = f.interpret(*arrays)
    (stage, given), *_ = f.stages(*arrays)
    executable = stage.executable(given)
    np.testing.assert_array_equal(python_results(executable.source, given)[0], expected)
    steps = Steps(executable, given)
    is_cut = steps.bound.steps[:, 2] > 1
    assert is_cut.any() == (name not in ON_ONE_THREAD)
    for chunks in (1, 2, 4):
        steps.bound.steps[is_cut, 3] = chunks
        steps.seconds(2)
        np.testing.assert_array_equal(steps._kept[-1], expected)


@pytest.mark.parametrize("name", cases)
def test_short_rows_are_added_place_by_place(name: str) -> None:
    arrays = cases[name][1](np.random.default_rng(6))
    (stage, given), *_ = jg.compile(jg.grad(cases[name][0])).stages(*arrays)
    source = stage.executable(given).source
    rows = next(source.specs[i.inputs[1]].known_shape for i in source.instructions if isinstance(i.op.kind, Scatter))
    text = jg.compile(jg.grad(cases[name][0])).explain(*arrays).fusion
    axes = [int(line.split(" axes")[0].split()[-1]) for line in text.splitlines() if "): scatter" in line]
    assert axes
    assert all((n < len(rows)) == (name in BY_PLACES) for n in axes)


def test_with_short_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "vector_bytes", lambda: 32)
    monkeypatch.setattr(compilation, "has_avx512", lambda: False)
    for name in ("one position each", "bags", "float64"):
        arrays = cases[name][1](np.random.default_rng(3))
        f = jg.compile(jg.grad(lambda table, at, w: np.sum(np.abs(table[at]) * w)))  # known for no other registers
        np.testing.assert_array_equal(f(*arrays), f.interpret(*arrays))


def test_a_position_out_of_bounds_is_found_whosoever_row_it_is() -> None:
    table, at, w = cases["one position each"][1](np.random.default_rng(4))
    f = jg.compile(jg.grad(looked_up))
    for wrong in (200, -201, 1 << 40, -(1 << 62)):
        for place in (0, 17, 299):
            at_wrong = at.copy()
            at_wrong[place] = wrong
            with pytest.raises(IndexError):
                f(table, at_wrong, w)
    np.testing.assert_array_equal(f(table, at, w), f.interpret(table, at, w))


def test_a_position_out_of_bounds_is_found_for_short_rows() -> None:
    table, at, w = cases["short rows"][1](np.random.default_rng(4))
    f = jg.compile(jg.grad(looked_up))
    for wrong in (90, -91, 1 << 40):
        at_wrong = at.copy()
        at_wrong[17] = wrong
        with pytest.raises(IndexError):
            f(table, at_wrong, w)


def test_large_scatters_are_cut_in_chunks() -> None:
    rng = np.random.default_rng(5)
    for positions, chunks in ((30_000, 4), (3, 4), (100, 4)):
        arrays = [rng.standard_normal((20_000, 64)), rng.integers(0, 20_000, positions), np.ones((positions, 64))]
        (stage, given), *_ = jg.compile(jg.grad(looked_up)).stages(*arrays)
        assert Steps(stage.executable(given), given).bound.steps[-1, 3] == chunks
