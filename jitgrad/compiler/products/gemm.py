"""Our own products of two matrices: which products they are, and how they are cut; not the steps, nor the code.

They are ours where the processor has registers of 32 bytes or more and BLAS is slower. A long sum for a small result,
which BLAS can hardly share, is cut in parts, which are added at the end; few rows meet a long, narrow matrix,
transposed or not, in a form of their own (short_code.py), and so do two matrices of many rows and few columns
(tall_code.py). Two Zen 4 cores, microseconds:

    float32   16 x 10000 x 50, transposed     97 (NumPy's OpenBLAS in our tiles 176)    float64    176 (244)
              16 x 50 x 10000                 97 (240)                                             166 (503)
              64 x 10000 x 50, transposed    373 (738)
              64 x 50 x 10000                375 (520)
    as fast or faster by BLAS: 64 x 256 x 4096; 2 x 3000 x 700 and 30 x 20000 x 300, transposed; in float64 rows or
    columns that leave registers empty, as 12 x 5000 x 128, transposed

On 32 registers of 64 bytes all others but small ones, and those whose columns would leave registers empty. Two cores of
Intel's with AVX-512 (a peak of 430 GFLOP/s in float32), GFLOP/s beside OpenBLAS in our tiles, in turns, float32 and
float64; n, B T and A T as below:

    1024 x 1024 x 1024                 313 (292)   143 (118)    256 x 256 x 64, B T, 32 of them    293 (149)   156 (101)
    256 x 512 x 784                    299 (253)   154 (101)    256 x 64 x 256, 32 of them         294 (288)   138 (106)
    512 x 512 x 256, A T               340 (214)   166 (95)     256 x 64 x 256, A T, 32 of them    by BLAS     139 (106)
    384 x 384 x 384                    345 (209)   127 (95)     32 x 1024 x 1024                   193 (157)   105 (90)
    256 x 512 x 512, B T               330 (241)   154 (110)    64 x 256 x 4096                    198 (201)   103 (78)
    3200 x 512 x 128                   350 (211)   170 (125)    1024 x 1024 x 10, B T              171 (37)     85 (29)
    128 x 128 x 128                    249 (203)   134 (112)    2048 x 32 x 512                    222 (219)   114 (88)
    as fast or faster by BLAS: 64 x 64 x 64 (128, ours 128), 1024 x 10 x 1024 (100, ours 65), 2048 x 40 x 2048 (197,
    ours 163)

Where registers of 64 bytes are multiplied in halves, those of 192 rows and 32 million multiplications share packed B
(gemm_shared.py). Two Zen 4 cores with a peak of 236 GFLOP/s, which others use as well, GFLOP/s as a step of the MLP's,
each thread packing for itself and sharing, medians in turns, float32:

    1024 x 1024 x 784                  188 and 206          784 x 1024 x 1024, A T             174 and 206
    1024 x 1024 x 1024, B T            188 and 206          256 x 512 x 784                    188 and 195
    1024 x 1024 x 1024, A T            171 and 202          784 x 512 x 256, A T               204 and 208

There, too, a transposed A that meets one panel of B is read where it lies (gemm_unpacked.py). Other registers of 64
bytes read A where it lies, but for a transposed one whose rows are whole pages apart (gemm_code.py). Two cores of
Intel's with AVX-512 (Emerald Rapids, a peak of 350 GFLOP/s in float32 in that hour), at their best in turns, A packed
and not, float32 and float64:

    1024 x 1024 x 784                  294 and 326          256 x 512 x 784            292 and 321    151 and 162
    1024 x 1024 x 1024                 299 and 320          256 x 512 x 512            303 and 333    152 and 162
    1024 x 1024 x 1024, A T            298 and 297          512 x 512 x 256, A T       336 and 351    159 and 166
    784 x 1024 x 1024, A T             301 and 322          784 x 512 x 256, A T       338 and 346    156 and 163
    2048 x 2048 x 2048                 274 and 305          256 x 64 x 256, 32 of them 277 and 311    141 and 165
    2048 x 32 x 512                    260 and 298          the same, A T (f4: BLAS)   252 and 310    128 and 147

    as fast or faster by BLAS, A T: 1024 x 32 x 1024 (202, ours 178), 16 of 128 x 32 x 128 (361, ours 276), 10 of
    100 x 64 x 100 (366, ours 328)

On 16 registers of 32 bytes, in float32 and float64, all but small products and those of a thousand of each, and
batches. Two Zen 3 cores, GFLOP/s beside OpenBLAS in our tiles, in turns, float32 and float64:

    256 x 512 x 784                    165 (165)    67 (58)      256 x 256 x 64, B T, 32 of them    121 (62)     60 (39)
    512 x 512 x 256, A T               138 (100)    76 (54)      256 x 64 x 256, 32 of them         137 (96)     71 (49)
    784 x 512 x 256, A T               142 (120)    81 (54)      256 x 64 x 256, A T, 32 of them    124 (95)     72 (55)
    3200 x 512 x 128                   136 (102)    83 (54)      32 x 512 x 128                     107 (76)     54 (47)
    3200 x 128 x 512, B T              181 (158)    75 (70)      64 x 64 x 6400, A T                 78 (49)     39 (30)
    6400 x 64 x 64                     137 (102)    43 (27)      1024 x 1024 x 10, B T               64 (23)     32 (13)
    16 x 10000 x 50, B T                97 (61)     by BLAS      20 x 50 x 10000, A T                56 (46)     33 (22)
    16 x 50 x 10000                     76 (57)     40 (28)        256 x 10 x 512                    60 (28)     24 (20)
    1024 x 10 x 256                     77 (56)     47 (33)        512 x 10 x 256, A T               47 (32)     30 (28)
    as fast or faster by BLAS: 1024 x 1024 x 1024 (140, ours 142; A T 143, ours 135); few columns of longer sums, as
    1024 x 10 x 1024 (58, ours 40), 512 x 10 x 512, A T (60, ours 49), or of two panels, as 512 x 24 x 784 (91, ours 86)

How sums are cut follows from the sizes alone; how tiles are, on which no bit depends, from the number of processors,
too.
"""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import numpy as np

