"""Scatters that several threads share: the same bits as one update after the other, whoever makes which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from benchmarks.steps import Steps
from jitgrad.compiler.lowering.sorted_scatter import NEAR, WORTH
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


def rows_of_none(rng: Rng) -> list[Any]:
    """A table of which nothing is looked up."""
    return [rng.standard_normal((90, 40)), np.zeros(0, np.int64), np.zeros((0, 40))]


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


def faces_of_four(c: Any, at: Any, w: Any) -> Any:
    """Each update is put together of four, with positions of their own, some of them equal."""
    x = c[at]
    return np.sum((x[:, 0] * x[:, 1] - x[:, 2] * x[:, 3]) * w)


def in_boxes(x: Any, at: Any, w: Any) -> Any:
    return np.sum(x[:, at] * w)


cases: dict[str, tuple[Callable[..., Any], Callable[[Rng], list[Any]]]] = {
    "one position each": (looked_up, rows_of((300,), 200)),
    "bags": (looked_up, rows_of((40, 9), 65)),
    "boxes": (looked_up, rows_of((7, 3, 5), 1000)),
    "float64": (looked_up, rows_of((300,), 130, np.float64)),
    "few updates": (looked_up, rows_of((3,), 2000)),
    "as many updates as rows": (looked_up, rows_of((40, 10), 400)),
    "all to one row": (
        looked_up,
        lambda rng: [rng.standard_normal((70, 140)), np.full(200, -3), rng.standard_normal((200, 140))],
    ),
    "whole registers": (
        looked_up,
        lambda rng: [
            rng.standard_normal((90, 224)).astype(np.float32), rng.integers(-90, 90, 300, np.int32),
            rng.standard_normal((300, 224)).astype(np.float32),
        ],
    ),
    "no positions": (looked_up, rows_of_none),
    "a factor for each row": (
        looked_up,
        lambda rng: [rng.standard_normal((90, 40)), rng.integers(-90, 90, 300), rng.standard_normal((300, 1))],
    ),
    "one update for all": (
        looked_up, lambda rng: [rng.standard_normal((90, 40)), rng.integers(-90, 90, 300), rng.standard_normal(40)],
    ),
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
        lambda rng: [whole(rng, 70, 3), rng.integers(-70, 70, 300), rng.integers(0, 70, 300)],
    ),
    "triangles": (areas, lambda rng: [whole(rng, 70, 3), rng.integers(-70, 70, (150, 3))]),
    "small matrices": (
        looked_up,
        lambda rng: [
            rng.standard_normal((70, 3, 2)), rng.integers(-70, 70, (40, 9)), rng.standard_normal((40, 9, 3, 2)),
        ],
    ),
    "turns": (
        faces_of_four, lambda rng: [whole(rng, 90), rng.integers(-90, 90, (500, 4)) // 3, whole(rng, 500)],
    ),
    "points of batches": (
        in_boxes,
        lambda rng: [rng.standard_normal((9, 50, 3)), rng.integers(-50, 50, 80), rng.standard_normal((9, 80, 3))],
    ),
}  # fmt: skip
ON_ONE_THREAD = ("few rows", "short rows", "eight columns", "small matrices")
BY_PLACES = ("short rows", "pairs", "triangles", "small matrices", "turns", "points of batches")


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


def test_rows_are_sorted_where_updates_are_many() -> None:
    """In one kernel both ways: updates into their rows in memory, or each row in registers, with a single store."""
    table, at, w = cases["one position each"][1](np.random.default_rng(7))
    text = str(jg.compile(jg.grad(looked_up)).explain(table, at, w).kernels)
    assert "in across(" in text
    two = cases["two positions"][1](np.random.default_rng(7))
    assert "in across(" not in str(jg.compile(jg.grad(by_two_positions)).explain(*two).kernels)


def test_rows_out_of_cache_are_sorted_where_updates_have_more_bytes() -> None:
    """A table of 36 MB: less than a tenth as many updates as rows are worth counting, far fewer are not."""
    rng = np.random.default_rng(8)
    f = jg.compile(jg.grad(looked_up))
    table = np.zeros((70_000, 128), np.float32)
    for updates, is_sorted in ((5_000, True), (4_300, False)):
        at, w = rng.integers(0, 70_000, updates), rng.integers(-9, 9, (updates, 128)).astype(np.float32)
        assert (updates * 512 >= 70_000 * WORTH) is is_sorted
        np.testing.assert_array_equal(f(table, at, w), f.interpret(table, at, w))
    assert f"i64({NEAR})" in str(f.explain(table, at, w).kernels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_signed_zeros_and_nan_are_added_to_zero(dtype: Any) -> None:
    """A row is the sum of zero and its updates: -0.0 alone gives 0.0; and NaN and inf stay in their row and column."""
    table, at = np.zeros((80, 70), dtype), np.repeat(np.arange(79), 3)
    w = np.full((237, 70), -0.0, dtype)
    w[4, 5], w[9, 69], w[10, 69] = np.nan, np.inf, -np.inf
    f = jg.compile(jg.grad(looked_up))
    found, expected = f(table, at, w), f.interpret(table, at, w)
    np.testing.assert_array_equal(found, expected)
    assert not np.signbit(found[~np.isnan(found)]).any()
    assert np.isnan(found).sum() == 2


def test_large_scatters_are_cut_in_chunks() -> None:
    rng = np.random.default_rng(5)
    for positions, chunks in ((30_000, 4), (3, 4), (100, 4)):
        arrays = [rng.standard_normal((20_000, 64)), rng.integers(0, 20_000, positions), np.ones((positions, 64))]
        (stage, given), *_ = jg.compile(jg.grad(looked_up)).stages(*arrays)
        assert Steps(stage.executable(given), given).bound.steps[-1, 3] == chunks


# -- small tables ------------------------------------------------------------------------------------------------------


def spline(c: Any, at: Any, w: Any) -> Any:
    return np.sum((c[at] * w[:, 0] + c[at + 1] * w[:, 1]) ** 2)


def table_of(*shape: int, updates: tuple[int, ...], dtype: Any = np.float64) -> Callable[[Rng], list[Any]]:
    """A small table of whole numbers, positions for each of its axes from both ends, and a factor for each."""

    def make(rng: Rng) -> list[Any]:
        at = [rng.integers(-n, n, updates) for n in shape]
        return [whole(rng, *shape).astype(dtype), *at, whole(rng, *updates).astype(dtype)]

    return make


small_tables: dict[str, tuple[Callable[..., Any], Callable[[Rng], list[Any]]]] = {
    "a vector": (looked_up, table_of(40, updates=(60_000,))),
    "float32": (looked_up, table_of(64, updates=(60_000,), dtype=np.float32)),
    "one place": (looked_up, table_of(1, updates=(30_000,))),
    "two positions": (by_two_positions, table_of(6, 9, updates=(50_000,))),
    "positions along two axes": (looked_up, table_of(12, updates=(9000, 7))),
    "turns": (faces_of_four, lambda rng: [whole(rng, 40), rng.integers(-40, 40, (30_000, 4)), whole(rng, 30_000)]),
    "sorted": (
        looked_up, lambda rng: [whole(rng, 40), np.sort(rng.integers(0, 40, 70_000)), whole(rng, 70_000)],
    ),
    "two scatters": (
        spline, lambda rng: [whole(rng, 40), rng.integers(0, 39, 40_000), whole(rng, 40_000, 2)],
    ),
    "short rows": (
        pair_energy,
        lambda rng: [whole(rng, 60, 3), rng.integers(-60, 60, 40_000), rng.integers(0, 60, 40_000)],
    ),
    "few updates": (looked_up, table_of(40, updates=(70,))),
}  # fmt: skip


@pytest.mark.parametrize("name", small_tables)
def test_small_tables_are_summed_chunk_by_chunk(name: str) -> None:
    """Sums of whole numbers are exact in any order, and those of others the same for any number of threads."""
    fn, make = small_tables[name]
    arrays = make(np.random.default_rng(7))
    f = jg.compile(jg.grad(fn))
    expected = f.interpret(*arrays)
    odd = [a if a.dtype.kind == "i" else (a * np.pi).astype(a.dtype) for a in arrays]
    odd_results = []
    for threads in COUNTS:
        jg.set_num_threads(threads)
        np.testing.assert_array_equal(f(*arrays), expected)
        odd_results.append(f(*odd))
    assert len({r.tobytes() for r in odd_results}) == 1
    wanted = f.interpret(*odd)
    np.testing.assert_allclose(odd_results[0], wanted, rtol=1e-12 * (1e8 if name == "float32" else 1))
    (stage, given), *_ = f.stages(*arrays)
    steps = Steps(stage.executable(given), given).bound.steps
    assert (steps[:, 3] > 1).any() == (name != "few updates")


@pytest.mark.parametrize("updates", [(90,), (100, 3)])
def test_small_tables_by_the_oracle_of_kernels(updates: tuple[int, ...]) -> None:
    arrays = table_of(9, updates=updates)(np.random.default_rng(8))
    f = jg.compile(jg.grad(looked_up))
    (stage, given), *_ = f.stages(*arrays)
    np.testing.assert_array_equal(python_results(stage.executable(given).source, given)[0], f.interpret(*arrays))
    text = f.explain(*arrays).kernels
    assert "& 3" in text or "bitwise_and" in text


def test_what_is_no_small_table_adds_in_order() -> None:
    """65 places are no part of a pattern, 64 updates are few, 35 x 35 places would be cleared for long."""
    for shape, updates in (((65,), 20_000), ((40,), 64), ((35, 35), 20_000)):
        arrays = table_of(*shape, updates=(updates,))(np.random.default_rng(9))
        fn = looked_up if len(shape) == 1 else by_two_positions
        f = jg.compile(jg.grad(fn))
        assert "bitwise_and" not in f.explain(*arrays).kernels
        arrays[-1] *= np.pi
        np.testing.assert_array_equal(f(*arrays), f.interpret(*arrays))


def test_a_position_out_of_a_small_table_is_found() -> None:
    table, at, w = table_of(40, updates=(50_000,))(np.random.default_rng(10))
    f = jg.compile(jg.grad(looked_up))
    for wrong in (40, -41, 1 << 40):
        for place in (0, 25_001, 49_999):
            at_wrong = at.copy()
            at_wrong[place] = wrong
            with pytest.raises(IndexError):
                f(table, at_wrong, w)
    np.testing.assert_array_equal(f(table, at, w), f.interpret(table, at, w))


def test_an_update_out_of_bounds_is_skipped_by_one_branch() -> None:
    """One loop over positions of two axes, where nothing is out of bounds only once asked."""
    arrays = table_of(100, updates=(50, 6))(np.random.default_rng(11))
    f = jg.compile(jg.grad(looked_up))
    explained = f.explain(*arrays)
    assert "for i1" not in explained.kernels.split("out0[j]")[-1]
    code = explained.llvm.split("define void")[-1]
    _, zeros, updates = code.split("\nloop.")
    assert "fadd double" not in zeros and code.count("fadd double") == updates.count("fadd double") == 1
    assert updates.count("br i1") == 2  # the other one ends the loop
    assert code.count("br i1") == {16: 7, 32: 8, 64: 5}[compilation.vector_bytes()]
    at = arrays[1].copy()
    at[3, 4] = 100
    with pytest.raises(IndexError):
        f(arrays[0], at, arrays[2])
