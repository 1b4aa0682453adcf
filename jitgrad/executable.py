"""Executable: a compiled program bound to memory and machine code; the path that every call takes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from jitgrad import recording
from jitgrad.cluster_calls import ClusterCall, Report, StepRun
from jitgrad.compiler import bind_beside, bind_foretold, bind_program, has_stages, likeness_of
from jitgrad.compiler.calling.entries import Run
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.freezing.plans import BoundOp, BoundProgram, Frozen, bind_frozen
from jitgrad.compiler.freezing.records import Addresses
from jitgrad.compiler.machine.kernels import statistics
from jitgrad.fresh import separate
from jitgrad.interpreter import LISTED_FROM, line_of, located
from jitgrad.opdef import Fill, Specs
from jitgrad.program import Program
from jitgrad.records import NamedTuple
from jitgrad.spec import TensorSpec
from jitgrad.step_lines import FIRST_LINE, Line, Lines, write_lines

if TYPE_CHECKING:
    from jitgrad.compiler.explain import Explanation
    from jitgrad.compiler.freezing.alike import Likeness
    from jitgrad.compiler.freezing.beside import Bound
    from jitgrad.compiler.freezing.foretelling import Foretold
    from jitgrad.compiler.likeness import Extents
    from jitgrad.compiler.stages import Compiled

_CONSTANT = Fill("constant")


class Stats(NamedTuple):
    """The kernels in use by their keys, how many of them were compiled here, and how many came from disk."""

    kernels: frozenset[str] = frozenset()
    compiles: int = 0
    disk_hits: int = 0

    def with_those_of(self, executables: Iterable[Executable]) -> Stats:
        """These and what is counted of executables."""
        stats = [self, *[made.stats for made in executables]]
        kernels = frozenset[str]().union(*(s.kernels for s in stats))
        return Stats(kernels, sum(s.compiles for s in stats), sum(s.disk_hits for s in stats))


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
        self._runs = 0
        self._lines: Lines | None = None
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

    @property
    def likeness(self) -> Likeness | None:
        """What plans of programs like this one follow from; None where none does. Of a plan from disk that is found
        once the stages are loaded, since others ask for them.
        """
        return self._found_likeness if self.bound.likeness is None and has_stages() else self.bound.likeness

    @functools.cached_property
    def _found_likeness(self) -> Likeness | None:
        return likeness_of(self.source)

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
        return separate(self._results(arrays), arrays, self._own)

    def _results(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of a run, as its steps made them."""
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
        return [values[v] for v in self.bound.outputs]

    @functools.cached_property
    def as_run(self) -> Run | None:
        """The program as machine code runs it without Python; None where it is not one cluster, or has outputs that
        are none of its results and inputs.
        """
        if len(self._steps) != 1:
            return None
        _, outs, call = self._steps[0]
        if not isinstance(call, ClusterCall) or not {*self.inputs, *outs}.issuperset(self.bound.outputs):
            return None
        inputs = [(v, (spec.dtype, spec.known_shape)) for v, spec in zip(self.inputs, self._specs(), strict=True)]
        return call.as_run(inputs, self.bound.outputs)

    def run_again(self, arrays: Sequence[Any]) -> list[Any]:
        """The same as a call, where nobody records it, but that numbers of no dimension may be NumPy's scalars: what
        runs again and again is written as one function first.
        """
        if self._lines is None:
            self._runs += 1
            if self._runs < LISTED_FROM:
                return self(arrays)
            self._lines = self._written()
        try:
            results = self._lines.run(*arrays)
        except (IndexError, np.linalg.LinAlgError) as error:
            line = line_of(self._lines.code, error)
            step = self._works[line - FIRST_LINE] if line else None
            if not isinstance(step, BoundOp):
                raise
            raise _located(self, step, error) from error
        return separate(results, arrays, self._own, keeps_numbers=True)

    def _written(self) -> Lines:
        steps = zip(self._steps, self._works, self._dead, strict=True)
        known = dict(zip(self.inputs, self._specs(), strict=True))
        known |= {v: TensorSpec(array.shape, array.dtype) for v, array in self._constants.items()}
        lines = []
        for (inputs, outs, _), work, dead in steps:
            specs = tuple([known[v] for v in inputs]) if known.keys() >= set(inputs) else None
            known |= zip(outs, _specs_of(work, specs), strict=False)
            lines.append(Line(inputs, outs, work, dead, specs))
        return write_lines(lines, self.inputs, self.bound.outputs, self._constants)

    @functools.cached_property
    def _works(self) -> list[ClusterCall | BoundOp]:
        """What each step is."""
        calls = (call for *_, call in self._steps)
        bound = (step for step in self.bound.steps if not _is_constant(step))
        pairs = zip(calls, bound, strict=True)
        return [call if isinstance(call, ClusterCall) else cast(BoundOp, step) for call, step in pairs]

    def _as_one_call(self) -> _Step | None:
        """Where one cluster is the whole program: the arrays that it takes, the outputs among its results, the call."""
        if len(self._steps) != 1 or not isinstance(self._steps[0][2], ClusterCall):
            return None
        inputs, outs, call = self._steps[0]
        wanted = self.bound.outputs
        if len(set(wanted)) != len(wanted) or not set(wanted) <= set(outs):
            return None
        given, made = ({v: k for k, v in enumerate(values)} for values in (self.inputs, outs))
        return tuple([given[v] for v in inputs]), tuple([made[v] for v in wanted]), call

    def _step(self, number: int, step: BoundCluster | BoundOp) -> _Step:
        if isinstance(step, BoundCluster):
            call = ClusterCall(self, number, step, Report(self._source), self._constants)
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

    @functools.cached_property
    def _own(self) -> frozenset[int]:
        """The positions of outputs that are made by a cluster, which gives them memory of their own."""
        made = {v for inputs, outs, call in self._steps if isinstance(call, ClusterCall) for v in outs}
        return frozenset(k for k, v in enumerate(self.bound.outputs) if v in made)


def _specs_of(work: ClusterCall | BoundOp, specs: Specs | None) -> Specs:
    """What a step makes of values with these specs; none where that is not known."""
    if isinstance(work, BoundOp):
        return () if specs is None else work.op.infer(specs, work.params)
    copied = [(np.dtype(dtype), shape) for _, _, dtype, shape in work.bound.copied]
    return tuple([TensorSpec(shape, dtype) for dtype, shape in (*work.bound.out_specs, *copied)])


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
    count, likeness = _Count(), other.likeness
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
    """Counts what this thread has compiled and read from disk from its making on."""

    def __init__(self) -> None:
        self._before = (statistics.compiles, statistics.disk_hits)

    def stats(self, kernels: frozenset[str]) -> Stats:
        return Stats(kernels, statistics.compiles - self._before[0], statistics.disk_hits - self._before[1])
