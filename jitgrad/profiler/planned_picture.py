"""The picture of a compiled program, read from what its stages left; it loads the compiler and draws nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from jitgrad.compiler.clustering.clusters import Reason
from jitgrad.compiler.explain import rolled_rows
from jitgrad.compiler.fusing.groups import Group, Step
from jitgrad.compiler.fusing.nodes import Convolution, Factor, Nested, Product, Transform
from jitgrad.compiler.lowering.lower import CompiledCluster
from jitgrad.compiler.stages import Compiled
from jitgrad.profiler.loops import LoopBody, compiled_bodies, interpreted_bodies, loop_title
from jitgrad.profiler.picture import Arrow, Body, Box, OpText, Picture
from jitgrad.program import Instruction, Program
from jitgrad.sources import source_text


def picture_of(*programs: Compiled) -> Picture:
    """Kernels, BLAS calls and NumPy calls as boxes, what goes between them as arrows with bytes and reasons.

    Several programs, the parts of a run that is cut where shapes are not known before, stand side by side.
    """
    boxes: list[Box] = []
    arrows: list[Arrow] = []
    for compiled in programs:
        first = len(boxes)
        picture = _Pictured(compiled.program, compiled.steps, compiled.clustering.reasons).picture()
        boxes += [replace(box, key=box.key + first) for box in picture.boxes]
        arrows += [replace(a, source=a.source + first, target=a.target + first) for a in picture.arrows]
    return Picture(tuple(boxes), tuple(arrows))


class _Pictured:
    def __init__(
        self, program: Program, steps: Sequence[CompiledCluster | int], refused: Sequence[Reason] = ()
    ) -> None:
        self.program = program
        self.steps = steps
        self.refused = refused
        self.boxes: list[Box] = []
        self.maker: dict[int, int] = {}  # value in memory → box
        self.home: dict[int, int] = {}  # value computed in it → box
        self.read: list[tuple[int, int]] = []  # value, box
        self.reasons: dict[tuple[int, int], str] = {}

    def picture(self) -> Picture:
        for position, v in enumerate(self.program.inputs):
            self._box("input", f"input {position} {self.program.specs[v]}", None, (), (), [v])
        for step in self.steps:
            if isinstance(step, CompiledCluster):
                self._cluster(step)
            else:
                self._interpreted(step)
        for position, v in enumerate(self.program.outputs):
            self._box("output", f"output {position} {self.program.specs[v]}", None, (), (v,), ())
        self._cuts()
        return Picture(tuple(self.boxes), tuple(self._arrows()))

    def _interpreted(self, number: int) -> None:
        """A NumPy call; the read of a Variable is an input like others."""
        ins = self.program.instructions[number]
        variable = None if ins.inputs else ins.params.get("variable")
        if variable is not None and ins.outputs:
            title = f"Variable {variable.name} {self.program.specs[ins.outputs[0]]}"
            self._box("input", title, None, (op_text(ins),), (), ins.outputs)
        else:
            bodies, title = interpreted_bodies(ins), loop_title(ins)
            key = self._box("numpy", title, None, (op_text(ins),), ins.inputs, ins.outputs, self._refusals(number))
            self._put_in(key, bodies)

    def _cuts(self) -> None:
        """Why a scope is several clusters: on the arrows between its parts, else as a note at the later one."""
        flows = {(self.maker[v], reader) for v, reader in self.read if v in self.maker}
        for reason in self.refused:
            if len(reason.instructions) > 1:
                places = [self._place_of(n) for n in reason.instructions]
                boxes = sorted({box for box in places if box is not None})
                between = [pair for pair in combinations(boxes, 2) if pair in flows]
                for pair in between:
                    known = self.reasons.get(pair)
                    self.reasons[pair] = f"{known}; {reason.text}" if known else reason.text
                if boxes and not between:
                    last = self.boxes[boxes[-1]]
                    self.boxes[boxes[-1]] = replace(last, notes=(*last.notes, reason.text))

    def _place_of(self, number: int) -> int | None:
        """The box that an instruction is in; None for one that has no work, or no outputs."""
        found = (self.home.get(v, self.maker.get(v)) for v in self.program.instructions[number].outputs)
        return next((box for box in found if box is not None), None)

    def _refusals(self, number: int) -> tuple[str, ...]:
        return tuple(reason.text for reason in self.refused if reason.instructions == (number,))

    def _box(
        self,
        kind: str,
        title: str,
        scope: str | None,
        ops: tuple[OpText, ...],
        reads: Sequence[int],
        makes: Sequence[int],
        notes: tuple[str, ...] = (),
        group: str = "",
    ) -> int:
        key = len(self.boxes)
        self.boxes.append(Box(key, kind, title, scope, ops, notes, group))
        self.read += [(v, key) for v in reads]
        self.maker |= dict.fromkeys(makes, key)
        return key

    def _put_in(self, key: int, bodies: Sequence[LoopBody]) -> None:
        """The bodies of a loop into its box."""
        inner = tuple(Body(body.name, _Pictured(body.program, body.steps).picture()) for body in bodies)
        self.boxes[key] = replace(self.boxes[key], inner=inner)

    def _cluster(self, step: CompiledCluster) -> None:
        aliases = step.plan.aliases
        scope, group = step.cluster.scope, f"cluster {step.cluster.number}"
        for number, item in enumerate(step.plan.steps):
            reads, makes = step_values(item)
            reads = tuple(aliases.get(v, v) for v in reads)
            ops = tuple(op_text(ins) for ins in step_instructions(self.program, item))
            if isinstance(item, Nested):
                title = loop_title(self.program.instructions[item.number])
                key = self._box("kernel", title, scope, ops, reads, makes, group=group)
                self._put_in(key, compiled_bodies(self.program, step, number))
            elif isinstance(item, Product):
                self._box("blas", "matrix product", scope, ops, reads, makes, group=group)
            elif isinstance(item, Convolution):
                self._box("kernel", f"convolution ({item.form})", scope, ops, reads, makes, group=group)
            elif isinstance(item, Factor | Transform):
                self._box("kernel", item.routine, scope, ops, reads, makes, group=group)
            else:
                kind = "serial" if item.is_serial else "parallel"
                title = f"kernel ({kind}, {len(item.axes)} {'axis' if len(item.axes) == 1 else 'axes'})"
                notes = tuple(f"made row by row: {rows}" for rows in rolled_rows(item, self.program))
                key = self._box("kernel", title, scope, ops, reads, makes, notes, group)
                self.home |= dict.fromkeys((placed.node.value for placed in item.nodes), key)
        for refusal in step.plan.refusals:
            producer = aliases.get(refusal.producer, refusal.producer)
            ends = self.maker.get(producer), self.home.get(refusal.consumer, self.maker.get(refusal.consumer))
            if ends[0] is not None and ends[1] is not None:
                self.reasons[ends[0], ends[1]] = refusal.reason
        for v, root in aliases.items():
            if root in self.maker:
                self.maker[v] = self.maker[root]

    def _arrows(self) -> Iterator[Arrow]:
        nbytes: dict[tuple[int, int], dict[int, int]] = {}
        for v, reader in self.read:
            maker = self.maker.get(v)
            if maker is not None and maker != reader:
                nbytes.setdefault((maker, reader), {})[v] = self._nbytes(v)
        for (a, b), found in nbytes.items():
            yield Arrow(a, b, sum(found.values()), self.reasons.get((a, b), ""))

    def _nbytes(self, v: int) -> int:
        if v < len(self.program.specs):
            return self.program.specs[v].nbytes
        plans = (step.plan for step in self.steps if isinstance(step, CompiledCluster))
        return next((plan.specs[v].nbytes for plan in plans if v in plan.specs), 0)


def op_text(ins: Instruction) -> OpText:
    """An instruction as people know it."""
    return OpText(ins.op.name, source_text(ins.origin.source), ins.origin.name, ins.is_gradient)


def step_values(step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The values in memory that a kernel, a product or a control op reads, and those that it makes."""
    if not isinstance(step, Group):
        return step.reads, step.values
    made = {placed.node.value for placed in step.nodes}
    reads = dict.fromkeys(v for placed in step.nodes for v in placed.node.reads if v not in made)
    return tuple(reads), tuple(step.stored | set(step.partials) | set(step.partials.values()))


def step_instructions(program: Program, step: Step) -> list[Instruction]:
    """The instructions that a step of a cluster computes, in order."""
    producers: Mapping[int, int] = program.producers()
    values = [placed.node.value for placed in step.nodes] if isinstance(step, Group) else step.values[:1]
    return [program.instructions[producers[v]] for v in values if v in producers]
