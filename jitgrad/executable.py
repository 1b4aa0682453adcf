"""Executable: a compiled program bound to memory and machine code; the path that every call takes."""

from __future__ import annotations

import functools
import weakref
from array import array as words
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from jitgrad import recording
from jitgrad.compiler import bind_beside, bind_foretold, bind_program
from jitgrad.compiler.calling.entries import Output, Run
from jitgrad.compiler.calling.unbox import unboxer
from jitgrad.compiler.driver.loop_layout import MEMORY_STATUS
from jitgrad.compiler.driver.pools import Arena, arena_for, outputs
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.freezing.bind import ArraySpec, BoundCluster
from jitgrad.compiler.freezing.plans import BoundOp, BoundProgram, Frozen, bind_frozen
from jitgrad.compiler.freezing.records import Addresses
from jitgrad.compiler.machine.kernels import statistics
from jitgrad.config import get_num_threads
from jitgrad.interpreter import located, run_error
from jitgrad.opdef import Control, Fill
from jitgrad.program import Program
from jitgrad.records import NamedTuple
from jitgrad.spec import TensorSpec

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitgrad.compiler.explain import Explanation
    from jitgrad.compiler.freezing.beside import Bound
    from jitgrad.compiler.freezing.foretelling import Foretold
    from jitgrad.compiler.likeness import Extents
    from jitgrad.compiler.stages import Compiled

# A run of at most this many steps, none of them cut in chunks, is taken to be short: it keeps the GIL.
_SHORT_RUN = 2
_SAMPLE = 4096
_CONSTANT = Fill("constant")


class Stats(NamedTuple):
    """The kernels in use by their keys, how many of them were compiled here, and how many came from disk."""

    kernels: frozenset[str] = frozenset()
    compiles: int = 0
    disk_hits: int = 0


class _Frame(NamedTuple):
    """The memory of one running call of a cluster: the table of addresses and the arena that it points into."""

    table: npt.NDArray[np.int64]
    address: int
    arena: Arena

    def word(self, number: int) -> int:
        """The address of a word of the table."""
        return self.address + self.table.itemsize * number


class StepRun(NamedTuple):
    """What a profile keeps of a step's run: the step by its number, and for a native call when each part was over."""

    executable: Executable
    number: int
    stamps: Sequence[int] | None = None
    value: int | None = None


class _ClusterCall:
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

        Room behind the status: per input of the program a slot, for one that no step reads, and a cell; per output the
        two words of a scalar, and a slot, for one that is copied.
        """
        bound = self.bound
        if not set(bound.outputs) <= set(wanted):
            return None
        first = (bound.nslots + 2) // 2 * 2
        scalars = first + 2 * len(inputs)
        copies = scalars + 2 * len(wanted)
        frame = self._new_frame(self._take_frame().arena, copies + len(wanted) - bound.nslots - 1)
        frame.arena.give_back()
        for place, array in self._constants:
            frame.table[place] = array.ctypes.data
        slots = {v: slot for slot, v in enumerate((*bound.inputs, *bound.outputs))}
        places = tuple(slots.setdefault(v, first + 2 * k) for k, (v, _) in enumerate(inputs))
        specs = dict(zip(bound.inputs + bound.outputs, bound.in_specs + bound.out_specs, strict=True)) | dict(inputs)
        for v, place, dtype, shape in bound.copied:
            root = bound.outputs[place] if place >= 0 else bound.inputs[~place]
            slots[v], specs[v] = slots[root], (np.dtype(dtype), shape)
        made = []
        for k, v in enumerate(wanted):
            if v in bound.outputs and v not in wanted[:k]:
                made.append(Output(slots[v], *specs[v]))
                if not specs[v][1]:
                    frame.table[slots[v]] = frame.word(scalars + 2 * k)
            else:
                made.append(Output(copies + k, *specs[v], slots[v]))
        return Run(
            frame.table, places, tuple(first + 2 * k + 1 for k in range(len(places))), tuple(made), bound.steps,
            self._workers, bool(self._release), runtime().enter_address, frame.arena.busy_address,
            frame.word(bound.nslots), self._report if self._checks else None, self._step_run,
            (frame, bound, self._constants),
        )  # fmt: skip

    def _fitting(self, array: Any, spec: Any) -> npt.NDArray[Any]:
        dtype, shape = spec
        fitting: npt.NDArray[Any] = np.require(array, dtype, ["C", "A"]).reshape(shape)
        return fitting


class _Report:
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


# The values (or places) that a step takes, those that it gives, and the call.
_Step = tuple[tuple[int, ...], tuple[int, ...], Callable[[Sequence[Any]], list[Any]]]


def _located(executable: Executable | None, step: BoundOp, error: Exception) -> Exception:
    """The error of an interpreted step, with its operation and the user's line."""
    if executable is None:
        return error
    program = executable.program
    return located(program, program.instructions[program.producers()[step.outputs[0]]], error)


