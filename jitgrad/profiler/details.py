"""What is known of compiled steps before they run: bytes, operations, ops and lines; it loads the compiler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jitgrad.compiler.fusing.drafts import weight_of
from jitgrad.compiler.fusing.groups import Group
from jitgrad.compiler.fusing.nodes import Convolution, Factor, Nested, Product, Transform
from jitgrad.compiler.lowering.lower import CompiledCluster
from jitgrad.eager.timing import EagerRun
from jitgrad.graph import Operation
from jitgrad.profiler.events import Share, phase_of
from jitgrad.profiler.loops import compiled_bodies, loop_title, repeats
from jitgrad.profiler.planned_picture import step_instructions, step_values
from jitgrad.program import Instruction, Program
from jitgrad.records import dataclass
from jitgrad.sources import source_text
from jitgrad.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Detail:
    """A step of a native call, or an interpreted op, as each of its events will tell it."""

    kind: str
    name: str
    phase: str
    scope: str | None
    nbytes_read: int
    nbytes_written: int
    flops: int
    dtype: str
    shares: tuple[Share, ...]


def step_details(program: Program, compiled: CompiledCluster) -> tuple[Detail, ...]:
    """One detail per kernel, product and control op of a cluster, in running order."""
    return tuple(_step(program, compiled, number) for number in range(len(compiled.plan.steps)))


def _step(program: Program, compiled: CompiledCluster, number: int) -> Detail:
    step, cluster = compiled.plan.steps[number], compiled.cluster
    aliases, specs = compiled.plan.aliases, compiled.plan.specs
    reads, makes = step_values(step)
    read, written = (sum(specs[v].nbytes for v in {aliases.get(v, v) for v in vs}) for vs in (reads, makes))
    shares = tuple(_shares(program, compiled, number))
    kind = "blas" if isinstance(step, Product) else "loop" if isinstance(step, Nested) else "kernel"
    dtype = str(specs[makes[0]].dtype) if makes else ""
    return Detail(
        kind, _name(program, compiled, number, shares), phase_of(shares), cluster.scope, read, written,
        _flops(program, compiled, number), dtype, shares,
    )  # fmt: skip


def _name(program: Program, compiled: CompiledCluster, number: int, shares: tuple[Share, ...]) -> str:
    step, cluster = compiled.plan.steps[number], compiled.cluster
    place = f"{cluster.number}.{number}" if cluster.number else str(number)
    if isinstance(step, Product):
        return _product_name(program, step)
    if isinstance(step, Convolution):
        a, b = ("×".join(map(str, program.specs[v].known_shape)) for v in (step.a, step.b))
        return f"convolution {step.form} {a}, {b}"
    if isinstance(step, Factor | Transform):
        return f"{step.routine} {'×'.join(map(str, program.specs[step.reads[0]].known_shape))}"
    if isinstance(step, Nested):
        return f"{program.name}: loop {place}: {loop_title(program.instructions[step.number])}"
    return _kernel_name(f"{program.name}: kernel {place}", shares)


def _flops(program: Program, compiled: CompiledCluster, number: int) -> int:
    """Operations of a step; none where it repeats others as often as only a run tells."""
    step = compiled.plan.steps[number]
    if isinstance(step, Nested):
        times = repeats(program.instructions[step.number])
        inside = (_flops(*found) for found in _inside(program, compiled, number)) if times is not None else ()
        return (times or 0) * sum(inside)
    if isinstance(step, Convolution):
        return _convolution_flops(compiled.plan.specs, step)
    if isinstance(step, Factor):
        return _factor_flops(compiled.plan.specs, step)
    if isinstance(step, Transform):
        return _transform_flops(compiled.plan.specs, step)
    return _product_flops(compiled.plan.specs, step) if isinstance(step, Product) else _group_flops(step)


def _inside(program: Program, compiled: CompiledCluster, number: int) -> Iterator[tuple[Program, CompiledCluster, int]]:
    """The steps of the bodies of a control op."""
    for body in compiled_bodies(program, compiled, number):
        for region in body.steps:
            if isinstance(region, CompiledCluster):
                yield from ((body.program, region, k) for k in range(len(region.plan.steps)))


def _shares(program: Program, compiled: CompiledCluster, number: int) -> Iterator[Share]:
    """The ops of a step; those of a loop are the ones in its bodies."""
    step = compiled.plan.steps[number]
    if isinstance(step, Nested):
        found = [share for place in _inside(program, compiled, number) for share in _shares(*place)]
        yield from found or [share_of(program.instructions[step.number])]
        return
    weights = {
        placed.node.value: math.prod(placed.node.shape) * weight_of(placed.node) for placed in step.nodes
    } if isinstance(step, Group) else {}  # fmt: skip
    for ins in step_instructions(program, step):
        yield share_of(ins, next((float(weights[v]) for v in ins.outputs if v in weights), 1.0))


def share_of(ins: Instruction, weight: float = 1.0) -> Share:
    """An instruction's part of what it runs in."""
    return Share(ins.op.name, source_text(ins.origin.source), ins.is_gradient, weight)


