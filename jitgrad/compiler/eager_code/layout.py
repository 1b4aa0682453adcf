"""Words by which Python tells machine code of eager operations: where a tensor keeps what, what an operation is, what
an entry of a tape; no code.
"""

from __future__ import annotations

from enum import IntEnum
from types import EllipsisType, NoneType

from jitgrad.records import NamedTuple


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

VIEWERS = {"reshape": "reshaped", "ravel": "raveled", "transpose": "transposed", "swapaxes": "swapped"}
"""Methods that give views, and what makes these (view.py)."""

THREAD_WORD = "jitgrad eager"
"""Under this key a thread keeps ``eagerness.local.shown``."""

RULE, INPUTS_OF, OUTPUTS_OF, ENTRY_HEAD = range(4)
"""Where in an entry of a tape are the rule, how many inputs it has, and how many outputs; the numbers begin after that:
those of the inputs, then those of the outputs, then what is kept.
"""

X, Y, OUT = 1, 2, 4
"""Bits that say what the rule of one or two operands reads: the operands, the result."""

MOST_RULES = 4096
"""As many rules of one kind are known at a time; then all are forgotten."""

PLAIN_TYPES: tuple[type, ...] = (int, bool, str, NoneType, type)
"""Of these are the arguments that keys of methods are made from (``keys.options_key``), and tuples of integers."""

BASIC_TYPES: tuple[type, ...] = (int, slice, NoneType, EllipsisType)
"""Of these are the indices that take no element twice, and tuples of them."""

NAMED_TYPES = {kind.__name__: kind for kind in (*PLAIN_TYPES, *BASIC_TYPES, float, tuple, dict)}
"""Those of Python that the code knows, by the symbols `jitgrad_type_...`."""

KEYS, KEY_RANK = 512, 4
KEY_WORDS = KEY_RANK + 3
"""So many keys of tensors, each as the address of the dtype, the number of axes, their extents (0 for those that there
are not), and the address of the key.
"""
KEY_FACTORS = (13, 31, 37, 41, 43)
DTYPE_SHIFT = 5


def key_place(dtype: int, rank: int, extents: tuple[int, ...]) -> int:
    """Where a key is to be looked for."""
    weighted = sum(f * n for f, n in zip(KEY_FACTORS, (rank, *extents), strict=True))
    return ((dtype >> DTYPE_SHIFT) + weighted) % KEYS


INPUTS, KEPT, STEPS, CALLS = range(4)
"""In the words of a rule for the walk back: how many inputs the call has, how many values are kept, how many steps
there are; then the steps, each the address of a function, how many operands it has and their places in the table; then
for each input the place of its cotangent, -1 where there is none.
"""
MOST_VALUES, MOST_OPERANDS = 32, 8
BYTES_DATA = bytes.__basicsize__ - 1
