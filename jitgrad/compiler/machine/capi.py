"""Python builtins made from machine code: METH_FASTCALL functions around jitted addresses; not the code in
them.

A call through ctypes takes more than a microsecond. A builtin whose C function is jitted and uses the C API
of the running interpreter takes about 40 ns. Only functions of the stable ABI are called, by names registered
here.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from jitgrad.compiler.machine import native

_METH_KEYWORDS, _METH_NOARGS, _METH_O, _METH_FASTCALL = 0x02, 0x04, 0x08, 0x80

_SYMBOLS = (
    "PyLong_AsLongLong",
    "PyLong_FromLongLong",
    "PyFloat_FromDouble",
    "PySlice_Unpack",
    "PySlice_AdjustIndices",
    "PyType_GenericAlloc",
    "PyBool_FromLong",
    "PyTuple_New",
    "PyList_New",
    "PyDict_Copy",
    "PyDict_Size",
    "PyDict_Next",
    "PyDict_GetItemWithError",
    "PyDict_SetItem",
    "PyObject_RichCompareBool",
    "PyObject_Vectorcall",
    "PyObject_GetItem",
    "PyList_Append",
    "PyList_GetItem",
    "PyList_Size",
    "PyNumber_Add",
    "PyDict_DelItem",
    "PySet_Contains",
    "PySet_Add",
    "PyThreadState_Get",
    "PyThreadState_GetID",
    "PyThreadState_GetDict",
    "PyErr_Occurred",
    "PyErr_SetString",
    "PyErr_Clear",
    "PyErr_Fetch",
    "PyErr_NormalizeException",
    "PyErr_Restore",
    "PyErr_CheckSignals",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyErr_NoMemory",
    "PyMem_Malloc",
    "PyMem_Free",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyObject_CallFunctionObjArgs",
    "Py_IncRef",
    "Py_DecRef",
)

_VARIABLES = ("PyExc_TypeError",)

# Their places in NumPy's table of C functions.
_ARRAY_FUNCTIONS = {
    "jitgrad_array_scalar": 60,
    "jitgrad_array_from": 69,
    "jitgrad_array_new": 94,
    "jitgrad_array_set_base": 282,
}

OBJECT_TYPE_OFFSET = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
"""Where an object's type pointer lies: the last word of the object header, in every build of CPython."""


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("ml_name", ctypes.c_char_p),
        ("ml_meth", ctypes.c_void_p),
        ("ml_flags", ctypes.c_int),
        ("ml_doc", ctypes.c_char_p),
    ]


def is_cpython() -> bool:
    """Whether the running interpreter has the C API that the jitted builtins use."""
    return sys.implementation.name == "cpython"


@lru_cache(maxsize=1)
def register_symbols() -> None:
    """Make the C API functions that jitted code calls known to the engine. Each is looked for when code wants it: to
    look for all took 0.15 ms of a start, which wants a third.
    """
    for name in _SYMBOLS:
        native.add_symbol(name, partial(_address_in_python, name))
    for name in _VARIABLES:
        native.add_symbol(name, ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, name)))


def _address_in_python(name: str) -> int:
    return address_of(getattr(ctypes.pythonapi, name))


def address_of(function: Any) -> int:
    """The address of a ctypes function."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def has_lock() -> bool:
    """Whether the interpreter runs one thread at a time."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


@lru_cache(maxsize=1)
def register_arrays() -> None:
    """Make NumPy's array type, and its functions that make arrays and scalars, known to the engine, and None."""
    native.add_symbol("jitgrad_none", id(None))
    native.add_symbol("jitgrad_type_ndarray", id(np.ndarray))
    for name, number in _ARRAY_FUNCTIONS.items():
        native.add_symbol(name, _array_functions()[number])


