"""What became of a program: one text per stage, and a summary that names what was not fused and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any

from jitgrad.compiler.bodies.updates import planned_regions, values_in_place
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.freezing.plans import BoundProgram
from jitgrad.compiler.fusing.buffers import ArenaPlan
from jitgrad.compiler.fusing.groups import Group, Placed, Rolled
from jitgrad.compiler.fusing.nodes import Convolution, Factor, Nested, Transform
from jitgrad.compiler.lowering.lower import CompiledCluster, LoweredBodies, kernels_of
from jitgrad.compiler.machine.compilation import kernel_module
from jitgrad.program import Program
from jitgrad.records import dataclass
from jitgrad.sources import source_text

if TYPE_CHECKING:
    from jitgrad.compiler.stages import Compiled


@dataclass(frozen=True)
class Explanation:
    """What became of a program, one text per stage; ``svg`` draws it. A pickle holds the texts and the picture."""

    program: str
    clusters: str
    fusion: str
    memory: str
    kernels: str
    llvm: str
    compiled: tuple[Compiled, ...] = field(default=(), repr=False, compare=False)
    drawn: str | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> Any:
        texts = (self.program, self.clusters, self.fusion, self.memory, self.kernels, self.llvm)
        return Explanation, (*texts, (), self.svg)

    @property
    def svg(self) -> str:
        """A picture: kernels, BLAS calls and NumPy calls as boxes, what goes between them as arrows, with reasons."""
        if self.drawn is not None:
            return self.drawn
        from jitgrad.profiler.drawing import draw
        from jitgrad.profiler.planned_picture import picture_of

        return draw(picture_of(*self.compiled))

    @property
    def text(self) -> str:
        """All stages but the machine's."""
        return "\n".join((self.program, self.clusters, self.fusion, self.memory, self.kernels))

    def __str__(self) -> str:
        return self.text


def explain(compiled: Compiled, bound: BoundProgram) -> Explanation:
    """The texts of all stages, and what binding added."""
    clusters = [step for step in compiled.steps if not isinstance(step, int)]
    arenas = [step.arena for step in bound.steps if isinstance(step, BoundCluster)]
    kernels = list(dict.fromkeys(kernel for c in clusters for kernel in kernels_of(c)))
    return Explanation(
        compiled.program.text,
        compiled.clustering.text,
        "\n".join(line for c in clusters for line in _fusion_lines(c, compiled.program)),
        "\n".join(f"cluster {c.cluster.number}: {_memory(arena)}" for c, arena in zip(clusters, arenas, strict=True)),
        "\n".join(kernel.text for kernel in kernels),
        "\n".join(str(kernel_module(kernel)) for kernel in kernels),
        (compiled,),
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _fusion_lines(compiled: CompiledCluster, program: Program) -> Iterator[str]:
    loops = sum(isinstance(step, Nested) for step in compiled.plan.steps)
    kernels = sum(isinstance(step, Group) for step in compiled.plan.steps)
    convolutions = sum(isinstance(step, Convolution) for step in compiled.plan.steps)
    factors = sum(isinstance(step, Factor) for step in compiled.plan.steps)
    transforms = sum(isinstance(step, Transform) for step in compiled.plan.steps)
    products = len(compiled.plan.steps) - kernels - loops - convolutions - factors - transforms
    counts = [_counted(kernels, "kernel"), _counted(products, "matrix product")]
    others = {"control op": loops, "convolution": convolutions, "factor": factors, "Fourier transform": transforms}
    counts += [_counted(number, what) for what, number in others.items() if number]
    yield f"cluster {compiled.cluster.number}: {', '.join(counts)}"
    for number, step in enumerate(compiled.plan.steps):
        if isinstance(step, Group):
            kind = "serial" if step.is_serial else "parallel"
            ops = " ".join(map(_op_name, step.nodes))
            stored = ", ".join(f"%{v}" for v in sorted(step.stored | set(step.partials)))
            nest = f"{len(step.axes)} axes" if step.lead is None else "a matrix per lane"
            yield f"  kernel {number} ({kind}, {nest}): {ops} -> {stored}"
            yield from (f"  made row by row in kernel {number}: {rows}" for rows in rolled_rows(step, program))
        elif isinstance(step, Nested):
            made = ", ".join(f"%{v}" for v in step.values)
            bodies = compiled.lowered[number]
            assert isinstance(bodies, LoweredBodies)
            kind = "step by step" if bodies.fused is None else "one kernel"
            ins = program.instructions[step.number]
            kept = ", ".join(f"%{v}" for v in values_in_place(ins))
            yield f"  native {step.form} {number} ({kind}): -> {made}" + (f"; changed in place: {kept}" if kept else "")
            for region, body in zip(bodies.regions, planned_regions(ins), strict=True):
                yield from (f"    {line}".replace("cluster", "body", 1) for line in _fusion_lines(region, body))
        elif isinstance(step, Convolution):
            yield f"  convolution {number} ({step.form}): %{step.a}, %{step.b} -> %{step.value}"
        elif isinstance(step, Transform):
            yield f"  transform {number} ({step.routine}): %{step.reads[0]} -> %{step.value}"
        elif isinstance(step, Factor):
            yield f"  factor {number} ({step.routine}): {', '.join(f'%{v}' for v in step.reads)} -> %{step.value}"
        else:
            a, b = (f"%{v}{'.T' if t else ''}" for v, t in ((step.a, step.transpose_a), (step.b, step.transpose_b)))
            yield f"  product {number}: {a} @ {b} -> %{step.value}"
    for refusal in compiled.plan.refusals:
        yield f"  not fused: {refusal}"


def _op_name(placed: Placed) -> str:
    node = placed.node
    return node.op if node.form in ("map", "routine") else node.combine or node.form


def rolled_rows(group: Group, program: Program) -> Iterator[str]:
    """What a kernel makes of other groups whenever it needs a further row, with the user's lines, and what stays."""
    return (_made_rows(rolled, program) for rolled in _all_rolled(group))


def _all_rolled(group: Group) -> Iterator[Rolled]:
    """The groups that run inside one, those inside them first, as their rows are made."""
    for rolled in group.rolled:
        yield from _all_rolled(rolled.group)
        yield rolled


def _made_rows(rolled: Rolled, program: Program) -> str:
    producers = program.producers()
    lines: dict[str, list[str]] = {}
    for placed in rolled.group.own:
        number = producers.get(placed.node.value)  # None for what is computed again
        line = "" if number is None else f" ({source_text(program.instructions[number].origin.source)})"
        lines.setdefault(line, []).append(_op_name(placed))
    ops = ", ".join(f"{' '.join(names)}{line}" for line, names in lines.items())
    values = ", ".join(f"%{v}" for v in rolled.values)
    rings = "a ring" if len(rolled.values) == 1 else "rings"
    return f"{ops} -> {values}, kept in cache as {rings} of {rolled.rows} {'row' if rolled.rows == 1 else 'rows'}"


def _memory(arena: ArenaPlan) -> str:
    lent = f", {len(arena.lent)} temporaries in outputs not yet written" if arena.lent else ""
    return f"arena {arena.nbytes} bytes, most alive at once {arena.bound}, ratio {arena.ratio:.2f}{lent}"
