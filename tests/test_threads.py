"""The number of threads changes no bit of a result: the benchmarks' workloads, and random programs."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from benchmarks.steps import Steps
from benchmarks.workloads import WORKLOADS
from jitgrad.compiler.emission.arguments import APART
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.executable import Executable, make_executable
from tests.random_programs import LARGE, random_program

COUNTS = (1, 2, 3, 4, 7)


@pytest.fixture(autouse=True)
def many_threads() -> Iterator[None]:
    """Compiled for the most threads, so that each count is taken as it is."""
    before = jg.get_num_threads()
    jg.set_num_threads(max(COUNTS))
    yield
    jg.set_num_threads(before)


def _bits(call: Callable[[], Any]) -> list[bytes]:
    return [np.asarray(a).tobytes() for a in call()]


def _assert_same_bits(call: Callable[[], Any], what: str) -> None:
    results = []
    for threads in COUNTS:
        jg.set_num_threads(threads)
        results.append([_bits(call) for _ in range(1 + (threads == 2))])
    jg.set_num_threads(max(COUNTS))
    assert all(bits == results[0][0] for pair in results for bits in pair), what


@pytest.mark.parametrize("name", sorted(WORKLOADS.keys() - {"gelu_1e7"}))
def test_workloads_have_the_same_bits(name: str) -> None:
    workload = WORKLOADS[name]
    arrays = workload.make(1.0 if name == "chain" else 0.1)
    f = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))

    def call() -> list[Any]:
        value, grads = f(*arrays)
        return [*(value if workload.has_aux else (value,)), *grads]

    call()
    _assert_same_bits(call, name)


def _most_chunks(executable: Executable) -> int:
    steps = [step for step in executable.bound.steps if isinstance(step, BoundCluster)]
    return max((int(step.steps[:, 3].max(initial=1)) for step in steps), default=1)


@pytest.mark.parametrize("block", range(4))
def test_random_programs_have_the_same_bits(block: int) -> None:
    """Programs of one scope: NumPy's own products, when interpreted, are rounded as its BLAS shares the work."""
    tested = 0
    for seed in range(50 * block, 50 * (block + 1), 2):
        program, arrays = random_program(seed, ops=12, extents=(*LARGE, 2000))
        executable = make_executable(program)
        if _most_chunks(executable) > 1:
            tested += 1
            _assert_same_bits(functools.partial(executable, arrays), f"seed {seed}")
    assert tested


def test_two_threads_have_as_many_chunks_each() -> None:
    """Of five chunks of 25 rows one thread would work on 15 rows."""
    counts = []
    for rows in range(20, 90, 7):
        x = np.ones((25, 10 * rows, 10))
        f = jg.compile(lambda x: np.exp(x) @ np.ones((25, 10, 10)))
        f(x)
        ((stage, given),) = f.stages(x)
        *_, cluster = stage.executable(given).bound.steps
        assert isinstance(cluster, BoundCluster)
        counts += [int(count) for count in cluster.steps[:, 3] if 1 < count < 25]
    assert counts
    assert all(count % 2 == 0 for count in counts)


def _written(steps: Steps, worker: int) -> set[int]:
    """Where in the arena the first step's kernel writes in the name of a worker, but for what belongs to the chunk."""
    address, block, extent, _ = steps.bound.steps[0, :4].tolist()
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(address)
    arena = np.ctypeslib.as_array((ctypes.c_uint8 * steps.bound.arena.nbytes).from_address(steps.arena.address))
    written: set[int] = set()
    for filling in (0x55, 0xAA):
        arena[:] = filling
        kernel(steps.table.ctypes.data, block, 0, extent, 0, worker)
        written |= set(np.flatnonzero(arena != filling).tolist())
    return written


@pytest.mark.parametrize("name", ["batched_densities", "layer_norm", "stencil"])
def test_what_a_worker_has_of_its_own_lies_together(name: str) -> None:
    """Where parts of two workers alternate, processors take lines from each other that they only ask for ahead: with
    caches far apart, two threads took as long as one for 1000 densities.
    """
    workload = WORKLOADS[name]
    arrays = workload.make(0.1)
    f = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))
    ((stage, given),) = f.stages(*arrays)
    steps = Steps(stage.executable(given), given)
    first, second, third = (_written(steps, worker) for worker in (0, 1, 2))
    of_chunk = first & second & third
    places = [sorted(written - of_chunk) for written in (first, second, third)]
    assert all(places)
    for here, there in itertools.pairwise(places):
        assert here[-1] + APART < there[0]
