"""What listens to eager operations of a thread: open tapes, and a scope that collects; it records nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from jitgrad import conditions, pytree


class Watcher(Protocol):
    """What records: a tape. ``watched`` are the numbers of tensors, ``entries`` the calls recorded so far."""

    watched: set[int]
    entries: list[Any]

    def read_variable(self, variable: Any, value: Any) -> None:
        """A Variable was read; the tape decides whether it watches it."""


class Collecting(Protocol):
    """A scope that has collected operations which have not run."""

    def flush(self) -> None:
        """Run them."""


class _Local(threading.local):
    tapes: tuple[Watcher, ...] = ()
    collector: Any = None
    unfinished: tuple[Collecting, ...] = ()


local = _Local()


class _Checking:
    """Stands where a scope would collect, so that every operation passes here: it runs at once, and its results are
    looked at.
    """

    def add(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call."""
        from jitgrad.eager.checking import run_looked_at

        return run_looked_at(fn, args, kwargs)


checking = _Checking()


def check_values(is_on: bool) -> Any:
    """Whether results of this thread's eager operations are looked at; gives what ``local.collector`` was before. A
    scope that collects goes on: what it runs is looked at as a whole.
    """
    before = local.collector
    if before is None or before is checking:
        local.collector = checking if is_on else None
    return before


def check_values_everywhere(is_on: bool) -> None:
    """The same for this thread and for those that begin from now on."""
    _Local.collector = checking if is_on else None
    check_values(is_on)


def finish() -> None:
    """Run what scopes of this thread have collected, before other tapes listen than did when it was written."""
    unfinished, local.unfinished = local.unfinished, ()
    for scope in unfinished:
        scope.flush()


def open_tape(tape: Watcher) -> None:
    """Tell a tape of this thread's eager operations from now on; machine code leaves calls to Python meanwhile."""
    finish()
    local.tapes = (*local.tapes, tape)
    conditions.count(conditions.TRACES, 1)


def close_tape(tape: Watcher) -> None:
    """Tell a tape no more; nothing happens when it is not told anyway."""
    finish()
    rest = tuple(t for t in local.tapes if t is not tape)
    conditions.count(conditions.TRACES, len(rest) - len(local.tapes))
    local.tapes = rest


def is_eager(tree: Any) -> bool:
    """Whether there is an eager tensor among the leaves, or what stands for one."""
    return any(hasattr(leaf, "number") or hasattr(leaf, "eager_value") for leaf in pytree.flatten(tree)[0])


@contextmanager
def no_collecting() -> Iterator[None]:
    """Eager operations made inside run at once, whatever scope is around."""
    before, local.collector = local.collector, None
    try:
        yield
    finally:
        local.collector = before