class Executable:
    """Calls with arrays of the program's inputs; gives new arrays of its outputs.

    ``inputs`` are the values that are the program's inputs, ``specs`` gives theirs, ``source`` the program itself;
    ``like`` has the same steps for other shapes.
    """

    def __init__(
        self, bound: BoundProgram, inputs: Sequence[int], specs: Callable[[], Sequence[TensorSpec]],
        source: Callable[[], Program], stats: Stats, like: Executable | None = None,
    ) -> None:  # fmt: skip
        self.bound = bound
        self.inputs = tuple(inputs)
        self._specs = specs
        self._source = source
        self.stats = stats
        self._constants = {step.outputs[0]: step.params["value"] for step in bound.steps if _is_constant(step)}
        self._steps = [self._step(number, step) for number, step in enumerate(bound.steps) if not _is_constant(step)]
        known: _Step | None = None if like is None else like._whole
        self._whole: _Step | None = self._as_one_call() if known is None else (*known[:2], self._steps[0][2])

    @functools.cached_property
    def source(self) -> Program:
        """The program before all stages."""
        return self._source()

    @functools.cached_property
    def compiled(self) -> Compiled:
        """What each stage of the compiler makes of the program, made when it is asked for."""
        from jitgrad.compiler.stages import compile_program

        return compile_program(self.source)

    @property
    def program(self) -> Program:
        """The program after the first stage, to which the numbers of values belong."""
        return self.compiled.program

    @functools.cached_property
    def explanation(self) -> Explanation:
        """What became of the program, one text per stage."""
        from jitgrad.compiler.explain import explain

        return explain(self.compiled, self.bound)

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        if self._whole is not None:
            inputs, outs, call = self._whole
            made = call([arrays[k] for k in inputs])
            return [made[k] for k in outs]
        values: list[Any] = [None] * self.bound.nvalues
        for v, array in zip(self.inputs, arrays, strict=True):
            values[v] = array
        for v, array in self._constants.items():
            values[v] = array
        for (inputs, outs, call), dead in zip(self._steps, self._dead, strict=True):
            results = call([values[v] for v in inputs])
            for v, result in zip(outs, results, strict=True):
                values[v] = result
            for v in dead:
                values[v] = None
        return self._separate([values[v] for v in self.bound.outputs], arrays)

    @functools.cached_property
    def as_run(self) -> Run | None:
        """The program as machine code runs it without Python; None where it is not one cluster, or has outputs that
        are none of its results and inputs.
        """
        if len(self._steps) != 1:
            return None
        _, outs, call = self._steps[0]
        if not isinstance(call, _ClusterCall) or not {*self.inputs, *outs}.issuperset(self.bound.outputs):
            return None
        inputs = [(v, (spec.dtype, spec.known_shape)) for v, spec in zip(self.inputs, self._specs(), strict=True)]
        return call.as_run(inputs, self.bound.outputs)

    def _as_one_call(self) -> _Step | None:
        """Where one cluster is the whole program: the arrays that it takes, the outputs among its results, the call."""
        if len(self._steps) != 1 or not isinstance(self._steps[0][2], _ClusterCall):
            return None
        inputs, outs, call = self._steps[0]
        wanted = self.bound.outputs
        if len(set(wanted)) != len(wanted) or not set(wanted) <= set(outs):
            return None
        given, made = ({v: k for k, v in enumerate(values)} for values in (self.inputs, outs))
        return tuple([given[v] for v in inputs]), tuple([made[v] for v in wanted]), call

    def _step(self, number: int, step: BoundCluster | BoundOp) -> _Step:
        if isinstance(step, BoundCluster):
            call = _ClusterCall(self, number, step, _Report(self._source), self._constants)
            return call.inputs, call.outputs, call
        here = weakref.ref(self)

        def interpreted(arrays: Sequence[Any]) -> list[Any]:
            executable = here() if recording.sinks else None
            source = StepRun(executable, number) if executable is not None else None
            with recording.span("numpy", step.op.name, source), np.errstate(all="ignore"):
                try:
                    result = step.op.impl(*arrays, **step.params)
                except (IndexError, np.linalg.LinAlgError) as error:
                    raise _located(here(), step, error) from error
            return [result] if len(step.outputs) == 1 else list(result)

        return step.inputs, step.outputs, interpreted

    @functools.cached_property
    def _dead(self) -> list[list[int]]:
        """Per step, the values that nothing reads after it."""
        last: dict[int, int] = {}
        for number, (inputs, outs, _) in enumerate(self._steps):
            last |= dict.fromkeys((*inputs, *outs), number)
        dead: list[list[int]] = [[] for _ in self._steps]
        outputs = set(self.bound.outputs)
        for v, number in last.items():
            if v not in outputs:
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
        return [v in made for v in self.bound.outputs]


