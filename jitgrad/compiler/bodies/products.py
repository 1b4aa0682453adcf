"""Rules that take matrix products out of scans: many small products, one after the other, become one large one.

A product of items with a constant is made before the scan, one that only stacks and sums need behind it: such are the
gradients of the weights of a recurrent network, which are then one product over all steps and rows. What the products
are made of must be in memory for all steps: see `_MOST_TIMES`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from jitgrad.compiler.bodies.at_once import AtOnce, can_stack, is_product_with_constant, terms_of
from jitgrad.compiler.bodies.forms import Loop, can_edit, loop_of
from jitgrad.compiler.bodies.programs import Values, edited, memory_of
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.opdef import Contract
from jitgrad.program import Instruction, Program
from jitgrad.records import dataclass

_FEWEST_TERMS = 4  # a product that sums fewer terms is little work for what it stores
_MOST_TIMES = 8  # what is stored besides takes at most so many times the memory of what the scan is given and stacks,
_ALWAYS_BYTES = 1 << 20  # or this many bytes


def is_worth(loop: Loop, n: int, body: Program, new: Iterable[int]) -> bool:
    """Whether values of a body may be kept for all steps."""
    kept = memory_of(body.specs[v] for v in (*loop.items, *loop.rest))
    more = memory_of(body.specs[v] for v in new)
    return n * more <= _ALWAYS_BYTES or more <= _MOST_TIMES * kept


# -- before the scan ---------------------------------------------------------------------------------------------------


def products_first(rw: Rewriter, ins: Instruction) -> Values | None:
    """A product of items with a constant is one product for all steps, before the scan"""
    if not can_edit(ins):
        return None
    loop = loop_of(ins)
    body, consts = loop.body, loop.body.inputs[: len(loop.consts)]
    stacked, same = set(loop.items), set(consts)
    ready: list[Instruction] = []
    goals: list[int] = []
    for inner in body.instructions:
        if not all(v in stacked or v in same for v in inner.inputs):
            continue
        if stacked.isdisjoint(inner.inputs):
            same.update(inner.outputs)
        elif can_stack(inner, stacked, body.specs):
            stacked.update(inner.outputs)
            if is_product_with_constant(inner, stacked) and terms_of(inner, body.specs) >= _FEWEST_TERMS:
                goals += inner.outputs
        else:
            continue
        ready.append(inner)
    goals = _last_goals(body, goals, ready)
    return made_before(rw, ins, goals, ready)


def made_before(rw: Rewriter, ins: Instruction, goals: Sequence[int], ready: Sequence[Instruction]) -> Values | None:
    """The scan with values of its body made before it, for all steps at once, and read as items; None where that is
    not worth its memory. ``ready``: the body's instructions that may stand before the scan.
    """
    loop, n = loop_of(ins), ins.params["length"]
    body, consts = loop.body, loop.body.inputs[: len(loop.consts)]
    if not goals or not is_worth(loop, n, body, goals):
        return None
    made = AtOnce(rw, body, n, dict(zip(consts, loop.consts, strict=True)), dict(zip(loop.items, loop.xs, strict=True)))
    for inner in needed(ready, goals):
        made.make(inner)
    gone = frozenset(goals)
    kept = tuple(inner for inner in body.instructions if gone.isdisjoint(inner.outputs))
    body = edited(replace(body, instructions=kept, _cache={}), (*body.inputs, *goals), body.outputs)
    changed = replace(loop, body=body, xs=(*loop.xs, *(made.stacks[v] for v in goals)))
    return rw.emit_all(ins.origin, ins.op, changed.inputs, changed.params)


def _last_goals(body: Program, goals: Sequence[int], ready: Sequence[Instruction]) -> list[int]:
    """Those products that the rest of the body reads."""
    inside = {inner.outputs for inner in needed(ready, goals)}
    read = {v for inner in body.instructions if inner.outputs not in inside for v in inner.inputs}
    return [v for v in goals if v in read or v in body.outputs]


def needed(instructions: Sequence[Instruction], wanted: Iterable[int]) -> list[Instruction]:
    """Those of some instructions that values need, in order."""
    pending, found = set(wanted), []
    for inner in reversed(instructions):
        if not pending.isdisjoint(inner.outputs):
            pending.update(inner.inputs)
            found.append(inner)
    return found[::-1]


# -- behind the scan ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Goal:
    """A stack or a sum that may be made behind the scan: its place, and the values that are stacked or summed."""

    is_sum: bool
    place: int
    values: tuple[int, ...]


def products_behind(rw: Rewriter, ins: Instruction) -> Values | None:
    """Products that only stacks and sums need are made for all steps at once, behind the scan"""
    if not can_edit(ins) or not any(isinstance(inner.op.kind, Contract) for inner in ins.params["body"].instructions):
        return None
    loop = loop_of(ins)
    goals, late = _goals(loop)
    if not goals:
        return None
    frontier = _frontier(loop, goals, late)
    kept = [k for k in range(len(loop.rest)) if not any(g.place == k and not g.is_sum for g in goals)]
    new = [v for v in frontier if v not in {loop.rest[k] for k in kept}]
    if not is_worth(loop, ins.params["length"], loop.body, new):
        return None
    gone = {g.place for g in goals if g.is_sum}
    states = [k for k in range(len(loop.init)) if k not in gone]
    made = iter(_emitted_without(rw, ins, loop, states, kept, new))
    finals = {k: next(made) for k in states}
    rest = {k: next(made) for k in kept}
    at_once = AtOnce(
        rw, loop.body, ins.params["length"],
        dict(zip(loop.body.inputs, loop.consts, strict=False)),
        {**dict(zip(loop.items, loop.xs, strict=True)), **{loop.rest[k]: v for k, v in rest.items()},
         **{v: next(made) for v in new}},
    )  # fmt: skip
    producers = loop.body.producers()
    sums = {v for g in goals if g.is_sum for v in g.values}
    plain = [inner for inner in late if not (sums.issuperset(inner.outputs) and isinstance(inner.op.kind, Contract))]
    for inner in plain:
        at_once.make(inner)
    for goal in goals:
        if not goal.is_sum:
            rest[goal.place] = at_once.stacks[goal.values[0]]
            continue
        totals = [
            at_once.sum_of(v, loop.body.instructions[producers[v]] if v in producers else None, ins)
            for v in goal.values
        ]
        finals[goal.place] = rw.emit(ins.origin, "add_n", loop.init[goal.place], *totals)
    return (*[finals[k] for k in range(len(loop.init))], *[rest[k] for k in range(len(loop.rest))])


def _emitted_without(
    rw: Rewriter, ins: Instruction, loop: Loop, states: Sequence[int], kept: Sequence[int], new: Sequence[int]
) -> Values:
    body, n, m = loop.body, len(loop.consts), len(loop.init)
    inputs = (*body.inputs[:n], *(loop.state[k] for k in states), *loop.items)
    outputs = (*(body.outputs[k] for k in states), *(body.outputs[m + k] for k in kept), *new)
    changed = replace(loop, init=tuple(loop.init[k] for k in states), body=edited(body, inputs, outputs))
    return rw.emit_all(ins.origin, ins.op, changed.inputs, changed.params)


def _goals(loop: Loop) -> tuple[list[_Goal], list[Instruction]]:
    """What is made behind the scan, and the instructions for it, in order."""
    goals = [*_sums(loop), *(_Goal(False, k, (v,)) for k, v in enumerate(loop.rest))]
    while True:
        late = _late(loop, goals)
        makers = {v: inner for inner in late for v in inner.outputs}
        differing = _differing(loop)
        first = [g for g in goals if _is_product(loop, g, makers, differing)]
        known = _frontier(loop, first, _late(loop, first)) | set(loop.items)
        more = [
            g for g in goals if g not in first and g.is_sum and _is_possible(loop, g, makers, differing)
            and _starts(loop, g, makers) <= known and all(loop.body.specs[v].size > 1 for v in g.values)
        ]  # fmt: skip
        chosen = [g for g in goals if g in first or g in more] if first else []
        if chosen == goals or not chosen:
            return chosen, late if chosen else []
        goals = chosen


def _sums(loop: Loop) -> list[_Goal]:
    """States that are only added to."""
    body, found = loop.body, []
    reads = [v for inner in body.instructions for v in inner.inputs] + list(body.outputs)
    producers = body.producers()
    for k, (before, after) in enumerate(zip(loop.state, loop.next_state, strict=True)):
        if reads.count(before) != 1 or reads.count(after) != 1 or after not in producers:
            continue
        inner = body.instructions[producers[after]]
        if inner.op.name in ("add", "add_n") and before in inner.inputs and body.specs[after].dtype.kind == "f":
            found.append(_Goal(True, k, tuple(v for v in inner.inputs if v != before)))
    return found


def _late(loop: Loop, goals: Sequence[_Goal]) -> list[Instruction]:
    """The instructions that only these goals need."""
    m = len(loop.init)
    sums = {g.place for g in goals if g.is_sum}
    stacks = {g.place for g in goals if not g.is_sum}
    others = [v for k, v in enumerate(loop.body.outputs) if (k not in sums if k < m else k - m not in stacks)]
    early = {inner.outputs for inner in needed(loop.body.instructions, others)}
    wanted = [v for g in goals for v in g.values]
    return [inner for inner in needed(loop.body.instructions, wanted) if inner.outputs not in early]


def _differing(loop: Loop) -> set[int]:
    """The values that are not the same at each step."""
    found = set(loop.body.inputs[len(loop.consts) :])
    for inner in loop.body.instructions:
        if not found.isdisjoint(inner.inputs):
            found.update(inner.outputs)
    return found


def _cone(goal: _Goal, makers: dict[int, Instruction]) -> list[Instruction]:
    pending, found = list(goal.values), dict[tuple[int, ...], Instruction]()
    while pending:
        inner = makers.get(pending.pop())
        if inner is not None and inner.outputs not in found:
            found[inner.outputs] = inner
            pending += inner.inputs
    return list(found.values())


def _is_possible(loop: Loop, goal: _Goal, makers: dict[int, Instruction], differing: Collection[int]) -> bool:
    if not all(v in differing for v in goal.values):
        return False
    return all(
        can_stack(inner, differing, loop.body.specs) or not differing & set(inner.inputs)  # type: ignore[operator]
        for inner in _cone(goal, makers)
    )


def _is_product(loop: Loop, goal: _Goal, makers: dict[int, Instruction], differing: Collection[int]) -> bool:
    """Whether a large product comes of it: one for all steps with a constant, or a sum of products."""
    if not _is_possible(loop, goal, makers, differing):
        return False
    sums = [makers.get(v) for v in goal.values] if goal.is_sum else []
    return any(inner is not None and isinstance(inner.op.kind, Contract) for inner in sums) or any(
        is_product_with_constant(inner, differing) and terms_of(inner, loop.body.specs) >= _FEWEST_TERMS
        for inner in _cone(goal, makers)
    )


def _starts(loop: Loop, goal: _Goal, makers: dict[int, Instruction]) -> set[int]:
    """The values that differ from step to step from which a goal is made."""
    differing = _differing(loop)
    read = {v for inner in _cone(goal, makers) for v in inner.inputs} | set(goal.values)
    return {v for v in read if v not in makers and v in differing}


def _frontier(loop: Loop, goals: Sequence[_Goal], late: Sequence[Instruction]) -> set[int]:
    """The values, other than items, that must be stacked for goals."""
    makers = {v: inner for inner in late for v in inner.outputs}
    found: set[int] = set()
    for goal in goals:
        found |= _starts(loop, goal, makers)
    return found - set(loop.items)
