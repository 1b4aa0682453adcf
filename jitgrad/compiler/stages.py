"""The stages of the compiler, in order: a Program becomes clusters, fusion groups, kernels, machine code, a plan.

Loaded only where a program's plan is neither in memory nor on disk, or has to be explained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jitgrad import recording
from jitgrad.compiler import vecmath
from jitgrad.compiler.bodies.updates import planned_regions, without_updates
from jitgrad.compiler.clustering.clusters import Cluster, Clustering, body_cluster, find_clusters
from jitgrad.compiler.clustering.dependences import KERNEL_DTYPES
from jitgrad.compiler.complex_pairs import complex_as_pairs
from jitgrad.compiler.driver.control import control_modules
from jitgrad.compiler.freezing.alike import (
    Likeness,
    Taken,
    Template,
    enter_template,
    frozen_like,
    likeness_of,
)
from jitgrad.compiler.freezing.bind_loops import control_op
from jitgrad.compiler.freezing.blueprints import is_bound_alike
from jitgrad.compiler.freezing.freeze import freeze_cluster
from jitgrad.compiler.freezing.freeze_loops import Frozen
from jitgrad.compiler.freezing.freeze_ops import freeze_op
from jitgrad.compiler.freezing.plankey import has_large_constants
from jitgrad.compiler.freezing.plans import control_ops_in, has_regions
from jitgrad.compiler.freezing.templates import make_template
from jitgrad.compiler.fusing.drafts import MOST_WEIGHT, MOST_WEIGHT_OF_REPEATS
from jitgrad.compiler.fusing.extents import ExtentClasses
from jitgrad.compiler.fusing.factors import factors_in
from jitgrad.compiler.fusing.fusion import plan_fusion
from jitgrad.compiler.fusing.groups import Group, Plan, Step
from jitgrad.compiler.fusing.node_building import build_nodes
from jitgrad.compiler.fusing.nodes import Convolution, Factor, Product, Transform
from jitgrad.compiler.fusing.short_steps import is_short_step
from jitgrad.compiler.lifting import lift_constants
from jitgrad.compiler.likeness import UnlikeError, exact_in
from jitgrad.compiler.long_axes import long_axes_last
from jitgrad.compiler.loopir.nests import Kernel
from jitgrad.compiler.lowering.lower import (
    CompiledCluster,
    Lowered,
    LoweredBodies,
    LoweredStep,
    kernels_of,
    lower_group,
)
from jitgrad.compiler.lowering.repeats import is_small, repeat_bodies, repeats_itself
from jitgrad.compiler.lowering.time_loops import fuse_scan
from jitgrad.compiler.machine.compilation import begin_functions, begin_kernel, load_kernels
from jitgrad.compiler.outer_products import outer_products_by_element
from jitgrad.compiler.products.own_products import begin_products, begin_routines
from jitgrad.compiler.products.product_code import begin_modules
from jitgrad.compiler.products.sequences import sequence_modules
from jitgrad.compiler.reuse import can_plan_again, can_refreeze, enter_known, find_known, pattern_of
from jitgrad.compiler.short_axes import short_axes_apart
from jitgrad.compiler.simplify import simplify_and_watch
from jitgrad.compiler.subprograms import LOOPS, everywhere, regions_of
from jitgrad.compiler.symbols import Symbol
from jitgrad.compiler.verifying import verify_kernel, verify_plan
from jitgrad.config import config
from jitgrad.errors import CompileError
from jitgrad.opdef import Control
from jitgrad.program import Program, verify
from jitgrad.records import dataclass

_OFTEN_REWRITTEN = ("power", "logaddexp")
"""Functions of analysis that simplification writes anew: as products, by others."""

_WRITTEN_ANEW = (
    without_updates, complex_as_pairs, everywhere(short_axes_apart), everywhere(long_axes_last),
    everywhere(outer_products_by_element),
)  # fmt: skip
"""Passes that write a program anew, which is then simplified again."""

_SEVERAL = 3
"""Kernels of a cluster, of which some will run one after another: what runs them so is compiled while no other code
waits.
"""


@dataclass(frozen=True)
class Compiled:
    """A program after all stages: what runs, in order, as compiled clusters and numbers of interpreted instructions."""

    program: Program
    clustering: Clustering
    steps: tuple[CompiledCluster | int, ...]


def make_plan(source: Program) -> tuple[Frozen, bool, Likeness | None]:
    """The frozen program, its kernels in memory; whether it holds for every program with the same key; and what plans
    for other shapes may follow from.

    Where the stages have seen a program of the same pattern, what they made of that serves for this one.
    """
    like = frozen_like(source) if config.verify else None
    _begin_functions(source, _OFTEN_REWRITTEN)
    program, looked, counted = _simplified(source)
    pattern = pattern_of(program)
    known = find_known(pattern)
    is_new = known is None or config.verify
    compiled = _compile_simplified(program) if known is None or is_new else replace(known, program=program)
    frozen = freeze_program(source, compiled)
    if is_new:
        begin_modules(control_modules(control_ops_in(frozen)) | (sequence_modules() if has_regions(frozen) else {}))
    if config.verify and known is not None:
        compare_plans(frozen, freeze_program(source, replace(known, program=program)), source)
    template = _template_of(source, compiled, looked, counted) if like is None and pattern is not None else None
    if is_new:  # threads have compiled meanwhile; from now on others may find what was made
        load_kernels(_kernels(compiled))
        enter_known(pattern, compiled)
    if like is not None:
        compare_plans(frozen, like.frozen(), source)
        likeness: Likeness | None = like.likeness
    else:
        likeness = _entered(template)
    return frozen, not (looked and has_large_constants(source)), likeness


def _entered(template: Template | None) -> Likeness | None:
    """What follows from a template that is kept from now on, if there is one."""
    if template is None:
        return None
    enter_template(template)
    return likeness_of(template)


def _template_of(source: Program, compiled: Compiled, looked: bool, counted: bool) -> Template | None:
    """What serves for programs that differ from this one in extents and numbers, if there is such."""
    if not can_plan_again(compiled):
        return None
    interpreted = {step for step in compiled.steps if isinstance(step, int)}
    factors = factors_in(compiled.program)

    def freeze(other: Program, simplified: Program) -> Frozen:
        if factors_in(simplified) != factors:
            raise UnlikeError
        steps = tuple([_step_like(step, compiled.program, simplified) for step in compiled.steps])
        return freeze_program(other, Compiled(simplified, compiled.clustering, steps))

    return make_template(source, compiled.program, looked, counted, interpreted, freeze)


def _step_like(known: CompiledCluster | int, of: Program, program: Program) -> CompiledCluster | int:
    """A step of a program that is like another: the other's, or planned again, where numbers in it follow from more
    than extents; UnlikeError where that gives other kernels. Extents may be symbols, so that such numbers are, too;
    for numbers that are, those of the other stand: they are no part of kernels.
    """
    if isinstance(known, int) or can_refreeze(of, known, exact_in(of)):
        return known
    pairs = zip(of.instructions, program.instructions, strict=True)
    instructions = tuple([old if type(new.params.get("value")) is Symbol else new for old, new in pairs])
    planned = _plan_cluster(replace(program, instructions=instructions), known.cluster, is_again=True)
    if list(kernels_of(planned)) != list(kernels_of(known)):
        raise UnlikeError
    return replace(planned, keys=known.keys)


def compare_plans(made: Frozen, reused: Frozen, source: Program) -> None:
    """CompileError unless a plan that was taken over is the one that the stages make."""
    if repr(made) != repr(reused):
        raise CompileError(f"the plan made for other extents is not the one that the stages make for\n{source.text}")


def compare_bound(bound: Sequence[Any], taken: Taken, addresses: dict[str, int], source: Program) -> None:
    """CompileError unless clusters that were bound by a formula are what binds their plan."""
    steps = taken.frozen()[2:] if taken.bound is not None else ()
    if not all(is_bound_alike(made, step, addresses) for made, step in zip(bound, steps, strict=False)):
        raise CompileError(f"the steps made for other extents are not those that are bound for\n{source.text}")


def compile_program(source: Program) -> Compiled:
    """All stages, in order; the kernels are in memory afterwards."""
    compiled = _compile_simplified(_simplified(source)[0])
    load_kernels(_kernels(compiled))
    return compiled


def _kernels(compiled: Compiled) -> list[Kernel]:
    return [kernel for step in compiled.steps if isinstance(step, CompiledCluster) for kernel in kernels_of(step)]


def _simplified(source: Program) -> tuple[Program, bool, bool]:
    """The program, whether elements of constants were read, and whether a rule has made a number of an extent."""
    with recording.span("simplify", source.name):
        program, fired, looked = simplify_and_watch(source)
        for written_anew in _WRITTEN_ANEW:
            other = written_anew(program)
            if other is not program:
                program, again, looked_again = simplify_and_watch(other)
                fired, looked = {**fired, **again}, looked or looked_again
        program = lift_constants(without_updates(program))
    if config.verify:
        verify(program, "simplify")
    return program, looked, "reduce_of_broadcast" in fired


def _compile_simplified(program: Program) -> Compiled:
    with recording.span("cluster", program.name):
        clustering = find_clusters(program)
    begin_routines(program, [step for step in clustering.steps if isinstance(step, int)])
    _begin_functions(program)
    steps = tuple(compile_cluster(program, step) if isinstance(step, Cluster) else step for step in clustering.steps)
    return Compiled(program, clustering, steps)


def compile_cluster(program: Program, cluster: Cluster) -> CompiledCluster:
    """A cluster's stages, in order; its kernels are begun, and wait for `load_kernels`."""
    planned = _plan_cluster(program, cluster, _begin)
    return _with_keys(planned, map(_begin, kernels_of(planned)))


