"""Rules that take what a scan computes of numbers out of it, where no step waits for another: a loop over numbers has
no lanes to fill, all its steps at once have.

What follows from items alone is computed for all steps before the scan; what only its stacks need, of states that are
stacked for it, behind. Only analytic functions and divisions are worth the stacks, and what comes with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from jitgrad.compiler.bodies.at_once import AtOnce
from jitgrad.compiler.bodies.forms import Loop, can_edit, loop_of
from jitgrad.compiler.bodies.products import is_worth, made_before, needed
from jitgrad.compiler.bodies.programs import Values, edited
from jitgrad.compiler.fusing.drafts import ANALYTIC_WEIGHT, CHEAP
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.opdef import Elementwise
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec

_MOST_BYTES = 16  # of a value at one step: a fraction of a register
_FEWEST_STEPS = 16
_LEAST_WEIGHT = 3  # of an operation that is worth a stack: a division


def _is_small(spec: TensorSpec) -> bool:
    return 0 < spec.nbytes <= _MOST_BYTES and spec.dtype.kind in "fiub"


def _is_movable(ins: Instruction, specs: Sequence[TensorSpec]) -> bool:
    is_plain = isinstance(ins.op.kind, Elementwise) and len(ins.outputs) == 1 and not ins.op.stateful and not ins.after
    return is_plain and all(_is_small(specs[v]) for v in (*ins.inputs, *ins.outputs))


def _weight(ins: Instruction) -> int:
    assert isinstance(ins.op.kind, Elementwise)
    return 1 if ins.op.name == "add_n" else CHEAP.get(ins.op.kind.scalar, ANALYTIC_WEIGHT)


def _fits(ins: Instruction) -> bool:
    return can_edit(ins) and ins.params["length"] >= _FEWEST_STEPS


# -- before the scan ---------------------------------------------------------------------------------------------------


def numbers_first(rw: Rewriter, ins: Instruction) -> Values | None:
    """What a step computes of an item alone is computed for all steps at once, before the scan"""
    if not _fits(ins):
        return None
    loop = loop_of(ins)
    body, consts = loop.body, loop.body.inputs[: len(loop.consts)]
    known, stacked, ready = {*consts, *loop.items}, set(loop.items), list[Instruction]()
    for inner in body.instructions:
        is_fill = not inner.inputs and not inner.op.stateful
        if is_fill or (known.issuperset(inner.inputs) and _is_movable(inner, body.specs)):
            known.update(inner.outputs)
            ready.append(inner)
            if not stacked.isdisjoint(inner.inputs):
                stacked.update(inner.outputs)
    goals = _ends(body, [inner for inner in ready if not stacked.isdisjoint(inner.outputs)])
    goals = [v for v in goals if _is_expensive(ready, [v], stacked)]
    return made_before(rw, ins, goals, ready)


def _ends(body: Program, ready: Sequence[Instruction]) -> list[int]:
    """The results of some instructions that others read."""
    inside = {inner.outputs for inner in ready}
    read = {v for inner in body.instructions if inner.outputs not in inside for v in inner.inputs} | set(body.outputs)
    return [v for inner in ready for v in inner.outputs if v in read]


def _is_expensive(instructions: Sequence[Instruction], goals: Iterable[int], stacked: Collection[int]) -> bool:
    """Whether what goals take is worth a stack."""
    makers = [inner for inner in needed(instructions, goals) if any(v in stacked for v in inner.inputs)]
    return any(_weight(inner) >= _LEAST_WEIGHT for inner in makers)


# -- behind the scan ---------------------------------------------------------------------------------------------------


def numbers_behind(rw: Rewriter, ins: Instruction) -> Values | None:
    """What only the stacks of a scan need is computed for all steps at once, behind it"""
    if not _fits(ins):
        return None
    loop, n = loop_of(ins), ins.params["length"]
    places, late = _late_places(loop)
    if not places:
        return None
    body, values = loop.body, [loop.rest[k] for k in places]
    kept = [k for k in range(len(loop.rest)) if k not in places]
    makers = {v for inner in late for v in inner.outputs}
    frontier = _frontier(loop, needed(late, values), makers)
    new = [v for v in frontier if v not in {loop.rest[k] for k in kept}]
    if len(new) > len(places) or not is_worth(loop, n, body, new):
        return None
    outputs = (*loop.next_state, *(loop.rest[k] for k in kept), *new)
    changed = replace(loop, body=edited(body, body.inputs, outputs))
    made = rw.emit_all(ins.origin, ins.op, changed.inputs, changed.params)
    m = len(loop.init)
    rest = dict(zip(kept, made[m : m + len(kept)], strict=True))
    stacks = dict(zip(loop.items, loop.xs, strict=True)) | {loop.rest[k]: v for k, v in rest.items()}
    stacks |= dict(zip(new, made[m + len(kept) :], strict=True))
    at_once = AtOnce(rw, body, n, dict(zip(body.inputs, loop.consts, strict=False)), stacks)
    for inner in needed(late, values):
        at_once.make(inner)
    rest |= {k: at_once.stacks[v] for k, v in zip(places, values, strict=True)}
    return (*made[:m], *(rest[k] for k in range(len(loop.rest))))


def _late_places(loop: Loop) -> tuple[list[int], list[Instruction]]:
    """The places of stacks that may be made behind the scan, and the instructions for them."""
    body = loop.body
    differing = set(body.inputs[len(loop.consts) :])
    for inner in body.instructions:
        if not differing.isdisjoint(inner.inputs):
            differing.update(inner.outputs)
    early = {inner.outputs for inner in needed(body.instructions, loop.next_state)}
    late = [
        inner for inner in body.instructions
        if not (inner.inputs or inner.op.stateful)
        or (inner.outputs not in early and _is_movable(inner, body.specs))
    ]  # fmt: skip
    makers = {v for inner in late for v in inner.outputs}
    places = [
        k for k, v in enumerate(loop.rest)
        if v in makers and v in differing and _is_expensive(late, [v], differing)
    ]  # fmt: skip
    return places, late


def _frontier(loop: Loop, late: Sequence[Instruction], makers: Collection[int]) -> list[int]:
    """The values that must be stacked for these instructions: neither items nor constants, nor made by them."""
    given = {*loop.body.inputs[: len(loop.consts)], *loop.items, *makers}
    return list(dict.fromkeys(v for inner in late for v in inner.inputs if v not in given))