def _kernel_name(place: str, shares: tuple[Share, ...]) -> str:
    """A short name that tells kernels apart: program and number, the heaviest op and how many others."""
    if not shares:
        return place
    heaviest = max(shares, key=lambda share: share.weight).op
    return f"{place}: {heaviest}" + (f" and {len(shares) - 1} more" if len(shares) > 1 else "")


def _product_name(program: Program, step: Product) -> str:
    """The shapes that are multiplied."""
    a, b = (program.specs[v].known_shape for v in (step.a, step.b))
    left, right = (
        ("×".join(map(str, s)) + (".T" if t else "")) for s, t in ((a, step.transpose_a), (b, step.transpose_b))
    )
    return f"matmul {left} @ {right}"


def _group_flops(group: Group) -> int:
    return sum(math.prod(placed.node.shape) for placed in group.nodes if placed.node.op or placed.node.combine)


def _product_flops(specs: Mapping[int, TensorSpec], step: Product) -> int:
    a, c = (specs[v].known_shape for v in (step.a, step.value))
    return 2 * math.prod(c) * (a[-2] if step.transpose_a else a[-1])


def _convolution_flops(specs: Mapping[int, TensorSpec], step: Convolution) -> int:
    places, weights = (step.value, step.b) if step.form == "windows" else (step.b, step.value)
    n, _, *out = specs[places].known_shape
    return 2 * n * math.prod(out) * math.prod(specs[weights].known_shape)


def _transform_flops(specs: Mapping[int, TensorSpec], step: Transform) -> int:
    """5 n log2(n) for n complex numbers, half as many for real ones."""
    x, out = (specs[v].known_shape for v in (step.reads[0], step.value))
    shape = {"pairs_fft": x[:-1], "pairs_rfft": x, "pairs_irfft": out}[step.routine]
    each = 5 if step.routine == "pairs_fft" else 2.5
    return round(each * math.prod(shape) * math.log2(shape[-1]))


def _factor_flops(specs: Mapping[int, TensorSpec], step: Factor) -> int:
    n = specs[step.reads[0]].known_shape[-1]
    columns = specs[step.value].known_shape[-1]
    cubes = {"cholesky": n**3 // 3, "cholesky_cotangent": 2 * n**3 // 3, "lu": 2 * n**3 // 3}
    squares = {"lu_solve": 2 * n**2, "lu_solve_columns": 2 * n**2 * columns, "lu_inv": 2 * n**3}
    short, long = sorted(specs[step.reads[0]].known_shape[-2:])
    decompositions = {
        "eigh": 9 * n**3, "eigvalsh": 4 * n**3 // 3, "svd": 14 * long * short**2 + 8 * short**3,
        "svdvals": 4 * long * short**2 - 4 * short**3 // 3, "qr": 4 * long * short**2 - 4 * short**3 // 3,
    }  # fmt: skip
    return (cubes | squares | decompositions).get(step.routine, n**2 * columns)


def interpreted_detail(program: Program, number: int) -> Detail:
    """An instruction that NumPy runs."""
    ins = program.instructions[number]
    inputs, outputs = ([program.specs[v] for v in dict.fromkeys(vs)] for vs in (ins.inputs, ins.outputs))
    return _numpy_detail(share_of(ins), ins.origin.scope, inputs, outputs)


def operation_detail(op: Operation, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Detail:
    """An operation that runs by itself, with what it read and made."""
    share = Share(op.type, source_text(op.source), op.is_gradient, 1.0)
    return _numpy_detail(share, None, inputs, outputs)


def eager_detail(name: str, run: EagerRun) -> Detail:
    """An eager operation."""
    return _numpy_detail(Share(name, source_text(run.place), False, 1.0), None, run.inputs, run.outputs)


def _numpy_detail(
    share: Share, scope: str | None, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Detail:
    read, written = (sum(spec.nbytes for spec in specs) for specs in (inputs, outputs))
    dtype = str(outputs[0].dtype) if outputs else ""
    return Detail("numpy", share.op, phase_of((share,)), scope, read, written, 0, dtype, (share,))