def _array_functions() -> Any:
    """NumPy's table of C functions, whose order is a promise of its ABI."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    module = importlib.import_module("numpy._core._multiarray_umath")
    table = pointer(module._ARRAY_API, None)
    return ctypes.cast(table, ctypes.POINTER(ctypes.c_size_t))


def builtin(name: str, address: int, doc: str, bound: Any = None) -> Callable[..., Any]:
    """A builtin function over `ptr f(ptr self, ptr args, i64 nargs)` at `address`; it takes positional arguments.

    With a ``bound`` object, which is then `self`, it is `ptr f(ptr self, ptr args, i64 nargs, ptr names)`, and takes
    arguments by name too.
    """
    definition = _definition(name, address, _METH_FASTCALL | (_METH_KEYWORDS if bound is not None else 0), doc)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    new.restype = ctypes.py_object
    made: Callable[..., Any] = new(ctypes.addressof(definition), bound, None)
    return made


_OPERATOR_FLAGS = {"unary": _METH_NOARGS, "binary": _METH_O, "reflected": _METH_O}


def method(cls: type, name: str, address: int, kind: str) -> Any:
    """A method of a class over machine code: `ptr f(ptr self, ptr other)` for operators, `other` null for a "unary"
    one; else `ptr f(ptr self, ptr args, i64 nargs, ptr names)`.
    """
    new = ctypes.pythonapi.PyDescr_NewMethod
    new.argtypes, new.restype = [ctypes.py_object, ctypes.c_void_p], ctypes.py_object
    flags = _OPERATOR_FLAGS.get(kind, _METH_FASTCALL | _METH_KEYWORDS)
    definition = _definition(name, address, flags, _doc_of(cls, name))
    return new(cls, ctypes.addressof(definition))


class _GetSetDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("get", ctypes.c_void_p),
        ("set", ctypes.c_void_p),
        ("doc", ctypes.c_char_p),
        ("closure", ctypes.c_void_p),
    ]


def attribute(cls: type, name: str, address: int) -> Any:
    """An attribute of a class that is read by machine code: `ptr f(ptr self, ptr null)`."""
    new = ctypes.pythonapi.PyDescr_NewGetSet
    new.argtypes, new.restype = [ctypes.py_object, ctypes.c_void_p], ctypes.py_object
    return new(cls, ctypes.addressof(_attribute_definition(name, address, getattr(cls, name).__doc__ or name)))


def _attribute_definition(name: str, address: int, doc: str) -> _GetSetDef:
    """Kept, as that of a method."""
    made = _GetSetDef(name.encode(), address, None, doc.encode(), None)
    return _attribute_definitions.setdefault((name, address, doc), made)


_attribute_definitions: dict[tuple[str, int, str], _GetSetDef] = {}


class _SlotWrapper(ctypes.Structure):
    """What CPython calls a slot wrapper: a method that stands for a C function in a type."""

    _fields_ = [
        ("head", ctypes.c_char * object.__basicsize__),
        ("type", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("qualified_name", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("wrapped", ctypes.c_void_p),
    ]


def slot_method(cls: type, name: str, address: int) -> Any:
    """A special method of a class over machine code `ptr f(ptr self, ptr other)`, of the same kind as the base's, which
    is C's. Set in the class, it is what the interpreter calls for the operation itself, without a look-up by name, as
    for classes that are written in C; a method costs 30 ns more.
    """
    like = getattr(super(cls, cls), name)
    words = _SlotWrapper.from_address(id(like))
    if type(like).__name__ != "wrapper_descriptor" or words.type != id(like.__objclass__):
        raise AssertionError(f"{name} of {like.__objclass__.__name__} is laid out in another way")
    new = ctypes.pythonapi.PyDescr_NewWrapper
    new.argtypes, new.restype = [ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p], ctypes.py_object
    return new(cls, words.base, address)


def _doc_of(cls: type, name: str) -> str:
    """The text of a method as CPython keeps it, the signature in front: that of the method of the base, if it has one.
    """
    base = getattr(super(cls, cls), name, None)
    doc, signature = getattr(cls, name).__doc__ or name, getattr(base, "__text_signature__", None)
    return doc if signature is None else f"{name}{signature}\n--\n\n{doc}"


def keep_in_thread(key: str, value: Any) -> None:
    """Keep a value where C finds what belongs to the running thread; it ends with the thread."""
    memory = ctypes.pythonapi.PyThreadState_GetDict
    memory.restype = ctypes.c_void_p
    kept: dict[str, Any] = ctypes.cast(memory(), ctypes.py_object).value
    kept[key] = value


def _definition(name: str, address: int, flags: int, doc: str) -> _MethodDef:
    """A builtin points at its definition for ever, so it is kept, also where two threads make the first one at once."""
    made = _MethodDef(name.encode(), address, flags, doc.encode())
    return _definitions.setdefault((name, address, flags, doc), made)


_definitions: dict[tuple[str, int, int, str], _MethodDef] = {}
