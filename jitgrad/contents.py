"""Contents of a constancy: all that decides what a function does when it is traced, as plain tuples that are equal in
two processes where the functions do the same. Whether a function is constant is found out elsewhere (constancy.py).

Of code counts what runs, not where it stands. Namespaces, cells and functions are told by the number at which they were
first met, so that what two functions share is told apart from what they do not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from jitgrad.compiled import Compiled, Transformed
from jitgrad.compiler.freezing.stored import encode
from jitgrad.constancy import ABSENT, Constancy, is_ours

_NAMED = (BuiltinFunctionType, type, type(np.sum))


def contents_of(constancy: Constancy, values: Sequence[Any]) -> Any:
    """The values, which are constant, with all that they reach; UnkeptError where a part cannot be told."""
    writer = _Writer(constancy)
    return (
        tuple(map(writer.value, values)),
        tuple([(writer.space(names), name, writer.value(value)) for names, name, value in constancy.entries]),
        tuple([writer.value(value) for _, value in constancy.cells]),
        tuple([writer.function(fn) for fn, *_ in constancy.functions]),
        tuple([
            (writer.value(func), writer.value(args), writer.space(part.keywords))
            for part, func, args, _ in constancy.partials
        ]),
    )  # fmt: skip


class _Writer:
    def __init__(self, constancy: Constancy) -> None:
        self._functions = {id(fn): k for k, (fn, *_) in enumerate(constancy.functions)}
        self._cells = {id(cell): k for k, (cell, _) in enumerate(constancy.cells)}
        self._partials = {id(part): k for k, (part, *_) in enumerate(constancy.partials)}
        self._spaces: dict[int, int] = {}

    def space(self, names: Any) -> int:
        """The number of a namespace."""
        return self._spaces.setdefault(id(names), len(self._spaces))

    def value(self, value: Any) -> Any:
        """A value that is constant."""
        kind = type(value)
        if kind is FunctionType:
            return "function", self._functions[id(value)]
        if kind is partial:
            return "partial", self._partials[id(value)]
        if kind is tuple:
            return ("tuple", *map(self.value, value))
        if kind is Compiled or kind is Transformed:
            options = repr(value.options) if isinstance(value, Compiled) else ""
            return kind.__name__, options, self.space(vars(value))
        if kind is ModuleType:
            return "module", self.space(vars(value))
        if value is ABSENT or value is Ellipsis:
            return "nothing" if value is ABSENT else "...", ()
        if isinstance(value, np.ufunc):
            return "ufunc", value.__name__, _version_of(value)
        if isinstance(value, _NAMED):
            return "named", value.__module__, value.__qualname__
        return encode(value)

    def function(self, fn: FunctionType) -> Any:
        """A function: its code, or its name where it is this package's, which the stamp tells."""
        cells = tuple([self._cells.get(id(cell), -1) for cell in fn.__closure__ or ()])
        if is_ours(fn):
            return "ours", fn.__module__, fn.__qualname__, fn.__code__.co_firstlineno, cells
        named = self.space(fn.__kwdefaults__) if fn.__kwdefaults__ else -1
        code = _code_text(fn.__code__)
        return "code", code, self.value(fn.__defaults__ or ()), named, self.space(fn.__globals__), cells


def _version_of(ufunc: np.ufunc) -> str:
    """That of SciPy for a function that is none of NumPy's, whose own is part of the stamp."""
    return "" if getattr(np, ufunc.__name__, None) is ufunc else str(sys.modules["scipy"].__version__)


def _code_text(code: CodeType) -> Any:
    """What code does, without where it stands."""
    return (
        code.co_code, tuple(map(_constant_text, code.co_consts)), code.co_names, code.co_varnames, code.co_freevars,
        code.co_cellvars, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
        code.co_exceptiontable,
    )  # fmt: skip


def _constant_text(value: Any) -> Any:
    kind = type(value)
    if kind is CodeType:
        return "code", _code_text(value)
    if kind is tuple:
        return ("tuple", *map(_constant_text, value))
    if kind is frozenset:
        return ("frozenset", *sorted([_constant_text(item) for item in value], key=repr))
    return ("...", ()) if value is Ellipsis else encode(value)
