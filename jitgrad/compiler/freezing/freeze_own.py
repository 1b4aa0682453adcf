"""Freezing what is our own beside products: the tasks of convolutions and factors, and the memory that they need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jitgrad.compiler.freezing.freeze_loops import Frozen
from jitgrad.compiler.fusing.buffers import aligned
from jitgrad.compiler.fusing.nodes import Convolution, Factor, Transform
from jitgrad.compiler.products.cholesky_steps import KEPT
from jitgrad.compiler.products.columns_steps import memory_bytes as words_bytes
from jitgrad.compiler.products.columns_steps import scratch_bytes
from jitgrad.compiler.products.conv import ConvPlan, Geometry, plan_filters, plan_windows
from jitgrad.compiler.products.factor_steps import COLUMNS, DECOMPOSITIONS, FACTORS, sizes_of
from jitgrad.compiler.products.lu_steps import memory_bytes
from jitgrad.compiler.products.transform_steps import transform_chunks
from jitgrad.compiler.symbols import at_once
from jitgrad.program import Program

PARTS, SCRATCH, FILLED = "parts", "scratch", "filled"
"""With the number of a step, the keys of memory of its own: of all threads together, and of each one; and what is
filled with what a factor would have left, which is no step of the same cluster.
"""

Memory = list[tuple[object, int, bool]]
"""Keys, bytes, and whether each thread has so many."""
PlaceAt = Callable[[object], int]
"""Where a value lies, or the memory of a key."""


def own_memory(program: Program, number: int, item: Convolution | Factor, factor: int | None) -> Memory:
    """What a step needs beside its operands; a solution with a triangle needs nothing. ``factor`` is the number of the
    step whose factor the gradient of one is of, which has left its blocks in memory.
    """
    if isinstance(item, Factor):
        return _factor_memory(program, number, item, factor)
    plan = _conv_plan(program, item)
    scratch = ((number, SCRATCH), aligned(plan.worker_bytes), True)
    return [scratch, ((number, PARTS), plan.parts_bytes, False)] if plan.parts_bytes else [scratch]


def _factor_memory(program: Program, number: int, item: Factor, factor: int | None) -> Memory:
    """Its own, and that in which a Cholesky factor leaves its blocks."""
    own, left = (number, PARTS), (number, FILLED) if factor is None else (factor, PARTS)
    if item.routine == "lu":
        return [(own, at_once(memory_bytes, _rows(program, item)), False)]
    if item.routine in COLUMNS:
        rows = _rows(program, item)
        scratch = (number, SCRATCH)
        return [(own, at_once(words_bytes, rows), False), (scratch, aligned(at_once(scratch_bytes, rows)), True)]
    keys = (own, own) if item.routine == "cholesky" else (own, left)
    return [(key, _sizes(program, item)[-1], False) for key in keys] if item.routine in FACTORS else []


def freeze_own(
    program: Program, number: int, item: Convolution | Factor, place_at: PlaceAt, factor: int | None
) -> Frozen:
    """The task of a convolution, or of a factor, whose failure is told as that of its value."""
    memory = [key for key, _, _ in own_memory(program, number, item, factor)]
    places = tuple(map(place_at, (*item.reads, *item.values, *memory)))
    if isinstance(item, Factor):
        routine = item.routine if factor is None else KEPT
        return "factor", number, routine, (item.lower, item.transposed), _sizes(program, item), places, item.value + 1
    plan, dtype = _conv_plan(program, item), program.specs[item.value].dtype.str
    return "convolution", number, dtype, item.form, (plan.words, plan.cells, plan.chunks), places


def freeze_transform(program: Program, number: int, item: Transform, place_at: PlaceAt) -> Frozen:
    """The task of a Fourier transform: rows, points of each that are read and made, and in how many chunks."""
    (read,), made = item.reads, item.value
    extents = [program.specs[v].known_shape for v in (read, made)]
    is_real = [item.routine == "pairs_rfft", item.routine == "pairs_irfft"]
    *rows, points = extents[0][: None if is_real[0] else -1]
    count, to = math.prod(rows), extents[1][-1 if is_real[1] else -2]
    return (
        "transform", number, program.specs[made].dtype.char, item.routine, item.is_divided, count, (points, to),
        at_once(transform_chunks, count, points), (place_at(read), place_at(made)),
    )  # fmt: skip


def _sizes(program: Program, item: Factor) -> tuple[Any, ...]:
    """The sizes that `factor_steps` takes: the extents of the matrix, with those of right sides or the `Layout`."""
    if item.routine in DECOMPOSITIONS:
        *stack, m, n = program.specs[item.reads[0]].known_shape
        return m, n, _smaller(program, item), math.prod(stack)
    rows = _rows(program, item)
    if item.routine in COLUMNS:
        return rows, program.specs[item.value].known_shape[-1]
    return tuple(at_once(sizes_of, rows)) if item.routine in FACTORS else (rows,)


def _smaller(program: Program, item: Factor) -> int:
    """The smaller extent of a matrix: the columns of the first factor, or how many values there are."""
    return program.specs[item.value].known_shape[-1]


def _rows(program: Program, item: Factor) -> int:
    return program.specs[item.reads[0]].known_shape[-1]


def _conv_plan(program: Program, item: Convolution) -> ConvPlan:
    """How a convolution is cut."""
    is_windows = item.form == "windows"
    x, weights, out = (
        program.specs[v].known_shape
        for v in ((item.a, item.b, item.value) if is_windows else (item.a, item.value, item.b))
    )
    geometry = Geometry(x[0], x[1], out[1], x[2:], out[2:], weights[2:], item.gaps, item.before)  # type: ignore[arg-type]
    plan = plan_windows if is_windows else plan_filters
    return plan(program.specs[item.value].dtype, geometry)
