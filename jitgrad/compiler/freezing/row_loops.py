"""Loops over independent rows: a scan each of whose steps makes rows of the state from the same rows, as in a recurrent
network over a batch. Its chunks divide the rows, each goes through all steps, and none waits for another. It decides
which loops these are and in how many chunks, from the sizes alone; the driver's code is in driver/rows.py.

Every array that a step makes, and the state, is cut into as many equal pieces as there are chunks: a chunk reads of
these its own pieces only, and all of what comes from outside of the loop. What a step stores on the way stays where it
is for the whole step, since chunks may be at different ones. A step of an RNN of 32 x 64 takes two threads 2
microseconds in place of 3.5: its product alone takes one 2.4, too little to be shared out step by step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jitgrad.compiler.freezing.regions import Search, Sizes
from jitgrad.compiler.fusing.nodes import Product
from jitgrad.compiler.fusing.short_steps import FEWEST_ROWS, common_rows
from jitgrad.compiler.lowering.lower import CompiledCluster, Lowered, LoweredStep
from jitgrad.compiler.products.own_products import product_sizes
from jitgrad.program import Program
from jitgrad.records import NamedTuple

_MANY_ROWS = 128  # cut in more chunks: products of 32 rows are nearly as fast as larger ones
_LEAST_WORK = 2_000_000  # multiplications of float32 in all steps: 40 us
_MOST_WORK = 16_000_000  # in a step, from which on its products are shared out one by one
_ELEMENT = 8  # multiplications that an element of a kernel counts as


class RowCut(NamedTuple):
    """Rows of the state, and chunks of them."""

    rows: int
    chunks: int


def find_row_cut(
    program: Program, compiled: CompiledCluster, sizes: Sizes, scan: Mapping[str, Any]
) -> RowCut | None:
    """How a scan with these params and this body is cut by rows; None where rows are not independent, or too few."""
    first = scan["n_consts"]
    carried = program.inputs[first : first + scan["n_carry"]]
    count = common_rows([program.specs[v].known_shape for v in (*carried, *program.outputs)])
    if not carried or count < FEWEST_ROWS:
        return None
    chunks = 4 if count >= _MANY_ROWS and count % 4 == 0 else 2
    if count % chunks or not _is_worth_it(program, compiled.lowered, sizes, scan["length"]):
        return None
    search = Search(compiled, range(len(compiled.lowered)), sizes)
    made = {search.root(v) for v in carried}.union(*compiled.writes)
    if all(_is_by_rows(program, item, search, made, chunks) for item in compiled.lowered):
        return RowCut(count, chunks)
    return None


def _is_worth_it(program: Program, lowered: tuple[LoweredStep, ...], sizes: Sizes, length: int) -> bool:
    work = 0
    for item in lowered:
        if isinstance(item, Product):
            work += math.prod(product_sizes(program, item)[0]) * program.specs[item.value].dtype.itemsize // 4
        elif isinstance(item, Lowered):
            work += _ELEMENT * sum(map(sizes.count, item.group.stored))
    return work <= _MOST_WORK and work * length >= _LEAST_WORK


def _is_by_rows(program: Program, item: LoweredStep, search: Search, made: set[int], chunks: int) -> bool:
    """Whether a step makes each piece of what it makes from the same pieces of what is ``made``."""
    if isinstance(item, Product):
        shape = program.specs[item.value].known_shape
        is_plain = len(shape) == 2 and not item.transpose_a and shape[0] % chunks == 0
        return is_plain and search.root(item.b) not in made
    if not isinstance(item, Lowered):
        return False
    group, extent = item.group, search.sizes.extent(item)
    if group.is_serial or group.lead is not None or group.is_alone or group.partials or extent % chunks:
        return False
    if any(buffer.role == "status" for buffer in item.kernel.buffers):
        return False
    stored = [p for p in group.nodes if p.node.value in group.stored]
    are_whole = item.writes_rows and all(search.sizes.count(p.node.value) % extent == 0 for p in stored)
    return are_whole and all(search.reads_own_row(p, extent, made) for p in group.nodes)
