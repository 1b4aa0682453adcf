"""Descriptions of calls as memory for machine code; which builtins take calls by them (entrance.py), what a call
computes and how its results are nested is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad import journal
from jitgrad.compiler.calling.entry_layout import (
    CAPACITY,
    CLOCK,
    COUNT,
    DONE,
    FIRST_ENTRY,
    FRESH,
    LEAF,
    MAKE,
    MAKE_DICT,
    MAKE_LIST,
    MAKE_TUPLE,
    OBJECT,
    POOLED,
    SCALAR,
    SPARED,
    SPARES,
    Word,
)
from jitgrad.compiler.calling.patterns import Pattern, Words, held, pack_patterns, plain_dtype
from jitgrad.compiler.driver.pools import is_pooled, outputs
from jitgrad.records import NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

_numbers = count(1)
_SPARED_BYTES = 64 * 1024
"""What the arrays that one description keeps hold at most: their numbers, for all outputs together."""


class Output(NamedTuple):
    """An output of a run: the slot that its memory goes to, or, if it is another value, the slot to copy from."""

    slot: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    source: int = -1


class Run(NamedTuple):
    """What machine code needs to run a program on one frame: the table, the steps, and who tells of a bad status.

    ``busy`` is the address of a word that is 1 while a call runs on the frame, ``status`` that of the word in which a
    run reports. ``slots`` and ``cells`` are the places of the program's inputs in the table. ``source`` gives what a
    profile keeps of a run. ``keeps`` holds what the addresses point into.
    """

    table: NDArray[np.int64]
    slots: tuple[int, ...]
    cells: tuple[int, ...]
    outputs: tuple[Output, ...]
    steps: NDArray[np.int64]
    workers: int
    release: bool
    enter: int
    busy: int
    status: int
    report: Callable[[int], Any] | None
    source: Callable[[], Any]
    keeps: tuple[Any, ...]


class Handed(NamedTuple):
    """A call whose leaves are handed to a Python function, as a list."""

    finish: Callable[[list[Any]], Any]
    nleaves: int


class Assembly:
    """Instructions that put a result together from the outputs of a run."""

    def __init__(self) -> None:
        self.words = Words()
        self.depth = 0  # at most so many parts lie on the stack

    def leaf(self, number: int) -> None:
        """The output of that number; each must be used once."""
        self._push(LEAF)
        self.words.add(number)

    def value(self, value: Any) -> None:
        """An object that is the same in all results."""
        self._push(OBJECT)
        self.words.point(value)

    def sequence(self, kind: type, n: int) -> None:
        """The last n parts as a tuple or a list."""
        self.words.add(MAKE_LIST if kind is list else MAKE_TUPLE, n)
        self.depth += 1

    def mapping(self, keys: Sequence[Any]) -> None:
        """The last parts as a dict."""
        self.words.add(MAKE_DICT, len(keys))
        self.words.point(dict.fromkeys(keys))
        for key in keys:
            self.words.point(key)
        self.depth += 1

    def call(self, make: Callable[[list[Any]], Any], n: int) -> None:
        """What a Python function makes of the list of the last n parts."""
        self.words.add(MAKE, n)
        self.words.point(make)
        self.depth += 1

    def _push(self, kind: int) -> None:
        self.words.add(kind)
        self.depth += 1


class Description:
    """The memory that describes one kind of call. Whoever runs it holds a reference."""

    def __init__(
        self,
        positional: Sequence[Pattern],
        named: Mapping[str, Pattern],
        work: Run | Handed,
        assembly: Assembly | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.number = next(_numbers)
        self._work = work
        self._journal: NDArray[np.int64] | None = None
        self.record = np.zeros(len(Word), np.int64)
        self._keeps: list[Any] = [assembly]
        self._set(OWNER=id(self), POSITIONAL=len(positional), NAMED=len(named), NUMBER=self.number)
        self._pack_arguments(positional, named, isinstance(work, Handed))
        if isinstance(work, Handed):
            self._set(FINISH=id(work.finish), NLEAVES=work.nleaves)
            self._set(TABLE=self._room(work.nleaves + 1), BUSY=self._room(1))
        else:
            assert assembly is not None
            self._pack_run(work)
            self._pack_outputs(work.outputs)
            assembly.words.add(DONE, 0)
            self._set(BUILD=self._memory(assembly.words), STACK=self._room(assembly.depth + 1))

    @property
    def address(self) -> int:
        """Where the record lies."""
        return int(self.record.ctypes.data)

    @property
    def stamp(self) -> int:
        """The clock of its table when it was last used."""
        return int(self.record[Word.STAMP])

    def source(self) -> Any:
        """The name of the function, and what a profile keeps of a run."""
        assert isinstance(self._work, Run)
        return self.name, self._work.source()

    def enter(self, opened: journal.Journal) -> None:
        """Note that a journal knows it; its memory is kept, for a call that runs may still write there."""
        self._journal = opened.memory
        self._set(JOURNAL=opened.serial)

    def _set(self, **words: int) -> None:
        for name, value in words.items():
            self.record[Word[name]] = value

    def _pack_arguments(
        self, positional: Sequence[Pattern], named: Mapping[str, Pattern], as_objects: bool
    ) -> None:
        words = Words()
        pack_patterns(words, positional, as_objects)
        for name, pattern in named.items():
            words.point(name)
            pack_patterns(words, (pattern,), as_objects)
        holds = held((*positional, *named.values()))
        self._set(PATTERNS=self._memory(words), HOLDS=self._room(holds + 1))

    def _pack_run(self, run: Run) -> None:
        self._set(
            BUSY=run.busy, TABLE=run.table.ctypes.data, STEPS=run.steps.ctypes.data, NSTEPS=len(run.steps),
            WORKERS=run.workers, RELEASE=run.release, ENTER=run.enter, STATUS=run.status,
            REPORT=id(run.report) if run.report else 0,
        )  # fmt: skip

    def _pack_outputs(self, made: Sequence[Output]) -> None:
        words, room = Words(), _SPARED_BYTES
        spares = np.full((len(made), SPARES), None)  # they go with the description
        self._keeps.append(spares)
        for out, places in zip(made, spares, strict=True):
            dtype, nbytes = plain_dtype(out.dtype), prod(out.shape) * out.dtype.itemsize
            kind = SCALAR if not out.shape else POOLED if is_pooled(nbytes) else FRESH
            if kind == FRESH and SPARES * nbytes <= room:
                kind, room = SPARED, room - SPARES * nbytes
            words.add(kind, out.slot)
            words.point(outputs.taker(out.shape, dtype) if kind == POOLED else dtype)
            words.add(out.source, nbytes, places.ctypes.data, len(out.shape), *out.shape)
            words.add(*(np.empty(out.shape, dtype).strides if kind == SPARED else out.shape))
        self._set(NOUTPUTS=len(made), OUTPUTS=self._memory(words), RESULTS=self._room(len(made) + 1))

    def _memory(self, words: Words) -> int:
        memory = np.array(words.words, np.int64)
        self._keeps += (memory, words.objects)
        return int(memory.ctypes.data)

    def _room(self, n: int) -> int:
        memory = np.zeros(n, np.int64)
        self._keeps.append(memory)
        return int(memory.ctypes.data)


class Table:
    """The descriptions that one callable tries: at most CAPACITY."""

    def __init__(self, clock: int) -> None:
        self.memory = np.zeros(FIRST_ENTRY + CAPACITY, np.int64)
        self.memory[CLOCK] = clock
        self._known: dict[int, Description] = {}

    def tick(self) -> int:
        """The next time, by a clock that every call advances."""
        self.memory[CLOCK] += 1
        return int(self.memory[CLOCK])

    def add(self, description: Description) -> None:
        """One more."""
        self.memory[FIRST_ENTRY + len(self._known)] = description.address
        self._known[description.address] = description
        self.memory[COUNT] = len(self._known)

    def remove(self, description: Description) -> None:
        """One less."""
        entries = self.memory[FIRST_ENTRY : FIRST_ENTRY + len(self._known)]
        kept = entries[entries != description.address]
        entries[: len(kept)] = kept
        self.memory[COUNT] = len(kept)
        del self._known[description.address]
