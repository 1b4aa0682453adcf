"""The description of a call that has been seen, from which machine code takes the next one like it: patterns of its
arguments and how its results are put together. It runs nothing, and knows nothing of memory.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.compiler.calling.entrance import entrance, is_available
from jitgrad.compiler.calling.entries import Assembly, Description, Handed, Run, Table
from jitgrad.compiler.calling.entry_layout import CAPACITY
from jitgrad.compiler.calling.patterns import Array, Equal, Items, Members, Number, Pattern, Same
from jitgrad.running import Runner
from jitgrad.seen import Fixed, Form, Seen
from jitgrad.trace import LeafKey, Results, Static


class _UnusualError(Exception):
    """Something that machine code does not look into."""


class Steady:
    """The calls of one function that machine code takes. Changed under the function's lock."""

    def __init__(self, name: str, clock: int) -> None:
        self._name = name
        self._table = Table(clock)
        self._forms: dict[Form, Description | None] = {}

    def tick(self) -> int:
        """The next time, by a clock that every call advances."""
        return self._table.tick()

    def knows(self, form: Form) -> bool:
        """Whether calls of that form have been described, or found to be too unusual for it."""
        return form in self._forms

    def describe(
        self, form: Form, seen: Seen, runner: Runner, arrays: Sequence[Any], results: Results
    ) -> None:
        """Let machine code take calls like this one, if it can; those taken longest ago make room."""
        if self.knows(form):
            return
        made = describe_call(self._name, seen, runner, arrays, results) if is_available() else None
        if len(self._forms) >= CAPACITY:
            self._remove(min(self._forms, key=self._stamp))
        self._forms[form] = made
        if made is not None:
            self._table.add(made)

    def last_uses(self) -> dict[Any, int]:
        """By their place in the cache when machine code took calls last."""
        found: dict[Any, int] = {}
        for form in self._forms:
            found[form[0]] = max(self._stamp(form), found.get(form[0], 0))
        return found

    def forget(self, key: Any) -> None:
        """Take no more calls with that place in the cache."""
        for form in [form for form in self._forms if form[0] == key]:
            self._remove(form)

    def entrance(self, python: Callable[..., Any]) -> Callable[..., Any] | None:
        """A builtin that takes the calls that have been described, and gives all others to ``python``."""
        return entrance(self._table, python) if is_available() else None

    def _stamp(self, form: Form) -> int:
        made = self._forms[form]
        return made.stamp if made is not None else 0

    def _remove(self, form: Form) -> None:
        made = self._forms.pop(form)
        if made is not None:
            self._table.remove(made)


def describe_call(
    name: str, seen: Seen, runner: Runner, arrays: Sequence[Any], results: Results
) -> Description | None:
    """What machine code has to know of calls like this one; None where only Python can take them."""
    run = runner.as_run(arrays)
    try:
        assembly = _assembled(results)
        places = _Places(seen.leaves, run)
        positional = [places.pattern(tree) for tree in seen.positional]
        named = {name: places.pattern(tree) for name, tree in seen.named.items()}
        if run is not None:
            return Description(positional, named, run, assembly, name)
        return Description(positional, named, Handed(_python_run(runner, results), len(arrays)))
    except (_UnusualError, ValueError):
        return None


def _python_run(runner: Runner, results: Results) -> Callable[[list[Any]], Any]:
    def finish(leaves: list[Any]) -> Any:
        arrays = [x if type(x) is np.ndarray else np.asarray(x) for x in leaves]
        return results.build(runner.run_again(arrays))

    return finish


class _Places:
    """Patterns of trees of numbered leaves, each leaf with its place in the table of a run."""

    def __init__(self, leaves: tuple[LeafKey, ...], run: Run | None) -> None:
        self._leaves = leaves
        fed = [number for number, key in enumerate(leaves) if not isinstance(key, Static)]
        self._feeds = {number: feed for feed, number in enumerate(fed)}
        self._slots = run.slots if run is not None else tuple(range(len(fed)))
        self._cells = run.cells if run is not None else (len(fed),) * len(fed)

    def pattern(self, tree: Any) -> Pattern:
        """The pattern of a tree."""
        if isinstance(tree, Fixed):
            return fixed_pattern(tree.value)
        if tree is None:
            return Same(None)
        kind = type(tree)
        if kind is int:
            return self._leaf(tree)
        if kind is dict and all(type(key) in (str, int) for key in tree):
            return Members(tuple(tree), tuple(map(self.pattern, tree.values())))
        if kind is list or kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            return Items(kind, tuple(map(self.pattern, tree)))
        raise _UnusualError

    def _leaf(self, number: int) -> Pattern:
        key = self._leaves[number]
        if isinstance(key, Static):
            return fixed_pattern(key.value)
        feed = self._feeds[number]
        if isinstance(key, type):
            return Number(self._slots[feed], key, self._cells[feed])
        dtype, shape = key
        return Array(self._slots[feed], dtype, shape)


def fixed_pattern(value: Any) -> Pattern:
    """The pattern of values that ``keys.frozen`` takes for one; _UnusualError for what machine code cannot tell."""
    kind = type(value)
    if kind in (int, str, bytes, float):
        return Equal(value)
    if kind is tuple:
        return Items(tuple, tuple(map(fixed_pattern, value)))
    if not _never_changes(value):
        raise _UnusualError
    return Same(value)


_constants = frozenset((bool, int, float, complex, str, bytes, type, range))
_constant_kinds = (types.BuiltinFunctionType, enum.Enum, np.number, np.bool_, np.dtype)


def _never_changes(value: Any) -> bool:
    """Whether an object stands for the same as long as it lives."""
    if value is None or type(value) in _constants or isinstance(value, _constant_kinds):
        return True
    if type(value) in (tuple, frozenset):
        return all(map(_never_changes, value))
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return value.__dataclass_params__.frozen and all(_never_changes(getattr(value, f.name, None)) for f in fields)  # type: ignore[union-attr]
    return type(value).__hash__ is object.__hash__  # type: ignore[comparison-overlap]


# -- results -------------------------------------------------------------------------------------------------


def _assembled(results: Results) -> Assembly:
    assembly = Assembly()
    if results.is_bare:
        assembly.leaf(0)
        return assembly
    tree = pytree.unflatten(results.structure, range(len(results.slots)))
    if _is_plain(tree) and not any(isinstance(value, np.ndarray) for value in results.fixed):
        _assemble(assembly, tree, results)
        return assembly
    slots = [slot for slot in results.slots if slot is not None]
    for slot in slots:
        assembly.leaf(slot)
    assembly.call(results.put, len(slots))
    return assembly


def _is_plain(tree: Any) -> bool:
    """Whether a tree consists of lists, tuples, dicts, None and leaves."""
    if type(tree) in (list, tuple):
        return all(map(_is_plain, tree))
    if type(tree) is dict:
        return all(map(_is_plain, tree.values()))
    return tree is None or type(tree) is int


def _assemble(assembly: Assembly, tree: Any, results: Results) -> None:
    if isinstance(tree, int):
        slot = results.slots[tree]
        if slot is None:
            assembly.value(results.fixed[tree])
        else:
            assembly.leaf(slot)
    elif tree is None:
        assembly.value(None)
    else:
        for part in tree.values() if isinstance(tree, dict) else tree:
            _assemble(assembly, part, results)
        if isinstance(tree, dict):
            assembly.mapping(tuple(tree))
        else:
            assembly.sequence(type(tree), len(tree))
