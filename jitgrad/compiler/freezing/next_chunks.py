"""What each step of a region over a long matrix asks for of the chunk that its thread takes next: a part of each row,
as large as the step's part of the time.

Memory rests while a step works that asks for nothing. By hand, in C, a Student-t regression of 1600000 x 10 float64
takes 4.8 to 5.1 ms where its products ask for half of the next chunk each, and 3.8 to 4.1, the time of reading the
matrix, where the kernel between them asks for 0.4 of it (two Zen 4 cores).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jitgrad.compiler.freezing.lines import is_elementwise
from jitgrad.compiler.fusing.nodes import Product
from jitgrad.compiler.lowering.lower import Lowered, LoweredStep
from jitgrad.compiler.machine.compilation import vector_bytes
from jitgrad.compiler.products.gemv_steps import GemvPlan
from jitgrad.compiler.products.own_products import product_sizes
from jitgrad.compiler.products.registers import LINE
from jitgrad.program import Program

_ADDING_UP = 2  # registers of 32 bytes whose loads take as long as sums over lanes
_COMBINING = 2  # times as long as `dots` one takes: each row has a number of its own, which is spread


def find_asked(
    program: Program, items: Sequence[LoweredStep], cuts: Sequence[GemvPlan | None], rows: int,
    extents: Mapping[int, int],
) -> tuple[int, int, tuple[int, ...]] | None:  # fmt: skip
    """The matrix of a region, the bytes of its rows, and how many of these each step asks for; None of a region that
    does not begin with a product of a matrix and a vector. ``cuts`` are how steps are such products.
    """
    first, cut = items[0], cuts[0]
    if not isinstance(first, Product) or cut is None:
        return None
    dtype, is_left = program.specs[first.value].dtype, product_sizes(program, first)[0][1] == 1
    times = [
        _kernel_time(item, rows, extents) if isinstance(item, Lowered) else 0 if cut is None
        else _product_time(cut, dtype.itemsize)
        for item, cut in zip(items, cuts, strict=True)
    ]  # fmt: skip
    row_bytes = cut.columns * dtype.itemsize
    return first.a if is_left else first.b, row_bytes, _shares_of(row_bytes, times)


def _shares_of(row_bytes: int, times: Sequence[int]) -> tuple[int, ...]:
    """The bytes of a row, shared out by time."""
    total = sum(times)
    ends = [row_bytes * sum(times[: k + 1]) // total for k in range(len(times))]
    return tuple([end - start for start, end in zip([0, *ends], ends, strict=False)])


def _product_time(cut: GemvPlan, itemsize: int) -> int:
    """Cycles, nearly, of a product for as many rows as a register has lanes: with 10 and 20 columns of float64 27 and
    46, combining them 23 and 43 (Zen 4); on registers of 32 bytes combining them takes longer.
    """
    lanes = vector_bytes() // itemsize
    if lanes * itemsize == LINE:
        return lanes * (-(-2 * cut.columns // lanes) + 1)
    registers = -(-cut.columns // lanes)
    return lanes * (_COMBINING * registers if cut.combines else registers + _ADDING_UP)


def _kernel_time(item: Lowered, rows: int, extents: Mapping[int, int]) -> int:
    """The same of a kernel over elements, an instruction for each operation; 0 for others, which ask for nothing."""
    if not is_elementwise(item.kernel):
        return 0
    return sum([weight * math.prod([extents[c] for c in classes]) for classes, weight in item.work]) // rows
