"""Small matrices: which products are loops in a kernel in place of BLAS, and how a kernel reads a batch of matrices.

A batch of small matrices is worked on by one kernel with a matrix per lane: its loops run over the rows and columns
of one matrix, and each of its instructions does as many matrices as a vector has lanes. The leading axes that count
matrices are one parallel loop; all others must be tiny.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitgrad.compiler.fusing.accesses import Leaf
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.opdef import AxisIndex

TINY = 32
_MANY = 16  # matrices; fewer leave lanes empty
_SMALL, _SMALLEST = 16, 4


def is_tiny(extent: int) -> bool:
    """Whether an axis may be an inner one of a kernel with a matrix per lane: a tile of it stays in cache."""
    return extent <= TINY


def is_small_product(batch: int, m: int, n: int, k: int) -> bool:
    """Whether a batch of products of an [m, k] and a [k, n] matrix is loops rather than a BLAS call each.

    Value and gradient of sum((a @ b)**2), one thread, nanoseconds per matrix, by BLAS and by loops:

        n x n       2         4         8        12         16
        float64   148, 13  184, 28   272, 129  553, 354  958, 796
        float32   165, 11  201, 18   333, 77   380, 209  570, 438
    """
    return batch > 1 and max(m, n, k) <= (_SMALL if batch >= _MANY else _SMALLEST)


def is_small_routine(shape: Sequence[int], columns: int) -> bool:
    """Whether a factorization of matrices, or a solution with ``columns`` right sides, has a kernel.

    float64, many matrices, one thread, microseconds per matrix, here and in NumPy:

        n x n         4            8            16           32           48
        inv       0.03, 0.35   0.11, 0.99   0.71, 3.87   4.97, 16.1   15.5, 39.7
        solve     0.02, 0.17   0.07, 0.44   0.34, 1.51   1.81, 5.34   4.91, 12.1
        slogdet   0.02, 0.13   0.05, 0.35   0.28, 1.33   1.59, 4.88   4.47, 11.4
        cholesky  0.01, 0.11   0.06, 0.28   0.26, 0.73   1.31, 2.46   3.15, 7.25

    Two matrices take as long as all that a register has lanes for; one alone has tiles without lanes, and several
    elements of its rows at a time. Microseconds of solve with a vector, value and with its gradient, so, with one
    matrix in all lanes, and by NumPy between clusters (Zen 4):

        rows          16              20              25              32
        value      1.2, 1.9, -     1.9, 3.2, 23   3.0, 5.8, 24    5.2, 11, 26
        gradient   1.9, 3.3, -     3.0, 5.7, 38   4.4, 9.5, 40    7.6, 17, 43
    """
    batch = math.prod(shape[:-2])
    return batch > 0 and min(shape[-1], columns) > 0 and max(shape[-1], columns) <= TINY


def sized(classes: Sequence[int]) -> list[int]:
    """The dimensions whose extent is not 1."""
    return [d for d, c in enumerate(classes) if c != ONE]


def reads_by_matrix(leaf: Leaf, lead: Sequence[int], classes: Sequence[int], source_classes: Sequence[int]) -> bool:
    """Whether a leaf reads, for the matrix at a place of the dimensions ``lead``, the same place of its source, or a
    place that does not depend on them, of a source that is one matrix. ``classes`` are those of the domain.
    """
    if any(guard.axis in lead for guard in leaf.guards):
        return False
    outer = sized(source_classes)[: len(lead)]
    is_batch = [source_classes[d] for d in outer] == [classes[d] for d in lead]
    if not depends_on(leaf, lead):
        return not (lead and is_batch)  # a lane has its own place of a batch only
    return is_batch and (
        [leaf.dims[d] for d in outer] == [AxisIndex(d) for d in lead]
        and sum(index.axis in lead for index in leaf.dims) == len(lead)
    )


def depends_on(leaf: Leaf, lead: Sequence[int]) -> bool:
    """Whether a leaf reads another element for another matrix."""
    return any(index.axis in lead for index in leaf.dims)
