"""Memory: arenas near the least that any plan needs, steps ordered to keep little alive, calls that leave nothing."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import stages
from jitgrad.compiler.driver import pools
from jitgrad.compiler.driver.pools import HUGE_BYTES, Arena, OutputPool, arena_for
from jitgrad.compiler.freezing.bind import BoundCluster, bind_cluster
from jitgrad.compiler.fusing import buffers
from jitgrad.compiler.fusing.buffers import ArenaPlan, Lifetime, aligned, lend_outputs, plan_arena, plan_memory
from jitgrad.program import Program
from tests.random_programs import LARGE, random_program
from tests.tolerances import assert_same_up_to_rounding


def _overlapping(items: list[Lifetime], plan: ArenaPlan) -> list[tuple[object, object]]:
    """Pairs alive together that share a byte of the arena, and those that leave it."""
    bad: list[tuple[object, object]] = []
    for k, a in enumerate(items):
        start, end = plan.offsets[a.key], plan.offsets[a.key] + a.nbytes
        assert start % 64 == 0
        bad += [(a.key, None)] * (end > plan.nbytes)
        for b in items[:k]:
            other = plan.offsets[b.key]
            if a.first <= b.last and b.first <= a.last and start < other + b.nbytes and other < end:
                bad.append((a.key, b.key))
    return bad


def _random_lifetimes(seed: int) -> list[Lifetime]:
    rng = np.random.default_rng(seed)
    count, length = int(rng.integers(2, 120)), rng.choice([0.1, 0.4])
    sizes = 2 ** rng.uniform(0, 20, count) if seed % 2 else rng.integers(1, 100, count) * 1024
    firsts = rng.integers(0, count, count)
    return [
        Lifetime(k, int(size), int(first), int(first + rng.geometric(length)))
        for k, (size, first) in enumerate(zip(sizes, firsts, strict=True))
    ]


@pytest.mark.quick
@pytest.mark.parametrize("block", range(10))
def test_arenas_of_random_lifetimes_are_near_the_bound(block: int) -> None:
    for seed in range(30 * block, 30 * (block + 1)):
        items = _random_lifetimes(seed)
        plan = plan_arena(items)
        assert not _overlapping(items, plan)
        assert plan.nbytes >= plan.bound == _alive_at_most(items)
        assert plan.ratio <= 1.2, seed


@pytest.mark.quick
def test_an_empty_temporary_leaves_no_gap_behind() -> None:
    """`b` ends within the room of `a`, which is free then; `d`, as empty, must not take that place within `c`."""
    items = [Lifetime("a", 128, 0, 0), Lifetime("x", 64, 1, 1), Lifetime("b", 0, 1, 1)]
    plan = plan_arena([*items, Lifetime("c", 128, 2, 2), Lifetime("d", 0, 2, 2)])
    assert plan.offsets == {"a": 0, "x": 0, "b": 64, "c": 0, "d": 128}
    assert plan.nbytes == plan.bound == 128


def _alive_at_most(items: list[Lifetime]) -> int:
    steps = {item.first for item in items}
    return max(sum(aligned(x.nbytes) for x in items if x.first <= step <= x.last) for step in steps)


@pytest.mark.quick
def test_the_largest_go_first_where_steps_in_order_leave_a_gap() -> None:
    """Step by step the long-lived `c` goes on top of `a`, and the larger `d` finds no room below it."""
    items = [Lifetime("a", 128, 0, 1), Lifetime("c", 64, 1, 3), Lifetime("d", 192, 2, 3)]
    plan = plan_arena(items)
    assert plan.nbytes == plan.bound == 256
    assert not _overlapping(items, plan)


@pytest.mark.quick
def test_many_values_are_not_placed_again_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order looks at pairs of them: it took 1.6 s to look for 64 bytes in 4,800 values."""
    orders: list[int] = []
    place = buffers.place_in_order

    def counted(lifetimes: Sequence[Lifetime], bound: int) -> ArenaPlan:
        orders.append(len(lifetimes))
        return place(lifetimes, bound)

    monkeypatch.setattr(buffers, "place_in_order", counted)
    gap = [Lifetime("a", 128, 0, 1), Lifetime("c", 64, 1, 3), Lifetime("d", 192, 2, 3)]
    single = [Lifetime(k, 64, k + 4, k + 4) for k in range(1000)]
    assert plan_arena([*gap, *single]).nbytes == 384 and not orders
    large = [item._replace(nbytes=10_000 * item.nbytes) for item in gap]
    plan = plan_arena([*large, *single])
    assert plan.nbytes == plan.bound == 2_560_000 and orders


