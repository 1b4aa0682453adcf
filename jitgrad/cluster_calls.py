"""Calls of compiled clusters: the memory of a call, its arrays in the slots of its table, what its status says, and
what a profile hears of it. Which clusters a program has is the executable's business.
"""

from __future__ import annotations

import functools
import weakref
from array import array as words
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad import recording
from jitgrad.compiler.calling.entries import Output, Run
from jitgrad.compiler.calling.unbox import unboxer
from jitgrad.compiler.driver.loop_layout import MEMORY_STATUS
from jitgrad.compiler.driver.pools import Arena, arena_for, outputs
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.freezing.bind import ArraySpec, BoundCluster
from jitgrad.config import get_num_threads
from jitgrad.interpreter import run_error
from jitgrad.opdef import Control
from jitgrad.program import Program
from jitgrad.records import NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitgrad.executable import Executable


# A run of at most this many steps, none of them cut in chunks, is taken to be short: it keeps the GIL.
_SHORT_RUN = 2
_SAMPLE = 4096


class _Frame(NamedTuple):
    """The memory of one running call of a cluster: the table of addresses and the arena that it points into."""

    table: npt.NDArray[np.int64]
    address: int
    arena: Arena

    def word(self, number: int) -> int:
        """The address of a word of the table."""
        return self.address + self.table.itemsize * number


class _Room(NamedTuple):
    """Words behind the status of a table that machine code fills, from the ``first``: per input of the program a slot,
    for one that no step reads, and a cell; per output the two words of a scalar, and a slot, for one that is copied.
    """

    first: int
    inputs: int
    outputs: int

    def slot_of_input(self, number: int) -> int:
        """The slot of an input; its cell is behind it."""
        return self.first + 2 * number

    @property
    def scalars(self) -> int:
        """Where the scalars begin."""
        return self.first + 2 * self.inputs

    @property
    def copies(self) -> int:
        """Where the slots of outputs begin that are copied."""
        return self.scalars + 2 * self.outputs

    @property
    def end(self) -> int:
        """Behind all."""
        return self.copies + self.outputs


class StepRun(NamedTuple):
    """What a profile keeps of a step's run: the step by its number, and for a native call when each part was over."""

    executable: Executable
    number: int
    stamps: Sequence[int] | None = None
    value: int | None = None


