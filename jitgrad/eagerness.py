"""What has a value now, and what listens to eager operations of a thread: open tapes, and a scope that collects; it
records nothing. Machine code knows what listens by ``local.shown``, which is void after every change.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard

from jitgrad import conditions, pytree, recording


class Valued:
    """Base of what has a value outside of graphs: eager tensors, and what stands for one (a Variable, slices, what a
    scope has collected). Eager tensors have a ``number``, by which tapes know them, and a ``key``, which stands for
    their dtype and shape; what stands for one has neither.
    """

    __slots__ = ()
    number: int | None = None
    key: Any

    def eager_value(self) -> Any:
        """The eager tensor, itself where it is one."""
        raise NotImplementedError


def has_value(x: Any) -> TypeGuard[Valued]:
    """Whether it is an eager tensor, or stands for one."""
    return isinstance(x, Valued)


def settled(x: Any) -> Any:
    """The eager tensor that a Variable, slices or a pending tensor stands for now; anything else as it is."""
    return x.eager_value() if isinstance(x, Valued) else x


def number_of(x: Any) -> int | None:
    """The number by which tapes know a tensor; None for anything else."""
    return x.number if isinstance(x, Valued) else None


class Watcher(Protocol):
    """What records: a tape. ``watched`` are the numbers of tensors, ``entries`` the calls recorded so far."""

    watched: set[int]
    entries: list[Any]

    def read_variable(self, variable: Any, value: Any) -> None:
        """A Variable was read; the tape decides whether it watches it."""

    def read_in_graph(self, variable: Any) -> None:
        """A Variable was read in a graph."""

    def watches(self, variable: Any) -> bool:
        """Whether a Variable is watched."""


class Collecting(Protocol):
    """A scope that has collected operations which have not run."""

    def flush(self) -> None:
        """Run them."""


class _Counted:
    """How many tapes of a thread are counted as observers; none are when it has ended."""

    tapes = 0

    def __del__(self, release: Any = conditions.release_observers) -> None:
        if self.tapes:
            release(self.tapes)


last_heard = array("q", [0, 0])
"""The number of the thread whose operations machine code has taken last, and where the word of its ``Shown`` is."""

told = array("q", [0, 0, 0])
"""Two numbers of tensors of which machine code knows that a tape watches them, and before them what it was shown then:
to be forgotten (``told[0] = 0``) whenever something else is shown, or a tape forgets.
"""


class Shown(list[Any]):
    """One word of a thread, for machine code, which forgets where it is before it is gone."""

    def __del__(self, last: Any = last_heard) -> None:
        last[0] = 0


class _Local(threading.local):
    """``shown`` holds what machine code is to know of the thread, which has it too (capi.keep_in_thread): the entries
    and the watched numbers of each tape; False where operations are to be left to Python; None: this is to be found.
    """

    tapes: tuple[Watcher, ...] = ()
    collector: Any = None
    unfinished: tuple[weakref.ref[Collecting], ...] = ()  # they are kept by what is to be computed

    def __init__(self) -> None:
        self.shown = Shown([None])
        self.counted = _Counted()


local = _Local()


def set_tapes(tapes: tuple[Watcher, ...]) -> None:
    """These tapes hear of this thread's eager operations from now on."""
    shown = local.shown
    shown[0] = None  # first too: an exception may arrive in between, from a signal
    local.tapes = tapes
    shown[0] = None
    _count_tapes()


def _count_tapes() -> None:
    """Count this thread's tapes as observers."""
    counted = local.counted
    change = len(local.tapes) - counted.tapes
    if change:
        conditions.count_tapes(counted, change)


def set_collector(collector: Any) -> None:
    """This collects, or looks at, this thread's eager operations from now on; None: they just run."""
    shown = local.shown
    shown[0] = None
    local.collector = collector
    shown[0] = None


def show() -> None:
    """Fill in ``local.shown``."""
    shown = local.shown
    while shown[0] is None:
        tapes, collector = local.tapes, local.collector
        told[0] = 0
        shown[0] = tuple([part for t in tapes for part in (t.entries, t.watched)]) if collector is None else False
        if local.tapes is not tapes or local.collector is not collector:  # changed by what a signal has called
            shown[0] = None


class _Checking:
    """Stands where a scope would collect, so that every operation passes here: it runs at once, and its results are
    looked at.
    """

    def add(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call."""
        from jitgrad.eager.checking import run_looked_at

        return run_looked_at(fn, args, kwargs)

    def pass_by(self, name: str, compute: Any, *args: Any) -> Any:
        """Run what needs no look."""
        with no_collecting():
            return _timed(name, compute, *args) if recording.sinks else compute(*args)


class _Timing(_Checking):
    """Stands there while a profile is open, which is told of every operation."""

    def add(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call."""
        from jitgrad.eager.timing import run_timed

        if not recording.sinks:  # a thread that has been told of the profile, and not of its end
            set_collector(None)
        return run_timed(fn, args, kwargs)


def _timed(name: str, compute: Any, *args: Any) -> Any:
    from jitgrad.eager.timing import timed

    return timed(name, compute, *args)


checking, timing = _Checking(), _Timing()


def is_listener(collector: Any) -> bool:
    """Whether it stands there to hear of operations that run at once."""
    return isinstance(collector, _Checking)


def _listener(is_checked: bool) -> Any:
    return checking if is_checked else timing if recording.sinks else None


def time_operations() -> None:
    """Let open profiles hear of eager operations of this thread and of those that begin from now on; or, where none is
    open, no more.
    """
    for at in (_Local, local):
        if at.collector is None or at.collector is timing:
            set_collector(_listener(False)) if at is local else setattr(at, "collector", _listener(False))


def check_values(is_on: bool) -> Any:
    """Whether results of this thread's eager operations are looked at; gives what ``local.collector`` was before. A
    scope that collects goes on: what it runs is looked at as a whole.
    """
    before = local.collector
    if before is None or is_listener(before):
        set_collector(_listener(is_on))
    return before


def check_values_everywhere(is_on: bool) -> None:
    """The same for this thread and for those that begin from now on."""
    _Local.collector = _listener(is_on)
    check_values(is_on)


def finish() -> None:
    """Run what scopes of this thread have collected, before other tapes listen than did when it was written."""
    unfinished = local.unfinished
    if not unfinished:
        return
    local.unfinished = ()
    for ref in unfinished:
        scope = ref()
        if scope is not None:
            scope.flush()


def open_tape(tape: Watcher) -> None:
    """Tell a tape of this thread's eager operations from now on; machine code leaves calls to Python meanwhile."""
    finish()
    set_tapes((*local.tapes, tape))


def close_tape(tape: Watcher) -> None:
    """Tell a tape no more; nothing happens when it is not told anyway."""
    finish()
    set_tapes(tuple(t for t in local.tapes if t is not tape))


def is_eager(tree: Any) -> bool:
    """Whether there is an eager tensor among the leaves, or what stands for one."""
    return any(map(has_value, pytree.flatten(tree)[0]))


@contextmanager
def no_collecting(is_checked: bool = False) -> Iterator[None]:
    """Eager operations made inside run at once, whatever scope is around; their results are looked at if so wished."""
    before = local.collector
    set_collector(checking if is_checked else None)
    try:
        yield
    finally:
        set_collector(before)


