"""Loops and choices as people know them: their names, how often they repeat, and their bodies with what became of each;
it loads the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.bodies.updates import planned_regions
from jitgrad.compiler.driver.loop_layout import BLOCK
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.lowering.lower import CompiledCluster, LoweredBodies
from jitgrad.compiler.subprograms import regions_of
from jitgrad.opdef import Control
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple

_NAMES = {"scan": ("body",), "while": ("condition", "body"), "while_gradient": ("condition", "body", "way back")}


class LoopBody(NamedTuple):
    """A program inside a control op: its name there, and its steps as they were compiled, or its instructions."""

    name: str
    program: Program
    steps: tuple[CompiledCluster | int, ...]


def loop_title(ins: Instruction) -> str:
    """``scan of 50 steps``; a while loop tells its steps only when it runs."""
    length = ins.params.get("length")
    return f"{ins.op.name} of {length} steps" if isinstance(length, int) else ins.op.name


def repeats(ins: Instruction) -> int | None:
    """How often the body runs, as far as that is known beforehand."""
    length = ins.params.get("length")
    return length if isinstance(length, int) else None


def latest_steps(bound: BoundCluster, place: int) -> int:
    """How many steps the loop that is a step of a bound cluster took when it ran last."""
    address = int(bound.steps[place][1])
    return int(bound.words_at(address)[BLOCK.index("ran")])


def compiled_bodies(program: Program, step: CompiledCluster, number: int) -> tuple[LoopBody, ...]:
    """The bodies of a control op that is a step of a cluster; none for other steps."""
    found = step.lowered[number]
    if not isinstance(found, LoweredBodies):
        return ()
    ins = program.instructions[found.step.number]
    return _named(ins, planned_regions(ins), [(region,) for region in found.regions])


def interpreted_bodies(ins: Instruction) -> tuple[LoopBody, ...]:
    """The bodies of a control op that is interpreted; none for other ops."""
    regions = regions_of(ins)
    return _named(ins, regions, [tuple(range(len(sub.instructions))) for sub in regions])


def _named(
    ins: Instruction, regions: Sequence[Program], steps: Sequence[tuple[CompiledCluster | int, ...]]
) -> tuple[LoopBody, ...]:
    kind = ins.op.kind
    form = kind.form if isinstance(kind, Control) else ""
    names = _NAMES.get(form, tuple(f"branch {k}" if form == "cond" else "body" for k in range(len(steps))))
    return tuple(LoopBody(*found) for found in zip(names, regions, steps, strict=True))
