"""Where a part of a graph is cut into steps: operations with shapes that only values tell run between programs. It runs
nothing, and is loaded where there are such operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jitgrad.graph import Operation, Tensor
from jitgrad.program import is_fed
from jitgrad.records import NamedTuple


class Cut(NamedTuple):
    """A program, by what it makes, what it reads, what else runs in it, and what has run before; and the operations
    that run behind it.
    """

    fetches: Sequence[Tensor]
    feeds: Sequence[Tensor]
    targets: Sequence[Operation]
    done: Sequence[Operation]
    late: tuple[Operation, ...]


def cut_at(
    dynamic: set[Operation],
    fetches: Sequence[Tensor],
    feeds: Sequence[Tensor],
    targets: Sequence[Operation],
    operations: Sequence[Operation],
) -> Iterator[Cut]:
    """The steps of a part of a graph, in order, of which some operations are ``dynamic``."""
    fed, fetched = set(feeds), set(fetches)
    level = _levels(operations, dynamic, fed)
    read_late = {x for op in operations for x in op.inputs if _crosses(x, op, level, dynamic, fed)}
    waits = ((c, op) for op in operations for c in op.control_inputs if c in level)
    awaited = {c for c, op in waits if level[c] < level[op] or op in dynamic}
    for depth in range(max(level.values()) + 1):
        ops = [op for op in operations if level[op] == depth and op not in dynamic]
        made = [t for op in ops for t in op.outputs if t not in fed and (t in read_late or t in fetched)]
        here = set(ops)
        inputs = dict.fromkeys(x for op in ops for x in op.inputs if x in fed or x.op not in here)
        wanted = [op for op in ops if op in targets or op in awaited]
        done = [op for op in operations if op not in here and level[op] <= depth]
        done += [t.op for t in feeds if is_fed(t.op, fed)]
        late = tuple([op for op in operations if level[op] == depth and op in dynamic])
        yield Cut(made, tuple(inputs), wanted, done, late)


def _levels(
    operations: Sequence[Operation], dynamic: set[Operation], fed: set[Tensor]
) -> dict[Operation, int]:
    """How many dynamic operations lie one behind the other before each operation; those that are fed run nowhere."""
    level: dict[Operation, int] = {}
    for op in operations:
        before = [x.op for x in op.inputs if x not in fed] + [c for c in op.control_inputs if c in level]
        level[op] = max((level[b] + (b in dynamic) for b in before), default=0)
    return level


def _crosses(
    x: Tensor, op: Operation, level: Mapping[Operation, int], dynamic: set[Operation], fed: set[Tensor]
) -> bool:
    return x not in fed and (level[x.op] < level[op] or op in dynamic)
