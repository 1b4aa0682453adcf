"""Constancy: whether calling a function again on tensors can do anything else than it did; it calls nothing.

The code of a function is read, and all functions of the user's that it calls. It is constant where all that it reaches,
beside its arguments, is code that is read too, functions of this package and of NumPy, and values that cannot change:
each found through names of modules and cells of closures whose values are noted. It writes to none of these. Anything
else is taken to be inconstant.

A function that is constant does the same for tensors of the same shapes. One that is constant for all shapes asks its
arguments nothing that would tell an extent, either: no attribute but the methods that give tensors. What tells an
extent without a name (``len()``, a loop over a tensor) the graph notes.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import importlib
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from jitgrad.compiled import Compiled, Transformed
from jitgrad.dispatch import questions, table_name
from jitgrad.operators import functions
from jitgrad.records import NamedTuple

_METHODS = frozenset((
    "T", "all", "any", "append", "argmax", "argmin", "argsort", "astype", "clip", "conj", "conjugate", "copy",
    "cumprod", "cumsum", "diagonal", "dot", "dtype", "extend", "flatten", "get", "imag", "items", "keys", "mT", "max",
    "mean", "min", "ndim", "outer", "prod", "ravel", "real", "reduce", "repeat", "reshape", "round", "squeeze", "std",
    "sum", "swapaxes", "take", "trace", "transpose", "values", "var",
))  # fmt: skip
_BUILTINS: frozenset[Any] = frozenset((
    abs, all, any, bool, complex, dict, divmod, enumerate, filter, float, int, isinstance, iter, len, list, map, max,
    min, next, pow, range, reversed, round, slice, sorted, sum, tuple, zip,
))  # fmt: skip
_MAKERS: frozenset[Any] = frozenset((
    np.arange, np.array, np.asarray, np.diag_indices, np.eye, np.full, np.identity, np.indices, np.ones, np.tri,
    np.tril_indices, np.triu_indices, np.zeros,
))  # fmt: skip
_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_DISPATCHED = type(np.sum)
_REFUSED = ("LOAD_BUILD_CLASS", "GET_A")
"""Beginnings of instructions: classes, awaiting."""
_TELLING = ("FORMAT", "CONVERT_VALUE", "BUILD_STRING", "IMPORT", "PUSH_EXC")
"""Those that may tell an extent: text; what is done about an error, which may come with one; and imports."""
_CHANGING_ATTRIBUTES = frozenset((
    "cache_info", "cr_frame", "derive", "explain", "format", "format_map", "gi_frame", "interpret", "keywords",
    "metadata", "prepared", "seed", "source", "stages",
))  # fmt: skip
"""Attributes through which compiled functions, generators, partials, dtypes and graphs give what may change, and texts
any attribute that they name. Others rarely have attributes of these names.
"""
_OWN_ATTRIBUTES = frozenset(("fn", "options"))
"""Of compiled and transformed functions."""
_SETS = ("BUILD_SET", "SET_ADD", "SET_UPDATE")
_CALLING = ("PUSH_NULL", "PRECALL", "CALL")
_OF_THE_PROCESS = frozenset((
    "get_num_threads", "not_differentiable", "register_gradient", "set_num_threads", "set_random_seed",
))  # fmt: skip
"""This package's functions that read or change what belongs to the process."""
_WITH_ATTRIBUTES = (FunctionType, functools.partial, Compiled, Transformed, _DISPATCHED)
_TELLING_FUNCTIONS = frozenset((*questions, "einsum_path"))
_PACKAGE: Any = sys.modules["jitgrad"]
ABSENT = object()
"""What a name stands for that is not there."""


class InconstantError(Exception):
    """A function may do something else when it is called again."""


class Constancy(NamedTuple):
    """What must be as it was for a function to do what it did: entries of namespaces, cells, and parts of functions.
    And what was only looked at to find that: entries of modules that stand for this package's own or for nothing, and
    functions that are ``bare`` of the user's attributes.
    """

    entries: tuple[tuple[Mapping[str, Any], str, Any], ...]
    cells: tuple[tuple[CellType, Any], ...]
    functions: tuple[tuple[FunctionType, CodeType, Any, Any], ...]
    partials: tuple[tuple[functools.partial[Any], Any, Any, int], ...]
    looked_at: tuple[tuple[Mapping[str, Any], str, Any], ...]
    bare: tuple[Any, ...]

    def would_be_read_again(self) -> bool:
        """Whether reading the function once more would find the same."""
        for names, name, value in self.looked_at:
            if names.get(name, ABSENT) is not value:
                return False
        return self.holds() and not any(map(_has_attributes_of_the_user, self.bare))

    def holds(self) -> bool:
        """Whether all is as it was."""
        for names, name, value in self.entries:
            if names.get(name, ABSENT) is not value:
                return False
        for cell, value in self.cells:
            if _contents(cell) is not value:
                return False
        for fn, code, defaults, named in self.functions:
            if fn.__code__ is not code or fn.__defaults__ is not defaults or fn.__kwdefaults__ is not named:
                return False
        return all(
            part.func is func and part.args is args and len(part.keywords) == count
            for part, func, args, count in self.partials
        )


