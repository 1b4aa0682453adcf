"""Python builtins made from machine code: METH_FASTCALL functions around jitted addresses; not the code in
them.

A call through ctypes takes more than a microsecond. A builtin whose C function is jitted and uses the C API
of the running interpreter takes about 40 ns. Only functions of the stable ABI are called, by names registered
here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jitgrad.compiler import native

_METH_FASTCALL = 0x80

_SYMBOLS = (
    "PyLong_AsLongLong",
    "PyBool_FromLong",
    "PyErr_Occurred",
    "PyErr_SetString",
    "PyErr_Clear",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyObject_CallFunctionObjArgs",
    "Py_DecRef",
)

_VARIABLES = ("PyExc_TypeError",)

OBJECT_TYPE_OFFSET = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
"""Where an object's type pointer lies: the last word of the object header, in every build of CPython."""


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("ml_name", ctypes.c_char_p),
        ("ml_meth", ctypes.c_void_p),
        ("ml_flags", ctypes.c_int),
        ("ml_doc", ctypes.c_char_p),
    ]


_kept: list[_MethodDef] = []  # a builtin points at its definition for ever


def is_cpython() -> bool:
    """Whether the running interpreter has the C API that the jitted builtins use."""
    return sys.implementation.name == "cpython"


@lru_cache(maxsize=1)
def register_symbols() -> None:
    """Make the C API functions that jitted code calls known to the engine."""
    for name in _SYMBOLS:
        native.add_symbol(name, address_of(getattr(ctypes.pythonapi, name)))
    for name in _VARIABLES:
        native.add_symbol(name, ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, name)))


def address_of(function: Any) -> int:
    """The address of a ctypes function."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def builtin(name: str, address: int, doc: str) -> Callable[..., Any]:
    """A builtin function over `ptr f(ptr self, ptr args, i64 nargs)` at `address`; it takes positional
    arguments.
    """
    definition = _MethodDef(name.encode(), address, _METH_FASTCALL, doc.encode())
    _kept.append(definition)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    new.restype = ctypes.py_object
    made: Callable[..., Any] = new(ctypes.addressof(definition), None, None)
    return made
