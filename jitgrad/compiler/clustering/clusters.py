"""find_clusters(): which instructions of a program run together as one native call; it compiles nothing.

The rules are those of a scope: a cluster has instructions of one scope only, no path leaves it and comes
back, and what is not in a cluster has a reason. How they are found is told in turns.py and postpone.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from jitgrad.compiler.clustering.dependences import Dependences
from jitgrad.compiler.clustering.postpone import postpone
from jitgrad.compiler.clustering.turns import Separation, Step, merge_turns, play
from jitgrad.program import Instruction, Program, instruction_text
from jitgrad.records import dataclass
from jitgrad.sources import source_text


@dataclass(frozen=True, slots=True)
class Cluster:
    """Instructions of one scope that run as one native call, in program order.

    ``inputs`` are the values that come from outside, ``outputs`` those needed outside or by the caller. A
    constant that is one number everywhere is a member of every cluster that reads it, and never an input.
    """

    number: int
    scope: str
    instructions: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why instructions are not compiled, or not compiled together: a sentence."""

    instructions: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Clustering:
    """Clusters and numbers of interpreted instructions, in an order that can run; and what was refused."""

    steps: tuple[Cluster | int, ...]
    reasons: tuple[Reason, ...]
    program: Program = field(repr=False)

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """The clusters, in order."""
        return tuple(step for step in self.steps if isinstance(step, Cluster))

    @property
    def text(self) -> str:
        """The steps with their instructions, then the reasons."""
        return "\n".join(self._lines()) + "\n"

    def __str__(self) -> str:
        return self.text

    def _lines(self) -> Iterator[str]:
        for step in self.steps:
            if isinstance(step, Cluster):
                inputs, outputs = (
                    ", ".join(f"%{v}" for v in values) for values in (step.inputs, step.outputs)
                )
                yield f"cluster {step.number} @{step.scope}({inputs}) -> ({outputs})"
                yield from (f"  {self._instruction(n)}" for n in step.instructions)
            else:
                yield f"interpreted {self._instruction(step)}"
        yield from (f"reason: {reason.text}" for reason in self.reasons)

    def _instruction(self, number: int) -> str:
        return instruction_text(self.program, self.program.instructions[number])


def find_clusters(program: Program) -> Clustering:
    """The clusters of a program, the same for the same program; near-linear in its instructions."""
    graph = Dependences(program)
    turns, separations = merge_turns(graph, play(graph))
    postpone(graph, turns)
    needed = _needed_outside(graph, turns)
    steps: list[Cluster | int] = [n for n in graph.literals if needed.get(program.instructions[n].outputs[0])]
    reasons = [Reason((n,), _left_out(program, n, why)) for n, why in graph.refusals.items()]
    count = 0
    for step in turns:
        if step.scope is None:
            steps += step.members
        elif not any(graph.starts_cluster(n) for n in step.members):
            steps += step.members
            text = "constants and metadata alone do not start a cluster"
            reasons += [Reason((n,), _left_out(program, n, text)) for n in step.members]
        else:
            steps.append(_cluster(graph, count, step, needed))
            count += 1
    step_of = {n: step.number for step in turns for n in step.members}
    reasons += [_apart(program, s) for s in separations if step_of[s.first] != step_of[s.second]]
    return Clustering(tuple(steps), tuple(reasons), program)


def body_cluster(number: int, scope: str, body: Program) -> Cluster:
    """All of a body as one cluster: its inputs come from outside, and what it makes for its outputs is needed there.

    An output that is an input of the same program is made by nobody.
    """
    outputs = tuple(dict.fromkeys(v for v in body.outputs if v in body.producers()))
    return Cluster(number, scope, tuple(range(len(body.instructions))), body.inputs, outputs)


def _cluster(graph: Dependences, number: int, step: Step, needed: dict[int, set[int]]) -> Cluster:
    """The cluster of a step: its members, the literals they read, and the values that cross its border."""
    assert step.scope is not None
    instructions, producers = graph.program.instructions, graph.program.producers()
    read = dict.fromkeys(v for n in step.members for v in instructions[n].inputs)
    literals = {producers[v] for v in read if producers.get(v) in graph.literals}
    members = sorted({*step.members, *literals})
    made = {v for n in members for v in instructions[n].outputs}
    outputs = [
        v for n in step.members for v in instructions[n].outputs if needed.get(v, frozenset()) - {step.number}
    ]
    return Cluster(
        number, step.scope, tuple(members), tuple(v for v in read if v not in made), tuple(outputs)
    )


def _needed_outside(graph: Dependences, steps: Sequence[Step]) -> dict[int, set[int]]:
    """Value → numbers of the steps that read it and do not hold it as a literal; the caller is step -1."""
    needed: dict[int, set[int]] = {v: {-1} for v in graph.program.outputs}
    producers, instructions = graph.program.producers(), graph.program.instructions
    for step in steps:
        is_cluster = step.scope is not None and any(graph.starts_cluster(n) for n in step.members)
        for v in {v for n in step.members for v in instructions[n].inputs}:
            if not (is_cluster and producers.get(v) in graph.literals):
                needed.setdefault(v, set()).add(step.number)
    return needed


def _described(program: Program, number: int) -> str:
    origin = program.instructions[number].origin
    return f"{origin.name} ({source_text(origin.source)})"


def _left_out(program: Program, number: int, why: str) -> str:
    return f"{_described(program, number)} is not compiled: {why}"


def _apart(program: Program, separation: Separation) -> Reason:
    first, via, second = separation.first, separation.via, separation.second
    scope = program.instructions[first].origin.scope
    start = f"{_described(program, first)} and {_described(program, second)} of scope {scope!r}"
    if via is None:
        return Reason((first, second), f"{start} are not compiled together: too many steps lie between them")
    path = f"{_described(program, via)}, {_whereabouts(program.instructions[via])}"
    return Reason(
        (first, via, second), f"{start} are not compiled together: a path between them goes through {path}"
    )


def _whereabouts(ins: Instruction) -> str:
    if ins.origin.scope is None:
        return "which is in no scope"
    return f"of scope {ins.origin.scope!r}"
