"""Regions of steps over the rows of a long matrix: which steps they take, and that nothing but the time changes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import jitgrad as jg
from jitgrad.compiler.freezing import regions
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.freezing.freeze import freeze_cluster
from jitgrad.compiler.loopir.asked import asked_word
from jitgrad.compiler.machine.compilation import vector_bytes
from jitgrad.compiler.products import gemv
from jitgrad.compiler.products.gemv_steps import BLOCK
from jitgrad.profiler.operations import operations

pytestmark = pytest.mark.skipif(vector_bytes() < 32, reason="products with vectors are our own only there")

ROWS, COLUMNS = 5003, 11
Loss = Callable[..., Any]


def plain(w: Any, x: Any, y: Any) -> Any:
    return np.mean(np.log1p((x @ w - y) ** 2))


def shifted(w: Any, x: Any, y: Any) -> Any:
    """The residual of a row depends on the row before it."""
    z = x @ w
    return np.sum(np.tanh(z[1:] - z[:-1] * y[1:]))


def normed(w: Any, x: Any, y: Any) -> Any:
    """All rows have to be there before any residual is."""
    z = x @ w
    return np.sum(np.sin(z / np.sqrt(np.sum(z * z)) - y))


def twice(w: Any, x: Any, y: Any) -> Any:
    return np.sum(np.exp(-((x @ w - y) ** 2))) + np.sum(np.cos(x @ w))


def given(dtype: str, rows: int = ROWS) -> tuple[NDArray[Any], ...]:
    rng = np.random.default_rng(0)
    arrays = (rng.standard_normal(COLUMNS), rng.standard_normal((rows, COLUMNS)), rng.standard_normal(rows))
    return tuple(a.astype(dtype) for a in arrays)


def bound(loss: Loss, arrays: tuple[NDArray[Any], ...]) -> list[BoundCluster]:
    """The clusters of the value and gradient."""
    compiled = jg.compile(jg.value_and_grad(loss))
    (stage, args), *_ = compiled.stages(*arrays)
    return [step for step in stage.executable(args).bound.steps if isinstance(step, BoundCluster)]


def frozen(loss: Loss, arrays: tuple[NDArray[Any], ...]) -> Any:
    """The one cluster of the value and gradient, as it is kept."""
    compiled = jg.compile(jg.value_and_grad(loss))
    (stage, args), *_ = compiled.stages(*arrays)
    executable = stage.executable(args)
    (cluster,) = executable.compiled.steps
    return freeze_cluster(executable.compiled.program, cluster)


def units(loss: Loss, arrays: tuple[NDArray[Any], ...]) -> list[str]:
    """The names of the steps of the value and gradient."""
    return [name for cluster in bound(loss, arrays) for name in cluster.names]


@pytest.fixture(autouse=True)
def small_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemv, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(regions, "LEAST_BYTES", 1000)
    monkeypatch.setattr(regions, "CHUNK_BYTES", 20_000)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", [plain, shifted, normed, twice])
def test_values_and_gradients(loss: Loss, dtype: str) -> None:
    arrays = given(dtype)
    compiled = jg.compile(jg.value_and_grad(loss, (0, 1)))
    value, gradients = compiled(*arrays)
    expected, expected_gradients = compiled.interpret(*arrays)
    tolerance = 2e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(value, expected, rtol=tolerance)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=tolerance * np.abs(wanted).max())


def test_one_pass_over_the_matrix() -> None:
    names = units(plain, given("float64"))
    assert sum(name.startswith("region") for name in names) == 1
    assert not any(name.startswith("rows") for name in names)


@pytest.mark.parametrize(("loss", "asking"), [(plain, True), (shifted, False)])
def test_products_of_a_region_ask_for_the_next_chunk(loss: Loss, asking: bool) -> None:
    clusters = bound(loss, given("float64"))
    steps = [(name, step) for c in clusters for name, step in zip(c.names, c.steps, strict=True)]
    inside = [words_at(place) for name, step in steps if name.startswith("region") for place in members_at(step[1])]
    outside = [words_at(step[1]) for name, step in steps if name.startswith("rows")]
    products = [dict(zip(BLOCK, words, strict=True)) for words in (inside if asking else outside)]
    asks = [words["asks"] for words in products if words["lda"] == words["columns"] == COLUMNS]
    assert [word > 0 for word in asks] == [asking] * 2


def test_each_step_of_a_region_asks_for_its_part_of_a_row() -> None:
    (task,) = (task for task in frozen(plain, given("float64"))[6:] if task[0] == "region")
    place, row_bytes, parts = task[4]
    assert frozen(plain, given("float64"))[1][place][2] == (ROWS, COLUMNS)
    assert row_bytes == sum(parts) == 8 * COLUMNS
    assert len(parts) == len(task[5:]) == 3 and min(parts) > 0
    assert parts[0] <= parts[2]  # as long as `dots`, or longer


def test_a_kernel_asks_for_lines_of_the_next_chunk() -> None:
    """The word behind its constants is the slot that the region's code fills, and the bytes of a row."""
    (cluster,) = bound(plain, given("float64"))
    (region,) = (step for name, step in zip(cluster.names, cluster.steps, strict=True) if name.startswith("region"))
    _, kernel, _ = members_at(region[1])
    (task,) = (task for task in frozen(plain, given("float64"))[6:] if task[0] == "region")
    wanted = asked_word(cluster.nslots, task[4][2][1])
    assert wanted in list((ctypes.c_int64 * 64).from_address(kernel))