from jitgrad.compiler.products.gemm_code import WIDTH, scratch_bytes, width
from jitgrad.compiler.products.gemm_shared import MOST_ROWS, cell_bytes, part_depth, shared_bytes
from jitgrad.compiler.products.gemm_steps import GemmPlan
from jitgrad.compiler.products.gemm_tiles import TALL, narrow, places
from jitgrad.compiler.products.gemm_unpacked import unpacked_bytes
from jitgrad.compiler.products.registers import Numbers, kinds
from jitgrad.compiler.products.short_steps import MOST_SHORT, SUMS
from jitgrad.compiler.products.tall_steps import MOST_COLUMNS, MOST_FEW
from jitgrad.records import NamedTuple
from jitgrad.spec import dtype_name

_THIN = 12  # less is not worth the packing of the right operand
_SHORT = 64
_FEW_ROWS = {32: {"float32": 64, "float64": 32}, 16: {"float32": 32, "float64": 32}}  # by the number of registers
_LEAST_FILLED = {"float32": 0.75, "float64": 0.85}  # of the lanes for few rows; and in either of registers for columns
_LEAST_SUMS = 8  # in registers, one for each lane: fewer wait for themselves
_LONG_SIDE = 1024
_LONG_SUM = 4096
_LEAST = 4_000_000  # multiplications: less is not worth the compilation of a module
_LEAST_TALL, _LEAST_HEIGHT = 550_000, 2048
"""Multiplications, and rows: less is as fast by BLAS, or as good as nothing. Two of Intel's cores with AVX-512,
microseconds, ours and OpenBLAS, float64 and float32: 8192 rows of 8 and 3 24 (25) and 31 (27), 23000 of them 35 (78)
and 46 (74); 1024 rows of 16 and 17 8 (10) and 14 (9), 2048 of them 14 (18) and 12 (18).
"""
_CELL = 250_000  # multiplications of float32 that a cell should have: 5 us
_MOST_PARTS = 16
_MOST_CELLS = 64
_LEAST_DEPTH = 512
_LEAST_PLACES = 128
_LEAST_ROWS, _LEAST_COLUMNS = 48, 64
_LARGE_CELL = 1 << 27
_CELLS_OF_A_PROCESSOR = 2
_LEAST_SHARING = 192  # rows: each of two processors has as many as are packed at a time (MOST_ROWS)
_LEAST_SHARED = 32_000_000  # multiplications, 0.3 ms of two cores: a step more, in which B is packed, is then little
_LEAST_HIGH = 36  # rows of a cell, six panels: how many more make processors end together is tried
_COSTS = (8, 11)  # of packing an element, and of turning it
_COSTS_IN_PLACE = (3, 9)  # of reading one where it lies, of A and of a transposed A


class Tiled(NamedTuple):
    """What products must have at least to be worth tiles: rows, columns, multiplications; and where all their sides are
    as large as the last, if there is one, they are for BLAS.
    """

    rows: int
    columns: int
    multiplications: int
    large: int | None


_TILED = {32: Tiled(32, 32, 1_000_000, None), 16: Tiled(32, 32, 1_000_000, 1024)}
"""By the number of registers."""
_PANEL = Tiled(256, 1, 1_000_000, 1024)
"""On 16 registers of 32 bytes, where one panel holds all columns."""
_PANEL_FILLED = 0.6
_FILLED = 0.7  # of the columns that tiles make
_FULL = 0.9  # the same for one panel that a transposed A meets where it lies: less is BLAS's
_PANEL_TERMS, _PANEL_TERMS_TURNED = 784, 256  # more are for BLAS
_PAGE = 4096


