"""Small programs run on arrays with as few steps as there are, for gradients of eager calls; the interpreter, which
reuses memory and drops values early, is for large ones, and says what both mean.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from jitgrad.compiler.eager_code.layout import MOST_OPERANDS, MOST_VALUES
from jitgrad.interpreter import interpret
from jitgrad.opdef import Elementwise
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple

Run = Callable[[Sequence[Any]], Sequence[Any]]
_MOST_STEPS = 8


class _Step(NamedTuple):
    impl: Callable[..., Any]
    inputs: tuple[int, ...]
    params: Mapping[str, Any]
    output: int


class Steps(NamedTuple):
    """A program as calls on a table, which holds the inputs and then what each step makes; where its outputs are."""

    steps: Sequence[_Step]
    outputs: tuple[int, ...]


def straight(program: Program) -> Run:
    """The outputs of a program as a function of arrays of its inputs. Errors of floating point are the caller's."""
    found = steps_of(program)
    if found is None:
        return lambda values: interpret(program, [np.asarray(x) for x in values])
    return _as_function(found.steps, found.outputs, len(program.inputs))


def steps_of(program: Program) -> Steps | None:
    """A program as steps; None for a long one.

    A number that is only broadcast for element-wise operations with arrays of that shape is left to NumPy to broadcast,
    which takes a third of the time.
    """
    if len(program.instructions) > _MOST_STEPS or any(len(ins.outputs) != 1 for ins in program.instructions):
        return None
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
    return Steps(steps, tuple([place[v] for v in program.outputs]))


Walk = tuple[bytes, tuple[Callable[..., Any], ...]]


def walk_of(program: Program, gives: Sequence[Any]) -> Walk | None:
    """A gradient as machine code reads it (compiler/eager_code/layout.py), with the functions that it calls: of a
    program whose last input is the one cotangent. ``gives`` are the outputs that go to the inputs of the call, None
    where none does. None for a program that machine code leaves to Python.
    """
    found = steps_of(program)
    if found is None or not all(place is None or isinstance(place, int) for place in gives):
        return None
    if len(program.inputs) + len(found.steps) > MOST_VALUES or any(len(s.inputs) > MOST_OPERANDS for s in found.steps):
        return None
    calls = tuple([functools.partial(s.impl, **s.params) if s.params else s.impl for s in found.steps])
    words = [len(gives), len(program.inputs) - 1, len(calls)]
    for call, step in zip(calls, found.steps, strict=True):
        words += id(call), len(step.inputs), *step.inputs
    words += [-1 if place is None else found.outputs[place] for place in gives]
    return array("q", words).tobytes(), calls


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
