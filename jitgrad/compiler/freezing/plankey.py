"""The key of a program's plan: all that the stages of the compiler may look at, as bytes; it makes no plan.

Names and source lines are not part of it. An array that is a constant is, and so is where else in the program it is,
unless it holds one number: the stages merge constants that are the same array (`identity.py`). Of one that is large the
elements do not count, but its dtype and its shape. A plan for which some stage looked into a large one is kept under a
key of its own, of which their elements are part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jitgrad.compiler.constants import is_splat, splat_number
from jitgrad.compiler.freezing.stored import MOST_BYTES, UnkeptError, dump, encode, encode_params, op_name
from jitgrad.compiler.machine.stamp import digest, stamp
from jitgrad.program import Program, sub_programs

_MOST_READ = 1 << 22  # bytes


def plan_key(program: Program) -> str | None:
    """The key under which a program's plan is kept; None when a part of it cannot be told from another process."""
    writer = _Writer()
    try:
        content = writer.program(program)
    except UnkeptError:
        return None
    return digest(stamp().encode() + dump(content)).hex()


def exact_key(program: Program, key: str) -> str | None:
    """The key of a program with all elements of its constants, made of its other one; None where that tells them all,
    or they are so many that reading them would take longer than some milliseconds.
    """
    large = list({id(array): array for array in _large_constants(program)}.values())
    if not large or sum(array.nbytes for array in large) > _MOST_READ:
        return None
    return digest(key.encode() + b"".join([digest(array.tobytes()) for array in large])).hex()


def has_large_constants(program: Program) -> bool:
    """Whether the key does not tell all elements of the program's constants."""
    return any(True for _ in _large_constants(program))


def _large_constants(program: Program) -> Iterator[np.ndarray[Any, Any]]:
    for ins in program.instructions:
        yield from (value for value in ins.params.values() if type(value) is np.ndarray and _is_large(value))
        for body in sub_programs(ins):
            yield from _large_constants(body)


def _is_large(array: np.ndarray[Any, Any]) -> bool:
    return array.nbytes > MOST_BYTES and not is_splat(array)


class _Writer:
    def __init__(self) -> None:
        self._arrays: dict[int, int] = {}  # by their identity, in the order in which they are met

    def program(self, program: Program) -> Any:
        """A program as plain tuples."""
        specs = tuple([(spec.known_shape, spec.dtype.str) for spec in program.specs])
        instructions = tuple([self._instruction(ins) for ins in program.instructions])
        return program.inputs, program.outputs, specs, instructions

    def _instruction(self, ins: Any) -> Any:
        name = op_name(ins.op)
        if name is None:
            raise UnkeptError(f"op {ins.op.name}")
        params = encode_params(ins.params, self._array, self._body) if ins.params else ()
        return name, ins.inputs, ins.outputs, params, ins.origin.scope, ins.after

    def _body(self, value: Any) -> Any:
        if not isinstance(value, Program):
            raise UnkeptError(f"a {type(value).__name__}")
        return ("program", *self.program(value))

    def _array(self, array: np.ndarray[Any, Any]) -> Any:
        is_small = array.nbytes <= MOST_BYTES
        if is_splat(array):
            return encode(array) if is_small else ("splat", array.shape, encode(splat_number(array)))
        number = self._arrays.setdefault(id(array), len(self._arrays))
        return ("small", encode(array), number) if is_small else ("large", array.dtype.str, array.shape, number)
