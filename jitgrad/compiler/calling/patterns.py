"""What the arguments of a call have to be for machine code to take them, as data and as words of memory; the code that
looks at them is in match.py.

    Pattern = Array(slot, dtype, shape)         numpy.ndarray itself; for shape () also a NumPy scalar
            | Number(slot, kind, cell)          a Python float, complex, int or bool, of exactly that type
            | Same(value) | Equal(value)        that object; or one of its type that compares equal
            | Items(type, Pattern*)             a list, tuple or named tuple, of exactly that type and length
            | Members(key*, Pattern*)           a dict with just these keys, in this order

A leaf leaves the address of its numbers in its slot of the table, or, where objects are asked for, its own. Floats and
complex numbers are read where they lie; an int or a bool is written to a cell of the table first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jitgrad.records import NamedTuple

ARRAY, VALUE, INTEGER, BOOLEAN, SAME, EQUAL, BITS, SEQUENCE, LIST, DICT = range(10)
C_CONTIGUOUS, OWNS_DATA, ALIGNED, WRITEABLE = 0x1, 0x4, 0x100, 0x400


class Array(NamedTuple):
    """An array whose data pointer goes into `slot` of the table."""

    slot: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    writeable: bool = False


class Number(NamedTuple):
    """A Python number of type `kind`; `cell` is a word of the table for an int or a bool."""

    slot: int
    kind: type
    cell: int = 0


class Same(NamedTuple):
    """One object, by identity."""

    value: Any


class Equal(NamedTuple):
    """An int, str, bytes or float of the same type and value; floats by their bits."""

    value: Any


class Items(NamedTuple):
    """A list or a kind of tuple."""

    kind: type
    items: tuple[Pattern, ...]


class Members(NamedTuple):
    """A dict, whose keys are texts or integers."""

    keys: tuple[Any, ...]
    items: tuple[Pattern, ...]


Pattern = Array | Number | Same | Equal | Items | Members


class Words:
    """Words of memory under way, and the objects that they point at, which must outlive them."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.objects: list[Any] = []

    def add(self, *words: int) -> None:
        """Append words as they are."""
        self.words += words

    def point(self, value: Any) -> None:
        """Append the address of an object and keep it."""
        self.objects.append(value)
        self.words.append(id(value))


def pack_patterns(words: Words, patterns: Iterable[Pattern], as_objects: bool = False) -> None:
    """Append the nodes that `match` reads. ValueError for dtypes that machine code does not take."""
    for pattern in patterns:
        match pattern:
            case Array():
                _pack_array(words, pattern, as_objects)
            case Number():
                _pack_number(words, pattern, as_objects)
            case Same():
                _head(words, SAME, type(pattern.value))
                words.point(pattern.value)
            case Equal():
                _pack_equal(words, pattern.value)
            case Items():
                _head(words, LIST if pattern.kind is list else SEQUENCE, pattern.kind)
                words.add(len(pattern.items))
                pack_patterns(words, pattern.items, as_objects)
            case Members():
                _head(words, DICT, dict)
                words.add(len(pattern.keys))
                for key, item in zip(pattern.keys, pattern.items, strict=True):
                    words.point(key)
                    pack_patterns(words, (item,), as_objects)


def held(patterns: Iterable[Pattern]) -> int:
    """How many objects lie inside containers: nobody but the container may hold them, so the call must."""
    return sum(len(p.items) + held(p.items) for p in patterns if isinstance(p, Items | Members))


def leaves(patterns: Iterable[Pattern]) -> Iterator[Array | Number]:
    """The patterns that fill slots, in order."""
    for pattern in patterns:
        if isinstance(pattern, Array | Number):
            yield pattern
        elif isinstance(pattern, Items | Members):
            yield from leaves(pattern.items)


def plain_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype object that arrays of this type usually have. ValueError for one that machine code does not take."""
    found = _plain_dtypes.get(dtype.char) if dtype.isnative else None
    if found is None:
        raise ValueError(f"arrays of dtype {dtype!r} cannot be passed to machine code")
    return found


_plain_dtypes = {char: np.dtype(char) for char in np.typecodes["All"] if char not in "OSUVMm"}


def _head(words: Words, kind: int, cls: type) -> None:
    words.add(kind)
    words.point(cls)


def _pack_array(words: Words, pattern: Array, as_objects: bool) -> None:
    """Slot, objects or data, flags, the dtype object, its number, the scalar type if one will do, rank, shape."""
    slot, given, shape, writeable = pattern
    dtype = plain_dtype(given)
    scalar = dtype.type if not shape and not writeable else None
    words.objects += (np.ndarray, dtype, scalar)
    words.add(
        ARRAY, id(np.ndarray), slot, as_objects, C_CONTIGUOUS | ALIGNED | (WRITEABLE if writeable else 0), id(dtype),
        dtype.num, id(scalar), len(shape), *shape,
    )  # fmt: skip


def _pack_number(words: Words, pattern: Number, as_objects: bool) -> None:
    """Slot, objects or data, cell, the object that makes the cell 1."""
    kinds = {float: VALUE, complex: VALUE, int: INTEGER, bool: BOOLEAN}
    _head(words, kinds[pattern.kind], pattern.kind)
    words.add(pattern.slot, as_objects, pattern.cell)
    words.point(True)


def _pack_equal(words: Words, value: Any) -> None:
    if type(value) is float:
        _head(words, BITS, float)
        words.add(int(np.float64(value).view(np.int64)))
    else:
        _head(words, EQUAL, type(value))
        words.point(value)
