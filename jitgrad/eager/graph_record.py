"""What a tape has recorded of a graph: the operations made while it was open, of what it watched by then. It derives no
gradient; it says which tensors are constants for one, so that a tape means the same traced as it does with values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitgrad.graph import Graph, Operation, Tensor
from jitgrad.ops.state import Variable, read_op

Place = tuple[Operation, int]
"""A tensor of a graph; an assignment to elements gives its object another place."""


class GraphRecord:
    """The stretches of a graph in which a tape was open, and since which operation it watches what."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._stretches: list[tuple[int, int]] = []
        self._open_since: int | None = None
        self._watched: dict[Place | Variable, int] = {}

    def open(self) -> None:
        """Operations are recorded from now on."""
        if self._open_since is None:
            self._open_since = len(self.graph)

    def close(self) -> None:
        """Operations are recorded no more."""
        self._stretches, self._open_since = self._until_now(), None

    def forget(self) -> None:
        """Nothing has been recorded or watched so far."""
        self._stretches.clear()
        self._watched.clear()
        if self._open_since is not None:
            self._open_since = len(self.graph)

    def watch(self, x: Tensor | Variable) -> None:
        """Operations that read it are recorded from now on."""
        place = x if isinstance(x, Variable) else _place(self.graph.captured(x))
        self._watched.setdefault(place, len(self.graph))

    def _until_now(self) -> list[tuple[int, int]]:
        since = self._open_since
        return self._stretches if since is None else [*self._stretches, (since, len(self.graph))]

    def recorded(self) -> Recorded:
        """What has been recorded so far."""
        operations, watched = self.graph.operations, dict(self._watched)
        found: set[Operation] = set()
        for first, last in self._until_now():
            for op in operations[first:last]:
                if any(self._since(x, watched) <= op.id for x in op.inputs):
                    found.add(op)
                    watched.update({(op, k): op.id for k in range(len(op.outputs))})
        return Recorded(frozenset(found), watched)

    @staticmethod
    def _since(x: Tensor, watched: Mapping[Place | Variable, int]) -> float:
        """The operation since which a tensor is watched; never: infinity."""
        never = float("inf")
        read = watched.get(x.op.params["variable"], never) if x.op.opdef is read_op else never
        return min(read, watched.get(_place(x), never))


class Recorded:
    """The operations that a tape has recorded, and what it watches."""

    def __init__(self, operations: frozenset[Operation], watched: Mapping[Place | Variable, int]) -> None:
        self._operations, self._watched = operations, watched

    def constants(self, targets: Sequence[Tensor]) -> list[Tensor] | None:
        """What operations of the record read, and targets, that were made beside it: no gradient goes behind them."""
        read = dict.fromkeys([*targets, *[x for op in self._operations for x in op.inputs]])
        return [x for x in read if x.op.inputs and not self._is_passed(x.op)] or None

    def _is_passed(self, op: Operation) -> bool:
        is_read = op.opdef is read_op and op.params["variable"] in self._watched
        return is_read or op in self._operations

    def has(self, source: Any) -> bool:
        """Whether a source is watched."""
        if not isinstance(source, Tensor | Variable):  # slices of a table that is
            return True
        return (source if isinstance(source, Variable) else _place(source)) in self._watched


def _place(x: Tensor) -> Place:
    return x.op, x.value_index