@pytest.mark.quick
def test_outputs_lend_memory_until_they_are_written() -> None:
    outputs = [Lifetime("large", 4096, 2, 3), Lifetime("small", 1024, 5, 5)]
    items = [
        Lifetime("fits", 4000, 0, 1),
        Lifetime("too late", 900, 2, 5),
        Lifetime("too large", 5000, 0, 0),
        Lifetime("beside", 1000, 1, 2),
        Lifetime("after", 1024, 3, 4),
    ]
    assert lend_outputs(items, outputs) == {"fits": "large", "beside": "small", "after": "small"}
    plan = plan_memory(items, outputs)
    assert plan.offsets.keys() == {"too late", "too large"}
    assert plan.nbytes == aligned(5000)
    assert plan.bound == aligned(5000) + aligned(4000)


def _arenas(program: Program) -> list[ArenaPlan]:
    _, _, *steps = stages.freeze_program(program, stages.compile_program(program))
    clusters = [step for step in steps if step[0] == "cluster"]
    return [bind_cluster(frozen, {"no code": 1}).arena for frozen in clusters]


@pytest.mark.parametrize("block", range(10))
def test_arenas_of_random_programs_are_near_the_bound(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "load_kernels", lambda kernels: None)
    monkeypatch.setattr(stages, "begin_kernel", lambda kernel: "no code")
    monkeypatch.setattr(stages, "begin_functions", lambda names, dtype: None)
    for seed in range(40 * block, 40 * (block + 1)):
        program, _ = random_program(seed, ops=(14, 40, 90)[seed % 3], orders=1 + seed % 2, extents=(*LARGE, 2000))
        assert all(arena.ratio <= 1.2 for arena in _arenas(program)), seed


def _many_then_sums(x: Any, *others: Any) -> Any:
    """Products that are all made before the first of them is used, and used up one by one."""
    made = [x @ other for other in others]
    total = 0.0
    for product in made:
        total = total + np.sum(product @ product)
    return total


def test_steps_are_ordered_to_keep_little_alive() -> None:
    xs = [a / 20 for a in np.random.default_rng(0).standard_normal((8, 300, 300))]
    f = jg.compile(_many_then_sums)
    np.testing.assert_allclose(f(*xs), _many_then_sums(*xs), rtol=1e-9)
    [(stage, arrays)] = f.stages(*xs)
    executable = stage.executable(arrays)
    [cluster] = executable.bound.steps
    assert isinstance(cluster, BoundCluster)
    assert cluster.arena.bound < 3 * xs[0].nbytes


def test_temporaries_in_outputs_change_no_value() -> None:
    rng = np.random.default_rng(1)
    x, w, v = rng.standard_normal((300, 128)), rng.standard_normal((128, 160)), rng.standard_normal((160, 128))

    def loss(w: Any, v: Any) -> Any:
        return np.sum(np.tanh(np.tanh(x @ w) @ v) ** 2)

    f = jg.compile(jg.value_and_grad(loss, (0, 1)))
    [(stage, arrays)] = f.stages(w, v)
    executable = stage.executable(arrays)
    assert any(isinstance(s, BoundCluster) and s.arena.lent for s in executable.bound.steps)
    assert_same_up_to_rounding(executable(arrays), executable.program, arrays, "lent")
    value, (gw, gv) = f(w, v)
    before = (float(value), gw.copy(), gv.copy())
    f(w + 1, v)
    assert (float(value), gw.tobytes(), gv.tobytes()) == (before[0], before[1].tobytes(), before[2].tobytes())


def test_the_plan_of_memory_is_explained() -> None:
    text = jg.compile(_many_then_sums).explain(*np.ones((3, 64, 64))).memory
    assert text.startswith("cluster 0: arena ")
    assert "most alive at once" in text


# -- the process ---------------------------------------------------------------------------------------------------


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _grown(work: Any, calls: int) -> int:
    """Bytes by which the process grew in some calls, after as many calls before."""
    for _ in range(calls):
        work()
    before = _resident()
    for _ in range(calls):
        work()
    return _resident() - before


linux = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")


@linux
@pytest.mark.parametrize(("rows", "calls"), [(8, 5_000), (40_000, 300)])
def test_calls_leave_nothing(rows: int, calls: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, 8)), rng.standard_normal((8, 8))
    f = jg.compile(jg.value_and_grad(lambda x, w: np.sum(np.tanh(x @ w) ** 2), (0, 1)))
    assert _grown(lambda: f(x, w), calls) < 2 << 20


