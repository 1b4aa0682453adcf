"""The compiler: a Program becomes clusters, fusion groups, kernels and machine code, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

from jitgrad.compiler.bind import BoundCluster, bind_cluster
from jitgrad.compiler.clusters import Cluster, Clustering, find_clusters
from jitgrad.compiler.extents import ExtentClasses
from jitgrad.compiler.fusion import plan_fusion
from jitgrad.compiler.groups import Group, Plan
from jitgrad.compiler.lower import Lowered, lower_group
from jitgrad.compiler.nodes import Product, build_nodes
from jitgrad.compiler.order import order_steps
from jitgrad.compiler.simplify import simplify
from jitgrad.compiler.verifying import verify_plan
from jitgrad.config import config
from jitgrad.program import Program, verify


@dataclass(frozen=True)
class CompiledCluster:
    """A cluster with what each stage made of it."""

    cluster: Cluster
    plan: Plan
    lowered: tuple[Lowered | Product, ...]
    bound: BoundCluster


@dataclass(frozen=True)
class Compiled:
    """A program after all stages: what runs, in order, as compiled clusters and numbers of interpreted instructions."""

    program: Program
    clustering: Clustering
    steps: tuple[CompiledCluster | int, ...]


def compile_program(program: Program) -> Compiled:
    """All stages, in order."""
    program = simplify(program)
    if config.verify:
        verify(program, "simplify")
    clustering = find_clusters(program)
    steps = tuple(compile_cluster(program, step) if isinstance(step, Cluster) else step for step in clustering.steps)
    return Compiled(program, clustering, steps)


def compile_cluster(program: Program, cluster: Cluster) -> CompiledCluster:
    """A cluster's stages, in order."""
    classes = ExtentClasses(program, cluster.instructions)
    nodes = build_nodes(program, cluster.instructions, cluster.outputs, classes)
    plan = order_steps(plan_fusion(nodes, program.specs, classes), (*cluster.inputs, *cluster.outputs))
    if config.verify:
        verify_plan(plan, cluster.inputs)
    lowered = tuple(lower_group(step, plan) if isinstance(step, Group) else step for step in plan.steps)
    bound = bind_cluster(program, cluster, plan, lowered)
    return CompiledCluster(cluster, plan, lowered, bound)
