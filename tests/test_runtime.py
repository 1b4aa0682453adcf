"""The step driver and its threads: every chunk once, the same results for any number of threads, forks,
nesting, exit.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from step_kernels import COUNT, LIMIT, NEST, SPIN, Call, compiled

import jitgrad as jg
from benchmarks.steps import Steps
from jitgrad.compiler.driver.pool_layout import THREAD_IDS
from jitgrad.compiler.driver.runtime import Runtime, load_runtime, pack_steps, runtime
from jitgrad.compiler.driver.steps import driver_ir
from jitgrad.compiler.driver.system import host_platform
from jitgrad.compiler.driver.trials import PAST, RENEWED, RUNS, TRIED
from jitgrad.compiler.machine.cache import cache_key

EXTENT = 1000


def counting(nchunks: int, extent: int = EXTENT, steps: int = 1) -> Call:
    buffers = [np.zeros(extent, np.int64), *(np.full(max(1, nchunks), -1, np.int64) for _ in range(3))]
    return Call(buffers, [(compiled(COUNT), (), extent, nchunks)] * steps)


def run(call: Call, threads: int, release: int = 0, driver: Runtime | None = None) -> None:
    assert (driver or runtime()).run_steps(*call.arguments, 0, threads, release) is True


@pytest.mark.parametrize("nchunks", [1, 2, 7, 64, 1000, 1003])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_chunks_cover_the_extent_once(nchunks: int, threads: int) -> None:
    call = counting(nchunks, steps=5)
    run(call, threads)
    count, lo, hi, worker = call.buffers
    assert (count == 5).all()
    bounds = EXTENT * np.arange(nchunks + 1) // nchunks
    assert (lo == bounds[:-1]).all()
    assert (hi == bounds[1:]).all()
    assert (worker < threads).all()


@pytest.mark.parametrize("release", [0, 1])
def test_bits_do_not_depend_on_threads(release: int) -> None:
    results = []
    for threads in (1, 2, 3):
        call = Call([np.zeros(9)], [(compiled(SPIN), (), 2000, 9)])
        run(call, threads, release)
        results.append(call.buffers[0])
    assert all((result == results[0]).all() for result in results)


def test_threads_share_the_work() -> None:
    call = Call([np.zeros(64)], [(compiled(SPIN), (), 64 * 20000, 64)])
    where = counting(64)
    deadline = time.monotonic() + 10
    workers: set[int] = set()
    while len(workers) < 2 and time.monotonic() < deadline:
        run(call, 2)
        run(where, 2)
        takers = where.buffers[3]
        assert (np.diff(takers) >= 0).all(), "the caller takes chunks from the front, the other thread from the back"
        workers |= set(takers.tolist())
    assert workers == {0, 1}


def waiting(slow: np.ndarray[Any, Any]) -> str:
    """A kernel that counts a call as one and takes its time where its word is the one in ``slow``."""
    return f"""