def _begin(kernel: Kernel) -> str:
    """Begin to compile a kernel, where asked for, once it is verified: code of a broken one never exists."""
    return begin_kernel(verify_kernel(kernel) if config.verify else kernel)


def _begin_functions(program: Program, without: Collection[str] = ()) -> None:
    """Begin to compile the functions of analysis that the kernels will call, where all are of one dtype, but some. They
    are begun before the first stage: they take LLVM as long as the stages take up to the first text of a kernel.
    """
    if vecmath.NAMES.isdisjoint([ins.op.name for ins in program.instructions]):
        return
    made = [(ins.op.name, program.specs[v]) for ins in program.instructions if ins.origin.scope is not None
            for v in ins.outputs]  # fmt: skip
    floats = {spec.dtype for _, spec in made if spec.dtype.kind == "f" and spec.dtype in KERNEL_DTYPES}
    if len(floats) == 1:
        names = vecmath.NAMES.intersection([name for name, spec in made if spec.shape != ()]).difference(without)
        begin_functions(sorted(names), floats.pop())


def _plan_cluster(
    program: Program, cluster: Cluster, begin: Callable[[Kernel], object] | None = None, is_again: bool = False,
    is_body: bool = False, is_repeated: bool = False,
) -> CompiledCluster:  # fmt: skip
    """The stages up to the loop IR, of the cluster and of the bodies in it; ``begin`` is given each kernel of its own
    but the last, before the next is lowered. Where it ``is_again`` done, no code is begun. Kernels of bodies stay as
    they are: several may become one. Those of loops are ``is_repeated``.

    Where a program repeats itself its kernels hold more, if they then write and keep little.
    """
    if not is_body and repeats_itself(program, cluster.instructions):
        planned = _planned(program, cluster, None, is_again, is_body, is_repeated, MOST_WEIGHT_OF_REPEATS)
        if all(map(is_small, kernels_of(planned))):
            return planned
    return _planned(program, cluster, begin, is_again, is_body, is_repeated, MOST_WEIGHT)


