"""The stages of the compiler, in order: a Program becomes clusters, fusion groups, kernels, machine code, a plan.

Loaded only where a program's plan is neither in memory nor on disk, or has to be explained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitgrad import recording
from jitgrad.compiler.clusters import Cluster, Clustering, find_clusters
from jitgrad.compiler.extents import ExtentClasses
from jitgrad.compiler.freeze import Frozen, freeze_cluster, freeze_op
from jitgrad.compiler.fusion import plan_fusion
from jitgrad.compiler.groups import Group, Plan
from jitgrad.compiler.lower import Lowered, lower_group
from jitgrad.compiler.machine import load_kernels
from jitgrad.compiler.nodes import Product, build_nodes
from jitgrad.compiler.order import order_steps
from jitgrad.compiler.plankey import has_large_constants
from jitgrad.compiler.reuse import enter_known, find_known, pattern_of
from jitgrad.compiler.simplify import simplify_and_watch
from jitgrad.compiler.verifying import verify_plan
from jitgrad.config import config
from jitgrad.errors import CompileError
from jitgrad.program import Program, verify


@dataclass(frozen=True)
class CompiledCluster:
    """A cluster with what each stage made of it; ``keys`` are those of its kernels, in order."""

    cluster: Cluster
    plan: Plan
    lowered: tuple[Lowered | Product, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Compiled:
    """A program after all stages: what runs, in order, as compiled clusters and numbers of interpreted instructions."""

    program: Program
    clustering: Clustering
    steps: tuple[CompiledCluster | int, ...]


def make_plan(source: Program) -> tuple[Frozen, bool]:
    """The frozen program, its kernels in memory; and whether it holds for every program with the same key.

    Where the stages have seen a program of the same pattern, what they made of that serves for this one.
    """
    program, looked = _simplified(source)
    pattern = pattern_of(program)
    known = find_known(pattern)
    if known is None or config.verify:
        compiled = _compile_simplified(program)
        enter_known(pattern, compiled)
    else:
        compiled = replace(known, program=program)
    frozen = freeze_program(source, compiled)
    if config.verify and known is not None:
        _compare(frozen, freeze_program(source, replace(known, program=program)), source)
    return frozen, not (looked and has_large_constants(source))


def _compare(made: Frozen, reused: Frozen, source: Program) -> None:
    if repr(made) != repr(reused):
        raise CompileError(f"the plan made for other extents is not the one that the stages make for\n{source.text}")


def compile_program(source: Program) -> Compiled:
    """All stages, in order; the kernels are in memory afterwards."""
    return _compile_simplified(_simplified(source)[0])


def _simplified(source: Program) -> tuple[Program, bool]:
    with recording.span("simplify", source.name):
        program, _, looked = simplify_and_watch(source)
    if config.verify:
        verify(program, "simplify")
    return program, looked


def _compile_simplified(program: Program) -> Compiled:
    with recording.span("cluster", program.name):
        clustering = find_clusters(program)
    steps = tuple(compile_cluster(program, step) if isinstance(step, Cluster) else step for step in clustering.steps)
    return Compiled(program, clustering, steps)


def compile_cluster(program: Program, cluster: Cluster) -> CompiledCluster:
    """A cluster's stages, in order."""
    name = f"cluster {cluster.number}"
    with recording.span("plan", name):
        classes = ExtentClasses(program, cluster.instructions)
        nodes = build_nodes(program, cluster.instructions, cluster.outputs, classes)
        plan = order_steps(plan_fusion(nodes, program.specs, classes), (*cluster.inputs, *cluster.outputs))
    if config.verify:
        verify_plan(plan, cluster.inputs)
    with recording.span("lower", name):
        lowered = tuple(lower_group(step, plan) if isinstance(step, Group) else step for step in plan.steps)
    keys = load_kernels([item.kernel for item in lowered if isinstance(item, Lowered)])
    return CompiledCluster(cluster, plan, lowered, tuple(keys))


def freeze_program(source: Program, compiled: Compiled) -> Frozen:
    """All of a compiled program that running it takes, see freeze.py; ``source`` is the program before the stages."""
    program = compiled.program
    steps = [
        freeze_op(source, program, step) if isinstance(step, int)
        else freeze_cluster(program, step.cluster, step.plan, step.lowered, step.keys)
        for step in compiled.steps
    ]  # fmt: skip
    return len(program.specs), program.outputs, *steps
