"""In how many chunks a kernel is cut: by the work that it does, never by the number of threads."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jitgrad.compiler.freezing.lines import is_elementwise
from jitgrad.compiler.lowering.lower import Lowered
from jitgrad.compiler.symbols import least, most

# A chunk should take some microseconds, so that sharing it out costs little; the count depends on the work alone,
# never on the number of threads, because the order of partial sums follows it.
CHUNK_NANOSECONDS = 8_000
MOST_CHUNKS = 64
# Elements of a chunk, of which it may have half a line more or less so that lines begin where chunks do. Shorter ones
# of elements are not made: what is left over of whole turns takes as long as a turn for each register.
LONG_CHUNK = 128
# Of a kernel with rolled groups, rows of a chunk for each that it makes before its first: as many where there are many
# rows, as few where threads would be idle. Few chunks are a power of two, so that threads have as many each.
_MOST_ROWS, _LEAST_ROWS, _FEW_CHUNKS = 16, 2, 4
NANOSECONDS_PER_NODE = 0.08  # one element of one node, vectorised, in cache


def chunk_count(item: Lowered, extents: Mapping[int, int], times: int = 1) -> int:
    """In how many chunks the parallel loop of a kernel is cut, for these extents of classes; all is done ``times``."""
    if item.group.is_serial or not item.group.axes:
        return 1
    work = times * sum([weight * math.prod([extents[c] for c in classes]) for classes, weight in item.work])
    wanted = math.floor(work * NANOSECONDS_PER_NODE / CHUNK_NANOSECONDS)
    rows = item.extent.value(extents)
    if is_elementwise(item.kernel):
        wanted = least(wanted, rows // LONG_CHUNK)
    wanted -= wanted % 2  # two threads have as many each: five of 25 rows would take as long as 15 rows
    if halo := item.group.halo:  # a chunk makes so many rows of the one before it again
        rows = max(rows // (_MOST_ROWS * halo), min(_FEW_CHUNKS, rows // (_LEAST_ROWS * halo)))
        rows = 1 << (rows - 1).bit_length() if rows else 1
    chunks: int = least(most(1, wanted), MOST_CHUNKS, most(1, rows))
    return chunks
