"""Words by which Python tells machine code of eager operations: where a tensor keeps what, what an operation is; no
code.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

THREAD, SHOWN, COUNT, FIRST_TAPE = range(4)
"""In ``eagerness.here``: the thread, whether its operations may be taken, how many tapes, and the first of them: pairs
of the addresses of entries and watched.
"""


class Slots(NamedTuple):
    """Bytes from the start of a tensor to what its slots refer to, and from that of a rule to its walk."""

    plain: int
    number: int
    key: int
    walk: int


class Op(IntEnum):
    """What a record of an operation holds, all of it addresses of objects: the function that defines it; what computes
    it on arrays; what rules are made from; the rules by keys of the operands; for methods, rules and functions by their
    arguments. An item has the function that records it in place of what computes, and its rule in place of FN.
    """

    PYTHON, CALL, FN, TABLE, BOUND = range(5)


OP_WORDS = len(Op)

KEYS, KEY_RANK = 512, 4
KEY_WORDS = KEY_RANK + 3
"""So many keys of tensors, each as the address of the dtype, the number of axes, their extents (0 for those that there
are not), and the address of the key.
"""
KEY_FACTORS = (13, 31, 37, 41, 43)


def key_place(dtype: int, rank: int, extents: tuple[int, ...]) -> int:
    """Where a key is to be looked for."""
    return ((dtype >> 5) + sum(f * n for f, n in zip(KEY_FACTORS, (rank, *extents), strict=True))) % KEYS


INPUTS, KEPT, STEPS, CALLS = range(4)
"""In the words of a rule for the walk back: how many inputs the call has, how many values are kept, how many steps
there are; then the steps, each the address of a function, how many operands it has and their places in the table; then
for each input the place of its cotangent, -1 where there is none.
"""
MOST_VALUES, MOST_OPERANDS = 32, 8
BYTES_DATA = bytes.__basicsize__ - 1
