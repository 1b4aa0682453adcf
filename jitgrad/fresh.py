"""Results as arrays of their own: writable, C-contiguous, and sharing memory with nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.interpreter import interpret
from jitgrad.program import Program


def interpret_fresh(program: Program, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of a program, interpreted."""
    return separate(interpret(program, arrays), arrays)


def run_listed(run: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """The same by one function, whose 0-d results may stay NumPy's scalars."""
    values = run(arrays)
    for value in values:
        if not isinstance(value, np.generic):
            taken = set(map(id, arrays))
            return [value if isinstance(value, np.generic) else _fresh(value, taken) for value in values]
    return values


def separate(values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Values as such arrays, none of them one of ``inputs``."""
    taken = set(map(id, inputs))
    return [_fresh(value, taken) for value in values]


def _fresh(value: Any, taken: set[int]) -> Any:
    if type(value) is not np.ndarray:
        value = np.asarray(value)
    array = value
    flags = array.flags
    if id(array) in taken or not (flags.owndata and flags.c_contiguous and flags.writeable):
        array = np.array(array, order="C")
    taken.add(id(array))
    return array