class ClusterCall:
    """Calls a compiled cluster: arrays in, new arrays out. Those of its inputs that are ``constants`` are not given."""

    def __init__(
        self, executable: Executable, number: int, bound: BoundCluster, report: Callable[[int], None],
        constants: Mapping[int, Any],
    ) -> None:  # fmt: skip
        self._executable = weakref.ref(executable)
        self._number = number
        self._recorded_runs = 0
        self.bound = bound
        self._report = report
        self._checks = bound.checks
        self.inputs = tuple(v for v in bound.inputs if v not in constants)
        self._constants = [
            (place, self._fitting(constants[v], spec))
            for place, (v, spec) in enumerate(zip(bound.inputs, bound.in_specs, strict=True)) if v in constants
        ]  # fmt: skip
        self.outputs = bound.outputs + tuple(v for v, *_ in bound.copied)
        self._workers = bound.workers
        self._takers = [outputs.taker(shape, dtype) for dtype, shape in bound.out_specs]
        self._steps_address, self._arguments_address = bound.addresses
        self._copied = [(place, np.dtype(dtype), shape) for _, place, dtype, shape in bound.copied]
        self._nsteps = len(bound.steps)
        is_cut = max(bound.steps[:, 3].tolist(), default=0) > 1
        is_short = self._nsteps <= _SHORT_RUN and not is_cut
        if is_cut:  # before the run: a worker that begins in it waits on the caller's processor for its turn
            runtime().pool.ensure(min(get_num_threads(), self._workers))
        self._release = int(not is_short or bound.has_loops)
        self._frames: list[_Frame] = []
        self._unbox = unboxer()
        self._run = runtime().run_steps

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        made = [take() for take in self._takers]
        if self._constants:
            arrays = self._with_constants(arrays)
        frame = self._take_frame()
        try:
            self._run_on(frame, arrays, made)
        finally:
            frame.arena.give_back()
            self._frames.append(frame)
        if self._copied:
            made += [
                _copy(made[place] if place >= 0 else arrays[~place], dtype, shape)
                for place, dtype, shape in self._copied
            ]
        return made

    def _with_constants(self, arrays: Sequence[Any]) -> list[Any]:
        """What is given, and the constants, in their places."""
        joined = list(arrays)
        for place, array in self._constants:
            joined.insert(place, array)
        return joined

    def _run_on(self, frame: _Frame, arrays: Sequence[Any], made: list[Any]) -> None:
        if not self._unbox(self._arguments_address, frame.address, *arrays, *made):
            arrays = [self._fitting(array, spec) for array, spec in zip(arrays, self.bound.in_specs, strict=True)]
            for slot, array in enumerate((*arrays, *made)):
                frame.table[slot] = array.ctypes.data
        try:
            if recording.sinks:
                self._recorded_run(frame, arrays, made)
            else:
                self.run(frame)
        except BaseException:  # of a signal that came in a loop
            frame.table[self.bound.nslots] = 0
            raise
        status = int(frame.table[self.bound.nslots]) if self._checks else 0
        if status:
            frame.table[self.bound.nslots] = 0
            self._report(status)

    def run(self, frame: _Frame, times: int = 0) -> None:
        """Run the steps on a frame whose table is filled; ``times`` is the address of room for stamps, or 0."""
        threads = min(get_num_threads(), self._workers)
        self._run(frame.address, self._steps_address, self._nsteps, times, threads, self._release)

    def _recorded_run(self, frame: _Frame, arrays: Sequence[Any], made: Sequence[Any]) -> None:
        """Run with a stamp after every step, and tell the profiles; at runs 1, 2, 4, ... of denormal numbers, too."""
        stamps = words("q", bytes(8 * (self._nsteps + 1)))
        start = perf_counter_ns()
        self.run(frame, stamps.buffer_info()[0])
        end = perf_counter_ns()
        executable = self._executable()
        assert executable is not None
        name = f"cluster {self._number}"
        recording.record("native", name, start, end, StepRun(executable, self._number, stamps))
        self._recorded_runs += 1
        if not self._recorded_runs & (self._recorded_runs - 1):
            for v, array in zip((*self.bound.inputs, *self.outputs), (*arrays, *made), strict=False):
                start = perf_counter_ns()
                if holds_denormals(array):
                    found = StepRun(executable, self._number, value=v)
                    recording.record("denormals", name, start, perf_counter_ns(), found)

    def _step_run(self) -> StepRun:
        """What a profile keeps of a run, without its times."""
        executable = self._executable()
        assert executable is not None
        return StepRun(executable, self._number)

    def _take_frame(self) -> _Frame:
        """A frame whose arena no running call uses. Another thread may take the last one between a look and a pop."""
        others: list[_Frame] = []
        try:
            while True:
                frame = self._frames.pop()
                if frame.arena.take():
                    return frame
                others.append(frame)
        except IndexError:
            return self._new_frame(arena_for(self.bound.arena.nbytes))
        finally:
            self._frames += others

    def _new_frame(self, arena: Arena, room: int = 0) -> _Frame:
        """A frame on an arena, whose table has so many words of room behind the status."""
        nslots = self.bound.nslots
        table = np.zeros(nslots + 1 + room, np.int64)  # the word behind the slots is the status itself
        place, start = table.ctypes.data, arena.address
        table[nslots - 1 - len(self.bound.temporaries) : nslots] = [
            *[start + offset for _, offset in self.bound.temporaries], place + table.itemsize * nslots
        ]  # fmt: skip
        return _Frame(table, place, arena)

    def as_run(self, inputs: Sequence[tuple[int, ArraySpec]], wanted: Sequence[int]) -> Run | None:
        """A program of these inputs and outputs as machine code runs it, on a frame of its own; None where an output is
        made but not wanted.
        """
        bound = self.bound
        if not set(bound.outputs) <= set(wanted):
            return None
        room = _Room((bound.nslots + 2) // 2 * 2, len(inputs), len(wanted))
        frame = self._new_frame(self._take_frame().arena, room.end - bound.nslots - 1)
        frame.arena.give_back()
        for place, array in self._constants:
            frame.table[place] = array.ctypes.data
        slots = {v: slot for slot, v in enumerate((*bound.inputs, *bound.outputs))}
        places = tuple([slots.setdefault(v, room.slot_of_input(k)) for k, (v, _) in enumerate(inputs)])
        return Run(
            frame.table, places, tuple([room.slot_of_input(k) + 1 for k in range(len(places))]),
            tuple(self._outputs(frame, room, slots, dict(inputs), wanted)), bound.steps, self._workers,
            bool(self._release), runtime().enter_address, frame.arena.busy_address, frame.word(bound.nslots),
            self._report if self._checks else None, self._step_run, (frame, bound, self._constants),
        )  # fmt: skip

    def _outputs(
        self, frame: _Frame, room: _Room, slots: dict[int, int], inputs: dict[int, ArraySpec],
        wanted: Sequence[int],
    ) -> Iterator[Output]:  # fmt: skip
        """Where machine code finds the outputs of a program; numbers of no dimension lie in the table."""
        bound = self.bound
        specs = dict(zip(bound.inputs + bound.outputs, bound.in_specs + bound.out_specs, strict=True)) | inputs
        roots = dict(slots)
        for v, place, dtype, shape in bound.copied:
            roots[v] = slots[bound.outputs[place] if place >= 0 else bound.inputs[~place]]
            specs[v] = np.dtype(dtype), shape
        for k, v in enumerate(wanted):
            if v not in bound.outputs or v in wanted[:k]:
                yield Output(room.copies + k, *specs[v], roots[v])
                continue
            if not specs[v][1]:
                frame.table[slots[v]] = frame.word(room.scalars + 2 * k)
            yield Output(slots[v], *specs[v])

    def _fitting(self, array: Any, spec: Any) -> npt.NDArray[Any]:
        dtype, shape = spec
        fitting: npt.NDArray[Any] = np.require(array, dtype, ["C", "A"]).reshape(shape)
        return fitting


class Report:
    """Raises what the status of a run says, as the interpreter does."""

    def __init__(self, source: Callable[[], Program]) -> None:
        self._source = source

    @functools.cached_property
    def _program(self) -> Program:
        from jitgrad.compiler.stages import compile_program

        return compile_program(self._source()).program

    def __call__(self, status: int) -> None:
        from jitgrad.compiler.subprograms import locate_status
        from jitgrad.control.ops import LoopLimitError, loop_limit_text

        if status == MEMORY_STATUS:
            raise MemoryError("no memory for what a loop saves of its steps")
        program, ins = locate_status(self._program, status)
        if isinstance(ins.op.kind, Control):
            raise LoopLimitError(loop_limit_text(ins.params["maximum_iterations"]))
        raise run_error(program, ins)


def _copy(array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A copy under another shape, also one of pairs of real numbers as complex ones, or the other way round."""
    made = np.empty(shape, dtype)
    made.reshape(-1).view(array.dtype).reshape(array.shape)[...] = array
    return made


def holds_denormals(array: Any) -> bool:
    """Whether a float array holds numbers so small that they have fewer digits; processors take long with them.

    Of a large array some thousand elements are looked at: a few denormals cost nothing.
    """
    if array.dtype.kind != "f":
        return False
    size = np.abs(array.ravel()[:: max(1, array.size // _SAMPLE)])
    return bool(np.any((size < np.finfo(array.dtype).tiny) & (size > 0)))
