"""Numbers for values: equal only for values that are equal to the last bit, by what their instructions say.

The states of a loop are compared over all steps: those that start equal and stay equal if they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.compiler.constants import Array, constant_value, is_splat, splat_number
from jitgrad.compiler.identity import instruction_key
from jitgrad.opdef import Elementwise
from jitgrad.program import Instruction, Program


def number_key(array: Array) -> Any:
    """A key that equal arrays of one number share, wherever they are made; None for other arrays."""
    if not is_splat(array) or array.dtype.hasobject:
        return None
    return "number", array.dtype, array.shape, splat_number(array).tobytes()


_IDENTITY = Elementwise("identity")


class Numbering:
    """Values of several programs under one numbering."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, key: Any) -> int:
        """The number of what has this key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def values(self, program: Program, keys: Sequence[Any]) -> dict[int, int]:
        """Value → number, for a program whose inputs have these keys; that of a known number is its `number_key`."""
        found = {v: self.of(key) for v, key in zip(program.inputs, keys, strict=True)}
        for ins in program.instructions:
            if ins.op.kind == _IDENTITY:
                found[ins.outputs[0]] = found[ins.inputs[0]]
                continue
            value = constant_value(ins)
            key = None if value is None else number_key(value)
            if key is None:
                inputs = tuple([found[v] for v in ins.inputs])
                key = instruction_key(Instruction(ins.op, inputs, ins.outputs, ins.params, ins.origin))
            for place, v in enumerate(ins.outputs):
                found[v] = self.of((key, place) if place else key)
        return found


def compare_states(program: Program, keys: Sequence[Any], first: int, count: int) -> tuple[list[Any], dict[int, int]]:
    """The keys of a body's inputs over all steps, and the numbers of its values for them.

    Inputs from ``first`` on are the state, of which the first outputs are the next one; their keys are those of the
    initial values. One that stays as it was keeps its key; of the others, those that are always equal have equal keys.
    """
    varying: dict[int, Any] = {}
    while True:
        now = list(keys)
        for k, label in varying.items():
            now[first + k] = ("state", label)
        numbers = Numbering().values(program, now)
        before = len(set(varying.values()))
        moved = [k for k in range(count) if k not in varying and not _stays(program, numbers, first, k)]
        signs = {k: (varying.get(k, keys[first + k]), numbers[program.outputs[k]]) for k in [*varying, *moved]}
        labels: dict[Any, int] = {}
        for k in sorted(signs):
            varying[k] = labels.setdefault(signs[k], k)
        if not moved and len(labels) == before:
            return now, numbers


def _stays(program: Program, numbers: dict[int, int], first: int, k: int) -> bool:
    return numbers[program.inputs[first + k]] == numbers[program.outputs[k]]
