"""Small programs run on arrays with as few steps as there are, for gradients of eager calls; the interpreter, which
reuses memory and drops values early, is for large ones, and says what both mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from jitgrad.interpreter import interpret
from jitgrad.opdef import Elementwise
from jitgrad.program import Instruction, Program

Run = Callable[[Sequence[Any]], Sequence[Any]]
_MOST_STEPS = 8


class _Step(NamedTuple):
    impl: Callable[..., Any]
    inputs: tuple[int, ...]
    params: Mapping[str, Any]
    output: int


def straight(program: Program) -> Run:
    """The outputs of a program as a function of arrays of its inputs. Errors of floating point are the caller's.

    A number that is only broadcast for element-wise operations with arrays of that shape is left to NumPy to broadcast,
    which takes a third of the time.
    """
    if len(program.instructions) > _MOST_STEPS or any(len(ins.outputs) != 1 for ins in program.instructions):
        return lambda values: interpret(program, [np.asarray(x) for x in values])
    same = _left_to_numpy(program)
    place = {v: k for k, v in enumerate(program.inputs)}
    steps: list[_Step] = []
    for ins in program.instructions:
        inputs = tuple([place[v] for v in ins.inputs])
        if ins.outputs[0] in same:
            place[ins.outputs[0]] = inputs[0]
        else:
            place[ins.outputs[0]] = len(program.inputs) + len(steps)
            steps.append(_Step(ins.op.impl, inputs, ins.params, place[ins.outputs[0]]))
    return _as_function(steps, tuple([place[v] for v in program.outputs]), len(program.inputs))


def _as_function(steps: Sequence[_Step], outputs: tuple[int, ...], count: int) -> Run:
    if len(steps) == 1 and outputs == (count,):
        impl, inputs, params, _ = steps[0]
        if len(inputs) == 2 and not params:
            a, b = inputs
            return lambda values: (impl(values[a], values[b]),)
        return lambda values: (impl(*[values[k] for k in inputs], **params),)
    takers = [(impl, inputs, params) for impl, inputs, params, _ in steps]
    pick = itemgetter(*outputs) if len(outputs) > 1 else itemgetter(slice(outputs[0], outputs[0] + 1))

    def run(values: Sequence[Any]) -> Sequence[Any]:
        table = list(values)
        for impl, inputs, params in takers:
            table.append(impl(*[table[k] for k in inputs], **params))
        found: Sequence[Any] = pick(table)
        return found

    return run


def _left_to_numpy(program: Program) -> set[int]:
    """The values that are broadcast numbers, all of whose readers broadcast by themselves."""
    made = {ins.outputs[0]: ins for ins in program.instructions}
    numbers = {v for v, ins in made.items() if ins.op.name == "broadcast_to" and _is_number(program, ins)}
    for ins in program.instructions:
        is_ufunc = isinstance(ins.op.impl, np.ufunc) and isinstance(ins.op.kind, Elementwise)
        if not is_ufunc or numbers.issuperset(ins.inputs):
            numbers.difference_update(ins.inputs)
    return numbers.difference(program.outputs)


def _is_number(program: Program, ins: Instruction) -> bool:
    return program.specs[ins.inputs[0]].shape == ()