@pytest.mark.parametrize("loss", [plain, twice])
def test_what_only_a_region_knows_has_room_for_a_chunk_of_each_worker(loss: Loss) -> None:
    arrays = given("float64")
    (task,) = (task for task in frozen(loss, arrays)[6:] if task[0] == "region")
    _, rows, chunks, owned, *_ = task
    assert owned and all(row_bytes == 8 for _, row_bytes, _ in owned)
    lifetimes = frozen(loss, arrays)[5]
    for place, row_bytes, nbytes in owned:
        assert lifetimes[place][:2] == (nbytes, True)
        assert row_bytes * -(-rows // chunks) <= nbytes < row_bytes * rows


def test_a_number_made_in_the_middle_does_not_cut_a_kernel_in_two() -> None:
    """The exponential of the scale is made with that of the other number, before the residuals are."""

    def loss(w: Any, b: Any, scale: Any, power: Any, x: Any, y: Any) -> Any:
        p = np.exp(power)
        r = (y - x @ w - b) * np.exp(-scale)
        return np.sum((p + 1) * np.log1p(r * r / p))

    w, x, y = given("float64")
    (stage, args), *_ = jg.compile(jg.value_and_grad(loss)).stages(w, *map(np.array, (0.1, 0.2, 1.5)), x, y)
    names = [name for step in stage.executable(args).bound.steps for name in step.names]
    assert [len(name.split("_")) - 1 for name in names if name.startswith("region")] == [3]


def test_what_others_read_of_a_region_is_kept() -> None:
    """The residuals are an output: they have memory of their own."""

    def residuals(w: Any, x: Any, y: Any) -> Any:
        r = np.tanh(x @ w - y)
        return r, x.T @ r

    arrays = given("float64")
    compiled = jg.compile(residuals)
    for got, wanted in zip(compiled(*arrays), compiled.interpret(*arrays), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-11)


def test_a_sum_over_the_rows_of_a_square_matrix_is_read_behind_the_region() -> None:
    """It has as many elements as the matrix has rows, but all chunks give parts of each."""

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * np.exp(-((x.T @ np.tanh(x @ w)) ** 2))

    rng = np.random.default_rng(0)
    w, x = rng.standard_normal(300), rng.standard_normal((300, 300))
    compiled = jg.compile(step)
    np.testing.assert_allclose(compiled(w, x), compiled.interpret(w, x), rtol=1e-11)


@pytest.mark.parametrize(("least", "chunks"), [(50_000, 9), (10_000, 45)])
def test_chunks_are_many_enough_to_be_no_larger_than_some(
    least: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "MOST_CHUNKS", 4)
    monkeypatch.setattr(regions, "LARGEST_CHUNK", least)
    with jg.config(cache=False):
        found = [task[2] for task in frozen(plain, given("float64"))[6:] if task[0] == "region"]
    assert found == [chunks]


def words_at(place: np.int64) -> list[int]:
    """The words of a product's block."""
    return list((ctypes.c_int64 * len(BLOCK)).from_address(int(place)))


def members_at(place: np.int64) -> list[int]:
    """Where the blocks of a region's members begin."""
    count, pairs = (ctypes.c_int64 * 2).from_address(int(place))
    return list((ctypes.c_int64 * (2 * count)).from_address(pairs))[1::2]


@pytest.mark.parametrize("loss", [shifted, normed])
def test_what_needs_other_rows_waits_for_them(loss: Loss) -> None:
    names = units(loss, given("float64"))
    assert sum(name.startswith("rows") for name in names) == 2


def test_small_matrices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "LEAST_BYTES", 10_000_000)
    assert not any(name.startswith("region") for name in units(plain, given("float64", 6007)))


