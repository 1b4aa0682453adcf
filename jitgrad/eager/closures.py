"""What compiled functions close over: eager tensors that are constants of a trace, and the eager operations that made
them while the function was traced. Tapes of later calls are told of these as if they were made in the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitgrad import pytree
from jitgrad.eager.recorder import Entry, parts
from jitgrad.eager.tensor import run
from jitgrad.eagerness import Watcher, checking, finish, local, no_collecting, number_of, set_collector, set_tapes


class Origins:
    """Listens as a tape does, to all eager operations of a trace; and stands where a scope would collect, so that they
    pass here before they run.
    """

    def __init__(self, is_checked: bool) -> None:
        self.watched: set[int] = set()
        self.entries: list[Entry] = []
        self._is_checked = is_checked

    def add(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call whose arguments are watched from now on."""
        numbers = map(number_of, pytree.flatten((args, kwargs))[0])
        self.watched.update(n for n in numbers if n is not None)
        with no_collecting(self._is_checked):
            return run(fn, args, kwargs)

    def read_variable(self, variable: Any, value: Any) -> None:
        """A Variable was read: calls read it anew."""

    def read_in_graph(self, variable: Any) -> None:
        """A Variable was read in a graph."""

    def watches(self, variable: Any) -> bool:
        """No: nothing is differentiated here."""
        return False


@contextmanager
def noting_origins() -> Iterator[Origins]:
    """Keeps the eager operations that are made inside, of which no tape is told now."""
    finish()
    tapes, collector = local.tapes, local.collector
    origins = Origins(collector is checking)
    set_tapes((origins,))
    set_collector(origins)
    try:
        yield origins
    finally:
        set_tapes(tapes)
        set_collector(collector)


def tell(tapes: Sequence[Watcher], entries: Sequence[Entry]) -> None:
    """Enter calls on the tapes that watch what they read, and do not have them yet."""
    for tape in tapes:
        for entry in entries:
            _, inputs, outputs, _ = parts(entry)
            if not tape.watched.isdisjoint(inputs) and tape.watched.isdisjoint(outputs):
                tape.entries.append(entry)
                tape.watched.update(n for n in outputs if n is not None)
