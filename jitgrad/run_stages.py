"""Stages: parts of a graph that are one program, and one executable, per shapes of what they are fed. Which parts a run
has is not decided here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

from jitgrad import recording
from jitgrad.collecting import collection_paused
from jitgrad.compiler.driver.pools import outputs
from jitgrad.compiler.freezing.beside import Bound, plan_beside
from jitgrad.compiler.freezing.plans import Frozen
from jitgrad.compiler.freezing.records import Addresses
from jitgrad.compiler.machine.firsts import first_calls
from jitgrad.config import config
from jitgrad.executable import (
    Executable,
    executable_beside,
    executable_foretold,
    executable_known,
    make_executable,
)
from jitgrad.following import Follower, PromisedTensors
from jitgrad.forking import renew_when_forked
from jitgrad.fresh import interpret_fresh
from jitgrad.graph import Operation, Tensor
from jitgrad.inlining import inlined
from jitgrad.interpreter import listed
from jitgrad.nonfinite import run_checked
from jitgrad.outlook import Outlook
from jitgrad.program import Program, slice_graph
from jitgrad.progress import watched
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec, spec_of

max_shapes = 64  # programs that one part of a graph is kept compiled for


class Stage:
    """Computes ``fetches`` (and runs ``targets``) from ``feeds`` by one program per shapes of the feeds.

    ``done`` are operations that earlier stages have run.
    """

    def __init__(
        self,
        fetches: Sequence[Tensor],
        feeds: Sequence[Tensor],
        targets: Sequence[Operation] = (),
        done: Collection[Operation] = (),
        name: str = "main",
    ) -> None:
        self.fetches = kept(fetches)
        self.feeds = kept(feeds)
        self.targets = tuple(targets)
        self.done = frozenset(done)
        self.name = name
        self._is_fixed = isinstance(feeds, PromisedTensors) or all(t.spec.is_known for t in feeds)
        self.beside: Beside | None = None
        self._programs: dict[tuple[TensorSpec, ...], Program] = {}
        self._executables: dict[Any, Executable] = {}
        self._lock = threading.Lock()
        renew_when_forked(self)

    def program(self, specs: Sequence[TensorSpec]) -> Program:
        """The program for feeds of these specs."""
        key = tuple(specs)
        if key not in self._programs:
            if self.beside is not None:
                made = self.beside.program(key)
            else:
                feeds = dict(zip(self.feeds, key, strict=True))
                made = inlined(slice_graph(self.fetches, feeds, self.targets, self.name, self.done))
            _keep(self._programs, key, made)
            return made
        return self._programs[key]

    def executable(self, arrays: Sequence[Any]) -> Executable:
        """The executable for feeds like these arrays."""
        key = self._key(arrays)
        found = self._executables.get(key)
        return self._make_executable(key, arrays) if found is None else found

    def _key(self, arrays: Sequence[Any]) -> Any:
        return () if self._is_fixed else tuple(array.shape for array in arrays)

    def _make_executable(self, key: Any, arrays: Sequence[Any]) -> Executable:
        with self._lock, collection_paused():
            if key not in self._executables:
                with recording.span("compile", self.name), watched(f"compiling {self.name}"):
                    made = self._made(tuple(map(spec_of, arrays)))
                _keep(self._executables, key, made)
            return self._executables[key]

    def _made(self, specs: tuple[TensorSpec, ...]) -> Executable:
        source = partial(self.program, specs)
        made = self.beside.executable(specs, source) if self.beside is not None else None
        return make_executable(source()) if made is None else made

    def bind(
        self, other: Executable, bound: Bound, specs: Callable[[], Sequence[TensorSpec]], plan: Callable[[], Any]
    ) -> None:  # fmt: skip
        """Have an executable like another's, as a formula has bound it; ``specs`` gives those of the arrays, ``plan``
        its plan.
        """
        self._executables[()] = executable_foretold(other, specs, bound, lambda: self._fixed_program, plan)

    def hold(
        self, frozen: Frozen, addresses: Addresses, inputs: Sequence[int], specs: Callable[[], Sequence[TensorSpec]]
    ) -> None:
        """Have an executable by a plan and the addresses of its kernels, before there is a program; ``inputs`` are its
        values that are given.
        """
        self._executables[()] = executable_known(frozen, addresses, inputs, specs, lambda: self._fixed_program)

    def as_run(self, arrays: Sequence[Any]) -> Any:
        """How machine code runs feeds like these arrays without Python; None where it cannot, or where shapes vary."""
        return self.executable(arrays).as_run if self._is_fixed else None

    def run_again(self, arrays: Sequence[Any]) -> list[Any]:
        """`run`, where nobody records it and no element is looked at, but that 0-d results may be NumPy's scalars."""
        found = self._executables.get(())
        return self.run(arrays) if found is None else found.run_again(arrays)

    def executables(self) -> list[Executable]:
        """All executables made so far."""
        return list(self._executables.values())

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays of the fetches, computed by the executable."""
        key = self._key(arrays)
        found = self._executables.get(key)
        if found is not None:
            return self._run(found, arrays)
        with first_calls.one():
            try:
                return self._run(self._make_executable(key, arrays), arrays)
            finally:
                outputs.forget_prepared()

    def _run(self, executable: Executable, arrays: Sequence[Any]) -> list[Any]:
        if config.debug_nans:
            program = self.program([spec_of(array) for array in arrays])
            return run_checked(partial(executable, arrays), program, arrays)
        results: list[Any] = executable(arrays)
        return results

    def interpret(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays of the fetches, computed op by op in NumPy."""
        program = self._fixed_program if self._is_fixed else self.program([spec_of(array) for array in arrays])
        if not config.settings.debug_nans:
            return interpret_fresh(program, arrays)
        return run_checked(partial(interpret_fresh, program, arrays), program, arrays)

    def listed(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """The program as one function, where it is run so often, and all its shapes are known."""
        return listed(self._fixed_program) if self._is_fixed else None

    @cached_property
    def _fixed_program(self) -> Program:
        return self.program([t.spec for t in self.feeds])


def _keep(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Enter a value; the oldest go when there are too many."""
    table[key] = value
    while len(table) > max_shapes:
        del table[next(iter(table))]


class Followed(Protocol):
    """A trace that is like another: its follower, and its tensors."""

    @property
    def follower(self) -> Follower:
        """What knows how it follows."""

    @property
    def outputs(self) -> Sequence[Tensor]:
        """What the function gives."""

    @property
    def feeds(self) -> Sequence[Tensor]:
        """What stands for the arrays."""


@dataclass(frozen=True, eq=False)
class Beside:
    """The stage that another one follows, and how; ``numbers`` are those of its operations, one per instruction."""

    model: Stage
    trace: Followed
    numbers: tuple[int, ...]
    outlook: Callable[[], Outlook | None] | None = None

    def program(self, specs: tuple[TensorSpec, ...]) -> Program:
        """The program of the stage that follows."""
        model = self.model.program([t.spec for t in self.model.feeds])
        return self.trace.follower.program_like(model, self.numbers, specs)

    def executable(self, specs: tuple[TensorSpec, ...], source: Callable[[], Program]) -> Executable | None:
        """Its executable, where that follows from the model's; ``source`` gives its program."""
        follower, known = self.trace.follower, self.model.executables()
        if not known or follower.has_other_arrays:
            return None
        outlook = self.outlook() if self.outlook is not None else None
        foretold = outlook.tell(known[0], self.numbers) if outlook is not None else None
        return executable_beside(known[0], specs, follower.extents, self._changed, source, foretold)

    @property
    def _changed(self) -> Mapping[int, Any]:
        """The numbers of constants that differ, by instruction."""
        changed = self.trace.follower.numbers
        return {k: changed[n] for k, n in enumerate(self.numbers) if n in changed}

    def plan(self) -> Any:
        """Its plan, frozen step by step."""
        likeness = self.model.executables()[0].likeness
        assert likeness is not None
        return plan_beside(likeness, self.trace.follower.extents, self._changed)


def kept(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same tensors, whatever becomes of a list."""
    return tensors if isinstance(tensors, PromisedTensors) else tuple(tensors)
