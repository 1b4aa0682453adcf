"""Our own products of two matrices: which products they are, and how they are cut; not the steps, nor the code.

They are ours where the processor has registers of 64 bytes and BLAS is slower. A long sum for a small result, which
BLAS can hardly share, is cut in parts, which are added at the end; and a short left operand meets a long, narrow right
one that is transposed, in float32. Two busy Zen 4 cores, microseconds:

    float32   16 x 10000 x 50, transposed    120 (NumPy's OpenBLAS in our tiles 140)
              16 x 50 x 10000                143 (241)          float64    336 (503)
              64 x 64 x 4096                 186 (241)                     358 (500)
    as fast or faster by BLAS: 64 x 256 x 4096; 2 x 3000 x 700 and 30 x 20000 x 300, transposed; float64, transposed

How all is cut follows from the sizes alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jitgrad.compiler.gemm_ir import LOW, scratch_bytes
from jitgrad.compiler.machine import vector_bytes
from jitgrad.compiler.register_ir import KINDS

_THIN = 12  # less is not worth the packing of the right operand
_SHORT = 64
_NARROW = 128
_LONG_SIDE = 1024
_LONG_SUM = 4096
_LEAST = 4_000_000  # multiplications: less is not worth the compilation of a module
_CELL = 250_000  # multiplications of float32 that a cell should have: 5 us
_MOST_PARTS = 16
_MOST_CELLS = 64
_LEAST_DEPTH = 512
_LEAST_ROWS, _LEAST_COLUMNS = 48, 64


class GemmPlan(NamedTuple):
    """Tiles of C, parts of the sum and the places in each, the number of tiles of parts, and the bytes that each worker
    needs.
    """

    rows: int
    columns: int
    parts: int
    depth: int
    cells: int
    worker_bytes: int


def plan_product(
    dtype: np.dtype[Any], sizes: tuple[int, int, int], batch: int, transposed: tuple[bool, bool]
) -> GemmPlan | None:
    """How to do a product (m, n, k); None where it is for BLAS."""
    m, n, k = sizes
    if dtype.name not in KINDS or vector_bytes() < 64 or batch != 1:
        return None
    if not _is_worse_by_blas(dtype, sizes, transposed[1]):
        return None
    most = max(1, m * n * k * dtype.itemsize // 4 // _CELL)
    tiles = max(1, m // _LEAST_ROWS) * max(1, n // _LEAST_COLUMNS)
    parts, depth = _parts(k, min(_MOST_PARTS, most) // tiles)
    rows, columns = _tile(m, n, -(-min(_MOST_CELLS, most) // parts), transposed, KINDS[dtype.name].columns)
    cells = -(-m // rows) * -(-n // columns) * parts
    return GemmPlan(rows, columns, parts, depth, cells, scratch_bytes(KINDS[dtype.name], columns))


def _is_worse_by_blas(dtype: np.dtype[Any], sizes: tuple[int, int, int], transposed: bool) -> bool:
    m, n, k = sizes
    if m * n * k < _LEAST or min(m, n) < _THIN:
        return False
    is_narrow = transposed and dtype.name == "float32" and m <= _SHORT and n >= _LONG_SIDE and k <= _NARROW
    return is_narrow or (max(m, n) <= _SHORT and k >= _LONG_SUM)


def _tile(m: int, n: int, pieces: int, transposed: tuple[bool, bool], panel: int) -> tuple[int, int]:
    """Rows and columns of the tiles: at least so many pieces, where A and B are packed least often."""
    cuts = []
    for across in (1 << power for power in range(min(pieces, max(1, n // _LEAST_COLUMNS)).bit_length())):
        columns = _side(n, across, panel)
        rows = _side(m, min(-(-pieces // -(-n // columns)), max(1, m // _LEAST_ROWS)), 3 * LOW)
        missing = max(0, pieces - (-(-n // columns) * -(-m // rows)))
        packing = 1 / columns + (3 if transposed[1] else 1) / rows
        cuts.append((missing, packing, rows, columns))
    return min(cuts)[2:]


def _side(extent: int, pieces: int, multiple: int) -> int:
    return extent if pieces == 1 else min(extent, -(-extent // (pieces * multiple)) * multiple)


def _parts(k: int, wanted: int) -> tuple[int, int]:
    """The number of parts of a sum over k places, and the places of each."""
    wanted = min(wanted, k // _LEAST_DEPTH)
    if wanted < 2:
        return 1, k
    depth = -(-k // (wanted * 64)) * 64
    return -(-k // depth), depth
