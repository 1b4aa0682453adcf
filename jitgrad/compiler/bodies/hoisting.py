"""A rule for what a loop computes at each step alike: it is computed once, before the loop.

Not what might raise an error, or not end, where the loop may not run at all; and not what only moves elements: to read
them through an index costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitgrad.compiler.bodies.forms import Loop, can_edit, form_of, loop_of
from jitgrad.compiler.bodies.programs import Token, rebound
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.opdef import Control, Fill, Gather, Interpreted, Library, Reindex, Scatter, Shaped, View
from jitgrad.program import Instruction, Program, sub_programs
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec

_FREE = (Fill, Reindex, View, Shaped)


def invariants_first(rw: Rewriter, ins: Instruction) -> tuple[int, ...] | None:
    """What depends on constants of a loop only is made before it"""
    if not can_edit(ins):
        return None
    loop = loop_of(ins)
    runs = loop.form == "scan" and ins.params["length"] > 0
    parts = [_part(p, len(loop.consts), runs) for p in (loop.body, loop.cond, loop.back) if p is not None]
    if not any(part.frontier for part in parts):
        return None
    changed = _moved(rw, ins, loop, parts)
    return rw.emit_all(ins.origin, ins.op, changed.inputs, changed.params)


@dataclass(frozen=True)
class _Part:
    """A program of a loop: what of it is computed before, in order, and which values of that it reads."""

    program: Program
    before: tuple[Instruction, ...]
    frontier: tuple[int, ...]


def _part(program: Program, n_consts: int, runs: bool) -> _Part:
    fixed = set(program.inputs[:n_consts])
    before: list[Instruction] = []
    moves: list[Instruction] = []
    for ins in program.instructions:
        if fixed.issuperset(ins.inputs) and (runs or not can_fail(ins)) and not isinstance(ins.op.kind, Interpreted):
            fixed.update(ins.outputs)
            (moves if isinstance(ins.op.kind, _FREE) else before).append(ins)
    made = {v for ins in before for v in ins.outputs}
    gone = {ins.outputs for ins in before}
    read = {v for ins in program.instructions if ins.outputs not in gone for v in ins.inputs} | set(program.outputs)
    return _Part(program, (*before, *moves), tuple(sorted(made & read)))


def can_fail(ins: Instruction) -> bool:
    """Whether an instruction may raise an error or never end."""
    kind = ins.op.kind
    if isinstance(kind, Gather | Scatter | Library | Interpreted):
        return True
    if not isinstance(kind, Control):
        return False
    return form_of(ins) not in ("scan", "cond", "call") or any(
        can_fail(inner) for program in sub_programs(ins) for inner in program.instructions
    )


def _moved(rw: Rewriter, ins: Instruction, loop: Loop, parts: Sequence[_Part]) -> Loop:
    made = [_emitted(rw, loop, part) for part in parts]
    consts = tuple(dict.fromkeys((*loop.consts, *(v for values in made for v in values))))

    def spec_of(token: Token) -> TensorSpec:
        assert isinstance(token, tuple)
        return rw.specs[token[1]]

    programs = []
    for part, values in zip(parts, made, strict=True):
        own = [("own", place) for place in range(len(part.program.inputs) - len(loop.consts))]
        tokens = [*(("const", v) for v in loop.consts), *own, *(("const", v) for v in values)]
        order = [*(("const", v) for v in consts), *own]
        programs.append(rebound(_opened(part), tokens, order, spec_of, ins.origin))
    body, *others = programs
    cond, back = (*others, None, None)[:2]
    return replace(loop, consts=consts, body=body, cond=cond, back=back)


def _opened(part: _Part) -> Program:
    """The program with the values at the frontier as further inputs."""
    frontier = set(part.frontier)
    kept = tuple(ins for ins in part.program.instructions if frontier.isdisjoint(ins.outputs))
    return replace(part.program, inputs=(*part.program.inputs, *part.frontier), instructions=kept, _cache={})


def _emitted(rw: Rewriter, loop: Loop, part: _Part) -> list[int]:
    """The values at the frontier, outside."""
    names = dict(zip(part.program.inputs, loop.consts, strict=False))
    wanted = _needed(part)
    for ins in part.program.instructions:
        if ins.outputs in wanted:
            made = rw.emit_all(ins.origin, ins.op, tuple([names[v] for v in ins.inputs]), ins.params)
            names.update(zip(ins.outputs, made, strict=True))
    return [names[v] for v in part.frontier]


def _needed(part: _Part) -> set[tuple[int, ...]]:
    """The outputs of those instructions that the frontier needs."""
    wanted, found = set(part.frontier), set()
    order = {ins.outputs: n for n, ins in enumerate(part.program.instructions)}
    for ins in sorted(part.before, key=lambda ins: order[ins.outputs], reverse=True):
        if not wanted.isdisjoint(ins.outputs):
            found.add(ins.outputs)
            wanted.update(ins.inputs)
    return found
