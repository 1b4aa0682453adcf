"""Machine code for the operators and methods of eager tensors: where it comes from, and its place in the class. What an
operation means is said in Python, in tensor.py, methods.py and items.py, and stays there: machine code asks the same
functions for all that is unusual, and without it (no CPython, no LLVM) everything works as slowly as Python is.

The code is made when the first tape is opened; as a rule it is found on disk.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import operator
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jitgrad import eagerness
from jitgrad.compiler.eager_code.layout import NAMED_TYPES, THREAD_WORD, VIEWERS, Op, Slots
from jitgrad.compiler.machine import capi, native, tiers
from jitgrad.compiler.machine.cache import cache_key, kernel_cache
from jitgrad.config import config
from jitgrad.eager import keys, methods, recorder, refusals, tensor
from jitgrad.eager.calls import CallRule
from jitgrad.eager.items import ITEM, item, record_item
from jitgrad.eager.tensor import EagerTensor
from jitgrad.once import Once

definitions: dict[str, Callable[..., Any]] = {}
"""The Python functions in whose place machine code stands, by their names in the class."""

walks: list[Callable[..., None]] = []
"""The walk back over a tape (eager_code/walk.py), once there is machine code for it."""

_counter = array("q", [0])  # the last number that machine code has given to a tensor

_keeps: list[Any] = []  # what machine code knows by its address


@Once
def place() -> None:
    """Put machine code in the place of operators and methods, once in a process, where there is a way to have it. Where
    code is not on disk, LLVM is imported, which takes 40 ms, and compiles it in the background; it takes over a moment
    later, in the midst of whatever runs.
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
        from jitgrad.compiler.eager_code.operation import eager_ir

        return eager_ir(slots, [(symbols[name], kind) for name, kind in kinds.items()])

    def enter(code: native.NativeCode) -> None:
        walks.append(capi.builtin("walk", code[_WALK], "The walk back over a tape."))
        for name, kind in kinds.items():
            definitions[name] = vars(EagerTensor)[name]
            setattr(EagerTensor, name, _placed(name, kind, code[symbols[name]]))

    def enter_compiled(object_code: bytes) -> tuple[int, int]:
        code = native.load_object(object_code, [_WALK, *symbols.values()])
        cache.put(key, code)
        enter(code)
        return 0, 0

    code = cache.get(key, [_WALK, *symbols.values()])
    if code is not None:
        enter(code)
    elif config.quick_start:
        importlib.import_module("jitgrad.compiler.machine.codegen")  # here: beside a busy thread it takes seconds
        tiers.improver.add([tiers.Task(partial(str, text()), enter_compiled)])
    else:
        enter_compiled(native.compile_to_object(text()))


def _placed(name: str, kind: str, address: int) -> Any:
    """What stands in the class for a function of machine code."""
    if kind == "item":
        return capi.slot_method(EagerTensor, name, address)
    if kind == "transposed":
        return capi.attribute(EagerTensor, name, address)
    return capi.method(EagerTensor, name, address, kind)


_WALK = "jitgrad_eager_walk"
Words = dict[Op, int]