def test_bits_do_not_depend_on_threads() -> None:
    arrays = given("float32")
    compiled = jg.compile(jg.value_and_grad(plain))
    before, results = jg.get_num_threads(), set()
    try:
        for threads in (1, 2):
            jg.set_num_threads(threads)
            value, gradient = compiled(*arrays)
            results.add((float(value), gradient.tobytes()))
    finally:
        jg.set_num_threads(before)
    assert len(results) == 1


REGRESSION = """
import sys
import numpy as np
import jitgrad as jg
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.freezing.freeze import freeze_cluster
from jitgrad.compiler.loopir.asked import asked_word
rng = np.random.default_rng(0)
x, w, y = rng.standard_normal((20000, 20)), rng.standard_normal(20), rng.standard_normal(20000)
compiled = jg.compile(jg.value_and_grad(lambda w, x, y: np.mean(np.log1p((x @ w - y) ** 2))))
value, gradient = compiled(w, x, y)
(stage, args), *_ = compiled.stages(w, x, y)
clusters = [step for step in stage.executable(args).bound.steps if isinstance(step, BoundCluster)]
names = [name for cluster in clusters for name in cluster.names]
is_found = any(name.startswith("region") for name in names)
print("llvmlite" in sys.modules, is_found, float(value).hex(), gradient.tobytes().hex())
"""


def test_a_new_process_finds_regions_on_disk(tmp_path: Path) -> None:
    """Kernels of a region are found by their keys, and quick code and good code of its products have the same bits."""
    settings = {"JITGRAD_CACHE": "1", "JITGRAD_CACHE_DIR": str(tmp_path), "JITGRAD_VERIFY": "0"}
    runs = [
        subprocess.run(
            [sys.executable, "-c", REGRESSION], env=os.environ | settings, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [run[:2] for run in runs] == [["True", "True"], ["False", "True"]]
    assert runs[0][2:] == runs[1][2:]


def test_operations_in_regions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    for least in (1000, 10_000_000):
        monkeypatch.setattr(regions, "LEAST_BYTES", least)
        compiled = jg.compile(jg.value_and_grad(plain))
        (stage, args), *_ = compiled.stages(*given("float64", 7001 if least == 1000 else 7003))
        counted.append(operations(stage.executable(args))[8])
    assert counted[0].divisions / 7001 == pytest.approx(counted[1].divisions / 7003, rel=0.01)
    assert counted[0].others / 7001 == pytest.approx(counted[1].others / 7003, rel=0.01)


def test_profiles_tell_the_members_of_a_region_apart() -> None:
    arrays = given("float64")
    compiled = jg.compile(jg.value_and_grad(plain))
    compiled(*arrays)
    with jg.profile() as profile:
        compiled(*arrays)
    worked = [event for event in profile.events if event.kind in ("kernel", "blas")]
    assert len([event for event in worked if event.kind == "blas"]) == 2
    assert all(event.duration >= 0 for event in worked)