def _planned(
    program: Program, cluster: Cluster, begin: Callable[[Kernel], object] | None, is_again: bool, is_body: bool,
    is_repeated: bool, most: int,
) -> CompiledCluster:  # fmt: skip
    """The same with kernels whose ops weigh ``most`` together."""
    name = f"cluster {cluster.number}"
    with recording.span("plan", name):
        classes = ExtentClasses(program, cluster.instructions)
        nodes = build_nodes(program, cluster.instructions, cluster.outputs, classes)
        if not is_again:
            begin_products(program, nodes.items, is_repeated)
            _begin_control_ops(program, cluster)
        plan = plan_fusion(nodes, program.specs, classes, most)
        # One kernel stays as it is: it may become that of the whole loop.
        if is_repeated and len(plan.steps) > 1 and is_short_step(program, nodes.items):
            plan = plan_fusion(nodes, program.specs, classes, most, is_short=True)
    if begin is not None and sum(isinstance(step, Group) for step in plan.steps) >= _SEVERAL:
        begin_modules(sequence_modules())
    if config.verify and not is_again:
        verify_plan(plan, cluster.inputs)
    lowered: dict[int, LoweredStep] = {}
    last: LoweredStep | None = None
    for number in sorted(range(len(plan.steps)), key=lambda number: not _is_serial(plan.steps[number])):
        if begin is not None and isinstance(last, Lowered):
            begin(last.kernel)
        with recording.span("lower", name):
            last = lowered[number] = _lower_step(program, cluster, plan.steps[number], plan, is_body, is_repeated)
    return CompiledCluster(cluster, plan, tuple([lowered[number] for number in range(len(lowered))]))


