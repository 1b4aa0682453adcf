"""Our own products of a matrix and a vector: which they are, and how they are cut; not the steps, nor the code.

They are ours where the processor has registers of 64 bytes, for a single matrix whose rows are worth it; the rest is
left to BLAS. Rows are shared among chunks; how many follows from the sizes alone, and so do the bits. All of it is
decided when a program is frozen, from extents.

A long matrix of short rows is what BLAS does worst. 200000 x 10 in float64, two busy Zen 4 cores, microseconds: with
the matrix 300 (OpenBLAS 500), with its transpose 275 (735, which cannot be shared).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jitgrad.compiler.products.registers import kinds
from jitgrad.spec import dtype_name

_LEAST_BYTES = 100_000  # of the matrix: less is not worth the compilation of a module
_LEAST_ROWS = 64
_CHUNK_BYTES = 250_000
_CHUNK_ROWS = 64
_MOST_CHUNKS = 64
_MOST_PARTS = 16
_MOST_COLUMNS = 4096


class GemvPlan(NamedTuple):
    """Rows and columns of the stored matrix, whether its rows are combined (else multiplied with the vector), and the
    number of chunks.
    """

    rows: int
    columns: int
    combines: bool
    chunks: int

    @property
    def parts(self) -> int:
        """The number of elements that hold one result per chunk until these are added; 0 where there is one."""
        return self.chunks * self.columns if self.combines and self.chunks > 1 else 0


def plan_vector_product(
    dtype: np.dtype[Any], sizes: tuple[int, int, int], batch: int, transposed: tuple[bool, bool]
) -> GemvPlan | None:
    """How to do a product (m, n, k) with m = 1 or n = 1; None where it is for BLAS."""
    m, n, k = sizes
    if batch != 1 or k == 0 or (m == 1) == (n == 1) or m * n == 0:
        return None
    kind = kinds().get(dtype_name(dtype))
    if kind is None or kind.registers < 32:
        return None
    combines = transposed[0] if n == 1 else not transposed[1]
    rows, columns = (k, m * n) if combines else (m * n, k)
    nbytes = rows * columns * dtype.itemsize
    if columns > _MOST_COLUMNS or rows < _LEAST_ROWS or nbytes < _LEAST_BYTES:
        return None
    most = min(_MOST_PARTS if combines else _MOST_CHUNKS, rows // _CHUNK_ROWS)
    return GemvPlan(rows, columns, combines, max(1, min(nbytes // _CHUNK_BYTES, most)))
