"""Executable: a compiled program bound to memory and machine code; the path that every call takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jitgrad.compiler import CompiledCluster, compile_program, machine
from jitgrad.compiler.explain import Explanation, explain
from jitgrad.compiler.lower import Lowered
from jitgrad.compiler.pools import Arena, outputs
from jitgrad.compiler.runtime import runtime
from jitgrad.compiler.unbox import ArrayArgument, pack_arguments, unboxer
from jitgrad.config import get_num_threads
from jitgrad.interpreter import run_error
from jitgrad.program import Program

# A run of at most this many steps, none of them cut in chunks, is taken to be short: it keeps the GIL.
_SHORT_RUN = 2


@dataclass(frozen=True)
class Stats:
    """The kernels in use by their text, how many of them were compiled here, and how many came from disk."""

    kernels: frozenset[str] = frozenset()
    compiles: int = 0
    disk_hits: int = 0


@dataclass(eq=False)
class _Frame:
    """The memory of one running call of a cluster: the table of addresses and the arena that it points into."""

    table: npt.NDArray[np.int64]
    address: int
    arena: Arena


class _ClusterCall:
    """Calls a compiled cluster: arrays in, new arrays out."""

    def __init__(self, program: Program, compiled: CompiledCluster) -> None:
        bound = compiled.bound
        self.bound = bound
        self._program = program
        self._checks = any(
            b.role == "status" for i in compiled.lowered if isinstance(i, Lowered) for b in i.kernel.buffers
        )
        self.inputs = bound.inputs
        self.outputs = bound.outputs + tuple(v for v, _ in bound.copied)
        self._workers = bound.workers
        self._in_specs = [program.specs[v] for v in bound.inputs]
        self._takers = [outputs.taker(program.specs[v].known_shape, program.specs[v].dtype) for v in bound.outputs]
        arguments = [
            ArrayArgument(slot, program.specs[v].dtype, program.specs[v].known_shape)
            for slot, v in enumerate((*bound.inputs, *bound.outputs))
        ]
        self._arguments = pack_arguments(arguments)
        self._arguments_address = self._arguments.ctypes.data
        self._copied = [
            (
                bound.outputs.index(root) if root in bound.outputs else ~bound.inputs.index(root),
                program.specs[v].known_shape,
            )
            for v, root in bound.copied
        ]
        self._steps_address = bound.steps.ctypes.data
        self._nsteps = len(bound.steps)
        self._release = int(self._nsteps > _SHORT_RUN or bool((bound.steps[:, 3] > 1).any()))
        self._frames: list[_Frame] = []
        self._unbox = unboxer()
        self._run = runtime().run_steps

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        made = [take() for take in self._takers]
        frame = self._take_frame()
        if not self._unbox(self._arguments_address, frame.address, *arrays, *made):
            arrays = [self._fitting(array, spec) for array, spec in zip(arrays, self._in_specs, strict=True)]
            for slot, array in enumerate((*arrays, *made)):
                frame.table[slot] = array.ctypes.data
        self.run(frame)
        if self._checks and frame.table[-1]:
            self._report(frame)
        self._frames.append(frame)
        if self._copied:
            made += [
                (made[place] if place >= 0 else arrays[~place]).reshape(shape).copy() for place, shape in self._copied
            ]
        return made

    def _report(self, frame: _Frame) -> None:
        """Raise what the status of a run says, as the interpreter does."""
        value = int(frame.table[-1]) - 1
        ins = self._program.instructions[self._program.producers()[value]]
        raise run_error(self._program, ins)

    def run(self, frame: _Frame, times: int = 0) -> None:
        """Run the steps on a frame whose table is filled; ``times`` is the address of room for stamps, or 0."""
        threads = min(get_num_threads(), self._workers)
        self._run(frame.address, self._steps_address, self._nsteps, times, threads, self._release)

    def _take_frame(self) -> _Frame:
        """A frame that no running call uses. Another thread may take the last one between a look and a pop."""
        try:
            return self._frames.pop()
        except IndexError:
            return self._new_frame()

    def _new_frame(self) -> _Frame:
        table = np.zeros(self.bound.nslots + 1, np.int64)  # the last word is the status itself
        arena = Arena(self.bound.arena.nbytes)
        for slot, offset in self.bound.temporaries:
            table[slot] = arena.address + offset
        table[-2] = table.ctypes.data + table.itemsize * self.bound.nslots
        return _Frame(table, table.ctypes.data, arena)

    def _fitting(self, array: Any, spec: Any) -> npt.NDArray[Any]:
        fitting: npt.NDArray[Any] = np.require(array, spec.dtype, ["C", "A"]).reshape(spec.known_shape)
        return fitting


# The values (or places) that a step takes, those that it gives, and the call.
_Step = tuple[tuple[int, ...], tuple[int, ...], Callable[[Sequence[Any]], list[Any]]]


class Executable:
    """Calls with arrays of the program's inputs; gives new arrays of its outputs."""

    def __init__(self, program: Program) -> None:
        before = (machine.statistics.compiles, machine.statistics.disk_hits)
        self.compiled = compile_program(program)
        self.program = self.compiled.program
        self._steps = [self._step(step) for step in self.compiled.steps]
        clusters = [step for step in self.compiled.steps if isinstance(step, CompiledCluster)]
        kernels = frozenset(i.kernel.text for c in clusters for i in c.lowered if isinstance(i, Lowered))
        self.stats = Stats(kernels, machine.statistics.compiles - before[0], machine.statistics.disk_hits - before[1])
        self._dead = self._last_uses()
        self._whole = self._as_one_call()

    @functools.cached_property
    def explanation(self) -> Explanation:
        """What became of the program, one text per stage."""
        return explain(self.compiled)

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        if self._whole is not None:
            inputs, outs, call = self._whole
            made = call([arrays[k] for k in inputs])
            return [made[k] for k in outs]
        values: list[Any] = [None] * len(self.program.specs)
        for v, array in zip(self.program.inputs, arrays, strict=True):
            values[v] = array
        for (inputs, outs, call), dead in zip(self._steps, self._dead, strict=True):
            results = call([values[v] for v in inputs])
            for v, result in zip(outs, results, strict=True):
                values[v] = result
            for v in dead:
                values[v] = None
        return self._separate([values[v] for v in self.program.outputs], arrays)

    def _as_one_call(self) -> _Step | None:
        """Where one cluster is the whole program: the arrays that it takes, the outputs among its results, the call."""
        if len(self._steps) != 1 or not isinstance(self._steps[0][2], _ClusterCall):
            return None
        inputs, outs, call = self._steps[0]
        wanted = self.program.outputs
        if len(set(wanted)) != len(wanted) or not set(wanted) <= set(outs):
            return None
        return tuple(map(self.program.inputs.index, inputs)), tuple(map(outs.index, wanted)), call

    def _step(self, step: CompiledCluster | int) -> _Step:
        if isinstance(step, CompiledCluster):
            call = _ClusterCall(self.program, step)
            return call.inputs, call.outputs, call
        ins = self.program.instructions[step]

        def interpreted(arrays: Sequence[Any]) -> list[Any]:
            with np.errstate(all="ignore"):
                result = ins.op.impl(*arrays, **ins.params)
            return [result] if len(ins.outputs) == 1 else list(result)

        return ins.inputs, ins.outputs, interpreted

    def _last_uses(self) -> list[list[int]]:
        """Per step, the values that nothing reads after it."""
        last: dict[int, int] = {}
        for number, (inputs, outs, _) in enumerate(self._steps):
            last |= dict.fromkeys((*inputs, *outs), number)
        dead: list[list[int]] = [[] for _ in self._steps]
        for v, number in last.items():
            if v not in self.program.outputs:
                dead[number].append(v)
        return dead

    def _separate(self, results: list[Any], arrays: Sequence[Any]) -> list[Any]:
        """Outputs as writable C-contiguous arrays that share memory neither with one another nor with the inputs."""
        taken = {id(array) for array in arrays}
        for position, result in enumerate(results):
            if not self._is_own[position] or id(result) in taken:
                results[position] = result = np.array(result, order="C")
            taken.add(id(result))
        return results

    @functools.cached_property
    def _is_own(self) -> list[bool]:
        """Whether each output is made by a cluster, which gives it memory of its own."""
        made = {v for inputs, outs, call in self._steps if isinstance(call, _ClusterCall) for v in outs}
        return [v in made for v in self.program.outputs]


def make_executable(program: Program) -> Executable:
    """Compile a program and bind it; ``interpret(program, feeds)`` is what it means."""
    return Executable(program)
