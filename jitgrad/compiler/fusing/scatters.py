"""How scatters are shared out among threads: each place of the table adds up its updates in their order, or, in small
tables, those of each chunk; it makes no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.nodes import Node
from jitgrad.compiler.likeness import EXACT
from jitgrad.opdef import AxisIndex

LEAST_COLUMNS, LEAST_ROWS, MOST_UPDATES = 32, 64, 1 << 31
"""Of what is shared by rows of the table. Each chunk looks through all positions, 0.3 ns for one, where a row of 32
floats takes 3; and keeps the numbers of its own as 32 bits. The first two are part of a pattern of extents.
"""
MOST_PLACES = 1024
"""Of a table that each chunk has for itself: clearing it and adding it up takes a tenth of a microsecond or less."""


def has_small_table(node: Node, shape: Sequence[int]) -> bool:
    """Whether many single numbers are added to a table of few places: each chunk then adds up its own updates, and what
    chunks have summed is combined. All extents of the table are part of a pattern, and that of the updates is not.
    """
    is_small = max(shape, default=1) <= EXACT and math.prod(shape) <= MOST_PLACES
    first = next((d for d, c in enumerate(node.classes) if c != ONE), None)
    return is_small and first is not None and node.shape[first] > EXACT and not axes_of_rows(node)


def is_shared_out(node: Node, classes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a scatter to a table of this shape, with these extent classes, is cut in chunks."""
    return has_own_rows(node, classes) or has_long_rows(node, classes, shape) or has_small_table(node, shape)


def has_own_rows(node: Node, classes: Sequence[int]) -> bool:
    """Whether rows of updates go to rows of the table of their own: a chunk has some of both."""
    first = next((entry for entry, c in zip(node.table_dims, classes, strict=True) if c != ONE), None)
    outermost = next((d for d, c in enumerate(node.classes) if c != ONE), None)
    return isinstance(first, AxisIndex) and first.axis is not None and first.axis == outermost


def has_long_rows(node: Node, classes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether updates are whole rows, long ones, of a table of many: a chunk has some rows of the table, and all
    updates for these.
    """
    dims = [(entry, n) for entry, c, n in zip(node.table_dims, classes, shape, strict=True) if c != ONE]
    if not dims or isinstance(dims[0][0], AxisIndex) or dims[0][1] < LEAST_ROWS:
        return False
    columns = math.prod(n for entry, n in dims if isinstance(entry, AxisIndex))
    along, across = axes_of_updates(node), axes_of_rows(node)
    is_nested = bool(along and across) and max(along) < min(across) and read_by_positions(node).isdisjoint(across)
    return is_nested and columns >= LEAST_COLUMNS and all(node.shape[d] < MOST_UPDATES for d in along)


def are_plain_rows(node: Node, classes: Sequence[int]) -> bool:
    """Whether each update of a shared scatter is one row of the table, given by one position, along one axis."""
    entries = [entry for entry, c in zip(node.table_dims, classes, strict=True) if c != ONE]
    are_plain = len(entries) == 2 and not isinstance(entries[0], AxisIndex) and isinstance(entries[1], AxisIndex)
    return are_plain and math.prod(node.shape[d] for d in axes_of_updates(node)) < MOST_UPDATES


def read_by_positions(node: Node) -> set[int | None]:
    """The dimensions of the domain that the positions of a scatter depend on."""
    count = sum(isinstance(entry, int) for entry in node.table_dims)
    leaves = [leaf for operand in node.operands[-count:] for leaf in operand.leaves]
    return {i.axis for leaf in leaves for i in leaf.dims} | {g.axis for leaf in leaves for g in leaf.guards}


def axes_of_rows(node: Node) -> list[int]:
    """The dimensions of the domain that are those of the table."""
    free = {entry.axis for entry in node.table_dims if isinstance(entry, AxisIndex)}
    return [d for d, c in enumerate(node.classes) if c != ONE and d in free]


def axes_of_updates(node: Node) -> list[int]:
    """The dimensions of the domain along which positions are read."""
    free = axes_of_rows(node)
    return [d for d, c in enumerate(node.classes) if c != ONE and d not in free]