def _begin_control_ops(program: Program, cluster: Cluster) -> None:
    """Begin to compile what runs loops and branches; for scans, most of which are kernels, `make_plan` does it."""
    kinds = [program.instructions[number].op.kind for number in cluster.instructions]
    forms = {kind.form for kind in kinds if isinstance(kind, Control)} - {"scan"}
    begin_modules(control_modules(map(control_op, forms)))


def _is_serial(step: Step) -> bool:
    """Whether a step is a kernel that ends sums over chunks, which is short. Such are lowered first: no thread has
    something to compile yet.
    """
    return isinstance(step, Group) and step.is_serial


def _lower_step(
    program: Program, cluster: Cluster, step: Step, plan: Plan, is_body: bool, is_repeated: bool
) -> LoweredStep:
    if isinstance(step, Group):
        lowered = lower_group(step, plan)
        return lowered if is_body else replace(lowered, kernel=repeat_bodies(lowered.kernel))
    if isinstance(step, Product | Convolution | Factor | Transform):
        return step
    ins = program.instructions[step.number]
    bodies = planned_regions(ins)
    clusters = [body_cluster(k, cluster.scope, body) for k, body in enumerate(bodies)]
    plan_body = partial(_plan_cluster, is_body=True, is_repeated=is_repeated or step.form in LOOPS)
    regions = tuple(map(plan_body, bodies, clusters))
    is_written = any(a is not b for a, b in zip(bodies, regions_of(ins), strict=True))
    return LoweredBodies(step, regions, None if is_written else fuse_scan(ins, bodies[0], regions[0]))


def _with_keys(planned: CompiledCluster, keys: Iterator[str]) -> CompiledCluster:
    """The same with the keys of the kernels, given in the order of `kernels_of`."""
    own: list[str] = []
    lowered: list[LoweredStep] = []
    for item in planned.lowered:
        if isinstance(item, Lowered) or (isinstance(item, LoweredBodies) and item.fused is not None):
            own.append(next(keys))
        elif isinstance(item, LoweredBodies):
            item = replace(item, regions=tuple(_with_keys(region, keys) for region in item.regions))
        lowered.append(item)
    return replace(planned, lowered=tuple(lowered), keys=tuple(own))


def freeze_program(source: Program, compiled: Compiled) -> Frozen:
    """All of a compiled program that running it takes, see freezing/freeze.py; ``source`` came before the stages."""
    program = compiled.program
    steps = [
        freeze_op(source, program, step) if isinstance(step, int)
        else freeze_cluster(program, step)
        for step in compiled.steps
    ]  # fmt: skip
    return len(program.specs), program.outputs, *steps