def _operations() -> dict[str, tuple[str, Words]]:
    """By the name in the class: the kind of operation, and its record."""
    found: dict[str, tuple[str, Words]] = {}
    for name, ufunc in (methods.OPERATORS | methods.COMPARISONS | methods.EQUALITIES).items():
        call = getattr(operator, name) if name in methods.EQUALITIES else ufunc  # text is equal to no number
        found[f"__{name}__"] = ("binary", _words(f"__{name}__", call, ufunc))
    for name, ufunc in methods.OPERATORS.items():
        found[f"__r{name}__"] = ("reflected", _words(f"__r{name}__", ufunc, ufunc))
    for name, ufunc in methods.UNARY.items():
        found[f"__{name}__"] = ("unary", _words(f"__{name}__", ufunc, ufunc))
    for name in sorted(methods.METHODS - {"nonzero"}):  # which gives a tuple
        fn = methods.methods[name]
        kind = name if name in VIEWERS else "method"
        found[name] = (kind, _words(name, getattr(np.ndarray, name), fn) | {Op.BOUND: id(fn.bound)})
    found["T"] = ("transposed", _words("T", np.ndarray.transpose, methods.attributes["T"]))
    found["__pow__"] = ("binary", _words("__pow__", operator.pow, methods.power_of))
    found["__getitem__"] = ("item", {Op.PYTHON: id(item), Op.CALL: id(record_item), Op.FN: id(ITEM)})
    for kind, known in (("ufunc", tensor.ufunc_tables), ("function", tensor.functions)):
        python = vars(EagerTensor)[f"__array_{kind}__"]
        _keeps.append(python)
        found[f"__array_{kind}__"] = (kind, {Op.PYTHON: id(python), Op.TABLE: id(known)})
    return found


def _words(name: str, call: Any, fn: Any) -> Words:
    python, table = vars(EagerTensor)[name], recorder.tables[fn]
    python = python.fget if isinstance(python, property) else python
    _keeps.extend((python, call, fn, table))
    return {Op.PYTHON: id(python), Op.CALL: id(call), Op.FN: id(fn), Op.TABLE: id(table)}


def _slots() -> Slots:
    """Where a tensor keeps its plain array, number and key, and a rule its walk: looked up in one of each."""
    probe, marks, walk = tensor.wrap(np.zeros(0)), (object(), object()), (b"", ())
    probe.number, probe.key = marks  # type: ignore[assignment]
    in_tensor = _words_of(probe, np.ndarray.__basicsize__)
    in_rule = _words_of(CallRule(None, (), (), (), walk=walk), object.__basicsize__)
    return Slots(in_tensor[id(probe._plain)], in_tensor[id(marks[0])], in_tensor[id(marks[1])], in_rule[id(walk)])


def _words_of(x: Any, first: int) -> dict[int, int]:
    """The words of an object's memory, from so many bytes on, and where they are."""
    size = ctypes.sizeof(ctypes.c_size_t)
    words = (ctypes.c_size_t * ((type(x).__basicsize__ - first) // size)).from_address(id(x) + first)
    return {word: first + k * size for k, word in enumerate(words)}


def _register(memory: Any) -> None:
    """Make known what the code refers to by name."""
    capi.register_symbols()
    capi.register_arrays()
    native.add_symbol("jitgrad_eager_ops", memory.ctypes.data)
    native.add_symbol("jitgrad_eager_counter", _counter.buffer_info()[0])
    native.add_symbol("jitgrad_eager_last", eagerness.last_heard.buffer_info()[0])
    native.add_symbol("jitgrad_eager_told", eagerness.told.buffer_info()[0])
    native.add_symbol("jitgrad_eager_keys", keys.seen.buffer_info()[0])
    objects = {
        "eager_enter": _enter, "eager_show": eagerness.show, "eager_refuse": refusals.refuse, "eager_word": THREAD_WORD,
        "eager_record_one": recorder.record_one, "eager_record_pair": recorder.record_pair,
        "eager_true": keys.TRUE, "eager_false": keys.FALSE, "type_tensor": EagerTensor, "type_call_rule": CallRule,
        "type_float64": np.float64, "type_float32": np.float32, "float64": np.dtype(np.float64),
        "false": False, "one": 1, "two": 2, "call_name": "__call__",
    } | {f"type_{name}": kind for name, kind in NAMED_TYPES.items()}  # fmt: skip
    _keeps.append(objects)
    for name, found in objects.items():
        native.add_symbol(f"jitgrad_{name}", id(found))


def _enter() -> None:
    """Let machine code know where it finds what listens in this thread."""
    capi.keep_in_thread(THREAD_WORD, eagerness.local.shown)
    eagerness.show()