def plan_product(
    dtype: np.dtype[Any], sizes: tuple[int, int, int], batch: int, transposed: tuple[bool, bool]
) -> GemmPlan | None:
    """How to do a product (m, n, k); None where it is for BLAS."""
    m, n, k = sizes
    if min(m, n) < 2 or batch < 1:
        return None
    name = dtype_name(dtype)
    kind = kinds().get(name)
    if kind is None:
        return None
    if batch == 1 and (form := _short_form(kind, name, sizes, transposed)) is not None:
        return _short_plan(sizes, form, dtype.itemsize)
    if batch == 1 and _is_tall(sizes, transposed):
        return _tall_plan(kind, sizes)
    if _is_wide(kind, sizes, batch, transposed):
        is_shared = kind.halves and batch == 1 and m >= _LEAST_SHARING and m * n * k >= _LEAST_SHARED
        if is_shared and not _is_unpacked(kind, sizes, transposed[0]):
            return _shared_plan(kind, sizes, transposed[0])
        return _tiled_plan(kind, sizes, batch, transposed)
    if batch > 1 or not _is_long_sum(sizes):
        return None
    most = max(1, m * n * k * dtype.itemsize // 4 // _CELL)
    tiles = max(1, m // _LEAST_ROWS) * max(1, n // _LEAST_COLUMNS)
    parts, depth = _parts(k, min(_MOST_PARTS, most) // tiles)
    rows, columns = _tile(m, n, -(-min(_MOST_CELLS, most) // parts), transposed, kind)
    cells = -(-m // rows) * -(-n // columns) * parts
    return GemmPlan(rows, columns, parts, depth, cells, scratch_bytes(kind, columns, transposed[0]))


def _tiled_plan(
    kind: Numbers, sizes: tuple[int, int, int], batch: int, transposed: tuple[bool, bool]
) -> GemmPlan:
    """Cells that are tiles of C."""
    m, n, k = sizes
    pieces = min(_MOST_CELLS, max(_CELLS_OF_A_PROCESSOR * _processors(), m * n * k // _LARGE_CELL))
    rows, columns = _tile(m, n, -(-pieces // batch), transposed, kind)
    cells = batch * -(-m // rows) * -(-n // columns)
    if _is_unpacked(kind, sizes, transposed[0]):
        return GemmPlan(rows, columns, 1, part_depth(kind, k, True), cells, unpacked_bytes(kind), batch, "unpacked")
    return GemmPlan(rows, columns, 1, k, cells, scratch_bytes(kind, columns, transposed[0]), batch)


def _shared_plan(kind: Numbers, sizes: tuple[int, int, int], is_turned: bool) -> GemmPlan:
    """Cells of equal rows, so that every processor has as many of them."""
    m, n, k = sizes
    processors = _processors()
    cuts = [(-(-m // (rows * processors)) * rows, rows) for rows in range(_LEAST_HIGH, MOST_ROWS + 1, TALL)]
    rows = min(cuts)[1]
    depth = part_depth(kind, k, is_turned)
    cells, worker_bytes, all_of_b = -(-m // rows), cell_bytes(kind, rows), shared_bytes(kind, n, k, depth)
    return GemmPlan(rows, WIDTH, 1, depth, cells, worker_bytes, form="shared", shared_bytes=all_of_b)


@functools.cache
def _processors() -> int:
    """How many there are; to ask the system takes as long as to plan half a product."""
    return os.cpu_count() or 1


def _short_form(
    kind: Numbers, name: str, sizes: tuple[int, int, int], transposed: tuple[bool, bool]
) -> str | None:  # fmt: skip
    """How few rows meet a long matrix: across it, if that is transposed, or down its rows; None: neither."""
    m, n, k = sizes
    if transposed[0] or m > _FEW_ROWS[kind.registers][name] or m * n * k < _LEAST:
        return None
    wide, few = SUMS[kind.registers]
    short, long = (k, n) if transposed[1] else (n, k)
    if long < (_LONG_SIDE if transposed[1] else _LONG_SUM) or not few <= short <= MOST_SHORT:
        return None
    if m < _LEAST_FILLED[name] * kind.lanes * -(-m // kind.lanes):
        return None
    if transposed[1]:
        return "across" if kind.lanes >= _LEAST_SUMS else None
    made = n - n % wide + few * -(-(n % wide) // few)
    return "down" if n >= 0.75 * made else None


def _is_tall(sizes: tuple[int, int, int], transposed: tuple[bool, bool]) -> bool:
    """Whether both matrices are tall and have few columns: a long sum of outer products of their rows."""
    m, n, k = sizes
    is_few = 2 <= min(m, n) <= MOST_FEW and max(m, n) <= MOST_COLUMNS
    return transposed == (True, False) and is_few and k >= _LEAST_HEIGHT and m * n * k >= _LEAST_TALL


def _tall_plan(kind: Numbers, sizes: tuple[int, int, int]) -> GemmPlan:
    """Chunks of rows; lanes are the columns of the matrix for which registers are fewer."""
    m, n, k = sizes
    chunks = max(1, min(_MOST_PARTS, m * n * k * kind.size // 4 // _CELL, k // _LEAST_DEPTH))
    form = "tall" if m * -(-n // kind.lanes) <= n * -(-m // kind.lanes) else "turned"
    return GemmPlan(m, n, chunks, -(-k // chunks), chunks, 0, form=form)


def _short_plan(sizes: tuple[int, int, int], form: str, itemsize: int) -> GemmPlan:
    m, n, k = sizes
    long, most = (n, _MOST_CELLS) if form == "across" else (k, _MOST_PARTS)
    least = _LEAST_PLACES if form == "across" else _LEAST_DEPTH
    chunks = max(1, min(most, m * n * k * itemsize // 4 // _CELL, long // least))
    parts = chunks if form == "down" else 1
    return GemmPlan(m, n, parts, -(-k // parts), chunks, 0, form=form)


def _is_wide(kind: Numbers, sizes: tuple[int, int, int], batch: int, transposed: tuple[bool, bool]) -> bool:
    """Whether a product, or each of a batch, has rows and columns enough for tiles: all but small ones and long sums;
    on 16 registers but the largest, too, and on 32 those of one panel for which A would be turned.
    """
    if kind.registers < 32:
        return _is_tiled(_TILED[16], sizes, batch) or _is_panel(kind, sizes, batch, transposed[0])
    n, made = sizes[1], narrow(kind)
    if not _is_tiled(_TILED[32], sizes, batch) or n < _FILLED * made * -(-n // made):
        return False
    if not transposed[0] or n > kind.columns:
        return True
    is_full = kind.in_place and n >= _FULL * kind.columns and math.prod(sizes) >= _LEAST
    return is_full or _is_unpacked(kind, sizes, True)


def _is_unpacked(kind: Numbers, sizes: tuple[int, int, int], is_turned: bool) -> bool:
    """Whether a transposed A is read where it lies, for one panel."""
    _, n, k = sizes
    return kind.halves and is_turned and narrow(kind) < n <= kind.columns and k % places(kind) == 0


def _is_tiled(least: Tiled, sizes: tuple[int, int, int], batch: int) -> bool:
    m, n, k = sizes
    if (least.large is not None and min(sizes) >= least.large) or (batch == 1 and _is_long_sum(sizes)):
        return False
    return m >= least.rows and n >= least.columns and batch * m * n * k >= least.multiplications


def _is_panel(kind: Numbers, sizes: tuple[int, int, int], batch: int, is_turned: bool) -> bool:
    """Whether there are many rows, and columns for one panel, in sums that are not too long. Rows of A that lie whole
    pages apart have to be packed, for few columns.
    """
    n, k = sizes[1:]
    if n > kind.columns or n < _PANEL_FILLED * kind.columns:
        return False
    is_short = k <= _PANEL_TERMS_TURNED if is_turned else k <= _PANEL_TERMS and k * kind.size % _PAGE != 0
    return is_short and _is_tiled(_PANEL, sizes, batch)


def _is_long_sum(sizes: tuple[int, int, int]) -> bool:
    """Whether a small result is a long sum, which BLAS can hardly share."""
    m, n, k = sizes
    if m * n * k < _LEAST or min(m, n) < _THIN:
        return False
    return max(m, n) <= _SHORT and k >= _LONG_SUM


def _tile(m: int, n: int, pieces: int, transposed: tuple[bool, bool], kind: Numbers) -> tuple[int, int]:
    """Rows and columns of the tiles: at least so many pieces, where A and B are packed least often."""
    cuts, wide, most_down = [], width(kind, transposed[0]), max(1, m // _LEAST_ROWS)
    cost_of_a, cost_of_b = (_COSTS_IN_PLACE if kind.in_place else _COSTS)[transposed[0]], _COSTS[transposed[1]]
    for power in range(min(pieces, max(1, n // _LEAST_COLUMNS)).bit_length()):
        columns = _side(n, 1 << power, kind.columns)
        across = -(-n // columns)
        rows = _side(m, min(-(-pieces // across), most_down), TALL)
        missing = max(0, pieces - across * -(-m // rows))
        cuts.append((missing, cost_of_a / min(columns, wide) + cost_of_b / rows, rows, columns))
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
