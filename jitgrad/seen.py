"""A call as it was written, for whoever describes it to machine code; data only."""

from __future__ import annotations

from typing import Any

from jitgrad.records import dataclass
from jitgrad.trace import LeafKey

# The place of a call in the cache of traces, how many arguments stand by position, the names of the others in order.
Form = tuple[Any, int, tuple[str, ...]]


@dataclass(frozen=True)
class Fixed:
    """A static argument, in the place of a tree."""

    value: Any


@dataclass(frozen=True)
class Seen:
    """The trees of the arguments, with the number of each leaf in the leaf's place, and a ``Fixed`` for each static
    argument; the keys of the leaves.
    """

    positional: tuple[Any, ...]
    named: dict[str, Any]
    leaves: tuple[LeafKey, ...]