define void @NAME(ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %chunk, i64 %worker) nounwind {{
entry:
  %asked = load i64, ptr inttoptr (i64 {slow.ctypes.data} to ptr)
  %place = getelementptr i64, ptr %block, i64 1
  %word = load i64, ptr %place
  %slow = icmp eq i64 %word, %asked
  %turns = select i1 %slow, i64 200000, i64 1000
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %head ]
  %a = phi double [ 1.0, %entry ], [ %a1, %head ]
  %a1 = fadd double %a, 1.0
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %turns
  br i1 %more, label %head, label %done
done:
  %p = load ptr, ptr %table
  %q = getelementptr double, ptr %p, i64 %chunk
  store double %a, ptr %q
  ret void
}}
"""


def test_a_step_is_tried_in_both_ways_and_the_shorter_one_stays() -> None:
    past, tried = np.array([PAST]), np.array([TRIED])
    call = Call([np.zeros(4)], [(compiled(waiting(past)), (0, TRIED), 4, 4)])
    step, block = call.steps[0], call.blocks[0]
    step[4] = 8
    ways = []
    for _ in range(RUNS):
        run(call, 1)
        ways.append(int(block[1]))
    assert ways[: RUNS - 1] == ([TRIED] * 2 + [PAST] * 2) * (RUNS // 4 - 1) + [TRIED] * 2 + [PAST]
    assert ways[-1] == TRIED
    run(call, 1)
    assert block[1] == TRIED
    step[0] = compiled(waiting(tried))  # better code in its place
    for _ in range(RUNS + 1):
        run(call, 1)
    assert block[1] == PAST


def test_a_step_is_tried_again_after_many_runs() -> None:
    slow = np.array([PAST])
    call = Call([np.zeros(4)], [(compiled(waiting(slow)), (0, TRIED), 4, 4)])
    step, block = call.steps[0], call.blocks[0]
    step[4] = 8
    for _ in range(RENEWED):
        run(call, 1)
    assert block[1] == TRIED
    slow[0] = TRIED
    ways = []
    for runs in range(4, RUNS):
        assert step[5] % 256 == runs
        run(call, 1)
        ways.append(int(block[1]))
    assert ways == [TRIED] * 2 + [PAST] * 2 + [TRIED] * 2 + [PAST] * 2
    run(call, 1)
    assert block[1] == PAST


def test_too_many_chunks_run_serially() -> None:
    call = counting(70_000, steps=2)
    run(call, 2)
    assert (call.buffers[0] == 2).all()
    assert (call.buffers[3] == 0).all()


def test_no_thread_for_one() -> None:
    script = """
import _thread, time
from step_kernels import *
from jitgrad.compiler.driver.runtime import runtime
call = Call([np.zeros(10, np.int64)] * 4, [(compiled(COUNT), (), 10, 4)])
runtime().run_steps(*call.arguments, 0, 1, 0)
assert runtime().pool.running == 0 and _thread._count() == 0
runtime().run_steps(*call.arguments, 0, 2, 0)
while _thread._count() == 0:
    time.sleep(1e-3)
assert runtime().pool.running == 1 and _thread._count() == 1
"""
    python(script)


def python(script: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script in a new process that finds jitgrad and the kernels of the tests."""
    here = os.path.dirname(__file__)
    paths = os.environ | {"PYTHONPATH": os.pathsep.join((os.path.dirname(here), here))}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=paths, timeout=120, capture_output=True, check=True)