def constancy_of(*values: Any, for_all_shapes: bool = False) -> Constancy:
    """That of functions, and of other values that they are given; InconstantError where there is none."""
    reader = _Reader(for_all_shapes)
    for value in values:
        reader.read(value)
    reader.read_imports()
    return Constancy(
        tuple(reader.entries.values()),
        tuple(reader.cells.values()),
        tuple(reader.functions.values()),
        tuple(reader.partials.values()),
        tuple(reader.looked_at.values()),
        tuple(reader.bare.values()),
    )


class _Reader:
    """Reads values, and notes what they are reached through, each once."""

    def __init__(self, for_all_shapes: bool) -> None:
        self._for_all_shapes = for_all_shapes
        self._refused = _REFUSED + (_TELLING if for_all_shapes else ())
        self._imported: dict[int, ModuleType] = {}
        self._attributes: dict[str, None] = {}  # that any code names, in order
        self.entries: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self.cells: dict[int, tuple[CellType, Any]] = {}
        self.functions: dict[int, tuple[FunctionType, CodeType, Any, Any]] = {}
        self.partials: dict[int, tuple[functools.partial[Any], Any, Any, int]] = {}
        self.looked_at: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self.bare: dict[int, Any] = {}

    def read(self, value: Any) -> None:
        """InconstantError unless a value is constant."""
        kind = type(value)
        if kind in _WITH_ATTRIBUTES:
            if _has_attributes_of_the_user(value):
                raise InconstantError
            self.bare[id(value)] = value
        if kind is FunctionType:
            self._read_function(value)
        elif kind is tuple:
            for item in value:
                self.read(item)
        elif kind is functools.partial:
            self.partials[id(value)] = value, value.func, value.args, len(value.keywords)
            self.read((value.func, *value.args, *value.keywords.values()))
            for name in value.keywords:
                self._entry(value.keywords, name)
        elif kind is Compiled or kind is Transformed:
            name = "fn" if kind is Compiled else "_call"
            self.read(self._entry(vars(value), name))
        elif not _is_constant(value) or (self._for_all_shapes and _tells_extents(value)):
            raise InconstantError

    def _entry(self, names: Mapping[str, Any], name: str) -> Any:
        """What a name stands for, which is noted."""
        value = names.get(name, ABSENT)
        self.entries[id(names), name] = names, name, value
        return value

    def _look_at(self, names: Mapping[str, Any], name: str) -> None:
        """Note what a name stands for that is no part of what the function reads."""
        self.looked_at[id(names), name] = names, name, names.get(name, ABSENT)

    def _cell(self, cell: CellType) -> Any:
        value = _contents(cell)
        self.cells[id(cell)] = cell, value
        return value

    def _read_function(self, fn: FunctionType) -> None:
        if id(fn) in self.functions:
            return
        self.functions[id(fn)] = fn, fn.__code__, fn.__defaults__, fn.__kwdefaults__
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        if is_ours(fn):  # and does what it is told
            if fn.__name__ in _OF_THE_PROCESS:
                raise InconstantError
            for cell in cells.values():
                self.read(self._cell(cell))
            return
        if fn in _MAKERS:
            return
        if getattr(fn, "__builtins__", None) is not vars(builtins):
            raise InconstantError
        self.read(fn.__defaults__ or ())
        named = fn.__kwdefaults__ or {}
        for name in named:
            self.read(self._entry(named, name))
        self._read_code(fn.__code__, fn.__globals__, cells)

    def _read_code(self, code: CodeType, names: Mapping[str, Any], cells: Mapping[str, CellType]) -> None:
        """The code of a function, and that of the functions inside, for which its own variables are no cells."""
        listed = [ins for ins in dis.get_instructions(code) if ins.opname != "EXTENDED_ARG"]
        if not self._for_all_shapes and _asks_for_order_of_sets(listed):
            raise InconstantError
        instructions = _Following(listed)
        level, members = None, None  # what an import is given stands before it
        for ins in instructions:
            if ins.opname.startswith(self._refused):
                raise InconstantError
            if ins.opname == "IMPORT_NAME":
                if level != 0:
                    raise InconstantError
                self._read_import(ins.argval, members)
            elif ins.opcode in dis.hasname:
                self._read_name(ins, instructions, names)
            elif ins.opcode in dis.hasfree:
                self._read_variable(ins, cells)
            level, members = members, ins.argval
        inner = {name: cell for name, cell in cells.items() if name not in code.co_cellvars}
        for value in code.co_consts:
            if isinstance(value, CodeType):
                self._read_code(value, names, inner)

    def _read_variable(self, ins: dis.Instruction, cells: Mapping[str, CellType]) -> None:
        if ins.argval not in cells:
            return  # a variable of the call
        if ins.opname not in ("LOAD_DEREF", "LOAD_CLOSURE"):
            raise InconstantError
        self.read(self._cell(cells[ins.argval]))

    def _read_name(self, ins: dis.Instruction, following: _Following, names: Mapping[str, Any]) -> None:
        """A global name, with the attributes that follow while it is a module; or an attribute of something else. A
        module that is handed on, as an argument perhaps, is like one that is imported.
        """
        if ins.opname == "IMPORT_FROM" or (ins.opname in ("LOAD_ATTR", "LOAD_METHOD") and self._is_usual(ins.argval)):
            self._attributes[ins.argval] = None
            return
        if ins.opname != "LOAD_GLOBAL":
            raise InconstantError
        value = self._entry(names, ins.argval)
        if value is ABSENT:
            value = self._entry(vars(builtins), ins.argval)
        while type(value) is ModuleType:
            after = following.attribute()
            if after is None:
                self._imported[id(value)] = value
                return
            if not self._for_all_shapes and _is_ours_by_name(value, after.argval):
                there, value = vars(value), _loaded(value, after.argval)
                self._look_at(there, after.argval)
                if type(value) is not ModuleType:
                    return
            elif not self._for_all_shapes and _is_handed_on(value, after.argval):
                self._look_at(vars(value), after.argval)
                value = getattr(value, after.argval)
            else:
                value = self._entry(vars(value), after.argval)
        self.read(value)

    def _is_usual(self, attribute: str) -> bool:
        """Whether an attribute of that name is told by the value that has it."""
        if self._for_all_shapes:
            return attribute in _METHODS
        return not attribute.startswith("_") and attribute not in _CHANGING_ATTRIBUTES

    def _read_import(self, name: str, members: tuple[str, ...] | None) -> None:
        """A module that code imports, or members of it."""
        root = name.partition(".")[0]
        is_ours = root == "jitgrad"
        if is_ours:
            with contextlib.suppress(ImportError):  # which the function gets, too
                importlib.import_module(name)
        place = name if members else root
        module = sys.modules.get(place) if is_ours else self._entry(sys.modules, place)
        if type(module) is not ModuleType or name not in sys.modules:
            raise InconstantError
        if not members:
            self._imported[id(module)] = module
        elif is_ours or set(members) <= vars(module).keys():
            self._read_members(module, members)
        else:
            raise InconstantError

    def read_imports(self) -> None:
        """What attributes that any code names stand for in modules that some code imports, for it may hand them on.
        Reading that may add to both.
        """
        size = -1
        while size != (size := len(self._imported) + len(self._attributes)):
            for module in list(self._imported.values()):
                self._read_members(module, list(self._attributes))

    def _read_members(self, module: ModuleType, members: Iterable[str]) -> None:
        """What members of a module stand for, as far as it has them; modules among these count as imported."""
        there = vars(module)
        for name in members:
            is_handed_on = _is_handed_on(module, name)
            value = getattr(module, name) if is_handed_on else _loaded(module, name)
            if type(value) is ModuleType:
                self._imported[id(value)] = value
            if value is ABSENT or is_handed_on or _is_ours_by_name(module, name):
                self._look_at(there, name)
            if value is ABSENT or (id(there), name) in self.entries or _is_ours_by_name(module, name):
                continue
            if not is_handed_on:
                self._entry(there, name)
            if type(value) is not ModuleType:
                self.read(value)


