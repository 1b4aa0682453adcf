"""drop_unread(): loops, branches and calls without the results that nobody reads, and without what only these need.

One pass from the outputs back, so that what only feeds a dropped result is dropped as well, through any number of
instructions; a state that only feeds itself goes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from jitgrad.compiler.bodies.forms import can_edit, form_of, loop_of
from jitgrad.compiler.bodies.programs import edited, has_state
from jitgrad.compiler.bodies.reach import instruction_reach, reach, sum_of
from jitgrad.compiler.subprograms import LOOPS
from jitgrad.program import Instruction, Program


def drop_unread(program: Program, fired: Counter[str]) -> Program:
    """The program without what nobody reads of its control instructions; itself when everything is read."""
    named = {n for ins in program.instructions for n in ins.after}
    wanted = set(program.outputs)
    changed: dict[int, Instruction] = {}
    for number in range(len(program.instructions) - 1, -1, -1):
        ins = program.instructions[number]
        is_live = number in named or has_state(ins) or not wanted.isdisjoint(ins.outputs)
        if not is_live:
            continue
        if number not in named and not ins.after and can_edit(ins):
            narrow = _narrowed(ins, wanted)
            if narrow is not ins:
                fired["unread_results"] += 1
                ins = changed[number] = narrow
        wanted.update(ins.inputs)
    if not changed:
        return program
    return program.with_instructions(changed.get(n, ins) for n, ins in enumerate(program.instructions))


def _narrowed(ins: Instruction, wanted: Collection[int]) -> Instruction:
    """The instruction with the outputs that are wanted, and those that these need; itself when that is all."""
    live = [v in wanted for v in ins.outputs]
    needed = sum_of([mask for mask, is_live in zip(instruction_reach(ins), live, strict=True) if is_live])
    is_needed = [bool(needed >> k & 1) for k in range(len(ins.inputs))]
    form = form_of(ins)
    if form not in LOOPS:
        if all(live) and all(is_needed):
            return ins
        return _narrowed_branches(ins, live, is_needed)
    return _narrowed_loop(ins, live, is_needed)


def _chosen(values: Sequence[int], flags: Sequence[bool]) -> tuple[int, ...]:
    return tuple([v for v, flag in zip(values, flags, strict=True) if flag])


def _cut(program: Program, inputs: Sequence[int], outputs: Sequence[int]) -> Program:
    """The program with these of its outputs, for which these of its inputs are enough."""
    program = drop_unread(edited(program, program.inputs, outputs), Counter())
    return edited(program, inputs, program.outputs)


def _narrowed_branches(ins: Instruction, live: Sequence[bool], is_needed: Sequence[bool]) -> Instruction:
    is_cond = form_of(ins) == "cond"
    flags = is_needed[1:] if is_cond else is_needed

    def narrow(program: Program) -> Program:
        return _cut(program, _chosen(program.inputs, flags), _chosen(program.outputs, live))

    params: dict[str, Any]
    if is_cond:
        params = {"branches": tuple(map(narrow, ins.params["branches"]))}
    else:
        params = {"body": narrow(ins.params["body"])}
    inputs = (*ins.inputs[:is_cond], *_chosen(ins.inputs[is_cond:], flags))
    return replace(ins, inputs=inputs, outputs=_chosen(ins.outputs, live), params=params)


def _narrowed_loop(ins: Instruction, live: Sequence[bool], is_needed: list[bool]) -> Instruction:
    loop = loop_of(ins)
    n, m = len(loop.consts), len(loop.init)
    ends = n + m
    if loop.form != "while_gradient":  # a state that is wanted is carried
        for k in range(m):
            is_needed[n + k] = is_needed[n + k] or live[k]
    consts, state, rest = is_needed[:n], is_needed[n:ends], is_needed[ends:]
    if loop.form == "while_gradient":
        rest = [needed or wanted for needed, wanted in zip(rest, live, strict=True)]
        assert loop.back is not None
        masks = [mask for mask, is_kept in zip(reach(loop.back), rest, strict=True) if is_kept]
        read = sum_of(masks) >> n
        stacks = [bool(read >> k & 1) for k in range(len(loop.rest))]
        outputs = rest
    else:
        stacks = list(live[m:])
        outputs = [*state, *stacks]
    if all((*consts, *state, *rest, *stacks, *outputs)):
        return ins
    body = _cut(
        loop.body, _chosen(loop.body.inputs, [*consts, *state, *(rest if loop.xs else ())]),
        _chosen(loop.body.outputs, [*state, *stacks]),
    )  # fmt: skip
    cond, back = loop.cond, loop.back
    if cond is not None:
        cond = _cut(cond, _chosen(cond.inputs, [*consts, *state]), cond.outputs)
    if back is not None:
        back = _cut(back, _chosen(back.inputs, [*consts, *stacks, *rest]), _chosen(back.outputs, rest))
    narrow = replace(
        loop, consts=_chosen(loop.consts, consts), init=_chosen(loop.init, state), body=body, cond=cond, back=back,
        xs=_chosen(loop.xs, rest) if loop.xs else (), sums=_chosen(loop.sums, rest) if loop.sums else (),
    )  # fmt: skip
    return replace(ins, inputs=narrow.inputs, outputs=_chosen(ins.outputs, outputs), params=narrow.params)
