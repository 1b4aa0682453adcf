"""Constants as the compiler sees them: splats hold one number, whatever their shape; no folding here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.opdef import Fill
from jitgrad.program import Instruction
from jitgrad.spec import DType

Array = np.ndarray[Any, np.dtype[Any]]


def constant_value(ins: Instruction) -> Array | None:
    """The array of a constant; None for any other instruction."""
    kind = ins.op.kind
    if ins.inputs or not isinstance(kind, Fill) or kind.scalar != "constant":
        return None
    value = ins.params.get("value")
    return value if isinstance(value, np.ndarray) else None


def is_splat(array: Array) -> bool:
    """Whether an array holds one number everywhere, as far as its strides tell (an empty one holds none)."""
    return array.size == 1 or (
        array.size > 0
        and all(not stride or n == 1 for stride, n in zip(array.strides, array.shape, strict=True))
    )


def splat_number(array: Array) -> Array:
    """The number that a splat holds, as an array of rank 0."""
    return np.asarray(array[(0,) * array.ndim])


def splat(number: Any, shape: tuple[int, ...], dtype: DType) -> Array:
    """A read-only array of one number that takes no memory."""
    array = np.broadcast_to(np.asarray(number, dtype=dtype), shape)
    array.flags.writeable = False
    return array


@functools.lru_cache
def word_in(dtype: np.dtype[Any]) -> Callable[[Any], int]:
    """The function that gives a number as a word of a block."""

    def word(value: Any) -> int:
        raw = np.asarray(value, dtype).tobytes()
        return int.from_bytes(raw.ljust(8, b"\0"), "little", signed=True)

    return word
