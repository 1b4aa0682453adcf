"""Ways to run a program that must agree with the interpreter: machine code, and kernels as Python."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jitgrad.program import Program

Array = npt.NDArray[Any]
CHUNKS = 2


def in_one_scope(program: Program) -> Program:
    """The program with all its instructions marked for compilation, in one scope."""
    return program.with_instructions(
        dataclasses.replace(ins, origin=dataclasses.replace(ins.origin, scope="all"))
        for ins in program.instructions
    )


def compiled_results(program: Program, feeds: Sequence[Array]) -> list[Array]:
    """Values of the outputs, by machine code."""
    from jitgrad.executable import make_executable

    return [np.asarray(value) for value in make_executable(in_one_scope(program))(feeds)]


def python_results(program: Program, feeds: Sequence[Array]) -> list[Array]:
    """Values of the outputs, by the kernels run in plain Python; parallel loops in two chunks."""
    from jitgrad.compiler.bodies.updates import without_updates
    from jitgrad.compiler.clustering.clusters import Cluster, find_clusters
    from jitgrad.compiler.simplify import simplify

    program = without_updates(simplify(in_one_scope(program)))
    values: dict[int, Array] = dict(zip(program.inputs, map(np.asarray, feeds), strict=True))
    for step in find_clusters(program).steps:
        if isinstance(step, Cluster):
            values |= _run_cluster(program, step, values)
        else:
            ins = program.instructions[step]
            with np.errstate(all="ignore"):
                found = ins.op.impl(*(values[v] for v in ins.inputs), **ins.params)
            results = [found] if len(ins.outputs) == 1 else found
            values |= {v: np.asarray(result) for v, result in zip(ins.outputs, results, strict=True)}
    return [values[v] for v in program.outputs]


def _run_cluster(program: Program, cluster: Any, values: dict[int, Array]) -> dict[int, Array]:
    from jitgrad.compiler.fusing.extents import ExtentClasses
    from jitgrad.compiler.fusing.fusion import plan_fusion
    from jitgrad.compiler.fusing.groups import Group
    from jitgrad.compiler.fusing.node_building import build_nodes
    from jitgrad.compiler.lowering.lower import lower_group
    from jitgrad.compiler.lowering.repeats import repeat_bodies

    classes = ExtentClasses(program, cluster.instructions)
    nodes = build_nodes(program, cluster.instructions, cluster.outputs, classes)
    plan = plan_fusion(nodes, program.specs, classes)
    memory = {v: np.ascontiguousarray(values[v]).ravel() for v in cluster.inputs}
    extents = _extents_of(plan)
    for step in plan.steps:
        if isinstance(step, Group):
            lowered = lower_group(step, plan)
            lowered = dataclasses.replace(lowered, kernel=repeat_bodies(lowered.kernel))
            _run_kernel(lowered, plan, extents, memory)
        else:
            _run_product(program, step, plan, memory)
    return {
        v: memory[plan.aliases.get(v, v)].reshape(program.specs[v].known_shape).copy()
        for v in cluster.outputs
    }


def _extents_of(plan: Any) -> dict[int, int]:
    from jitgrad.compiler.fusing.extents import ONE
    from jitgrad.compiler.fusing.groups import Group

    extents: dict[int, int] = {}
    for v, classes in plan.classes.items():
        if v not in plan.chunked:
            extents |= {c: n for c, n in zip(classes, plan.specs[v].known_shape, strict=True) if c != ONE}
    for step in plan.steps:
        for group in step.parts if isinstance(step, Group) else ():
            extents |= {c: n for c, n in zip(group.axes, group.extents, strict=True) if c not in extents}
    return extents | {plan.classes[partial][0]: CHUNKS for partial in plan.chunked}


def _run_kernel(lowered: Any, plan: Any, extents: dict[int, int], memory: dict[int, Array]) -> None:
    from jitgrad.compiler.fusing.extents import ONE
    from jitgrad.compiler.loopir.running import run_in_python

    buffers: dict[str, Array] = {}
    for buffer, v in zip(lowered.kernel.buffers, lowered.values, strict=True):
        if v is None:
            continue
        root = plan.aliases.get(v, v)
        if buffer.role != "in":
            size = math.prod(extents[c] for c in plan.classes[v] if c != ONE)
            memory[root] = np.zeros(size, buffer.dtype)
        buffers[buffer.name] = memory[root]
    kernel = lowered.kernel
    numbers = {
        name: quantity.value(extents) for name, quantity in zip(kernel.ints, lowered.ints, strict=True)
    }
    numbers |= {c.name: literal.value for c, literal in zip(kernel.constants, lowered.constants, strict=True)}
    run_in_python(kernel, buffers, numbers, 1 if lowered.is_serial else CHUNKS)


def _run_product(program: Program, step: Any, plan: Any, memory: dict[int, Array]) -> None:
    """A step that is no kernel, as a product, by what its op means."""
    ins = program.instructions[program.producers()[step.value]]
    operands = [memory[plan.aliases.get(v, v)].reshape(program.specs[v].known_shape) for v in step.reads]
    results = ins.op.impl(*operands, **ins.params)
    for v, result in zip(ins.outputs, results if len(ins.outputs) > 1 else (results,), strict=True):
        memory[plan.aliases.get(v, v)] = np.ascontiguousarray(result).ravel()
