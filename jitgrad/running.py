"""Running part of a graph, also where it has to be cut in stages; sessions and compiled functions share it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from jitgrad import recording
from jitgrad.compiler.freezing.beside import Bound
from jitgrad.copying import Place
from jitgrad.executable import Executable
from jitgrad.following import PromisedTensors
from jitgrad.fresh import run_listed, separate
from jitgrad.graph import Operation, Tensor
from jitgrad.interpreter import run_operation
from jitgrad.opdef import Control
from jitgrad.outlook import Outlook
from jitgrad.program import Program, is_dynamic, needed_operations
from jitgrad.records import NamedTuple, dataclass
from jitgrad.restoring import variables_of
from jitgrad.run_stages import Beside, Followed, Stage, kept
from jitgrad.spec import TensorSpec, spec_of
from jitgrad.streams import Streams, current, reading

if TYPE_CHECKING:
    from jitgrad.ops.state import Variable


@dataclass(frozen=True, eq=False)
class _Step:
    """A stage, and the operations after it whose output shapes are only known once they have run."""

    stage: Stage
    dynamic: tuple[Operation, ...]


class OperationRun(NamedTuple):
    """What a profile keeps of the run of an operation that is in no program: it, and the arrays read and made."""

    operation: Operation
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Runner:
    """Computes ``fetches`` (and runs ``targets``) of a graph from arrays of ``feeds``.

    A program knows all its shapes, so the graph is cut at operations that do not tell theirs beforehand
    (py_func): what does not depend on them is one program, then they are run, then the rest is a program for
    the shapes that they gave. Random numbers are read from ``streams``, those of its owner.
    """

    def __init__(
        self,
        fetches: Sequence[Tensor],
        feeds: Sequence[Tensor],
        targets: Sequence[Operation] = (),
        name: str = "main",
        streams: Streams | None = None,
        stage: Stage | None = None,
    ) -> None:
        self.fetches = kept(fetches)
        self.feeds = kept(feeds)
        self.streams = current() if streams is None else streams
        self._targets = tuple(targets)
        self._steps = (
            _plan_steps(self.fetches, self.feeds, self._targets, self.operations, name)
            if stage is None
            else (_Step(stage, ()),)
        )
        first = self._steps[0]
        self._only = first.stage if len(self._steps) == 1 and not first.dynamic else None

    @functools.cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that a run takes, in the order of the graph."""
        return tuple(needed_operations(self.fetches, self._targets, self.feeds))

    @functools.cached_property
    def _may_draw(self) -> bool:
        return any(op.opdef.stateful or isinstance(op.opdef.kind, Control) for op in self.operations)

    def followed_by(self, trace: Followed, outlook: Callable[[], Outlook | None] | None) -> Runner | None:
        """What runs the same of a trace that is like this one's in all but extents and numbers; None where that does
        not follow from this. ``outlook`` gives what is known of others by the time that it first runs.
        """
        stage, fetches, feeds = self._only, trace.outputs, trace.feeds
        if stage is None or stage.targets or not _are_alike(self.fetches, fetches) or not _are_alike(self.feeds, feeds):
            return None
        if self._numbers is None:
            return None
        made = Stage(fetches, feeds, name=stage.name)
        made.beside = Beside(stage, trace, self._numbers, outlook)
        return Runner(fetches, feeds, (), stage.name, self.streams, made)

    def foretold_by(self, trace: Followed, bound: Bound, specs: Callable[[], Sequence[TensorSpec]]) -> Runner:
        """The same where a formula of extents has given what binds it; ``specs`` gives those of the arrays."""
        stage, numbers = self._only, self._numbers
        assert stage is not None
        assert numbers is not None
        made = Stage(trace.outputs, trace.feeds, name=stage.name)
        made.beside = Beside(stage, trace, numbers)
        made.bind(stage.executables()[0], bound, specs, made.beside.plan)
        return Runner(trace.outputs, trace.feeds, (), stage.name, self.streams, made)

    @functools.cached_property
    def _numbers(self) -> tuple[int, ...] | None:
        """The numbers of the operations, if each is one instruction of the only program; else None."""
        assert self._only is not None
        instructions = self._only.program([t.spec for t in self.feeds]).instructions
        is_plain = [ins.op for ins in instructions] == [op.opdef for op in self.operations]
        return tuple([op.id for op in self.operations]) if is_plain else None

    @property
    def reads_watched(self) -> bool:
        """Whether the graph that this is part of reads what a tape may watch: a Variable, or a tensor with a value."""
        return any(t.graph.variables or t.graph.closed_over for t in self.fetches[:1])

    @property
    def variables(self) -> list[Variable]:
        """The Variables that a run reads or assigns."""
        return variables_of(op.params for op in self.operations)

    @property
    def only_program(self) -> Program | None:
        """The program that a run is, where that is one for all shapes that its feeds have."""
        return self._only.program([t.spec for t in self.feeds]) if self._only is not None else None

    def program_later(self) -> Callable[[], Program | None]:
        """What gives `only_program`; where that follows from no other it is made, and nothing else is held."""
        if self._only is not None and self._only.beside is not None:
            return lambda: self.only_program
        program = self.only_program
        return lambda: program

    @property
    def is_cut(self) -> bool:
        """Whether there are operations that do not tell their shapes before they run, and stages around them."""
        return self._only is None

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays of the fetches, computed by executables."""
        with reading(self.streams):
            return self._only.run(arrays) if self._only is not None else self._run_steps(arrays, Stage.run)

    def run_again(self, arrays: Sequence[Any]) -> list[Any]:
        """`run`, for calls that machine code hands over: many, and with nobody who looks at them; 0-d results may be
        NumPy's scalars.
        """
        if self._only is None or recording.sinks:
            return self.run(arrays)
        with reading(self.streams):
            return self._only.run_again(arrays)

    def as_run(self, arrays: Sequence[Any]) -> Any:
        """How machine code makes such a run without Python; None where it cannot."""
        return self._only.as_run(arrays) if self._only is not None else None

    def interpret(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays of the fetches, computed op by op in NumPy."""
        if self._only is not None and not self._may_draw:
            return self._only.interpret(arrays)
        with reading(self.streams):
            return self._only.interpret(arrays) if self._only is not None else self._run_steps(arrays, Stage.interpret)

    def listed(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """`interpret` without what it looks at first, but that 0-d results may be NumPy's scalars; None where the
        program is not one function yet, or is more than one program.
        """
        found = self._only.listed() if self._only is not None and not self._may_draw else None
        return partial(run_listed, found) if found is not None else None

    def explain(self, arrays: Sequence[Any]) -> Any:
        """What becomes of a run with such arrays."""
        return _joined([stage.executable(values).explanation for stage, values in self.stages(arrays)])

    def stages(self, arrays: Sequence[Any]) -> list[tuple[Stage, list[Any]]]:
        """The stages of a run with their arrays. Where there are several, the run is made, to know their
        shapes.
        """
        if self._only is not None:
            return [(self._only, list(arrays))]
        found: list[tuple[Stage, list[Any]]] = []

        def run(stage: Stage, values: Sequence[Any]) -> list[Any]:
            found.append((stage, list(values)))
            return stage.run(values)

        with reading(self.streams):
            self._run_steps(arrays, run)
        return found

    def executables(self) -> list[Executable]:
        """All executables made so far."""
        return [made for step in self._steps for made in step.stage.executables()]

    def _run_steps(
        self, arrays: Sequence[Any], run: Callable[[Stage, Sequence[Any]], list[Any]]
    ) -> list[Any]:
        values: dict[Tensor, Any] = dict(zip(self.feeds, arrays, strict=True))
        for step in self._steps:
            results = run(step.stage, [values[t] for t in step.stage.feeds])
            values.update(zip(step.stage.fetches, results, strict=True))
            for op in step.dynamic:
                _run_operation(op, values)
        results = [values[t] for t in self.fetches]
        del values
        return separate(results, arrays)


def _are_alike(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether tensors of two graphs stand at the same places."""
    return places_of(a) == places_of(b)


def places_of(tensors: Sequence[Tensor]) -> tuple[Place, ...]:
    """The places of tensors in their graph, which makes none that is only promised."""
    if isinstance(tensors, PromisedTensors):
        return tensors.places
    return tuple([(t.op.id, t.value_index) for t in tensors])


def _run_operation(op: Operation, values: dict[Tensor, Any]) -> None:
    arrays = [values[x] for x in op.inputs]
    start = perf_counter_ns() if recording.sinks else 0
    result = run_operation(op, arrays)
    results = (result,) if len(op.outputs) == 1 else tuple(result)
    if start:
        source = OperationRun(op, tuple(map(spec_of, arrays)), tuple(map(spec_of, results)))
        recording.record("numpy", op.type, start, perf_counter_ns(), source)
    values.update(zip(op.outputs, results, strict=True))


def _joined(explanations: Sequence[Any]) -> Any:
    names = [field.name for field in dataclasses.fields(explanations[0]) if field.compare]
    texts = {name: "\n".join(getattr(e, name) for e in explanations) for name in names}
    return type(explanations[0])(**texts, compiled=tuple(c for e in explanations for c in e.compiled))


def _plan_steps(
    fetches: Sequence[Tensor],
    feeds: Sequence[Tensor],
    targets: tuple[Operation, ...],
    operations: Sequence[Operation],
    name: str,
) -> tuple[_Step, ...]:
    dynamic = {op for op in operations if is_dynamic(op)}
    if not dynamic:
        return (_Step(Stage(fetches, feeds, targets, name=name), ()),)
    from jitgrad.cutting import cut_at

    cuts = enumerate(cut_at(dynamic, fetches, feeds, targets, operations))
    return tuple([_Step(Stage(*cut[:4], f"{name}_{depth}"), cut.late) for depth, cut in cuts])