class _Following:
    """The instructions of a code, of which those that name attributes may be taken with what they follow."""

    def __init__(self, instructions: Sequence[dis.Instruction]) -> None:
        self._instructions = instructions
        self._next = 0

    def __iter__(self) -> Iterator[dis.Instruction]:
        while self._next < len(self._instructions):
            self._next += 1
            yield self._instructions[self._next - 1]

    def attribute(self) -> dis.Instruction | None:
        """The next instruction, if it takes an attribute of what the one before gives."""
        found = self._instructions[self._next] if self._next < len(self._instructions) else None
        if found is None or found.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return None
        self._next += 1
        return found


def _has_attributes_of_the_user(value: Any) -> bool:
    """Whether a function has attributes that code may name, and anybody may change."""
    return any(not name.startswith("_") and name not in _OWN_ATTRIBUTES for name in vars(value))


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return ABSENT


def is_ours(fn: FunctionType) -> bool:
    """Whether a function is this package's own."""
    return _is_of_jitgrad(fn.__globals__.get("__name__") or "")


def _is_of_jitgrad(module: str) -> bool:
    return module.partition(".")[0] == "jitgrad"


def _is_ours_by_name(module: ModuleType, name: str) -> bool:
    """Whether a name is one that this package has for a part of its own, which it may load when it is asked for it."""
    if not _is_of_jitgrad(module.__name__) or name in _OF_THE_PROCESS:
        return False
    value = _loaded(module, name)
    if type(value) is FunctionType:
        return is_ours(value) and not value.__closure__ and not _has_attributes_of_the_user(value)
    if isinstance(value, type | ModuleType):
        return _is_of_jitgrad(value.__module__ if isinstance(value, type) else value.__name__)
    return value is ABSENT and module is _PACKAGE and name in _PACKAGE.__all__


