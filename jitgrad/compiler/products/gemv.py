"""Our own products of a matrix and a vector: which they are, and how they are cut; not the steps, nor the code.

They are ours where the processor has registers of 32 bytes or more, for a single matrix whose rows are worth it; the
rest is left to BLAS. Rows are shared among chunks; how many follows from the sizes alone, and so do the bits. All of
it is decided when a program is frozen, from extents.

A long matrix of short rows is what BLAS does worst. 200000 x 10 in float64, two busy Zen 4 cores, microseconds: with
the matrix 300 (OpenBLAS 500), with its transpose 275 (735, which cannot be shared).

On 16 registers of 32 bytes long rows are BLAS's. Two cores of Zen 3 (AVX2), microseconds of OpenBLAS and of ours, in
turns, with the matrix and with its transpose:

    float64, 200000 x 10    1588   807    1533    663
    float64, 200000 x 20    1521  1186    2402   1429
    float64,  50000 x 32     599   531     825    428
    float64,  50000 x 64    1323  1193    2688   1580
    float64,  20000 x 200   1595  1568    2963   2199
    float64,  20000 x 1000  5280  5450    8694  10716
    float64,  20000 x 3      112    69      21     24
    float32, 100000 x 10     557   201     266    119
    float32,  50000 x 64     614   605    1027    690
    float32,   2000 x 1000   109    99     242    274
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.compiler.products.gemv_steps import GemvPlan
from jitgrad.compiler.products.registers import kinds
from jitgrad.spec import dtype_name

_LEAST_BYTES = 100_000  # of the matrix: less is not worth the compilation of a module
_LEAST_ROWS = 64
_MOST_BYTES_REPEATED = 100_000  # in a loop, where all but long matrices are ours
_CHUNK_BYTES = 250_000
_CHUNK_ROWS = 64
_MOST_CHUNKS = 64
_MOST_PARTS = 16
_MOST_COLUMNS = {32: 4096, 16: 256}  # by the number of registers


def plan_vector_product(
    dtype: np.dtype[Any], sizes: tuple[int, int, int], batch: int, transposed: tuple[bool, bool],
    is_repeated: bool = False,
) -> GemvPlan | None:  # fmt: skip
    """How to do a product (m, n, k) with m = 1 or n = 1, which ``is_repeated`` in a loop; None where it is for BLAS."""
    m, n, k = sizes
    if batch != 1 or k == 0 or (m == 1) == (n == 1) or m * n == 0:
        return None
    kind = kinds().get(dtype_name(dtype))
    if kind is None:
        return None
    combines = transposed[0] if n == 1 else not transposed[1]
    rows, columns = (k, m * n) if combines else (m * n, k)
    nbytes = rows * columns * dtype.itemsize
    is_long = rows >= _LEAST_ROWS and nbytes >= _LEAST_BYTES
    if columns > _MOST_COLUMNS[kind.registers] or not (is_long or (is_repeated and nbytes <= _MOST_BYTES_REPEATED)):
        return None
    most = min(_MOST_PARTS if combines else _MOST_CHUNKS, rows // _CHUNK_ROWS)
    return GemvPlan(rows, columns, combines, max(1, min(nbytes // _CHUNK_BYTES, most)))
