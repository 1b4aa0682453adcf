"""Snapshots of Variables and streams of random numbers at a moment, so that a run that is made to look at it leaves no
trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jitgrad.streams import current

if TYPE_CHECKING:
    from jitgrad.ops.state import Variable
    from jitgrad.program import Program


class Snapshot:
    """The values of Variables when it is made, and how far the present streams have been read.

    Arrays are shared: whoever changes rows in place copies them first.
    """

    def __init__(self, variables: Iterable[Variable]) -> None:
        self._held = [(variable, variable._value, variable._eager) for variable in dict.fromkeys(variables)]
        self._positions = current().positions()

    def __bool__(self) -> bool:
        return bool(self._held)

    def now(self) -> Snapshot:
        """Another one of the same Variables, of this moment."""
        return Snapshot(variable for variable, _, _ in self._held)

    def restore(self) -> None:
        """Let the Variables hold what they held, and the streams go on where they were."""
        current().restart(self._positions)
        for variable, value, eager in self._held:
            variable._value, variable._eager = value, eager


def variables_of(params: Iterable[Mapping[str, Any]]) -> list[Variable]:
    """The Variables that ops with these params read or assign, each once."""
    return list(dict.fromkeys(p["variable"] for p in params if "variable" in p))


def snapshot_for(program: Program) -> Snapshot:
    """A snapshot of the Variables that a program reads or assigns."""
    return Snapshot(variables_of(ins.params for ins in program.instructions))
