"""Verification of a fusion plan: whatever a step reads exists by then; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from jitgrad.compiler.fusing.groups import Group, Plan, Step
from jitgrad.errors import CompileError, layout


def verify_plan(plan: Plan, inputs: Iterable[int]) -> Plan:
    """The plan itself, when every value is in memory, or made earlier in the same kernel, where it is read.

    ``inputs`` are the values that come from outside the cluster. CompileError otherwise, naming step and value.
    """
    made = set(inputs)
    for number, step in enumerate(plan.steps):
        inside: set[int] = set()
        for reads, value in _reads(step):
            missing = [v for v in reads if v not in inside and plan.aliases.get(v, v) not in made]
            if missing:
                raise CompileError(
                    layout(
                        f"fusion: step {number} reads a value that nothing has made",
                        value=", ".join(f"%{v}" for v in missing),
                        reader=f"%{value}",
                    )
                )
            inside.add(value)
        made |= step.stored | set(step.partials.values()) if isinstance(step, Group) else set(step.values)
    return plan


def _reads(step: Step) -> Iterable[tuple[tuple[int, ...], int]]:
    if isinstance(step, Group):
        return [(p.node.reads, p.node.value) for p in step.nodes]
    return [(step.reads, step.values[0])]
