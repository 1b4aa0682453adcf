"""Machine code for the operators and methods of eager tensors: where it comes from, and its place in the class. What an
operation means is said in Python, in tensor.py, methods.py and items.py, and stays there: machine code asks the same
functions for all that is unusual, and without it (no CPython, no LLVM) everything works as slowly as Python is.

The code is made when the first tape is opened; as a rule it is found on disk.
"""

from __future__ import annotations

import ctypes
import importlib.util
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from jitgrad import eagerness
from jitgrad.compiler import capi, native, tiers
from jitgrad.compiler.cache import cache_key, kernel_cache
from jitgrad.compiler.eager_layout import COUNT, FIRST_TAPE, SHOWN, THREAD, Op, Slots
from jitgrad.config import config
from jitgrad.eager import keys, methods, recorder, tensor
from jitgrad.eager.items import ITEM, item, record_item
from jitgrad.eager.tensor import EagerTensor
from jitgrad.eagerness import here, local

definitions: dict[str, Callable[..., Any]] = {}
"""The Python functions in whose place machine code stands, by their names in the class."""

_keeps: list[Any] = []  # what machine code knows by its address


@lru_cache(maxsize=1)
def place() -> None:
    """Put machine code in the place of operators and methods, once in a process, where there is a way to have it. Code
    that is not on disk is compiled in the background, and takes over some 0.1 s later, in the midst of whatever runs.
    """
    if not (capi.is_cpython() and capi.has_lock() and importlib.util.find_spec("llvmlite")):
        return
    operations = _operations()
    slots, symbols = _slots(), {name: f"jitgrad_eager_{name.strip('_')}" for name in operations}
    memory = np.array([[record.get(word, 0) for word in Op] for _, record in operations.values()], np.int64)
    _keeps.append(memory)
    _register(memory)
    cache, key = kernel_cache(), cache_key(f"eager {slots}")
    kinds = {name: kind for name, (kind, _) in operations.items()}

    def text() -> str:
        from jitgrad.compiler.eager_ir import eager_ir

        return eager_ir(slots, [(symbols[name], kind) for name, kind in kinds.items()])

    def enter(code: native.NativeCode) -> None:
        for name, kind in kinds.items():
            definitions[name] = getattr(EagerTensor, name)
            setattr(EagerTensor, name, capi.method(EagerTensor, name, code[symbols[name]], kind))

    def enter_compiled(object_code: bytes) -> tuple[int, int]:
        code = native.load_object(object_code, symbols.values())
        cache.put(key, code)
        enter(code)
        return 0, 0

    code = cache.get(key, list(symbols.values()))
    if code is not None:
        enter(code)
    elif config.quick_start:
        tiers.improver.add([tiers.Task(text(), enter_compiled)])
    else:
        enter_compiled(native.compile_to_object(text()))


Words = dict[Op, int]


def _operations() -> dict[str, tuple[str, Words]]:
    """By the name in the class: the kind of operation, and its record."""
    found: dict[str, tuple[str, Words]] = {}
    for name, ufunc in (methods.OPERATORS | methods.COMPARISONS).items():
        found[f"__{name}__"] = ("binary", _words(f"__{name}__", ufunc, ufunc))
    for name, ufunc in methods.OPERATORS.items():
        found[f"__r{name}__"] = ("reflected", _words(f"__r{name}__", ufunc, ufunc))
    for name, ufunc in methods.UNARY.items():
        found[f"__{name}__"] = ("unary", _words(f"__{name}__", ufunc, ufunc))
    for name in sorted(methods.METHODS - {"nonzero"}):  # which gives a tuple
        fn = methods.methods[name]
        found[name] = ("method", _words(name, getattr(np.ndarray, name), fn) | {Op.BOUND: id(fn.bound)})
    found["__pow__"] = ("binary", _words("__pow__", operator.pow, methods.power_of))
    found["__getitem__"] = ("item", {Op.PYTHON: id(item), Op.CALL: id(record_item), Op.FN: id(ITEM)})
    python = EagerTensor.__array_ufunc__
    _keeps.append(python)
    found["__array_ufunc__"] = ("ufunc", {Op.PYTHON: id(python), Op.TABLE: id(tensor.ufunc_tables)})
    return found


def _words(name: str, call: Any, fn: Any) -> Words:
    python, table = getattr(EagerTensor, name), recorder.tables[fn]
    _keeps.extend((python, call, fn, table))
    return {Op.PYTHON: id(python), Op.CALL: id(call), Op.FN: id(fn), Op.TABLE: id(table)}


def _slots() -> Slots:
    """Where a tensor keeps its plain array, number and key: looked up in one."""
    marks = tensor.wrap(np.zeros(0)), object()
    probe = tensor.wrap(np.zeros(0))
    probe.number, probe.key = marks  # type: ignore[assignment]
    first, size = np.ndarray.__basicsize__, EagerTensor.__basicsize__
    words = (ctypes.c_size_t * ((size - first) // ctypes.sizeof(ctypes.c_size_t))).from_address(id(probe) + first)
    at = {word: first + k * ctypes.sizeof(ctypes.c_size_t) for k, word in enumerate(words)}
    return Slots(at[id(probe._plain)], at[id(probe.number)], at[id(probe.key)])


def _register(memory: Any) -> None:
    """Make known what the code refers to by name."""
    capi.register_symbols()
    capi.register_arrays()
    native.add_symbol("jitgrad_eager_here", here.buffer_info()[0])
    native.add_symbol("jitgrad_eager_ops", memory.ctypes.data)
    native.add_symbol("jitgrad_eager_keys", keys.seen.buffer_info()[0])
    objects = {
        "eager_show": show, "eager_counter": tensor.counter, "eager_record_one": recorder.record_one,
        "eager_record_pair": recorder.record_pair, "type_tensor": EagerTensor, "type_float": float, "type_int": int,
        "type_bool": bool, "type_str": str, "type_type": type, "type_tuple": tuple, "type_slice": slice, "none": None,
        "ellipsis": ..., "one": 1, "two": 2, "call_name": "__call__",
    }  # fmt: skip
    _keeps.append(objects)
    for name, found in objects.items():
        native.add_symbol(f"jitgrad_{name}", id(found))


def show() -> None:
    """Fill in what listens in this thread, for machine code."""
    tapes = local.tapes
    here[THREAD] = capi.thread_number()
    here[SHOWN] = local.collector is None and len(tapes) <= eagerness.MOST_TAPES
    here[COUNT] = len(tapes)
    for k, tape in enumerate(tapes[: eagerness.MOST_TAPES]):
        here[FIRST_TAPE + 2 * k] = id(tape.entries)
        here[FIRST_TAPE + 2 * k + 1] = id(tape.watched)