def _is_constant(step: BoundCluster | BoundOp) -> TypeGuard[BoundOp]:
    """Whether a step gives the same array in every run: none is made of it."""
    return isinstance(step, BoundOp) and step.op.kind == _CONSTANT


def make_executable(program: Program) -> Executable:
    """Compile a program and bind it; ``interpret(program, feeds)`` is what it means."""
    count = _Count()
    bound = bind_program(program)
    specs = [program.specs[v] for v in program.inputs]
    return Executable(bound, program.inputs, lambda: specs, lambda: program, count.stats(bound.kernels))


def executable_known(
    frozen: Frozen, addresses: Addresses, inputs: Sequence[int], specs: Callable[[], Sequence[TensorSpec]],
    source: Callable[[], Program],
) -> Executable:  # fmt: skip
    """The executable of a plan that was found on disk with its kernels; ``source`` gives the program, if asked."""
    bound = bind_frozen(source, frozen, addresses)
    return Executable(bound, inputs, specs, source, Stats(bound.kernels, disk_hits=len(bound.kernels)))


def executable_beside(
    other: Executable, specs: Sequence[TensorSpec], extents: Extents, numbers: Mapping[int, Any],
    source: Callable[[], Program], foretold: Foretold | None = None,
) -> Executable | None:  # fmt: skip
    """The executable of a program like another's, for inputs of these ``specs``, before the program itself is made, see
    compiler/freezing/beside.py; None where its plan does not follow from the other's.
    """
    count, likeness = _Count(), other.bound.likeness
    bound = bind_beside(likeness, extents, numbers, source, foretold) if likeness is not None else None
    if bound is None:
        return None
    return Executable(bound, other.inputs, lambda: specs, source, count.stats(bound.kernels))


def executable_foretold(
    other: Executable, specs: Callable[[], Sequence[TensorSpec]], bound: Bound, source: Callable[[], Program],
    frozen: Callable[[], Any],
) -> Executable:  # fmt: skip
    """The same where a formula of extents has given what binds it; ``frozen`` gives the plan."""
    made = bind_foretold(bound, source, frozen)
    return Executable(made, other.inputs, specs, source, Stats(made.kernels), other)


class _Count:
    """Counts what is compiled and read from disk from its making on."""

    def __init__(self) -> None:
        self._before = (statistics.compiles, statistics.disk_hits)

    def stats(self, kernels: frozenset[str]) -> Stats:
        return Stats(kernels, statistics.compiles - self._before[0], statistics.disk_hits - self._before[1])
