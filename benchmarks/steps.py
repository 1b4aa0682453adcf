"""Times of the steps of a compiled cluster, one by one, run without the path of a call; it knows no workload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.driver.pools import Arena
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.freezing.plans import BoundOp
from jitgrad.compiler.fusing.buffers import ALIGNMENT
from jitgrad.executable import Executable


class Steps:
    """The steps of an executable that is one cluster, on memory of their own."""

    def __init__(self, executable: Executable, arrays: Sequence[Any]) -> None:
        self.bound, given = _only_cluster(executable)
        specs = executable.program.specs
        given |= dict(zip(executable.program.inputs, map(np.ascontiguousarray, arrays), strict=True))
        made = [_aligned(specs[v].known_shape, specs[v].dtype) for v in self.bound.outputs]
        self._kept = [*(given[v] for v in self.bound.inputs), *made]
        self.arena = Arena(self.bound.arena.nbytes)
        self.table = np.zeros(self.bound.nslots + 1, np.int64)
        self.table[: len(self._kept)] = [a.ctypes.data for a in self._kept]
        for slot, offset in self.bound.temporaries:
            self.table[slot] = self.arena.address + offset
        self.table[self.bound.nslots - 1] = self.table.ctypes.data + 8 * self.bound.nslots
        self._times = np.zeros(len(self.bound.steps) + 1, np.int64)

    @property
    def is_parallel(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which steps are cut in chunks."""
        return np.asarray(self.bound.steps[:, 3] > 1)

    def seconds(self, threads: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Run all steps; what each took, the second time: by then all threads are awake."""
        steps, times = self.bound.steps, self._times
        run = runtime().run_steps
        for _ in range(2):
            run(self.table.ctypes.data, steps.ctypes.data, len(steps), times.ctypes.data, threads, 1)
        return np.diff(times) * 1e-9


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Memory as outputs have it, in which temporaries may lie."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + nbytes].view(dtype).reshape(shape)


def _only_cluster(executable: Executable) -> tuple[BoundCluster, dict[int, Any]]:
    """The cluster that is the whole program but for constants, and these; ValueError where there is anything else."""
    *others, cluster = executable.bound.steps
    constants: dict[int, Any] = {}
    for step in others:
        if not isinstance(step, BoundOp) or step.inputs:
            raise ValueError("the program is more than one cluster")
        constants[step.outputs[0]] = np.ascontiguousarray(step.op.impl(**step.params))
    if not isinstance(cluster, BoundCluster):
        raise ValueError("the program has no cluster")
    return cluster, constants
