"""Which operations lie between two sets of tensors, at the cost of the smaller side; it differentiates nothing."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence

from jitgrad.graph import Operation, Tensor
from jitgrad.records import dataclass

Passes = Callable[[Tensor], bool]

by_id = operator.attrgetter("id")


def operations_between(
    sources: Sequence[Tensor], targets: Sequence[Tensor], passes: Passes = lambda t: True
) -> set[Operation]:
    """Operations on a path from a source to a target, none of whose tensors on the way is one that does not pass.

    Two walks, forward from the sources and backward from the targets, take turns; when one has seen all it can
    reach, the other is not needed any more: the cost is twice the smaller of the two, whatever else the graph holds.
    The one that goes back leaves out what is made of none of the origins of the sources.
    """
    for graph in {t.op.graph for t in (*sources, *targets)}:
        graph.settle()
    between = _Between(frozenset(sources), frozenset(t.op for t in targets if passes(t)), passes)
    last = max((t.op.id for t in targets), default=-1)
    first = min((x.op.id for x in sources), default=0)
    forward = _Reach((c for x in sources for c in x._consumers), between.after, range(last + 1))
    before = functools.partial(between.before, is_possible=_made_of(sources))
    backward = _Reach(iter(between.ends), before, range(first + 1, last + 1))
    while forward.follow() and backward.follow():
        pass
    if forward.is_done:
        return between.reaching_an_end(forward.seen)
    return between.reached(backward.seen)


def _made_of(sources: Sequence[Tensor]) -> Callable[[Operation], bool]:
    """Whether an operation may be made of a source: it has the origins of one, as far as the graph numbers these."""
    origins = [x.op.origins for x in sources]
    if not all(origins):
        return lambda op: True
    some, common = functools.reduce(operator.or_, origins, 0), functools.reduce(operator.and_, origins, -1)
    if common:
        return lambda op: op.origins & common == common
    return lambda op: bool(op.origins & some)


@dataclass(frozen=True)
class _Between:
    """The two ends of what is looked for: the sources, and the operations that make the targets."""

    sources: frozenset[Tensor]
    ends: frozenset[Operation]
    passes: Passes

    def after(self, op: Operation) -> Iterator[Operation]:
        """The operations that read an operation."""
        outputs, passes = op.outputs, self.passes
        if len(outputs) == 1:
            return iter(outputs[0]._consumers if passes(outputs[0]) else ())
        return (c for t in outputs if passes(t) for c in t._consumers)

    def before(self, op: Operation, is_possible: Callable[[Operation], bool]) -> Iterator[Operation]:
        """The operations that an operation reads."""
        passes = self.passes
        return iter([x.op for x in op.inputs if is_possible(x.op) and passes(x)])

    def reaching_an_end(self, ops: set[Operation]) -> set[Operation]:
        """Those from which an end is reached, of operations reached from a source."""
        kept: set[Operation] = set()
        for op in sorted(ops, key=by_id, reverse=True):
            if op in self.ends or not kept.isdisjoint(self.after(op)):
                kept.add(op)
        return kept

    def reached(self, ops: set[Operation]) -> set[Operation]:
        """Those reached from a source, of operations from which an end is reached."""
        kept: set[Operation] = set()
        sources, passes = self.sources, self.passes
        for op in sorted(ops, key=by_id):
            if any(x in sources or (x.op in kept and passes(x)) for x in op.inputs):
                kept.add(op)
        return kept


class _Reach:
    """The operations of a range reachable in one direction, a few edges at a time: one may have any number of them."""

    def __init__(
        self, start: Iterator[Operation], neighbours: Callable[[Operation], Iterator[Operation]], within: range
    ) -> None:
        self.seen: set[Operation] = set()
        self.pending = [start]
        self.neighbours = neighbours
        self.within = within

    @property
    def is_done(self) -> bool:
        return not self.pending

    def follow(self, edges: int = 64) -> bool:
        """Follow so many edges; False when there are no more."""
        seen, pending = self.seen, self.pending
        for _ in range(edges):
            op = next(pending[-1], None)
            if op is None:
                pending.pop()
                if not pending:
                    return False
            elif op not in seen and op.id in self.within:
                seen.add(op)
                pending.append(self.neighbours(op))
        return True
