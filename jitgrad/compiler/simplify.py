"""simplify(): the same function as a smaller program; the rules are in rules/, applied by rewriter.py.

Equal to the program given, to rounding, with NaN, infinities and the sign of zero kept. Instructions with
control edges, or named by one, stay as they are: their place in the order is what they are for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jitgrad.compiler.bodies.programs import compacted, has_state
from jitgrad.compiler.rewriter import Rewriter, Rule, errors_ignored
from jitgrad.compiler.rules import rules_of
from jitgrad.opdef import Control, OpDef
from jitgrad.program import Instruction, Program

SWEEPS = 16


def simplify(program: Program) -> Program:
    """The program with explicit shapes, constants folded, algebra done, equal instructions merged, none dead.

    The same object when nothing changes. Linear in the instructions.
    """
    return simplify_with_log(program)[0]


def simplify_with_log(program: Program) -> tuple[Program, Mapping[str, int]]:
    """As `simplify`, with the names of the rules that fired and how often."""
    program, fired, _ = simplify_and_watch(program)
    return program, fired


def simplify_and_watch(program: Program) -> tuple[Program, Mapping[str, int], bool]:
    """As `simplify_with_log`, and whether elements of constants, other than splats, were read."""
    fired: Counter[str] = Counter()
    looked = False
    with errors_ignored():
        for _ in range(SWEEPS):
            before = program
            if _runs_programs(program):
                from jitgrad.compiler.bodies.around import before_sweep  # loaded for programs with loops alone

                program = before_sweep(program, fired)
            program, rewriter = _sweep(program)
            fired += rewriter.fired
            looked = looked or rewriter.constants.looked
            if program is before and _runs_programs(program):
                from jitgrad.compiler.bodies.around import after_sweeps

                program = after_sweeps(program, fired)
            if program is before and _runs_programs(program):
                from jitgrad.compiler.bodies.elements import element_rules

                program, rewriter = _sweep(program, element_rules)
                fired += rewriter.fired
            if program is before or not (rewriter.is_open or _runs_programs(program)):
                break
    return program, dict(fired), looked


def simplify_body(program: Program) -> tuple[Program, bool]:
    """A program that an instruction runs, simplified and its values numbered in order; and whether elements of its
    constants were read. Found once for each program.
    """
    found: tuple[Program, bool] | None = program._cache.get("simplified")
    if found is None:
        simple, _, looked = simplify_and_watch(program)
        simple = compacted(simple)
        found = program._cache["simplified"] = simple, looked
        simple._cache.setdefault("simplified", (simple, looked))
    return found


def _runs_programs(program: Program) -> bool:
    return any(isinstance(ins.op.kind, Control) for ins in program.instructions)


def _sweep(program: Program, rules: Callable[[OpDef], Sequence[Rule]] = rules_of) -> tuple[Program, Rewriter]:
    """Every instruction once, in order: the program (itself if no rule fired), and what the rewriter noted."""
    rewriter = Rewriter(program, rules, simplify_body)
    fixed = _fixed_instructions(program)
    place: dict[int, int] = {}
    for number, ins in enumerate(program.instructions):
        ins = rewriter.renew(ins)
        if number in fixed:
            place[number] = len(rewriter.instructions)
            rewriter.keep(ins)
        else:
            rewriter.add(ins)
    outputs = tuple(rewriter.renamed.get(v, v) for v in program.outputs)
    live = _live_instructions(rewriter.instructions, outputs, place)
    dead = len(live) - sum(live)
    if dead:
        rewriter.fired["dead_code"] += dead
    if not rewriter.fired:
        return program, rewriter
    instructions = _renumbered(rewriter.instructions, live, place)
    specs = tuple(rewriter.specs)
    return replace(program, instructions=instructions, outputs=outputs, specs=specs, _cache={}), rewriter


def _fixed_instructions(program: Program) -> set[int]:
    """Instructions whose place in the order matters: with state, with a control edge, or named by one."""
    fixed = set()
    for number, ins in enumerate(program.instructions):
        if ins.after or has_state(ins):
            fixed.add(number)
            fixed.update(ins.after)
    return fixed


def _live_instructions(
    instructions: list[Instruction], outputs: tuple[int, ...], place: Mapping[int, int]
) -> list[bool]:
    """Which instructions are needed: for an output, for their state, or to run before one that is needed."""
    live = [False] * len(instructions)
    wanted = set(outputs)
    for number in range(len(instructions) - 1, -1, -1):
        ins = instructions[number]
        if live[number] or has_state(ins) or not wanted.isdisjoint(ins.outputs):
            live[number] = True
            wanted.update(ins.inputs)
            for before in ins.after:
                live[place[before]] = True
    return live


def _renumbered(
    instructions: list[Instruction], live: list[bool], place: Mapping[int, int]
) -> tuple[Instruction, ...]:
    """The live instructions, with ``after`` in their new numbers."""
    number: dict[int, int] = {}
    kept: list[Instruction] = []
    for index, ins in enumerate(instructions):
        if live[index]:
            number[index] = len(kept)
            kept.append(replace(ins, after=tuple(number[place[n]] for n in ins.after)) if ins.after else ins)
    return tuple(kept)