def _loaded(module: ModuleType, name: str) -> Any:
    """What a module has under a name; modules of this package are loaded when they are asked for."""
    if module is _PACKAGE and name in _PACKAGE._MODULES:
        return getattr(module, name)
    return vars(module).get(name, ABSENT)


def _is_handed_on(module: ModuleType, name: str) -> bool:
    """Whether a module of this package has a name of NumPy's or SciPy's when it is asked for it."""
    is_ours = _is_of_jitgrad(module.__name__) and module is not _PACKAGE
    return is_ours and name not in vars(module) and hasattr(module, name)


def _asks_for_order_of_sets(instructions: Sequence[dis.Instruction]) -> bool:
    """Whether code may go through a set, in an order that is another in each process. A dict's keys and items are sets
    to operators, but in the dict's order to a loop.
    """
    for k, ins in enumerate(instructions):
        after = [other.opname for other in instructions[k + 1 : k + 5]]
        if ins.opname in _SETS or (type(ins.argval) is frozenset and after[:1] != ["CONTAINS_OP"]):
            return True
        if ins.opname in ("LOAD_ATTR", "LOAD_METHOD") and ins.argval in ("keys", "items"):
            behind = list(itertools.dropwhile(lambda name: name in _CALLING, after))
            if behind[:1] != ["GET_ITER"]:
                return True
    return False


def _is_constant(value: Any) -> bool:
    """Whether a value that is no function of Python cannot change, and if called does the same each time."""
    kind = type(value)
    if kind in _IMMUTABLE or isinstance(value, np.dtype):
        return True
    if isinstance(value, np.generic):
        return kind.__module__ == "numpy" and not isinstance(value, np.void)
    if isinstance(value, np.ufunc):
        return any(getattr(module, value.__name__, None) is value for module in modules_of_ufuncs())
    if kind is _DISPATCHED:
        return value in _MAKERS or table_name(value) in functions or table_name(value) in questions
    if isinstance(value, type):
        is_error = value.__module__ == "builtins" and issubclass(value, BaseException)
        return is_error or value in _BUILTINS or (issubclass(value, np.generic) and value.__module__ == "numpy")
    return isinstance(value, BuiltinFunctionType) and (value in _BUILTINS or value in _MAKERS or _is_of_math(value))


def _tells_extents(value: Any) -> bool:
    """Whether a function of NumPy's gives an extent, or what depends on more than their order."""
    return type(value) is _DISPATCHED and value not in _MAKERS and table_name(value) in _TELLING_FUNCTIONS


def modules_of_ufuncs() -> list[ModuleType]:
    """Modules of which functions of elements are known by their names."""
    special = sys.modules.get("scipy.special")
    return [np] if special is None else [np, special]


def _is_of_math(value: Any) -> bool:
    return getattr(math, value.__name__, None) is value
