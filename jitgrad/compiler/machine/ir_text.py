"""Lines of LLVM IR text that read and write memory at fixed offsets, and where CPython and NumPy keep things; no
functions.

The layouts are those of public headers: the first fields of PyObject, PyTupleObject and PyListObject, those of
PyArrayObject, the same in NumPy 1.x and 2.x, and the first of PyArray_Descr up to type_num, likewise the same.
"""

from __future__ import annotations

from jitgrad.compiler.machine.capi import OBJECT_TYPE_OFFSET

TYPE = OBJECT_TYPE_OFFSET
COUNT = OBJECT_TYPE_OFFSET - 8
"""Where an object keeps how many references there are to it."""
HEAD = object.__basicsize__
"""Where a float, a complex number and NumPy's scalars keep their value, and a tuple or list its length."""

TUPLE_ITEMS = tuple.__basicsize__
LIST_ITEMS = HEAD + 8

# PyArrayObject: data, nd (int), dimensions, strides, base, descr, flags (int)
DATA, RANK, DIMENSIONS, STRIDES = HEAD, HEAD + 8, HEAD + 16, HEAD + 24
BASE, DESCR, FLAGS = HEAD + 32, HEAD + 40, HEAD + 48
# PyArray_Descr: typeobj, kind, type, byteorder (chars), one more char, type_num (int)
BYTE_ORDER, TYPE_NUMBER = HEAD + 10, HEAD + 12


def load(name: str, base: str, offset: int, kind: str = "ptr") -> str:
    """Lines that read `%name` from so many bytes behind `base`."""
    return f"  %{name}_at = getelementptr i8, ptr {base}, i64 {offset}\n  %{name} = load {kind}, ptr %{name}_at"


def load_word(name: str, base: str, number: int, kind: str = "i64") -> str:
    """Lines that read `%name` from a word of eight bytes."""
    return load(name, base, 8 * number, kind)


def load_item(name: str, base: str, index: str, kind: str = "ptr") -> str:
    """Lines that read `%name` from an array of words at a variable index."""
    return f"  %{name}_at = getelementptr i64, ptr {base}, i64 {index}\n  %{name} = load {kind}, ptr %{name}_at"
