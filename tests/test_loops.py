"""Loop passes: what they make of a kernel's text, and that results stay those of the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.driver.trials import PAST, RUNS
from jitgrad.compiler.machine.caches import last_level_bytes
from jitgrad.testing import assert_same_results

_SPECIAL = [0.0, -0.0, 1.0, -3.0, np.inf, -np.inf, np.nan]


def _grid(dtype: Any) -> Any:
    info = np.finfo(dtype)
    edges = [info.tiny, info.smallest_subnormal, info.tiny / 8, info.max, info.max / 3]
    edges += [1 / info.tiny, 1e-10, 7.3, 1 / 3]
    random = np.random.default_rng(0).uniform(-1, 1, 40) * 2.0 ** np.random.default_rng(1).integers(
        info.minexp, info.maxexp, 40
    )
    return np.array([*_SPECIAL, *edges, *random], dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_division_of_a_row_by_a_number_is_a_division(dtype: Any) -> None:
    values = _grid(dtype)
    x = np.tile(values, (len(values), 1))
    divide = jg.compile(lambda x, s: x / (s + s)[:, None])
    with np.errstate(all="ignore"):
        halves = values / 2
        halves[halves + halves != values] = 1  # the smallest numbers have no half
        expected = x / (halves + halves)[:, None]
        ours = divide(x, halves)
        same = (ours == expected) | (np.isnan(ours) & np.isnan(expected))
        apart = np.abs(ours - expected) / np.spacing(np.abs(expected))
    assert "reciprocal_of" in divide.explain(x, halves).kernels
    assert (same | (apart <= 2)).all()
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(ours[zeros]), np.signbit(expected[zeros]))


@pytest.mark.quick
def test_what_does_not_change_in_a_loop_stands_in_front_of_it() -> None:
    from jitgrad.compiler.loopir.nests import VECTOR, Buffer, Index, Kernel, Let, Load, Loop, Store, Term
    from jitgrad.compiler.lowering.passes import hoist_invariants

    f32 = np.dtype(np.float32)
    place = Index((Term("i0"),))
    body = (
        Load("v0", f32, "in0", place),
        Let("v1", f32, "exp", ("c0",)),
        Let("v2", f32, "multiply", ("v1", "v1")),
        Let("v3", f32, "add", ("v0", "v2")),
        Store("out0", place, "v3", f32),
    )
    kernel = Kernel(
        (Buffer("in0", f32, "in"), Buffer("out0", f32, "out")), ("n0",), (), (Loop("i0", "n0", VECTOR, body),)
    )
    hoisted = hoist_invariants(kernel)
    assert [type(s).__name__ for s in hoisted.body] == ["Let", "Let", "Loop"]
    assert hoist_invariants(hoisted) is hoisted


def normalised(x: Any, gain: Any) -> Any:
    centred = x - np.mean(x, axis=1, keepdims=True)
    return np.sum(np.tanh(centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5) * gain))


def way_of_stores(compiled: Any, *args: Any) -> int:
    """What the first of several kernels is told of where its stores go: the last word of its block."""
    stage, arrays = compiled.stages(*args)[0]
    bound = stage.executable(arrays).bound.steps[0]
    first, second = map(int, bound.steps[:2, 1])
    return int(bound.words_at(first)[(second - first) // 8 - 1])


@pytest.mark.parametrize("shape", [(40, 64), (300, 16), (33, 208), (64, 48), (40, 301), (33, 1003), (7, 2050)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_stored_past_the_caches_are_the_same(
    shape: tuple[int, int], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x, gain = rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape[1]).astype(dtype)
    step = jg.grad(normalised, argnums=(0, 1))
    expected = jg.compile(step)(x, gain)
    module = jg.compile(step).explain(x, gain).llvm
    monkeypatch.setattr("jitgrad.compiler.freezing.freeze.last_level_bytes", lambda: 1)
    monkeypatch.setattr("jitgrad.compiler.freezing.freeze.TRIED", PAST)
    streamed = jg.compile(lambda x, gain: step(x, gain))
    with jg.config(cache=False):  # a plan on disk is for the cache that the machine has
        for _ in range(3):
            for ours, theirs in zip(streamed(x, gain), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
    assert way_of_stores(streamed, x, gain) == PAST
    assert "!nontemporal" in module
    assert "fence seq_cst" in module


@pytest.mark.parametrize("shape", [(64, 300), (40, 257), (33, 1003), (9, 2050), (40, 64)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_with_a_label_are_stored_past_the_caches(
    shape: tuple[int, int], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines begin elsewhere in each row, and the label may stand in front of the first, behind the last, or within."""
    rows, n = shape
    x, labels = np.random.default_rng(0).standard_normal(shape).astype(dtype), np.arange(rows) * 7 % n
    labels[:8] = [0, n - 1, 1, n - 2, 15, 16, 17, n // 2]

    def entropy(x: Any, labels: Any) -> Any:
        s = x - np.max(x, axis=1, keepdims=True)
        return np.sum(np.log(np.sum(np.exp(s), axis=1)) - s[np.arange(rows), labels])

    step = jg.value_and_grad(entropy)
    expected = jg.compile(step)(x, labels)
    monkeypatch.setattr("jitgrad.compiler.freezing.freeze.last_level_bytes", lambda: 1)
    monkeypatch.setattr("jitgrad.compiler.freezing.freeze.TRIED", PAST)
    streamed = jg.compile(lambda x, labels: step(x, labels))
    with jg.config(cache=False, quick_start=False):
        for _ in range(3):
            for ours, theirs in zip(streamed(x, labels), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
    assert way_of_stores(streamed, x, labels) == PAST


@pytest.mark.parametrize(
    ("told", "processors", "expected"),
    [(["48K", "2048K", "480M"], 2, 64 << 20), (["32K", "1M", "32M"], 2, 32 << 20), ([], 2, 32 << 20)],
)
def test_no_processor_has_a_whole_hosts_cache(
    told: list[str], processors: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k, size in enumerate(told):
        (tmp_path / f"index{k}").mkdir()
        (tmp_path / f"index{k}" / "size").write_text(size + "\n")
    monkeypatch.setattr("jitgrad.compiler.machine.caches._CACHES", tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    assert last_level_bytes.__wrapped__() == expected


def smooth(x: Any, w: Any) -> Any:
    return np.sum(np.tanh(x * w + 1) ** 2)


@pytest.mark.parametrize("n", [2, 63, 64, 1000, 100_003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elements_stored_past_the_caches_are_the_same(n: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(n).astype(dtype) for _ in range(2))
    step = jg.value_and_grad(smooth, argnums=(0, 1))
    value, expected = jg.compile(step)(x, w)
    monkeypatch.setattr("jitgrad.compiler.freezing.freeze.last_level_bytes", lambda: 1)
    monkeypatch.setattr("jitgrad.compiler.freezing.chunks.CHUNK_NANOSECONDS", 50)  # many, also of few elements
    streamed = jg.compile(lambda x, w: step(x, w))
    # A plan on disk is for the cache that the machine has; good code, when it comes, begins a trial anew.
    with jg.config(cache=False, quick_start=False):
        streamed(x, w)
        stage, arrays = streamed.stages(x, w)[0]
        steps = stage.executable(arrays).bound.steps[0].steps
        values = set()
        for threads in (1, 2, 3) * RUNS:
            with jg.config(num_threads=threads):
                found, gradients = streamed(x, w)
            values.add(float(found))
            for ours, theirs in zip(gradients, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
    assert len(values) == 1
    np.testing.assert_allclose(values.pop(), value, rtol=1e-5 if dtype == np.float32 else 1e-12)
    tried = steps[steps[:, 4] != 0]
    assert n < 1000 or [words[5] % 256 // RUNS for words in tried if words[3] > 1] == [3]
    assert "llvm.prefetch" in streamed.explain(x, w).llvm


def several_reductions(x: Any) -> tuple[Any, ...]:
    along = (np.sum(x, 1), np.max(x, 1), np.argmax(x, 1), np.argmin(x, 1), np.sum(x * x, 1))
    return (*along, np.min(x), np.sum(x, 0))


@pytest.mark.parametrize("n", [1, 7, 15, 16, 17, 31, 63, 64, 65, 100, 129, 200])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_reductions_of_rows_in_several_registers(n: int, dtype: Any) -> None:
    x = (np.random.default_rng(n).standard_normal((50, n)) * 3).astype(dtype)
    x[3, n // 2] = x[4].max()
    if dtype != np.int32:
        x[5, n - 1], x[6, 0] = np.nan, -np.inf
    reduce = jg.compile(several_reductions)
    found, rows = reduce(x), several_reductions(x)
    for ours, theirs in zip(found, rows, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-5)
    np.testing.assert_array_equal(found[2], rows[2])


def row_loss(x: Any, w: Any) -> Any:
    centred = x - np.mean(x, axis=1, keepdims=True)
    return np.sum(np.tanh(np.sum(centred * w, axis=1)) * np.sum(centred * centred, axis=1))


@pytest.mark.parametrize("n", [1, 5, 64, 150])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_cheap_row_is_made_again_where_it_is_read(n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    x, w = rng.standard_normal((30, n)).astype(dtype), rng.standard_normal(n).astype(dtype)
    step = jg.value_and_grad(row_loss, (0, 1))
    assert_same_results(step, x, w)


@pytest.mark.quick
def test_rows_of_scratch_that_are_not_cheap_stay() -> None:
    from jitgrad.compiler.loopir.nests import (
        SERIAL,
        VECTOR,
        Buffer,
        Index,
        Kernel,
        Let,
        Load,
        Loop,
        Store,
        Term,
        Update,
    )
    from jitgrad.compiler.lowering.remake import remake_cheap_values

    f32 = np.dtype(np.float32)
    place, row = Index((Term("i1"),)), Index((Term("i0", "n0"), Term("i1")))

    def kernel(*made: Any) -> Kernel:
        first = Loop("i1", "n0", VECTOR, (Load("v0", f32, "in0", row), *made, Store("scratch0", place, "v1", f32)))
        second = Loop("i1", "n0", VECTOR, (Load("v2", f32, "scratch0", place), Store("out0", row, "v2", f32)))
        buffers = (Buffer("in0", f32, "in"), Buffer("scratch0", f32, "scratch", "n0"), Buffer("out0", f32, "out"))
        return Kernel(buffers, ("n0", "n1"), (), (Loop("i0", "n1", SERIAL, (first, second)),))

    double = Let("v1", f32, "add", ("v0", "v0"))
    again = remake_cheap_values(kernel(double)).text
    assert "scratch0" not in again
    assert "v2_v0 = in0[i0*n0 + i1]\n            v2 = f32(add(v2_v0, v2_v0))" in again
    dear = kernel(Let("v1", f32, "exp", ("v0",)))
    assert remake_cheap_values(dear) is dear
    running = kernel(double, Update("v1", f32, "add", "v0"))
    assert remake_cheap_values(running) is running


def test_what_all_rows_share_is_made_before_them_and_keeps_nothing_out_of_their_loop() -> None:
    rng = np.random.default_rng(6)
    z, y = rng.standard_normal((16, 1000)).astype("f4"), rng.standard_normal(1000).astype("f4")
    compiled = jg.compile(jg.value_and_grad(lambda z, y: np.sum(y * z - np.logaddexp(0.0, z)) / 16))
    first, *_ = compiled.explain(z, y).kernels.split("def kernel")[1:]
    assert "scratch" in first
    assert first.count("for i0 in parallel") == 1
    for found, expected in zip(compiled(z, y), compiled.interpret(z, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_products_are_added_to_sums_in_one_step() -> None:
    def fn(x: Any, y: Any, z: Any) -> Any:
        scaled = x * y
        return np.sum(x * z), np.sum(-(z * z)), np.sum(y**2), np.sum(scaled), scaled, np.sum(x + y * z)

    x, y, z = np.random.default_rng(7).standard_normal((3, 200))
    compiled = jg.compile(fn)
    text = compiled.explain(x, y, z).kernels
    assert text.count(" = add_product(") == 3
    assert text.count("multiply(") == 2  # one is an output, of the other a sum with x is what the program says
    for found, expected in zip(compiled(x, y, z), fn(x, y, z), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_in_a_sum_is_not_rounded(dtype: Any) -> None:
    near = 1 + np.finfo(dtype).eps
    x, y = np.zeros((2, 512), dtype)
    x[[0, 256]], y[[0, 256]] = (-1, near), (near * near, near)  # in one lane, for every number of lanes
    assert jg.compile(lambda x, y: np.sum(x * y))(x, y) == dtype(np.finfo(dtype).eps) ** 2


def test_rows_of_sums_take_products_in() -> None:
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal((64, 48)).astype("f4"), rng.standard_normal(48).astype("f4")
    compiled = jg.compile(jg.grad(lambda w, x: np.sum(np.tanh(np.sum(x * w, axis=1)))))
    assert "add_product(v" in compiled.explain(w, x).kernels
    np.testing.assert_allclose(compiled(w, x), compiled.interpret(w, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.bool_])
def test_one_element_for_many_lanes_is_not_gathered(dtype: Any) -> None:
    """Of a join of so many pieces each lane is asked to which it belongs."""

    def joined(x: Any) -> Any:
        pieces = [np.broadcast_to(x[:, k : k + 1], (x.shape[0], 30)) for k in range(20)]
        return np.concatenate(pieces, axis=1) ** 2

    x = np.random.default_rng(0).integers(0, 2, (40, 20)).astype(dtype)
    compiled = jg.compile(joined)
    np.testing.assert_array_equal(compiled(x), joined(x))
    assert "masked.gather" not in compiled.explain(x).llvm
