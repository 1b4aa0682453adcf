"""Which inputs the outputs of programs and instructions depend on, through any number of steps of a loop."""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.bodies.forms import form_of, loop_of
from jitgrad.program import Instruction, Program

Masks = tuple[int, ...]  # per output, a bit per input


def reach(program: Program) -> Masks:
    """Per output the inputs that it depends on."""
    found: Masks | None = program._cache.get("reach")
    if found is None:
        bits = {v: 1 << place for place, v in enumerate(program.inputs)}
        for ins in program.instructions:
            inputs = [bits[x] for x in ins.inputs]
            bits |= {v: union(mask, inputs) for v, mask in zip(ins.outputs, instruction_reach(ins), strict=True)}
        found = program._cache["reach"] = tuple([bits[v] for v in program.outputs])
    return found


def union(mask: int, meanings: Sequence[int]) -> int:
    """The union of the meanings of the bits that are set."""
    result = 0
    for place, meaning in enumerate(meanings):
        if mask >> place & 1:
            result |= meaning
    return result


def instruction_reach(ins: Instruction) -> Masks:
    """Per output of an instruction the inputs that it depends on."""
    match form_of(ins):
        case "scan" | "while":
            return _loop_reach(ins)
        case "while_gradient":
            return _gradient_reach(ins)
        case "cond":
            branches = [reach(branch) for branch in ins.params["branches"]]
            return tuple([1 | sum_of(masks) << 1 for masks in zip(*branches, strict=True)])
        case "call":
            return reach(ins.params["body"])
    return ((1 << len(ins.inputs)) - 1,) * len(ins.outputs)


def sum_of(masks: Sequence[int]) -> int:
    """The union of masks."""
    result = 0
    for mask in masks:
        result |= mask
    return result


def _loop_reach(ins: Instruction) -> Masks:
    """The body's inputs stand where the instruction's do."""
    loop = loop_of(ins)
    n = len(loop.consts)
    masks = _closed(reach(loop.body), n, len(loop.init))
    if loop.cond is None:
        return masks
    steps = _through(reach(loop.cond)[0], n, masks[: len(loop.init)])
    return tuple([mask | steps for mask in masks])


def _gradient_reach(ins: Instruction) -> Masks:
    loop = loop_of(ins)
    assert loop.cond is not None and loop.back is not None
    n, carry, total = len(loop.consts), len(loop.init), len(ins.inputs)
    masks = _closed(reach(loop.body), n, carry)
    steps = _through(reach(loop.cond)[0], n, masks[:carry])
    ends = total - len(loop.sums)
    meanings = [*(1 << k for k in range(n)), *masks[carry:], *(1 << k for k in range(ends, total))]
    back = [union(mask, meanings) for mask in reach(loop.back)]
    return tuple([mask | steps for mask in _closed(back, ends, len(loop.sums))])


def _closed(masks: Sequence[int], first: int, count: int) -> Masks:
    """What outputs depend on in the end; the first ``count`` are fed back to the inputs from ``first`` on."""
    states = [mask | 1 << first + k for k, mask in enumerate(masks[:count])]
    while True:
        wider = [_through(mask, first, states) for mask in states]
        if wider == states:
            break
        states = wider
    return (*states, *[_through(mask, first, states) for mask in masks[count:]])


def _through(mask: int, first: int, states: Sequence[int]) -> int:
    """The mask with all that the states in it depend on."""
    return mask | union(mask >> first, states)