@linux
def test_outputs_pay_no_page_faults() -> None:
    """An output of 64 pages or more lies in memory that a call before had; fresh memory would fault on each page."""
    x = np.ones(200_000, np.float32)
    f = jg.compile(jg.value_and_grad(lambda x, w: np.sum(np.tanh(x * w) ** 2), (0, 1)))
    for _ in range(5):
        result = f(x, x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        result = f(x, x)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert result is not None
    assert faults < 50 * 20


@linux
def test_threads_that_call_at_once_are_right_and_leave_nothing() -> None:
    rng = np.random.default_rng(0)
    f = jg.compile(jg.value_and_grad(lambda x, w: np.sum(np.tanh(x @ w) ** 2), (0, 1)))
    arguments = [(rng.standard_normal((n, 16)), rng.standard_normal((16, 16))) for n in (30, 3_000, 3_000)]
    expected = [[np.asarray(a).tobytes() for a in (value, *grads)] for value, grads in (f(*a) for a in arguments)]
    wrong: list[int] = []

    def call(k: int, times: int) -> None:
        for _ in range(times):
            value, grads = f(*arguments[k])
            if [np.asarray(a).tobytes() for a in (value, *grads)] != expected[k]:
                wrong.append(k)

    def all_at_once() -> None:
        threads = [threading.Thread(target=call, args=(k, 100)) for k in range(len(arguments))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    grown = _grown(all_at_once, 3)
    assert not wrong
    assert grown < 4 << 20


def test_shapes_share_an_arena() -> None:
    f = jg.compile(lambda x, w: np.sum(np.tanh(np.tanh(x @ w) @ w) ** 2))
    w = np.eye(64)
    for n in range(300, 330):
        x = np.full((n, 64), 0.5)
        assert f(x, w) == f(x, w) == pytest.approx(n * 64 * np.tanh(np.tanh(0.5)) ** 2)
    runs = [made.as_run for entry in f._calls.entries() for made in entry.runner.executables()]
    busy = {run.busy for run in runs if run is not None}
    assert len(runs) >= 30 and len(busy) <= 2  # 32 KB and more to 64, 128 or 256 KB


def test_calls_at_the_same_time_have_an_arena_each() -> None:
    first = arena_for(1 << 20)
    second = arena_for((1 << 20) - 100)
    assert first.address != second.address and first.nbytes == second.nbytes
    second.give_back()
    assert arena_for(1 << 20) is second
    first.give_back()
    second.give_back()


def _resident_bytes(first: int, end: int) -> int:
    """How much is memory between two addresses, by pages."""
    start = first & -mmap.PAGESIZE
    pages = np.zeros(-(start - end) // mmap.PAGESIZE + 1, np.uint8)
    room = ctypes.c_size_t(end - start)
    assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(start), room, ctypes.c_void_p(pages.ctypes.data))
    return int(np.sum(pages & 1)) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are memory")
def test_no_page_of_an_arena_is_there_before_it_is_told_how_far_it_reaches() -> None:
    """A small page at its begin would have the rest of the first huge one small, too."""
    arena = Arena(8 << 20)
    arena.reach(7 << 20)
    assert _resident_bytes(arena.busy_address, arena.address + arena.nbytes) == 0
    assert arena.take() and not arena.take()
    arena.give_back()
    assert arena.take()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are memory")
@pytest.mark.parametrize("nbytes", [2_100_000, 3_245_440, 4_815_936, 6_586_624, 33_591_296])
def test_an_arena_takes_the_memory_that_its_plan_says(nbytes: int) -> None:
    arena = Arena(1 << nbytes.bit_length())
    arena.reach(nbytes)
    arena._memory[arena.address - arena._memory.ctypes.data :][:nbytes] = 1
    resident = _resident_bytes(arena.busy_address, arena.address + arena.nbytes)
    assert nbytes <= resident <= nbytes + 2 * mmap.PAGESIZE


def check_outputs() -> None:
    """Outputs of several sizes, in blocks that are up to an eighth larger. A last huge page may lack a quarter."""
    for nbytes, more in ((4_300_000, 0), (34_000_000, 0), (38_000_000, 0), (8_000_000, HUGE_BYTES // 4)):
        array = OutputPool(1 << 30).take((nbytes,), np.uint8)
        array[:] = 1
        memory = array.base
        assert isinstance(memory, np.ndarray)
        start = memory.ctypes.data
        assert nbytes <= _resident_bytes(start, start + memory.nbytes) <= nbytes + more + 2 * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are memory")
def test_outputs_take_the_memory_that_they_fill() -> None:
    """Where a block ended a huge page, the whole page was memory. In a new process: what was freed before is memory."""
    code = "from tests.test_memory import check_outputs; check_outputs()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="the system has no huge pages"
)
@pytest.mark.parametrize("are_slow", [False, True])
def test_huge_pages_reach_as_far_as_calls_do(are_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """But where those of the last outputs took long, as on a busy machine they may for tests in the same process; whose
    arenas may be shared and reach further.
    """
    monkeypatch.setattr(pools, "_shared", {})
    monkeypatch.setattr(pools.outputs, "has_slow_huge_pages", are_slow)
    arena = arena_for(5 * HUGE_BYTES)
    arena.give_back()
    assert arena_for(7 * HUGE_BYTES + 5) is arena
    arena.give_back()
    reached = 0 if are_slow else 7 * HUGE_BYTES
    assert arena._huge_bytes == reached and arena.busy_address % HUGE_BYTES == 0
    assert arena_for(5 * HUGE_BYTES) is arena and arena._huge_bytes == reached
    arena.give_back()
