"""When two instructions compute the same: keys, equal only for the same op, inputs, params and scope."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.compiler.constants import is_splat, splat_number
from jitgrad.keys import frozen
from jitgrad.opdef import Elementwise
from jitgrad.program import Instruction, Program

# x ∘ y = y ∘ x to the last bit (NaN payloads aside). Not maximum and minimum: they may give either zero.
COMMUTATIVE = frozenset(
    ("add", "multiply", "equal", "not_equal", "logical_and", "logical_or", "logical_xor", "bitwise_and",
     "bitwise_or", "bitwise_xor", "hypot", "logaddexp", "logaddexp2")
)  # fmt: skip


def instruction_key(ins: Instruction) -> Any:
    """A hashable key; instructions with equal keys compute the same values in the same scope."""
    inputs = ins.inputs
    kind = ins.op.kind
    if (
        len(inputs) == 2
        and inputs[0] > inputs[1]
        and isinstance(kind, Elementwise)
        and kind.scalar in COMMUTATIVE
    ):
        inputs = inputs[::-1]
    if not ins.params:
        return ins.op, inputs, ins.origin.scope
    return (
        ins.op,
        inputs,
        ins.origin.scope,
        tuple([(key, _frozen_param(value)) for key, value in ins.params.items()]),
    )


def _frozen_param(value: Any) -> Any:
    if isinstance(value, Program):
        return program_key(value)
    if type(value) is tuple and any(isinstance(item, Program) for item in value):
        return tuple(map(_frozen_param, value))
    return frozen(value, _frozen_array)


def program_key(program: Program) -> Any:
    """A hashable key; programs with equal keys compute the same values of the same inputs."""
    found = program._cache.get("key")
    if found is None:
        inputs = tuple([(v, program.specs[v]) for v in program.inputs])
        instructions = tuple([(ins.outputs, ins.after, instruction_key(ins)) for ins in program.instructions])
        found = program._cache["key"] = _Key((inputs, program.outputs, instructions))
    return found


class _Key:
    """A tuple whose hash is computed once."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self._hash = hash(content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Key) and self._hash == other._hash and bool(self._content == other._content)
        )


def _frozen_array(value: np.ndarray[Any, Any]) -> Any:
    """The bytes of a small array or of a splat's number; of any other the identity: its program keeps it."""
    if value.dtype.hasobject:
        return (np.ndarray, id(value))
    if is_splat(value):
        return (np.ndarray, value.dtype, value.shape, splat_number(value).tobytes())
    return (np.ndarray, id(value))
