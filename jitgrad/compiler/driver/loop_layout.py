"""Where the words of a control op's description lie, for what runs it (loops.py) and for freezing/bind_loops.py.

A region's record has seven words: number and address of its steps, those of the copies after them and of the writes
after these, and what is added to a status that it reports. Lists are numbers of entries and addresses: fills are (slot
of the table around, offset), copies (slot to, slot from, bytes), writes (slots of an array, of a place and of a part of
it, number of stretches, bytes from one to the next, bytes of each), swaps (slot, slot), moves (slot, bytes), saved
(slot, offset). In ``ran`` a loop notes how many steps it took when it ran last. ``rows`` and ``table_bytes`` are those
of a loop whose rows are independent, which has a table for each chunk.
"""

from __future__ import annotations

REGION = ("steps", "step_list", "copies", "copy_list", "writes", "write_list", "offset")
LISTS = ("fills", "starts", "ends", "swaps", "moves", "saved", "back_swaps")
NUMBERS = (
    "room", "status", "count", "flag", "limit", "code", "record", "stack", "stack_bytes", "index", "index_kind", "ran",
    "rows", "table_bytes",
)  # fmt: skip
REGIONS = ("regions", "first", "second", "third", "conditional")
BLOCK = (*NUMBERS, *REGIONS, *[word for name in LISTS for word in (name, f"{name}_list")])
"""All words: numbers, then the number of regions, the addresses of the first three and whether the first of them is a
condition, then the lists."""

KINDS = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
"""The dtypes of a branch's number, by the word `index_kind`."""

MEMORY_STATUS = -1
"""The status of a run that could get no more memory."""

INTERRUPT_STATUS = -2
"""The status of a run that a signal ended: what its handler raised is set in the thread, and no one asks for more."""