def test_concurrent_callers() -> None:
    calls = [counting(16, steps=200) for _ in range(4)]
    threads = [threading.Thread(target=run, args=(call, 3, 1)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all((call.buffers[0] == 200).all() for call in calls)


@pytest.mark.parametrize("nchunks", [1, 8])
def test_steps_inside_steps(nchunks: int) -> None:
    inner = counting(5)
    table, steps, _ = inner.arguments
    outer = Call([np.zeros(1)], [(compiled(NEST), (runtime().run_address, table, steps), 20, nchunks)])
    run(outer, 2 if nchunks == 1 else 1)
    assert (inner.buffers[0] == 20).all()


def test_a_step_inside_a_region_runs_serially() -> None:
    inner = [counting(5) for _ in range(4)]
    steps = []
    for call in inner:
        table, records, _ = call.arguments
        steps.append((compiled(NEST), (runtime().run_address, table, records), 1, 2))
    run(Call([np.zeros(1)], steps), 2)
    for call in inner:
        assert (call.buffers[0] == 1).all()
        assert (call.buffers[3] == 0).all()


def test_a_run_keeps_its_limit_whatever_others_begin_with() -> None:
    """Of steps alone, in regions and in loops: a loop that took another's limit had more threads than its scratch is
    planned for.
    """
    x = np.ones((300, 300))
    f = jg.compile(lambda x: jg.scan(lambda s, k: (np.tanh(s - s.mean()) + k, None), x, np.arange(3.0))[0])
    f(x)
    ((stage, given),) = f.stages(x)
    steps = Steps(stage.executable(given), given)
    other = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(lambda *_: run(counting(1), 3))
    between = (ctypes.cast(other, ctypes.c_void_p).value or 0, 0, 1, 1)
    limits = [np.zeros(count, np.int64) for count in (1, 64, 64)]
    of_each = [Call([limit], [(compiled(LIMIT), (), 64, len(limit))]) for limit in limits]
    records = [*(call.steps[0, :4].tolist() for call in of_each), *steps.bound.steps[:, :4].tolist()]
    before = runtime().pool.regions
    for table, record in zip([*(call.arguments[0] for call in of_each), steps.table.ctypes.data], records, strict=True):
        packed = pack_steps([between, record])
        runtime().run_steps(table, packed.ctypes.data, 2, 0, 1, 1)
    assert runtime().pool.regions == before
    assert all((limit == 1).all() for limit in limits)


def test_worker_numbers_stay_below_the_limit() -> None:
    before = runtime().pool.running  # of tests that ran in this process
    run(counting(64), 6)
    assert runtime().pool.running == max(5, before)
    for _ in range(200):
        call = counting(64)
        run(call, 2)
        assert call.buffers[3].max() <= 1


def test_stamps() -> None:
    call = Call([np.zeros(4)], [(compiled(SPIN), (), 400_000, 1), (compiled(SPIN), (), 4_000, 4)])
    stamps = np.zeros(3, np.int64)
    before = time.perf_counter_ns()
    runtime().run_steps(*call.arguments, stamps.ctypes.data, 1, 0)
    after = time.perf_counter_ns()
    assert before <= stamps[0] < stamps[1] < stamps[2] <= after
    assert stamps[1] - stamps[0] > stamps[2] - stamps[1]


@pytest.mark.parametrize("arguments", [(), (1, 2, 3), (0, 0, "x", 0, 1, 0), (0, 0, 2**70, 0, 1, 0)])
def test_wrong_arguments_raise(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        runtime().run_steps(*arguments)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_fork() -> None:
    run(counting(8), 3)
    child = os.fork()
    if child == 0:
        call = counting(8, steps=20)
        before = runtime().pool.running
        run(call, 3)
        os._exit(0 if before == 0 and (call.buffers[0] == 20).all() and runtime().pool.running == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    call = counting(8, steps=20)
    run(call, 3)
    assert (call.buffers[0] == 20).all()
    assert runtime().pool.running >= 2


def test_exit_while_workers_wait_and_run() -> None:
    script = """
import threading
from step_kernels import *
from jitgrad.compiler.driver.runtime import runtime
call = Call([np.zeros(64)], [(compiled(SPIN), (), 64 * 100_000, 64)] * 1000)
runtime().run_steps(*Call([np.zeros(8)], [(compiled(SPIN), (), 80, 8)]).arguments, 0, 3, 0)
threading.Thread(target=runtime().run_steps, args=(*call.arguments, 0, 3, 1), daemon=True).start()
"""
    assert not python(script).stderr


def test_stopped_workers_start_again() -> None:
    run(counting(8), 2)
    runtime().pool.stop()
    assert runtime().pool.running == 0
    call = counting(8)
    run(call, 2)
    assert (call.buffers[0] == 1).all()
    assert runtime().pool.running == 1


def test_nobody_waits_for_a_worker_to_run_and_one_that_comes_late_takes_part() -> None:
    pool, turn = runtime().pool, sys.getswitchinterval()
    pool.stop()
    word = ctypes.c_int32.from_address(pool._pool + THREAD_IDS)
    sys.setswitchinterval(60)
    try:
        pool.ensure(2)
        assert pool.running == 1
        assert word.value == -1
        call = counting(8)
        run(call, 2)
        assert (call.buffers[0] == 1).all()
    finally:
        sys.setswitchinterval(turn)
    while word.value == -1:
        time.sleep(1e-3)
    assert word.value > 0
    test_threads_share_the_work()


def test_without_futex_and_affinity() -> None:
    """The road of machines that block on a mutex and a condition variable."""
    text = driver_ir(replace(host_platform(), futex=0, affinity=False), 50)
    driver = load_runtime(cache_key(text), lambda: text.replace("@jitgrad_", "@other_"), "other")
    for _ in range(50):
        call = counting(16, steps=3)
        run(call, 3, driver=driver)
        assert (call.buffers[0] == 3).all()
        time.sleep(0.0005)
    driver.pool.stop()
